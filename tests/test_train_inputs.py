"""Training a layer that reads prompts and features: what is captured of a text, and that it learns from it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from chat_model import tiny_base, tiny_loaded
from headstart.errors import RequestError
from headstart.heads.base import load_heads
from headstart.heads.mtp import MtpConfig
from headstart.target.base import HIDDEN
from headstart.train import TrainSettings, train
from headstart.train.base import Base
from headstart.train.capture import Captured, Online, StateFiles, capture, estimated_bytes, hidden_states
from headstart.train.corpus import Corpus, Document
from headstart.train.filling import fill
from headstart.train.forms import Form, MtpForm, form_of
from headstart.train.inputs import Reading
from headstart.train.losses import Objective
from headstart.train.trainer import Measured, Trainer
from headstart.train.writer import Writer
from scripted import random_target
from test_train_heads import SETTINGS, chats, fresh, gradients

BASE = tiny_base(num_hidden_layers=7)
READING = Reading((2, 3, 4), 5)
FEATURES = TrainSettings(feature_layers="eagle3", context_tokens=5)


def documents() -> list[Document]:
    """Chats with two answers, behind longer prompts than are read."""
    rng = np.random.default_rng(5)
    found = []
    for i in range(24):
        start = int(rng.integers(5, 20))
        tokens = [5 + (start + 3 * step) % 20 for step in range(int(rng.integers(18, 30)))]
        found.append(Document("chat", 0.5 * (i % 2), (1, i % 30, *tokens), ((9, 13), (15, len(tokens) + 2))))
    return found


def form(settings: TrainSettings = FEATURES, base: Base = BASE) -> MtpForm:
    return MtpForm.of(settings, base.model, None)


def objective(made: Form, **changes: Any) -> Objective:
    return dataclasses.replace(Objective.of(BASE, made, SETTINGS.changed(vocab_sample=0)), chunk_rows=16, **changes)


def test_the_rows_of_a_text_are_its_prompt_s_end_and_its_answers() -> None:
    document = Document("chat", 0.0, tuple(range(10, 30)), ((8, 10), (14, 17)))
    assert Reading((HIDDEN,), 3).texts(document) == [(4, 16)]
    assert Reading((HIDDEN,), 100).texts(document) == [(0, 16)]
    assert Reading((HIDDEN,), 0).texts(document) == [(7, 9), (13, 16)]
    target = random_target(0, 30)
    batch = Online(target, [document, document], Reading((HIDDEN, 4), 3)).batch([1, 0])
    read = batch.texts
    assert read.tokens.tolist() == 2 * list(range(15, 27))
    assert read.places.tolist() == [3, 4, 9, 10, 11, 15, 16, 21, 22, 23] and read.row_ends.tolist() == [5, 10]
    expected = np.stack([target.watched_states(document.tokens[: place + 1], (HIDDEN, 4)) for place in range(4, 16)])
    np.testing.assert_array_equal(read.states.numpy(), np.concatenate([expected, expected]))
    np.testing.assert_array_equal(read.states[read.places, : target.hidden_size].numpy(), batch.hidden.numpy())
    assert read.tokens[read.places].equal(batch.roots)
    assert list(batch.pieces(2, whole_texts=True)) == [slice(0, 5), slice(5, 10)]


@pytest.mark.parametrize("reading", [READING, Reading((HIDDEN,), 4), Reading((0, 6), 0)])
def test_captured_inputs_are_those_of_a_fresh_forward(tmp_path: Path, reading: Reading) -> None:
    texts = documents()
    options: dict[str, Any] = {"dtype": "float32", "report": lambda *rows: None, "reading": reading}
    states, covered = capture(BASE.target, texts, tmp_path, deadline=None, **options)
    assert covered == texts
    for chosen in ([0], [3, 1, 7]):
        one, other = states.batch(chosen), Online(BASE.target, texts, reading).batch(chosen)
        assert one.inputs is not None and other.inputs is not None
        for mine, theirs in zip(dataclasses.astuple(one.inputs), dataclasses.astuple(other.inputs), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
    size = sum(file.stat().st_size for file in tmp_path.glob("*.bin"))
    assert size == estimated_bytes(texts, BASE.model.width, "float32", reading)
    assert StateFiles(tmp_path, texts, BASE.target, "float32", reading).num_documents == len(texts)
    other_reading = dataclasses.replace(reading, context=reading.context + 1)
    assert StateFiles(tmp_path, texts, BASE.target, "float32", other_reading).num_documents == 0


@pytest.mark.parametrize("chat", [True, False])
def test_inputs_kept_while_writing_are_those_of_a_fresh_forward(tmp_path: Path, chat: bool) -> None:
    base = tiny_base(chat=chat, num_hidden_layers=7)
    writer = Writer(base.target, base.codec, batch=8, answer_tokens=12, question_tokens=24, seed=1, reading=READING)
    files = StateFiles(tmp_path / "states", [], base.target, "float32", READING)
    texts = fill(Corpus(tmp_path, "model"), writer, num_tokens=160, deadline=None, report=lambda *_: None, states=files)
    assert files.num_documents == len(texts) and (not chat or any(len(read.supervised) > 1 for read in texts))
    kept = Captured(tmp_path / "states", texts, base.model.width, "float32", READING).batch(range(len(texts)))
    anew = Online(base.target, texts, READING).batch(range(len(texts)))
    torch.testing.assert_close(kept.texts.states, anew.texts.states, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(kept.hidden, anew.hidden, rtol=1e-3, atol=1e-3)


def test_features_come_at_about_unit_size_and_are_saved_for_those_that_the_base_gives() -> None:
    made = form()
    tensors = {name: tensor.half().float().numpy() for name, tensor in fresh(made).items()}
    batch = Online(BASE.target, documents(), READING).batch([2, 5])
    rows = slice(0, batch.num_rows)
    sizes = batch.texts.states.square().mean(-1).sqrt() * 0
    for place in range(3):
        part = batch.texts.states[:, place * 32 : (place + 1) * 32] * float(made._factors[place * 32])  # type: ignore[index]
        sizes = part.square().mean(-1).sqrt()
        assert 0.3 < float(sizes.median()) < 3
    saved = made.heads(tensors, None)
    for name, values in made.trained(saved).items():
        np.testing.assert_allclose(values, tensors[name], rtol=1e-3, atol=1e-6)
    as_saved = MtpForm(made.config, BASE.model)
    as_saved._factors = None  # what is saved reads the streams as they are
    for one, other in zip(
        made.guessed({n: torch.from_numpy(v) for n, v in tensors.items()}, batch, rows, [BASE.model.output]),
        as_saved.guessed({n: torch.from_numpy(v) for n, v in saved.tensors.items()}, batch, rows, [BASE.model.output]),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-2)


def test_the_loss_does_not_depend_on_the_chunks() -> None:
    batch = Online(BASE.target, documents(), READING).batch(list(range(6)))
    made = form()
    results = [gradients(objective(made), fresh(made), batch)]
    results.append(gradients(dataclasses.replace(objective(made), chunk_rows=10_000), fresh(made), batch))
    assert results[0][0] == pytest.approx(results[1][0], rel=1e-5)
    for name, gradient in results[0][1].items():
        torch.testing.assert_close(gradient, results[1][1][name], rtol=1e-3, atol=1e-5)


def test_a_layer_with_features_learns_and_a_resumed_run_ends_with_the_same_bits(tmp_path: Path) -> None:
    states = Online(BASE.target, documents(), READING)

    def made() -> Trainer[Any]:
        goal = objective(form(), soft_weight=0.0)
        return Trainer(
            goal, {name: torch.from_numpy(values) for name, values in goal.form.fresh(0).items()}, states, range(20),
            SETTINGS.changed(learning_rate=1e-2, epochs=99), evaluate=lambda _: Measured(_no_acceptance()),
            checkpoint=tmp_path / "c.safetensors", about={"a": 1},
        )  # fmt: skip

    straight, first, second = made(), made(), made()
    losses: list[float] = []
    straight._report = lambda progress, loss: losses.append(loss)
    for each, stop in ((straight, None), (first, 8)):
        each.plan(None)
        each.progress.total_steps = 24
        each.run(stop_after=stop)
    second.resume(tmp_path / "c.safetensors")
    second.run()
    for name, tensor in straight.tensors.items():
        assert tensor.equal(second.tensors[name]), name
    assert np.mean(losses[-5:]) < 0.6 * losses[0]


def _no_acceptance() -> Any:
    from headstart.heads.base import Acceptance

    return Acceptance(((0.5,),) * 4, (0.5,) * 4, {8: 1.0, 16: 1.0})


def test_one_call_trains_a_layer_with_features_that_decodes(tmp_path: Path) -> None:
    settings = SETTINGS.changed(epochs=8, learning_rate=1e-2, decoded_prompts=2, decoded_tokens=6)
    result = train(
        tiny_loaded(num_hidden_layers=7), "mtp", tmp_path / "heads", data=chats(tmp_path / "chats.jsonl"), settings=settings,
        feature_layers="eagle3", num_heads=2,
    )  # fmt: skip
    assert result.after.predicted_length[16] > result.before.predicted_length[16]
    heads = load_heads(tmp_path / "heads")
    assert heads.config.eagle_aux_hidden_state_layer_ids == (2, 3, 4) and heads.config.reads_prompt
    curve = json.loads((tmp_path / "heads" / "training.json").read_text())["progress"]["curve"]
    assert all(point["decoded_length"] >= 1 for point in curve)
    with pytest.raises(RequestError, match="context_tokens is 0, which has no effect on a layer that reads prompts"):
        train(
            tiny_loaded(num_hidden_layers=7), "mtp", tmp_path / "more", data=tmp_path / "chats.jsonl",
            init=tmp_path / "heads", settings=settings, context_tokens=0,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"feature_layers": "eagle3"}, r"feature_layers is eagle3 \(2, 1, -1\), and the model has 2 layers"),
        ({"feature_layers": "0,2"}, "feature_layers is 0,2, and the model has 2 layers; list some of 0 to 1"),
        ({"feature_layers": "low"}, "feature_layers is 'low'; it must be eagle3, or numbers of layers"),
        ({"context_tokens": -1}, "context_tokens is -1; it must be a whole number"),
        ({"heads": "medusa", "context_tokens": 7}, "context_tokens has no effect with heads of kind medusa"),
        ({"feature_layers": "0", "model_out": "m"}, "feature_layers has no effect with model_out"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    chosen: dict[str, Any] = {"heads": "mtp", "settings": SETTINGS, "data": chats(tmp_path / "chats.jsonl")}
    if "model_out" in options:
        options = options | {"model_out": tmp_path / "m"}
    with pytest.raises(RequestError, match=message):
        train(tiny_loaded(), out=tmp_path / "heads", **(chosen | options))
    assert not (tmp_path / "heads").exists()


def test_states_that_are_not_asked_for_are_not_there() -> None:
    assert hidden_states(BASE.target, documents()[:1])[0].inputs is None
    assert form(TrainSettings(context_tokens=0)).reading(TrainSettings(context_tokens=0)) is None
    config = MtpConfig(32, BASE.model.vocab_size, 4, 2, 8, 48, reads_prompt=True)
    assert form_of(config, BASE.model).reading(TrainSettings()) == Reading((HIDDEN,), 1024)
