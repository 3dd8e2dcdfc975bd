"""An MTP layer that reads prompts and fused features, on both engines: what is watched, the drafts, the text, the folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headstart.decode import Decoder
from headstart.errors import HeadsError, ModelError
from headstart.heads.base import BaseIdentity, HeadsCard, load_heads, save_heads
from headstart.heads.mtp import MtpConfig, MtpHeads, initial_tensors
from headstart.proposers.choose import proposer_of
from headstart.sampling import Sampling
from headstart.target.base import HIDDEN, Feed
from headstart.tree import Tree
from mtp_models import CONFIG, trained

pytest.importorskip("torch")
from headstart.target.loading import load_model

LAYERS, WIDTH = 7, 32
TEXT = [5, 9, 30, 31, 7, 7, 12, 40, 3, 3, 22]
READS: dict[str, dict[str, Any]] = {
    "prompts": {"reads_prompt": True},
    "features": {"eagle_aux_hidden_state_layer_ids": (2, 3, 4)},
    "both": {"reads_prompt": True, "eagle_aux_hidden_state_layer_ids": (0, 6)},
}


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    from chat_model import save_chat_model

    folder = save_chat_model(tmp_path_factory.mktemp("model"), head_dim=16, num_hidden_layers=LAYERS)
    return {engine: load_model(folder, engine=engine, dtype="float32").target for engine in ("native", "hf")}


def heads_for(target: Any, **reads: Any) -> MtpHeads:
    config = MtpConfig(WIDTH, target.vocab_size, 2, 1, 16, 48, **reads)
    heads = trained(config, seed=5)
    return MtpHeads(config, heads.tensors, HeadsCard(BaseIdentity.of(target)))


@pytest.mark.parametrize("engine", ["native", "hf"])
def test_what_is_watched_comes_of_every_row_and_hidden_states_are_those_of_scored_rows(
    targets: dict[str, Any], engine: str
) -> None:
    target = targets[engine]
    tree = Tree(tuple(TEXT[4:9]), (-1, 0, 0, 1, 2), (1.0,) * 5)
    found = []
    for first in (0, 4):
        target.watch((3, HIDDEN, 0))
        slot, other = target.open(), target.open()
        target.forward([Feed(slot, Tree.chain(TEXT[:4]), 4)])
        target.keep(slot, (0, 1, 2, 3))
        scored = target.forward([Feed(other, Tree.chain(TEXT), len(TEXT)), Feed(slot, tree, first)])
        rows = [(1, row) for row in range(5)]
        states = target.operations.numpy(scored.states(rows, (3, HIDDEN, 0)))
        hidden = target.operations.numpy(scored.hidden(rows[first:]))
        np.testing.assert_allclose(states[first:, WIDTH : 2 * WIDTH], hidden, rtol=1e-5, atol=1e-6)
        found.append(states)
        for each in (slot, other):
            target.close(each)
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5, atol=1e-6)
    with pytest.raises(ModelError, match="has 7 layers; heads want to read before layer 9"):
        target.watch((2, 9))


def drafts(target: Any, heads: MtpHeads, sampling: Sampling) -> tuple[list[Tree], list[list[int]]]:
    """Every draft of a run over three prompts, and the answers."""
    return drafts_of(target, proposer_of(heads, target), sampling)


def drafts_of(target: Any, proposer: Any, sampling: Sampling) -> tuple[list[Tree], list[list[int]]]:
    propose, made = proposer.propose, list[Tree]()

    def noted(sequences: Any) -> list[Tree]:
        trees: list[Tree] = propose(sequences)
        made.extend(trees)
        return trees

    proposer.propose = noted
    decoder = Decoder(target, proposer, num_nodes=7)
    generations = [g for prompt in (TEXT, TEXT[3:6], TEXT[:1]) for g in decoder.add(prompt, sampling, seed=1)]
    decoder.run()
    return made, [generation.tokens for generation in generations]


@pytest.mark.parametrize("reads", READS)
def test_both_engines_draft_the_same_and_the_text_stays(targets: dict[str, Any], reads: str, monkeypatch: Any) -> None:
    monkeypatch.setattr("headstart.decode.PROMPT_CHUNK", 4)
    monkeypatch.setattr("headstart.proposers.mtp.MOST_BEHIND", 5)
    sampling = Sampling(max_tokens=12, temperature=0.7, n=2, seed=4, ignore_eos=True)
    expected = None
    for target in targets.values():
        made, tokens = drafts(target, heads_for(target, **READS[reads]), sampling)
        plain = Decoder(target)
        generations = [g for prompt in (TEXT, TEXT[3:6], TEXT[:1]) for g in plain.add(prompt, sampling, seed=1)]
        plain.run()
        assert tokens == [generation.tokens for generation in generations]
        shapes = [(tree.tokens, tree.parents) for tree in made]
        assert sum(tree.num_drafted for tree in made) > 0
        if expected is not None:
            assert shapes == expected
        expected = shapes


@pytest.mark.parametrize("engine", ["native", "hf"])
def test_heads_that_watch_different_layers_share_a_target(targets: dict[str, Any], engine: str) -> None:
    """Whatever others are bound in between, also heads that do not fit, each kind drafts as it does alone."""
    target = targets[engine]
    sampling = Sampling(max_tokens=6, ignore_eos=True)
    every = [heads_for(target, **reads) for reads in (*READS.values(), {"eagle_aux_hidden_state_layer_ids": (1, 5, 6)})]
    alone = [drafts(target, heads, sampling) for heads in every]
    together = [proposer_of(heads, target) for heads in every]
    with pytest.raises(ModelError, match="has 7 layers"):
        target.watch((1, 20))
    for proposer, expected in zip(together, alone, strict=True):
        assert drafts_of(target, proposer, sampling) == expected
        assert any(tree.num_drafted for tree in expected[0])


def test_layers_that_were_not_watched_are_named(targets: dict[str, Any]) -> None:
    for target in targets.values():
        target.watch((2,))
        slot = target.open()
        scored = target.forward([Feed(slot, Tree.chain(TEXT))])
        target.close(slot)
        with pytest.raises(ValueError, match=r"layers \[33\] are not watched"):
            scored.states([(0, 1)], (2, 33))


def test_a_fresh_layer_says_what_the_base_says_of_its_highest_feature(targets: dict[str, Any]) -> None:
    target = targets["native"]
    config = MtpConfig(WIDTH, target.vocab_size, 2, 1, 16, 48, eagle_aux_hidden_state_layer_ids=(2, 3, LAYERS))
    norm: Any = target._weights.tensors["norm"]
    heads = MtpHeads(config, initial_tensors(config, np.random.default_rng(0), norm))
    bound = heads.bind(target.operations, target.base_weights())
    target.watch((2, 3, LAYERS))
    slot = target.open()
    scored = target.forward([Feed(slot, Tree.chain(TEXT))])
    rows = [(0, row) for row in range(len(TEXT))]
    found = bound.layer.forward([Feed(bound.layer.open(), Tree.chain(TEXT))], bound.fused(scored.states(rows, (2, 3, LAYERS))))
    np.testing.assert_allclose(found.logits(rows), scored.logits(rows), rtol=1e-4, atol=1e-4)
    target.close(slot)


def test_a_folder_keeps_what_the_layer_reads_and_older_folders_read_neither(targets: dict[str, Any], tmp_path: Path) -> None:
    heads = heads_for(targets["native"], **READS["both"])
    save_heads(tmp_path / "heads", heads)
    again = load_heads(tmp_path / "heads", targets["hf"])
    assert again.config == heads.config and again.tensors["fc.weight"].shape == (WIDTH, 2 * WIDTH)
    plain = MtpHeads(CONFIG, trained().tensors, HeadsCard(BaseIdentity("f", CONFIG.hidden_size, CONFIG.vocab_size)))
    save_heads(tmp_path / "old", plain)
    written = json.loads((tmp_path / "old" / "config.json").read_text())
    for name in ("eagle_aux_hidden_state_layer_ids", "reads_prompt"):
        del written["sizes"][name]
    (tmp_path / "old" / "config.json").write_text(json.dumps(written))
    assert load_heads(tmp_path / "old").config == CONFIG


def test_a_model_with_too_few_layers_is_named(targets: dict[str, Any]) -> None:
    for target in targets.values():
        heads = heads_for(target, eagle_aux_hidden_state_layer_ids=(2, 15, 27))
        with pytest.raises(ModelError, match="has 7 layers; heads want to read before layer 27"):
            proposer_of(heads, target)


@pytest.mark.parametrize("ids", [(), (2, 2), (5, 3), (-1, 2), (1.0,), "2,3", [True]])
def test_layers_that_are_none_are_refused_by_name(ids: Any) -> None:
    with pytest.raises(HeadsError, match="eagle_aux_hidden_state_layer_ids"):
        MtpConfig(WIDTH, 50, 2, 1, 16, 48, eagle_aux_hidden_state_layer_ids=ids)
