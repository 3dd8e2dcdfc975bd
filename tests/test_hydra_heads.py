"""Hydra heads: the same guesses on every engine, each depending on what was drafted before it, saved and loaded exactly."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from headstart.errors import HeadsError
from headstart.heads.base import Acceptance, BaseIdentity, HeadsCard, find_heads, load_heads, save_heads
from headstart.heads.hydra import HydraConfig, HydraHeads, initial_tensors, next_states
from headstart.target.base import BaseWeights
from numpy_operations import NumpyOperations

VOCAB, WIDTH, DEPTHS, INNER = 20, 32, 3, 64
OPS = NumpyOperations()
BASE = BaseIdentity("fp-1", WIDTH, VOCAB, "toy")
CARD = HeadsCard(BASE, Acceptance(((0.4, 0.1),) * DEPTHS, (0.4, 0.4, 0.4), {8: 1.5}), {"seed": 1})
PATH = [(3, 5), (7, 1), (9, 0)]  # tokens of two nodes, by depth


def config(**changes: Any) -> HydraConfig:
    return replace(HydraConfig(DEPTHS, WIDTH, VOCAB, INNER), **changes)


def base_weights() -> BaseWeights:
    rng = np.random.default_rng(5)
    return BaseWeights(*(rng.standard_normal((VOCAB, WIDTH)).astype(np.float32) for _ in range(2)))


def trained(settings: HydraConfig) -> HydraHeads:
    rng = np.random.default_rng(1)
    tensors = {name: 0.2 * rng.standard_normal(shape).astype(np.float32) for name, shape in settings.shapes().items()}
    return HydraHeads(settings, tensors, CARD)


def hidden_states() -> NDArray[np.float32]:
    return np.random.default_rng(2).standard_normal((2, WIDTH)).astype(np.float32)


def logits_by_depth(heads: HydraHeads, ops: Any = OPS, base: Any = None, hidden: Any = None) -> list[Any]:
    bound = heads.bind(ops, base or base_weights())
    states, found = hidden_states() if hidden is None else hidden, []
    for depth, tokens in enumerate(PATH):
        states = bound.states(states, tokens, depth)
        found.append(ops.numpy(bound.logits(states)))
    return found


def test_the_cell_is_the_equation() -> None:
    heads, weights = trained(config()), base_weights()
    state, tensors = hidden_states(), heads.tensors
    for depth, found in enumerate(logits_by_depth(heads)):
        read = np.concatenate([state, weights.embedding[list(PATH[depth])]], axis=1)
        z = read @ tensors["cell.weight"].T + tensors[f"heads.{depth}.bias"]
        state = state + (z / (1 + np.exp(-z))) @ tensors["cell.project"].T
        np.testing.assert_allclose(found, state @ weights.output.T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("vocab", [None, (19, 0, 7)])
def test_fresh_heads_say_what_the_base_says(vocab: tuple[int, ...] | None) -> None:
    heads = HydraHeads(config(draft_vocab=vocab), initial_tensors(config(), np.random.default_rng(0)), CARD)
    expected = hidden_states() @ base_weights().output[list(vocab or range(VOCAB))].T
    for logits in logits_by_depth(heads):
        np.testing.assert_allclose(logits, expected, rtol=1e-5)


def test_a_guess_depends_on_every_token_before_it_and_on_no_neighbour() -> None:
    bound = trained(config()).bind(OPS, base_weights())

    def last(path: list[int], neighbour: int) -> NDArray[np.float32]:
        states = hidden_states()
        for depth, token in enumerate(path):
            states = bound.states(states, [token, neighbour], depth)
        found: NDArray[np.float32] = bound.logits(states)[0]
        return found

    reference = last([1, 2, 3], 4)
    np.testing.assert_allclose(last([1, 2, 3], 11), reference, rtol=1e-5, atol=1e-5)
    for other in ([9, 2, 3], [1, 9, 3], [1, 2, 9]):
        assert np.abs(last(other, 4) - reference).max() > 1e-3


def test_guesses_are_the_likeliest_tokens_of_the_logits() -> None:
    vocab = (19, 0, 7, 8)
    bound = trained(config(draft_vocab=vocab)).bind(OPS, base_weights())
    states = bound.states(hidden_states(), PATH[0], 0)
    ids, probabilities = bound.guesses(states, 3)
    logits = bound.logits(states)
    np.testing.assert_array_equal(ids, np.array(vocab)[np.argsort(-logits, axis=1)[:, :3]])
    weights = np.exp(logits.astype(np.float64))
    np.testing.assert_allclose(probabilities, -np.sort(-weights / weights.sum(1, keepdims=True))[:, :3], rtol=1e-4)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-4), ("bfloat16", 0.2), ("q8_0", 0.2)])
def test_the_native_engine_computes_the_same(dtype: str, tolerance: float) -> None:
    pytest.importorskip("headstart._native")
    from headstart.target.native_operations import NativeOperations

    ops, weights = NativeOperations(dtype), base_weights()
    packed = BaseWeights(ops.array(weights.embedding), ops.array(weights.output))
    heads = trained(config(draft_vocab=(19, 0, 7)))
    for found, expected in zip(logits_by_depth(heads, ops, packed), logits_by_depth(heads), strict=True):
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance * np.abs(expected).max())


def test_pytorch_computes_the_same_and_lets_gradients_through() -> None:
    torch = pytest.importorskip("torch")
    from headstart.target.torch_operations import TorchOperations

    ops, weights, heads = TorchOperations(torch.float32), base_weights(), trained(config())
    base = BaseWeights(ops.array(weights.embedding), ops.array(weights.output))
    for found, expected in zip(
        logits_by_depth(heads, ops, base, ops.array(hidden_states())), logits_by_depth(heads), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    tensors = {name: torch.nn.Parameter(torch.tensor(values)) for name, values in heads.tensors.items()}
    states = ops.array(hidden_states())
    for depth, tokens in enumerate(PATH):
        states = next_states(ops, tensors, states, ops.take(base.embedding, np.array(tokens)), depth)
    states.square().sum().backward()  # type: ignore[no-untyped-call]
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in tensors.values())


def test_no_two_tensors_share_their_storage() -> None:
    tensors = list(initial_tensors(config(), np.random.default_rng(0)).values())
    for i, tensor in enumerate(tensors):
        assert not any(np.shares_memory(tensor, other) for other in tensors[:i])


@pytest.mark.parametrize("vocab", [None, (19, 0, 7)])
def test_loading_gives_exactly_what_was_saved(tmp_path: Path, vocab: tuple[int, ...] | None) -> None:
    heads = trained(config(draft_vocab=vocab)).rounded()
    save_heads(tmp_path / "heads", heads)
    assert load_file(tmp_path / "heads" / "model.safetensors")["cell.weight"].dtype == np.float16
    loaded = load_heads(tmp_path / "heads", BASE)
    assert (loaded.config, loaded.card) == (heads.config, heads.card)
    assert loaded.tensors.keys() == heads.tensors.keys()
    for name, values in heads.tensors.items():
        assert loaded.tensors[name].tobytes() == values.tobytes()


def test_what_is_wrong_with_a_folder_is_named(tmp_path: Path) -> None:
    save_heads(tmp_path / "heads", trained(config()))
    file = tmp_path / "heads" / "model.safetensors"
    tensors = dict(load_file(file))
    save_file({name: values for name, values in tensors.items() if name != "heads.2.bias"}, file)
    with pytest.raises(HeadsError, match=r"hydra heads: the file misses tensor 'heads\.2\.bias'"):
        load_heads(tmp_path / "heads")
    save_file(tensors | {"cell.project": tensors["cell.project"].T.copy()}, file)
    with pytest.raises(HeadsError, match=r"'cell\.project' has shape \(64, 32\)"):
        load_heads(tmp_path / "heads")


@pytest.mark.parametrize("changes", [{"num_heads": 0}, {"inner_size": 0}, {"inner_size": True}, {"draft_vocab": (1, 1)}])
def test_impossible_sizes_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(HeadsError, match=next(iter(changes))):
        config(**changes)


def test_a_base_may_have_heads_of_several_kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from headstart.heads import medusa

    other = medusa.MedusaConfig(DEPTHS, WIDTH, VOCAB)
    save_heads(tmp_path / "a", medusa.MedusaHeads(other, medusa.initial_tensors(other, np.random.default_rng(0)), CARD))
    save_heads(tmp_path / "b", trained(config()))
    monkeypatch.setenv("HEADSTART_HEADS", str(tmp_path))
    assert find_heads("fp-1", "medusa") == tmp_path / "a"
    assert find_heads("fp-1", "hydra") == tmp_path / "b"
