"""What tokens cost: device-seconds, currency, and how much of the machine's limit is used.

* A *device-second* is a second in which this machine's engine is busy with the batch; a token costs the batch's seconds
  over its tokens.
* *Currency per million tokens* is that times the price of a device-hour.
* *Utilisation of the limit* is the least time that a step's forward could take (``target/limits.py``) over the time it
  took. Bytes moved are the weights once a forward and the cache of every sequence in flight; operations are two a weight
  and row. Attention's own products are left out of both.
"""

from __future__ import annotations

from collections.abc import Sequence

from headstart.plan.economics import per_million
from headstart.target.base import ModelSize
from headstart.target.limits import Limits
from headstart.timings import Timings


def cost(num_tokens: int, seconds: float, price: float | None) -> dict[str, float | None]:
    """Device-seconds a token, and currency for a million; None without a price."""
    each = seconds / num_tokens if num_tokens else None
    return {
        "device_seconds_per_token": each,
        "per_million_tokens": None if each is None or price is None else per_million(each, price),
    }


def utilisation(
    timings: Timings | None, size: ModelSize | None, limits: Limits | None, positions: float
) -> dict[str, float] | None:
    """Of the forwards of steps. ``positions``: cached positions of all sequences in flight together, on average."""
    if timings is None or size is None or limits is None or not timings.num_steps or not timings.verify:
        return None
    steps = timings.num_steps
    rows = sum(count * rows for rows, count in timings.steps_by_rows.items()) / steps
    verify = timings.verify / steps
    moved = size.weight_bytes + positions * size.cache_bytes_per_position
    operations = 2 * size.num_weights * rows
    return {
        "rows": rows,
        "limit_ms": 1000 * limits.seconds(size, rows, positions),
        "of_limit": limits.seconds(size, rows, positions) / verify,
        "gb_per_second": moved / verify / 1e9,
        "of_bandwidth": moved / verify / limits.bytes_per_second,
        "gop_per_second": operations / verify / 1e9,
        "of_peak": operations / verify / limits.operations_per_second,
    }


def mean_positions(prompt_tokens: Sequence[int], answers: Sequence[int], in_flight: float) -> float:
    """Cached positions of all sequences in flight, halfway through the answers."""
    each = [prompt + answer / 2 for prompt, answer in zip(prompt_tokens, answers, strict=True)]
    return in_flight * sum(each) / len(each) if each else 0.0
