"""The PyTorch engine: laws of the cache, of trees, of batches, and what it refuses, on tiny models of many families."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tiny
from headstart.errors import ModelError, RequestError
from headstart.sampling import Sampler, Sampling, log_softmax
from headstart.target import hf_masks
from headstart.target.base import Feed, Slot
from headstart.target.hf import HfTarget
from headstart.target.hf_packed import pack_linears
from headstart.target.torch_operations import TorchOperations
from headstart.tree import Path, Tree
from tiny import tiny_llama, tiny_target

FAMILIES: dict[str, Callable[..., Any]] = {
    "llama": tiny.tiny_llama,
    "mistral": tiny.tiny_mistral,
    "gemma2": tiny.tiny_gemma2,
    "gemma3": tiny.tiny_gemma3,
    "qwen2": tiny.tiny_qwen2,
    "qwen3": tiny.tiny_qwen3,
    "gpt2": tiny.tiny_gpt2,
    "gpt_neox": tiny.tiny_gpt_neox,
}
TARGETS = {family: HfTarget(build(), name=family, dtype="float32", end_tokens=(2,)) for family, build in FAMILIES.items()}
every_family = pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS.keys())
windowed = pytest.mark.parametrize("target", [TARGETS[f] for f in ("mistral", "gemma2", "gemma3")], ids=lambda t: t.name)


def tokens(count: int, seed: int = 0) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(3, tiny.VOCAB_SIZE, count)]


@st.composite
def trees(draw: st.DrawFn, max_nodes: int = 12) -> Tree:
    """Any tree; siblings carry different tokens."""
    parents = [-1] + [draw(st.integers(0, i)) for i in range(draw(st.integers(0, max_nodes)))]
    offset = draw(st.integers(0, tiny.VOCAB_SIZE - 1))
    ids = tuple((offset + 5 * row) % tiny.VOCAB_SIZE for row in range(len(parents)))
    return Tree(ids, tuple(parents), (1.0,) * len(parents))


def feed(target: HfTarget, slot: Slot, ids: Sequence[int]) -> np.ndarray:
    """Commit a chain; logits of all of its rows."""
    scored = target.forward([Feed(slot, Tree.chain(ids))])
    target.keep(slot, tuple(range(len(ids))))
    return scored.logits([(0, row) for row in range(len(ids))])


def fresh(target: HfTarget, ids: Sequence[int]) -> np.ndarray:
    """Logits of all tokens by the model's own forward."""
    return target.plain_logits(ids)


def assert_close(found: np.ndarray, expected: np.ndarray, tolerance: float = 1e-4) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)


def line(tree: Tree, row: int) -> list[int]:
    """Tokens from the root to a row."""
    return [tree.tokens[r] for r in (0, *tree.path(row))]


@every_family
@settings(deadline=None, max_examples=15)
@given(tree=trees(), length=st.integers(0, 20), data=st.data())
def test_verify_keep_continue_equals_a_fresh_prefill(target: HfTarget, tree: Tree, length: int, data: st.DataObject) -> None:
    prompt, then = tokens(length, seed=length), tokens(3, seed=99)
    kept: Path = (0, *tree.path(data.draw(st.integers(0, len(tree) - 1))))
    slot = target.open()
    if prompt:
        feed(target, slot, prompt)
    scored = target.forward([Feed(slot, tree)])
    for row in range(len(tree)):
        assert_close(scored.logits([(0, row)])[0], fresh(target, prompt + line(tree, row))[-1])
    target.keep(slot, kept)
    assert target.length(slot) == len(prompt) + len(kept)
    committed = prompt + [tree.tokens[row] for row in kept]
    assert_close(feed(target, slot, then), fresh(target, committed + then)[-3:])
    target.close(slot)


@settings(deadline=None)
@given(tree=trees(), length=st.integers(0, 9))
def test_mask_is_reachability(tree: Tree, length: int) -> None:
    seen = hf_masks.visible([tree], [length], (len(tree), length + len(tree)))[0]
    assert seen[:, :length].all()
    for row in range(len(tree)):
        assert set(np.flatnonzero(seen[row, length:])) == {0, *tree.path(row)}


