"""Medusa-2: adapters, the joint loss, what it costs the base, and the model that comes of it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from chat_model import save_chat_model, tiny_base, tiny_loaded
from headstart.errors import HeadsError, RequestError, TrainingError
from headstart.heads.base import load_heads
from headstart.llm import load
from headstart.sampling import Sampling
from headstart.target.loading import load_model
from headstart.train import Event, TrainResult, TrainSettings, train
from headstart.train.corpus import Document
from headstart.train.joint.adapters import Adapters, split, told_apart
from headstart.train.joint.objective import JointObjective, Texts, divergence, states_of
from headstart.train.joint.quality import quality
from headstart.train.model_folder import RECORD
from test_train_heads import chats, documents, fresh, objective

SETTINGS = TrainSettings(
    base_dtype="float32", states_dtype="float32", batch_rows=60, epochs=4, evaluations=3, num_ranks=4, draft_vocab=24,
    evaluation_rows=200, minutes=0, decoded_prompts=0, max_copied=1.0,
    held_out=0.2, num_heads=2, vocab_sample=0,
    joint_epochs=4, joint_rows=60, joint_rate=1e-2, lora_rank=4, lora_alpha=4, max_harm=0.5, max_divergence=0.5,
)  # fmt: skip
BASE = tiny_base()
TEXTS = documents(12)


def learned(adapters: Adapters, seed: int = 0) -> dict[str, Tensor]:
    """Adapters that change something."""
    rng = torch.Generator().manual_seed(seed)
    return {name: value + 0.05 * torch.randn(value.shape, generator=rng) for name, value in adapters.fresh(seed).items()}


def weights(module: torch.nn.Module) -> str:
    digest = hashlib.sha256()
    for name, parameter in sorted(module.named_parameters()):
        digest.update(name.encode() + parameter.detach().numpy().tobytes())
    return digest.hexdigest()


def states(module: torch.nn.Module, texts: list[Document] = TEXTS) -> Tensor:
    with torch.no_grad():
        return states_of(module, texts, torch.device("cpu"))


def test_fresh_adapters_change_nothing_and_learned_ones_something_and_off_is_the_original() -> None:
    module = BASE.model.module
    adapters, plain = Adapters(module, 4, 8.0), states(BASE.model.module)
    with adapters.on(adapters.fresh(0)):
        assert states(module).equal(plain)
    with adapters.on(learned(adapters)):
        assert not torch.allclose(states(module), plain, atol=0.01)
    assert states(module).equal(plain)


def test_merged_weights_say_what_adapters_say_and_the_base_gets_its_bytes_back() -> None:
    module = BASE.model.module
    adapters, before = Adapters(module, 4, 8.0), weights(BASE.model.module)
    tensors = learned(adapters)
    with adapters.on(tensors):
        adapted = states(module)
    with adapters.merged(tensors):
        merged = states(module)
    torch.testing.assert_close(merged, adapted, rtol=1e-4, atol=1e-4)
    assert weights(module) == before
    with pytest.raises(KeyboardInterrupt), adapters.merged(tensors):
        raise KeyboardInterrupt
    assert weights(module) == before


def test_documents_side_by_side_have_the_states_of_each_alone() -> None:
    texts = [*TEXTS[:2], Document("chat", 0, (1, 2, 3), ()), *TEXTS[2:]]
    assert len({len(read.tokens) for read in texts}) > 2
    alone = torch.cat([states(BASE.model.module, [read]) for read in texts if read.supervised])
    torch.testing.assert_close(states(BASE.model.module, texts), alone, rtol=1e-4, atol=1e-5)


def test_a_model_without_linear_layers_is_refused() -> None:
    class Odd(torch.nn.Module):
        def get_decoder(self) -> torch.nn.Module:
            return torch.nn.Embedding(3, 3)

    with pytest.raises(TrainingError, match="Odd has no linear layers that could learn"):
        Adapters(Odd(), 4, 8.0)


def joint(chunk_rows: int = 16, weight: float = 0.3, kind: str = "medusa") -> tuple[JointObjective, dict[str, Tensor]]:
    heads = replace(objective(BASE, kind=kind, chunk_rows=chunk_rows), weight=weight)
    adapters = Adapters(BASE.model.module, 4, 8.0)
    return JointObjective(heads, BASE.model, adapters), fresh(heads.form) | learned(adapters)


def gradients(goal: JointObjective, tensors: Mapping[str, Tensor]) -> tuple[float, dict[str, Tensor]]:
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in tensors.items()}
    loss = goal.backward(leaves, Texts(TEXTS).batch(range(len(TEXTS))), torch.Generator().manual_seed(0))
    return loss, {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}


@pytest.mark.parametrize("kind", ["medusa", "hydra", "mtp"])
def test_the_gradient_is_that_of_the_loss_for_heads_and_base_alike(kind: str) -> None:
    goal, tensors = joint(kind=kind)
    _, found = gradients(goal, tensors)
    assert found.keys() == tensors.keys()
    for part in split(tensors):
        rng = torch.Generator().manual_seed(1)
        way = {name: found[name] * (0.5 + torch.rand(tensors[name].shape, generator=rng)) for name in part}
        step = 0.03 / math.sqrt(sum(float(value.square().sum()) for value in way.values()))
        ahead, behind = (
            gradients(goal, tensors | {name: tensors[name] + sign * step * way[name] for name in part})[0] for sign in (1, -1)
        )
        slope = sum(float((found[name] * way[name]).sum()) for name in part)
        assert (ahead - behind) / (2 * step) == pytest.approx(slope, rel=0.05)


def test_the_joint_loss_does_not_depend_on_the_chunks() -> None:
    whole, small = (gradients(*joint(chunk_rows)) for chunk_rows in (10_000, 7))
    assert small[0] == pytest.approx(whole[0], rel=1e-5)
    for name, gradient in whole[1].items():
        torch.testing.assert_close(small[1][name], gradient, rtol=1e-3, atol=1e-5)


def test_without_weight_for_the_heads_the_loss_is_the_distance_from_the_original() -> None:
    goal, tensors = joint(weight=0.0)
    original = states(BASE.model.module)
    with goal.adapters.on(tensors):
        current = states(BASE.model.module)
    expected = float(divergence(BASE.model, original, current)) / len(original)
    assert gradients(goal, tensors)[0] == pytest.approx(expected, rel=1e-4)
    output = BASE.model.module.get_output_embeddings()
    with torch.no_grad():
        p, q = (output(hidden).log_softmax(-1) for hidden in (original, current))
    assert expected == pytest.approx(float((p.exp() * (p - q)).sum(-1).mean()), rel=1e-4)
    assert gradients(goal, tensors | goal.adapters.fresh(0))[0] == pytest.approx(0.0, abs=1e-5)


def test_quality_compares_a_model_with_itself_and_with_another() -> None:
    model, original = BASE.model, states(BASE.model.module)
    tokens = Texts(TEXTS).batch(range(len(TEXTS))).rows.roots
    same = quality(model, model, original, original, tokens, 7)
    assert (same.rise, same.divergence, same.agreement) == (0.0, 0.0, 1.0)
    with torch.no_grad():
        logs = model.module.get_output_embeddings()(original).log_softmax(-1)
    picked = logs[torch.arange(len(tokens)), tokens]
    assert same.perplexity_before == pytest.approx(float(torch.exp(-picked.mean())), rel=1e-4)
    other = quality(model, model, original, original * 0.3, tokens, 7)
    assert other.divergence > 0.1 and other.agreement <= 1 and other.perplexity_after != other.perplexity_before


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder that both engines take."""
    return save_chat_model(tmp_path_factory.mktemp("model") / "origin", head_dim=16)


