"""A tuned base is made as sure as it was: the factor on its logits, and where it goes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from chat_model import tiny_base
from headstart.train.base import FrozenModel
from headstart.train.joint.adapters import Adapters
from headstart.train.joint.calibration import Calibration, nearest_factor
from headstart.train.joint.objective import divergence, some_of, states_of
from test_train_heads import documents
from test_train_joint import learned

MODEL = tiny_base().model
TEXTS = documents(12)


def states(model: FrozenModel = MODEL) -> Tensor:
    with torch.no_grad():
        return states_of(model.module, TEXTS, torch.device("cpu"))


def distance(model: FrozenModel, original: Tensor, current: Tensor) -> float:
    return float(divergence(model, original, current)) / len(original)


@pytest.mark.parametrize("scale", [0.9, 0.97, 1.0, 1.04])
@pytest.mark.parametrize("chunk", [7, 10_000])
def test_states_that_were_scaled_are_scaled_back(scale: float, chunk: int) -> None:
    original = states()
    assert nearest_factor(MODEL, original, scale * original, chunk) == pytest.approx(1 / scale, abs=3e-3)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), size=st.floats(0.01, 0.3))
def test_no_other_factor_is_nearer(seed: int, size: float) -> None:
    original = states()
    current = original + size * torch.randn(original.shape, generator=torch.Generator().manual_seed(seed))
    factor = nearest_factor(MODEL, original, current, 64)
    best = distance(MODEL, original, factor * current)
    for other in (1.0, factor - 0.03, factor + 0.03):
        assert best <= distance(MODEL, original, other * current) + 1e-5


def test_the_outputs_bias_is_not_scaled() -> None:
    base = tiny_base()
    output: Any = base.model.module.get_output_embeddings()
    output.bias = nn.Parameter(torch.linspace(-2, 2, output.out_features), requires_grad=False)
    model = FrozenModel(base.model.module, base.model.vocab_size)
    original = states(model)
    assert nearest_factor(model, original, 0.95 * original, 64) == pytest.approx(1 / 0.95, abs=3e-3)


def test_a_broken_base_is_left_broken() -> None:
    original = states()
    assert nearest_factor(MODEL, original, torch.full_like(original, torch.nan), 64) == 1.0
    assert nearest_factor(MODEL, original, torch.zeros_like(original), 64) == 1.0
    assert 0.5 <= nearest_factor(MODEL, original, -50 * original, 64) <= 2.0


class Biased(nn.Module):
    """A model whose final norm has a bias."""

    def __init__(self) -> None:
        super().__init__()
        rng = torch.Generator().manual_seed(0)
        self.embedding, self.linear, self.norm = nn.Embedding(64, 16), nn.Linear(16, 16), nn.LayerNorm(16)
        for values in (self.norm.weight, self.norm.bias):
            nn.init.normal_(values, generator=rng)
        self.requires_grad_(False)

    def get_decoder(self) -> nn.Module:
        return self

    def forward(self, tokens: Tensor) -> Tensor:
        found: Tensor = self.norm(self.linear(self.embedding(tokens)))
        return found


def gemma() -> nn.Module:
    """One whose final norm multiplies by its weight and 1."""
    config = transformers.GemmaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2,
        head_dim=8, pad_token_id=0,
    )  # fmt: skip
    model: nn.Module = transformers.GemmaForCausalLM(config).eval()
    return model.requires_grad_(False)


@pytest.mark.parametrize("module", [MODEL.module, Biased(), gemma()], ids=["llama", "bias", "gemma"])
def test_scaled_adapters_scale_the_states_and_nothing_else(module: Any) -> None:
    adapters = Adapters(module, 4, 8.0)
    tensors = learned(adapters)
    tokens = torch.arange(12)[None]

    def said(chosen: dict[str, Tensor]) -> Tensor:
        with torch.no_grad(), adapters.on(chosen):
            found = module.get_decoder()(tokens)
        states: Tensor = found if isinstance(found, Tensor) else found.last_hidden_state
        return states

    torch.testing.assert_close(said(adapters.scaled(tensors, 1.25)), 1.25 * said(tensors), rtol=1e-4, atol=1e-5)
    with adapters.merged(adapters.scaled(tensors, 1.25)):
        merged = said(adapters.fresh(0))
    torch.testing.assert_close(merged, 1.25 * said(tensors), rtol=1e-4, atol=1e-4)


def test_calibrated_adapters_are_nearer_and_fresh_ones_stay() -> None:
    adapters = Adapters(MODEL.module, 4, 8.0)
    calibration = Calibration(MODEL, adapters, TEXTS, 10_000, 64)
    flat = adapters.scaled(learned(adapters), 0.8)
    nearer, factor = calibration.applied(flat)
    assert factor > 1.1
    original = states()
    with adapters.on(flat):
        before = states()
    with adapters.on(nearer):
        after = states()
    torch.testing.assert_close(after, factor * before, rtol=1e-4, atol=1e-4)
    assert distance(MODEL, original, after) < distance(MODEL, original, before)
    assert calibration.applied(adapters.fresh(0))[1] == pytest.approx(1.0, abs=1e-5)


def test_the_same_documents_are_looked_at_whatever_their_order() -> None:
    chosen = some_of(TEXTS, 30)
    assert chosen == some_of(TEXTS[::-1], 30)
    assert sum(text.num_supervised for text in chosen) >= 30 > sum(text.num_supervised for text in chosen[:-1])
