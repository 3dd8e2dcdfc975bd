"""Texts that go round in circles, as small models do when they write greedily.

What is counted are runs of four tokens that stood in the text before. A text loops if more than half of its runs did, or nearly
all at its end: then it has just begun to, and would go on until its limit. Before its loop it is like any other text.
"""

from __future__ import annotations

from collections.abc import Sequence

_GRAM = 4
_SHORT = 24  # tokens below which nothing counts as a loop
_END = 48  # runs of a text's end
_NEARLY_ALL = 0.9


def repeated_share(tokens: Sequence[int]) -> float:
    """Share of a text that repeats what it said before, four tokens at a time."""
    repeated = _repeated(tokens)
    return sum(repeated) / max(len(repeated), 1)


def loops(tokens: Sequence[int]) -> bool:
    """Whether more than half of a text repeats what it said before, or nearly all of its end does."""
    repeated = _repeated(tokens)
    if len(tokens) >= _SHORT and 2 * sum(repeated) > len(repeated):
        return True
    return len(repeated) >= _END and sum(repeated[-_END:]) >= _NEARLY_ALL * _END


def before_loop(tokens: Sequence[int]) -> int:
    """Tokens of a text in front of the place from which on nearly all of it was said before; all if there is none."""
    repeated = _repeated(tokens)
    found, num_repeated = len(tokens), 0
    for behind, place in enumerate(reversed(range(len(repeated))), start=1):
        num_repeated += repeated[place]
        if repeated[place] and behind >= _SHORT and num_repeated >= _NEARLY_ALL * behind:
            found = place
    return found


def _repeated(tokens: Sequence[int]) -> list[bool]:
    """Of each four tokens in a row whether they stood before."""
    seen: set[tuple[int, ...]] = set()
    found = []
    for place in range(len(tokens) - _GRAM + 1):
        run = tuple(tokens[place : place + _GRAM])
        found.append(run in seen)
        seen.add(run)
    return found
