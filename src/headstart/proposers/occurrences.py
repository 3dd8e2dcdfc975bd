"""Where the last tokens of a text stood before, and how far they match there.

A *match* is a position whose token followed the current tail somewhere earlier, with the number of tokens that agree right
before it. All matches are carried along token by token: those whose follower was the new token grow by one, and the new token's
own latest occurrences join with the shortest length. So there is no tree of suffixes to keep, and a token costs a few entries
of a dictionary, whatever the text's length. The set of matches is the node of the suffix tree that the tail leads to (Oliaro et
al. 2025, "SuffixDecoding"), with the positions themselves in place of their counts.

The same step leads behind tokens that are only drafted. A match that has reached the text's end goes on into the drafted path,
as in LZ77, so that loops of any period are copied to any depth. A tail never matches itself: a position joins only when the
token behind it is known.
"""

from __future__ import annotations

from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field

LATEST = 8  # occurrences of a token that join, the latest ones
MOST_MATCHES = 24  # matches that are carried along; the longest and latest stay
TAIL = 32  # tokens of a prompt's end that are matched; what is longer counts as long

Matches = dict[int, int]
"""Position of a follower -> tokens that agree before it."""


@dataclass(slots=True)
class Occurrences:
    """One text, as it grows."""

    tokens: list[int] = field(default_factory=list)
    positions: dict[int, list[int]] = field(default_factory=dict)  # of each token that has a follower or is the last one
    matches: Matches = field(default_factory=dict)  # of the whole text's end

    def start(self, tokens: ListOf[int]) -> None:
        """Take in a text whole: only its end is matched."""
        head = max(0, len(tokens) - TAIL)
        self.tokens = list(tokens[:head])
        for position, token in enumerate(self.tokens):
            self.positions.setdefault(token, []).append(position)
        for token in tokens[head:]:
            self.append(token)

    def append(self, token: int) -> None:
        """The text's next token."""
        self.matches = self.step(self.matches, (), token)
        self.positions.setdefault(token, []).append(len(self.tokens))
        self.tokens.append(token)

    def step(self, matches: Matches, path: ListOf[int], token: int) -> Matches:
        """Matches of text + path + token, from those of text + path."""
        tokens, num_tokens = self.tokens, len(self.tokens)
        found = {
            position + 1: length + 1
            for position, length in matches.items()
            if (tokens[position] if position < num_tokens else path[position - num_tokens]) == token
        }
        for position in self.positions.get(token, ())[-LATEST:]:
            found.setdefault(position + 1, 1)
        return found if len(found) <= MOST_MATCHES else _longest(found)


def _longest(matches: Matches) -> Matches:
    best = sorted(matches.items(), key=lambda match: (-match[1], -match[0]))
    return dict(best[:MOST_MATCHES])
