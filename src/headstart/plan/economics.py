"""The field's formulas as a calculator: what speculation gives, when it stops paying, and what that is worth.

* Speedup: ``L * T / (T + O)`` with L the acceptance length (bonus token included), T the seconds of a plain step and O what
  a step with drafts takes on top. So L = 3, T = 20 and O = 3 give 3 * 20 / 23 = 2.61.
* A chain of k drafted tokens of which each is accepted with probability p, once all before it are, gives ``p + p^2 + ... +
  p^k`` accepted tokens a step (Leviathan, Kalman and Matias 2023, "Fast inference from transformers via speculative
  decoding", equation 1, there with the bonus token): 0.8 and 4 give 0.8 + 0.64 + 0.512 + 0.4096 = 2.3616, and L = 3.3616.
* Break-even: speculation loses below ``L = (T + O) / T``.

The limits are those of the assumptions: one p for every position, and costs that do not depend on the batch. ``headstart
plan MODEL`` measures both instead.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_CHAIN = 64  # drafted tokens beyond which no chain is looked at
_BISECTIONS = 60


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Any unit of time: a plain step, what every step with drafts takes on top, and what each drafted token takes."""

    model: float
    overhead: float = 0.0
    draft: float = 0.0

    def drafting(self, k: int) -> float:
        """A step with k drafted tokens."""
        return self.model + self.overhead + k * self.draft


def speedup(length: float, step: float, drafting_step: float) -> float:
    """How many times as fast, for an acceptance length L and the times of a plain step and of one with drafts."""
    return length / (drafting_step / step)


def accepted_in_chain(p: float, k: int) -> float:
    """Expected accepted tokens of a chain of k, each accepted with probability p once those before it are."""
    return sum(p**place for place in range(1, k + 1))


def break_even_length(step: float, drafting_step: float) -> float:
    """The acceptance length at which drafting neither gains nor loses."""
    return drafting_step / step


def chance_for_length(length: float, k: int) -> float | None:
    """The p at which a chain of k gives this acceptance length; None if none is high enough."""
    if length <= 1:
        return 0.0
    if length > k + 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if 1 + accepted_in_chain(middle, k) >= length else (middle, high)
    return high


def best_chain(p: float, times: StepTimes) -> tuple[int, float]:
    """The number of drafted tokens that pays most, and its speedup; 0 and 1 where none pays."""
    found = {k: speedup(1 + accepted_in_chain(p, k), times.model, times.drafting(k)) for k in range(1, MAX_CHAIN + 1)}
    best = max(found, key=lambda k: found[k])
    return (best, found[best]) if found[best] > 1 else (0, 1.0)


def per_million(device_seconds: float, price: float) -> float:
    """Currency for a million tokens, of device-seconds a token and the price of a device-hour."""
    return 1e6 * device_seconds * price / 3600


def savings(speedup_factor: float, device_hours: float, price: float) -> float:
    """Currency saved where so many device-hours of plain decoding are done that much faster; negative if it is slower."""
    return device_hours * price * (1 - 1 / speedup_factor)


def savings_line(amount: float, device_hours: float, price: float) -> str:
    """Savings in words, in the currency of the price."""
    change = f"saves {amount:.4g} of it" if amount >= 0 else f"costs {-amount:.4g} more"
    plain = f"{device_hours:g} device-hours a month at {price:g} each cost {device_hours * price:.4g} in its currency"
    return f"{plain}; drafting {change}"
