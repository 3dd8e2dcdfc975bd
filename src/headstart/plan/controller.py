"""The proposer ``auto``: never slower than plain decoding, as far as measuring can tell.

``speedup = L * T(1) / (T(rows) + overhead)``, and every quantity of it is measured on the machine at hand. Each step asks

1. **whom to ask**: the members (``members.py``), cheapest first, each for the sequences in which it lately earned more seconds
   than it costs. None may be asked at all; who is not asked is probed now and then.
2. **what to verify**: their trees become one a sequence (``offer.py``), each node gets its chance (``chances.py``), and the
   nodes of all sequences share one budget (``budget.py``) by T(rows) as it is now (``stepcost.py``).

Both are decided by the ledger (``ledger.py``); here its steps are led through the loop, the members asked, and rests taken.

Goodput as the measure of a draft is SmartSpec's (Liu et al. 2024, TurboSpec), the budget over all requests by confidence
DSpark's (2026); trees from several proposers, prices of asking, and judging nodes that were not verified are this project's.

The clock decides how much is drafted, and never what is said: under ``exact`` the text is the plain sampler's, whatever the
draft. Rules that compare the draft with the target's distribution (rejection, block) or relax it (typical) give another text
for another draft; for them ``auto`` asks one proposer for drafts of one size, always, and leaves them as they are.

A step without drafts is timed now and then, too: otherwise nobody would notice that plain decoding became the faster one.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence as ListOf
from dataclasses import dataclass
from typing import Any

from headstart.plan.compiled_ledger import new_ledger
from headstart.plan.ledger import Batch, Step
from headstart.plan.members import Traits
from headstart.plan.profile import Clock, Profile
from headstart.proposers.base import GrowsByLevel, Observation, PromptChunk, Proposer, Sequence, pass_on_prompt
from headstart.proposers.combined import walks_of
from headstart.tree import Tree

MAX_NODES = 31  # of one sequence
STEADY_NODES = 7
_HEARD_WHILE_RESTING = 64  # of so many steps one


@dataclass(slots=True)
class _Pending:
    """The step under way, and when its forward began."""

    num_sequences: int
    num_rows: int
    step: Step | None  # None: drafts of one proposer and one size, whatever the clock says
    started: float = 0.0
    shared: float = 0.0  # seconds of choosing, growing, weighing and planning, the members' own left out


class AutoProposer:
    """Asks its members as far as they pay."""

    name = "auto"

    def __init__(
        self,
        members: ListOf[tuple[str, Proposer]],
        profile: Profile,
        *,
        steady: int | None = None,
        clock: Clock = time.perf_counter,
    ) -> None:
        """``members``: cheapest first, as they are asked. ``steady``: who is asked where the text depends on the drafts."""
        self.proposers = [proposer for _, proposer in members]
        self.traits = [Traits.of(name, proposer) for name, proposer in members]
        self.profile, self._steady = profile, steady
        self.ledger = new_ledger(profile, self.traits)
        self._leveled = [proposer if isinstance(proposer, GrowsByLevel) else None for proposer in self.proposers]
        self._clock = clock
        self._number = 0  # of the step
        # By sequence, since several loops may ask the same proposer in turn:
        self._resting: dict[int, int] = {}  # rows of a step in which nobody was asked, nor need be in the next one
        self._hearing: set[int] = set()  # nobody was asked, but somebody may be in the next step, who must have heard
        self._silent: set[int] = set()  # who was asked had nothing to say, and need not hear what became of it
        self._pending: dict[int, _Pending] = {}
        self._num_rows = 0
        self._rows_chosen: Counter[int] = Counter()
        self._sequences_seen: Counter[int] = Counter()
        self._overhead = 0.0

    def expect(self, num_rows: int, keys: ListOf[int]) -> bool:
        """Rows that the coming step holds whatever is drafted, roots and chunks of prompts; whether to ask for drafts."""
        is_same = all(self._resting.get(key) == num_rows for key in keys)
        self._num_rows = num_rows
        for key in keys:
            self._pending.pop(key, None)
            self._silent.discard(key)
            self._hearing.discard(key)
        if is_same and (self._number + 1) % _HEARD_WHILE_RESTING != 0 and self._rest_goes_on():
            self._number += 1
            self._rows_chosen[0] += 1
            self._sequences_seen[num_rows] += 1
            if self._must_have_heard():
                self._hearing.update(keys)
            return False
        for key in keys:
            self._resting.pop(key, None)
        return True

    def rests(self, keys: ListOf[int]) -> bool:
        """Whether nothing of the step under way of these sequences has to be observed."""
        if not self._hearing.isdisjoint(keys):
            return False
        return all(key in self._resting or key in self._silent for key in keys)

    def propose(self, sequences: ListOf[Sequence]) -> list[Tree]:
        """One tree a sequence, the root alone where nothing pays."""
        started = self._clock()
        self._number += 1
        num_rows = max(self._num_rows, len(sequences))
        if not all(map(_is_free, sequences)):
            return self._unmoved(sequences, num_rows)
        step = self.ledger.begin(self._number, _batch(sequences, num_rows))
        pending = self._await(_Pending(len(sequences), num_rows, step), sequences)
        called = self._ask(step, sequences)
        if step.offer():
            step.share_out(self._clock() - started)
        trees = [step.draft(entry) or Tree.root(sequence.tokens[-1]) for entry, sequence in enumerate(sequences)]
        self._count(len(sequences), step.num_drafted)
        pending.started = self._clock()
        pending.shared = pending.started - started - called
        self._overhead += 0.1 * (pending.started - started - self._overhead)
        keys = [sequence.key for sequence in sequences]
        if step.has_asked and not step.has_offers and self._need_not_observe(pending, keys):
            step.charge(pending.shared)
            self._silent.update(keys)
        return trees

    def read_prompt(self, chunks: ListOf[PromptChunk]) -> None:
        """Let the members see chunks of prompts, whether they are asked or not."""
        pass_on_prompt(self.proposers, chunks)

    def observe(self, observations: ListOf[Observation]) -> None:
        """Time the step, judge all that was offered, and pass on to each member what became of its own tree."""
        began = self._clock()
        pending: _Pending | None = None
        for observation in observations:
            pending = self._pending.pop(observation.key, None) or pending
        step = pending.step if pending else None
        if pending is not None and step is not None:
            seconds = self._clock() - pending.started
            step.observe([observation.key for observation in observations], [o.tokens for o in observations], seconds)
        elif pending is not None:
            self._follow(observations)
        keys = [observation.key for observation in observations if not observation.is_of_prompt]
        for place, proposer in enumerate(self.proposers):
            if self.traits[place].reads_text_alone or (pending is not None and self._need_not_hear(place, pending, keys)):
                continue
            told = observations
            if step is not None and step.has_offers:
                told = [_as_seen_by(place, observation, step) for observation in observations]
            proposer.observe(told)
        if pending is not None and step is not None:
            step.charge(pending.shared + self._clock() - began)
            if self._may_rest(keys):
                self._resting.update((key, pending.num_rows) for key in keys)

    def forget(self, key: int) -> None:
        """The sequence left."""
        self.ledger.forget(key)
        self._resting.pop(key, None)
        self._silent.discard(key)
        self._hearing.discard(key)
        self._pending.pop(key, None)
        for proposer in self.proposers:
            proposer.forget(key)

    def describe(self) -> dict[str, Any]:
        """Why it does what it does: the profile, the members' costs and earnings, and the rows that were chosen."""
        profile = self.profile
        now = [self.ledger.seconds(rows) for rows in profile.rows]
        return {
            "profile": {
                "rows": list(profile.rows),
                "ms_at_load": [1000 * t for t in profile.seconds],
                "ms_now": [1000 * t for t in now],
                "context": profile.context,
                "us_per_row_and_position": 1e6 * profile.row_position_seconds,
            },
            "members": [{"proposer": traits.name} | self.ledger.describe(place) for place, traits in enumerate(self.traits)],
            "steps": self._number,
            "steps_by_drafted_rows": {str(rows): n for rows, n in sorted(self._rows_chosen.items())},
            "steps_by_sequences": {str(count): n for count, n in sorted(self._sequences_seen.items())},
            "overhead_ms": 1000 * self._overhead,
        }

    def _ask(self, step: Step, sequences: ListOf[Sequence]) -> float:
        """Ask members in turn, each for the sequences where that pays; the seconds of their own."""
        total = 0.0
        for place in step.due():
            call = step.choose(place)
            if not call.entries:
                continue
            asking = [sequences[i].asked(size, call.least_reach) for i, size in zip(call.entries, call.sizes, strict=True)]
            leveled = self._leveled[place]
            passes, began = leveled.num_passes if leveled else 0, self._clock()
            walks = walks_of(self.proposers[place], asking)
            seconds = self._clock() - began
            step.told(place, walks, seconds, leveled.num_passes - passes if leveled else 0)
            total += seconds
        return total

    def _unmoved(self, sequences: ListOf[Sequence], num_rows: int) -> list[Tree]:
        """Drafts that depend on neither clock nor neighbours."""
        self._await(_Pending(len(sequences), num_rows, None), sequences)
        trees = [Tree.root(sequence.tokens[-1]) for sequence in sequences]
        if self._steady is not None:
            began = self._clock()
            trees = self.proposers[self._steady].propose(
                [sequence.asked(min(sequence.max_nodes, STEADY_NODES)) for sequence in sequences]
            )
            self.ledger.obeyed(self._steady, len(trees), self._clock() - began)
        self._count(len(trees), sum(tree.num_drafted for tree in trees))
        return trees

    def _follow(self, observations: ListOf[Observation]) -> None:
        """Count what became of drafts that had to be made."""
        if self._steady is None:
            return
        for observation in observations:
            if not observation.is_of_prompt:
                tree = observation.tree
                accepted = tree.followed(observation.tokens[:-1])  # less the bonus
                self.ledger.followed(self._steady, tree.num_drafted, len(accepted))

    def _await(self, pending: _Pending, sequences: ListOf[Sequence]) -> _Pending:
        """Until the step's tokens are told."""
        for sequence in sequences:
            self._pending[sequence.key] = pending
        return pending

    def _count(self, num_sequences: int, num_drafted: int) -> None:
        self._sequences_seen[num_sequences] += 1
        self._rows_chosen[num_drafted] += 1

    def _may_rest(self, keys: ListOf[int]) -> bool:
        """Whether nobody is asked in the next step, nor has to hear all."""
        return all(self._is_off(place, keys) for place in range(len(self.proposers)))

    def _rest_goes_on(self) -> bool:
        """Whether nobody is asked in the coming step."""
        coming = self._number + 1
        return all(self.ledger.is_idle(place, coming) and not traits.hears_all for place, traits in enumerate(self.traits))

    def _must_have_heard(self) -> bool:
        """Whether somebody may be asked in the next step who has to hear what this one says."""
        coming = self._number + 1
        return not all(
            traits.reads_text_alone or self.ledger.is_idle(place, coming) for place, traits in enumerate(self.traits)
        )

    def _need_not_hear(self, place: int, pending: _Pending, keys: ListOf[int]) -> bool:
        """Whether a member is off and not asked in the next step either; now and then it hears what is said all the same."""
        if self._number % _HEARD_WHILE_RESTING == 0 or pending.num_rows > pending.num_sequences:  # new texts may join
            return False
        if pending.step is None or pending.step.was_asked(place):  # or asked again
            return False
        return self._is_off(place, keys)

    def _need_not_observe(self, pending: _Pending, keys: ListOf[int]) -> bool:
        """Whether whoever is asked in the next step reads the text alone; now and then a step is timed all the same."""
        if self._number % _HEARD_WHILE_RESTING == 0 or pending.num_rows > pending.num_sequences:
            return False
        return all(traits.reads_text_alone or self._is_off(place, keys) for place, traits in enumerate(self.traits))

    def _is_off(self, place: int, keys: ListOf[int]) -> bool:
        """Whether a member is not asked in the next step, nor has to hear this one."""
        ledger = self.ledger
        return (
            ledger.is_idle(place, self._number + 1) and not self.traits[place].hears_all and not ledger.is_untried(place, keys)
        )


def _batch(sequences: ListOf[Sequence], num_rows: int) -> Batch:
    return Batch(
        [sequence.key for sequence in sequences],
        [sequence.tokens[-1] for sequence in sequences],
        [sequence.max_nodes for sequence in sequences],
        [sequence.max_depth for sequence in sequences],
        num_rows,
        sum([len(sequence.tokens) for sequence in sequences]) / len(sequences),
    )


def _as_seen_by(place: int, observation: Observation, step: Step) -> Observation:
    """With the member's own estimates of the verified nodes."""
    tree = step.own_tree(observation.key, observation.tree, place)
    return Observation(observation.key, tree, observation.tokens, observation.scored, observation.row)


def _is_free(sequence: Sequence) -> bool:
    """Whether the text is the same for any draft: the rule is ``exact``, or a rule by ratios that has nothing to weigh."""
    return sequence.choice == "coupled" or (sequence.choice == "drawn" and sequence.sampler.sampling.temperature == 0)
