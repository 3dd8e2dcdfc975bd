"""A GGUF file's weights as a transformers model.

The Llama family is translated by ``gguf_checkpoint.py``, since transformers' own reader takes several times as long and drops
Llama 3's rotary factors without a word. Every other architecture goes through that reader.
"""

from __future__ import annotations

from typing import Any

from headstart.errors import ModelError
from headstart.target.checkpoint import Checkpoint
from headstart.target.gguf_checkpoint import FAMILIES, ROTARY_FACTORS, gguf_checkpoint
from headstart.target.gguf_file import GgufFile
from headstart.target.quiet import quiet_transformers


def gguf_causal_lm(file: GgufFile, dtype: Any) -> Any:
    """The model on the CPU in ``dtype``. ``ModelError`` for an unsupported architecture or a tensor too few or too many."""
    if file.architecture in FAMILIES:
        return _llama_family(gguf_checkpoint(file), dtype)
    return _through_transformers(file, dtype)


def _llama_family(checkpoint: Checkpoint, dtype: Any) -> Any:
    import torch
    import transformers
    from huggingface_hub.errors import StrictDataclassError

    settings = {key: value for key, value in checkpoint.config.items() if key != "model_type"}
    try:
        config = transformers.CONFIG_MAPPING[checkpoint.family](**settings)
    except (ValueError, TypeError, ZeroDivisionError, StrictDataclassError) as error:
        raise ModelError(f"{checkpoint.name}: its settings fit no {checkpoint.family} model: {_first_line(error)}") from error
    weights = {name: torch.from_numpy(tensor.values()).to(dtype) for name, tensor in checkpoint.tensors.items()}
    model_class = transformers.MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    with quiet_transformers():
        try:
            model, info = model_class.from_pretrained(
                None, config=config, state_dict=weights, dtype=dtype, output_loading_info=True, ignore_mismatched_sizes=True
            )
        except (RuntimeError, ValueError) as error:
            raise ModelError(f"{checkpoint.name}: its tensors do not fit its settings: {_first_line(error)}") from error
    check_loading(checkpoint.name, info)
    if checkpoint.rotary_factors is not None:
        model.model.rotary_emb.inv_freq /= torch.from_numpy(checkpoint.rotary_factors)
    return model


def _through_transformers(file: GgufFile, dtype: Any) -> Any:
    if ROTARY_FACTORS in file.tensors:
        raise ModelError(f"{file.path.name}: rotary factors of a {file.architecture} model cannot be read; use its HF folder")
    import transformers

    with quiet_transformers():
        try:
            model, info = transformers.AutoModelForCausalLM.from_pretrained(
                file.path.parent, gguf_file=file.path.name, dtype=dtype, output_loading_info=True, ignore_mismatched_sizes=True
            )
        except (ValueError, KeyError, NotImplementedError, RuntimeError) as error:
            reason = _first_line(error)
            raise ModelError(f"{file.path.name}: a {file.architecture} model cannot be read from GGUF: {reason}") from error
    check_loading(file.path.name, info)
    return model


def check_loading(name: str, info: dict[str, Any]) -> None:
    """Refuse a model that transformers filled up with random weights; ``info`` is its loading report."""
    for what, phrase in (
        ("missing_keys", "lacks"),
        ("mismatched_keys", "has another shape of"),
        ("unexpected_keys", "also holds"),
    ):
        found = sorted(str(key[0] if isinstance(key, tuple) else key) for key in info.get(what) or ())
        if found:
            raise ModelError(f"{name} {phrase} the tensor {found[0]} ({len(found)} in all); it does not fit its config")


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
