"""The same position has the same bits, however it was computed; and a slot holds what was kept, nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headstart import _native
from native_models import Array, Sizes, chain, feed, forward, keep, make_model, random_weights, tensors

KINDS = [("float32", "float32"), ("bfloat16", "bfloat16"), ("q4_1", "bfloat16"), ("q8_0", "float32")]
SIZES = Sizes(windows=(0, 21), num_heads=6, num_kv_heads=2, biases=("q", "k", "v"))
IDS = [int(token) for token in np.random.default_rng(2).integers(0, 50, 400)]
MODELS = {kinds: make_model(SIZES, *kinds) for kinds in KINDS}
MODELS["wide heads", "bfloat16"] = make_model(replace(SIZES, head_size=32, windows=(0, 45)), "bfloat16", "bfloat16")
MODELS["no rotary", "bfloat16"] = make_model(replace(SIZES, rotary=(True, False)), "bfloat16", "bfloat16")

Shape = tuple[list[int], list[int]]  # tokens, parents


@pytest.fixture(params=MODELS, ids="-".join)
def model(request: pytest.FixtureRequest) -> _native.Model:
    return MODELS[request.param]


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = _native.num_threads()
    yield _native.set_num_threads
    _native.set_num_threads(before)


@st.composite
def trees(draw: st.DrawFn, most_rows: int = 40) -> Shape:
    num_rows = draw(st.integers(1, most_rows))
    tokens = draw(st.lists(st.integers(0, 49), min_size=num_rows, max_size=num_rows))
    deep = draw(st.booleans())
    parents = [-1] + [draw(st.integers(max(0, row - 3) if deep else 0, row - 1)) for row in range(1, num_rows)]
    return tokens, parents


def path_to(row: int, parents: Sequence[int]) -> list[int]:
    path = []
    while row >= 0:
        path.append(row)
        row = parents[row]
    return path[::-1]


def opened(model: _native.Model, tokens: Sequence[int]) -> int:
    slot: int = model.open()
    if tokens:
        feed(model, slot, tokens)
    return slot


def equal(one: Array, other: Array) -> None:
    np.testing.assert_array_equal(one.view(np.uint32), other.view(np.uint32))


LENGTHS = st.one_of(st.integers(0, 40), st.sampled_from([111, 112, 113, 126, 127, 128, 129, 143, 260]))
bitwise = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@bitwise
@given(tree=trees(), length=LENGTHS, data=st.data())
def test_every_path_of_a_tree_equals_plain_steps(model: _native.Model, tree: Shape, length: int, data: st.DataObject) -> None:
    """And so does what follows once the path is kept."""
    tokens, parents = tree
    slot, plain = opened(model, IDS[:length]), opened(model, IDS[:length])
    result = forward(model, (slot, tokens, parents, 0))
    path = path_to(data.draw(st.integers(0, len(tokens) - 1)), parents)
    for row in path:
        logits, hidden = feed(model, plain, [tokens[row]])
        equal(result.logits[row], logits[0])
        equal(result.hidden[row], hidden[0])
    kept = path[: data.draw(st.integers(0, len(path)))]
    keep(model, slot, kept)
    assert model.length(slot) == length + len(kept)
    fresh = opened(model, IDS[:length] + [tokens[row] for row in kept])
    equal(feed(model, slot, IDS[300:305])[0], feed(model, fresh, IDS[300:305])[0])
    for each in (slot, plain, fresh):
        model.close(each)


@bitwise
@given(cuts=st.lists(st.integers(1, 299), max_size=6))
def test_a_prompt_in_chunks_equals_the_whole(model: _native.Model, cuts: list[int]) -> None:
    """300 rows: more than one pass of the engine, too."""
    whole, chunked = model.open(), model.open()
    logits, _ = feed(model, whole, IDS[:300])
    borders = [0, *sorted(set(cuts)), 300]
    parts = [feed(model, chunked, IDS[begin:end])[0] for begin, end in pairwise(borders)]
    equal(np.concatenate(parts), logits)
    model.close(whole)
    model.close(chunked)


@bitwise
@given(batch=st.lists(st.tuples(trees(), LENGTHS), min_size=2, max_size=5))
def test_slots_of_one_batch_do_not_see_each_other(model: _native.Model, batch: list[tuple[Shape, int]]) -> None:
    slots = [opened(model, IDS[:length]) for _, length in batch]
    together = forward(model, *[(slot, *tree, 0) for slot, (tree, _) in zip(slots, batch, strict=True)])
    place = 0
    for slot, (tree, _) in zip(slots, batch, strict=True):
        keep(model, slot, ())
        alone = forward(model, (slot, *tree, 0))
        equal(together.logits[place : place + len(tree[0])], alone.logits)
        place += len(tree[0])
        model.close(slot)


@pytest.mark.parametrize("isa", _native.available_isas())
@pytest.mark.parametrize("kv_dtype", ["float32", "bfloat16"])
def test_every_instruction_set_keeps_its_own_bits(isa: str, kv_dtype: str, threads: Callable[[int], None]) -> None:
    """Prompt, tree, plain steps; one, two and three threads."""
    before = _native.isa()
    _native.choose_isa(isa)
    model = make_model(SIZES, "bfloat16", kv_dtype)
    _native.choose_isa(before)
    tree = ([1, 2, 3, 4, 5, 6, 7], [-1, 0, 0, 1, 2, 2, 4])
    seen = []
    for count in (1, 2, 3):
        threads(count)
        slot = opened(model, IDS[:127])
        drafted = forward(model, (slot, *tree, 0))
        keep(model, slot, (0, 2, 4, 6))
        plain = np.concatenate([feed(model, slot, [token])[0] for token in IDS[127:130]])
        whole = opened(model, IDS[:127])
        steps, _ = feed(model, whole, [1, 3, 5, 7, *IDS[127:130]])
        equal(drafted.logits[[0, 2, 4, 6]], steps[:4])
        equal(plain, steps[4:])
        seen.append(np.concatenate([drafted.logits, plain]))
    equal(seen[0], seen[1])
    equal(seen[0], seen[2])


def test_a_fork_goes_its_own_way(model: _native.Model) -> None:
    slot = opened(model, IDS[:130])
    twin = model.fork(slot)
    assert model.length(twin) == 130
    feed(model, slot, IDS[200:220])
    equal(feed(model, twin, IDS[130:140])[0], feed(model, opened(model, IDS[:130]), IDS[130:140])[0])
    model.close(slot)
    equal(feed(model, twin, IDS[140:150])[0], feed(model, opened(model, IDS[:140]), IDS[140:150])[0])


@pytest.mark.parametrize("length", [1, 15, 16, 17, 127, 128, 129, 200])
def test_memory_that_another_slot_held_changes_nothing(length: int) -> None:
    fresh, used = (make_model(SIZES, "bfloat16", "bfloat16") for _ in range(2))
    for _ in range(2):
        gone = [opened(used, IDS[::-1]) for _ in range(3)]
        for slot in gone:
            used.close(slot)
    assert used.cache_bytes() == 0
    slots = {model: opened(model, IDS[:length]) for model in (fresh, used)}
    twin = used.fork(slots[used])
    expected = feed(fresh, slots[fresh], IDS[length:300])
    for slot in (twin, slots[used]):
        for mine, own in zip(feed(used, slot, IDS[length:300]), expected, strict=True):
            np.testing.assert_array_equal(mine, own)


def test_a_fork_between_forward_and_keep_has_the_committed_rows_alone(model: _native.Model) -> None:
    slot = opened(model, IDS[:20])
    forward(model, chain(slot, IDS[200:205]))
    twin = model.fork(slot)
    keep(model, slot, range(5))
    assert (model.length(slot), model.length(twin)) == (25, 20)
    equal(feed(model, twin, IDS[20:25])[0], feed(model, opened(model, IDS[:20]), IDS[20:25])[0])


@pytest.mark.parametrize(("kv_dtype", "head_size"), [("float32", 16), ("bfloat16", 16), ("bfloat16", 32)])
def test_nothing_that_was_forgotten_is_seen(kv_dtype: str, head_size: int) -> None:
    """Forgotten rows were full of infinities: one of them times a weight of zero would be NaN."""
    sizes = Sizes(tied=False, head_size=head_size)
    weights = random_weights(sizes)
    weights["embedding"][49] = np.inf
    model = _native.Model(sizes.settings(kv_dtype), tensors(weights, "float32"))
    tokens = [token % 49 for token in IDS]
    for length in (20, 21, 127, 128):
        slot = opened(model, tokens[:length])
        poison = forward(model, (slot, [3, *[49] * 40], [-1, *range(20), *[0] * 20], 0))
        assert np.isfinite(poison.logits[0]).all() and not np.isfinite(poison.logits[1:]).any()
        keep(model, slot, (0,))
        drafted = forward(model, (slot, [5, 6, 7, 8], [-1, 0, 0, 2], 0)).logits
        assert np.isfinite(drafted).all()
        keep(model, slot, (0, 2, 3))
        continued, _ = feed(model, slot, [7])
        equal(continued, feed(model, opened(model, [*tokens[:length], 3, 5, 7, 8]), [7])[0])


def test_memory_grows_with_the_rows_and_goes_with_the_slot() -> None:
    model = make_model(SIZES)
    assert model.cache_bytes() == 0
    slot = model.open()
    assert model.cache_bytes() == 0
    held = []
    for _ in range(4):
        feed(model, slot, IDS[:100])
        held.append(model.cache_bytes())
    row = 2 * SIZES.num_layers * SIZES.num_kv_heads * SIZES.head_size * 4
    assert all(100 * i * row <= size <= (100 * i + 128) * row for i, size in enumerate(held, start=1))
    forward(model, (slot, [1] * 1000, [-1, *[0] * 999], 1000))
    assert model.cache_bytes() >= held[-1] + 998 * row
    keep(model, slot, (0, 999))
    assert model.cache_bytes() == held[-1]
    model.close(slot)
    assert model.cache_bytes() == 0


def test_half_precision_halves_the_memory() -> None:
    held = []
    for kv_dtype in ("float32", "bfloat16"):
        model = make_model(SIZES, "float32", kv_dtype)
        opened(model, IDS[:200])
        held.append(model.cache_bytes())
    assert held[0] == 2 * held[1]


def test_paths_that_are_none_are_refused_and_change_nothing(model: _native.Model) -> None:
    slot = opened(model, IDS[:5])
    forward(model, (slot, [1, 2, 3, 4], [-1, 0, 0, 2], 0))
    for path in ((1,), (0, 3), (0, 1, 2), (0, 0), (-1,), (4,), (2**62,), (0, 2, 3, 4)):
        with pytest.raises(ValueError, match="does not continue a path"):
            keep(model, slot, path)
        assert model.length(slot) == 5
    keep(model, slot, (0, 2, 3))
    assert model.length(slot) == 8
    equal(feed(model, slot, IDS[:3])[0], feed(model, opened(model, [*IDS[:5], 1, 3, 4]), IDS[:3])[0])


def test_forward_and_keep_alternate(model: _native.Model) -> None:
    slot = opened(model, IDS[:5])
    with pytest.raises(ValueError, match="no forward to keep"):
        keep(model, slot, ())
    forward(model, chain(slot, [1, 2]))
    with pytest.raises(ValueError, match="waits for keep"):
        forward(model, chain(slot, [3]))
    keep(model, slot, ())
    with pytest.raises(ValueError, match="no forward to keep"):
        keep(model, slot, ())
    equal(feed(model, slot, [3])[0], feed(model, opened(model, IDS[:5]), [3])[0])


def test_the_context_ends_where_the_settings_say() -> None:
    model = make_model(Sizes(context_limit=20))
    slot = opened(model, IDS[:18])
    with pytest.raises(ValueError, match="context ends at 20"):
        forward(model, (slot, [1, 2, 3], [-1, 0, 1], 0))
    forward(model, (slot, [1, 2, 3], [-1, 0, 0], 0))
    keep(model, slot, (0, 2))
    with pytest.raises(ValueError, match="context ends at 20"):
        forward(model, chain(slot, [1]))
    assert model.length(slot) == 20


def test_slots_that_are_not_open_are_refused(model: _native.Model) -> None:
    slot = model.open()
    model.close(slot)
    for call in (model.close, model.fork, model.length):
        for number in (slot, -1, 2**62):
            with pytest.raises(ValueError, match="not open"):
                call(number)
    with pytest.raises(ValueError, match="not open"):
        keep(model, slot, ())
    other = model.open()
    with pytest.raises(ValueError, match="not open"):
        forward(model, chain(other, [1]), chain(slot, [1]))
    with pytest.raises(ValueError, match="once in a batch"):
        forward(model, chain(other, [1]), chain(other, [1]))
    assert feed(model, other, [1])[0].shape == (1, 50)  # nothing is pending


def _arrays(**changes: Sequence[int]) -> list[Array]:
    good: dict[str, Sequence[int]] = {
        "slots": [0],
        "row_starts": [0, 3],
        "tokens": [1, 2, 3],
        "parents": [-1, 0, 0],
        "first_scored": [0],
    }
    types = {"tokens": np.int32, "parents": np.int32}
    return [np.array(value, dtype=types.get(name, np.int64)) for name, value in (good | changes).items()]


@pytest.mark.parametrize(
    "changes",
    [
        {"slots": []},
        {"slots": [], "row_starts": [0], "tokens": [], "parents": [], "first_scored": []},
        {"row_starts": [0]},
        {"row_starts": [0, 2]},
        {"row_starts": [1, 3]},
        {"row_starts": [0, 4]},
        {"row_starts": [-1, 3]},
        {"row_starts": [0, 3, 3]},
        {"row_starts": [0, 0], "tokens": [], "parents": []},
        {"slots": [0, 1], "row_starts": [0, 5, 3], "first_scored": [0, 0]},
        {"tokens": [1, 2]},
        {"tokens": [1, 2, 50]},
        {"tokens": [-1, 2, 3]},
        {"tokens": [2**31 - 1, 2, 3]},
        {"parents": [0, 0, 0]},
        {"parents": [-1, -1, 0]},
        {"parents": [-1, 1, 0]},
        {"parents": [-1, 2, 0]},
        {"parents": [-1, 0, -2]},
        {"parents": [-1, 0, 2**31 - 1]},
        {"parents": [-1, 0]},
        {"first_scored": [-1]},
        {"first_scored": [4]},
        {"first_scored": []},
        {"slots": [2**62]},
        {"slots": [-1]},
    ],
)
def test_arrays_that_are_no_forest_are_refused_and_change_nothing(changes: dict[str, Sequence[int]]) -> None:
    model = make_model(Sizes())
    assert model.open() == 0
    assert model.open() == 1
    with pytest.raises(ValueError, match=r"\w"):
        model.forward(*_arrays(**changes))
    assert [model.length(slot) for slot in (0, 1)] == [0, 0]
    assert model.forward(*_arrays()).num_rows == 3
