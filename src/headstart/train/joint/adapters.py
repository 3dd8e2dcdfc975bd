"""Low-rank adapters on a frozen model: what of the base learns, apart from its weights.

LoRA (Hu et al. 2022, section 4.1) adds to every linear layer of the decoder a product of two thin matrices,

    y = W x + (alpha / r) U D x        D [r, in] random at first, U [out, r] = 0 at first

so that a fresh adapter changes nothing, and that an adapter which is left away gives the original model back: the teacher of
Medusa-2 costs no second copy of the weights (Cai et al. 2024, section 2.3.2). The final norm's weight (and bias, if it has one)
learns beside them, as a difference; a model's fingerprint (``target/fingerprint.py``) sees that norm, so the result is told
apart from its origin: where rounding to bfloat16 would swallow all of its change, the weight that is nearest to the next value
goes there. The output matrix stays as it is: it may be tied to the embedding, and heads read its rows. (The paper adapts it as
well, and drops out a twentieth of an adapter's inputs, which ours does not.)

:meth:`Adapters.merged` puts W + (alpha / r) U D in the place of W: an ordinary model, without adapters.

Letters: r rank, D the model's width.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from headstart.errors import TrainingError

PREFIX = "base."  # of the names of what of the base learns, beside the names of the heads' tensors
_NORM = f"{PREFIX}norm."
_NORM_NAMES = ("norm", "ln_f", "final_layer_norm", "final_layernorm")


class Adapters:
    """Where a model's adapters sit."""

    def __init__(self, module: Any, rank: int, alpha: float) -> None:
        """``module``: a frozen transformers model. TrainingError if it has no linear layers or no final norm."""
        decoder = module.get_decoder()
        self._linears: dict[str, nn.Linear] = {
            name: layer for name, layer in decoder.named_modules() if isinstance(layer, nn.Linear)
        }
        norm = next((getattr(decoder, name) for name in _NORM_NAMES if hasattr(decoder, name)), None)
        if not self._linears or norm is None:
            what = "linear layers" if not self._linears else "final norm"
            raise TrainingError(f"{type(module).__name__} has no {what} that could learn; train heads alone")
        self._norm: Any = norm
        self._norm_names = [name for name in ("weight", "bias") if getattr(norm, name, None) is not None]
        self._rank, self._scale = rank, alpha / rank

    def fresh(self, seed: int) -> dict[str, Tensor]:
        """Adapters that change nothing, in float32 where the model is."""
        rng = np.random.default_rng([seed, 1])
        tensors = {}
        for name, layer in self._linears.items():
            border = layer.in_features**-0.5
            down = rng.uniform(-border, border, (self._rank, layer.in_features)).astype(np.float32)
            device = layer.weight.device
            tensors[f"{PREFIX}{name}.down"] = torch.from_numpy(down).to(device)
            tensors[f"{PREFIX}{name}.up"] = torch.zeros(layer.out_features, self._rank, device=device)
        for name in self._norm_names:
            tensors[_NORM + name] = torch.zeros_like(getattr(self._norm, name), dtype=torch.float32)
        return tensors

    def scaled(self, tensors: Mapping[str, Tensor], factor: float) -> dict[str, Tensor]:
        """Adapters with which the final norm gives ``factor`` times as much as with these.

        Classes differ in what they do with a norm's weight (Gemma adds 1 to it), so its effect is looked at, on a state of mean
        0 and square 1 and on that state's negative.
        """
        signs = torch.ones_like(self._norm.weight)
        signs[1::2] = -1
        with torch.no_grad(), self.on(tensors):
            one, other = (self._norm(sign * signs[None])[0].float() for sign in (1, -1))
        parts = {"weight": (one - other) / 2 * signs, "bias": (one + other) / 2}
        grown = {_NORM + name: tensors[_NORM + name] + (factor - 1) * parts[name] for name in self._norm_names}
        return dict(tensors) | grown

    @contextmanager
    def on(self, tensors: Mapping[str, Tensor]) -> Iterator[None]:
        """The model computes with these adapters inside the block; autograd sees them."""
        with ExitStack() as stack:
            for name, layer in self._linears.items():
                down, up = tensors[f"{PREFIX}{name}.down"], tensors[f"{PREFIX}{name}.up"]
                stack.callback(layer.register_forward_hook(self._hook(down, up)).remove)
            for name in self._norm_names:
                value = getattr(self._norm, name)
                stack.callback(self._norm._parameters.__setitem__, name, value)
                self._norm._parameters[name] = (value + tensors[_NORM + name]).to(value.dtype)
            yield

    @contextmanager
    def merged(self, tensors: Mapping[str, Tensor]) -> Iterator[None]:
        """The model's own weights are the adapted ones inside the block, rounded to its dtype."""
        places: list[tuple[Tensor, Tensor]] = [(getattr(self._norm, name), tensors[_NORM + name]) for name in self._norm_names]
        for name, layer in self._linears.items():
            product = tensors[f"{PREFIX}{name}.up"].detach() @ tensors[f"{PREFIX}{name}.down"].detach()
            places.append((layer.weight, self._scale * product))
        originals = [parameter.data for parameter, _ in places]
        try:
            for parameter, change in places:
                parameter.data = (parameter.data.float() + change.detach()).to(parameter.dtype)
            change = tensors[f"{_NORM}weight"].detach()
            self._norm.weight.data = told_apart(originals[0], self._norm.weight.data, change)
            yield
        finally:
            for (parameter, _), original in zip(places, originals, strict=True):
                parameter.data = original

    def _hook(self, down: Tensor, up: Tensor) -> Any:
        def hook(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            dtype = output.dtype
            thin = self._scale * functional.linear(inputs[0], down.to(dtype))
            return torch.addmm(output.flatten(0, -2), thin.flatten(0, -2), up.to(dtype).t()).view_as(output)

        return hook


def told_apart(old: Tensor, new: Tensor, change: Tensor) -> Tensor:
    """``new`` weights, unlike the ``old`` ones in bfloat16 if anything changed: if need be by one weight's next value."""
    before = old.to(torch.bfloat16)
    if not before.equal(new.to(torch.bfloat16)) or not bool(change.any()):
        return new
    outward = torch.where(torch.signbit(change) == torch.signbit(before), 1, -1).to(torch.int16)
    beyond = (before.view(torch.int16) + outward).view(torch.bfloat16)
    gaps = (beyond.float() - before.float()).abs()
    nearest = int((change.abs() / gaps).nan_to_num(0.0, 0.0, 0.0).argmax())
    changed = new.clone()
    changed[nearest] = beyond[nearest].to(new.dtype)
    return changed


def split(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The heads' tensors, and those of the base."""
    heads = {name: tensor for name, tensor in tensors.items() if not name.startswith(PREFIX)}
    return heads, {name: tensor for name, tensor in tensors.items() if name.startswith(PREFIX)}
