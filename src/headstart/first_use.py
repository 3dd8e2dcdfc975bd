"""A short self-check when heads are used for the first time with a model.

Nothing that heads say can change the text, if verification is right: so a difference from plain decoding here is a fault of the
engine, of the accept rule or of whoever changed either, and whoever serves the model should know before the first answer (the
whole check is ``headstart check``). A few prompts are answered plain and accelerated, greedy and sampled, all at once; what
each way has said within its share of a second or so is compared. On an engine that rounds, a difference that ``lossless.py``
explains as a tie is none.

A passed check is remembered (``cache.py``) for this model, these heads and this version of the program.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.cache import recall, remember
from headstart.decode import Decoder, Generation
from headstart.errors import HeadsError
from headstart.heads.base import Heads
from headstart.lossless import compare
from headstart.proposers.base import Proposer
from headstart.proposers.choose import Guesser
from headstart.sampling import Sampling
from headstart.target.base import Target

NUM_TOKENS = 32
_SECONDS = 0.8  # for each of the two ways; a slow model is compared on fewer tokens
_LEAST_STEPS = 5
_KIND = "first-use"
_SEED = 1
_TEXTS = (
    "Why is the sky blue?",
    "Write a short function that adds two numbers.",
    "One, two, three, four, one, two, three, four, one, two,",
    "The quick brown fox jumps over the lazy dog. The quick brown fox",
)
_SAMPLINGS = (
    Sampling(max_tokens=NUM_TOKENS),
    Sampling(temperature=0.8, top_p=0.95, presence_penalty=0.3, repetition_penalty=1.1, max_tokens=NUM_TOKENS, seed=_SEED),
)

Requests = Sequence[tuple[str, Sequence[int], Sampling]]
"""Name, prompt and sampling."""


def check_first_use(
    target: Target,
    heads: Heads,
    encode: Callable[[str], Sequence[int]],
    guesser: Callable[[], Guesser],
    *,
    seconds: float = _SECONDS,
) -> None:
    """Compare plain and accelerated decoding once for these heads and this model; HeadsError at a difference.

    ``guesser`` gives the proposer that drafts with these heads alone, so that they are asked at every step.
    """
    key = _key(target, heads)
    if recall(_KIND, key) is not None:
        return
    own = guesser()
    assert own.proposer is not None
    requests = [(text, encode(text), sampling) for text in _TEXTS for sampling in _SAMPLINGS]
    requests = [request for request in requests if 0 < len(request[1]) < target.context_limit]
    num_compared = _compare(target, own.proposer, requests, own.num_nodes, seconds)
    remember(_KIND, key, {"tokens": num_compared})


def _compare(target: Target, proposer: Proposer, requests: Requests, num_nodes: int, seconds: float) -> int:
    """Tokens that were compared."""
    plain = _decode(Decoder(target), requests, seconds)
    fast = _decode(Decoder(target, proposer, num_nodes=num_nodes), requests, seconds)
    num_compared = 0
    for (name, prompt, sampling), one, other in zip(requests, plain, fast, strict=True):
        common = min(len(one.tokens), len(other.tokens))
        num_compared += common
        found = compare(target, name, prompt, one.tokens[:common], other.tokens[:common], sampling, _SEED)
        if found is not None and found.kind == "fault":
            raise HeadsError(
                f"{proposer.name} changes the text of {target.name}: behind {name!r}, token {found.index} is {found.other} and "
                f"in plain decoding {found.plain}; see `headstart check`, and decode with --proposer none until it is found"
            )
    return num_compared


def _decode(decoder: Decoder, requests: Requests, seconds: float) -> list[Generation]:
    """Answer all requests at once, for so long."""
    end = time.monotonic() + seconds
    try:
        generations = [decoder.add(prompt, sampling)[0] for _, prompt, sampling in requests]
        num_steps = 0
        while decoder.num_running and (num_steps < _LEAST_STEPS or time.monotonic() < end):
            decoder.step()
            num_steps += 1
        return generations
    finally:
        decoder.close()


def _key(target: Target, heads: Heads) -> dict[str, str]:
    return {
        "headstart": import_module("headstart").__version__,
        "model": target.fingerprint,
        "engine": target.engine,
        "dtype": target.dtype,
        "kind": heads.config.kind,
        "heads": _fingerprint(heads.tensors),
    }


def _fingerprint(tensors: Mapping[str, NDArray[Any]]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for name in sorted(tensors):
        values = np.ascontiguousarray(tensors[name])
        digest.update(f"{name} {values.shape} {values.dtype}".encode())
        digest.update(values.view(np.uint8).data)
    return digest.hexdigest()
