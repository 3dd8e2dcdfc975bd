"""The ledger in the engine (csrc/ledger.h), which decides what :class:`~headstart.plan.ledger.PythonLedger` decides.

All numbers that were chosen stand in Python, and go to the engine by their names. Drafts grow there from walks that the engine
has; from others Python grows them, and the engine weighs them.
"""

from __future__ import annotations

from collections.abc import Sequence as ListOf
from typing import Any

from headstart.plan import chances, ledger, members, stepcost
from headstart.plan.ledger import Batch, Call, Ledger, PythonLedger, Step
from headstart.plan.members import Traits
from headstart.plan.profile import Profile
from headstart.proposers.compiled import native
from headstart.proposers.walk import CERTAIN, MIN_REACH, Walk, compiled_walks, grown_in_python
from headstart.tree import Tree


def new_ledger(profile: Profile, traits: ListOf[Traits]) -> Ledger:
    """With nothing seen yet; the members cheapest first. Python's own where there is no engine."""
    return CompiledLedger(profile, traits) if native else PythonLedger(profile, traits)


class CompiledLedger:
    """A ledger in the engine."""

    def __init__(self, profile: Profile, traits: ListOf[Traits]) -> None:
        numbers = ledger.NUMBERS | chances.NUMBERS | members.NUMBERS | stepcost.NUMBERS
        numbers |= {"context": profile.context, "row_position_seconds": profile.row_position_seconds}
        numbers |= {"min_reach": MIN_REACH, "certain": CERTAIN}
        self._ledger = native.Ledger(
            len(traits), profile.rows, profile.seconds, numbers, chances.EDGES, chances.PRIORS, members.SURE
        )
        self.is_idle, self.is_untried, self.tried = self._ledger.is_idle, self._ledger.is_untried, self._ledger.tried
        self.obeyed, self.followed = self._ledger.obeyed, self._ledger.followed
        self.seconds, self.forget, self.describe = self._ledger.seconds, self._ledger.forget, self._ledger.describe
        self.num_sequences = self._ledger.num_sequences

    @property
    def num_timed(self) -> int:
        """Steps that T was learnt of."""
        return self._ledger.num_timed

    def begin(self, number: int, batch: Batch) -> Step:
        """A step in the engine."""
        return CompiledStep(
            self._ledger.begin(
                number, batch.keys, batch.roots, batch.max_nodes, batch.max_depths, batch.num_rows, batch.positions
            ),
            batch,
        )


class CompiledStep:
    """A step in the engine."""

    __slots__ = ("_batch", "_entries", "_step", "_walks", "charge", "due", "share_out", "was_asked")

    def __init__(self, step: Any, batch: Batch) -> None:
        self._step, self._batch = step, batch
        self._entries: ListOf[int] = ()  # that were asked last
        self._walks: list[dict[int, Walk]] = [{} for _ in batch.keys]  # by the member's bit
        self.due, self.share_out, self.was_asked, self.charge = step.due, step.share_out, step.was_asked, step.charge

    @property
    def has_asked(self) -> bool:
        """Whether anybody was asked."""
        return bool(self._step.has_asked)

    @property
    def has_offers(self) -> bool:
        """Whether anybody said anything that might be worth a row."""
        return bool(self._step.has_offers)

    @property
    def num_drafted(self) -> int:
        """Rows that drafts were given."""
        return int(self._step.num_drafted)

    def choose(self, place: int) -> Call:
        """Whom to ask this member for."""
        call = Call(*self._step.choose(place))
        self._entries = call.entries
        return call

    def told(self, place: int, walks: ListOf[Walk], seconds: float, num_passes: int) -> None:
        """What it said for those sequences."""
        bit = 1 << place
        for i, walk in zip(self._entries, walks, strict=True):
            self._walks[i][bit] = walk
        self._step.told(place, [walk.first_estimate() for walk in walks], seconds, num_passes)

    def offer(self) -> bool:
        """Make one tree a sequence of all that was said."""
        step, batch = self._step, self._batch
        worth = step.worth_offering()
        for i in worth:
            said = self._walks[i]
            compiled = compiled_walks(said.values())
            if compiled is not None:
                step.offer(i, compiled, list(said))
                continue
            size, least = step.limits_of(i)
            tree, estimates = grown_in_python(batch.roots[i], list(said.values()), size, batch.max_depths[i], least)
            step.offer_grown(i, tree.tokens, tree.parents, tree.probabilities, estimates, list(said))
        if not worth:
            step.pass_by()
        return bool(worth)

    def draft(self, entry: int) -> Tree | None:
        """What a sequence was given."""
        found = self._step.draft(entry)
        return found and Tree.grown(*found)

    def observe(self, keys: ListOf[int], tokens: ListOf[ListOf[int]], seconds: float) -> None:
        """What these sequences committed."""
        self._step.observe(keys, tokens, seconds)

    def own_tree(self, key: int, verified: Tree, place: int) -> Tree:
        """The verified draft as a member sees it."""
        estimates = self._step.estimates(key, place)
        return verified if estimates is None else verified.estimated(estimates)
