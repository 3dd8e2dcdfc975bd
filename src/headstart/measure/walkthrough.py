"""One generation step by step, for readers who want to see what verification does: every tree with what was accepted of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from headstart.decode import Decoder, StepResult
from headstart.llm import LLM
from headstart.sampling import Sampling
from headstart.target.base import Feed, Scored, Target
from headstart.tokenizer import Tokenizer
from headstart.tree import ROOT, Tree

NUM_TOKENS = 48


class _Watched:
    """A target that remembers the trees of its last forward."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.last: Sequence[Feed] = ()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def forward(self, batch: Sequence[Feed]) -> Scored:
        self.last = batch
        return self._target.forward(batch)


def walkthrough(llm: LLM, prompt: Sequence[int], sampling: Sampling) -> list[dict[str, Any]]:
    """The steps of one answer, the prompt's pass first: the draft's nodes, which were accepted, and what was committed."""
    watched: Any = _Watched(llm.target)
    decoder = Decoder(watched, llm.proposer, num_nodes=llm.num_nodes, rule=llm.rule)
    short = replace(sampling, max_tokens=min(NUM_TOKENS, sampling.max_tokens or NUM_TOKENS))
    steps: list[dict[str, Any]] = []
    try:
        decoder.add(prompt, short)
        while decoder.num_running:
            for result in decoder.step():
                steps.append(_step(llm.tokenizer, watched.last[0].tree if steps else None, result))
        return steps
    finally:
        decoder.close()


def _step(tokenizer: Tokenizer, tree: Tree | None, result: StepResult) -> dict[str, Any]:
    nodes: list[dict[str, Any]] = []
    accepted = set() if tree is None else _accepted(tree, result)
    for row in range(1, len(tree) if tree else 0):
        assert tree is not None
        nodes.append(
            {
                "text": tokenizer.decode([tree.tokens[row]], skip_special_tokens=False),
                "parent": tree.parents[row],
                "probability": tree.probabilities[row],
                "accepted": row in accepted,
            }
        )
    return {
        "root": tokenizer.decode([tree.tokens[ROOT]], skip_special_tokens=False) if tree else None,
        "nodes": nodes,
        "committed": [tokenizer.decode([token], skip_special_tokens=False) for token in result.tokens],
        "num_accepted": result.num_accepted,
    }


def _accepted(tree: Tree, result: StepResult) -> set[int]:
    rows, row = set[int](), ROOT
    for token in result.tokens[: result.num_accepted]:
        child = tree.child(row, token)
        if child is None:
            break
        rows.add(row := child)
    return rows
