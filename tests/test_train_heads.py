"""Learning: captured states, the loss, the loop and its checkpoints, and the whole of ``train``."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from chat_model import tiny_base, tiny_loaded
from headstart.errors import DataError, HeadsError, RequestError, TrainingError
from headstart.heads.base import Acceptance, BaseIdentity, load_heads
from headstart.heads.hydra import HydraConfig
from headstart.heads.medusa import MedusaConfig
from headstart.heads.mtp import MtpConfig
from headstart.target.base import BaseWeights
from headstart.target.torch_operations import TorchOperations
from headstart.train import Event, TrainResult, TrainSettings, train
from headstart.train.acceptance import Ranks, acceptance, acceptance_by_kind, counted_length, measure_ranks
from headstart.train.base import Base
from headstart.train.capture import Batch, Captured, Online, capture, estimated_bytes, num_rows
from headstart.train.checkpoint import Progress
from headstart.train.corpus import Document
from headstart.train.forms import Form, form_of
from headstart.train.losses import FrozenBase, Objective, mixed_cross_entropy
from headstart.train.record import command
from headstart.train.trainer import Measured, Tensors, Trainer

SETTINGS = TrainSettings(
    base_dtype="float32", states_dtype="float32", batch_rows=60, epochs=50, evaluations=3, num_ranks=4, draft_vocab=24,
    evaluation_rows=200, minutes=0, decoded_prompts=0, max_copied=1.0,
    learning_rate=3e-3, held_out=0.2,
)  # fmt: skip


def documents(number: int = 30) -> list[Document]:
    """Texts with a pattern that heads can learn: a token's successors follow from it."""
    rng = np.random.default_rng(5)
    found = []
    for i in range(number):
        start = int(rng.integers(5, 20))
        tokens = tuple(5 + (start + 3 * step) % 20 for step in range(int(rng.integers(8, 20))))
        found.append(Document("text", 0.0 if i % 2 else 0.5, (1, i % 30, *tokens), ((2, len(tokens) + 2),)))
    return found


def objective(base: Base, vocab: tuple[int, ...] | None = tuple(range(2, 26)), **changes: Any) -> Objective:
    model = base.model
    sizes: dict[str, Any] = {"hidden_size": model.width, "vocab_size": model.vocab_size, "draft_vocab": vocab}
    kind = changes.pop("kind", "medusa")
    config: Any
    if kind == "mtp":
        config = MtpConfig(**sizes, num_attention_heads=2, num_key_value_heads=1, head_dim=8, intermediate_size=12)
    else:
        config = HydraConfig(4, inner_size=12, **sizes) if kind == "hydra" else MedusaConfig(3, **sizes)
    config = dataclasses.replace(config, **{k: changes.pop(k) for k in list(changes) if hasattr(config, k)})
    ids = torch.arange(model.vocab_size) if vocab is None else torch.tensor(vocab)
    places = torch.full((model.vocab_size,), -1, dtype=torch.long)
    places[ids] = torch.arange(len(ids))
    frozen = FrozenBase(model.embedding, model.output[ids].float(), places)
    fields: dict[str, Any] = {
        "head_decay": 0.8,
        "soft_weight": 0.5,
        "vocab_sample": 0,
        "chunk_rows": 16,
        "compute_dtype": torch.float32,
    }
    return Objective(form_of(config, model), frozen, **(fields | changes))


def fresh(form: Form, seed: int = 0) -> Tensors:
    """Heads that are not at their start, so that every path of the gradient is walked."""
    rng = np.random.default_rng(seed)
    values = form.fresh(seed)
    return {name: torch.tensor(v + 0.1 * rng.standard_normal(v.shape).astype(np.float32)) for name, v in values.items()}


def gradients(goal: Objective, tensors: Tensors, batch: Batch, seed: int = 0) -> tuple[float, Tensors]:
    leaves = {name: tensor.clone().requires_grad_(True) for name, tensor in tensors.items()}
    loss = goal.backward(leaves, batch, torch.Generator().manual_seed(seed))
    return loss, {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}


