"""Trees of tokens: the shape of every draft.

A draft hangs under the last committed token, the *root*. Row 0 of a :class:`Tree` is that root, rows 1..N are the drafted
nodes, and every parent stands before its children, so a target can process the rows in order. A chain is a tree with one child
a node, a plain decoding step is a root alone, and a prompt is a chain.

Two ways of choosing the shape live here.

* :func:`optimal_paths`: the best *static* tree for a node budget, from measured position-rank accuracies, by an exact dynamic
  programme (Sequoia, Chen et al. 2024, Algorithm 1, extended to accuracies that depend on the depth, as with Medusa's heads;
  Cai et al. 2024, section 2.3.3 builds the same tree greedily). It is written as plain paths of ranks,
  ``[(0,), (0, 0), (1,)]``.
* :func:`grow`: best-first growth from the probabilities of one step (EAGLE-2, Li et al. 2024, for parallel heads).

Letters: N drafted nodes, K depths (heads), R ranks (guesses a head).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

ROOT = 0
Path = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Draws:
    """Tokens drawn one after the other, without replacement, from one distribution, to be children of one node.

    Every token that was drawn stands here, also one that got no row. So a rule of acceptance that weighs draws (rejection,
    block) sees them all, and dropping rows, for whatever reason, cannot bias it.
    """

    tokens: tuple[int, ...]  # in the order of the draws
    ids: NDArray[np.int64]  # [m]: what the distribution may give
    probabilities: NDArray[np.float64]  # [m], summing to 1


@dataclass(frozen=True)
class Tree:
    """A root and its drafted nodes, parents before children.

    ``tokens``, ``parents`` and ``probabilities`` have one entry a row. ``parents[0]`` is -1. ``probabilities[i]`` is the
    proposer's estimate that row i is accepted once its parent is (1 for the root). ``draws`` is empty, or says for each row
    from what its children were drawn, one entry a proposer; children that no entry names were chosen deterministically.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    probabilities: tuple[float, ...]
    draws: tuple[tuple[Draws, ...], ...] = ()

    def __post_init__(self) -> None:
        if not self.tokens:
            raise ValueError("a tree has at least its root")
        if not len(self.tokens) == len(self.parents) == len(self.probabilities):
            raise ValueError("tokens, parents and probabilities of a tree have one entry a row")
        if self.draws and len(self.draws) != len(self.tokens):
            raise ValueError("draws of a tree have one entry a row, or none at all")
        if self.parents[ROOT] != -1 or any(not 0 <= p < i for i, p in enumerate(self.parents) if i):
            raise ValueError("the root's parent is -1 and every other parent stands before its child")
        edges = list(zip(self.parents, self.tokens, strict=True))
        if len(set(edges)) != len(edges):
            raise ValueError("children of one node carry different tokens")

    @classmethod
    def root(cls, token: int) -> Tree:
        """A root without children: one step of plain decoding."""
        return cls((token,), (-1,), (1.0,))

    @classmethod
    def grown(cls, tokens: tuple[int, ...], parents: tuple[int, ...], probabilities: tuple[float, ...]) -> Tree:
        """A tree whose maker answers for what is checked otherwise; checking takes longer than growing."""
        tree = object.__new__(cls)
        tree.__dict__.update(tokens=tokens, parents=parents, probabilities=probabilities, draws=())
        return tree

    def estimated(self, probabilities: tuple[float, ...]) -> Tree:
        """The same tokens in the same shape, with other estimates; what is known of the shape stays known."""
        tree = object.__new__(Tree)
        tree.__dict__.update(self.__dict__, probabilities=probabilities)
        return tree

    @classmethod
    def chain(cls, tokens: Sequence[int], probabilities: Sequence[float] | None = None) -> Tree:
        """One child a node; ``tokens[0]`` is the root. Prompts and prompt-lookup drafts are chains."""
        parents = tuple(range(-1, len(tokens) - 1))
        return cls(tuple(tokens), parents, tuple(probabilities) if probabilities else (1.0,) * len(tokens))

    @classmethod
    def from_paths(cls, root: int, paths: Iterable[Path], tokens: NDArray[np.int64], values: NDArray[np.float64]) -> Tree:
        """Fill a static shape: node ``(i, j)`` gets the j-th guess of depth 2, under the i-th guess of depth 1.

        ``tokens`` and ``values`` are [K, R]; ``values`` are the acceptance estimates by depth and rank.
        """
        rows: dict[Path, int] = {(): ROOT}
        builder = TreeBuilder(root)
        for path in sorted(paths, key=lambda p: (len(p), p)):
            depth, rank = len(path) - 1, path[-1]
            rows[path] = builder.add(rows[path[:-1]], int(tokens[depth, rank]), float(values[depth, rank]))
        return builder.build()

    def __len__(self) -> int:
        """Rows, the root included."""
        return len(self.tokens)

    @property
    def num_drafted(self) -> int:
        """Nodes under the root."""
        return len(self.tokens) - 1

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Distance of each row from the root (0 for the root)."""
        depths = [0]
        for parent in self.parents[1:]:
            depths.append(depths[parent] + 1)
        return tuple(depths)

    @cached_property
    def is_chain(self) -> bool:
        """Whether each row hangs under the row before it."""
        return all(parent == row - 1 for row, parent in enumerate(self.parents))

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """Rows of the children of each row."""
        children: list[list[int]] = [[] for _ in self.tokens]
        for row, parent in enumerate(self.parents[1:], start=1):
            children[parent].append(row)
        return tuple(tuple(rows) for rows in children)

    def drawn(self, row: int) -> tuple[Draws, ...]:
        """What the children of ``row`` were drawn from; nothing where they were chosen deterministically."""
        return self.draws[row] if self.draws else ()

    def child(self, row: int, token: int) -> int | None:
        """The child of ``row`` that carries ``token``, if it was drafted."""
        return next((c for c in self.children[row] if self.tokens[c] == token), None)

    def followed(self, tokens: Sequence[int]) -> Path:
        """Rows that a text walks along from the root, as far as it was drafted."""
        rows: list[int] = []
        for token in tokens:
            child = self.child(rows[-1] if rows else ROOT, token)
            if child is None:
                break
            rows.append(child)
        return tuple(rows)

    def path(self, row: int) -> Path:
        """Rows from the root's child down to ``row``; empty for the root."""
        rows: list[int] = []
        while row != ROOT:
            rows.append(row)
            row = self.parents[row]
        return tuple(reversed(rows))

    def ancestors(self) -> NDArray[np.bool_]:
        """[rows, rows]: whether the column's row is the row itself or lies between it and the root (the attention mask)."""
        mask = np.zeros((len(self), len(self)), dtype=np.bool_)
        for row, parent in enumerate(self.parents):
            if row != ROOT:
                mask[row] = mask[parent]
            mask[row, row] = True
        return mask

    def path_probabilities(self) -> tuple[float, ...]:
        """Probability that each row is reached: the product along its path (1 for the root)."""
        products = [1.0]
        for parent, probability in zip(self.parents[1:], self.probabilities[1:], strict=True):
            products.append(products[parent] * probability)
        return tuple(products)

    def pruned(self, max_nodes: int, max_depth: int) -> Tree:
        """The ``max_nodes`` likeliest nodes that lie within ``max_depth``; itself if everything fits."""
        if self.num_drafted <= max_nodes and max(self.depths) <= max_depth:
            return self
        reached = self.path_probabilities()
        order = sorted(range(1, len(self)), key=lambda row: (-reached[row], self.depths[row], row))
        kept, rows = {ROOT}, [row for row in order if self.depths[row] <= max_depth]
        for row in rows[: max(max_nodes, 0)]:
            if self.parents[row] in kept:
                kept.add(row)
        return self._subtree(sorted(kept))

    def _subtree(self, rows: Sequence[int]) -> Tree:
        index = {row: i for i, row in enumerate(rows)}
        return Tree(
            tuple(self.tokens[row] for row in rows),
            tuple(index.get(self.parents[row], -1) for row in rows),
            tuple(self.probabilities[row] for row in rows),
            tuple(self.draws[row] for row in rows) if self.draws else (),
        )


