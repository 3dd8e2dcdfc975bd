"""From a proposer's name to a proposer, with what it needs found and checked.

Options that cannot take effect with the chosen proposer are refused by name.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from collections.abc import Sequence as ListOf
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headstart.errors import HeadsError, RequestError
from headstart.proposers.base import Proposer
from headstart.target.base import Target
from headstart.tokenizer import Tokenizer

if TYPE_CHECKING:
    from headstart.heads.base import Heads
    from headstart.proposers.past import PastOutputs

AUTO = "auto"  # chooses among the others (`plan/`), and so is built a layer above
HEADS = ("medusa", "hydra", "mtp")  # proposers that draft with trained heads of their name
PROPOSERS = ("none", "ngram", "suffix", "draft_model", *HEADS, "combined")
GROWTHS = ("dynamic", "static")
_OWN_LAYERS = "layers:"


@dataclass(frozen=True, slots=True)
class Guesser:
    """A proposer (None: plain decoding), the draft nodes it likes, and its heads."""

    name: str
    proposer: Proposer | None
    num_nodes: int
    heads: Heads | None = None
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
    """Build the proposer ``name`` ("plain" and "none" are the empty draft)."""
    _refuse_empty(heads=heads, draft=draft, draft_dtype=draft_dtype)
    name = {"plain": "none"}.get(name, name)
    if name not in PROPOSERS:
        near = difflib.get_close_matches(name, (AUTO, *PROPOSERS), n=1)
        raise RequestError(
            f"unknown proposer {name!r}; " + (f"did you mean {near[0]}?" if near else f"known: {', '.join((AUTO, *PROPOSERS))}")
        )
    _refuse_idle(name, (*HEADS, "combined"), heads=heads, allow_other_base=allow_other_base or None)
    _refuse_idle(name, ("medusa", "combined"), growth=growth)
    _refuse_idle(name, ("draft_model", "combined"), draft=draft, draft_dtype=draft_dtype)
    _refuse_idle(name, ("suffix", "combined"), past_outputs=past_outputs)
    if name in HEADS:
        return _with_heads(name, target, heads, growth, allow_other_base)
    if name == "draft_model":
        return _draft_model(target, tokenizer, draft, draft_dtype)
    if name == "suffix":
        return _suffix(past_outputs)
    if name == "combined":
        return _combined(
            choose_members(
                target,
                tokenizer,
                heads=heads,
                draft=draft,
                draft_dtype=draft_dtype,
                growth=growth,
                allow_other_base=allow_other_base,
                past_outputs=past_outputs,
            )
        )
    if name == "ngram":
        from headstart.proposers.ngram import NgramProposer

        return Guesser(name, NgramProposer(), num_nodes=7)
    return Guesser("none", None, num_nodes=0)


def choose_members(
    target: Target,
    tokenizer: Tokenizer,
    *,
    heads: str | None = None,
    draft: str | None = None,
    draft_dtype: str | None = None,
    growth: str | None = None,
    allow_other_base: bool = False,
    past_outputs: int | None = None,
) -> list[Guesser]:
    """All that can guess for this model as it is: copying, heads that are found or named, and a draft model if one is named."""
    _refuse_empty(heads=heads, draft=draft, draft_dtype=draft_dtype)
    members = [_suffix(past_outputs)]
    kind = "medusa" if growth and not heads else _kind_of(heads, target)
    if kind or allow_other_base:
        members.append(_with_heads(kind or HEADS[0], target, heads, growth, allow_other_base))
    if draft or draft_dtype:
        members.append(_draft_model(target, tokenizer, draft, draft_dtype))
    return members


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


def _with_heads(kind: str, target: Target, folder: str | None, growth: str | None, allow_other_base: bool) -> Guesser:
    """The proposer of trained heads of this kind, from the folder or found by the target's fingerprint."""
    from headstart.heads.base import find_heads, kind_of_heads, load_heads

    if growth not in (None, *GROWTHS):
        raise RequestError(f"growth is {growth!r}; it must be one of {', '.join(GROWTHS)}")
    _refuse_idle(kind, ("medusa",), growth=growth)
    found = folder or find_heads(target.fingerprint, kind, target.home)
    if found is None:
        advice = f"train some with `headstart train --heads {kind}`, or name a folder with --heads"
        raise HeadsError(f"no heads fit {target.name} (kind {kind}); {advice}")
    if kind_of_heads(found) != kind:
        raise HeadsError(f"{found} holds {kind_of_heads(found)} heads, not {kind}; choose proposer {kind_of_heads(found)}")
    loaded = load_heads(found, target, allow_other_base=allow_other_base)
    return Guesser(kind, proposer_of(loaded, target, growth), num_nodes=7, heads=loaded)


def proposer_of(heads: Heads, target: Target, growth: str | None = None) -> Proposer:
    """The proposer that drafts with these heads on this target."""
    from headstart.proposers.hydra import HydraProposer
    from headstart.proposers.medusa import MedusaProposer

    made: Any = heads
    bound = made.bind(target.operations, target.base_weights())
    proposers: dict[str, Callable[[], Proposer]] = {
        "medusa": lambda: MedusaProposer(bound, growth=growth or GROWTHS[0]),
        "hydra": lambda: HydraProposer(bound),
        "mtp": lambda: _mtp(bound, target),
    }
    return proposers[heads.config.kind]()


def _mtp(bound: Any, target: Target) -> Proposer:
    """The proposer of one layer that is run several steps, or of heads that were trained together with their model."""
    from headstart.heads.future import BoundFuture
    from headstart.proposers.future import FutureProposer
    from headstart.proposers.mtp import MtpProposer, watched
    from headstart.proposers.sequential import SequentialProposer

    if not isinstance(bound, BoundFuture):
        if layers := watched(bound.config):
            target.watch(layers)
        return MtpProposer(bound)
    target.watch(bound.config.watched)
    return SequentialProposer(bound) if bound.config.variant == "sequential" else FutureProposer(bound)


def _kind_of(heads: str | None, target: Target) -> str | None:
    """The kind of these heads, else of those that are found for the target."""
    from headstart.heads.base import find_heads, kind_of_heads

    folder = heads or find_heads(target.fingerprint, home=target.home)
    return None if folder is None else kind_of_heads(folder)


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


def _refuse_empty(**options: str | None) -> None:
    """An empty name, such as that of a variable that was never set, names nothing."""
    for option, value in options.items():
        if value == "":
            raise RequestError(f"option {option} is empty; name something or leave it out")


def _refuse_idle(name: str, users: tuple[str, ...], **options: object) -> None:
    """Refuse options that only the proposers ``users`` read."""
    for option, value in options.items():
        if value is not None and name not in users:
            raise RequestError(f"option {option} has no effect with proposer {name}; it belongs to {' and '.join(users)}")
