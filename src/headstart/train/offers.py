"""Which heads are best on this machine: tokens per second, predicted from what was measured here.

Accuracy alone does not say it. Sequential heads are right more often and take a pass a depth; more rows raise L and the price
of a step. So each kind decodes held-out prompts, one at a time, at some budgets of rows, and

    tokens per second = L / (T(rows) + asking)

with L and the seconds of asking from those decodings and T from the target's profile (``plan/profile.py``), at the numbers of
rows that the steps really had. Plain decoding is 1 / T(1). The other parts of a step (trees, sampling, committing) are left out
for both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headstart.heads.base import Heads
from headstart.plan.forecast import Forward
from headstart.plan.profile import Profile
from headstart.train.decoded import HeldOutPrompts

ROWS = (2, 4, 8, 16)


@dataclass(frozen=True, slots=True)
class Offer:
    """What one kind of heads gives at one budget."""

    heads: str
    rows: int  # of a step, at most
    acceptance_length: float
    forward_ms: float
    asking_ms: float
    tokens_per_second: float
    plain_tokens_per_second: float  # behind as long a context

    @property
    def speedup(self) -> float:
        """Over plain decoding."""
        return self.tokens_per_second / self.plain_tokens_per_second


def offers_of(heads: Mapping[str, Heads], prompts: HeldOutPrompts, profile: Profile) -> list[Offer]:
    """What heads of each kind give, best first."""
    found = [_offer(kind, made, rows, prompts, profile) for kind, made in heads.items() for rows in ROWS]
    return sorted(found, key=lambda offer: -offer.tokens_per_second)


def _offer(kind: str, heads: Heads, rows: int, prompts: HeldOutPrompts, profile: Profile) -> Offer:
    decoded = prompts.decode(heads, rows - 1, one_by_one=True)
    forward = Forward(profile, decoded.positions)
    num_steps = max(decoded.timings.num_steps, 1)
    verify = forward.mean(decoded.timings.steps_by_rows) or forward.seconds(1)
    asking = decoded.timings.propose / num_steps
    length = decoded.acceptance_length
    return Offer(kind, rows, length, 1000 * verify, 1000 * asking, length / (verify + asking), 1 / forward.seconds(1))
