"""The proposer ``auto``: never slower than plain decoding, as far as measuring can tell.

``speedup = L * T(1) / (T(rows) + overhead)``, and every quantity of it is measured on the machine at hand. Each step asks

1. **whom to ask**: the members (``members.py``), cheapest first, each for the sequences in which it lately earned more seconds
   than it costs. None may be asked at all; who is not asked is probed now and then.
2. **what to verify**: their trees become one a sequence (``offer.py``), each node gets its chance (``chances.py``), and the
   nodes of all sequences share one budget (``budget.py``) by T(rows) as it is now (``stepcost.py``).

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
from collections.abc import Iterable
from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field
from typing import Any

from headstart.plan.budget import allot
from headstart.plan.chances import OwnChances, new_chances, new_own_chances
from headstart.plan.members import Member, Standing, situation
from headstart.plan.offer import Offer, offer_of
from headstart.plan.profile import Clock, Profile
from headstart.plan.stepcost import new_step_cost
from headstart.proposers.base import Observation, PromptChunk, Sequence, pass_on_prompt
from headstart.proposers.combined import walks_of
from headstart.proposers.walk import MIN_REACH, Walk
from headstart.tree import Tree

MAX_NODES = 31  # of one sequence
STEADY_NODES = 7
_PLAIN_STEPS, _PLAIN_STEPS_CLEAR = 64, 256  # between timed plain steps; the second where drafts clearly pay
_CLEAR = 1.3
_WORTH_WEIGHING = 0.5  # of a row's price: an estimate may be that much too low
_HEARD_WHILE_RESTING = 64  # of so many steps one
_WAKING = 2  # steps in which nobody is asked, but all is heard, around one in which somebody is asked after a rest
_MARGIN = 0.02  # planned gains below are as likely losses: the likeliest nodes are also the most overestimated ones
_MAX_TIMED_ROWS = 4  # times the largest profiled count: steps that hold whole prompts say nothing of drafts


@dataclass(slots=True)
class _Book:
    """What is held for a sequence in flight."""

    own: OwnChances = field(default_factory=new_own_chances)
    standings: dict[int, Standing] = field(default_factory=dict)  # by the member's bit


@dataclass(slots=True)
class _Asked:
    """One member's part in the step under way."""

    member: Member
    entries: list[int]
    situations: list[int]
    is_probe: bool
    seconds: float  # of asking; what all that were asked cost together (_Pending.shared) comes on top


@dataclass(slots=True)
class _Pending:
    """The step under way: what was offered, what was chosen, and when the forward began."""

    sequences: ListOf[Sequence]
    num_rows: int
    positions: float
    started: float  # of the proposing, then of the forward
    offers: dict[int, Offer] = field(default_factory=dict)  # by sequence key
    kept: dict[int, list[int]] = field(default_factory=dict)
    asked: list[_Asked] = field(default_factory=list)
    token_seconds: float = 0.0
    row_seconds: float = 0.0
    shared: float = 0.0  # seconds of choosing, growing, weighing and planning, the members' own left out
    is_steady: bool = False  # drafts of one proposer and one size, whatever the clock says


