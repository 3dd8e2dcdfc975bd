"""The packed matrices of the native engine on every instruction set of this machine, against float64 and themselves."""

import subprocess
import sys
from collections.abc import Iterator

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart import _native as native

FLOAT_KINDS = ["float32", "bfloat16"]
BLOCK_KINDS = ["q8_0", "q4_0", "q4_1"]
KINDS = FLOAT_KINDS + BLOCK_KINDS
ISAS = native.available_isas()
GGML = {kind: getattr(gguf.GGMLQuantizationType, kind.upper()) for kind in BLOCK_KINDS}
Array = np.ndarray


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    isa, threads = native.isa(), native.num_threads()
    yield
    native.choose_isa(isa)
    native.set_num_threads(threads)


def to_bfloat16(x: Array) -> Array:
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bfloat16(x: Array) -> Array:
    return (x.astype(np.uint32) << 16).view(np.float32)


def encode(weights: Array, kind: str) -> Array:
    """float32 [outputs, inputs] as a file of that kind would hold it: uint8 [bytes]."""
    if kind == "float32":
        stored = weights
    elif kind == "float16":
        stored = weights.astype(np.float16)
    elif kind == "bfloat16":
        stored = to_bfloat16(weights)
    else:
        stored = gguf.quants.quantize(weights, GGML[kind])
    return np.ascontiguousarray(stored).view(np.uint8).reshape(-1)


def decode(source: Array, kind: str, shape: tuple[int, int]) -> Array:
    if kind in GGML:
        return np.asarray(gguf.quants.dequantize(source.reshape(shape[0], -1), GGML[kind]))
    if kind == "bfloat16":
        return from_bfloat16(source.view(np.uint16)).reshape(shape)
    return source.view(kind).reshape(shape).astype(np.float32)


def make(weights: Array, kind: str, order: Array | None = None) -> native.Matrix:
    outputs, inputs = weights.shape
    return native.Matrix(encode(weights, kind), kind, kind, outputs, inputs, order)