BASE = tiny_base()
STATES = Online(BASE.target, documents())


def test_captured_states_are_those_of_a_fresh_forward(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    states, covered = capture(
        BASE.target, documents(), tmp_path, dtype="float32", deadline=None, report=lambda *rows: told.append(rows)
    )
    assert covered == documents()
    assert told[-1] == (states.num_rows, states.num_rows)
    for chosen in ([0], [3, 1, 7]):
        one, other = states.batch(chosen), STATES.batch(chosen)
        torch.testing.assert_close(one.hidden, other.hidden)
        assert one.roots.equal(other.roots) and one.picks.equal(other.picks) and one.remaining.equal(other.remaining)
    size = sum(file.stat().st_size for file in tmp_path.glob("*.bin"))
    assert size == estimated_bytes(documents(), BASE.model.width, "float32")


def test_a_row_predicts_its_root_from_everything_before_it() -> None:
    read = documents()[4]
    batch = STATES.batch([4])
    with torch.no_grad():
        states = BASE.model.module.base_model(input_ids=torch.tensor([read.tokens])).last_hidden_state[0]
    torch.testing.assert_close(batch.hidden, states[1:-1])
    assert batch.roots.tolist() == list(read.tokens[2:])
    assert batch.remaining.tolist() == list(range(num_rows(read), 0, -1))


def test_greedily_written_text_is_its_own_pick_and_other_text_is_not() -> None:
    greedy, other = STATES.batch([1]), STATES.batch([0])
    assert greedy.picks.equal(greedy.roots)
    assert other.picks.equal((other.hidden @ BASE.model.output.T + BASE.model.module.get_output_embeddings().bias).argmax(-1))


def test_a_span_from_the_first_token_on_starts_behind_it() -> None:
    text = Document("text", 0.5, (7, 8, 9), ((0, 3),))
    batch = Online(BASE.target, [text]).batch([0])
    assert batch.roots.tolist() == [8, 9]


def test_an_interrupted_capture_goes_on_where_it_stopped(tmp_path: Path) -> None:
    texts = documents(150)
    first, covered = capture(BASE.target, texts, tmp_path, dtype="bfloat16", deadline=0.0, report=lambda *rows: None)
    assert 0 < len(covered) < 150
    before = first.batch([5]).hidden.clone()
    with (tmp_path / "hidden.bin").open("ab") as file:
        file.write(b"torn")
    told: list[int] = []
    whole, covered = capture(
        BASE.target, texts, tmp_path, dtype="bfloat16", deadline=None, report=lambda done, total: told.append(done)
    )
    assert len(covered) == 150
    assert told[0] > first.num_rows  # nothing was done again
    assert whole.batch([5]).hidden.equal(before)
    torch.testing.assert_close(
        whole.batch([149]).hidden.float(), Online(BASE.target, texts).batch([149]).hidden, rtol=0.02, atol=0.02
    )


def test_states_of_other_text_are_replaced(tmp_path: Path) -> None:
    capture(BASE.target, documents()[5:], tmp_path, dtype="float32", deadline=None, report=lambda *rows: None)
    states, _ = capture(BASE.target, documents(), tmp_path, dtype="float32", deadline=None, report=lambda *rows: None)
    torch.testing.assert_close(states.batch([0]).hidden, STATES.batch([0]).hidden)


@pytest.mark.parametrize("soft_weight", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("form", [{"output": "base"}, {"output": "own"}, {"kind": "hydra"}, {"kind": "mtp"}])
@pytest.mark.parametrize("vocab_sample", [0, 5])
def test_the_loss_does_not_depend_on_the_chunks(soft_weight: float, form: dict[str, Any], vocab_sample: int) -> None:
    batch = STATES.batch(list(range(12)))
    results = []
    for chunk_rows in (1, 7, 10_000):
        goal = objective(BASE, soft_weight=soft_weight, vocab_sample=vocab_sample, chunk_rows=chunk_rows, **form)
        tensors = fresh(goal.form)
        results.append(gradients(goal, tensors, batch))
    for loss, grads in results[1:]:
        assert loss == pytest.approx(results[0][0], rel=1e-5)
        for name, gradient in grads.items():
            torch.testing.assert_close(gradient, results[0][1][name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("soft_weight", [0.0, 0.3, 1.0])
def test_the_mixed_loss_and_its_gradient_are_those_of_the_mixed_goal(soft_weight: float) -> None:
    rng = torch.Generator().manual_seed(3)
    scores = torch.randn(5, 7, generator=rng, dtype=torch.float64).float().requires_grad_()
    soft, hard = torch.randn(5, 7, generator=rng).softmax(-1), torch.tensor([0, 6, 2, 2, 1])
    goal = (1 - soft_weight) * functional.one_hot(hard, 7) + soft_weight * soft
    expected = functional.cross_entropy(scores, goal, reduction="sum")
    (gradient,) = torch.autograd.grad(3 * expected, scores)
    loss = mixed_cross_entropy(scores, hard, soft if soft_weight else None, soft_weight)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(torch.autograd.grad(3 * loss, scores)[0], gradient)


def test_a_sequential_head_reads_the_text_s_own_tokens_up_to_its_depth() -> None:
    goal = objective(BASE, kind="hydra")
    form, tensors, batch = goal.form, fresh(goal.form), STATES.batch([4, 7])
    values = {name: tensor.numpy() for name, tensor in tensors.items()}
    made: Any = form.heads(values, None)
    bound = made.bind(TorchOperations(torch.float32), BaseWeights(BASE.model.embedding, BASE.model.output))
    rows = [0, 3, num_rows(documents()[4]) - 5]  # all four depths lie within the first text
    states = batch.hidden[rows]
    logits = form.guessed(tensors, batch, slice(0, batch.num_rows), form.outputs(tensors, goal.base.output))
    for depth in range(4):
        states = bound.states(states, batch.roots[torch.tensor(rows) + depth].tolist(), depth)
        torch.testing.assert_close(bound.logits(states), logits[depth][rows], rtol=2e-2, atol=2e-2)  # saved in float16


@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=9), num_rows=st.integers(1, 20))
def test_pieces_hold_every_row_once_and_whole_segments_where_they_must(lengths: list[int], num_rows: int) -> None:
    remaining = torch.tensor([left for length in lengths for left in range(length, 0, -1)])
    batch = Batch(torch.zeros(len(remaining), 1), remaining, remaining, remaining)
    for whole in (False, True):
        pieces = list(batch.pieces(num_rows, whole_texts=whole))
        assert [row for piece in pieces for row in range(piece.start, piece.stop)] == list(range(len(remaining)))
        if whole:
            assert all(int(remaining[piece.stop - 1]) == 1 for piece in pieces)
        longest = max(num_rows, max(lengths)) if whole else num_rows
        assert all(piece.stop - piece.start <= longest for piece in pieces)


def test_trained_tensors_survive_saving_and_loading() -> None:
    form = objective(BASE, kind="hydra").form
    values = {name: tensor.half().float().numpy() for name, tensor in fresh(form).items()}
    for name, again in form.trained(form.heads(values, None)).items():
        np.testing.assert_array_equal(again, values[name])


def test_the_hard_loss_is_the_published_one() -> None:
    read = documents()[4]
    batch = STATES.batch([4])
    goal = objective(BASE, vocab=None, soft_weight=0.0, sees_root=False)
    tensors = fresh(goal.form)
    expected, size = 0.0, BASE.model.width
    for k in range(1, 4):
        w, b = (tensors[f"first.{part}"][(k - 1) * size : k * size] for part in ("weight", "bias"))
        places = range(2, len(read.tokens) - k)  # of roots whose k-th successor is known
        x = batch.hidden[[t - 2 for t in places]]
        logits = (x + torch.nn.functional.silu(x @ w.T + b)) @ BASE.model.output.T
        wanted = torch.tensor([read.tokens[t + k] for t in places])
        expected += 0.8**k * float(torch.nn.functional.cross_entropy(logits, wanted))
    assert gradients(goal, tensors, batch)[0] == pytest.approx(expected, rel=1e-5)


def test_tokens_outside_the_draft_vocabulary_teach_nothing_but_count_as_misses() -> None:
    batch = STATES.batch([1, 3])
    narrow = objective(BASE, vocab=(0, 1, 2, 30))
    assert narrow.num_targets(batch) == [0, 0, 0]
    assert gradients(narrow, fresh(narrow.form), batch) == (0.0, {})
    found = acceptance(measure_ranks(narrow.form, fresh(narrow.form), narrow.base, STATES, [1, 3], 4), 4)
    assert found.by_position == (0.0, 0.0, 0.0)
    assert found.predicted_length == {8: 1.0, 16: 1.0}


def test_targets_stay_within_their_span() -> None:
    goal = objective(BASE, vocab=None)
    two = Document("chat", 0.0, (1, 5, 6, 7, 8, 9, 10), ((1, 3), (4, 7)))
    batch = Online(BASE.target, [two]).batch([0])
    assert batch.roots.tolist() == [5, 6, 8, 9, 10]
    assert [targets.tolist() for targets in goal._targets(batch)] == [[6, -1, 9, 10, -1], [-1, -1, 10, -1, -1], [-1] * 5]


def test_accuracies_count_exactly_the_rank_of_the_base_s_pick() -> None:
    goal = objective(BASE)
    tensors = fresh(goal.form)
    found = acceptance(measure_ranks(goal.form, tensors, goal.base, STATES, list(range(30)), 4), 4)
    table = found.array()
    assert table.shape == (3, 4)
    assert ((table >= 0) & (table <= 1)).all() and (table.sum(1) <= 1 + 1e-9).all()
    assert found.by_position == tuple(table[:, 0])
    assert 1 <= found.predicted_length[8] <= found.predicted_length[16]


def test_kinds_with_enough_held_out_text_are_measured_by_themselves() -> None:
    goal = objective(BASE)
    tensors = fresh(goal.form)
    texts = [dataclasses.replace(read, kind=("few", "many", "many-second")[min(i, 2)]) for i, read in enumerate(documents())]

    def measure(chosen: Any) -> Ranks:
        return measure_ranks(goal.form, tensors, goal.base, STATES, chosen, 4)

    held_out = list(range(30))
    whole = acceptance(measure(held_out), 4)
    found = acceptance_by_kind(measure, whole, texts, held_out, STATES)
    assert found.keys() == {"many"}
    assert found["many"].num_rows == sum(num_rows(read) for i, read in enumerate(texts) if i)
    assert found["many"].by_position == acceptance(measure(held_out[1:]), 4).by_position
    assert found["many"].predicted_length.keys() == whole.predicted_length.keys()


def scripted(lengths: list[float]) -> Callable[[Tensors], Measured]:
    left = iter(lengths)
    return lambda tensors: Measured(Acceptance(((0.5,),), (0.5,), {8: 1.0, 16: next(left)}))


def trainer(
    evaluate: Any = None, settings: TrainSettings = SETTINGS, goal: Objective | None = None, **options: Any
) -> Trainer[Batch]:
    goal = goal or objective(BASE)
    texts = list(range(24))
    held_out = list(range(24, 30))

    def measured(tensors: Tensors) -> Measured:
        return Measured(acceptance(measure_ranks(goal.form, tensors, goal.base, STATES, held_out, 4), 4))

    return Trainer(goal, fresh(goal.form), STATES, texts, settings, evaluate=evaluate or measured, **options)


def test_the_best_heads_by_acceptance_are_kept_not_the_last() -> None:
    kept: list[tuple[float, int]] = []
    made = trainer(
        scripted([1.0, 3.0, 3.3, 3.2]),
        SETTINGS.changed(epochs=1),
        keep=lambda tensors, found, progress: kept.append((found.predicted_length[16], progress.step)),
    )
    made.plan(None)
    made.progress.total_steps = 3
    made.run()
    assert kept == [(1.0, 0), (3.0, 1), (3.3, 2)]
    assert [point["length"] for point in made.progress.curve] == [1.0, 3.0, 3.3, 3.2]
    assert (made.progress.best_length, made.progress.best_step) == (3.3, 2)


@pytest.mark.parametrize("vocab_sample", [0, 6])
@pytest.mark.parametrize("kind", ["medusa", "hydra", "mtp"])
def test_a_resumed_run_ends_with_the_same_bits(tmp_path: Path, vocab_sample: int, kind: str) -> None:
    def made() -> Trainer[Batch]:
        goal = objective(BASE, vocab_sample=vocab_sample, kind=kind)
        return trainer(goal=goal, checkpoint=tmp_path / "c.safetensors", about={"a": 1})

    straight = made()
    straight.plan(None)
    straight.progress.total_steps = 20
    straight.run()
    first = made()
    first.plan(None)
    first.progress.total_steps = 20
    first.run(stop_after=10)
    second = made()
    second.resume(tmp_path / "c.safetensors")
    assert second.progress.step == 10
    second.run()
    assert second.progress.step == straight.progress.step == 20
    for name, tensor in straight.tensors.items():
        assert tensor.equal(second.tensors[name]), name
    assert second.progress.curve == straight.progress.curve


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    (tmp_path / "c.safetensors").write_bytes(b"12345678901234567890")
    with pytest.raises(TrainingError, match="not a readable checkpoint"):
        trainer().resume(tmp_path / "c.safetensors")


def test_the_optimiser_holds_the_heads_alone_and_the_base_keeps_its_bytes_and_no_graph() -> None:
    module = BASE.model.module
    before = {name: parameter.clone() for name, parameter in module.named_parameters()}
    made = trainer(settings=SETTINGS.changed(epochs=1))
    held = {id(p) for group in made.optimizer.param_groups for p in group["params"]}
    assert held == {id(tensor) for tensor in made.tensors.values()}
    assert not STATES.batch([0]).hidden.requires_grad
    made.plan(None)
    made.run()
    for name, parameter in module.named_parameters():
        assert parameter.equal(before[name]) and parameter.grad is None and not parameter.requires_grad


class Poisoned:
    """States whose batches are not finite from some batch on."""

    def __init__(self, good: int, bad: int) -> None:
        self.num_rows, self._good, self._bad, self._count = STATES.num_rows, good, bad, 0

    def rows_of(self, document: int) -> int:
        return STATES.rows_of(document)

    def batch(self, chosen: Any) -> Batch:
        self._count += 1
        batch = STATES.batch(chosen)
        poisoned = self._good < self._count <= self._good + self._bad
        return dataclasses.replace(batch, hidden=batch.hidden * math.nan) if poisoned else batch


@pytest.mark.parametrize("kind", ["medusa", "hydra", "mtp"])
def test_heads_learn_what_the_text_repeats(kind: str) -> None:
    goal = objective(BASE, soft_weight=0.0, kind=kind)
    made = trainer(settings=SETTINGS.changed(epochs=15, learning_rate=1e-2), goal=goal)
    made.plan(None)
    made.run()
    assert made.progress.best_length > made.progress.curve[0]["length"] + 0.3


def test_a_batch_that_is_not_finite_is_skipped_and_counted() -> None:
    made = trainer(scripted([1.0] * 9))
    made.states = Poisoned(2, 3)
    made.plan(None)
    made.progress.total_steps = 7
    made.states = Poisoned(2, 3)
    made.run()
    assert (made.progress.num_skipped, made.progress.num_bad) == (3, 0)
    assert all(bool(torch.isfinite(tensor).all()) for tensor in made.tensors.values())


def test_too_many_bad_batches_in_a_row_stop_training_with_the_step() -> None:
    made = trainer(scripted([1.0] * 9))
    made.plan(None)
    made.states = Poisoned(1, 99)
    with pytest.raises(TrainingError, match=r"stopped at step 7: 6 batches in a row.*not finite"):
        made.run()


def test_batches_with_nothing_to_learn_stop_training_too() -> None:
    made = trainer(scripted([1.0] * 9), goal=objective(BASE, vocab=(0, 1, 2, 30)))
    made.plan(None)
    with pytest.raises(TrainingError, match="nothing to learn from"):
        made.run()


def test_a_run_out_of_time_stops_cleanly() -> None:
    made = trainer()
    made.plan(0.0)
    assert made.progress.total_steps == 1
    made.progress.total_steps = 50
    made.run(deadline=0.0)
    assert made.progress.step == 0


def chats(path: Path, number: int = 90) -> Path:
    """Answers that follow a pattern."""
    rng = np.random.default_rng(1)
    lines = []
    for _ in range(number):
        start = int(rng.integers(0, 26))
        answer = "".join(chr(97 + (start + 5 * i) % 26) for i in range(int(rng.integers(6, 14))))
        lines.append(json.dumps({"turns": ["go on", answer]}))
    path.write_text("\n".join(lines))
    return path


def run(tmp_path: Path, **options: Any) -> TrainResult:
    chosen: dict[str, Any] = {
        "settings": SETTINGS.changed(epochs=5),
        "data": chats(tmp_path / "chats.jsonl"),
        "out": tmp_path / "heads",
    }
    return train(tiny_loaded(), **(chosen | options))


@pytest.mark.parametrize("kind", ["medusa", "hydra", "mtp"])
def test_one_call_trains_heads_that_load_with_their_measured_acceptance(tmp_path: Path, kind: str) -> None:
    events: list[Event] = []
    settings = SETTINGS.changed(epochs=15, learning_rate=1e-2)
    result = run(tmp_path, heads=kind, report=events.append, settings=settings)
    assert result.after.predicted_length[16] > result.before.predicted_length[16]
    heads = load_heads(tmp_path / "heads", BaseIdentity.of(tiny_loaded().target))
    assert heads.config.kind == kind
    assert heads.card.acceptance == result.after
    assert heads.card.provenance["data"] == "chats.jsonl"
    record = json.loads((tmp_path / "heads" / "training.json").read_text())
    assert record["progress"]["curve"][0]["tokens"] == 0
    assert max(point["length"] for point in record["progress"]["curve"]) == result.after.predicted_length[16]
    assert record["acceptance_by_kind"] == {kind: dataclasses.asdict(found) for kind, found in result.by_kind.items()}
    assert record["corpus"]["share_by_kind"] == {"chat": 1.0}
    assert {event.stage for event in events} == {"capture", "train"}
    assert any("are supervised" in event.message for event in events)
    assert any("MB of disk" in event.message for event in events)


def test_states_computed_anew_teach_the_same(tmp_path: Path) -> None:
    stored = run(tmp_path)
    online = run(tmp_path, out=tmp_path / "other", online=True)
    assert not (tmp_path / "other.work" / "states").exists()
    assert online.after.predicted_length[16] == pytest.approx(stored.after.predicted_length[16], abs=0.05)


@pytest.mark.parametrize(("kind", "other"), [("medusa", "hydra"), ("hydra", "medusa"), ("mtp", "hydra")])
def test_heads_that_are_trained_further_start_from_what_was_stored(tmp_path: Path, kind: str, other: str) -> None:
    first = run(tmp_path, heads=kind)
    vocab = load_heads(tmp_path / "heads").config.draft_vocab
    with pytest.raises(RequestError, match="draft_vocab is 9, which has no effect with init"):
        run(tmp_path, heads=kind, out=tmp_path / "more", init=tmp_path / "heads", draft_vocab=9)
    with pytest.raises(RequestError, match=f"are of kind {kind}, not {other}"):
        run(tmp_path, heads=other, out=tmp_path / "more", init=tmp_path / "heads")
    more = run(tmp_path, heads=kind, out=tmp_path / "more", init=tmp_path / "heads")
    assert more.before == first.after
    assert load_heads(tmp_path / "more").config.draft_vocab == vocab


def test_the_provenance_names_the_command_but_no_folder_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", [str(tmp_path / "bin" / "headstart"), "train", "toy", "--out", str(tmp_path / "heads")])
    run(tmp_path)
    card = load_heads(tmp_path / "heads").card
    assert card.provenance["command"] == "headstart train toy --out heads"


def test_a_run_of_the_module_is_named_as_it_was_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/somewhere/headstart/__main__.py", "train", "toy", "--out", "/elsewhere/heads"])
    assert command() == "python -m headstart train toy --out heads"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"inner_factor": 0.0001}, "inner_factor is 0.0001: blocks of a model of width 32 would have no inner width"),
        ({"minutes": "ten"}, "minutes is 'ten'; it must be a number"),
        ({"epochs": True}, "epochs is True; it must be a number"),
        ({"num_heads": 2.0}, "num_heads is 2.0; it must be a whole number"),
        ({"sees_root": "no"}, "sees_root is 'no'; it must be true or false"),
        ({"betas": 0.9}, "betas is 0.9; it must be two numbers"),
        ({"output": 5}, "output is 5"),
        ({"settings": {"epochs": 1}}, "settings is .*; it must be a TrainSettings"),
        ({"data": 5}, "data is 5; it must be a path"),
        ({"out": 5}, "out is 5; it must be a folder"),
        ({"resume": "no"}, "resume is 'no'; it must be True or False"),
    ],
)
def test_an_argument_that_cannot_be_meant_is_refused_by_name(tmp_path: Path, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(RequestError, match=reason):
        run(tmp_path, **options)


def test_a_model_that_is_none_is_refused_by_name() -> None:
    with pytest.raises(RequestError, match="model is 5; it must be a model's name, or a loaded one"):
        train(5)  # type: ignore[arg-type]


def test_finished_heads_are_not_replaced_unasked(tmp_path: Path) -> None:
    first = run(tmp_path)
    with pytest.raises(RequestError, match="holds the heads of a finished run"):
        run(tmp_path)
    assert load_heads(tmp_path / "heads").card.acceptance == first.after
    assert run(tmp_path, resume=False).after == first.after


def test_the_model_writes_its_own_text_without_data(tmp_path: Path) -> None:
    events: list[Event] = []
    options = {"corpus_tokens": 200, "writer_batch": 8, "answer_tokens": 12, "question_tokens": 24, "epochs": 2}
    result = run(tmp_path, data=None, report=events.append, settings=SETTINGS.changed(**options))
    assert result.num_corpus_tokens >= 200
    assert (tmp_path / "heads.work" / "corpus" / "documents.jsonl").exists()
    assert [event.message for event in events if event.stage == "write"]


def test_a_killed_run_goes_on_and_ends_like_one_that_was_not(tmp_path: Path) -> None:
    straight = run(tmp_path)
    seen: list[int] = []

    def die(event: Event) -> None:
        if event.stage == "train" and event.total:
            seen.append(event.done)
            if event.done == 9:
                raise KeyboardInterrupt

    options: dict[str, Any] = {"out": tmp_path / "killed", "settings": SETTINGS.changed(epochs=5, checkpoint_minutes=0)}
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, report=die, **options)
    with pytest.raises(TrainingError, match=r"other settings \(heads\)"):
        run(tmp_path, heads="hydra", **options)
    with pytest.raises(TrainingError, match=r"other settings \(learning_rate\)"):
        run(tmp_path, out=tmp_path / "killed", settings=options["settings"].changed(learning_rate=1.0))
    resumed = run(tmp_path, report=lambda event: seen.append(event.done), **options)
    assert resumed.after == straight.after
    assert resumed.before == straight.before
    assert not (tmp_path / "killed.work" / "checkpoint.safetensors").exists()