@settings(deadline=None)
@given(tree=trees(), length=st.integers(0, 9), window=st.integers(1, 6))
def test_a_window_counts_positions_not_rows(tree: Tree, length: int, window: int) -> None:
    seen = hf_masks.visible([tree], [length], (len(tree), length + len(tree)), window)[0]
    for row in range(len(tree)):
        position = length + tree.depths[row]
        assert set(np.flatnonzero(seen[row, :length])) == set(range(max(position - window + 1, 0), length))
        near = {other for other in (0, *tree.path(row)) if tree.depths[row] - tree.depths[other] < window}
        assert set(np.flatnonzero(seen[row, length:])) == near


@every_family
def test_the_order_of_siblings_changes_nothing(target: HfTarget) -> None:
    one = Tree((5, 6, 7, 8, 9), (-1, 0, 0, 1, 2), (1.0,) * 5)
    two = Tree((5, 7, 6, 9, 8), (-1, 0, 0, 1, 2), (1.0,) * 5)
    found = []
    for tree, order in ((one, (0, 1, 2, 3, 4)), (two, (0, 2, 1, 4, 3))):
        slot = target.open()
        feed(target, slot, tokens(12))
        found.append(target.forward([Feed(slot, tree)]).logits([(0, row) for row in order]))
        target.close(slot)
    assert_close(found[0], found[1], 1e-5)


@every_family
def test_a_mixture_of_prompts_steps_and_trees_equals_each_alone(target: HfTarget) -> None:
    tree = Tree((5, 6, 7, 8, 9, 10, 11), (-1, 0, 0, 1, 2, 2, 4), (1.0,) * 7)
    drafts = [Tree.root(4), tree, Tree.chain(tokens(40, 7)), Tree.chain((8, 9)), Tree.root(9)]
    lengths = [3, 9, 0, 60, 21]
    slots = [target.open() for _ in range(7)]
    busy = [slots[i] for i in (5, 0, 2, 6, 3)]  # neither in order nor all neighbours
    for slot, length in zip(busy, lengths, strict=True):
        if length:
            feed(target, slot, tokens(length, seed=length))
    scored = target.forward([Feed(slot, draft) for slot, draft in zip(busy, drafts, strict=True)])
    for entry, (draft, length) in enumerate(zip(drafts, lengths, strict=True)):
        for row in range(len(draft)):
            alone = fresh(target, (tokens(length, seed=length) if length else []) + line(draft, row))[-1]
            assert_close(scored.logits([(entry, row)])[0], alone)
    for slot, draft in zip(busy, drafts, strict=True):
        target.keep(slot, (0, *draft.path(len(draft) - 1)))
    again = target.forward([Feed(slot, Tree.root(12)) for slot in busy])
    for entry, (draft, length) in enumerate(zip(drafts, lengths, strict=True)):
        text = (tokens(length, seed=length) if length else []) + line(draft, len(draft) - 1) + [12]
        assert_close(again.logits([(entry, 0)])[0], fresh(target, text)[-1])
    for slot in slots:
        target.keep(slot, ()) if slot in busy else None
        target.close(slot)


@every_family
@pytest.mark.parametrize("chunk", [1, 5, 16])
def test_a_prompt_in_chunks_equals_a_prompt_at_once(target: HfTarget, chunk: int) -> None:
    prompt = tokens(37)
    slot = target.open()
    parts = [feed(target, slot, prompt[at : at + chunk]) for at in range(0, len(prompt), chunk)]
    assert_close(np.concatenate(parts), fresh(target, prompt))
    target.close(slot)


