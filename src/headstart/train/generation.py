"""Writing many texts at once, on any target: continuous batching (Orca, Yu et al. 2022).

Each forward takes one row of every text that is being written and some rows of prompts; a text that ends leaves at once and
another takes its place, so nothing waits for the longest of a batch. A text begins behind whatever its slot already holds: what
several texts share is computed once and forked, and a conversation goes on where its last answer ended.

Tokens are those of the plain sampler (``sampling.py``), so a text depends on its prompt and its seed, not on its neighbours
(up to rounding on PyTorch). They come from the 64 likeliest with min-p 0.05 (Nguyen et al. 2024): a cheap cut, good enough for
a corpus. With each token comes what the model had in mind before it: the hidden state, as heads will see it from this engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from headstart.accept import Row
from headstart.sampling import Sampler, Sampling
from headstart.target.base import Feed, Scored, Slot, Target
from headstart.tree import Tree

PROMPT_ROWS = 256  # of all prompts together, in one forward
_LIKELIEST = 64
_MIN_P = 0.05
_LOOK = 64  # tokens between two looks for a loop
_GRAM = 4
_SHORT = 24  # tokens below which nothing counts as a loop


@dataclass(frozen=True, slots=True)
class Text:
    """A continuation of m tokens, and what the model had in mind before each of them."""

    tokens: tuple[int, ...]
    hidden: NDArray[np.float32]  # [m, D]: the state that each token was drawn from; [0, D] unless asked for
    greedy: NDArray[np.int64]  # [m]: the argmax there; [0] unless asked for


@dataclass(slots=True, eq=False)
class Order:
    """A text to be written behind ``prompt``, whose first tokens the slot may hold already.

    It ends with a stop token (never with its first token), after ``max_new`` tokens, or when it has begun to loop. The slot
    then holds the prompt and all of the text but its last token, and belongs to the caller.
    """

    slot: Slot
    prompt: Sequence[int]
    temperature: float  # 0: greedily
    max_new: int
    stop_tokens: frozenset[int]
    seed: int
    keep_states: bool = False
    tokens: list[int] = field(default_factory=list, init=False)
    hidden: list[NDArray[np.float32]] = field(default_factory=list, init=False)
    read: list[NDArray[np.float32]] = field(default_factory=list, init=False)  # what was watched, of the rows that were fed
    greedy: list[int] = field(default_factory=list, init=False)

    @property
    def ended(self) -> bool:
        """Whether nothing more is to be written."""
        number = len(self.tokens)
        if number == 0:
            return False
        looked_at = number % _LOOK == 0 and loops(self.tokens)
        return self.tokens[-1] in self.stop_tokens or number >= self.max_new or looked_at

    def sampler(self, vocab_size: int) -> Sampler:
        """The plain sampler of this text."""
        stops = tuple(sorted(token for token in self.stop_tokens if token < vocab_size))
        sampling = Sampling(
            self.temperature, top_k=_LIKELIEST, min_p=_MIN_P, min_tokens=1, stop_token_ids=stops, ignore_eos=True
        )
        return Sampler(sampling, vocab_size=vocab_size, prompt=self.prompt, seed=self.seed)


@dataclass(frozen=True, slots=True)
class _Work:
    """An entry of a forward: the next rows of an order."""

    order: Order
    sampler: Sampler
    feed: Feed

    @property
    def decides(self) -> bool:
        return self.feed.first_scored < len(self.feed.tree)


class Scribe:
    """Writes all orders that were added, a token each a step."""

    def __init__(self, target: Target, prompt_rows: int = PROMPT_ROWS, *, layers: Sequence[int] = ()) -> None:
        """``prompt_rows``: rows of prompts in one forward, at most; ``layers``: keep what is watched there of every row."""
        self._target, self._prompt_rows, self._layers = target, prompt_rows, tuple(layers)
        self._running: list[tuple[Order, Sampler]] = []
        self.num_written = 0  # tokens, of orders finished or not
        self._greedy = Sampler(Sampling(), vocab_size=target.vocab_size)

    @property
    def num_running(self) -> int:
        """Orders that are not finished."""
        return len(self._running)

    def add(self, order: Order) -> None:
        """Take an order; it begins with the next step."""
        if order.max_new < 1 or len(order.prompt) <= self._target.length(order.slot):
            raise ValueError("an order has a token to write and a row of its prompt that its slot does not hold")
        self._running.append((order, order.sampler(self._target.vocab_size)))

    def step(self) -> list[tuple[Order, Text]]:
        """One forward over everything in flight; the texts that it finished."""
        batch = self._batch()
        if not batch:
            return []
        scored = self._target.forward([work.feed for work in batch])
        deciding = [(work, (entry, len(work.feed.tree) - 1)) for entry, work in enumerate(batch) if work.decides]
        if deciding:
            self._pick(scored, [work for work, _ in deciding], [row for _, row in deciding])
        if self._layers:
            self._read(scored, batch)
        for work in batch:
            self._target.keep(work.order.slot, tuple(range(len(work.feed.tree))))
        finished = [work.order for work, _ in deciding if work.order.ended]
        if finished:
            gone = set(map(id, finished))
            self._running = [entry for entry in self._running if id(entry[0]) not in gone]
        return [(order, _text(order, self._target.hidden_size)) for order in finished]

    def so_far(self) -> list[tuple[Order, Text]]:
        """What is written of the orders that are not finished."""
        return [(order, _text(order, self._target.hidden_size)) for order, _ in self._running]

    def _batch(self) -> list[_Work]:
        left, batch = self._prompt_rows, []
        for order, sampler in self._running:
            if order.tokens:
                batch.append(_Work(order, sampler, Feed(order.slot, Tree.root(order.tokens[-1]))))
                continue
            rest = order.prompt[self._target.length(order.slot) :]
            chunk = rest[:left]
            if chunk:
                left -= len(chunk)
                scored_from = len(chunk) - (len(chunk) == len(rest))
                batch.append(_Work(order, sampler, Feed(order.slot, Tree.chain(chunk), scored_from)))
        return batch

    def _read(self, scored: Scored, batch: Sequence[_Work]) -> None:
        """Keep what was watched."""
        rows = [(entry, row) for entry, work in enumerate(batch) for row in range(len(work.feed.tree))]
        states, start = self._target.operations.numpy(scored.states(rows, self._layers)), 0
        for work in batch:
            stop = start + len(work.feed.tree)
            work.order.read.append(states[start:stop])
            start = stop

    def _pick(self, scored: Scored, batch: Sequence[_Work], rows: Sequence[Row]) -> None:
        """Append a token to each order, with its state where that is wanted."""
        argmaxes = scored.pick(rows, [self._greedy] * len(rows), [()] * len(rows))
        drawn = [i for i, work in enumerate(batch) if not work.sampler.is_argmax()]
        own = scored.pick([rows[i] for i in drawn], [batch[i].sampler for i in drawn], [()] * len(drawn)) if drawn else []
        tokens = dict(zip(drawn, own, strict=True))
        kept = [i for i, work in enumerate(batch) if work.order.keep_states]
        hidden = self._target.operations.numpy(scored.hidden([rows[i] for i in kept])) if kept else ()
        for i, state in zip(kept, hidden, strict=True):
            batch[i].order.hidden.append(state)
            batch[i].order.greedy.append(argmaxes[i])
        self.num_written += len(batch)
        for i, work in enumerate(batch):
            token = tokens.get(i, argmaxes[i])
            work.order.tokens.append(token)
            work.sampler.commit((token,))


def repeated_share(tokens: Sequence[int]) -> float:
    """Share of a text that repeats what it said before, four tokens at a time."""
    number = len(tokens) - _GRAM + 1
    if number < 1:
        return 0.0
    return 1 - len(set(zip(*(tokens[i : number + i] for i in range(_GRAM)), strict=True))) / number


def loops(tokens: Sequence[int]) -> bool:
    """Whether more than half of a text repeats what it said before."""
    return len(tokens) >= _SHORT and repeated_share(tokens) > 0.5


def _text(order: Order, width: int) -> Text:
    hidden = np.stack(order.hidden) if order.hidden else np.empty((0, width), dtype=np.float32)
    return Text(tuple(order.tokens), hidden, np.array(order.greedy, dtype=np.int64))