def test_a_run_killed_when_it_first_keeps_heads_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    straight = run(tmp_path)
    publish = Trainer._keep_if_best

    def die(trainer: Any, measured: Any) -> None:
        publish(trainer, measured)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "_keep_if_best", die)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, out=tmp_path / "killed")
    assert (tmp_path / "killed" / "config.json").exists()
    assert run(tmp_path, out=tmp_path / "killed").after == straight.after


@pytest.mark.parametrize("name", ["hidden.bin", "greedy.bin"])
def test_states_of_which_a_part_is_missing_are_captured_anew(tmp_path: Path, name: str) -> None:
    capture(BASE.target, documents(), tmp_path, dtype="float32", deadline=None, report=lambda *rows: None)
    with (tmp_path / name).open("r+b") as file:
        file.truncate(100)
    states, _ = capture(BASE.target, documents(), tmp_path, dtype="float32", deadline=None, report=lambda *rows: None)
    for number in range(len(documents())):
        torch.testing.assert_close(states.batch([number]).hidden, STATES.batch([number]).hidden)
        assert states.batch([number]).picks.tolist() == STATES.batch([number]).picks.tolist()


@pytest.mark.parametrize(
    ("options", "error", "complaint"),
    [
        ({"heads": "hydro"}, RequestError, "choose medusa or hydra or mtp"),
        ({"heads": "hydra", "settings": SETTINGS.changed(sees_root=False)}, RequestError, "sees_root has no effect with heads"),
        ({"heads": "hydra", "settings": SETTINGS.changed(inner_factor=0.0)}, RequestError, "inner_factor is 0"),
        ({"corpus": "x"}, RequestError, "not both"),
        ({"epoch": 3}, RequestError, "did you mean epochs"),
    ],
)
def test_what_cannot_be_trained_is_refused(tmp_path: Path, options: Any, error: type[Exception], complaint: str) -> None:
    with pytest.raises(error, match=complaint):
        run(tmp_path, **options)