@windowed
@pytest.mark.parametrize("length", [5, 6, 7, 8, 9, 50])
def test_trees_cross_the_border_of_a_sliding_window(target: HfTarget, length: int) -> None:
    prompt = tokens(length, seed=length)
    tree = Tree((5, 6, 7, 8, 9, 10, 11, 12), (-1, 0, 0, 1, 2, 4, 5, 6), (1.0,) * 8)
    slot = target.open()
    feed(target, slot, prompt)
    scored = target.forward([Feed(slot, tree)])
    for row in range(len(tree)):
        assert_close(scored.logits([(0, row)])[0], fresh(target, prompt + line(tree, row))[-1])
    target.keep(slot, ())
    target.close(slot)


@every_family
def test_forgetting_a_draft_leaves_no_trace(target: HfTarget) -> None:
    prompt = tokens(11)
    slot = target.open()
    feed(target, slot, prompt)
    target.forward([Feed(slot, Tree.chain(tokens(6, 3)))])
    target.keep(slot, ())
    assert target.length(slot) == len(prompt)
    assert_close(feed(target, slot, [4]), fresh(target, [*prompt, 4])[-1:])
    target.close(slot)


@every_family
def test_greedy_steps_equal_the_models_own_generate(target: HfTarget) -> None:
    prompt = tokens(9, 5)
    options = {"max_new_tokens": 24, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    ids = torch.tensor([prompt])
    expected = target.model.generate(ids, attention_mask=torch.ones_like(ids), **options)[0, len(prompt) :].tolist()
    sampler = Sampler(Sampling(), vocab_size=target.vocab_size)
    slot = target.open()
    scored = target.forward([Feed(slot, Tree.chain(prompt), len(prompt) - 1)])
    target.keep(slot, tuple(range(len(prompt))))
    said = scored.pick([(0, len(prompt) - 1)], [sampler], [()])
    while len(said) < 24:
        scored = target.forward([Feed(slot, Tree.root(said[-1]))])
        target.keep(slot, (0,))
        said += scored.pick([(0, 0)], [sampler], [()])
    target.close(slot)
    assert said == expected


def test_a_fork_goes_its_own_way() -> None:
    target = tiny_target()
    prompt = tokens(10)
    one = target.open()
    feed(target, one, prompt)
    two = target.fork(one)
    feed(target, two, [5, 6])
    assert_close(feed(target, one, [7]), fresh(target, [*prompt, 7])[-1:])
    assert_close(feed(target, two, [8]), fresh(target, [*prompt, 5, 6, 8])[-1:])
    assert (target.length(one), target.length(two)) == (11, 13)
    empty = target.fork(target.open())
    assert_close(feed(target, empty, prompt), fresh(target, prompt))


def test_a_thousand_sequences_do_not_grow_the_cache() -> None:
    target = tiny_target()
    stays = target.open()
    feed(target, stays, tokens(5))
    sizes = set()
    for cycle in range(1000):
        slot = target.open()
        if cycle % 50 == 0:
            feed(target, slot, tokens(1 + cycle % 7))
            sizes.add(target.cache_bytes())
        target.close(slot)
    assert len(sizes) == 1
    target.close(stays)
    assert target.cache_bytes() == 0


def test_the_cache_grows_to_the_context_limit_and_no_further() -> None:
    target = tiny_target(max_position_embeddings=300)
    slot = target.open()
    ids = tokens(299)
    feed(target, slot, ids)
    assert_close(feed(target, slot, [5]), fresh(target, [*ids, 5])[-1:])
    assert target.cache_bytes() == 300 * 2 * 2 * 2 * 8 * 4  # positions, layers, keys and values, heads, dim, bytes
    with pytest.raises(RequestError, match="the context of tiny ends at 300"):
        target.forward([Feed(slot, Tree.root(5))])


def test_a_batch_at_the_context_limit_may_be_padded() -> None:
    target = tiny_target(max_position_embeddings=64)
    full, other = target.open(), target.open()
    ids = tokens(63)
    feed(target, full, ids)
    scored = target.forward([Feed(full, Tree.root(5)), Feed(other, Tree.chain((6, 7)))])
    assert_close(scored.logits([(0, 0)]), fresh(target, [*ids, 5])[-1:])
    assert_close(scored.logits([(1, 0), (1, 1)]), fresh(target, [6, 7]))


def test_wide_trees_may_stand_at_the_context_limit() -> None:
    target = tiny_target(max_position_embeddings=64)
    slot = target.open()
    ids = tokens(62)
    feed(target, slot, ids)
    tree = Tree((5, 6, 7, 8, 9), (-1, 0, 0, 0, 0), (1.0,) * 5)
    assert_close(target.forward([Feed(slot, tree)]).logits([(0, 4)]), fresh(target, [*ids, 5, 9])[-1:])


def test_slots_are_not_misused() -> None:
    target = tiny_target()
    slot = target.open()
    with pytest.raises(ValueError, match="at most once"):
        target.forward([Feed(slot, Tree.root(3)), Feed(slot, Tree.root(4))])
    with pytest.raises(ValueError, match="no forward"):
        target.keep(slot, (0,))
    target.forward([Feed(slot, Tree((3, 4, 5), (-1, 0, 0), (1.0,) * 3))])
    with pytest.raises(ValueError, match="waits for keep"):
        target.forward([Feed(slot, Tree.root(4))])
    for path in ((1,), (0, 1, 2), (0, 3), (0, 0)):
        with pytest.raises(ValueError, match="no path from the root"):
            target.keep(slot, path)
    target.keep(slot, (0, 2))
    target.close(slot)
    with pytest.raises(ValueError, match="not open"):
        target.length(slot)


def test_a_chunk_may_be_cached_without_scoring_anything() -> None:
    target = tiny_target()
    slot, other = target.open(), target.open()
    target.forward([Feed(slot, Tree.chain(tokens(8)), 8)])
    target.keep(slot, tuple(range(8)))
    scored = target.forward([Feed(slot, Tree.chain((3, 4)), 2), Feed(other, Tree.chain((5, 6)), 1)])
    assert_close(scored.logits([(1, 1)]), fresh(target, [5, 6])[-1:])
    with pytest.raises(KeyError):
        scored.logits([(1, 0)])


def test_hidden_states_are_what_the_output_matrix_reads() -> None:
    target = tiny_target()
    slot = target.open()
    scored = target.forward([Feed(slot, Tree.chain((3, 4, 5)), 1)])
    hidden = scored.hidden([(0, 2), (0, 1)])
    assert hidden.shape == (2, target.hidden_size)
    logits = target.operations.linear(hidden, target.base_weights().output)
    assert_close(target.operations.numpy(logits), scored.logits([(0, 2), (0, 1)]), 1e-5)
    weight = torch.zeros(3, target.hidden_size, requires_grad=True)
    (gradient,) = torch.autograd.grad(target.operations.linear(hidden, weight).sum(), weight)  # heads train on them
    assert gradient.abs().sum() > 0


def test_logprobs_are_the_raw_log_softmax_with_ties_to_the_lowest_id() -> None:
    target = tiny_target()
    output = target.model.get_output_embeddings().weight
    with torch.no_grad():
        output[9] = output[40] = output[7]
    slot = target.open()
    scored = target.forward([Feed(slot, Tree.chain((3, 4)))])
    rows = [(0, 0), (0, 1)]
    expected = log_softmax(scored.logits(rows))
    for found, values, token in zip(scored.logprobs(rows, [11, 40], 64), expected, (11, 40), strict=True):
        assert (found.token, found.logprob) == (token, values[token])
        assert list(found.top) == sorted(enumerate(values), key=lambda item: (-item[1], item[0]))
    ranked = [token for token, _ in scored.logprobs(rows, [0, 0], 64)[0].top]
    assert ranked.index(7) + 2 == ranked.index(9) + 1 == ranked.index(40)
    assert scored.logprobs(rows, [0, 0], 0)[0].top == ()
    order = np.argsort(-expected, axis=1, kind="stable")
    for k in (64, 1000):
        ids, likeliest = scored.likeliest(rows, k)
        assert np.array_equal(ids, order)
        assert np.allclose(likeliest, np.take_along_axis(expected, order, axis=1), atol=1e-5)
    assert np.array_equal(scored.likeliest(rows[1:], 1)[0], order[1:, :1])


def test_ties_of_the_argmax_go_to_the_lowest_id() -> None:
    target = tiny_target()
    with torch.no_grad():
        target.model.get_output_embeddings().weight.zero_()
    slot = target.open()
    scored = target.forward([Feed(slot, Tree.chain((3, 4)))])
    sampler = Sampler(Sampling(), vocab_size=64)
    assert scored.pick([(0, 0), (0, 1)], [sampler] * 2, [(), (4,)]) == [0, 0]


def test_picks_of_every_sampler_are_those_of_the_definition() -> None:
    target = tiny_target()
    slot = target.open()
    scored = target.forward([Feed(slot, Tree.chain((3, 4, 5)))])
    rows = [(0, 0), (0, 1), (0, 2)]
    parameters = [Sampling(), Sampling(temperature=0.9, seed=1), Sampling(repetition_penalty=1.5)]
    samplers = [Sampler(sampling, vocab_size=64, prompt=(3,), seed=1) for sampling in parameters]
    paths: list[tuple[int, ...]] = [(), (4,), (4, 5)]
    expected = [s.pick(values, path) for s, values, path in zip(samplers, scored.logits(rows), paths, strict=True)]
    assert scored.pick(rows, samplers, paths) == expected


def test_padding_rows_of_the_output_matrix_are_never_picked() -> None:
    model = tiny_llama()
    with torch.no_grad():
        model.lm_head.weight[60:] = 100 * model.lm_head.weight[:4]
    target = HfTarget(model, name="padded", vocab_size=60)
    slot = target.open()
    scored = target.forward([Feed(slot, Tree.chain(tokens(12)[:12]))])
    rows = [(0, row) for row in range(12)]
    samplers = [Sampler(Sampling(temperature=t, seed=3), vocab_size=60, seed=3) for t in (0.0, 1.0) * 6]
    assert max(scored.pick(rows, samplers, [()] * 12)) < 60
    assert scored.logits(rows).shape == (12, 60)
    with pytest.raises(ModelError, match="64 rows"):
        HfTarget(tiny_llama(), name="padded", vocab_size=65)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_are_an_error(value: float) -> None:
    target = tiny_target()
    slot, other = target.open(), target.open()
    feed(target, other, [3])
    with torch.no_grad():
        target.model.get_output_embeddings().weight[5] = value
    scored = target.forward([Feed(slot, Tree.root(3))])
    for sampling in (Sampling(), Sampling(temperature=1.0)):
        with pytest.raises(ModelError, match="NaN or infinity"):
            scored.pick([(0, 0)], [Sampler(sampling, vocab_size=64)], [()])
    with pytest.raises(ModelError, match="NaN or infinity"):
        scored.likeliest([(0, 0)], 3)


def test_a_closed_slot_leaves_no_nan_behind() -> None:
    target = tiny_target()
    stays, slot = target.open(), target.open()
    feed(target, stays, [3])
    feed(target, slot, tokens(9))
    for pool in target._cache._tensors():
        pool[slot] = float("nan")
    target.close(slot)
    long = target.open()
    assert long == slot
    scored = target.forward([Feed(stays, Tree.chain((4, 5))), Feed(long, Tree.root(4))])
    assert np.isfinite(scored.logits([(1, 0)])).all()


@pytest.mark.parametrize("family", FAMILIES)
def test_the_fingerprint_survives_a_change_of_dtype(family: str) -> None:
    low = HfTarget(FAMILIES[family](), name="low", dtype="bfloat16")
    assert low.fingerprint == TARGETS[family].fingerprint
    assert low.dtype == "bfloat16"
    assert HfTarget(FAMILIES[family](seed=1), name="other").fingerprint != low.fingerprint


def test_tied_matrices_are_one_object() -> None:
    tied = HfTarget(tiny_llama(tie_word_embeddings=True), name="tied").base_weights()
    assert tied.embedding is tied.output
    own = tiny_target().base_weights()
    assert own.embedding is not own.output


@pytest.mark.parametrize(
    ("family", "config", "reason"),
    [
        ("Mamba", {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4}, "recurrent or hybrid"),
        (
            "RecurrentGemma",
            {"hidden_size": 32, "num_hidden_layers": 3, "intermediate_size": 48, "num_attention_heads": 4, "lru_width": 32},
            "recurrent or hybrid",
        ),
        ("Bloom", {"hidden_size": 32, "n_layer": 2, "n_head": 4}, "explicit positions"),
        ("Mpt", {"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 64}, "explicit positions"),
        ("Falcon", {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "alibi": True}, "explicit masks"),
    ],
)
def test_models_that_cannot_verify_trees_are_refused(family: str, config: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        HfTarget(tiny.tiny(family, **config), name=family)


def test_layers_of_an_unknown_kind_are_refused() -> None:
    model = tiny_llama()
    model.config.layer_types = ["full_attention", "chunked_attention"]
    with pytest.raises(ModelError, match="chunked_attention"):
        HfTarget(model, name="chunked")


@pytest.mark.parametrize("ignored", ["position_ids", "attention_mask"])
def test_a_model_that_ignores_masks_or_positions_is_refused(ignored: str) -> None:
    model = tiny_llama()
    model.model.register_forward_pre_hook(lambda _, args, kwargs: (args, kwargs | {ignored: None}), with_kwargs=True)
    with pytest.raises(ModelError, match="explicit masks and positions"):
        HfTarget(model, name="stubborn")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_packed_layers_compute_what_plain_ones_do(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(96, 80).to(dtype)
    plain = copy.deepcopy(layer)
    pack_linears(torch.nn.Sequential(layer))
    copied = copy.deepcopy(layer)
    with torch.no_grad():
        for rows in (0, 1, 5, 16, 64, 100):
            x = torch.randn(1, rows, 96, dtype=dtype)
            for packed in (layer, copied):
                torch.testing.assert_close(packed(x), plain(x))
        layer.weight.mul_(2)
        plain.weight.mul_(2)
        torch.testing.assert_close(layer(x[:, :3]), plain(x[:, :3]))
    assert layer(x).requires_grad


def test_unknown_dtypes_are_refused_by_name() -> None:
    with pytest.raises(ModelError, match="int4"):
        HfTarget(tiny_llama(), name="tiny", dtype="int4")


def test_operations_let_gradients_through() -> None:
    ops = TorchOperations(torch.float64)
    x = ops.array(np.arange(6, dtype=np.float32).reshape(2, 3)).requires_grad_()
    weight = ops.array(np.ones((4, 6), dtype=np.float32)).requires_grad_()
    y = ops.silu(ops.linear(ops.concat([x, ops.add(x, x)]), weight, ops.array(np.zeros(4, dtype=np.float32))))
    assert all(gradient.abs().sum() > 0 for gradient in torch.autograd.grad(y.sum(), (x, weight)))
    stacked = ops.stack([x[:1], x[1:]])
    assert torch.equal(stacked, x)
    assert ops.numpy(ops.take(x, np.array([1]))).tolist() == [[3.0, 4.0, 5.0]]


def test_top_k_gives_the_softmax_of_all_logits() -> None:
    ops = TorchOperations(torch.float32)
    ids, probabilities = ops.top_k(torch.tensor([[0.0, 2.0, 1.0]]), 2)
    assert ids.tolist() == [[1, 2]]
    weights = np.exp([2.0, 1.0]) / np.exp([0.0, 2.0, 1.0]).sum()
    np.testing.assert_allclose(probabilities, [weights], rtol=1e-6)
