"""THE loop: propose, verify, accept, commit, over a set of sequences.

Plain decoding is this loop with an empty draft. Sequences of different lengths join and leave at any step; each step runs one
target forward over everything that is in flight: chunks of prompts, roots alone, and drafts. The order of work in a step:

1. ask the proposer for a tree for every sequence whose prompt is cached;
2. one ``target.forward`` over all rows;
3. let the rule of acceptance decide about each tree (``accept``; by default the plain sampler walks through it);
4. cut what was picked at the first end (stop token, stop string, limit), commit the rest, keep the accepted rows.

Every step commits at least one token for each sequence whose prompt is cached, whatever the proposer drafts.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field
from numbers import Integral
from typing import Literal, Protocol

from headstart import accept
from headstart.accept import EXACT, Rule
from headstart.errors import RequestError
from headstart.proposers.base import Observation, Planner, PromptChunk, Proposer, ReadsPrompts, Sequence
from headstart.sampling import Sampler, Sampling, fresh_seed, nth_seed
from headstart.stats import Stats
from headstart.target.base import ChosenLogprob, Feed, Scored, Slot, Target, TimedTarget
from headstart.timings import PartClock, Timings
from headstart.tree import ROOT, Tree

FinishReason = Literal["stop", "length", "cancelled"]

_KEYS = itertools.count()  # one count for all loops: a proposer may serve several
PROMPT_CHUNK = 512  # rows of a prompt in one forward
DEFAULT_NODES = 15  # 16 rows with the root


def _is_whole(token: object) -> bool:
    """Whether it is a whole number, of numpy's kinds, too; True and False are none."""
    return isinstance(token, Integral) and not isinstance(token, bool)


class Watcher(Protocol):
    """Sees every committed token in order and may end the sequence (stop strings, which live a layer above)."""

    def feed(self, token: int) -> str | None:
        """The stop string that this token completed, if it did."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one step committed for one sequence."""

    generation: Generation
    tokens: tuple[int, ...]
    logprobs: tuple[ChosenLogprob, ...]  # one a token if asked for, else none
    num_drafted: int
    num_accepted: int


@dataclass(slots=True, eq=False)
class Generation:
    """One sequence in flight or finished."""

    key: int
    prompt: tuple[int, ...]
    sampling: Sampling
    seed: int
    sampler: Sampler
    limit: int  # tokens that may be committed
    watcher: Watcher | None = None
    tokens: list[int] = field(default_factory=list)  # committed after the prompt
    drafted: list[bool] = field(default_factory=list)  # of each token: whether it was drafted and accepted
    logprobs: list[ChosenLogprob] = field(default_factory=list)
    stats: Stats = field(default_factory=Stats)
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None  # the stop string or the stop token
    text: list[int] = field(init=False)  # prompt and committed tokens: what proposers read

    def __post_init__(self) -> None:
        self.text = list(self.prompt)

    @property
    def finished(self) -> bool:
        """Whether it left the loop."""
        return self.finish_reason is not None

    def sequence(self, max_nodes: int, choice: accept.Choice) -> Sequence:
        """The proposer's view; the bonus token takes one of the tokens that may still be committed."""
        depth = self.limit - len(self.tokens) - 1
        return Sequence(self.key, self.text, len(self.prompt), self.sampler, max_nodes if depth else 0, depth, choice)

    def commit(self, token: int) -> None:
        """Append one token and end if it is an end."""
        self.tokens.append(token)
        self.text.append(token)
        self.sampler.commit((token,))
        stop = self.watcher.feed(token) if self.watcher else None
        if token in self.sampler.stop_tokens:
            self.finish_reason, self.stop_reason = "stop", token
        elif stop is not None:
            self.finish_reason, self.stop_reason = "stop", stop
        elif len(self.tokens) >= self.limit:
            self.finish_reason = "length"


@dataclass(slots=True, eq=False)
class _Running:
    """A slot and the generation it serves; while the prompt is being cached, all n answers to it."""

    slot: Slot
    generations: list[Generation]
    num_cached: int = 0

    @property
    def generation(self) -> Generation:
        return self.generations[0]

    @property
    def is_prompting(self) -> bool:
        return self.num_cached < len(self.generation.prompt)

    @property
    def num_rows(self) -> int:
        """Rows of its next step without a draft."""
        return min(len(self.generation.prompt) - self.num_cached, PROMPT_CHUNK) if self.is_prompting else 1


