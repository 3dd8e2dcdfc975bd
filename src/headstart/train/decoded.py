"""The real decoder on held-out prompts: L as it will be, instead of predicted from accuracies.

Predicted L (``acceptance.py``) assumes a static tree and text that the base wrote before. Here the heads draft, the target
verifies and the text goes on from there, as it will in use: greedily, from the prompts of documents that nothing was learned
from. A few hundred steps leave chance some hundredths of L, so the curve shows it, while the heads that are kept are still
chosen by predicted L, which sees thousands of places.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headstart.decode import Decoder, Generation
from headstart.heads.base import Heads
from headstart.proposers.choose import proposer_of
from headstart.sampling import Sampling
from headstart.stats import Stats
from headstart.target.base import Target
from headstart.timings import Timings
from headstart.train.corpus import Document

IN_TRAINING_NODES = 15
_FIRST_WORDS = 8  # tokens of a text without a prompt that stand for one


@dataclass(frozen=True, slots=True)
class Decoded:
    """What decoding some prompts took."""

    stats: Stats
    timings: Timings
    positions: float  # mean number of cached positions in a step

    @property
    def acceptance_length(self) -> float:
        """L; 1 where no step was needed."""
        return self.stats.acceptance_length if self.stats.num_steps else 1.0


class HeldOutPrompts:
    """Prompts of held-out documents, and a target that answers them."""

    def __init__(self, target: Target, documents: Sequence[Document], num_prompts: int, num_tokens: int) -> None:
        self._target, self._sampling = target, Sampling(max_tokens=num_tokens, ignore_eos=True)
        room = target.context_limit - num_tokens
        found: dict[tuple[int, ...], None] = {}
        for document in sorted(documents, key=lambda document: document.digest):
            prompt = _prompt(document)
            if 0 < len(prompt) <= room and len(found) < num_prompts:
                found[prompt] = None
        self.prompts = list(found)

    def decode(self, heads: Heads, num_nodes: int, *, one_by_one: bool = False) -> Decoded:
        """Answer all prompts with drafts of at most ``num_nodes`` nodes; side by side, unless times are to be looked at."""
        decoder = Decoder(self._target, proposer_of(heads, self._target), num_nodes=num_nodes)
        generations: list[Generation] = []
        try:
            for prompt in self.prompts:
                generations += decoder.add(prompt, self._sampling, seed=0)
                if one_by_one:
                    decoder.run()
            decoder.run()
        finally:
            decoder.close()
        total = Stats()
        for generation in generations:
            total.add(generation.stats)
        places = [len(generation.prompt) + len(generation.tokens) / 2 for generation in generations]
        return Decoded(total, decoder.timings, sum(places) / max(len(places), 1))


def _prompt(document: Document) -> tuple[int, ...]:
    """What stands before the first answer; of a text without a prompt its first tokens."""
    start = document.supervised[0][0] if document.supervised else 0
    return document.tokens[:start] if start > 1 else document.tokens[:_FIRST_WORDS]
