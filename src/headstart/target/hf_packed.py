"""Linear layers in the layout that oneDNN likes best, for models on a CPU.

PyTorch keeps a weight as plain rows and lets oneDNN rearrange it at every call, which for the few rows of a decoding step costs
more than the product. Rearranged once, a bfloat16 layer of 1 to 16 rows takes a third to a half of the time. The plain weight
stays, for training, for heads and for large numbers of rows, so packed layers take twice the memory. What changes is a layer's
``forward`` alone; its parameters keep their names, and a weight that was changed is packed again.

The operators belong to PyTorch's compiler and may be absent from a build; then nothing is packed.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

_MAX_ROWS = 64  # above, arithmetic dominates and PyTorch's own product is as fast
_ROWS_HINT = 16  # the layout is made for this many
_MAX_BYTES = 4 << 30  # of packed copies


def pack_linears(model: nn.Module) -> int:
    """Pack the linear layers that stand on a CPU in float32 or bfloat16; their number (0 where this is not supported)."""
    layers = [layer for layer in model.modules() if type(layer) is nn.Linear and _suits(layer.weight)]
    room = _MAX_BYTES if _supported() else 0
    packed = 0
    for layer in layers:
        room -= layer.weight.numel() * layer.weight.element_size()
        if room < 0:
            break
        if not isinstance(layer.forward, _Packed):
            vars(layer)["forward"] = _Packed(layer)
        packed += 1
    return packed


@contextmanager
def plain_linears(model: nn.Module) -> Iterator[None]:
    """PyTorch's own products inside the block: what the model costs those who use it without this engine."""
    packed = [layer for layer in model.modules() if isinstance(vars(layer).get("forward"), _Packed)]
    forwards = [vars(layer).pop("forward") for layer in packed]
    try:
        yield
    finally:
        for layer, forward in zip(packed, forwards, strict=True):
            vars(layer)["forward"] = forward


class _Packed:
    """A layer's forward over its packed weight; gradients and many rows go the plain way."""

    def __init__(self, layer: nn.Linear) -> None:
        self._layer = layer
        self._packed: Tensor | None = None
        self._state: tuple[object, ...] = ()

    def __call__(self, x: Tensor) -> Tensor:
        weight, bias = self._layer.weight, self._layer.bias
        rows = x.numel() // x.shape[-1]
        if torch.is_grad_enabled() or not 0 < rows <= _MAX_ROWS or not _suits(weight):
            return nn.functional.linear(x, weight, bias)
        state = (weight.data_ptr(), weight._version, weight.dtype)
        if state != self._state:
            self._packed, self._state = _mkldnn()._reorder_linear_weight(weight.detach(), _ROWS_HINT), state
        product: Tensor = _mkldnn()._linear_pointwise(x, self._packed, bias, "none", [], "")
        return product

    def __deepcopy__(self, memo: dict[int, Any]) -> _Packed:
        return _Packed(copy.deepcopy(self._layer, memo))


def _suits(weight: Tensor) -> bool:
    return weight.dtype in (torch.float32, torch.bfloat16) and weight.device.type == "cpu" and not weight.is_inference()


def _supported() -> bool:
    ops, backend = _mkldnn(), torch.backends.mkldnn
    names = ("_is_mkldnn_bf16_supported", "_reorder_linear_weight", "_linear_pointwise")
    available = backend.is_available() and all(hasattr(ops, name) for name in names)  # type: ignore[no-untyped-call]
    return bool(available and ops._is_mkldnn_bf16_supported())


def _mkldnn() -> Any:
    return torch.ops.mkldnn
