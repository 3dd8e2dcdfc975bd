"""Drafts grown node by node, each node from what one guesser or several say may follow there.

A :class:`Walk` is one guesser's knowledge of one sequence in one step. It is asked for the children of a node (with an estimate
each) and taken along a drafted token to the state behind it. Copying can be asked anywhere, also behind tokens that another
guesser drafted; parallel heads know what stands at each depth, whatever was drafted before; a finished tree knows its own nodes
only (:class:`TreeWalk`). :func:`grow` asks all walks at every node, so that the same token under the same parent is one node,
copied chains hang under guessed nodes and guesses under copied ones.

Growth is best first: the next node is always the one whose path is likeliest (EAGLE-2, Li et al. 2024, section 4, for one
guesser). With estimates that never exceed 1 a child is never worth more than its parent, so the N nodes that were taken first
are the N best of everything that the walks would ever say, and they are closed under parents.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as ListOf
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from headstart.proposers.compiled import native
from headstart.tree import ROOT, Draws, Tree

_BEHIND_ANY_PATH = 0.8  # what a guess for a depth, made without knowing the path, is worth behind a given one
CERTAIN = 0.99
MIN_REACH = 0.005  # paths that are less likely are left out: they would cost a row and hardly ever be right

State = Any  # of a walk at a node; None: it has nothing to say behind it
Estimates = tuple[float, ...]  # of one node by walk; 0: that walk did not draft it


Children = Mapping[int, float]  # token -> probability that it follows
_Child = tuple[float, int, int, int, float, list[Children], list[State], int]
"""A node that may join: minus its path's probability, a number, parent, token, probability, what the walks said of it and its
siblings, their states at the parent, depth."""


class Walk(Protocol):
    """What one guesser knows of one sequence in one step."""

    def start(self) -> State:
        """Its state at the root."""

    def children(self, state: State) -> Children:
        """Tokens that may follow, with probabilities that add up to 1 at most."""

    def beside(self, state: State, children: Children) -> Children:
        """Its own children, as they weigh where others have something to say as well."""

    def step(self, state: State, token: int) -> State:
        """Its state behind a drafted token, which need not be its own."""

    def draws(self, state: State) -> tuple[Draws, ...]:
        """What its children of a node were drawn from, if they were drawn."""

    def first_estimate(self) -> float:
        """Of the likeliest first token; 0 if it has none."""


class TreeWalk:
    """A finished tree; behind nodes that it does not have it says nothing."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    def start(self) -> State:
        """The root's row."""
        return ROOT

    def children(self, state: State) -> Children:
        """The row's children."""
        tree = self._tree
        return {tree.tokens[child]: tree.probabilities[child] for child in tree.children[state]}

    def beside(self, state: State, children: Children) -> Children:
        """The same."""
        return children

    def step(self, state: State, token: int) -> State:
        """The row of the child that carries the token."""
        return self._tree.child(state, token)

    def draws(self, state: State) -> tuple[Draws, ...]:
        """The row's."""
        return self._tree.drawn(state)

    def first_estimate(self) -> float:
        """The root's likeliest child's."""
        return max(self.children(ROOT).values(), default=0.0)

    def compiled(self) -> Any:
        """The same walk in the engine; None where it has none, or children were drawn."""
        tree = self._tree
        return native.TreeWalk(tree.tokens, tree.parents, tree.probabilities) if native and not tree.draws else None


def walk_along(tree: Tree) -> Walk:
    """The walk along a finished tree, in the engine if that can have it."""
    walk = TreeWalk(tree)
    compiled: Walk | None = walk.compiled()
    return walk if compiled is None else compiled