def normal(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def as_kernel_sees(x: Array, kind: str) -> Array:
    """Activations after the rounding that the kind's kernel gives them, as float64."""
    if kind == "float32":
        return x.astype(np.float64)
    if kind == "bfloat16":
        return from_bfloat16(to_bfloat16(x)).astype(np.float64)
    blocks = x.reshape(len(x), -1, 32)
    largest = np.abs(blocks).max(-1, keepdims=True)
    values = np.rint(blocks * (np.float32(127) / largest))
    return np.asarray(values * (largest / np.float32(127)).astype(np.float64)).reshape(x.shape)


def assert_close(y: Array, x: Array, weights: Array, tolerance: float = 1e-6) -> None:
    x, weights = x.astype(np.float64), weights.astype(np.float64)
    scale = np.abs(x) @ np.abs(weights).T + 1e-12
    assert np.max(np.abs(y - x @ weights.T) / scale) < tolerance


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", KINDS)
def test_products_equal_float64_on_the_rounded_inputs(isa: str, kind: str) -> None:
    native.choose_isa(isa)
    weights, x, bias = normal(1, 83, 96), normal(2, 40, 96), normal(3, 83)
    matrix = make(weights, kind)
    stored = decode(encode(weights, kind), kind, weights.shape)
    seen = as_kernel_sees(x, kind)
    for num_rows in range(1, 41):
        assert_close(matrix.linear(x[:num_rows]), seen[:num_rows], stored)
    assert_close(matrix.linear(x, bias) - bias.astype(np.float64), seen, stored, 4e-6)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_has_the_same_bits_in_any_batch_with_any_threads(isa: str, kind: str) -> None:
    native.choose_isa(isa)
    assert_same_bits_in_any_batch(make(normal(4, 150, 160), kind), normal(5, 40, 160))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("inputs", [32, 33, 48, 96])
def test_so_it_has_where_some_shapes_take_another_kernel(isa: str, inputs: int) -> None:
    native.choose_isa(isa)
    assert_same_bits_in_any_batch(make(normal(14, 36, inputs), "bfloat16"), normal(15, 40, inputs))


def assert_same_bits_in_any_batch(matrix: native.Matrix, x: Array) -> None:
    native.set_num_threads(1)
    alone = np.concatenate([matrix.linear(x[i : i + 1]) for i in range(40)])
    for threads in (1, 2, 3):
        native.set_num_threads(threads)
        for num_rows in range(1, 41):
            assert np.array_equal(matrix.linear(x[:num_rows]), alone[:num_rows])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", KINDS)
def test_order_and_selection_move_rows_without_changing_a_bit(isa: str, kind: str) -> None:
    native.choose_isa(isa)
    weights, x = normal(6, 75, 64), normal(7, 3, 64)
    plain, order = make(weights, kind), np.random.default_rng(8).permutation(75)
    y = plain.linear(x)
    assert np.array_equal(make(weights, kind, order).linear(x), y[:, order])
    chosen = np.array([74, 0, 0, 31, 33])
    assert np.array_equal(plain.select(chosen).linear(x), y[:, chosen])
    assert np.array_equal(plain.select(chosen).rows(np.arange(5)), plain.rows(chosen))


@pytest.mark.parametrize("isa", ISAS)
@given(
    outputs=st.integers(1, 70),
    inputs=st.one_of(st.integers(1, 70), st.sampled_from([32, 64])),
    num_rows=st.integers(0, 40),
    kind=st.sampled_from(KINDS),
)
@settings(max_examples=60, deadline=None)
def test_odd_sizes(isa: str, outputs: int, inputs: int, num_rows: int, kind: str) -> None:
    native.choose_isa(isa)
    inputs = inputs if kind in FLOAT_KINDS else (inputs + 31) // 32 * 32
    weights, x = normal(outputs, outputs, inputs), normal(inputs + 100, num_rows, inputs)
    matrix, stored = make(weights, kind), decode(encode(weights, kind), kind, weights.shape)
    assert matrix.shape == (outputs, inputs)
    assert np.array_equal(matrix.rows(np.arange(outputs)), stored)
    if num_rows:
        assert_close(matrix.linear(x), as_kernel_sees(x, kind), stored)
    assert matrix.linear(x).shape == (num_rows, outputs)


@pytest.mark.parametrize("source", [*KINDS, "float16"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_source_becomes_every_kind_or_is_refused(source: str, kind: str) -> None:
    weights = normal(9, 20, 64)
    stored = encode(weights, source)
    if kind in ("q4_0", "q4_1") and kind != source:
        with pytest.raises(ValueError, match="not quantised to"):
            native.Matrix(stored, source, kind, 20, 64)
        return
    matrix = native.Matrix(stored, source, kind, 20, 64)
    exact = decode(stored, source, weights.shape)
    rows = matrix.rows(np.arange(20))
    if kind == "bfloat16":
        assert np.array_equal(rows, from_bfloat16(to_bfloat16(exact)))
    elif kind == "q8_0" and source != "q8_0":
        blocks, stored_blocks = exact.reshape(20, 2, 32), rows.reshape(20, 2, 32)
        scales = (np.abs(blocks).max(-1, keepdims=True) / np.float32(127)).astype(np.float16).astype(np.float32)
        assert np.array_equal(stored_blocks, np.clip(np.rint(blocks / scales), -127, 127) * scales)
    else:
        assert np.array_equal(rows, exact)
    assert matrix.kind == kind


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", BLOCK_KINDS)
def test_extreme_bytes_are_summed_exactly(isa: str, kind: str) -> None:
    native.choose_isa(isa)
    scales = np.float16(1).tobytes() * (2 if kind == "q4_1" else 1)
    for byte in (0x00, 0x7F, 0x80, 0xFF):
        block = scales + bytes([byte]) * (32 if kind == "q8_0" else 16)
        source = np.frombuffer(block * 2 * 17, np.uint8)
        matrix = native.Matrix(source, kind, kind, 17, 64)
        for sign in (1, -1):
            x = np.full((1, 64), sign * 127, np.float32)
            assert np.array_equal(matrix.linear(x), x.astype(np.float64) @ matrix.rows(np.arange(17)).T.astype(np.float64))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_shows_in_its_row_alone(isa: str, kind: str, value: float) -> None:
    native.choose_isa(isa)
    matrix, x = make(np.abs(normal(10, 20, 64)) + 1, kind), normal(11, 3, 64)
    clean = matrix.linear(x)
    x[1, 40] = value
    y = matrix.linear(x)
    assert not np.isfinite(y[1]).any()
    assert np.array_equal(y[[0, 2]], clean[[0, 2]])


@pytest.mark.parametrize("isa", ISAS)
def test_zero_and_tiny_activations_give_zero_in_blocks(isa: str) -> None:
    native.choose_isa(isa)
    matrix = make(normal(12, 20, 64), "q4_1")
    assert not matrix.linear(np.zeros((2, 64), np.float32)).any()
    assert np.abs(matrix.linear(np.full((2, 64), 1e-40, np.float32))).max() < 1e-30


@pytest.mark.skipif("amx" not in ISAS, reason="this machine has no tile unit")
def test_a_process_that_may_not_use_the_tile_unit_takes_the_next_instruction_set() -> None:
    refused = """
import ctypes
class Stack(ctypes.Structure):  # of signal handlers: too small for the tiles, so the system cannot allow them
    _fields_ = [("memory", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]
size = 4096
memory = ctypes.create_string_buffer(size)
assert ctypes.CDLL(None).sigaltstack(ctypes.byref(Stack(ctypes.addressof(memory), 0, size)), None) == 0
from headstart import _native
print(_native.available_isas())
"""
    answer = subprocess.run([sys.executable, "-c", refused], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == str([isa for isa in ISAS if isa != "amx"])


def test_wrong_sizes_are_refused() -> None:
    source = np.zeros(4 * 64, np.uint8)
    for outputs, inputs in [(0, 64), (-1, 64), (4, 0), (4, -64), (2**40, 2**40), (2**62, 4), (4, 2**62), (5, 16), (3, 16)]:
        with pytest.raises(ValueError, match=r"bytes|cannot have"):
            native.Matrix(source, "float32", "float32", outputs, inputs)
    with pytest.raises(ValueError, match="multiple of 32"):
        native.Matrix(np.zeros(34, np.uint8), "q8_0", "q8_0", 1, 31)
    with pytest.raises(ValueError, match="multiple of 32"):
        native.Matrix(np.zeros(124, np.uint8), "float32", "q8_0", 1, 31)
    with pytest.raises(TypeError):
        native.Matrix(source, "float32", "float32", 2**70, 1)
    with pytest.raises(TypeError):
        native.Matrix(np.zeros((4, 64), np.float32), "float32", "float32", 4, 64)


def test_unknown_kinds_are_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"q6_k.*q4_1"):
        native.Matrix(np.zeros(4, np.uint8), "q6_k", "float32", 1, 1)
    with pytest.raises(ValueError, match=r"float16.*choose one of.*bfloat16"):
        native.Matrix(np.zeros(2, np.uint8), "float16", "float16", 1, 1)


def test_wrong_rows_and_shapes_are_refused() -> None:
    matrix, weights = make(normal(13, 20, 64), "float32"), encode(normal(13, 20, 64), "float32")
    for bad in ([20], [-1], [0, 2**62]):
        with pytest.raises(IndexError, match="of a matrix of 20 rows"):
            matrix.rows(np.array(bad))
        with pytest.raises(IndexError, match="of a matrix of 20 rows"):
            matrix.select(np.array(bad))
    with pytest.raises(IndexError):
        native.Matrix(weights, "float32", "float32", 20, 64, np.arange(1, 21))
    with pytest.raises(ValueError, match="`order` has 19"):
        native.Matrix(weights, "float32", "float32", 20, 64, np.arange(19))
    with pytest.raises(ValueError, match="`order` is empty"):
        native.Matrix(weights, "float32", "float32", 20, 64, np.arange(0))
    with pytest.raises(ValueError, match="outputs"):
        matrix.select(np.arange(0))
    with pytest.raises(ValueError, match="64 inputs"):
        matrix.linear(np.zeros((1, 63), np.float32))
    with pytest.raises(ValueError, match="bias of 19"):
        matrix.linear(np.zeros((1, 64), np.float32), np.zeros(19, np.float32))


def test_weights_that_q8_0_cannot_hold_are_refused() -> None:
    for value, reason in [(np.nan, "not a number"), (np.inf, "infinite"), (1e30, "too large")]:
        weights = normal(14, 2, 32)
        weights[1, 3] = value
        with pytest.raises(ValueError, match=reason):
            native.Matrix(encode(weights, "float32"), "float32", "q8_0", 2, 32)


def test_reading_gives_a_time_for_each_repeat_and_refuses_nonsense() -> None:
    assert len(native.read_times(1 << 20, 3)) == 3
    for num_bytes, repeats in [(0, 1), (-1, 1), (2**62, 1), (1 << 20, 0)]:
        with pytest.raises(ValueError, match="reading needs"):
            native.read_times(num_bytes, repeats)
