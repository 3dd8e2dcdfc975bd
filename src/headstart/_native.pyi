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
class Step:
    """A step of a ledger (headstart.plan.ledger.Step)."""

    @property
    def has_asked(self) -> bool:
        """Whether anybody was asked."""

    @property
    def has_offers(self) -> bool:
        """Whether anybody said anything that might be worth a row."""

    @property
    def num_drafted(self) -> int:
        """Rows that drafts were given."""

    def due(self) -> list[int]:
        """Places of the members that may be asked."""

    def choose(self, place: int) -> tuple[tuple[int, ...], tuple[int, ...], float]:
        """For which sequences this member is asked, how many nodes each, and when its levels end."""

    def told(self, place: int, first_estimates: Sequence[float], seconds: float, num_passes: int) -> None:
        """It said something, and took so long."""

    def worth_offering(self) -> list[int]:
        """Entries of which somebody said something that might be worth a row."""

    def limits_of(self, entry: int) -> tuple[int, float]:
        """Nodes that the entry's offer may have, and the reach that they must have."""

    def offer(self, entry: int, walks: Sequence[Walk], bits: Sequence[int]) -> None:
        """Make one tree of these members' walks."""

    def offer_grown(
        self,
        entry: int,
        tokens: Sequence[int],
        parents: Sequence[int],
        probabilities: Sequence[float],
        estimates: Sequence[Sequence[float]],
        bits: Sequence[int],
    ) -> None:
        """Take a tree that was grown elsewhere."""

    def pass_by(self) -> None:
        """Nobody's nodes earn anything."""

    def share_out(self, overhead: float) -> None:
        """Give the nodes of all sequences their rows."""

    def draft(self, entry: int) -> tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]] | None:
        """Tokens, parents and chances of what a sequence was given."""

    def observe(self, keys: Sequence[int], tokens: Sequence[Sequence[int]], seconds: float) -> None:
        """What these sequences committed."""

    def estimates(self, key: int, place: int) -> tuple[float, ...] | None:
        """What a member said of the rows of a draft, behind a 1 for the root."""

    def was_asked(self, place: int) -> bool:
        """Whether this member was."""

    def charge(self, seconds: float) -> None:
        """Charge those who were asked for what drafting took beside their calls."""

@final
class Ledger:
    """What auto knows and how it decides by it (headstart.plan.ledger.Ledger)."""

    def __init__(
        self,
        num_members: int,
        rows: Sequence[int],
        seconds: Sequence[float],
        numbers: Mapping[str, float],
        edges: Sequence[float],
        priors: Sequence[float],
        sure: Sequence[float],
    ) -> None: ...
    @property
    def num_timed(self) -> int:
        """Steps that T was learnt of."""

    def seconds(self, rows: int) -> float:
        """T(rows) as it is now."""

    def begin(
        self,
        number: int,
        keys: Sequence[int],
        roots: Sequence[int],
        max_nodes: Sequence[int],
        max_depths: Sequence[int],
        num_rows: int,
        positions: float,
    ) -> Step:
        """The step of this number."""

    def is_idle(self, place: int, number: int) -> bool:
        """Whether a member is off in a step, or must wait."""

    def is_untried(self, place: int, keys: Sequence[int]) -> bool:
        """Whether it waits for a place in one of these texts where it can show what it is worth."""

    def tried(self, place: int, seconds: float) -> None:
        """A call before the first step took so long."""

    def obeyed(self, place: int, num_sequences: int, seconds: float) -> None:
        """A member was asked because there is no choice."""

    def followed(self, place: int, num_verified: int, num_accepted: int) -> None:
        """What became of such drafts."""

    def forget(self, key: int) -> None:
        """The sequence left."""

    def num_sequences(self) -> int:
        """Of which something is held."""

    def describe(self, place: int) -> dict[str, Any]:
        """A member's costs and earnings."""

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
