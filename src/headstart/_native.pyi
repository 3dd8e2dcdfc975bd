"""The native engine as Python sees it (csrc/bind_*.cpp); a test holds the two together.

Arrays are contiguous. A size or index that does not fit is a ValueError or an IndexError.
"""

from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

def isa() -> str:
    """The instruction set in use."""

def available_isas() -> list[str]:
    """Instruction sets that this machine can run, best first."""

def choose_isa(name: str) -> None:
    """Use another instruction set for what is built from now on."""

def num_threads() -> int:
    """Threads of the engine's pool."""

def set_num_threads(count: int) -> None:
    """Change the pool's size, from the next call on."""

@final
class Cell:
    """The cell of sequential heads over packed matrices: a level of a draft in one call."""

    def __init__(
        self, embedding: Matrix, inner: Matrix, project: Matrix, output: Matrix, biases: Sequence[Sequence[float]]
    ) -> None: ...
    def level(
        self, parents: NDArray[np.float32], tokens: NDArray[np.int64], depth: int, k: int
    ) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.float64]]:
        """States [n, D] of a level's nodes, and ids and probabilities [n, k] of their likeliest children."""

    def draft(
        self,
        hidden: NDArray[np.float32],
        roots: Sequence[int],
        max_nodes: Sequence[int],
        num_levels: Sequence[int],
        least_reach: Sequence[float],
        factors: Sequence[Sequence[float]],
        num_ranks: int,
        least_node_reach: float,
        certain: float,
        base_ids: NDArray[np.int64] | None = None,
        noises: Sequence[tuple[Sequence[int], float, int, float, float, int, float] | None] = (),
        num_candidates: int = 0,
    ) -> tuple[list[tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]], int]:
        """Tokens, parents and probabilities of the likeliest or coupled tree of n sequences, and the passes that were made.

        Lists have one entry a sequence; hidden is [n, D], factors are one number a level at least. Noises are
        headstart.heads.operations.Coupling; num_candidates of a node are ranked by them.
        """

