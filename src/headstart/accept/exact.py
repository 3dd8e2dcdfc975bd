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

from headstart.accept.base import Draft, Questions, Verdict


def exact(scored: Questions, drafts: Sequence[Draft]) -> list[Verdict]:
    """Walk all drafts side by side, one question to the engine a level."""
    rows = [draft.start for draft in drafts]
    paths: list[list[int]] = [[] for _ in drafts]
    tokens: list[list[int]] = [[] for _ in drafts]
    walking = list(range(len(drafts)))
    while walking:
        asked = [(drafts[i].entry, rows[i]) for i in walking]
        picks = scored.pick(asked, [drafts[i].sampler for i in walking], [tokens[i] for i in walking])
        onward = []
        for i, token in zip(walking, picks, strict=True):
            child = drafts[i].tree.child(rows[i], token)
            tokens[i] = [*tokens[i], token]
            if child is not None:
                rows[i] = child
                paths[i].append(child)
                onward.append(i)
        walking = onward
    return [Verdict(tuple(path), tuple(taken)) for path, taken in zip(paths, tokens, strict=True)]
