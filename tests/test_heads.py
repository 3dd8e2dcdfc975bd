"""Heads: their mathematics, and a folder that is loaded exactly as it was saved or refused in one line."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from headstart.errors import HeadsError
from headstart.heads.base import Acceptance, BaseIdentity, HeadsCard, find_heads, load_heads, save_heads
from headstart.heads.medusa import MedusaConfig, MedusaHeads, initial_tensors
from headstart.target.base import BaseWeights
from numpy_operations import NumpyOperations

VOCAB, WIDTH, HEADS = 20, 6, 3
OPS = NumpyOperations()
BASE = BaseIdentity("fp-1", WIDTH, VOCAB, "toy")
ACCEPTANCE = Acceptance(((0.4, 0.1), (0.2, 0.1), (0.1, 0.05)), (0.4, 0.2, 0.1), {8: 1.5, 16: 1.7})
CARD = HeadsCard(BASE, ACCEPTANCE, {"command": "headstart train toy", "seed": 1, "tokens": 1000})
LAYOUTS: dict[str, dict[str, Any]] = {
    "root": {},
    "published": {"sees_root": False},
    "two blocks": {"num_blocks": 2},
    "inner": {"inner_size": 4},
    "two inner blocks": {"inner_size": 4, "num_blocks": 2, "sees_root": False},
    "own": {"output": "own"},
    "shared": {"output": "shared", "draft_vocab": (3, 1, 15)},
    "draft vocabulary": {"draft_vocab": (19, 0, 7, 8)},
}


def config(**changes: Any) -> MedusaConfig:
    return MedusaConfig(num_heads=HEADS, hidden_size=WIDTH, vocab_size=VOCAB, **changes)


def base_weights(num_padding: int = 0) -> BaseWeights:
    rng = np.random.default_rng(5)
    return BaseWeights(*(rng.standard_normal((VOCAB + num_padding, WIDTH)).astype(np.float32) for _ in range(2)))


def fresh(settings: MedusaConfig, card: HeadsCard | None = CARD) -> MedusaHeads:
    return MedusaHeads(settings, initial_tensors(settings, np.random.default_rng(0), base_weights().output), card)


def trained(settings: MedusaConfig) -> MedusaHeads:
    rng = np.random.default_rng(1)
    return MedusaHeads(settings, {n: rng.standard_normal(s).astype(np.float32) for n, s in settings.shapes().items()}, CARD)


def hidden_states(num_rows: int = 4) -> NDArray[np.float32]:
    return np.random.default_rng(2).standard_normal((num_rows, WIDTH)).astype(np.float32)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_fresh_head_says_what_the_base_says(layout: str) -> None:
    settings = config(**LAYOUTS[layout])
    weights, hidden = base_weights(), hidden_states()
    rows = list(settings.draft_vocab or range(VOCAB))
    for logits in fresh(settings).bind(OPS, weights).logits(hidden, [0, 1, 2, 3]):
        np.testing.assert_allclose(logits, hidden @ weights.output[rows].T, rtol=1e-6)


def test_the_published_head_is_the_equation() -> None:
    heads, hidden, weights = trained(config(sees_root=False)), hidden_states(), base_weights()
    for k, logits in enumerate(heads.bind(OPS, weights).logits(hidden, [0, 0, 0, 0])):
        rows = slice(k * WIDTH, (k + 1) * WIDTH)
        z = hidden @ heads.tensors["first.weight"][rows].T + heads.tensors["first.bias"][rows]
        np.testing.assert_allclose(logits, (hidden + z / (1 + np.exp(-z))) @ weights.output.T, rtol=1e-4)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_guesses_are_the_likeliest_tokens_of_the_logits(layout: str) -> None:
    settings = config(**LAYOUTS[layout])
    bound, hidden = trained(settings).bind(OPS, base_weights()), hidden_states()
    tokens, probabilities = bound.guesses(hidden, [1, 2, 3, 4], 3)
    assert tokens.shape == probabilities.shape == (4, HEADS, 3)
    names = np.array(settings.draft_vocab or range(VOCAB))
    for k, logits in enumerate(bound.logits(hidden, [1, 2, 3, 4])):
        np.testing.assert_array_equal(tokens[:, k], names[np.argsort(-logits, axis=1)[:, :3]])
        weights = np.exp(logits.astype(np.float64))
        expected = -np.sort(-weights / weights.sum(axis=1, keepdims=True), axis=1)[:, :3]
        np.testing.assert_allclose(probabilities[:, k], expected, rtol=1e-4)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_row_does_not_depend_on_the_rows_beside_it(layout: str) -> None:
    bound, hidden = trained(config(**LAYOUTS[layout])).bind(OPS, base_weights()), hidden_states()
    together = bound.logits(hidden, [1, 2, 3, 4])
    for i in range(4):
        for whole, alone in zip(together, bound.logits(hidden[i : i + 1], [i + 1]), strict=True):
            np.testing.assert_allclose(whole[i], alone[0], rtol=1e-4, atol=1e-5)


def test_only_heads_that_see_the_root_depend_on_it() -> None:
    hidden = hidden_states(1)
    for sees_root in (True, False):
        bound = trained(config(sees_root=sees_root)).bind(OPS, base_weights())
        assert np.array_equal(bound.logits(hidden, [1])[0], bound.logits(hidden, [2])[0]) is not sees_root


def test_heads_that_share_a_matrix_take_two_products() -> None:
    ops = NumpyOperations()
    bound = trained(config()).bind(ops, base_weights())
    bound.guesses(hidden_states(), [1, 2, 3, 4], 2)
    assert ops.num_products == 2


def test_own_and_base_output_agree_while_the_own_one_is_a_copy() -> None:
    tied, weights = trained(config()), base_weights()
    names = config(output="own").output_names()
    own = MedusaHeads(config(output="own"), tied.tensors | {name: weights.output.copy() for name in names}, CARD)
    for a, b in zip(*(h.bind(OPS, weights).logits(hidden_states(), [1, 2, 3, 4]) for h in (tied, own)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_padding_rows_of_the_base_are_never_guessed() -> None:
    weights = base_weights(num_padding=4)
    weights.output[VOCAB:] = 100 * weights.output[0]
    tokens, _ = fresh(config()).bind(OPS, weights).guesses(hidden_states(), [1, 2, 3, 4], VOCAB)
    assert tokens.max() < VOCAB


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_two_tensors_share_their_storage(layout: str) -> None:
    source = base_weights().output
    tensors = list(initial_tensors(config(**LAYOUTS[layout]), np.random.default_rng(0), source).values())
    for i, tensor in enumerate(tensors):
        assert not any(np.shares_memory(tensor, other) for other in [*tensors[:i], source])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_loading_gives_exactly_what_was_saved(layout: str, tmp_path: Path) -> None:
    heads = trained(config(**LAYOUTS[layout]))
    save_heads(tmp_path / "heads", heads)
    loaded = load_heads(tmp_path / "heads", BASE)
    assert loaded.config == heads.config
    assert loaded.card == heads.card
    assert loaded.tensors.keys() == heads.tensors.keys()
    for name, values in heads.tensors.items():
        assert loaded.tensors[name].tobytes() == values.tobytes()
    assert sorted(os.listdir(tmp_path)) == ["heads"]


def test_rounded_heads_are_saved_in_half_the_bytes_and_exactly(tmp_path: Path) -> None:
    heads = trained(config()).rounded()
    save_heads(tmp_path / "heads", heads)
    assert load_file(tmp_path / "heads" / "model.safetensors")["first.weight"].dtype == np.float16
    for name, values in load_heads(tmp_path / "heads").tensors.items():
        assert values.dtype == np.float32
        np.testing.assert_array_equal(values, heads.tensors[name])


def test_heads_too_large_for_float16_are_not_rounded() -> None:
    heads = trained(config())
    heads.tensors["first.bias"][0] = 1e6
    with pytest.raises(HeadsError, match="too large for float16"):
        heads.rounded()


def test_an_existing_heads_folder_is_replaced_and_nothing_else_is(tmp_path: Path) -> None:
    save_heads(tmp_path / "heads", fresh(config()))
    (tmp_path / "heads" / "leftover").touch()
    save_heads(tmp_path / "heads", trained(config()))
    assert sorted(os.listdir(tmp_path / "heads")) == ["config.json", "model.safetensors"]
    assert load_heads(tmp_path / "heads").tensors["first.bias"].any()
    precious = tmp_path / "documents"
    precious.mkdir()
    (precious / "thesis.txt").write_text("years of work")
    with pytest.raises(HeadsError, match="not a heads folder"):
        save_heads(precious, fresh(config()))
    assert (precious / "thesis.txt").exists()


def test_the_old_heads_stay_when_the_new_ones_cannot_be_put_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_heads(tmp_path / "heads", fresh(config()))
    rename = Path.rename

    def refuse_the_new(self: Path, target: Path) -> Path:
        if self.name.endswith(".new"):
            raise OSError("the disk is full")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refuse_the_new)
    with pytest.raises(HeadsError, match="the disk is full"):
        save_heads(tmp_path / "heads", trained(config()))
    assert os.listdir(tmp_path) == ["heads"]
    assert not load_heads(tmp_path / "heads").tensors["first.bias"].any()


def test_heads_without_a_base_model_are_not_saved(tmp_path: Path) -> None:
    with pytest.raises(HeadsError, match="base model"):
        save_heads(tmp_path / "heads", fresh(config(), card=None))


def test_broken_tensors_are_not_saved(tmp_path: Path) -> None:
    heads = trained(config())
    heads.tensors["first.bias"][0] = np.nan
    with pytest.raises(HeadsError, match="NaN"):
        save_heads(tmp_path / "heads", heads)
    assert not os.listdir(tmp_path)


def edit_config(**changes: Any) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        content = json.loads((folder / "config.json").read_text()) | changes
        (folder / "config.json").write_text(json.dumps(content))

    return edit


def edit_tensors(change: Callable[[dict[str, NDArray[Any]]], object]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        tensors = dict(load_file(folder / "model.safetensors"))
        change(tensors)
        save_file(tensors, folder / "model.safetensors")

    return edit


def replace_by_pickle(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "medusa_lm_head.pt")


def truncate(name: str) -> Callable[[Path], None]:
    def cut(folder: Path) -> None:
        (folder / name).write_bytes((folder / name).read_bytes()[:-20])

    return cut


SIZES = config().sizes()
FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing tensor": (edit_tensors(lambda t: t.pop("first.bias")), "misses tensor 'first.bias'"),
    "extra tensor": (edit_tensors(lambda t: t.update(extra=np.zeros(1, np.float32))), "unknown tensor 'extra'"),
    "misshapen tensor": (edit_tensors(lambda t: t.update({"first.bias": np.zeros(3, np.float32)})), r"'first.bias' has shape"),
    "infinite tensor": (edit_tensors(lambda t: t.update({"first.bias": t["first.bias"] * np.inf})), "NaN or infinity"),
    "integer tensor": (edit_tensors(lambda t: t.update({"first.bias": np.zeros(18, np.int32)})), "int32"),
    "draft id out of range": (edit_tensors(lambda t: t.update(draft_vocab=np.array([0, 99]))), "token ids below 20"),
    "draft id twice": (edit_tensors(lambda t: t.update(draft_vocab=np.array([0, 0]))), "different token ids"),
    "another draft vocabulary than the config's": (edit_config(draft_vocab_size=3), "'draft_vocab_size' is 3, and the tensor"),
    "other format": (edit_config(format="medusa"), "does not describe heads"),
    "other version": (edit_config(version=99), "version 99"),
    "other kind": (edit_config(kind="crystal ball"), "'crystal ball'"),
    "a list of kinds": (edit_config(kind=["medusa"]), "unknown kind"),
    "no sizes": (edit_config(sizes=None), "'sizes' is missing"),
    "size misses": (edit_config(sizes={k: v for k, v in SIZES.items() if k != "num_blocks"}), "misses 'num_blocks'"),
    "unknown size": (edit_config(sizes=SIZES | {"colour": 3}), "unknown 'colour'"),
    "wrong size": (edit_config(sizes=SIZES | {"num_heads": 0}), "num_heads is 0"),
    "other base size": (edit_config(sizes=SIZES | {"vocab_size": 21}), "disagree"),
    "no base": (edit_config(base=None), "'base'"),
    "too few accuracies": (edit_config(acceptance=asdict(Acceptance(((0.5, 0.1),)))), "each head"),
    "damaged config": (truncate("config.json"), "damaged"),
    "damaged tensors": (truncate("model.safetensors"), "damaged"),
    "no config": (lambda folder: (folder / "config.json").unlink(), "config.json is missing"),
    "no tensors": (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors is missing"),
    "a pickle": (replace_by_pickle, r"medusa_lm_head\.pt is a pickle"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_wrong_with_a_folder_is_named(fault: str, tmp_path: Path) -> None:
    save_heads(tmp_path / "heads", trained(config()))
    spoil, message = FAULTS[fault]
    spoil(tmp_path / "heads")
    with pytest.raises(HeadsError, match=message) as caught:
        load_heads(tmp_path / "heads", BASE)
    assert "heads" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(HeadsError, match="nowhere"):
        load_heads(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": 8}, "hidden size 6, not 8"),
        ({"vocab_size": 9}, "vocab size 20, not 9"),
        ({"fingerprint": "fp-2"}, "fp-2"),
    ],
)
def test_heads_of_another_base_model_are_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    save_heads(tmp_path / "heads", trained(config()))
    other = replace(BASE, **change)
    with pytest.raises(HeadsError, match=message):
        load_heads(tmp_path / "heads", other)
    if "fingerprint" in change:
        assert load_heads(tmp_path / "heads", other, allow_other_base=True).config == config()
    else:
        with pytest.raises(HeadsError, match=message):
            load_heads(tmp_path / "heads", other, allow_other_base=True)


def test_heads_are_found_by_fingerprint_and_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_heads(tmp_path / "all" / "mine", trained(config()))
    save_heads(tmp_path / "single", replace(trained(config()), card=HeadsCard(replace(BASE, fingerprint="fp-2"))))
    (tmp_path / "all" / "broken").mkdir()
    (tmp_path / "all" / "broken" / "config.json").write_text("{")
    monkeypatch.setenv("HEADSTART_HEADS", os.pathsep.join(str(tmp_path / name) for name in ("all", "single")))
    assert find_heads("fp-1") == tmp_path / "all" / "mine"
    assert find_heads("fp-2", "medusa") == tmp_path / "single"
    assert find_heads("fp-1", "hydra") is None
    assert find_heads("fp-3") is None


def test_a_search_folder_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADSTART_HEADS", str(tmp_path / "gone"))
    with pytest.raises(HeadsError, match="gone"):
        find_heads("fp-1")


@pytest.mark.parametrize(
    "changes", [{"num_blocks": 0}, {"inner_size": -1}, {"output": "mine"}, {"draft_vocab": (1, 1)}, {"draft_vocab": (VOCAB,)}]
)
def test_impossible_sizes_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(HeadsError, match=next(iter(changes))):
        config(**changes)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_same_definition_runs_on_torch_and_lets_gradients_through(layout: str) -> None:
    torch = pytest.importorskip("torch")
    from headstart.heads.medusa import medusa_logits
    from headstart.target.torch_operations import TorchOperations

    heads, weights = trained(config(**LAYOUTS[layout])), base_weights()
    ops, hidden = TorchOperations(torch.float32), hidden_states()
    tensors = {name: torch.nn.Parameter(torch.tensor(values)) for name, values in heads.tensors.items()}
    outputs = [tensors[name] for name in heads.config.output_names()]
    rows = np.array(heads.config.draft_vocab or range(VOCAB))
    outputs = outputs or [ops.array(weights.output[rows])]
    roots = ops.take(ops.array(weights.embedding), np.array([1, 2, 3, 4])) if heads.config.sees_root else None
    logits = medusa_logits(ops, heads.config, tensors, ops.array(hidden), roots, outputs)
    for a, b in zip(logits, heads.bind(OPS, weights).logits(hidden, [1, 2, 3, 4]), strict=True):
        np.testing.assert_allclose(ops.numpy(a), b, rtol=1e-3, atol=1e-4)
    torch.stack([x.square().sum() for x in logits]).sum().backward()
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in tensors.values())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"base": {"fingerprint": "x", "hidden_size": 8, "vocab_size": "9"}}, "a size of the base is '9'"),
        ({"base": {"fingerprint": "x", "hidden_size": None, "vocab_size": 9}}, "a size of the base is None"),
        ({"base": {"fingerprint": "x"}}, "cannot be read"),
        ({"base": 5}, "cannot be read"),
        ({"acceptance": {"accuracies": 5}}, "cannot be read"),
        ({"kind": ["medusa"]}, "unknown kind"),
        (None, "is damaged"),
    ],
)
def test_a_config_of_other_types_is_one_clear_line(tmp_path: Path, change: dict[str, Any] | None, reason: str) -> None:
    base = {"fingerprint": "x", "hidden_size": 8, "vocab_size": 9, "name": "b"}
    config = {"format": "headstart-heads", "version": 1, "kind": "medusa", "sizes": {}, "base": base}
    text = "[" * 100_000 if change is None else json.dumps(config | change)
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(HeadsError, match=reason) as caught:
        load_heads(tmp_path)
    assert "\n" not in str(caught.value)


def test_counts_of_heads_and_blocks_are_bounded_since_their_tensors_are_listed() -> None:
    wrong: Any
    for wrong in ({"num_heads": 10**9}, {"num_blocks": None}, {"num_blocks": 2**40}, {"num_heads": True}):
        with pytest.raises(HeadsError, match="it must be a whole number from 1 to 1024"):
            MedusaConfig(**({"num_heads": 2, "hidden_size": 8, "vocab_size": 9} | wrong))