class TreeBuilder:
    """Collects nodes one by one; adding a token twice under one parent keeps the likelier estimate."""

    def __init__(self, root: int) -> None:
        self._tokens, self._parents, self._probabilities = [root], [-1], [1.0]
        self._rows: dict[tuple[int, int], int] = {}
        self._draws: dict[int, tuple[Draws, ...]] = {}

    def add(self, parent: int, token: int, probability: float) -> int:
        """Hang ``token`` under row ``parent`` and return its row."""
        row = self._rows.get((parent, token))
        if row is not None:
            self._probabilities[row] = max(self._probabilities[row], probability)
            return row
        self._rows[parent, token] = row = len(self._tokens)
        self._tokens.append(token)
        self._parents.append(parent)
        self._probabilities.append(probability)
        return row

    def draw(self, row: int, draws: Draws) -> None:
        """Note what children of ``row`` were drawn from; whoever merges drafts notes it once for each of them."""
        self._draws[row] = (*self._draws.get(row, ()), draws)

    def build(self) -> Tree:
        """The finished tree."""
        draws = tuple(self._draws.get(row, ()) for row in range(len(self._tokens))) if self._draws else ()
        return Tree(tuple(self._tokens), tuple(self._parents), tuple(self._probabilities), draws)


def grow(root: int, tokens: NDArray[np.int64], probabilities: NDArray[np.float64], num_nodes: int) -> Tree:
    """Best-first growth from the guesses of parallel heads: the ``num_nodes`` likeliest nodes.

    ``tokens`` and ``probabilities`` are [K, R], each row in falling order of probability. A node's value is the product of
    the probabilities on its path, so a child or a later sibling is never worth more, and the first N nodes taken from the queue
    are the N best of the full product tree.
    """
    builder = TreeBuilder(root)
    num_depths, num_ranks = tokens.shape
    queue: list[tuple[float, int, int, int, float]] = []  # (-value, depth, rank, parent row, value of the parent)

    def push(depth: int, rank: int, parent: int, parent_value: float) -> None:
        if depth < num_depths and rank < num_ranks and probabilities[depth, rank] > 0:
            heapq.heappush(queue, (-parent_value * float(probabilities[depth, rank]), depth, rank, parent, parent_value))

    push(0, 0, ROOT, 1.0)
    for _ in range(num_nodes):
        if not queue:
            break
        negative_value, depth, rank, parent, parent_value = heapq.heappop(queue)
        row = builder.add(parent, int(tokens[depth, rank]), float(probabilities[depth, rank]))
        push(depth, rank + 1, parent, parent_value)
        push(depth + 1, 0, row, -negative_value)
    return builder.build()


