"""What ``auto`` knows and how it decides by it: whom to ask in a step, which of their nodes to verify, what came of that.

The ledger holds T(rows) (``stepcost.py``), the books of the members (``members.py``), what their estimates are worth
(``chances.py``), and both of these for each sequence in flight. A step goes through it like this:

    step = ledger.begin(...)                # the sequences, and the rows that the step holds anyhow
    for place in step.due():                # members that are on or to be probed, cheapest first
        call = step.choose(place)           # for which sequences, and how many nodes
        step.told(place, walks, ...)        # what they said, and how long that took
    if step.offer():                        # their trees become one a sequence (``offer.py``)
        rows = step.share_out(...)          # the nodes of all sequences share one budget (``budget.py``)
    ... the forward ...
    step.observe(...)                       # what was committed: judges all that was offered, verified or not
    step.charge(...)                        # what all of that took beside the forward

It happens in every step with drafts, right behind a forward that has filled the caches, and there Python takes as long as a
tenth of a small model's step. So the engine does it where there is one (``compiled_ledger.py``);
:class:`PythonLedger` is the definition.
"""

from __future__ import annotations

from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from headstart.plan.budget import allot
from headstart.plan.chances import Chances, OwnChances
from headstart.plan.members import Member, Standing, Traits, situation
from headstart.plan.offer import Offer
from headstart.plan.profile import Profile
from headstart.plan.stepcost import StepCost
from headstart.proposers.walk import MIN_REACH, Walk
from headstart.tree import Tree

_PLAIN_STEPS, _PLAIN_STEPS_CLEAR = 64, 256  # between timed plain steps; the second where drafts clearly pay
_CLEAR = 1.3
_WORTH_WEIGHING = 0.5  # of a row's price: an estimate may be that much too low
_WAKING = 1  # steps that are looked at for nothing behind one in which somebody is asked after a rest
_MARGIN = 0.02  # planned gains below are as likely losses: the likeliest nodes are also the most overestimated ones
_MAX_TIMED_ROWS = 4  # times the largest profiled count: steps that hold whole prompts say nothing of drafts
_SMOOTHING = 0.1  # of what is averaged over steps
NUMBERS = {
    "plain_steps": _PLAIN_STEPS,
    "plain_steps_clear": _PLAIN_STEPS_CLEAR,
    "clear": _CLEAR,
    "worth_weighing": _WORTH_WEIGHING,
    "waking": _WAKING,
    "margin": _MARGIN,
    "max_timed_rows": _MAX_TIMED_ROWS,
    "smoothing": _SMOOTHING,
}
"""By the names that the engine has for them."""


class Call(NamedTuple):
    """For which sequences of the step a member is asked, by their places, how many nodes each, and when its levels end."""

    entries: ListOf[int]
    sizes: ListOf[int]
    least_reach: float


@dataclass(frozen=True, slots=True)
class Batch:
    """The sequences of a step: one entry each in every list."""

    keys: ListOf[int]
    roots: ListOf[int]  # their last tokens
    max_nodes: ListOf[int]
    max_depths: ListOf[int]
    num_rows: int  # of the step whatever is drafted
    positions: float  # that a row sees, in the mean


class Step(Protocol):
    """A step under way."""

    @property
    def has_asked(self) -> bool:
        """Whether anybody was asked."""

    @property
    def has_offers(self) -> bool:
        """Whether anybody said anything that might be worth a row."""

    @property
    def num_drafted(self) -> int:
        """Rows that drafts were given."""

    def due(self) -> ListOf[int]:
        """Places of the members that may be asked; all of them where a text is new, since nobody knows who guesses it well."""

    def choose(self, place: int) -> Call:
        """Whom to ask this member for; nobody: no entries."""

    def told(self, place: int, walks: ListOf[Walk], seconds: float, num_passes: int) -> None:
        """What it said for those sequences, in so many seconds and passes."""

    def offer(self) -> bool:
        """Make one tree a sequence of all that was said; whether there is any."""

    def share_out(self, overhead: float) -> None:
        """Give the nodes of all sequences their rows, and book what they earn. ``overhead``: seconds since the step began."""

    def draft(self, entry: int) -> Tree | None:
        """What a sequence was given; nothing: its root alone."""

    def observe(self, keys: ListOf[int], tokens: ListOf[ListOf[int]], seconds: float) -> None:
        """What these sequences committed; the forward and all behind it took so long."""

    def own_tree(self, key: int, verified: Tree, place: int) -> Tree:
        """The verified draft as a member sees it: with its own estimates, 0 where it did not name a node."""

    def was_asked(self, place: int) -> bool:
        """Whether this member was."""

    def charge(self, seconds: float) -> None:
        """Charge those who were asked for what drafting took beside their calls; nobody was asked: all stood by."""


