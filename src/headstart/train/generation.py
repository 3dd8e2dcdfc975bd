"""Writing many texts at once, on any target: continuous batching (Orca, Yu et al. 2022).

Each forward takes one row of every text that is being written and some rows of prompts; a text that ends leaves at once and
another takes its place, so nothing waits for the longest of a batch. With many texts in flight most of a step's time goes into
reading their keys and values, which rows of a draft share with the text's own: so what texts repeat of themselves is drafted
(``copying``), and a step writes more than one token of some. A text begins behind whatever its slot already holds: what
several texts share is computed once and forked, and a conversation goes on where its last answer ended.

Tokens are those of the plain sampler (``sampling.py``), so a text depends on its prompt and its seed, not on its neighbours
(up to rounding on PyTorch). They come from the 64 likeliest with min-p 0.05 (Nguyen et al. 2024): a cheap cut, good enough for
a corpus. With each token comes what the model had in mind before it: the hidden state, as heads will see it from this engine.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from headstart.accept import EXACT, Choice, Draft, Row, Verdict
from headstart.proposers.base import Observation, Proposer, Sequence
from headstart.proposers.suffix import SuffixProposer
from headstart.sampling import Sampler, Sampling
from headstart.target.base import Feed, Scored, Slot, Target
from headstart.train.loops import loops
from headstart.tree import ROOT, Path, Tree

_KEYS = itertools.count()  # of texts, for all scribes: they may share a proposer
PROMPT_ROWS = 256  # of all prompts together, in one forward
_MOST_DRAFTED = 8  # nodes of a draft
_LEAST_REACH = 0.25  # of a drafted node: with many texts in flight a row costs about a fifth of what a token does
_LIKELIEST = 64
_MIN_P = 0.05
_FIRST_LOOK, _LOOK = 64, 32  # tokens before the first look for a loop, and between two


@dataclass(frozen=True, slots=True)
class Text:
    """A continuation of m tokens, and what the model had in mind before each of them."""

    tokens: tuple[int, ...]
    hidden: NDArray[np.float32]  # [m, D]: the state that each token was drawn from; [0, D] unless asked for
    greedy: NDArray[np.int64]  # [m]: the argmax there; [0] unless asked for

    def first(self, number: int) -> Text:
        """Its first tokens alone."""
        return Text(self.tokens[:number], self.hidden[:number], self.greedy[:number])


@dataclass(slots=True, eq=False)
class Order:
    """A text to be written behind ``prompt``, whose first tokens the slot may hold already.

    It ends with a stop token (never with its first token), after ``max_new`` tokens, or when it has begun to loop. The slot
    then holds the prompt and all of the text but its last token, and belongs to the caller. With ``max_new`` 0 the prompt is
    read, and nothing written.
    """

    slot: Slot
    prompt: ListOf[int]
    temperature: float  # 0: greedily
    max_new: int
    stop_tokens: frozenset[int]
    seed: int
    keep_states: bool = False
    hint: ListOf[int] = ()  # a text that this one may resemble, to copy drafts from
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
        looked_at = number >= _FIRST_LOOK and number % _LOOK == 0 and loops(self.tokens)
        return self.tokens[-1] in self.stop_tokens or number >= self.max_new or looked_at

    def sampler(self, vocab_size: int) -> Sampler:
        """The plain sampler of this text."""
        stops = tuple(sorted(token for token in self.stop_tokens if token < vocab_size))
        sampling = Sampling(
            self.temperature, top_k=_LIKELIEST, min_p=_MIN_P, min_tokens=1, stop_token_ids=stops, ignore_eos=True
        )
        return Sampler(sampling, vocab_size=vocab_size, prompt=self.prompt, seed=self.seed)


@dataclass(slots=True, eq=False)
class _Running:
    """An order that is being written."""

    order: Order
    sampler: Sampler
    key: int
    text: list[int]  # hint, prompt and tokens: what a proposer reads

    def sequence(self) -> Sequence:
        """The proposer's view; a step's last token is never a drafted one.

        Behind a hint tokens do not stand where the proposer sees them, so it cannot use the sampler's noise there.
        """
        order = self.order
        depth, num_prompt = order.max_new - len(order.tokens) - 1, len(order.hint) + len(order.prompt)
        choice: Choice = "likeliest" if order.hint else EXACT.choice
        return Sequence(self.key, self.text, num_prompt, self.sampler, _MOST_DRAFTED if depth else 0, depth, choice)

    def has_read(self, target: Target) -> bool:
        """Whether it was to be read only, and is."""
        return self.order.max_new == 0 and target.length(self.order.slot) == len(self.order.prompt)


@dataclass(frozen=True, slots=True)
class _Work:
    """An entry of a forward: the next rows of an order, a chunk of its prompt or a draft, and the row where tokens begin."""

    running: _Running
    tree: Tree
    start: int
    decides: bool

    @property
    def feed(self) -> Feed:
        return Feed(self.running.order.slot, self.tree, self.start if self.decides else len(self.tree))


@dataclass(frozen=True, slots=True)
class _Taken:
    """What a step wrote of an order: its tokens, and the rows that gave them."""

    work: _Work
    draft: Draft
    verdict: Verdict
    number: int  # of the verdict's tokens: those up to the text's end
    is_greedy: bool  # all of them are argmaxes

    @property
    def order(self) -> Order:
        return self.work.running.order

    @property
    def rows(self) -> tuple[int, ...]:
        return (self.draft.start, *self.verdict.path)[: self.number]

    @property
    def places(self) -> list[Row]:
        return [(self.draft.entry, row) for row in self.rows]


def copying(target: Target) -> Proposer | None:
    """Drafts by matches within each text, on the engine that does not round a row otherwise for its neighbours."""
    return SuffixProposer() if target.engine == "native" else None


class Scribe:
    """Writes all orders that were added, a token each a step and more where drafts are right."""

    def __init__(
        self,
        target: Target,
        prompt_rows: int = PROMPT_ROWS,
        *,
        layers: ListOf[int] = (),
        proposer: Proposer | None = None,
    ) -> None:
        """``prompt_rows``: rows of prompts in one forward, at most; ``layers``: keep what is watched there of every row.

        ``proposer``: drafts what may follow; it changes how many steps a text takes, on an exact engine nothing else.
        """
        self._target, self._prompt_rows, self._layers = target, prompt_rows, tuple(layers)
        self._proposer = proposer
        self._running: list[_Running] = []
        self.num_written = 0  # tokens, of orders finished or not
        self._greedy = Sampler(Sampling(), vocab_size=target.vocab_size)

    @property
    def num_running(self) -> int:
        """Orders that are not finished."""
        return len(self._running)

    def add(self, order: Order) -> None:
        """Take an order; it begins with the next step."""
        if len(order.prompt) <= self._target.length(order.slot):
            raise ValueError("an order has a row of its prompt that its slot does not hold")
        sampler = order.sampler(self._target.vocab_size)
        self._running.append(_Running(order, sampler, next(_KEYS), [*order.hint, *order.prompt]))

    def step(self) -> list[tuple[Order, Text]]:
        """One forward over everything in flight; the texts that it finished."""
        batch = self._batch()
        if not batch:
            return []
        scored = self._target.forward([work.feed for work in batch])
        drafts = [
            (work, Draft(entry, work.tree, work.running.sampler, work.start))
            for entry, work in enumerate(batch)
            if work.decides
        ]
        verdicts = EXACT.verify(scored, [draft for _, draft in drafts])
        taken = [_take(work, draft, verdict) for (work, draft), verdict in zip(drafts, verdicts, strict=True)]
        self.num_written += sum(each.number for each in taken)
        self._keep_states(scored, taken)
        rows = {id(each.work): (*range(each.draft.start), *each.rows) for each in taken}
        kept = [rows.get(id(work), tuple(range(len(work.tree)))) for work in batch]
        if self._layers:
            self._read(scored, batch, kept)
        for work, path in zip(batch, kept, strict=True):
            self._target.keep(work.running.order.slot, path)
        return self._settle(scored, taken)

    def so_far(self) -> list[tuple[Order, Text]]:
        """What is written of the orders that are not finished."""
        return [(running.order, _text(running.order, self._target.hidden_size)) for running in self._running]

    def _batch(self) -> list[_Work]:
        trees, left, batch = self._drafts(), self._prompt_rows, list[_Work]()
        for running in self._running:
            order = running.order
            if order.tokens:
                batch.append(_Work(running, trees.get(running.key) or Tree.root(order.tokens[-1]), ROOT, decides=True))
                continue
            rest = order.prompt[self._target.length(order.slot) :]
            chunk = rest[:left]
            if chunk:
                left -= len(chunk)
                decides = order.max_new > 0 and len(chunk) == len(rest)
                batch.append(_Work(running, Tree.chain(chunk), len(chunk) - 1, decides))
        return batch

    def _drafts(self) -> dict[int, Tree]:
        asking = [sequence for running in self._running if running.order.tokens and (sequence := running.sequence()).max_nodes]
        if self._proposer is None or not asking:
            return {}
        trees = self._proposer.propose(asking)
        return {sequence.key: _likely(tree) for sequence, tree in zip(asking, trees, strict=True)}

    def _settle(self, scored: Scored, taken: ListOf[_Taken]) -> list[tuple[Order, Text]]:
        """Let the proposer know, and the finished orders go."""
        ended = [each.order.ended for each in taken]
        finished = [each.work.running for each, has_ended in zip(taken, ended, strict=True) if has_ended]
        if self._proposer:
            self._proposer.observe(
                [
                    Observation(each.work.running.key, each.work.tree, each.verdict.tokens, scored, each.places[-1])
                    for each, has_ended in zip(taken, ended, strict=True)
                    if not has_ended
                ]
            )
            for running in finished:
                self._proposer.forget(running.key)
        finished += [running for running in self._running if running.has_read(self._target)]
        if finished:
            gone = {running.key for running in finished}
            self._running = [running for running in self._running if running.key not in gone]
        return [(running.order, _text(running.order, self._target.hidden_size)) for running in finished]

    def _read(self, scored: Scored, batch: ListOf[_Work], kept: ListOf[Path]) -> None:
        """Keep what was watched."""
        rows = [(entry, row) for entry, path in enumerate(kept) for row in path]
        states, start = self._target.operations.numpy(scored.states(rows, self._layers)), 0
        for work, path in zip(batch, kept, strict=True):
            work.running.order.read.append(states[start : start + len(path)])
            start += len(path)

    def _keep_states(self, scored: Scored, taken: ListOf[_Taken]) -> None:
        """Keep the states that tokens were drawn from, where that is wanted, and the argmax there."""
        kept = [each for each in taken if each.work.running.order.keep_states]
        if not kept:
            return
        states, start = self._target.operations.numpy(scored.hidden([row for each in kept for row in each.places])), 0
        rows = [row for each in kept if not each.is_greedy for row in each.places]
        argmaxes = iter(scored.pick(rows, [self._greedy] * len(rows), [()] * len(rows)) if rows else ())
        for each in kept:
            tokens = each.order.tokens[-each.number :]
            each.order.hidden.append(states[start : start + each.number])
            each.order.greedy += tokens if each.is_greedy else itertools.islice(argmaxes, each.number)
            start += each.number


def _take(work: _Work, draft: Draft, verdict: Verdict) -> _Taken:
    """Append the verdict's tokens up to the text's end."""
    running, number, is_greedy = work.running, 0, work.running.sampler.is_argmax()
    while number < len(verdict.tokens) and not running.order.ended:
        token = verdict.tokens[number]
        running.order.tokens.append(token)
        running.text.append(token)
        running.sampler.commit((token,))
        number += 1
    return _Taken(work, draft, verdict, number, is_greedy)


def _likely(tree: Tree) -> Tree:
    """The nodes that are reached often enough to be worth a row."""
    number = sum(reach >= _LEAST_REACH for reach in tree.path_probabilities()[1:])
    return tree.pruned(number, _MOST_DRAFTED)


def _text(order: Order, width: int) -> Text:
    hidden = np.concatenate(order.hidden) if order.hidden else np.empty((0, width), dtype=np.float32)
    return Text(tuple(order.tokens), hidden, np.array(order.greedy, dtype=np.int64))
