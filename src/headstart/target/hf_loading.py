"""Models for the PyTorch engine: a GGUF file or a Hugging Face folder as a transformers model, checked on the way."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers

from headstart.errors import ModelError
from headstart.target.checkpoint import Checkpoint
from headstart.target.gguf_file import GgufFile
from headstart.target.gguf_model import check_loading, gguf_causal_lm
from headstart.target.hf import HfTarget
from headstart.target.quiet import quiet_transformers
from headstart.tokenizer import Tokenizer
from headstart.tokenizer.text import token_ids


def hf_device(device: str) -> torch.device:
    """The device of a name; "auto" is CUDA where there is one."""
    if device == "cuda" and not torch.cuda.is_available():
        raise ModelError("This machine has no CUDA device that PyTorch can use; choose the device cpu")
    return torch.device("cuda" if device != "cpu" and torch.cuda.is_available() else "cpu")


def hf_from_gguf(name: str, file: GgufFile, tokenizer: Tokenizer, dtype: str, device: torch.device) -> HfTarget:
    """The target of a GGUF file; ``dtype`` "auto" is bfloat16 where all matrices are stored so, or else float32."""
    if dtype == "auto":
        kinds = {tensor.kind for tensor in file.tensors.values() if len(tensor.shape) > 1}
        dtype = "bfloat16" if kinds == {"BF16"} else "float32"
    return _target(name, file.path.name, gguf_causal_lm(file, getattr(torch, dtype)), tokenizer, device)


def hf_from_folder(
    name: str, folder: Path, checkpoint: Checkpoint, tokenizer: Tokenizer, dtype: str, device: torch.device
) -> HfTarget:
    """The target of a folder; ``dtype`` "auto" is bfloat16 where its config says so, or else float32."""
    config = checkpoint.config
    _check_architecture(checkpoint.name, config)
    if dtype == "auto":
        dtype = "bfloat16" if config.get("dtype", config.get("torch_dtype")) == "bfloat16" else "float32"
    with quiet_transformers():
        try:
            model, info = transformers.AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=getattr(torch, dtype),
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # they are refused below, by name
            )
        except (ValueError, KeyError, TypeError, RuntimeError, OSError, ImportError) as error:
            reason = " ".join(str(error).split())[:300]
            raise ModelError(f"{checkpoint.name} cannot be loaded: {reason}") from error
    # What is extra in a folder (an old rotary buffer, a vision tower) does not change the model; what is missing does.
    check_loading(checkpoint.name, {key: value for key, value in info.items() if key != "unexpected_keys"})
    return _target(name, checkpoint.name, model, tokenizer, device)


def _check_architecture(name: str, settings: Mapping[str, Any]) -> None:
    kind = settings.get("model_type")
    if kind not in transformers.CONFIG_MAPPING:
        own_code = " without code of its own, which is never run" if "auto_map" in settings else ""
        raise ModelError(f"{name} is of model_type {kind!r}, which transformers does not know{own_code}")
    if transformers.CONFIG_MAPPING[kind] not in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ModelError(f"{name} is a {kind} model, which is no causal language model")


def _target(name: str, source: str, model: Any, tokenizer: Tokenizer, device: torch.device) -> HfTarget:
    num_rows = model.get_output_embeddings().weight.shape[0]
    if tokenizer.vocab_size > num_rows:
        raise ModelError(f"{source}: the tokenizer has {tokenizer.vocab_size} tokens, but the model only {num_rows}")
    ends = tokenizer.end_tokens | token_ids(model.config.eos_token_id)
    if model.generation_config is not None:
        ends |= token_ids(model.generation_config.eos_token_id)
    return HfTarget(  # without a dtype: the model has it, and casting it whole would round its rotary frequencies
        model.to(device).eval(),
        name=name,
        end_tokens=frozenset(id for id in ends if id < tokenizer.vocab_size),
        vocab_size=tokenizer.vocab_size,
    )
