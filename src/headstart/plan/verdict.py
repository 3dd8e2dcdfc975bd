"""The plan's answer in words: deploy, deploy up to a batch, or do not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headstart.plan.economics import chance_for_length, savings, savings_line
from headstart.plan.forecast_batches import Choice

WORTH_IT = 1.03
"""A smaller gain is not told from noise, and not worth a moving part."""
_BETTER = 0.05
_SURE = 0.995  # no head is better than one that is written as 1.00


def verdict(choices: Sequence[Choice], clock: Sequence[float | None] | None = None) -> str:
    """One sentence, from the best choices by rising batch; ``clock``: their measured speedups, None where there is none.

    A batch where the clock has drafting lose is none to deploy at, whatever the forecast says of it.
    """
    found = [Seen(*each) for each in zip(choices, clock or [None] * len(choices), strict=True)]
    first = next((place for place, seen in enumerate(found) if seen.pays), None)
    if first is None:
        against = [seen.told for seen in found if seen.is_contradicted]
        return "do not deploy: nothing that can guess here beats plain decoding" + "".join(f"; {told}" for told in against)
    behind = next((place for place in range(first, len(found)) if not found[place].pays), len(found))
    way = f"{choices[first].drafting.proposer} with {choices[first].drafting.num_nodes} nodes"
    gain = f"{way} gives {choices[first].speedup:.2f} at batch {choices[first].num_sequences}"
    last = choices[behind - 1].num_sequences
    if behind - first == len(found):
        return f"deploy: {gain}, and it pays at every batch up to {last}"
    said = [found[place].told for place in range(first) if found[place].is_contradicted]
    if behind < len(found):
        said.append(_behind(found[behind:]))
    what = f"up to batch {last}" if first == 0 else f"from batch {choices[first].num_sequences} to {last}"
    return "; ".join([f"deploy {what}: {gain}", *said])


@dataclass(frozen=True, slots=True)
class Seen:
    """The best choice at one batch, and its speedup by the clock where that was measured."""

    choice: Choice
    clock: float | None

    @property
    def is_contradicted(self) -> bool:
        """Whether it should pay, and loses by the clock."""
        return self.choice.speedup >= WORTH_IT and self.clock is not None and self.clock < 1

    @property
    def pays(self) -> bool:
        """Whether it is worth deploying."""
        return self.choice.speedup >= WORTH_IT and not self.is_contradicted

    @property
    def told(self) -> str:
        """The speedup with its source."""
        batch = f"at batch {self.choice.num_sequences}"
        if self.is_contradicted:
            return f"{batch} it is forecast to give {self.choice.speedup:.2f}, and loses by the clock, {self.clock:.2f}"
        return f"{self.choice.speedup:.2f} {batch}"


def _behind(found: Sequence[Seen]) -> str:
    if found[0].is_contradicted:
        return found[0].told
    worst = min(found, key=lambda seen: seen.choice.speedup)
    if worst.choice.speedup < 1:
        return f"behind that drafting loses, {worst.told} being the least"
    return f"behind that it is not worth it, {found[0].told}"


def break_even(choice: Choice, depth: int) -> str:
    """Below which acceptance it loses; ``depth``: of its drafts."""
    least = choice.break_even_length
    chance, own = chance_for_length(least, depth), chance_for_length(choice.drafting.length, depth)
    way, length = f"{choice.drafting.proposer} with {choice.drafting.num_nodes} nodes", choice.drafting.length
    text = f"{way} loses below L = {least:.2f} (it has {length:.2f})"
    if chance is None or own is None:
        return text
    return f"{text}; as one chance for each of {depth} depths, below {chance:.2f} (it has {own:.2f})"


def better_head(choice: Choice, depth: int) -> str | None:
    """What a better guesser would give; None where L is not that of a chain of this depth."""
    own = chance_for_length(choice.drafting.length, depth)
    if own is None or own >= _SURE:
        return None
    better = min(own + _BETTER, 1.0)
    length = 1 + sum(better**place for place in range(1, depth + 1))
    faster = choice.with_length(length)
    return f"p from {own:.2f} to {better:.2f} gives L = {length:.2f} and {faster:.2f} instead of {choice.speedup:.2f}"


def saved(choice: Choice, device_hours: float, price: float) -> str:
    """Currency a month at this batch."""
    amount = savings(choice.speedup, device_hours, price)
    return f"at batch {choice.num_sequences}, {savings_line(amount, device_hours, price)}"
