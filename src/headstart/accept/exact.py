"""``exact``: the verifier is the plain sampler.

The rule evaluates the plain sampler (``sampling.py``) at the root, and while its pick is a drafted child it goes there; then
the last pick is committed as well, the *bonus token*. Every emitted token is thereby, by construction, the token of plain
decoding: same request, same seed, same text, with any draft. An empty draft makes it plain decoding itself.

The chance that a drafted child is hit at temperature > 0 is the chance that the target's own sample falls on it. A draft whose
children are the top k of ``log q + g`` with the request's noise g meets it far more often than the likeliest children do
(Daliri et al. 2024, "Coupling without communication and drafter-invariant speculative decoding").
"""

from __future__ import annotations

from collections.abc import Sequence

from headstart.accept.base import Draft, Questions, Rule, Verdict, picks, walk


def exact(scored: Questions, drafts: Sequence[Draft]) -> list[Verdict]:
    """Walk all drafts side by side, one question to the engine a level."""
    return walk(drafts, lambda nodes: picks(scored, nodes))


EXACT = Rule("exact", exact, choice="coupled", is_lossless=True, repeats_plain=True)