class Ledger(Protocol):
    """All that is known, from the first step on."""

    @property
    def num_timed(self) -> int:
        """Steps that T was learnt of."""

    def seconds(self, rows: int) -> float:
        """T(rows) as profiled behind the profile's context, and corrected since."""

    def begin(self, number: int, batch: Batch) -> Step:
        """The step of this number, which only ever rises."""

    def is_idle(self, place: int, number: int) -> bool:
        """Whether a member is off in a step, or must wait."""

    def is_untried(self, place: int, keys: ListOf[int]) -> bool:
        """Whether it waits for a place in one of these texts where it can show what it is worth."""

    def tried(self, place: int, seconds: float) -> None:
        """A call before the first step took so long."""

    def obeyed(self, place: int, num_sequences: int, seconds: float) -> None:
        """A member was asked because the rule of acceptance leaves no choice."""

    def followed(self, place: int, num_verified: int, num_accepted: int) -> None:
        """What became of drafts that it was asked for in this way."""

    def forget(self, key: int) -> None:
        """The sequence left."""

    def num_sequences(self) -> int:
        """Of which something is held."""

    def describe(self, place: int) -> dict[str, Any]:
        """A member's costs and earnings."""


@dataclass(slots=True)
class _Book:
    """What is held for a sequence in flight."""

    own: OwnChances = field(default_factory=OwnChances)
    standings: dict[int, Standing] = field(default_factory=dict)  # by the member's place


class PythonLedger:
    """:class:`Ledger` where there is no engine, and its definition."""

    def __init__(self, profile: Profile, members: ListOf[Traits]) -> None:
        self.profile, self.cost = profile, StepCost(profile)
        self.members = [Member(traits, 1 << place) for place, traits in enumerate(members)]
        self.chances = Chances()
        self.books: dict[int, _Book] = {}
        self.advantage = 1.0  # of the last drafts over plain decoding, as planned
        self.standing_by = 0.0  # seconds of a step in which nobody was asked, though somebody might have been
        self.token_seconds = self.row_seconds = 0.0  # of the last step with drafts

    @property
    def num_timed(self) -> int:
        """By the cost."""
        return self.cost.num_steps

    def seconds(self, rows: int) -> float:
        """By the cost."""
        return self.cost.seconds(rows)

    def begin(self, number: int, batch: Batch) -> PythonStep:
        """A step of this ledger."""
        return PythonStep(self, number, batch)

    def is_idle(self, place: int, number: int) -> bool:
        """By the member's books."""
        return self.members[place].is_idle(number)

    def is_untried(self, place: int, keys: ListOf[int]) -> bool:
        """By the sequences' books; not of those that have just left."""
        books = [self.books[key] for key in keys if key in self.books]
        return any(self.standing(book, place).is_untried for book in books)

    def tried(self, place: int, seconds: float) -> None:
        """Of one sequence."""
        self.members[place].cost.observe(1, seconds)

    def obeyed(self, place: int, num_sequences: int, seconds: float) -> None:
        """It costs and earns nothing that anybody decides by."""
        self.members[place].obeyed(num_sequences, seconds)

    def followed(self, place: int, num_verified: int, num_accepted: int) -> None:
        """Count it."""
        earnings = self.members[place].earnings
        earnings.num_verified += num_verified
        earnings.num_accepted += num_accepted

    def forget(self, key: int) -> None:
        """Close its book."""
        self.books.pop(key, None)

    def num_sequences(self) -> int:
        """Open books."""
        return len(self.books)

    def describe(self, place: int) -> dict[str, Any]:
        """Its books."""
        return self.members[place].describe()

    def book(self, key: int) -> _Book:
        """A sequence's, opened if need be."""
        book = self.books.get(key)
        if book is None:
            book = self.books[key] = _Book()
        return book

    def standing(self, book: _Book, place: int) -> Standing:
        """A member's in a sequence."""
        standing = book.standings.get(place)
        if standing is None:
            standing = book.standings[place] = Standing()
        return standing

    def least_reach(self) -> float:
        """What is less likely by the members' own estimates will hardly be worth its row, so that it need not be weighed."""
        if not self.token_seconds:
            return MIN_REACH
        return max(MIN_REACH, _WORTH_WEIGHING * self.row_seconds / self.token_seconds)


