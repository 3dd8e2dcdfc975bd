"""The first layers of a model as a model of their own: the cheapest draft model there is, since it shares the target's weights.

Early exit without training (compare LayerSkip, Elhoushi et al. 2024, which trains for it): the hidden state behind layer n goes
straight to the final norm and the output matrix. A model that was not trained for that guesses poorly; what the draft is good
for is a draft model without a second file, and a check that wrong guesses never change the text.
"""

from __future__ import annotations

import copy
from typing import Any

from torch import nn

from headstart.errors import ModelError, RequestError
from headstart.target.hf import HfTarget
from headstart.target.hf_watch import layer_list


def first_layers(target: HfTarget, count: int) -> HfTarget:
    """A target of the first ``count`` layers; weights are shared, caches are not. RequestError if there are not as many."""
    model = target.model
    decoder = model.get_decoder()
    num_layers = model.config.get_text_config(decoder=True).num_hidden_layers
    if not 0 < count < num_layers:
        raise RequestError(
            f"{count} layers of {target.name} were asked for; it has {num_layers}, so 1 to {num_layers - 1} make a draft"
        )
    found = layer_list(model)
    if found is None:
        raise ModelError(f"the layers of {target.name} stand in no list; use another draft model")
    place, layers = found
    shallow_decoder = _with_children(decoder, **{place: nn.ModuleList(list(layers)[:count])})
    name = next(name for name, module in model.named_modules() if module is decoder)
    if "." in name or not name:
        raise ModelError(f"the decoder of {target.name} is nested too deeply to be cut; use another draft model")
    shallow = _with_children(model, **{name: shallow_decoder})
    shallow.config = shallow_decoder.config = _shortened(model.config, count)
    with target.lock:  # it is tried out at once, and its hooks stand on the target's modules
        return HfTarget(
            shallow,
            name=f"{target.name}, first {count} layers",
            end_tokens=target.end_tokens,
            vocab_size=target.vocab_size,
            lock=target.lock,
        )


def _with_children(module: Any, **children: nn.Module) -> Any:
    """A module that shares everything with ``module`` but for these children."""
    twin = copy.copy(module)
    twin.__dict__ = {**vars(module), "_modules": {**module._modules, **children}}
    return twin


def _shortened(config: Any, count: int) -> Any:
    config = copy.deepcopy(config)
    text = config.get_text_config(decoder=True)
    text.num_hidden_layers = count
    if getattr(text, "layer_types", None):
        text.layer_types = text.layer_types[:count]
    return config
