"""The proposer seam: whatever guesses.

Before each step the loop asks for one tree a sequence; after it, ``observe`` tells what was committed. Nothing a proposer does
can change the text, only the number of steps. A proposer that has nothing to say returns the root alone.

A proposer keeps what it holds per sequence under ``Sequence.key`` and drops it in ``forget``. One with a cache of its own keeps
it in step with ``Sequence.tokens``, which only ever grow, also when it was not asked for a while; one whose cache needs the
target's states of the prompt hears of every chunk of it (:class:`ReadsPrompts`).
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as ListOf
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from headstart.accept import Choice, Row
from headstart.sampling import Sampler
from headstart.target.base import Scored
from headstart.tree import ROOT, Tree


@dataclass(frozen=True, slots=True)
class Sequence:
    """What a proposer sees of a sequence in flight."""

    key: int  # never reused
    tokens: ListOf[int]  # prompt and committed tokens; the last one is the root
    num_prompt: int
    sampler: Sampler  # its noise may be shared (coupling); it must not be changed
    max_nodes: int  # drafted nodes that the loop can use now
    max_depth: int  # deeper nodes could not be committed any more (max_tokens, context limit)
    choice: Choice = "coupled"  # of children at temperature > 0: what the rule of acceptance works best with
    least_reach: float = 0.0  # of the nodes of a level together, to be worth a further pass of a proposer that guesses by level

    def asked(self, max_nodes: int, least_reach: float = 0.0) -> Sequence:
        """The same sequence, asked for so many nodes; what ``replace`` gives, in a third of its time."""
        return Sequence(
            self.key, self.tokens, self.num_prompt, self.sampler, max_nodes, self.max_depth, self.choice, least_reach
        )


@dataclass(frozen=True, slots=True)
class Observation:
    """What a step, or a prompt's pass, committed."""

    key: int
    tree: Tree  # as verified; a prompt's pass has the prompt's last chunk. Probability 0: the proposer did not draft the node
    tokens: tuple[int, ...]  # committed, the bonus token (the next root) included
    scored: Scored
    row: Row  # the row that gave the last token: its hidden state saw everything before the next root

    @property
    def rows(self) -> list[Row]:
        """The rows that gave the committed tokens: the accepted path from the root on, or a prompt's last row."""
        entry, row = self.row
        path = [row]
        while len(path) < len(self.tokens):
            path.append(self.tree.parents[path[-1]])
        return [(entry, row) for row in reversed(path)]

    @property
    def is_of_prompt(self) -> bool:
        """Whether ``tree`` is the end of a prompt, which nobody drafted."""
        row = self.row[1]
        for _ in range(len(self.tokens) - 1):
            row = self.tree.parents[row]
        return row != ROOT


@dataclass(frozen=True, slots=True)
class PromptChunk:
    """Some rows of a prompt, as the target computed them; the ``Observation`` of its first token follows behind the last."""

    keys: tuple[int, ...]  # the answers to the prompt that are still wanted; they share its rows until their first tokens
    start: int  # the position of the first row
    tokens: tuple[int, ...]
    scored: Scored
    entry: int  # of the batch

    @property
    def rows(self) -> list[Row]:
        """All of them."""
        return [(self.entry, row) for row in range(len(self.tokens))]


class Proposer(Protocol):
    """Whatever guesses."""

    name: str

    def propose(self, sequences: ListOf[Sequence]) -> list[Tree]:
        """One tree a sequence, rooted in its last token, with at most ``max_nodes`` nodes."""

    def observe(self, observations: ListOf[Observation]) -> None:
        """The sequences that are still in flight after a step, and what it committed."""

    def forget(self, key: int) -> None:
        """The sequence left."""


@runtime_checkable
class ReadsPrompts(Proposer, Protocol):
    """A proposer that wants to see the rows of prompts."""

    def read_prompt(self, chunks: ListOf[PromptChunk]) -> None:
        """Chunks that a step computed, before their answers are observed.

        One that does not begin where the last one ended (a prefix that was never computed here, a text that is computed anew)
        begins the text there.
        """


def pass_on_prompt(proposers: Iterable[Proposer], chunks: ListOf[PromptChunk]) -> None:
    """Let those of some proposers that want to see prompts see these chunks."""
    for proposer in proposers:
        if isinstance(proposer, ReadsPrompts):
            proposer.read_prompt(chunks)


@runtime_checkable
class GrowsByLevel(Proposer, Protocol):
    """A proposer that makes one pass for each level of its drafts, and none behind levels below ``Sequence.least_reach``."""

    num_passes: int  # so far


@runtime_checkable
class Planner(Proposer, Protocol):
    """A proposer that weighs what its drafts cost; so it wants to know what else a step holds, and can give reasons."""

    def expect(self, num_rows: int, keys: ListOf[int]) -> bool:
        """Called before each step; whether to be asked for drafts. If not, it is not told of the step either.

        ``num_rows``: rows that the step feeds whatever is drafted, which are roots and chunks of prompts. ``keys``: the step's
        sequences.
        """

    def rests(self, keys: ListOf[int]) -> bool:
        """Whether nothing of the step under way of these sequences has to be observed."""

    def describe(self) -> dict[str, Any]:
        """The reasons, as JSON."""