@dataclass(frozen=True, slots=True)
class _Work:
    """One entry of a step's batch: a chunk of a prompt (``start`` is its last row) or a draft (``start`` is the root)."""

    running: _Running
    tree: Tree
    start: int
    decides: bool  # whether a token is picked behind it; not so for a prompt's earlier chunks

    @property
    def feed(self) -> Feed:
        return Feed(self.running.slot, self.tree, self.start if self.decides else len(self.tree))


class Decoder:
    """The loop over one target, one proposer (None: plain decoding) and one rule of acceptance."""

    def __init__(
        self, target: Target, proposer: Proposer | None = None, *, num_nodes: int = DEFAULT_NODES, rule: Rule = EXACT
    ) -> None:
        """``num_nodes``: drafted nodes a sequence and step, at most."""
        self.target, self.proposer, self.num_nodes, self.rule = target, proposer, num_nodes, rule
        self._clock = PartClock()
        self._timed = target if isinstance(target, TimedTarget) else None
        self._planner = proposer if isinstance(proposer, Planner) else None
        self._reader = proposer if isinstance(proposer, ReadsPrompts) else None
        self._joining: list[list[Generation]] = []  # the answers to one prompt; they get their slot in the next step
        self._running: list[_Running] = []

    @property
    def timings(self) -> Timings:
        """Seconds by part, so far."""
        return self._clock.timings

    @property
    def num_running(self) -> int:
        """Sequences in flight."""
        return sum(map(len, self._joining)) + sum(len(running.generations) for running in self._running)

    def check_prompt(self, prompt: ListOf[int]) -> None:
        """RequestError if no answer to this prompt is possible."""
        target = self.target
        if len(prompt) == 0:  # an array has no truth of its own
            raise RequestError("the prompt is empty; give at least one token")
        stranger = next((token for token in prompt if type(token) is not int and not _is_whole(token)), None)
        if stranger is not None:
            raise RequestError(f"the prompt holds {stranger!r}; tokens are whole numbers")
        unknown = next((token for token in prompt if not 0 <= token < target.vocab_size), None)
        if unknown is not None:
            raise RequestError(f"the prompt holds token {unknown}; the model knows 0 to {target.vocab_size - 1}")
        if len(prompt) >= target.context_limit:
            raise RequestError(
                f"the prompt has {len(prompt)} tokens and the model's context {target.context_limit}: "
                "nothing is left for an answer; shorten the prompt"
            )

    def add(
        self, prompt: ListOf[int], sampling: Sampling, *, watchers: ListOf[Watcher | None] = (), seed: int | None = None
    ) -> list[Generation]:
        """Let the ``sampling.n`` answers to a prompt join at the next step; the prompt is computed once.

        ``watchers``: one an answer, or none at all. ``seed`` is used where the sampling has none.
        """
        self.check_prompt(prompt)
        prompt = tuple(map(int, prompt))
        room = self.target.context_limit - len(prompt)
        limit = room if sampling.max_tokens is None else min(room, sampling.max_tokens)
        if seed is None:
            seed = fresh_seed()
        base = seed if sampling.seed is None else sampling.seed
        generations = []
        for index in range(sampling.n):
            own_seed = nth_seed(base, index)
            sampler = Sampler(
                sampling, vocab_size=self.target.vocab_size, prompt=prompt, end_tokens=self.target.end_tokens, seed=own_seed
            )
            watcher = watchers[index] if watchers else None
            generations.append(Generation(next(_KEYS), prompt, sampling, own_seed, sampler, limit, watcher))
        if limit == 0:
            for generation in generations:
                generation.finish_reason = "length"  # no model work for nothing
        else:
            self._joining.append(list(generations))
        return generations

    def cancel(self, generation: Generation) -> None:
        """End a sequence now; what it committed stays."""
        if not generation.finished:
            generation.finish_reason = "cancelled"
        self._joining = [left for group in self._joining if (left := [g for g in group if not g.finished])]
        for running in list(self._running):
            self._retire(running)

    def close(self) -> None:
        """Cancel everything in flight and free its slots, all of them before the proposer hears of it."""
        running = [generation for entry in self._running for generation in entry.generations]
        for generation in (*running, *(generation for group in self._joining for generation in group)):
            if not generation.finished:
                generation.finish_reason = "cancelled"
        self._joining = []
        while self._running:
            self.target.close(self._running.pop().slot)
        self._forget(running)

    def run(self) -> None:
        """Step until nothing is in flight."""
        while self.num_running:
            self.step()

    def step(self) -> list[StepResult]:
        """One target forward over everything in flight; what it committed, a result a sequence."""
        clock = self._clock
        if not self._running:
            clock.restart()
        while self._joining:
            self._running.append(_Running(self.target.open(), self._joining[0]))
            del self._joining[0]
        if not self._running:
            return []
        attention = self._timed.attention_seconds() if self._timed else 0.0
        has_drafts = not all(running.is_prompting for running in self._running)
        clock.mark("other")
        asking = self._asking()
        trees = self.proposer.propose(asking) if self.proposer and asking else []
        clock.mark("propose")
        drafts = {s.key: self._checked(tree, s) for s, tree in zip(asking, trees, strict=True)}
        batch = [self._work(running, drafts) for running in self._running]
        feeds = [work.feed for work in batch]
        clock.mark("tree")
        scored = self.target.forward(feeds)
        clock.mark("verify")
        asked = [
            (work, generation, accept.Draft(entry, work.tree, generation.sampler, work.start))
            for entry, work in enumerate(batch)
            if work.decides
            for generation in work.running.generations
        ]
        verdicts = self.rule.verify(scored, [draft for _, _, draft in asked])
        clock.mark("sample")
        results, observations = [], []
        for (work, generation, draft), verdict in zip(asked, verdicts, strict=True):
            results.append(_commit(work, generation, draft, verdict, scored))
            if not generation.finished:
                observations.append(_observation(generation, draft, verdict, scored))
        chunks = _prompt_chunks(batch, scored) if self._reader else []
        self._settle(batch, {generation.key: verdict for (_, generation, _), verdict in zip(asked, verdicts, strict=True)})
        clock.mark("commit")
        if self._reader and chunks:
            self._reader.read_prompt(chunks)
        if self.proposer and observations and not (self._planner and self._planner.rests([o.key for o in observations])):
            self.proposer.observe(observations)
        clock.mark("propose")
        if has_drafts:
            attention = self._timed.attention_seconds() - attention if self._timed else 0.0
            clock.finish(sum(len(feed.tree) for feed in feeds), attention)
        else:
            clock.finish_prompt()
        return results

    def _asking(self) -> list[Sequence]:
        """The sequences to draft for: those behind their prompt that may still commit drafted tokens."""
        if self.proposer is None or self.num_nodes == 0:
            return []
        if self._planner:
            keys = [generation.key for running in self._running for generation in running.generations]
            if not self._planner.expect(sum([running.num_rows for running in self._running]), keys):
                return []
        behind = [r.generation.sequence(self.num_nodes, self.rule.choice) for r in self._running if not r.is_prompting]
        return [sequence for sequence in behind if sequence.max_nodes]

    def _checked(self, tree: Tree, sequence: Sequence) -> Tree:
        """Drafts are only guesses, but a wrong root or an impossible token is a fault of the proposer."""
        name = self.proposer.name if self.proposer else ""
        if tree.tokens[ROOT] != sequence.tokens[-1]:
            raise ValueError(f"proposer {name}: the draft's root is not the last committed token")
        largest = max([int(draws.ids.max()) for drawn in tree.draws for draws in drawn], default=0)
        if min(tree.tokens) < 0 or max(largest, *tree.tokens) >= self.target.vocab_size:
            raise ValueError(f"proposer {name}: the draft holds a token that the target does not have")
        return tree.pruned(sequence.max_nodes, sequence.max_depth) if tree.num_drafted else tree

    def _work(self, running: _Running, drafts: dict[int, Tree]) -> _Work:
        generation = running.generation
        if not running.is_prompting:
            tree = drafts.get(generation.key) or Tree.root(generation.text[-1])
            return _Work(running, tree, ROOT, decides=True)
        chunk = generation.prompt[running.num_cached : running.num_cached + PROMPT_CHUNK]
        is_last = running.num_cached + len(chunk) == len(generation.prompt)
        nobody = [1.0] + [0.0] * (len(chunk) - 1)  # guessed these
        return _Work(running, Tree.chain(chunk, nobody), len(chunk) - 1, decides=is_last)

    def _settle(self, batch: ListOf[_Work], verdicts: dict[int, accept.Verdict]) -> None:
        """Keep the accepted rows; free what ended; behind a prompt, give every further answer a slot of its own."""
        for work in batch:
            running = work.running
            if not self._retire(running):
                continue
            rows = (*range(work.start + 1), *(verdicts[running.generation.key].path if work.decides else ()))
            self.target.keep(running.slot, rows)
            running.num_cached += len(rows)
            if not work.decides:
                for generation in running.generations:
                    generation.stats.num_prompt_passes += 1
                continue
            while len(running.generations) > 1:
                twin = self.target.fork(running.slot)
                self._running.append(_Running(twin, [running.generations.pop(1)], running.num_cached))

    def _retire(self, running: _Running) -> bool:
        """Drop generations that ended; whether any is left. The slot is freed with the last one."""
        if running.generations and not any(generation.finished for generation in running.generations):
            return True
        ended = [generation for generation in running.generations if generation.finished]
        running.generations = [generation for generation in running.generations if not generation.finished]
        if not running.generations:
            self._running.remove(running)
            self.target.close(running.slot)
        self._forget(ended)
        return bool(running.generations)

    def _forget(self, ended: ListOf[Generation]) -> None:
        if self.proposer:
            for generation in ended:
                self.proposer.forget(generation.key)