@pytest.mark.parametrize(
    "options", [{"out": "stands"}, {"out": "file"}, {"out": ".."}, {"out": "."}, {"out": ""}, {"init": "missing"}]
)
def test_what_would_fail_at_the_end_fails_before_any_work(
    tmp_path: Path, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stands").mkdir()
    (tmp_path / "stands" / "mine.txt").write_text("precious")
    (tmp_path / "file").write_text("precious")
    monkeypatch.chdir(tmp_path)
    events: list[Event] = []
    with pytest.raises(HeadsError):
        run(tmp_path, report=events.append, **options)
    assert not events
    assert (tmp_path / "stands" / "mine.txt").read_text() == (tmp_path / "file").read_text() == "precious"


@pytest.mark.parametrize("options", [{"corpus": "file", "data": None}, {"out": "file/heads"}])
def test_a_folder_that_cannot_be_made_is_one_line(
    tmp_path: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"cannot be written: .*file is no folder; name another place"):
        run(tmp_path, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"betas": (0.9, 1.0)},
        {"betas": (0.9,)},
        {"head_decay": math.nan},
        {"epochs": math.inf},
        {"learning_rate": 0},
        {"seed": -1},
        {"seed": 2**32},
    ],
)
def test_settings_of_no_sense_are_refused_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match=next(iter(options))):
        TrainSettings(**options)


def test_a_single_document_is_not_enough(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="one document is not enough"):
        run(tmp_path, data=chats(tmp_path / "one.jsonl", 1))


def test_predicted_lengths_follow_the_optimal_tree() -> None:
    ranks = np.array([[0, 0], [0, 2], [1, 0], [2, -1]])
    found = acceptance(ranks, 2)
    np.testing.assert_allclose(found.array(), [[0.5, 0.25], [2 / 3, 0.0]])
    assert found.predicted_length == {8: pytest.approx(1 + 5 / 3), 16: pytest.approx(1 + 5 / 3)}
    assert counted_length([(0,), (0, 0)], ranks) == pytest.approx(1 + 3 / 3)


def test_states_are_read_only_from_disk(tmp_path: Path) -> None:
    states, _ = capture(BASE.target, documents(), tmp_path, dtype="float32", deadline=None, report=lambda *rows: None)
    assert isinstance(states, Captured)
    states.batch([0]).hidden.zero_()
    torch.testing.assert_close(states.batch([0]).hidden, STATES.batch([0]).hidden)
    assert Progress(3).step == 0
