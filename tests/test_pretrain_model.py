"""The model that predicts several tokens: its memory order, its sizes, and that the engines decode what was trained."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headstart.errors import HeadsError, RequestError
from headstart.guessers import choose_guesser
from headstart.heads.future import VARIANTS
from headstart.llm import LLM, load
from headstart.pretrain.curriculum import num_active
from headstart.pretrain.objective import backward, measure
from headstart.pretrain.settings import PretrainSettings
from headstart.pretrain.sizes import ModelSizes
from headstart.sampling import Sampling
from headstart.target.loading import load_model
from pretrained import all_logits, logits_given, saved, tiny_model

TEXT = [int(token) for token in np.random.default_rng(1).integers(0, 257, 40)]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("weights", [(1.0, 1.0, 1.0), (1.0, 0.3, 0.0)])
def test_head_after_head_gives_the_gradient_of_the_sum(variant: str, weights: tuple[float, ...]) -> None:
    model = tiny_model(variant)
    tokens = torch.tensor([TEXT[:23], TEXT[10:33]])
    losses = backward(model, tokens, weights, scale=0.5)
    found = {name: values.grad for name, values in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    rows = model.rows(tokens)
    total = torch.zeros(())
    for ahead, states in model.states(rows):
        loss = torch.nn.functional.cross_entropy(model.logits(states), rows.ahead(ahead))
        total = total + 0.5 * weights[ahead - 1] * loss
        if weights[ahead - 1]:
            torch.testing.assert_close(losses[ahead - 1], loss.detach())
        else:
            assert losses[ahead - 1].isnan()
    total.backward()  # type: ignore[no-untyped-call]
    for name, values in model.named_parameters():
        gradient = found[name]
        if gradient is None:  # no loss depends on it
            assert values.grad is None or not values.grad.any(), name
        else:
            torch.testing.assert_close(gradient, values.grad, rtol=1e-4, atol=1e-6)


def test_measuring_gives_the_losses_of_training_and_shares_of_ranks() -> None:
    model = tiny_model("causal")
    tokens = torch.tensor([TEXT])
    losses, shares = measure(model, tokens, 257)
    torch.testing.assert_close(losses, backward(model, tokens, (1.0, 1.0, 1.0), 1.0))
    torch.testing.assert_close(shares.sum(dim=1), torch.ones(3))


@given(variant=st.sampled_from(VARIANTS), n=st.integers(2, 8), layers=st.integers(9, 40), heads=st.integers(1, 8))
def test_models_of_any_n_have_the_parameters_of_the_plain_one(variant: Any, n: int, layers: int, heads: int) -> None:
    options: dict[str, Any] = {"layers": layers, "heads": heads, "width": 64 * heads}
    plain = ModelSizes.of(PretrainSettings(future_tokens=1, **options), 257)
    sizes = ModelSizes.of(PretrainSettings(future_tokens=n, variant=variant, **options), 257)
    assert plain.num_base_layers == layers and sizes.num_trunk_layers >= 0
    if variant in ("parallel", "causal", "anticausal"):
        assert sizes.body_parameters == plain.body_parameters
        assert sizes.num_trunk_layers == layers - n
    elif sizes.num_base_layers > 1:  # as near as whole layers come
        assert abs(sizes.body_parameters - plain.body_parameters) <= plain.layer_parameters / 2


@pytest.mark.parametrize("variant", VARIANTS)
def test_parameters_are_as_many_as_the_sizes_say(variant: str) -> None:
    model = tiny_model(variant)
    body = sum(values.numel() for name, values in model.named_parameters() if name not in ("embedding", "output"))
    assert body == model.sizes.body_parameters


@pytest.mark.parametrize("engine", ["native", "hf"])
def test_the_folder_is_an_ordinary_model(tmp_path: Path, engine: str) -> None:
    model = tiny_model()
    target = load_model(saved(tmp_path / "model", model), engine=engine).target
    from headstart.target.base import Feed
    from headstart.tree import Tree

    found = target.forward([Feed(target.open(), Tree.chain(TEXT))])
    logits = found.logits([(0, row) for row in range(len(TEXT))])
    np.testing.assert_allclose(logits, all_logits(model, TEXT)[0], rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("engine", ["native", "hf"])
def test_a_model_drafts_what_its_heads_were_trained_to_say_and_its_text_stays(
    tmp_path: Path, variant: str, engine: str
) -> None:
    """Every draft of a run is compared with the trained model over the whole text; and the text with plain decoding."""
    model = tiny_model(variant)
    loaded = load_model(saved(tmp_path / "model", model), engine=engine)  # without the check of first use, which takes longer
    llm = LLM(loaded.target, loaded.tokenizer, choose_guesser("mtp", loaded.target, loaded.tokenizer), num_nodes=12)
    proposer, drafts = llm.proposer, list[tuple[list[int], Any]]()
    assert proposer is not None
    propose = proposer.propose

    def watched(sequences: Any) -> Any:
        trees = propose(sequences)
        if len(trees) == 1:  # the others are compared with the plain text alone
            drafts.append((list(sequences[0].tokens), trees[0]))
        return trees

    proposer.propose = watched  # type: ignore[method-assign]
    prompts = [TEXT[:20], TEXT[20:23], TEXT[:1]]
    length = 24 if engine == "native" else 8  # of which PyTorch takes far longer
    request = Sampling(max_tokens=length, ignore_eos=True)
    fast = [llm.generate_encoded([prompt], request)[0].tokens for prompt in prompts]
    for tokens, tree in drafts:
        _check_draft(model, tokens, tree)
    assert any(max(tree.depths) == 2 for _, tree in drafts)
    plain = llm.with_proposer("none")
    assert fast == [answer.tokens for answer in plain.generate_encoded(prompts, request, batch=3)]
    assert fast == [answer.tokens for answer in llm.generate_encoded(prompts, request, batch=3)]
    sampled = Sampling(max_tokens=length // 2, temperature=1.0, seed=3, ignore_eos=True)
    expected = [answer.tokens for answer in plain.generate_encoded(prompts, sampled, batch=3)]
    assert expected == [answer.tokens for answer in llm.generate_encoded(prompts, sampled, batch=3)]


def _check_draft(model: Any, tokens: list[int], tree: Any) -> None:
    """The first guess of each depth (behind the first guesses before it) is what the trained heads say behind the text."""
    row, path = 0, list[int]()
    for depth in (1, 2):
        if not tree.children[row]:
            return
        logits = logits_given(model, [*tokens, *path], len(tokens) - 1)[depth][-1]
        best = tree.children[row][0]
        assert logits[tree.tokens[best]] >= logits.max() - 5e-3
        row, path = best, [*path, tree.tokens[best]]


def test_memory_is_that_of_one_head_however_many_there_are() -> None:
    """By the benchmark's own counting, which must see that the naive order needs more with each head."""
    benchmark = runpy.run_path(str(Path(__file__).parent.parent / "benchmarks" / "pretraining_memory.py"))
    own, naive = {}, {}
    for n in (1, 2, 4):
        sizes = benchmark["sizes_of"](n, 2000, 1, width=64, context=32)
        own[n] = benchmark["peak_bytes"](benchmark["head_by_head"], sizes, 1)
        naive[n] = benchmark["peak_bytes"](benchmark["in_one_graph"], sizes, 1)
    assert max(own.values()) <= 1.1 * min(own.values())
    logits = 4 * 32 * 2000
    assert naive[4] - naive[2] >= 1.5 * logits and naive[2] - naive[1] >= 0.75 * logits


