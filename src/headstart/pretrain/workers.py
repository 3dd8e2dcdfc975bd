"""The processes of a run: one, or those that ``accelerate launch`` started.

Each process holds the whole model and computes its share of every batch; gradients are summed over all of them before the step
(data parallelism, as DistributedDataParallel does it). The sum is taken once, behind all heads' backward passes: a wrapper that
reduces during a backward pass would do so once a head. Every process then makes the same step with the same numbers, so weights
stay equal without being sent.

Sharded weights (FSDP, DeepSpeed) are refused: their wrappers expect one backward pass a forward pass, and a model whose trunk
and optimiser do not fit one device is beyond what is trained here.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from headstart.errors import INSTALL_TORCH, RequestError, TrainingError


class Workers:
    """The processes of a run, seen from one of them."""

    def __init__(self, device: str) -> None:
        """RequestError where the launcher was told what cannot take effect, or there is no such device."""
        if device == "cuda" and not torch.cuda.is_available():
            raise RequestError("This machine has no CUDA device that PyTorch can use; choose the device cpu")
        self._accelerator: Any = None
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            self._accelerator = _accelerator(device)
        self.rank = 0 if self._accelerator is None else int(self._accelerator.process_index)
        self.count = 1 if self._accelerator is None else int(self._accelerator.num_processes)
        self.device = torch.device(device) if self._accelerator is None else self._accelerator.device

    @property
    def is_first(self) -> bool:
        """Whether this process writes files and reports."""
        return self.rank == 0

    def share(self, batch: int, micro_batch: int) -> list[int]:
        """Where in a batch this process's parts begin, ``micro_batch`` sequences each; RequestError if it cannot be divided."""
        together = micro_batch * self.count
        if batch % together:
            raise RequestError(
                f"batch is {batch}; with {self.count} processes it must be a multiple of {together}: micro_batch times that"
            )
        return list(range(self.rank * micro_batch, batch, together))

    def add_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Sum the gradients over all processes, in place."""
        if self._accelerator is None:
            return
        found = [parameter.grad for parameter in parameters if parameter.grad is not None]
        flat = self.add(torch.cat([gradient.flatten() for gradient in found]))
        start = 0
        for gradient in found:
            gradient.copy_(flat[start : start + gradient.numel()].view_as(gradient))
            start += gradient.numel()

    def add(self, values: Tensor) -> Tensor:
        """The sum over all processes."""
        if self._accelerator is None:
            return values
        total: Tensor = self._accelerator.reduce(values, reduction="sum")
        return total

    def wait(self) -> None:
        """Until every process is here."""
        if self._accelerator is not None:
            self._accelerator.wait_for_everyone()


def _accelerator(device: str) -> Any:
    try:
        from accelerate import Accelerator
    except ImportError as error:
        raise TrainingError(f"Several processes need accelerate: {INSTALL_TORCH}") from error
    accelerator = Accelerator(cpu=device == "cpu")
    kind = str(accelerator.distributed_type.value)
    if kind not in ("MULTI_CPU", "MULTI_GPU"):
        raise RequestError(f"accelerate was launched with {kind}; pretraining runs as MULTI_CPU or MULTI_GPU (DDP)")
    if accelerator.mixed_precision != "no":
        raise RequestError(
            f"accelerate was launched with mixed precision {accelerator.mixed_precision}, which has no effect here; "
            "leave it out and set --precision"
        )
    return accelerator