def run(model: str, tmp_path: Path, **options: Any) -> TrainResult:
    chosen: dict[str, Any] = {
        "settings": SETTINGS,
        "data": chats(tmp_path / "chats.jsonl", 40),
        "out": tmp_path / "heads",
        "model_out": tmp_path / "tuned",
    }
    return train(model, **(chosen | options))


@pytest.fixture(scope="module")
def tuned(model: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TrainResult]:
    """A finished run, and where it is."""
    path = tmp_path_factory.mktemp("tuned")
    return path, run(model, path)


def test_a_run_gives_a_model_and_heads_that_belong_together(model: str, tuned: tuple[Path, TrainResult]) -> None:
    path, result = tuned
    assert result.tuned is not None and result.tuned.is_within_bound
    assert result.tuned.quality.divergence > 0
    record = json.loads((path / "tuned" / RECORD).read_text())
    assert record["is_within_bound"] is True
    assert record["quality"]["agreement"] == result.tuned.quality.agreement
    training = json.loads((path / "heads" / "training.json").read_text())
    assert training["tuned"]["quality"] == record["quality"]
    assert all("perplexity_rise" in point for point in training["progress"]["curve"])
    factor = training["tuned"]["logit_factor"]
    assert record["logit_factor"] == factor != 1.0
    assert factor in [point["logit_factor"] for point in training["progress"]["curve"]]
    assert not (path / "heads.work" / "joint.safetensors").exists()
    origin = load_model(model, dtype="float32")
    with pytest.raises(HeadsError, match="trained on another base model"):
        load_heads(path / "heads", origin.target)
    for engine in ("native", "hf"):
        plain = load(str(path / "tuned"), target=engine, dtype="float32", proposer="none")
        fast = load(str(path / "tuned"), target=engine, dtype="float32", proposer="medusa", heads=str(path / "heads"))
        prompts: list[Any] = [[{"role": "user", "content": "go on"}], "abc", "what now?"]
        for prompt in prompts:
            limit = Sampling(max_tokens=24)
            assert fast.generate(prompt, limit).tokens == plain.generate(prompt, limit).tokens
        assert plain.target.fingerprint != origin.target.fingerprint