class AutoProposer:
    """Asks its members as far as they pay."""

    name = "auto"

    def __init__(
        self, members: ListOf[Member], profile: Profile, *, steady: Member | None = None, clock: Clock = time.perf_counter
    ) -> None:
        """``members``: cheapest first, as they are asked. ``steady``: who is asked where the text depends on the drafts."""
        self.members, self.profile, self._steady = list(members), profile, steady
        self.cost = new_step_cost(profile)
        self._clock = clock
        self._chances = new_chances()
        self._books: dict[int, _Book] = {}
        self._step = 0
        # By sequence, since several loops may ask the same proposer in turn:
        self._resting: dict[int, int] = {}  # rows of a step in which nobody was asked, nor need be in the next one
        self._hearing: set[int] = set()  # nobody was asked, but somebody may be in the next step, who must have heard
        self._silent: set[int] = set()  # who was asked had nothing to say, and need not hear what became of it
        self._pending: dict[int, _Pending] = {}
        self._num_rows = 0
        self._rows_chosen: Counter[int] = Counter()
        self._sequences_seen: Counter[int] = Counter()
        self._advantage = 1.0  # of the last drafts over plain decoding, as planned
        self._overhead = 0.0
        self._standing_by = 0.0  # seconds of a step in which nobody was asked, though somebody might have been
        self._token_seconds = self._row_seconds = 0.0  # of the last step with drafts

    def expect(self, num_rows: int, keys: ListOf[int]) -> bool:
        """Rows that the coming step holds whatever is drafted, roots and chunks of prompts; whether to ask for drafts."""
        is_same = all(self._resting.get(key) == num_rows for key in keys)
        self._num_rows = num_rows
        for key in keys:
            self._pending.pop(key, None)
            self._silent.discard(key)
            self._hearing.discard(key)
        if is_same and (self._step + 1) % _HEARD_WHILE_RESTING != 0 and self._rest_goes_on():
            self._step += 1
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
        self._step += 1
        num_rows = max(self._num_rows, len(sequences))
        positions = sum(len(sequence.tokens) for sequence in sequences) / len(sequences)
        pending = _Pending(sequences, num_rows, positions, started, kept={sequence.key: [] for sequence in sequences})
        if not all(map(_is_free, sequences)):
            return self._unmoved(pending)
        members = self._may_ask(sequences)
        if members and not self._must_time_plain(num_rows):
            self._ask(pending, members)
        if pending.offers:
            trees = self._drafts(pending)
        else:
            trees = [Tree.root(sequence.tokens[-1]) for sequence in sequences]
            self._book_gains(pending, [[] for _ in sequences])
        self._sequences_seen[len(sequences)] += 1
        self._rows_chosen[sum(map(len, pending.kept.values()))] += 1
        self._await(pending)
        pending.started = self._clock()
        pending.shared = pending.started - started - sum(asked.seconds for asked in pending.asked)
        self._overhead += 0.1 * (pending.started - started - self._overhead)
        if pending.asked and not pending.offers and self._need_not_observe(pending):
            self._charge(pending, pending.shared)
            self._silent.update(pending.kept)
        return trees

    def read_prompt(self, chunks: ListOf[PromptChunk]) -> None:
        """Let the members see chunks of prompts, whether they are asked or not."""
        pass_on_prompt((member.proposer for member in self.members), chunks)

    def observe(self, observations: ListOf[Observation]) -> None:
        """Time the step, judge all that was offered, and pass on to each member what became of its own tree."""
        began = self._clock()
        pending: _Pending | None = None
        for observation in observations:
            pending = self._pending.pop(observation.key, None) or pending
        if pending is not None:
            self._account(pending, observations)
        right: Counter[int] = Counter()
        for observation in observations:
            offer = pending.offers.get(observation.key) if pending else None
            if pending is not None and offer is not None:
                self._judge(observation, offer, pending.kept.get(observation.key, ()), right)
        for member in self.members:
            if member.reads_text_alone or (pending is not None and self._need_not_hear(member, pending)):
                continue
            told = observations
            if pending is not None and pending.offers:
                told = [self._as_seen_by(member, observation, pending) for observation in observations]
            member.proposer.observe(told)
        if pending is not None:
            self._repeat_probes(pending, right)
            self._charge(pending, pending.shared + self._clock() - began)
            keys = [observation.key for observation in observations if not observation.is_of_prompt]
            if not pending.is_steady and self._may_rest(keys):
                self._resting.update((key, pending.num_rows) for key in keys)

    def forget(self, key: int) -> None:
        """The sequence left."""
        self._books.pop(key, None)
        self._resting.pop(key, None)
        self._silent.discard(key)
        self._hearing.discard(key)
        self._pending.pop(key, None)
        for member in self.members:
            member.proposer.forget(key)

    def describe(self) -> dict[str, Any]:
        """Why it does what it does: the profile, the members' costs and earnings, and the rows that were chosen."""
        profile = self.profile
        now = [self.cost.seconds(rows) for rows in profile.rows]
        return {
            "profile": {
                "rows": list(profile.rows),
                "ms_at_load": [1000 * t for t in profile.seconds],
                "ms_now": [1000 * t for t in now],
                "context": profile.context,
                "us_per_row_and_position": 1e6 * profile.row_position_seconds,
            },
            "members": [member.describe() for member in self.members],
            "steps": self._step,
            "steps_by_drafted_rows": {str(rows): n for rows, n in sorted(self._rows_chosen.items())},
            "steps_by_sequences": {str(count): n for count, n in sorted(self._sequences_seen.items())},
            "overhead_ms": 1000 * self._overhead,
        }

    def _unmoved(self, pending: _Pending) -> list[Tree]:
        """Drafts that depend on neither clock nor neighbours."""
        pending.is_steady = True
        self._await(pending)
        trees = [Tree.root(sequence.tokens[-1]) for sequence in pending.sequences]
        if self._steady is not None:
            began = self._clock()
            trees = self._steady.proposer.propose(
                [sequence.asked(min(sequence.max_nodes, STEADY_NODES)) for sequence in pending.sequences]
            )
            self._steady.obeyed(len(trees), self._clock() - began)
        self._sequences_seen[len(trees)] += 1
        self._rows_chosen[sum(tree.num_drafted for tree in trees)] += 1
        return trees

    def _await(self, pending: _Pending) -> None:
        """Until the step's tokens are told."""
        self._pending.update((sequence.key, pending) for sequence in pending.sequences)

    def _may_ask(self, sequences: ListOf[Sequence]) -> list[Member]:
        """Members that are on or due; all of them where a text is new, since nobody knows yet who guesses it well."""
        if any(sequence.key not in self._books for sequence in sequences):
            return self.members
        keys = [sequence.key for sequence in sequences]
        return [member for member in self.members if not member.is_idle(self._step) or self._is_untried(member, keys)]

    def _is_untried(self, member: Member, keys: Iterable[int]) -> bool:
        """Whether a member waits for a place in one of these texts where it can show what it is worth."""
        books = [self._books[key] for key in keys if key in self._books]  # not of those that have just left
        return any(_standing(book, member).is_untried for book in books)

    def _may_rest(self, keys: Iterable[int]) -> bool:
        """Whether nobody is asked in the next step, nor has to hear all."""
        return all(self._is_off(member, keys) for member in self.members)

    def _rest_goes_on(self) -> bool:
        """Whether nobody is asked in the coming step."""
        return all(member.is_idle(self._step + 1) and not member.hears_all for member in self.members)

    def _must_have_heard(self) -> bool:
        """Whether somebody may be asked in the next step who has to hear what this one says."""
        return not all(member.reads_text_alone or member.is_idle(self._step + 1) for member in self.members)

    def _need_not_hear(self, member: Member, pending: _Pending) -> bool:
        """Whether a member is off and not asked in the next step either; now and then it hears what is said all the same."""
        if self._step % _HEARD_WHILE_RESTING == 0 or pending.num_rows > len(pending.sequences):  # new texts may join
            return False
        if pending.is_steady or any(asked.member is member for asked in pending.asked):  # or asked again
            return False
        return self._is_off(member, [s.key for s in pending.sequences])

    def _need_not_observe(self, pending: _Pending) -> bool:
        """Whether whoever is asked in the next step reads the text alone; now and then a step is timed all the same."""
        if self._step % _HEARD_WHILE_RESTING == 0 or pending.num_rows > len(pending.sequences):
            return False
        return all(member.reads_text_alone or self._is_off(member, list(pending.kept)) for member in self.members)

    def _is_off(self, member: Member, keys: Iterable[int]) -> bool:
        """Whether a member is not asked in the next step, nor has to hear this one."""
        return member.is_idle(self._step + 1) and not member.hears_all and not self._is_untried(member, keys)

    def _must_time_plain(self, num_rows: int) -> bool:
        """Whether plain decoding was not timed for so long that its price is a guess."""
        patience = _PLAIN_STEPS_CLEAR if self._advantage > _CLEAR else _PLAIN_STEPS
        return self.cost.num_steps_unseen(num_rows) >= patience

    def _ask(self, pending: _Pending, members: ListOf[Member]) -> None:
        """Ask these members in turn, each for the sequences where that pays."""
        sequences = pending.sequences
        books = [self._book(sequence.key) for sequence in sequences]
        step_seconds = self.cost.seconds(pending.num_rows, pending.positions)
        walks: list[dict[int, Walk]] = [{} for _ in sequences]
        surest = [0.0] * len(sequences)  # estimate of a first token
        sizes = [0] * len(sequences)
        for member in members:
            where = [situation(estimate) for estimate in surest]
            standings = [(_standing(book, member), place) for book, place in zip(books, where, strict=True)]
            entries, is_probe = member.chosen(
                standings, self._step, step_seconds, waking=_WAKING * self._standing_by, is_settled=not pending.asked
            )
            if not entries:
                continue
            least = member.least_reach(len(entries), self._token_seconds, self._row_seconds)
            asking = [sequences[i].asked(standings[i][0].num_asked(sequences[i].max_nodes), least) for i in entries]
            began = self._clock()
            found = walks_of(member.proposer, asking)
            asked = _Asked(member, entries, [where[i] for i in entries], is_probe, self._clock() - began)
            pending.asked.append(asked)
            for i, sequence, walk in zip(entries, asking, found, strict=True):
                walks[i][member.bit] = walk
                surest[i] = max(surest[i], walk.first_estimate())
                sizes[i] = min(sizes[i] + sequence.max_nodes, sequences[i].max_nodes)
        least_reach = self._least_reach()
        for i, sequence in enumerate(sequences):
            if surest[i] >= least_reach:
                pending.offers[sequence.key] = offer_of(
                    sequence.tokens[-1],
                    walks[i],
                    self._chances,
                    books[i].own,
                    max_nodes=sizes[i],
                    max_depth=sequence.max_depth,
                    least_reach=least_reach,
                )

    def _least_reach(self) -> float:
        """What is less likely by the members' own estimates will hardly be worth its row, so that it need not be weighed."""
        return max(MIN_REACH, _WORTH_WEIGHING * self._row_seconds / self._token_seconds) if self._token_seconds else MIN_REACH

    def _drafts(self, pending: _Pending) -> list[Tree]:
        """Share the budget, and book what each member's nodes earn."""
        sequences, offers = pending.sequences, pending.offers
        reaches = [offers[s.key].reaches if s.key in offers else [1.0] for s in sequences]
        num_offered = sum(len(reach) - 1 for reach in reaches)
        overhead = self._clock() - pending.started
        seconds = self._seconds(pending, num_offered, overhead)
        budget = allot(reaches, len(sequences), seconds, margin=_MARGIN)
        plain_rate = len(sequences) / (seconds[0] - overhead)
        self._advantage += 0.1 * (budget.rate / plain_rate - self._advantage)
        num_kept = sum(map(len, budget.rows))
        pending.token_seconds = 1 / budget.rate
        steepest = min(len(seconds) - 1, max(num_kept, 1))
        pending.row_seconds = (seconds[steepest] - seconds[0]) / steepest if steepest else 0.0
        self._token_seconds, self._row_seconds = pending.token_seconds, pending.row_seconds
        self._book_gains(pending, budget.rows)
        trees = []
        for sequence, rows in zip(sequences, budget.rows, strict=True):
            offer = offers.get(sequence.key)
            pending.kept[sequence.key] = rows = rows[: sequence.max_nodes]
            trees.append(offer.tree(rows) if offer and rows else Tree.root(sequence.tokens[-1]))
        return trees

    def _seconds(self, pending: _Pending, num_offered: int, overhead: float) -> list[float]:
        """What the step costs with 0, 1, 2, ... drafted nodes; prompts in it are paid for anyhow, but crowd the rows."""
        rows, num_sequences = pending.num_rows, len(pending.sequences)
        times = self.cost.range(rows, rows + num_offered, pending.positions)
        sunk = times[0] - self.cost.seconds(num_sequences, pending.positions) if rows > num_sequences else 0.0
        return [t - sunk + overhead for t in times]

    def _book_gains(self, pending: _Pending, rows: ListOf[ListOf[int]]) -> None:
        """Seconds that each asked member's own nodes save, of the rows chosen by sequence: their tokens less their rows."""
        cheaper = 0
        for asked in pending.asked:
            member = asked.member
            for i, where in zip(asked.entries, asked.situations, strict=True):
                key, gain, num_taken = pending.sequences[i].key, 0.0, 0
                if rows[i]:
                    reach, num_own, num_taken = pending.offers[key].share(rows[i], member.bit, cheaper)
                    gain = reach * pending.token_seconds - num_own * pending.row_seconds
                member.earned(_standing(self._book(key), member), where, gain, num_taken, is_probe=asked.is_probe)
            cheaper |= member.bit

    def _charge(self, pending: _Pending, shared: float) -> None:
        """Charge each asked member for its call and its part of what drafting costs besides; nobody asked: all stood by."""
        if not pending.asked and not pending.is_steady:
            self._standing_by += 0.1 * (shared - self._standing_by)
        for asked in pending.asked:
            seconds = asked.seconds + shared / len(pending.asked)
            asked.member.called(len(asked.entries), seconds, is_probe=asked.is_probe)

    def _account(self, pending: _Pending, observations: ListOf[Observation]) -> None:
        """Time the step if its drafts were chosen, or count what became of those that had to be made."""
        if not pending.is_steady:
            self._time(pending)
        elif self._steady is not None:
            self._steady.followed(observations)

    def _time(self, pending: _Pending) -> None:
        """Learn what the step cost, unless it held long prompts."""
        rows = pending.num_rows + sum(map(len, pending.kept.values()))
        if rows <= _MAX_TIMED_ROWS * self.profile.rows[-1]:
            self.cost.observe(rows, self._clock() - pending.started, pending.positions)

    def _judge(self, observation: Observation, offer: Offer, kept: ListOf[int], right: Counter[int]) -> None:
        """Learn from all that was offered; count what was verified, and whose first guess was right."""
        path = offer.learn(observation.tokens, self._chances, self._book(observation.key).own)
        accepted = [row for row in path if row in kept]
        for member in self.members:
            bit, earnings = member.bit, member.earnings
            right[bit] += offer.share(path[:1], bit, 0)[2]
            earnings.num_verified += offer.share(kept, bit, 0)[2]
            earnings.num_accepted += offer.share(accepted, bit, 0)[2]

    def _repeat_probes(self, pending: _Pending, right: Counter[int]) -> None:
        """A probe whose right guesses would have paid, had they been believed, is repeated at once."""
        for asked in pending.asked:
            if asked.is_probe:
                worth = right[asked.member.bit] * (pending.token_seconds - pending.row_seconds)
                if worth > asked.member.cost.seconds(len(asked.entries)):
                    asked.member.probe_again(self._step)

    def _as_seen_by(self, member: Member, observation: Observation, pending: _Pending) -> Observation:
        """With the member's own estimates of the verified nodes, 0 where it did not name them."""
        offer = pending.offers.get(observation.key)
        if offer is None:
            return observation  # a prompt's pass, or the root alone
        tree = offer.own_tree(observation.tree, pending.kept[observation.key], member.bit)
        return Observation(observation.key, tree, observation.tokens, observation.scored, observation.row)

    def _book(self, key: int) -> _Book:
        book = self._books.get(key)
        if book is None:
            book = self._books[key] = _Book()
        return book


def _standing(book: _Book, member: Member) -> Standing:
    standing = book.standings.get(member.bit)
    if standing is None:
        standing = book.standings[member.bit] = Standing()
    return standing


def _is_free(sequence: Sequence) -> bool:
    """Whether the text is the same for any draft: the rule is ``exact``, or a rule by ratios that has nothing to weigh."""
    return sequence.choice == "coupled" or (sequence.choice == "drawn" and sequence.sampler.sampling.temperature == 0)
