"""Tiny random models, built in code with a fixed seed: vocabulary 64, two layers, one per family that the engine must serve."""

from __future__ import annotations

from typing import Any

import torch
import transformers

from headstart.target.hf import HfTarget

VOCAB_SIZE = 64
_SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "initializer_range": 0.4,  # large enough that the argmax depends on the whole context
}


def tiny(family: str, seed: int = 0, vocab_size: int = VOCAB_SIZE, **config: Any) -> Any:
    """A causal language model of a transformers family, such as ``"Llama"``, in eval mode."""
    settings = getattr(transformers, f"{family}Config")(vocab_size=vocab_size, **config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(settings)
    return model.eval()


def tiny_llama(seed: int = 0, vocab_size: int = VOCAB_SIZE, **config: Any) -> Any:
    """Grouped-query attention, rotary positions."""
    return tiny("Llama", seed, vocab_size, **(_SIZES | config))


def tiny_mistral(seed: int = 0, **config: Any) -> Any:
    """Every layer sees a sliding window of 8 positions."""
    return tiny("Mistral", seed, **(_SIZES | {"sliding_window": 8} | config))


def tiny_gemma2(seed: int = 0, **config: Any) -> Any:
    """A sliding and a full layer, soft caps on attention and logits, tied matrices."""
    own: dict[str, Any] = {
        "sliding_window": 8,
        "query_pre_attn_scalar": 8,
        "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 8.0,
    }
    return tiny("Gemma2", seed, **(_SIZES | own | config))


def tiny_gemma3(seed: int = 0, **config: Any) -> Any:
    """A sliding and a full layer with rotary bases of their own."""
    own = {"sliding_window": 8, "query_pre_attn_scalar": 8, "layer_types": ["sliding_attention", "full_attention"]}
    return tiny("Gemma3Text", seed, **(_SIZES | own | config))


def tiny_qwen2(seed: int = 0, **config: Any) -> Any:
    """Biases on queries, keys and values."""
    return tiny("Qwen2", seed, **({k: v for k, v in _SIZES.items() if k != "head_dim"} | config))


def tiny_qwen3(seed: int = 0, **config: Any) -> Any:
    """Normalised queries and keys."""
    return tiny("Qwen3", seed, **(_SIZES | config))


def tiny_smollm3(seed: int = 0, **config: Any) -> Any:
    """Every other layer without rotary positions."""
    return tiny("SmolLM3", seed, **(_SIZES | {"no_rope_layer_interval": 2} | config))


def tiny_gpt2(seed: int = 0, **config: Any) -> Any:
    """Learned positions."""
    own: dict[str, Any] = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256, "bos_token_id": 1, "eos_token_id": 2}
    own |= {"initializer_range": 0.4, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return tiny("GPT2", seed, **(own | config))


def tiny_gpt_neox(seed: int = 0, **config: Any) -> Any:
    """Attention and feed-forward side by side, partly rotated heads."""
    sizes = {k: v for k, v in _SIZES.items() if k not in ("head_dim", "num_key_value_heads")}
    return tiny("GPTNeoX", seed, **(sizes | config))


def tiny_target(seed: int = 0, **config: Any) -> HfTarget:
    """The engine over :func:`tiny_llama`, in float32."""
    return HfTarget(tiny_llama(seed, **config), name="tiny", dtype="float32", end_tokens=(2,))