def test_the_saved_model_keeps_tokenizer_and_template(model: str, tuned: tuple[Path, TrainResult]) -> None:
    import transformers

    old, new = (load_model(name, dtype="float32") for name in (model, str(tuned[0] / "tuned")))
    messages = [{"role": "user", "content": "what is that?"}]
    assert new.tokenizer.encode_chat(messages) == old.tokenizer.encode_chat(messages)
    assert new.target.end_tokens == old.target.end_tokens
    theirs = transformers.AutoTokenizer.from_pretrained(tuned[0] / "tuned")
    text = new.tokenizer.apply_chat(messages)
    assert theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == text
    assert theirs(text, add_special_tokens=False)["input_ids"] == new.tokenizer.encode_chat(messages)


def test_heads_that_exist_already_spare_the_first_stage(model: str, tuned: tuple[Path, TrainResult], tmp_path: Path) -> None:
    first = tuned[0] / "heads.work" / "first"
    events: list[Event] = []
    result = run(model, tmp_path, init=first, report=events.append)
    assert {event.stage for event in events} == {"joint"}
    assert result.tuned == replace(tuned[1].tuned or pytest.fail(), path=tmp_path / "tuned")
    for name, value in load_heads(tmp_path / "heads").tensors.items():
        np.testing.assert_array_equal(value, load_heads(tuned[0] / "heads").tensors[name])


def test_the_base_is_calibrated_unless_told_otherwise(model: str, tuned: tuple[Path, TrainResult], tmp_path: Path) -> None:
    first = tuned[0] / "heads.work" / "first"
    found = {}
    for calibrate in (True, False):
        settings = SETTINGS.changed(joint_epochs=1, calibrate=calibrate)
        result = run(model, tmp_path, init=first, settings=settings, resume=False)
        factor = json.loads((tmp_path / "heads" / "training.json").read_text())["tuned"]["logit_factor"]
        found[calibrate] = (factor, result.tuned or pytest.fail())
    assert found[False][0] == 1.0 != found[True][0]
    assert found[True][1].quality.divergence < found[False][1].quality.divergence


