"""Which proposer guesses, and whether what is asked of it can be, as far as that shows before a model is there.

Loading a model takes seconds, and a typing mistake should not. So :func:`check_guesser` makes the same choice as
:func:`choose_guesser` does later, with nothing in the target's place: whatever is refused before the model is looked at is
refused now. What only the model can tell (whether heads fit it, which there are) is left for then.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from headstart.accept import EXACT, Rule
from headstart.errors import RequestError, require
from headstart.proposers.choose import AUTO, Guesser, choose_proposer
from headstart.target.base import Target
from headstart.target.loading import DTYPES
from headstart.tokenizer import Tokenizer

NONE = ("none", "plain")
"""Names of the empty draft."""


def choose_guesser(name: str, target: Target, tokenizer: Tokenizer, **options: Any) -> Guesser:
    """The proposer of a name, with options as in ``load``; "auto" is the one that decides by cost."""
    _check_types(**options)
    if name == AUTO:
        from headstart.plan.automatic import choose_auto

        return choose_auto(target, tokenizer, **options)
    return choose_proposer(name, target, tokenizer, **options)


def check_guesser(name: str, *, num_nodes: int | None = None, rule: Rule = EXACT, **options: Any) -> None:
    """RequestError or HeadsError for what :func:`choose_guesser` would refuse of any model; options that are None are off."""
    absent: Any = _Absent()
    with suppress(_AbsentError):
        choose_guesser(name, absent, absent, **options)
    check_use(name in NONE, options.get("past_outputs") is not None, num_nodes, rule)


def check_use(is_plain: bool, keeps_outputs: bool, num_nodes: int | None, rule: Rule) -> None:
    """RequestError for a number of nodes or a rule of acceptance that cannot be meant with a proposer of this kind."""
    valid = num_nodes is None or (type(num_nodes) is int and num_nodes >= 0)
    require(valid, "num_nodes", num_nodes, "a whole number, 0 or more")
    if num_nodes and is_plain:
        raise RequestError("num_nodes has no effect in plain decoding; choose a proposer, or leave it out")
    if is_plain and rule is not EXACT:
        raise RequestError(f"accept {rule.name} has no effect in plain decoding; choose a proposer, or leave it out")
    if keeps_outputs and rule is not EXACT:
        raise RequestError(
            f"with accept {rule.name} past outputs would let a text depend on earlier requests; "
            "leave past_outputs out, or accept exact"
        )


class _AbsentError(Exception):
    """The model was looked at."""


class _Absent:
    """Stands where a model will be."""

    def __getattr__(self, name: str) -> NoReturn:
        raise _AbsentError(name)


def _check_types(
    *,
    heads: object = None,
    draft: object = None,
    draft_dtype: object = None,
    growth: object = None,
    allow_other_base: object = False,
    past_outputs: object = None,
) -> None:
    require(heads is None or isinstance(heads, str | Path), "heads", heads, "a folder")
    for name, value in (("draft", draft), ("growth", growth)):
        require(value is None or isinstance(value, str), name, value, "text")
    known = draft_dtype in (None, "", *DTYPES)  # an empty one is refused as such
    require(known, "draft_dtype", draft_dtype, f"one of {', '.join(DTYPES)}")
    require(isinstance(allow_other_base, bool), "allow_other_base", allow_other_base, "True or False")
    require(past_outputs is None or type(past_outputs) is int, "past_outputs", past_outputs, "a whole number of tokens")
