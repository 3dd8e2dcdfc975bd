"""Past outputs that later requests may copy from, in bounded memory.

Each three tokens in a row are indexed with their latest followers, whichever output they stand in; matches shorter than three
tokens are left to a request's own text, which is nearer. When a new output would exceed ``max_tokens``, the oldest ones leave
together with everything that the index holds of them. Positions count up for ever and are never used twice, so a match that is
still carried along when its output leaves simply ends.

One store belongs to one model (token ids are its own) and may be given to the proposers of several loops in turn. It is not for
loops that run at the same time in several threads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as ListOf

from headstart.errors import RequestError
from headstart.proposers.occurrences import Matches

MIN_MATCH = 3
_LATEST = 16  # followers of three tokens that are remembered
_LONGEST_COMPARED = 16  # tokens that are compared when a request joins
_END = -1  # behind each output: nothing follows, nothing matches across

Key = tuple[int, ...]


class PastOutputs:
    """A bounded store of what one model said before."""

    def __init__(self, max_tokens: int = 65_536) -> None:
        """``max_tokens``: the store's size; about 300 bytes a token."""
        if max_tokens < 1:
            raise RequestError(f"past outputs hold {max_tokens} tokens; they must hold 1 or more")
        self.max_tokens = max_tokens
        self._tokens: list[int] = []
        self._lengths: deque[int] = deque()  # of the outputs, their ends included
        self._first = 0  # position of the oldest token
        self._index: dict[Key, deque[int]] = {}  # three tokens -> positions of their latest followers

    def clear(self) -> None:
        """Forget everything."""
        self._first += len(self._tokens)
        self._tokens, self._lengths, self._index = [], deque(), {}

    def __len__(self) -> int:
        """Tokens held, one more for each output."""
        return len(self._tokens)

    def add(self, output: ListOf[int]) -> None:
        """A finished output; of one that is longer than the whole store its end stays."""
        kept = [*output[-(self.max_tokens - 1) :], _END] if self.max_tokens > 1 else []
        if len(kept) <= MIN_MATCH + 1:
            return  # nothing in it has three tokens and a follower
        while len(self._tokens) + len(kept) > self.max_tokens:
            self._drop_oldest()
        start = self._first + len(self._tokens)
        self._tokens.extend(kept)
        self._lengths.append(len(kept))
        for i in range(MIN_MATCH, len(kept) - 1):
            places = self._index.setdefault(tuple(kept[i - MIN_MATCH : i]), deque(maxlen=_LATEST))
            places.append(start + i)

    def matches(self, tokens: ListOf[int]) -> Matches:
        """Followers of the last three tokens, with how far the match goes back."""
        found: Matches = {}
        for position in self._index.get(tuple(tokens[-MIN_MATCH:]), ()):
            length = MIN_MATCH
            while (
                length < _LONGEST_COMPARED and length < len(tokens) and self._at(position - 1 - length) == tokens[-1 - length]
            ):
                length += 1
            found[position] = length
        return found

    def step(self, matches: Matches, tail: Key) -> Matches:
        """Matches one token later; ``tail`` ends with that token and has up to three."""
        token = tail[-1]
        found = {position + 1: length + 1 for position, length in matches.items() if self._at(position) == token}
        if len(tail) == MIN_MATCH:
            for position in self._index.get(tail, ()):
                found.setdefault(position, MIN_MATCH)
        return found

    def followers(self, matches: Matches) -> list[tuple[int, int]]:
        """(token, match length) of each match that has a follower."""
        found = ((self._at(position), length) for position, length in matches.items())
        return [(token, length) for token, length in found if token != _END]

    def _at(self, position: int) -> int:
        """The token at a position; the end where the store holds none (any more)."""
        place = position - self._first
        return self._tokens[place] if 0 <= place < len(self._tokens) else _END

    def _drop_oldest(self) -> None:
        length = self._lengths.popleft()
        tokens = self._tokens[:length]
        del self._tokens[:length]
        for i in range(MIN_MATCH, length - 1):
            key = tuple(tokens[i - MIN_MATCH : i])
            places = self._index.get(key)
            if places and places[0] == self._first + i:
                places.popleft()
                if not places:
                    del self._index[key]
        self._first += length