def test_a_run_that_harms_the_model_is_marked(model: str, tuned: tuple[Path, TrainResult], tmp_path: Path) -> None:
    settings = SETTINGS.changed(joint_rate=1.0, joint_epochs=1, max_divergence=0.1)
    result = run(model, tmp_path, init=tuned[0] / "heads.work" / "first", settings=settings)
    assert result.tuned is not None
    assert result.tuned.quality.divergence > 0.1 and not result.tuned.is_within_bound
    assert json.loads((tmp_path / "tuned" / RECORD).read_text())["is_within_bound"] is False
    assert load_heads(tmp_path / "heads").card.provenance["is_within_bound"] is False


def test_a_model_that_learned_little_is_told_apart_all_the_same(model: str, tuned: Any, tmp_path: Path) -> None:
    settings = SETTINGS.changed(joint_rate=1e-7, joint_epochs=1)
    result = run(model, tmp_path, init=tuned[0] / "heads.work" / "first", settings=settings)
    assert result.tuned is not None and result.tuned.quality.divergence < 1e-4
    old, new = (load_model(name, dtype="float32", engine="hf").target for name in (model, str(tmp_path / "tuned")))
    assert old.fingerprint != new.fingerprint
    assert load_heads(tmp_path / "heads", new).config.kind == "medusa"


def test_of_a_change_that_rounding_swallows_the_largest_shows() -> None:
    old = torch.tensor([2.0, -2.0, 0.5, 3.0])
    change = torch.tensor([1e-4, -3e-4, 0.0, -2e-4])
    new = told_apart(old, old + change, change)
    assert new[[0, 2, 3]].equal((old + change)[[0, 2, 3]])
    assert float(new[1]) == -2.015625, "the next value of bfloat16"
    assert told_apart(old, old, torch.zeros(4)).equal(old)
    assert told_apart(old, old + 1, torch.ones(4)).equal(old + 1)
    assert float(told_apart(old, old, -change)[1]) == -1.9921875


def test_a_model_that_cannot_be_told_apart_is_not_passed_off_as_another(
    model: str, tuned: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headstart.train.joint.adapters.told_apart", lambda old, new, change: old)
    settings = SETTINGS.changed(joint_rate=1e-7, joint_epochs=1)
    with pytest.raises(TrainingError, match="cannot be told apart"):
        run(model, tmp_path, init=tuned[0] / "heads.work" / "first", settings=settings)
    assert not (tmp_path / "tuned").exists() and not list(tmp_path.glob(".tuned*")) and not (tmp_path / "heads").exists()


def test_a_model_that_does_not_survive_saving_is_refused(tmp_path: Path) -> None:
    loaded = tiny_loaded()  # with a bias that its class does not know
    torch.nn.init.constant_(loaded.target.model.get_output_embeddings().bias, 0.0)  # type: ignore[attr-defined]
    loaded.target.model.get_output_embeddings().bias.data[5] = 9.0  # type: ignore[attr-defined]
    with pytest.raises(TrainingError, match="does not survive saving"):
        run(loaded, tmp_path, settings=SETTINGS.changed(joint_epochs=1))  # type: ignore[arg-type]
    assert not (tmp_path / "tuned").exists()


@pytest.mark.parametrize(
    ("options", "error", "complaint"),
    [
        ({"model_out": None, "settings": SETTINGS}, RequestError, "joint_epochs has no effect while the base stays"),
        ({"model_out": 5}, RequestError, "model_out is 5"),
        ({"model_out": "heads"}, RequestError, "the heads and the model need a folder each"),
        ({"model_out": "stands"}, TrainingError, "exists and is no model that Headstart trained"),
        ({"model_out": ".."}, TrainingError, "cannot hold a model"),
    ],
)
def test_what_would_fail_at_the_end_is_refused_before_any_work(
    model: str, tmp_path: Path, options: Any, error: Any, complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stands").mkdir()
    (tmp_path / "stands" / "mine.txt").write_text("precious")
    monkeypatch.chdir(tmp_path)
    events: list[Event] = []
    with pytest.raises(error, match=complaint):
        run(model, tmp_path, report=events.append, **options)
    assert not events
