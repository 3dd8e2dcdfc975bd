"""The drafting layer: three engines compute the same, and the native one to the bit whatever stands beside a row."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import load_file

from headstart import _native
from headstart.errors import HeadsError
from headstart.heads.base import BaseIdentity, HeadsCard, load_heads, save_heads
from headstart.heads.mtp import BoundMtp, MtpConfig, MtpHeads, initial_tensors
from headstart.target.base import BaseWeights, Feed
from headstart.tree import Tree
from mtp_models import CONFIG, EMBEDDING, OUTPUT, SIZES, STATES, TOKENS, VOCAB, WIDTH, native, on_numpy, states, trained


def in_torch() -> BoundMtp:
    torch = pytest.importorskip("torch")
    from headstart.target.torch_operations import TorchOperations

    return trained().bind(
        TorchOperations(torch.float32), BaseWeights(*(torch.from_numpy(matrix) for matrix in (EMBEDDING, OUTPUT)))
    )


def fed(bound: BoundMtp, slot: Any, begin: int, end: int) -> NDArray[np.float32]:
    """Feed and keep the rows [begin, end) of the text; what the layer says behind each, its own output beside the logits."""
    if begin == end:
        return np.empty((0, 0), dtype=np.float32)
    found = bound.layer.forward([Feed(slot, Tree.chain(TOKENS[begin:end]))], states(bound, STATES[begin:end]))
    rows = [(0, row) for row in range(end - begin)]
    values = np.concatenate([found.logits(rows), bound.operations.numpy(found.hidden(rows))], axis=1)
    bound.layer.keep(slot, tuple(range(end - begin)))
    return values


TREE = Tree((5, 6, 7, 8, 9, 6), (-1, 0, 0, 1, 3, 2), (1.0,) * 6)


@pytest.mark.parametrize("other", [native, in_torch])
def test_engines_compute_what_plain_numpy_does(other: Callable[[], BoundMtp]) -> None:
    """Behind cached rows, beside another slot, over a tree with a branch."""
    answers = []
    for bound in (on_numpy(), other()):
        first, second = bound.layer.open(), bound.layer.open()
        fed(bound, first, 0, 9)
        feeds = [Feed(second, Tree.chain(TOKENS[20:23]), 2), Feed(first, TREE, 1)]
        found = bound.layer.forward(feeds, states(bound, STATES[100:109]))
        rows = [(0, 2), *((1, row) for row in range(1, 6))]
        answers.append([found.logits(rows), bound.operations.numpy(found.hidden(rows)), *bound.likeliest(found, rows, 4)])
        assert bound.layer.length(first) == 9 and bound.layer.cache_bytes() > 0
        bound.layer.keep(first, (0, 1, 3))
        bound.layer.keep(second, ())
        answers[-1].append(fed(bound, first, 50, 53))
    for mine, theirs in zip(*answers, strict=True):
        np.testing.assert_allclose(theirs, mine, rtol=2e-4, atol=2e-4)


def test_a_fresh_layer_says_what_the_base_says_of_the_state() -> None:
    scale = 3.0
    heads = MtpHeads(CONFIG, initial_tensors(CONFIG, np.random.default_rng(0), scale))
    bound = native(heads=heads)
    found = bound.layer.forward([Feed(bound.layer.open(), Tree.chain(TOKENS[:5]))], STATES[:5])
    rows = [(0, row) for row in range(5)]
    np.testing.assert_array_equal(found.hidden(rows), STATES[:5])
    normed = scale * STATES[:5] / np.sqrt((STATES[:5] ** 2).mean(axis=1, keepdims=True))
    np.testing.assert_allclose(found.logits(rows), normed @ OUTPUT[list(CONFIG.draft_vocab or ())].T, rtol=1e-3, atol=1e-3)


def test_guesses_carry_the_base_models_ids() -> None:
    bound = native()
    found = bound.layer.forward([Feed(bound.layer.open(), Tree.chain(TOKENS[:3]))], STATES[:3])
    ids, values = bound.likeliest(found, [(0, 2)], 100)
    assert sorted(ids[0].tolist()) == sorted(CONFIG.draft_vocab or ())
    assert np.exp(values).sum() == pytest.approx(1)


def test_padding_rows_of_the_base_are_never_guessed() -> None:
    config = MtpConfig(**(SIZES | {"vocab_size": VOCAB - 5}))
    bound = native(heads=trained(config))
    found = bound.layer.forward([Feed(bound.layer.open(), Tree.root(1))], STATES[:1])
    assert bound.likeliest(found, [(0, 0)], VOCAB)[0].max() == VOCAB - 6


def test_loading_gives_exactly_what_was_saved(tmp_path: Path) -> None:
    card = HeadsCard(BaseIdentity("fp", WIDTH, VOCAB), None, {"seed": 1})
    heads = dataclasses.replace(trained(), card=card).rounded()
    save_heads(tmp_path / "heads", heads)
    found = load_heads(tmp_path / "heads")
    assert (found.config, found.card) == (CONFIG, card)
    for name, values in heads.tensors.items():
        np.testing.assert_array_equal(found.tensors[name], values)
    assert {values.dtype for values in load_file(tmp_path / "heads" / "model.safetensors").values()} == {
        np.dtype("float16"),
        np.dtype("int64"),
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head_dim": 0}, "head_dim is 0; it must be a whole number from 1 to"),
        ({"head_dim": 7}, "head_dim is 7; it must be even"),
        ({"num_key_value_heads": 3}, "num_attention_heads must be a multiple of num_key_value_heads"),
        ({"rope_theta": 0.0}, "rope_theta is 0.0; it must be a finite number above 0"),
        ({"rms_norm_eps": "x"}, "rms_norm_eps is 'x'"),
        ({"draft_vocab": (1, 1)}, "draft_vocab must list different token ids below 50"),
    ],
)
def test_sizes_that_make_no_sense_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(HeadsError, match=message):
        MtpConfig(**(SIZES | changes))


BOUND = {kind: native(kind) for kind in ("float32", "bfloat16", "int8")}
bitwise = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(params=BOUND)
def bound(request: pytest.FixtureRequest) -> BoundMtp:
    return BOUND[request.param]


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = _native.num_threads()
    yield _native.set_num_threads
    _native.set_num_threads(before)


@st.composite
def trees(draw: st.DrawFn, most_rows: int = 24) -> Tree:
    num_rows = draw(st.integers(1, most_rows))
    parents = [-1] + [draw(st.integers(0, row - 1)) for row in range(1, num_rows)]
    tokens = [draw(st.integers(0, VOCAB - 1))]
    for row in range(1, num_rows):
        taken = {tokens[i] for i in range(1, row) if parents[i] == parents[row]}
        tokens.append(draw(st.sampled_from([token for token in range(VOCAB) if token not in taken])))
    return Tree(tuple(tokens), tuple(parents), (1.0,) * num_rows)


def equal(one: NDArray[np.float32], other: NDArray[np.float32]) -> None:
    np.testing.assert_array_equal(np.ascontiguousarray(one).view(np.uint32), np.ascontiguousarray(other).view(np.uint32))


@bitwise
@given(tree=trees(), length=st.one_of(st.integers(0, 40), st.sampled_from([127, 128, 129, 260])), data=st.data())
def test_verify_keep_continue_equals_fresh_rows(bound: BoundMtp, tree: Tree, length: int, data: st.DataObject) -> None:
    """For any tree, beside another slot or not, bit for bit; and so does what follows once a path is kept."""
    layer, given_states = bound.layer, STATES[300 : 300 + len(tree)]
    slot, plain, other = layer.open(), layer.open(), layer.open()
    fed(bound, slot, 0, length)
    fed(bound, plain, 0, length)
    beside = data.draw(st.booleans())
    feeds = [Feed(other, Tree.chain(TOKENS[:3])), Feed(slot, tree)] if beside else [Feed(slot, tree)]
    found = layer.forward(feeds, np.concatenate([STATES[:3], given_states]) if beside else given_states)
    path = (0, *tree.path(data.draw(st.integers(0, len(tree) - 1))))
    for row in path:
        alone = layer.forward([Feed(plain, Tree.root(tree.tokens[row]))], given_states[row : row + 1])
        equal(found.logits([(int(beside), row)]), alone.logits([(0, 0)]))
        equal(found.hidden([(int(beside), row)]), alone.hidden([(0, 0)]))
        layer.keep(plain, (0,))
    layer.keep(slot, path)
    assert layer.length(slot) == length + len(path)
    equal(fed(bound, slot, 330, 335), fed(bound, plain, 330, 335))
    for each in (slot, plain, other):
        layer.close(each)


def test_chunks_and_threads_change_no_bit(bound: BoundMtp, threads: Callable[[int], None]) -> None:
    """300 rows: more than one pass of the engine."""
    threads(1)
    whole = fed(bound, bound.layer.open(), 0, 300)
    threads(3)
    slot = bound.layer.open()
    parts = [fed(bound, slot, *borders) for borders in ((0, 1), (1, 140), (140, 300))]
    equal(np.concatenate(parts), whole)


def test_misuse_is_refused_and_changes_nothing() -> None:
    bound = native()
    slot = bound.layer.open()
    with pytest.raises(ValueError, match=r"hidden has 64 values; these rows need 128"):
        bound.layer.forward([Feed(slot, Tree.chain([1, 2]))], STATES[:1])
    assert fed(bound, slot, 0, 3).shape == (3, 19 + WIDTH)


def test_sizes_that_the_stack_cannot_run_are_refused_by_name() -> None:
    config = MtpConfig(**(SIZES | {"head_dim": 8}))
    with pytest.raises(HeadsError, match="head_size is 8; it must be a multiple of 16"):
        native(heads=trained(config))


def test_an_ordinary_model_takes_no_hidden_states() -> None:
    from native_models import Sizes, make_model

    model = make_model(Sizes())
    one = np.zeros(1, dtype=np.int64)
    with pytest.raises(ValueError, match="hidden has 64 values; these rows need 0"):
        model.forward(
            np.array([model.open()]),
            np.array([0, 1]),
            np.zeros(1, dtype=np.int32),
            -np.ones(1, dtype=np.int32),
            one,
            np.zeros(64, dtype=np.float32),
        )