def _prompt_chunks(batch: ListOf[_Work], scored: Scored) -> list[PromptChunk]:
    """What a step computed of prompts whose answers are still wanted; before it is settled."""
    found = []
    for entry, work in enumerate(batch):
        keys = tuple(generation.key for generation in work.running.generations if not generation.finished)
        if work.running.is_prompting and keys:
            found.append(PromptChunk(keys, work.running.num_cached, work.tree.tokens, scored, entry))
    return found


def _commit(work: _Work, generation: Generation, draft: accept.Draft, verdict: accept.Verdict, scored: Scored) -> StepResult:
    """Append the verdict's tokens up to the first end; count the step."""
    is_prompt = not generation.tokens
    emitted = 0
    while emitted < len(verdict.tokens) and not generation.finished:
        generation.commit(verdict.tokens[emitted])
        emitted += 1
    tokens = verdict.tokens[:emitted]
    num_accepted = min(emitted, len(verdict.path))
    generation.drafted.extend(place < num_accepted for place in range(emitted))
    logprobs: tuple[ChosenLogprob, ...] = ()
    if generation.sampling.logprobs is not None:
        rows = [(draft.entry, row) for row in (draft.start, *verdict.path)[:emitted]]
        logprobs = tuple(scored.logprobs(rows, tokens, generation.sampling.logprobs))
        generation.logprobs.extend(logprobs)
    if is_prompt:
        generation.stats.num_prompt_passes += 1
        return StepResult(generation, tokens, logprobs, 0, 0)
    generation.stats.record(
        num_drafted=work.tree.num_drafted, depth=max(work.tree.depths), num_accepted=num_accepted, num_emitted=emitted
    )
    _judge(generation.stats, work.tree, verdict, emitted)
    return StepResult(generation, tokens, logprobs, work.tree.num_drafted, num_accepted)


def _judge(stats: Stats, tree: Tree, verdict: accept.Verdict, num_emitted: int) -> None:
    """Compare the estimates of all nodes that were tried, up to an end, with what became of them."""
    if not tree.num_drafted:
        return
    estimates = tree.probabilities
    reliability, ranks = stats.reliability.observe, stats.ranks.observe
    tried = zip((ROOT, *verdict.path[: num_emitted - 1]), (*verdict.path, None), strict=False)
    for depth, (row, accepted) in enumerate(tried):
        children: ListOf[int] = tree.children[row]
        if len(children) > 1:
            children = sorted(children, key=lambda child: -estimates[child])
        for rank, child in enumerate(children):
            reliability(estimates[child], child == accepted)
            ranks(depth, rank, child == accepted)


def _observation(generation: Generation, draft: accept.Draft, verdict: accept.Verdict, scored: Scored) -> Observation:
    last = verdict.path[-1] if verdict.path else draft.start
    return Observation(generation.key, draft.tree, verdict.tokens, scored, (draft.entry, last))