@dataclass(slots=True)
class _Asked:
    """One member's part in a step."""

    place: int
    entries: ListOf[int]
    situations: list[int]
    is_probe: bool
    seconds: float = 0.0  # of asking; what all that were asked cost together comes on top
    num_passes: int = 0


class PythonStep:
    """:class:`Step` of a :class:`PythonLedger`."""

    def __init__(self, ledger: PythonLedger, number: int, batch: Batch) -> None:
        self._ledger, self._number, self._batch = ledger, number, batch
        size = len(batch.keys)
        self._asked: list[_Asked] = []
        self._walks: list[dict[int, Walk]] = [{} for _ in range(size)]  # by the member's bit
        self._surest = [0.0] * size  # estimate of a first token
        self._sizes = [0] * size
        self._offers: dict[int, Offer] = {}  # by entry
        self._rows: list[list[int]] = [[] for _ in range(size)]
        self._token_seconds = self._row_seconds = 0.0
        self._step_seconds = ledger.cost.seconds(batch.num_rows, batch.positions)

    @property
    def has_asked(self) -> bool:
        """Whether anybody was asked."""
        return bool(self._asked)

    @property
    def has_offers(self) -> bool:
        """Whether anybody said anything."""
        return bool(self._offers)

    @property
    def num_drafted(self) -> int:
        """Rows that drafts were given."""
        return sum(map(len, self._rows))

    def due(self) -> list[int]:
        """Nobody where plain decoding was not timed for so long that its price is a guess."""
        ledger, keys = self._ledger, self._batch.keys
        patience = _PLAIN_STEPS_CLEAR if ledger.advantage > _CLEAR else _PLAIN_STEPS
        if ledger.cost.num_steps_unseen(self._batch.num_rows) >= patience:
            return []
        everybody = range(len(ledger.members))
        return [
            place
            for place in everybody
            if any(key not in ledger.books for key in keys)
            or not ledger.is_idle(place, self._number)
            or ledger.is_untried(place, keys)
        ]

    def choose(self, place: int) -> Call:
        """By the gains of each sequence in its situation, which those who were asked before have shown."""
        ledger, batch = self._ledger, self._batch
        member = ledger.members[place]
        situations = [situation(estimate) for estimate in self._surest]
        standings = [ledger.standing(ledger.book(key), place) for key in batch.keys]
        entries, is_probe = member.chosen(
            list(zip(standings, situations, strict=True)),
            self._number,
            self._step_seconds,
            waking=_WAKING * ledger.standing_by,
            is_settled=not self._asked,
        )
        if not entries:
            return Call((), (), 0.0)
        self._asked.append(_Asked(place, entries, [situations[i] for i in entries], is_probe))
        least = member.least_reach(len(entries), ledger.token_seconds, ledger.row_seconds)
        return Call(entries, [standings[i].num_asked(batch.max_nodes[i]) for i in entries], least)

    def told(self, place: int, walks: ListOf[Walk], seconds: float, num_passes: int) -> None:
        """Of whom was asked last."""
        asked, ledger, batch = self._asked[-1], self._ledger, self._batch
        asked.seconds, asked.num_passes = seconds, num_passes
        for i, walk in zip(asked.entries, walks, strict=True):
            self._walks[i][ledger.members[place].bit] = walk
            self._surest[i] = max(self._surest[i], walk.first_estimate())
            size = ledger.standing(ledger.book(batch.keys[i]), place).num_asked(batch.max_nodes[i])
            self._sizes[i] = min(self._sizes[i] + size, batch.max_nodes[i])

    def offer(self) -> bool:
        """Where the surest first token might be worth a row; else nobody's nodes earn anything."""
        ledger, batch = self._ledger, self._batch
        least = ledger.least_reach()
        for i, key in enumerate(batch.keys):
            if self._surest[i] >= least:
                offer = Offer.of(batch.roots[i], self._walks[i], self._sizes[i], batch.max_depths[i], least)
                offer.weigh(ledger.chances, ledger.book(key).own)
                self._offers[i] = offer
        if not self._offers:
            self._book_gains()
        return bool(self._offers)

    def share_out(self, overhead: float) -> None:
        """By the waiting that each node takes off."""
        ledger, size = self._ledger, len(self._batch.keys)
        reaches = [self._offers[i].reaches if i in self._offers else [1.0] for i in range(size)]
        seconds = self._seconds(sum(len(reach) - 1 for reach in reaches), overhead)
        budget = allot(reaches, size, seconds, margin=_MARGIN)
        plain_rate = size / (seconds[0] - overhead)
        ledger.advantage += _SMOOTHING * (budget.rate / plain_rate - ledger.advantage)
        self._token_seconds = ledger.token_seconds = 1 / budget.rate
        steepest = min(len(seconds) - 1, max(sum(map(len, budget.rows)), 1))
        self._row_seconds = ledger.row_seconds = (seconds[steepest] - seconds[0]) / steepest if steepest else 0.0
        self._rows = [rows[:most] for rows, most in zip(budget.rows, self._batch.max_nodes, strict=True)]
        self._book_gains()

    def draft(self, entry: int) -> Tree | None:
        """Its rows of its offer."""
        rows = self._rows[entry]
        return self._offers[entry].tree(rows) if rows else None

    def observe(self, keys: ListOf[int], tokens: ListOf[ListOf[int]], seconds: float) -> None:
        """Learn what the step cost, unless it held long prompts, and what all that was offered was worth."""
        ledger, batch = self._ledger, self._batch
        rows = batch.num_rows + self.num_drafted
        if rows <= _MAX_TIMED_ROWS * ledger.profile.rows[-1]:
            ledger.cost.observe(rows, seconds, batch.positions)
        num_right = [0] * len(ledger.members)  # first guesses
        for key, committed in zip(keys, tokens, strict=True):
            entry = batch.keys.index(key) if key in batch.keys else None
            if entry is not None and entry in self._offers:
                self._judge(entry, committed, num_right)
        self._repeat_probes(num_right)

    def own_tree(self, key: int, verified: Tree, place: int) -> Tree:
        """As it is where nothing was offered: a prompt's pass, or the root alone."""
        entry = self._batch.keys.index(key) if key in self._batch.keys else None
        if entry is None or entry not in self._offers:
            return verified
        return self._offers[entry].own_tree(verified, self._rows[entry], self._ledger.members[place].bit)

    def was_asked(self, place: int) -> bool:
        """For any sequence."""
        return any(asked.place == place for asked in self._asked)

    def charge(self, seconds: float) -> None:
        """In equal parts."""
        ledger = self._ledger
        if not self._asked:
            ledger.standing_by += _SMOOTHING * (seconds - ledger.standing_by)
        for asked in self._asked:
            own = asked.seconds + seconds / len(self._asked)
            ledger.members[asked.place].called(len(asked.entries), own, asked.num_passes, is_probe=asked.is_probe)

    def _seconds(self, num_offered: int, overhead: float) -> list[float]:
        """What the step costs with 0, 1, 2, ... drafted nodes; prompts in it are paid for anyhow, but crowd the rows."""
        cost, batch = self._ledger.cost, self._batch
        rows, size = batch.num_rows, len(batch.keys)
        times = cost.range(rows, rows + num_offered, batch.positions)
        sunk = times[0] - cost.seconds(size, batch.positions) if rows > size else 0.0
        return [t - sunk + overhead for t in times]

    def _book_gains(self) -> None:
        """Seconds that each asked member's own nodes save: their tokens less their rows."""
        ledger, cheaper = self._ledger, 0
        for asked in self._asked:
            member = ledger.members[asked.place]
            for i, where in zip(asked.entries, asked.situations, strict=True):
                gain, num_named = 0.0, 0
                if self._rows[i]:
                    share = self._offers[i].share(self._rows[i], member.bit, cheaper)
                    gain = share.reach * self._token_seconds - share.num_own * self._row_seconds
                    num_named = share.num_named
                standing = ledger.standing(ledger.book(self._batch.keys[i]), asked.place)
                member.earned(standing, where, gain, num_named, is_probe=asked.is_probe)
            cheaper |= member.bit

    def _judge(self, entry: int, committed: ListOf[int], num_right: list[int]) -> None:
        """Learn from all that was offered; count what was verified, and whose first guess was right."""
        ledger, offer, rows = self._ledger, self._offers[entry], self._rows[entry]
        path = offer.learn(committed, ledger.chances, ledger.book(self._batch.keys[entry]).own)
        accepted = [row for row in path if row in rows]
        for place, member in enumerate(ledger.members):
            num_right[place] += offer.share(path[:1], member.bit, 0).num_named
            member.earnings.num_verified += offer.share(rows, member.bit, 0).num_named
            member.earnings.num_accepted += offer.share(accepted, member.bit, 0).num_named

    def _repeat_probes(self, num_right: list[int]) -> None:
        """A probe whose right guesses would have paid, had they been believed, is repeated at once."""
        for asked in self._asked:
            member = self._ledger.members[asked.place]
            worth = num_right[asked.place] * (self._token_seconds - self._row_seconds)
            if asked.is_probe and worth > member.cost.seconds(len(asked.entries)):
                member.probe_again(self._number)
