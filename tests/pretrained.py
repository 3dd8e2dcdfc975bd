"""Tiny models with n future tokens and random weights, saved as pretraining saves them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headstart.heads.base import Acceptance
from headstart.pretrain.folder import save_model
from headstart.pretrain.model import FutureModel
from headstart.pretrain.settings import PretrainSettings
from headstart.pretrain.sizes import ModelSizes
from headstart.pretrain.tokens import byte_tokenizer

RECORD: dict[str, Any] = dict.fromkeys(("command", "headstart", "versions", "machine", "data", "settings"))
SMALL: dict[str, Any] = {"width": 64, "layers": 4, "heads": 2, "kv_heads": 1, "context": 96}


def tiny_model(variant: str = "parallel", future_tokens: int = 3, seed: int = 0, **options: Any) -> FutureModel:
    """Random weights, large enough that every guess depends on the text before it."""
    options = SMALL | ({} if future_tokens == 1 else {"variant": variant}) | options
    settings = PretrainSettings(future_tokens=future_tokens, **options)
    model = FutureModel(ModelSizes.of(settings, byte_tokenizer().vocab_size), seed)
    with torch.no_grad():
        for values in model.parameters():
            values.mul_(8.0) if values.ndim == 2 else values.mul_(1 + 0.1 * torch.sin(torch.arange(len(values))))
    return model


def saved(folder: Path, model: FutureModel) -> str:
    """The model's folder."""
    further = model.sizes.num_further
    acceptance = Acceptance(((0.5, 0.2),) * further, (0.5,) * further) if further else None
    save_model(folder, model, byte_tokenizer(), acceptance, RECORD)
    return str(folder)


def all_logits(model: FutureModel, text: list[int]) -> list[NDArray[np.float32]]:
    """Logits [S, V] of each head over a text, the next token's first; the tokens behind it are not looked at."""
    return logits_given(model, text, len(text))


@torch.no_grad()
def logits_given(model: FutureModel, tokens: list[int], length: int) -> list[NDArray[np.float32]]:
    """As :func:`all_logits` over the first ``length`` tokens, where heads may read those behind them."""
    missing = length + model.sizes.num_future - len(tokens)
    rows = model.rows(torch.tensor([[*tokens, *([0] * missing)]])[:, : length + model.sizes.num_future])
    found = {ahead: model.logits(states) for ahead, states in model.states(rows)}
    return [found[ahead].numpy() for ahead in sorted(found)]
