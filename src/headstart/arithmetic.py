"""Logarithm, exponential and sum that are the same to the last bit on every machine and in every language.

The pick of the sampler (``sampling.py``) has to come out alike in numpy and in C++ (``csrc/kernels/vocabulary.inl``), but
``log`` and ``exp`` of numpy and of the C libraries differ in their last bits, and numpy does not promise the order of its sums.
IEEE 754 promises addition, subtraction, multiplication and division, so everything here is made of these and of moves of bits,
in one written order, without fused operations. Both functions are within 5e-16 of the truth, relative to it.

* ``log``: x = m * 2^k with m in [sqrt(1/2), sqrt(2)), and log m = 2 atanh(s) with s = (m - 1) / (m + 1), by the series of
  atanh up to s^19. For positive numbers that are not denormal.
* ``exp``: x = k log 2 + r with abs(r) <= log(2) / 2, and exp r by its series up to r^13. For numbers up to 0; 0 below -708.
* ``total``: element i belongs to lane i mod 512; a lane adds its elements in ascending order; then the upper half of the lanes
  is added to the lower half until one is left.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LANES = 512
LOWEST = -708.0  # exp of it is still a normal number
_LOG2_HIGH = float.fromhex("0x1.62e42fefa2p-1")  # 40 bits: times a whole number below 2^12 it is exact
_LOG2_LOW = float.fromhex("0x1.9ef35793c7673p-41")
_LOG2_INVERSE = float.fromhex("0x1.71547652b82fep+0")
_SQRT_HALF = np.uint64(0x3FE6A09E667F3BCD)
_ONE = np.uint64(0x3FF0000000000000)
_MANTISSA_BITS = np.uint64(52)
_ROUNDER = 1.5 * 2.0**52  # added to a small number it leaves the nearest whole number in the low bits
_ATANH = [2 / (2 * i + 1) for i in range(9, 0, -1)]  # of s^19, s^17, ..., s^3
_EXP = [1 / math.factorial(i) for i in range(13, -1, -1)]  # of r^13, ..., 1
_BLOCK = 8192  # elements at a time, so that what lies in between stays in the cache


def log(x: Floats) -> Floats:
    """Natural logarithms of positive normal numbers, of any shape."""
    return _in_blocks(_log, x)


def exp(x: Floats) -> Floats:
    """Exponentials of numbers up to 0 (minus infinity included), of any shape."""
    return _in_blocks(_exp, x)


def total(x: Floats) -> Floats:
    """Sums [..., 1] over the last axis of numbers that are not negative [..., n]."""
    missing = -x.shape[-1] % LANES
    if missing:
        x = np.concatenate([x, np.zeros((*x.shape[:-1], missing))], axis=-1)
    lanes = np.zeros((*x.shape[:-1], LANES))
    for begin in range(0, x.shape[-1], LANES):
        lanes += x[..., begin : begin + LANES]
    while lanes.shape[-1] > 1:
        half = lanes.shape[-1] // 2
        lanes = lanes[..., :half] + lanes[..., half:]
    return lanes


def _in_blocks(function: Callable[[Floats, Floats], None], x: Floats) -> Floats:
    flat = np.ascontiguousarray(x).reshape(-1)
    out = np.empty_like(flat)
    for begin in range(0, flat.size, _BLOCK):
        function(flat[begin : begin + _BLOCK], out[begin : begin + _BLOCK])
    return out.reshape(np.shape(x))


def _log(x: Floats, out: Floats) -> None:
    bits = x.view(np.uint64)
    biased = (bits + (_ONE - _SQRT_HALF)) >> _MANTISSA_BITS  # k + 1023
    m = (bits + _ONE - (biased << _MANTISSA_BITS)).view(np.float64)
    s = (m - 1.0) / (m + 1.0)
    _horner(_ATANH, s * s, out)
    out *= s * s
    out *= s
    out += s + s
    k = biased.astype(np.float64)
    k -= 1023.0
    out += k * _LOG2_LOW
    out += k * _LOG2_HIGH


def _exp(x: Floats, out: Floats) -> None:
    r = np.maximum(x, LOWEST)
    shifted = r * _LOG2_INVERSE
    shifted += _ROUNDER
    k = shifted - _ROUNDER
    r -= k * _LOG2_HIGH
    r -= k * _LOG2_LOW
    _horner(_EXP, r, out)
    out *= ((shifted.view(np.uint64) + np.uint64(1023)) << _MANTISSA_BITS).view(np.float64)
    out[x < LOWEST] = 0.0


def _horner(coefficients: list[float], x: Floats, out: Floats) -> None:
    np.multiply(x, coefficients[0], out=out)
    for coefficient in coefficients[1:-1]:
        out += coefficient
        out *= x
    out += coefficients[-1]
