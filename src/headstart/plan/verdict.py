"""The plan's answer in words: deploy, deploy up to a batch, or do not."""

from __future__ import annotations

from collections.abc import Sequence

from headstart.plan.economics import chance_for_length, savings, savings_line
from headstart.plan.forecast_batches import Choice

WORTH_IT = 1.03
"""A smaller gain is not told from noise, and not worth a moving part."""
_BETTER = 0.05
_SURE = 0.995  # no head is better than one that is written as 1.00


def verdict(choices: Sequence[Choice]) -> str:
    """One sentence, from the best choices by rising batch."""
    paying = [choice for choice in choices if choice.speedup >= WORTH_IT]
    if not paying:
        return "do not deploy: nothing that can guess here beats plain decoding"
    first = paying[0]
    way = f"{first.drafting.proposer} with {first.drafting.num_nodes} nodes"
    gain = f"{way} gives {first.speedup:.2f} at batch {first.num_sequences}"
    if len(paying) == len(choices):
        return f"deploy: {gain}, and it pays at every batch up to {choices[-1].num_sequences}"
    behind = choices.index(first)
    last = first
    for one in choices[behind:]:
        if one.speedup < WORTH_IT:
            break
        last = one
    if first is not choices[0]:
        return f"deploy from batch {first.num_sequences} to {last.num_sequences}: {gain}"
    return f"deploy up to batch {last.num_sequences}: {gain}; plain decoding is as good behind that"


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