@final
class Matrix:
    """A weight matrix [outputs, inputs], packed for the kernels of the instruction set in use."""

    def __init__(
        self,
        source: NDArray[np.uint8],
        source_kind: str,
        kind: str,
        outputs: int,
        inputs: int,
        order: NDArray[np.int64] | None = None,
    ) -> None: ...
    @property
    def shape(self) -> tuple[int, int]:
        """(outputs, inputs)."""

    @property
    def kind(self) -> str:
        """How the weights are held: float32, bfloat16, q8_0, q4_0 or q4_1."""

    @property
    def num_bytes(self) -> int:
        """Bytes in memory."""

    def linear(self, x: NDArray[np.float32], bias: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        """Products of rows x [n, inputs]: [n, outputs]."""

    def rows(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Rows of the matrix [n, inputs]."""

    def select(self, ids: NDArray[np.int64]) -> Matrix:
        """Some rows as a matrix of the same kind, without requantising."""

@final
class Result:
    """Logits and hidden states of a forward's scored rows, in order of entries and rows."""

    @property
    def num_rows(self) -> int:
        """Scored rows."""

    @property
    def logits(self) -> NDArray[np.float32]:
        """[num_rows, vocab_size], read-only; rows may be further apart than vocab_size."""

    @property
    def hidden(self) -> NDArray[np.float32]:
        """[num_rows, hidden_size], read-only: states that the output matrix reads; a drafting layer's before its norm."""

    @property
    def states(self) -> NDArray[np.float32]:
        """[all rows, watched layers * hidden_size], read-only: residual streams before the watched layers, of every row."""

@final
class Model:
    """A decoder of the Llama family with a cache for each slot."""

    def __init__(self, settings: Mapping[str, Any], tensors: Mapping[str, Any]) -> None: ...
    def open(self) -> int:
        """A slot with an empty cache."""

    def close(self, slot: int) -> None:
        """Free a slot."""

    def fork(self, slot: int) -> int:
        """A new slot with the same committed rows."""

    def length(self, slot: int) -> int:
        """Committed rows of a slot."""

    def keep(self, slot: int, path: NDArray[np.int64]) -> None:
        """Commit a path of the slot's last forward, from row 0 on; forget its other rows."""

    def watch(self, layers: NDArray[np.int64]) -> None:
        """Hand out the residual streams before these layers with every forward; the number of layers stands for the end."""

    def cache_bytes(self) -> int:
        """Bytes that the caches of all open slots hold."""

    def forward(
        self,
        slots: NDArray[np.int64],
        row_starts: NDArray[np.int64],
        tokens: NDArray[np.int32],
        parents: NDArray[np.int32],
        first_scored: NDArray[np.int64],
        hidden: NDArray[np.float32] | None = None,
    ) -> Result:
        """Compute trees of rows, one a slot: slots [n], row_starts [n + 1], tokens and parents [R], first_scored [n].

        A model that ``reads_hidden`` needs hidden [R * hidden_size].
        """

    def enable_profile(self, on: bool) -> None:
        """Start (or stop) counting where forwards spend time."""

    def profile(self) -> dict[str, float]:
        """Seconds since then in linear layers, attention and everything else, as one worker saw them."""

@final
class Place:
    """Where a walk stands."""

class Walk:
    """What one guesser knows of one sequence in one step (headstart.proposers.walk.Walk)."""

    def start(self) -> Place | None:
        """Where it stands at the root; None: it has nothing to say."""

    def children(self, state: Place) -> dict[int, float]:
        """Tokens that may follow, with their probabilities."""

    def beside(self, state: Place, children: Mapping[int, float]) -> dict[int, float]:
        """Its own children, as they weigh beside those of others."""

    def step(self, state: Place, token: int) -> Place | None:
        """Where it stands behind a drafted token."""

    def draws(self, state: Place) -> tuple[()]:
        """Nothing: no child is drawn."""

    def first_estimate(self) -> float:
        """Of the likeliest first token."""

@final
class TreeWalk(Walk):
    """A finished tree."""

    def __init__(self, tokens: Sequence[int], parents: Sequence[int], probabilities: Sequence[float]) -> None: ...

@final
class DepthWalk(Walk):
    """Parallel guesses by depth."""

    def __init__(self, guesses: Sequence[Mapping[int, float]], behind_any_path: float) -> None: ...

@final
class Copying(Walk):
    """Suffix matching over one text as it grows."""

    def __init__(
        self,
        prompt: Sequence[int],
        *,
        latest: int,
        most_matches: int,
        tail: int,
        classes: Sequence[int],
        prior: Sequence[float],
        prior_weight: float,
        weight_of_noise: float,
        noise_of_others: float,
    ) -> None: ...
    @property
    def num_tokens(self) -> int:
        """Tokens taken in so far."""

    def extend(self, tokens: Sequence[int]) -> None:
        """Tokens that were committed."""

    def weigh_by(self, key: int | None) -> None:
        """Weigh the root's children by the noise of this key; None: do not."""

def grow(
    root: int, walks: Sequence[Walk], max_nodes: int, max_depth: int, least_reach: float, certain: float
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...], tuple[tuple[float, ...], ...]]:
    """Tokens, parents, probabilities and each walk's estimates, one a row, of the likeliest paths of what walks say."""

@final
class Chances:
    """What all sequences have shown of estimates, by kind (headstart.plan.chances.Chances)."""

    def __init__(self, edges: Sequence[float], priors: Sequence[float], forget: float, most: float) -> None: ...
    @property
    def most(self) -> float:
        """That a chance may be."""

    def scaled(self, kind: int, depth: int, estimate: float) -> float:
        """The chance of a node at this depth once its parent is committed."""

    def observe(self, kind: int, depth: int, estimate: float, is_hit: bool, factor: float = 1.0) -> None:
        """A node with a committed parent was committed itself, or not."""

@final
class OwnChances:
    """What one sequence has shown beside that (headstart.plan.chances.OwnChances)."""

    def __init__(self, prior: float, forget: float) -> None: ...
    def factor(self, kind: int) -> float:
        """What to scale a kind's chances by."""

    def observe(self, kind: int, chance: float, is_hit: bool) -> None:
        """A node with this chance was committed or not."""

@final
class Offer:
    """What the members offer together for one sequence (headstart.plan.offer.Offer)."""

    def __init__(
        self,
        tokens: Sequence[int],
        parents: Sequence[int],
        probabilities: Sequence[float],
        estimates: Sequence[Sequence[float]],
        bits: Sequence[int],
    ) -> None: ...
    @staticmethod
    def grown(
        root: int,
        walks: Sequence[Walk],
        bits: Sequence[int],
        max_nodes: int,
        max_depth: int,
        least_reach: float,
        certain: float,
    ) -> Offer:
        """The likeliest paths of what the walks say."""

    @property
    def reaches(self) -> tuple[float, ...]:
        """Of being committed, a row each; empty before it was weighed."""

    def weigh(self, chances: Chances, own: OwnChances) -> None:
        """Find every node's kind, chance and reach."""

    def draft(self, rows: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]:
        """Tokens, parents and chances of these rows, the root before them."""

    def estimates(self, rows: Sequence[int], bit: int) -> tuple[float, ...]:
        """What a member said of these rows, behind a 1 for the root."""

    def share(self, rows: Sequence[int], bit: int, cheaper: int) -> tuple[float, int, int]:
        """The reaches, summed, and the number of rows that a member named and no cheaper one; the number of all it named."""

    def learn(self, committed: Sequence[int], chances: Chances, own: OwnChances) -> list[int]:
        """Judge all nodes whose parent was committed; the rows that were right."""

@final
class StepCost:
    """Seconds of a step by its rows, as well as they are known now (headstart.plan.stepcost.StepCost)."""

    def __init__(
        self,
        rows: Sequence[int],
        seconds: Sequence[float],
        context: float,
        row_position_seconds: float,
        *,
        slower: float,
        faster: float,
        scale_gain: float,
        knot_gain: float,
        stale_gain: float,
        stale_steps: float,
        least_share: float,
        most_correction: float,
    ) -> None: ...
    @property
    def num_steps(self) -> int:
        """Steps that were observed."""

    @property
    def scale(self) -> float:
        """How much slower than at load the machine is now (1: not at all)."""

    def seconds(self, rows: int, positions: float | None = None) -> float:
        """T(rows) behind so many cached positions a row (None: as profiled)."""

    def range(self, first: int, last: int, positions: float | None = None) -> list[float]:
        """T of first to last rows."""

    def num_steps_unseen(self, rows: int) -> int:
        """Steps since one with about so many rows was timed."""

    def observe(self, rows: int, seconds: float, positions: float | None = None) -> None:
        """A step with so many rows took so long."""

def allot(
    reaches: Sequence[Sequence[float]], num_tokens: float, seconds: Sequence[float], margin: float
) -> tuple[list[list[int]], float, float]:
    """The rows to verify of each tree, the tokens that the step will give, and its seconds."""

def argmax(logits: NDArray[np.float32], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Ids [n] of the largest of logits [S, V] in each of rows [n], ties to the lowest id."""

def top_k(logits: NDArray[np.float32], rows: NDArray[np.int64], k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Ids and values [n, min(k, V)] of the largest logits, largest first, ties to the lowest id."""

def top_probabilities(
    logits: NDArray[np.float32], rows: NDArray[np.int64], k: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Like top_k, with softmax probabilities for values."""

def log_softmax(logits: NDArray[np.float32], rows: NDArray[np.int64], ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """Log-probabilities [n, k] of ids [n, k]: headstart.sampling.log_softmax to the last bit."""

def pick(
    logits: NDArray[np.float32],
    ids: NDArray[np.int64],
    values: NDArray[np.float64],
    temperature: float,
    top_k: int,
    top_p: float,
    log_min_p: float,
    key: int,
) -> int:
    """The plain sampler's token from raw logits [V] and a headstart.sampling.Plan."""

def distribution(
    logits: NDArray[np.float32],
    ids: NDArray[np.int64],
    values: NDArray[np.float64],
    temperature: float,
    top_k: int,
    top_p: float,
    log_min_p: float,
    key: int,
) -> NDArray[np.float64]:
    """Probabilities [V] that ``pick`` draws from, of the same arguments: Sampler.distribution to the last bit."""

def log(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """headstart.arithmetic.log."""

def exp(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """headstart.arithmetic.exp."""

def total(x: NDArray[np.float64]) -> float:
    """headstart.arithmetic.total."""

def gumbel(key: int, ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """headstart.sampling.gumbel of a noise key."""

def read_times(num_bytes: int, repeats: int) -> list[float]:
    """Milliseconds that all threads together take to read so many bytes from huge pages, for each repeat."""