class DepthWalk:
    """Parallel guesses: what stands at each depth, whatever was drafted before."""

    def __init__(self, tokens: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        """Both are [K, R]: tokens of depth k + 1, and their probabilities; 0 is no guess."""
        self._guesses: list[Children] = [
            {token: value for token, value in zip(ids, guesses, strict=True) if value > 0}
            for ids, guesses in zip(tokens.tolist(), values.tolist(), strict=True)
        ]

    def start(self) -> State:
        """The depth."""
        return 0 if self._guesses else None

    def children(self, state: State) -> Children:
        """The guesses one deeper."""
        return self._guesses[state]

    def beside(self, state: State, children: Children) -> Children:
        """Guesses behind a path that they were made without are worth less."""
        return {token: value * _BEHIND_ANY_PATH for token, value in children.items()} if state else children

    def step(self, state: State, token: int) -> State:
        """One deeper."""
        return state + 1 if state + 1 < len(self._guesses) else None

    def draws(self, state: State) -> tuple[Draws, ...]:
        """None: parallel guesses that are drawn come as a tree."""
        return ()

    def first_estimate(self) -> float:
        """The largest of the first depth."""
        return max(self._guesses[0].values(), default=0.0) if self._guesses else 0.0

    def compiled(self) -> Any:
        """The same walk in the engine, if there is one."""
        return native.DepthWalk(self._guesses, _BEHIND_ANY_PATH) if native else None


_NOTHING: Children = {}
SILENT: Walk = TreeWalk(Tree.root(0))
"""Nothing to say anywhere."""


class Grown(NamedTuple):
    """A draft and who drafted what."""

    tree: Tree
    estimates: tuple[Estimates, ...]  # a row each; the root's are 0


def grow(root: int, walks: ListOf[Walk], max_nodes: int, max_depth: int, least_reach: float = MIN_REACH) -> Grown:
    """The likeliest paths of what the walks say: at most ``max_nodes`` nodes within ``max_depth``, from ``least_reach`` on."""
    compiled = compiled_walks(walks)
    if native is None or compiled is None:
        return grown_in_python(root, walks, max_nodes, max_depth, least_reach)
    tokens, parents, probabilities, told = native.grow(root, compiled, max_nodes, max_depth, least_reach, CERTAIN)
    return Grown(Tree.grown(tokens, parents, probabilities), told)


def compiled_walks(walks: Iterable[Walk]) -> list[Any] | None:
    """The walks in the engine; None where one of them is Python's alone."""
    found = []
    for walk in walks:
        compiled = _compiled(walk)
        if compiled is None:
            return None
        found.append(compiled)
    return found


def _compiled(walk: Any) -> Any:
    if native is not None and isinstance(walk, native.Walk):
        return walk
    return walk.compiled() if hasattr(walk, "compiled") else None


def grown_in_python(root: int, walks: ListOf[Walk], max_nodes: int, max_depth: int, least_reach: float = MIN_REACH) -> Grown:
    """What :func:`grow` does, node by node; also for children that were drawn."""
    tokens, parents, probabilities, told = [root], [-1], [1.0], [(0.0,) * len(walks)]
    draws: dict[int, tuple[Draws, ...]] = {}
    queue: list[_Child] = []
    number = 0  # decides between equal paths: what was said first

    def ask(row: int, states: list[State], reach: float, depth: int) -> None:
        nonlocal number
        said = [_NOTHING if state is None else walk.children(state) for walk, state in zip(walks, states, strict=True)]
        heard = said
        if len(said) - said.count(_NOTHING) > 1:
            heard = [walk.beside(state, own) if own else own for walk, state, own in zip(walks, states, said, strict=True)]
        for token, probability in combine(heard).items():
            value = reach * probability
            if value >= least_reach:
                number += 1
                heapq.heappush(queue, (-value, number, row, token, probability, said, states, depth))
        drawn = [draw for walk, state in zip(walks, states, strict=True) if state is not None for draw in walk.draws(state)]
        if drawn:
            draws[row] = tuple(drawn)

    if min(max_nodes, max_depth) > 0:
        ask(ROOT, [walk.start() for walk in walks], 1.0, 1)
    while queue and len(tokens) <= max_nodes:
        value, _, parent, token, probability, said, states, depth = heapq.heappop(queue)
        row = len(tokens)
        tokens.append(token)
        parents.append(parent)
        probabilities.append(probability)
        told.append(tuple([children.get(token, 0.0) for children in said]))
        if row < max_nodes and depth < max_depth:
            behind = [None if state is None else walk.step(state, token) for walk, state in zip(walks, states, strict=True)]
            ask(row, behind, -value, depth + 1)
    sources = tuple(draws.get(row, ()) for row in range(len(tokens))) if draws else ()
    return Grown(Tree(tuple(tokens), tuple(parents), tuple(probabilities), sources), tuple(told))


def combine(said: Iterable[Children]) -> Children:
    """Joint probabilities of a node's children by Dempster's rule: what one leaves open, it leaves to the others."""
    joint: Children = _NOTHING
    for children in said:
        joint = _both(joint, children) if joint and children else joint or children
    return joint


def _both(ours: Children, theirs: Children) -> Children:
    """Dempster's rule for two: masses on single tokens, the rest on all of them."""
    ours, our_rest = _doubting(ours)
    theirs, their_rest = _doubting(theirs)
    joint = {token: mass * their_rest for token, mass in ours.items()}
    for token, mass in theirs.items():
        if token in ours:
            joint[token] += mass * (ours[token] + our_rest)
        else:
            joint[token] = mass * our_rest
    total = sum(joint.values()) + our_rest * their_rest
    return {token: mass / total for token, mass in joint.items()}


def _doubting(children: Children) -> tuple[Children, float]:
    """Children that leave something open, and how much: nobody has a veto."""
    mass = sum(children.values())
    if mass <= CERTAIN:
        return children, 1.0 - mass
    return {token: value * CERTAIN / mass for token, value in children.items()}, 1.0 - CERTAIN
