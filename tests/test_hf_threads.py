"""The PyTorch engine under several threads: loops over one target, and over a draft of its own first layers, interleave."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest

pytest.importorskip("torch")
from headstart.decode import Decoder
from headstart.proposers.draft_model import DraftModelProposer
from headstart.sampling import Sampling
from headstart.target.hf import HfTarget
from headstart.target.hf_shallow import first_layers
from tiny import tiny_target

PROMPTS = [[5, 9, 30, 31, 7], [3, 1], [40, 41, 42, 43, 44, 45, 46], [12]]
SAMPLING = Sampling(max_tokens=24, ignore_eos=True)


@pytest.fixture(autouse=True)
def hasty_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def answer(target: HfTarget, draft: HfTarget | None, prompt: list[int]) -> list[int]:
    proposer = DraftModelProposer(draft) if draft else None
    decoder = Decoder(target, proposer, num_nodes=4 if draft else 0)
    (generation,) = decoder.add(prompt, SAMPLING, seed=1)
    decoder.run()
    return generation.tokens


@pytest.mark.parametrize("drafts", [False, True])
def test_loops_in_several_threads_write_what_each_writes_alone(drafts: bool) -> None:
    target = tiny_target()
    draft = first_layers(target, 1) if drafts else None
    expected = [answer(target, None, prompt) for prompt in PROMPTS]
    found: list[list[int] | None] = [None] * len(PROMPTS)

    def run(place: int) -> None:
        found[place] = answer(target, draft, PROMPTS[place])

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(PROMPTS))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == expected
    assert target.cache_bytes() == 0
