"""The real decoder in training, and several kinds of heads on the same states."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chat_model import save_chat_model, tiny_base
from headstart.decode import Decoder
from headstart.errors import RequestError, TrainingError
from headstart.heads.base import find_heads, load_heads
from headstart.plan.profile import Profile
from headstart.proposers.choose import proposer_of
from headstart.sampling import Sampling
from headstart.train import Event, TrainResult, train
from headstart.train.corpus import Document
from headstart.train.decoded import HeldOutPrompts
from headstart.train.offers import ROWS, offers_of
from test_train_heads import SETTINGS, chats, objective

BASE = tiny_base()
TEXTS = [
    Document("chat", 0.0, (1, 5, 6, 7, 8, 9), ((3, 6),)),
    Document("chat", 0.5, (1, 5, 6, 11, 12, 13), ((3, 6),)),  # the same prompt
    Document("text", 0.5, tuple(range(3, 23)), ((0, 20),)),
    Document("chat", 0.5, (1, 7, 9, 10), ((3, 4),)),
]


def fresh_heads(kind: str = "medusa") -> Any:
    form = objective(BASE, kind=kind).form
    return form.heads(form.fresh(0), None)


def test_prompts_are_what_stands_before_first_answers_each_once() -> None:
    prompts = HeldOutPrompts(BASE.target, TEXTS, 9, 4).prompts
    assert set(prompts) == {(1, 5, 6), tuple(range(3, 11)), (1, 7, 9)}
    assert len(HeldOutPrompts(BASE.target, TEXTS, 2, 4).prompts) == 2
    assert not HeldOutPrompts(BASE.target, TEXTS, 9, BASE.target.context_limit - 1).prompts


@pytest.mark.parametrize("one_by_one", [False, True])
@pytest.mark.parametrize("kind", ["medusa", "hydra", "mtp"])
def test_what_is_decoded_is_what_the_loop_decodes(kind: str, one_by_one: bool) -> None:
    heads = fresh_heads(kind)
    prompts = HeldOutPrompts(BASE.target, TEXTS, 9, 8)
    decoded = prompts.decode(heads, 7, one_by_one=one_by_one)
    emitted = steps = 0
    for prompt in prompts.prompts:
        decoder = Decoder(BASE.target, proposer_of(heads, BASE.target), num_nodes=7)
        (generation,) = decoder.add(prompt, Sampling(max_tokens=8, ignore_eos=True), seed=0)
        decoder.run()
        emitted, steps = emitted + generation.stats.num_emitted, steps + generation.stats.num_steps
    assert decoded.acceptance_length == emitted / steps
    assert decoded.timings.propose > 0
    assert max(decoded.timings.steps_by_rows) <= (8 if one_by_one else 24)


def test_offers_weigh_length_against_the_price_of_rows_and_of_asking() -> None:
    heads = {"medusa": fresh_heads(), "hydra": fresh_heads("hydra")}
    prompts = HeldOutPrompts(BASE.target, TEXTS, 2, 6)
    second = 1e6  # in which asking takes no time to speak of, however busy the machine
    dear = Profile((1, 2, 4, 8, 16), (second, 2 * second, 4 * second, 8 * second, 16 * second))
    found = offers_of(heads, prompts, dear)
    assert {(offer.heads, offer.rows) for offer in found} == {(kind, rows) for kind in heads for rows in ROWS}
    for offer in found:
        seconds = (offer.forward_ms + offer.asking_ms) / 1000
        assert offer.tokens_per_second == pytest.approx(offer.acceptance_length / seconds)
        assert offer.plain_tokens_per_second == 1 / second
        assert 1.0 <= offer.forward_ms / 1000 / second <= offer.rows
    rates = [offer.tokens_per_second for offer in found]
    assert rates == sorted(rates, reverse=True)
    assert found[0].rows == 2, "where a row costs as much as a step, the smallest draft is best"
    free = offers_of(heads, prompts, Profile((1, 16), (second, second)))
    assert all(offer.speedup == pytest.approx(offer.acceptance_length, rel=0.01) for offer in free)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_chat_model(tmp_path_factory.mktemp("model") / "origin", head_dim=16)


KINDS = SETTINGS.changed(epochs=3, num_heads=2, decoded_prompts=2, decoded_tokens=8)


def run(model: str, tmp_path: Path, **options: Any) -> TrainResult:
    chosen: dict[str, Any] = {
        "settings": KINDS,
        "data": chats(tmp_path / "chats.jsonl", 40),
        "out": tmp_path / "heads",
        "heads": "medusa,hydra,mtp",
    }
    return train(model, **(chosen | options))


def test_several_kinds_learn_from_the_same_states_and_the_best_one_is_named(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[Event] = []
    result = run(model, tmp_path, report=events.append)
    assert list(result.kinds) == ["medusa", "hydra", "mtp"]
    assert sum("MB of disk" in event.message for event in events) == 1, "captured once"
    assert result.path == tmp_path / "heads" / result.offers[0].heads
    assert len(result.offers) == 3 * len(ROWS)
    assert json.loads((tmp_path / "heads" / "offers.json").read_text())[0]["heads"] == result.offers[0].heads
    for kind, one in result.kinds.items():
        heads = load_heads(tmp_path / "heads" / kind)
        assert heads.config.kind == kind and heads.card.acceptance == one.after
        assert all(point["decoded_length"] >= 1 for point in one.progress.curve)
    alone = run(model, tmp_path, heads="hydra", out=tmp_path / "alone")
    for name, values in load_heads(tmp_path / "alone").tensors.items():
        np.testing.assert_array_equal(values, load_heads(tmp_path / "heads" / "hydra").tensors[name])
    assert alone.after == result.kinds["hydra"].after
    monkeypatch.setenv("HEADSTART_HEADS", str(tmp_path / "heads"))
    assert find_heads(heads.card.base.fingerprint, "mtp") == tmp_path / "heads" / "mtp"
    with pytest.raises(RequestError, match="holds the heads of a finished run"):
        run(model, tmp_path)


def test_several_kinds_go_on_with_the_one_that_was_stopped(model: str, tmp_path: Path) -> None:
    seen: list[str] = []

    def die(event: Event) -> None:
        seen.append(event.message)
        if event.total and event.stage == "train" and any("kind hydra" in message for message in seen) and event.done == 4:
            raise KeyboardInterrupt

    settings = KINDS.changed(checkpoint_minutes=0)
    with pytest.raises(KeyboardInterrupt):
        run(model, tmp_path, report=die, settings=settings)
    with pytest.raises(TrainingError, match=r"other settings \(heads\)"):
        run(model, tmp_path, heads="medusa,mtp", settings=settings)
    again: list[str] = []
    result = run(model, tmp_path, report=lambda event: again.append(event.message), settings=settings)
    assert not any("kind medusa" in message for message in again)
    straight = run(model, tmp_path, out=tmp_path / "straight")
    for kind in ("medusa", "hydra", "mtp"):
        assert result.kinds[kind].after == straight.kinds[kind].after
        assert result.kinds[kind].by_kind == straight.kinds[kind].by_kind


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"heads": "medusa,medusa"}, "names a kind twice"),
        ({"heads": "medusa,eagle"}, "'eagle' cannot be trained"),
        ({"heads": "medusa,hydra", "model_out": "tuned"}, "heads of one kind"),
        ({"init": "somewhere"}, "init names heads of one kind"),
        ({"settings": KINDS.changed(sees_root=False)}, "sees_root has no effect with heads of kind hydra"),
    ],
)
def test_what_several_kinds_cannot_share_is_refused(model: str, tmp_path: Path, options: Any, complaint: str) -> None:
    with pytest.raises(RequestError, match=complaint):
        run(model, tmp_path, **options)
    assert not (tmp_path / "heads.work").exists()