def test_curricula_begin_and_end_where_they_should() -> None:
    for n, steps in ((4, 100), (3, 7), (2, 1)):
        forward = [num_active("forward", n, step, steps) for step in range(steps)]
        reverse = [num_active("reverse", n, step, steps) for step in range(steps)]
        assert forward == sorted(forward) and reverse == sorted(reverse, reverse=True)
        assert forward[0] == 1 and reverse[0] == n
        assert steps < n or (forward[-1] == n and reverse[-1] == 1)
        assert {num_active("none", n, step, steps) for step in range(steps)} == {n}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"future_tokens": 4, "layers": 4}, "layers is 4; it must be more than future_tokens, 4"),
        ({"width": 100}, "width is 100; it must be a multiple of 16 times heads, 4"),
        ({"future_tokens": 1, "variant": "causal"}, "variant is 'causal'; it must be left out where future_tokens is 1"),
        ({"batch": 6, "micro_batch": 4}, "micro_batch is 4; it must be a divisor of batch, 6"),
        ({"variant": "odd"}, "variant is 'odd'; it must be one of parallel, causal"),
        ({"steps": 0}, "steps is 0; it must be a whole number, 1 or more"),
        ({"betas": (0.9, 1.0)}, "betas is"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        PretrainSettings(**options)


def test_heads_of_another_model_are_refused(tmp_path: Path) -> None:
    one, other = saved(tmp_path / "one", tiny_model()), saved(tmp_path / "other", tiny_model(seed=1))
    with pytest.raises(HeadsError, match="trained on another base model"):
        load(one, proposer="mtp", heads=f"{other}/heads")
