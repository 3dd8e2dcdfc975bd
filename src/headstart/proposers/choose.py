"""From a proposer's name to a proposer, with what it needs found and checked.

Options that cannot take effect with the chosen proposer are refused by name.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence as ListOf
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headstart.errors import HeadsError, RequestError
from headstart.proposers.base import Proposer
from headstart.target.base import Target
from headstart.tokenizer import Tokenizer

if TYPE_CHECKING:
    from headstart.heads.medusa import MedusaHeads
    from headstart.proposers.past import PastOutputs

PROPOSERS = ("none", "ngram", "suffix", "draft_model", "medusa", "combined")
GROWTHS = ("dynamic", "static")
_OWN_LAYERS = "layers:"


@dataclass(frozen=True, slots=True)
class Guesser:
    """A proposer (None: plain decoding), the draft nodes it likes, and its heads."""

    name: str
    proposer: Proposer | None
    num_nodes: int
    heads: MedusaHeads | None = None
    notes: tuple[str, ...] = ()  # of a second model's loading
    past_outputs: PastOutputs | None = None


def choose_proposer(
    name: str,
    target: Target,
    tokenizer: Tokenizer,
    *,
    heads: str | None = None,
    draft: str | None = None,
    draft_dtype: str | None = None,
    growth: str | None = None,
    allow_other_base: bool = False,
    past_outputs: int | None = None,
) -> Guesser:
    """Build the proposer ``name`` ("plain" and "none" are the empty draft; "auto" takes what fits the model)."""
    from headstart.heads.base import find_heads

    name = {"plain": "none"}.get(name, name)
    if name == "auto":
        name = "draft_model" if draft else "medusa" if heads or find_heads(target.fingerprint) else "ngram"
    if name not in PROPOSERS:
        near = difflib.get_close_matches(name, PROPOSERS, n=1)
        raise RequestError(
            f"unknown proposer {name!r}; " + (f"did you mean {near[0]}?" if near else f"known: {', '.join(PROPOSERS)}")
        )
    _refuse_idle(name, ("medusa", "combined"), heads=heads, growth=growth, allow_other_base=allow_other_base or None)
    _refuse_idle(name, ("draft_model", "combined"), draft=draft, draft_dtype=draft_dtype)
    _refuse_idle(name, ("suffix", "combined"), past_outputs=past_outputs)
    if name == "medusa":
        return _medusa(target, heads, growth or GROWTHS[0], allow_other_base)
    if name == "draft_model":
        return _draft_model(target, tokenizer, draft, draft_dtype)
    if name == "suffix":
        return _suffix(past_outputs)
    if name == "combined":
        members = [_suffix(past_outputs)]
        if heads or growth or allow_other_base or find_heads(target.fingerprint):
            members.append(_medusa(target, heads, growth or GROWTHS[0], allow_other_base))
        if draft or draft_dtype:
            members.append(_draft_model(target, tokenizer, draft, draft_dtype))
        return _combined(members)
    if name == "ngram":
        from headstart.proposers.ngram import NgramProposer

        return Guesser(name, NgramProposer(), num_nodes=7)
    return Guesser("none", None, num_nodes=0)


def _suffix(past_outputs: int | None) -> Guesser:
    from headstart.proposers.past import PastOutputs
    from headstart.proposers.suffix import SuffixProposer

    past = None if past_outputs is None else PastOutputs(past_outputs)
    return Guesser("suffix", SuffixProposer(past), num_nodes=15, past_outputs=past)


def _combined(members: ListOf[Guesser]) -> Guesser:
    """What several proposers need, in one."""
    from headstart.proposers.combined import CombinedProposer

    return Guesser(
        "combined",
        CombinedProposer([member.proposer for member in members if member.proposer]),
        num_nodes=15,
        heads=next((member.heads for member in members if member.heads), None),
        notes=tuple(note for member in members for note in member.notes),
        past_outputs=members[0].past_outputs,
    )


def _medusa(target: Target, heads: str | None, growth: str, allow_other_base: bool) -> Guesser:
    from headstart.heads.base import find_heads, load_heads
    from headstart.proposers.medusa import MedusaProposer

    if growth not in GROWTHS:
        raise RequestError(f"growth is {growth!r}; it must be one of {', '.join(GROWTHS)}")
    folder = heads or find_heads(target.fingerprint)
    if folder is None:
        raise HeadsError(f"no heads fit {target.name}; train some with `headstart train`, or name a folder with --heads")
    loaded = load_heads(folder, target, allow_other_base=allow_other_base)
    bound = loaded.bind(target.operations, target.base_weights())
    return Guesser("medusa", MedusaProposer(bound, growth=growth), num_nodes=7, heads=loaded)


def _draft_model(target: Target, tokenizer: Tokenizer, draft: str | None, dtype: str | None) -> Guesser:
    from headstart.proposers.draft_model import DraftModelProposer
    from headstart.proposers.vocabulary import check_vocabularies
    from headstart.target.loading import load_model, own_layers

    if draft is None:
        raise RequestError(
            "proposer draft_model needs a model: name it with --draft (layers:8 takes the target's first 8 layers)"
        )
    if draft.startswith(_OWN_LAYERS):
        if dtype is not None:
            raise RequestError(f"draft_dtype has no effect with {draft}: the layers are the target's own")
        return Guesser("draft_model", DraftModelProposer(own_layers(target, draft.removeprefix(_OWN_LAYERS))), num_nodes=7)
    if target.engine == "hf":
        loaded = load_model(draft, dtype=dtype or target.dtype, engine="hf")
    else:
        loaded = load_model(draft, dtype=dtype or "auto")
    check_vocabularies(tokenizer, loaded.tokenizer)
    return Guesser("draft_model", DraftModelProposer(loaded.target), num_nodes=7, notes=loaded.notes)


def _refuse_idle(name: str, users: tuple[str, ...], **options: object) -> None:
    """Refuse options that only the proposers ``users`` read."""
    for option, value in options.items():
        if value is not None and name not in users:
            raise RequestError(f"option {option} has no effect with proposer {name}; it belongs to {' and '.join(users)}")