def optimal_paths(accuracies: NDArray[np.float64], num_nodes: int) -> list[Path]:
    """The static tree of at most ``num_nodes`` nodes with the largest expected number of accepted nodes.

    ``accuracies`` is [K, R]: the measured probability that exactly the r-th guess of depth k is right. The expectation of a
    tree is the sum over its nodes of the products of accuracies on their paths. ``best[d][n]`` is the largest expectation of n
    nodes hung under a node of depth d; ranks are gone through one by one, each one either left out or given a subtree.
    Exact also when a later rank is more accurate than an earlier one. O(K R N^2).
    """
    num_depths, num_ranks = accuracies.shape
    below = np.zeros(num_nodes + 1)  # under the deepest guesses nothing can hang
    plans: list[NDArray[np.int64]] = []  # plans[d][r, n]: nodes given to rank r (itself included) when n are left for ranks r..
    for depth in reversed(range(num_depths)):
        values = np.zeros(num_nodes + 1)  # over ranks r.. with n nodes; starts behind the last rank
        plan = np.zeros((num_ranks, num_nodes + 1), dtype=np.int64)
        for rank in reversed(range(num_ranks)):
            with_rank = values.copy()
            for n in range(1, num_nodes + 1):
                for given in range(1, n + 1):
                    value = accuracies[depth, rank] * (1.0 + below[given - 1]) + values[n - given]
                    if value > with_rank[n] + 1e-15:
                        with_rank[n], plan[rank, n] = value, given
            values = with_rank
        plans.insert(0, plan)
        below = values
    paths: list[Path] = []

    def rebuild(prefix: Path, depth: int, nodes: int) -> None:
        if depth == num_depths:
            return
        for rank in range(num_ranks):
            given = int(plans[depth][rank, nodes])
            if given:
                paths.append((*prefix, rank))
                rebuild((*prefix, rank), depth + 1, given - 1)
                nodes -= given

    rebuild((), 0, num_nodes)
    return sorted(paths, key=lambda path: (len(path), path))


def expected_length(paths: Iterable[Path], accuracies: NDArray[np.float64]) -> float:
    """Predicted acceptance length L of a static tree, the bonus token included."""
    return 1.0 + sum(float(np.prod([accuracies[depth, rank] for depth, rank in enumerate(path)])) for path in paths)
