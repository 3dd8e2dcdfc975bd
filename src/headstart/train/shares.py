"""Keeping the kinds of a corpus to their shares of its tokens.

Kinds differ in the length of their answers and in how often an attempt comes to nothing, so drawing kinds by their shares
would give other shares of tokens. Instead the next conversation is of the kind that has had the least for its share (as in
weighted fair queueing, Demers et al. 1989). What is still being written counts with the mean of its kind.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

_FIRST_GUESS = 200.0  # tokens of a conversation of which nothing is known
_LEAST = 40.0  # an attempt that gives fewer costs this much, so a kind that always fails does not take all the time
_FORGET = 0.1


@dataclass(slots=True, eq=False)
class Attempt:
    """One conversation, its branches counted until the last one is settled."""

    kind: str
    expected: float
    num_open: int = 1
    num_tokens: int = 0


class Shares:
    """Tokens written and begun, by kind."""

    def __init__(self, shares: Mapping[str, float]) -> None:
        """``shares``: a positive number a kind; only their ratios count."""
        self._shares = dict(shares)
        self._tokens = dict.fromkeys(shares, 0.0)
        self._means = dict.fromkeys(shares, _FIRST_GUESS)

    def count(self, kind: str, num_tokens: int) -> None:
        """Tokens that stood there before; of an unknown kind they do not matter."""
        if kind in self._tokens:
            self._tokens[kind] += num_tokens

    def begin(self, possible: Collection[str]) -> Attempt:
        """A conversation of the kind that lags behind most, of these."""
        kind = min(possible, key=lambda kind: (self._tokens[kind] + self._means[kind]) / self._shares[kind])
        attempt = Attempt(kind, self._means[kind])
        self._tokens[kind] += attempt.expected
        return attempt

    def settle(self, attempt: Attempt, num_tokens: int) -> None:
        """One branch of a conversation ended, with so many tokens; 0 if it came to nothing."""
        attempt.num_open -= 1
        attempt.num_tokens += num_tokens
        if attempt.num_open:
            return
        cost = max(float(attempt.num_tokens), _LEAST)
        self._tokens[attempt.kind] += cost - attempt.expected
        self._means[attempt.kind] += _FORGET * (cost - self._means[attempt.kind])
