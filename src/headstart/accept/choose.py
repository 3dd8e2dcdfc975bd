"""From a rule's name to the rule; options that cannot take effect are refused by name."""

from __future__ import annotations

import difflib

from headstart.accept.base import Rule
from headstart.accept.block import BLOCK
from headstart.accept.exact import EXACT
from headstart.accept.rejection import REJECTION
from headstart.accept.typical import DELTA, EPSILON, typical_rule
from headstart.errors import RequestError

_RULES = {rule.name: rule for rule in (EXACT, REJECTION, BLOCK, typical_rule())}
RULES = tuple(_RULES)


def choose_rule(name: str, *, epsilon: float | None = None, delta: float | None = None) -> Rule:
    """The rule of this name; ``epsilon`` and ``delta`` belong to ``typical``."""
    if name not in _RULES:
        near = difflib.get_close_matches(name, RULES, n=1)
        raise RequestError(
            f"unknown accept rule {name!r}; " + (f"did you mean {near[0]}?" if near else f"known: {', '.join(RULES)}")
        )
    if name == "typical":
        return typical_rule(EPSILON if epsilon is None else epsilon, DELTA if delta is None else delta)
    for option, value in (("epsilon", epsilon), ("delta", delta)):
        if value is not None:
            raise RequestError(f"option {option} has no effect with accept {name}; it belongs to typical")
    return _RULES[name]
