"""The residual stream in front of chosen layers of a transformers model, caught while a forward runs.

Heads that were trained together with their model read the stream where it branches off, not behind the last norm. A hook in
front of each watched layer keeps what goes in; in front of the last norm it is the stream behind all layers, and in front of
the output matrix the hidden state of every row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headstart.errors import ModelError
from headstart.target.base import HIDDEN

_FINAL_NORMS = ("norm", "ln_f", "final_layer_norm", "final_layernorm")


def final_norm(decoder: Any) -> Any:
    """The norm behind a decoder's last layer, or None where it has none that is known."""
    return next((module for name in _FINAL_NORMS if (module := getattr(decoder, name, None)) is not None), None)


def layer_list(model: Any) -> tuple[str, nn.ModuleList] | None:
    """The list of a model's layers and its name in the decoder; None where they stand in no list."""
    decoder, count = model.get_decoder(), model.config.get_text_config(decoder=True).num_hidden_layers
    lists = ((name, module) for name, module in decoder.named_children() if isinstance(module, nn.ModuleList))
    return next(((name, module) for name, module in lists if len(module) == count), None)


class Watcher:
    """Holds the streams of the last forward of a model."""

    def __init__(self, model: Any, layers: Sequence[int], name: str) -> None:
        """ModelError if a layer does not exist or the model's layers are not found."""
        self.layers = tuple(layers)
        modules = {HIDDEN: model.get_output_embeddings()} | _places(model, name, [e for e in layers if e != HIDDEN])
        self._streams: list[Tensor | None] = [None] * len(layers)
        self._hooks = [  # in front of the output matrix before the target leaves rows out there
            modules[layer].register_forward_pre_hook(self._keeper(place), with_kwargs=True, prepend=layer == HIDDEN)
            for place, layer in enumerate(layers)
        ]

    @property
    def num_rows(self) -> int:
        """Rows of an entry of the last forward, padding included."""
        stream = self._streams[0]
        assert stream is not None  # a forward comes first
        return int(stream.shape[1])

    def take(self) -> Tensor:
        """The streams side by side, [entries * rows, F * D]."""
        streams = [stream for stream in self._streams if stream is not None]
        self._streams = [None] * len(self._streams)
        return torch.cat(streams, dim=-1).flatten(0, 1)

    def close(self) -> None:
        """Watch no longer."""
        for hook in self._hooks:
            hook.remove()

    def _keeper(self, place: int) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
        def keep(module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
            self._streams[place] = inputs[0] if inputs else named["hidden_states"]

        return keep


def _places(model: Any, name: str, layers: Sequence[int]) -> dict[int, Any]:
    """The modules that the residual stream goes into at these layers."""
    if not layers:
        return {}
    found, norm = layer_list(model), final_norm(model.get_decoder())
    if found is None or norm is None:
        raise ModelError(f"the layers of {name} are not found, so heads cannot read between them; decode with another proposer")
    modules = [*found[1], norm]
    if not all(0 <= layer < len(modules) for layer in layers):
        raise ModelError(f"{name} has {len(found[1])} layers; heads want to read before layer {max(layers)}")
    return {layer: modules[layer] for layer in layers}
