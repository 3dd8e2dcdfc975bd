"""How many future tokens count at a step (Aynetdinov and Akbik 2025, "Pre-training curriculum for multi-token prediction").

``forward`` begins with the next token alone and adds one token with each nth of the run; ``reverse`` begins with all n and ends
with the next token alone. They found forward to keep self-speculation and reverse to give the best next-token loss, whose
further heads are of no use in the end. They count epochs; here it is the share of the steps.
"""

from __future__ import annotations

from headstart.pretrain.settings import Curriculum


def num_active(curriculum: Curriculum, num_future: int, step: int, total_steps: int) -> int:
    """Tokens ahead that count at ``step`` (0 is the first) of ``total_steps``."""
    stage = step * num_future // total_steps
    if curriculum == "forward":
        return min(num_future, stage + 1)
    return max(1, num_future - stage) if curriculum == "reverse" else num_future
