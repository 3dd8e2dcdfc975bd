"""The trained model as a folder: an ordinary Llama model, its tokenizer, and its heads.

    DIR/config.json, model.safetensors    the next-token path, as transformers and every engine here loads it
    DIR/tokenizer.json, tokenizer_config.json
    DIR/heads/                            the other heads, found when the folder is loaded (``heads/base.py``)
    DIR/pretraining.json                  the record of the run

It appears at once when it is complete.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.torch import save
from torch import Tensor

from headstart.errors import RequestError, TrainingError
from headstart.folders import new_folder
from headstart.heads.base import HEADS_FOLDER, Acceptance, BaseIdentity, HeadsCard, save_heads
from headstart.heads.future import FutureHeads
from headstart.pretrain.model import FutureModel
from headstart.pretrain.sizes import ModelSizes
from headstart.pretrain.tokens import TextTokenizer
from headstart.target.fingerprint import fingerprint, sampled_rows

RECORD = "pretraining.json"
_FORMAT, _VERSION = "headstart-pretraining", 1


def is_finished(folder: Path) -> bool:
    """Whether a model that was trained here stands in the folder."""
    return (folder / RECORD).is_file()


def check_folder(folder: Path) -> None:
    """RequestError if something else stands where the model shall be saved."""
    if folder.exists() and not (is_finished(folder) or (folder.is_dir() and not any(folder.iterdir()))):
        raise RequestError(f"{folder} exists and holds no pretrained model; choose another name")


def save_model(
    folder: Path, model: FutureModel, tokenizer: TextTokenizer, acceptance: Acceptance | None, record: Mapping[str, Any]
) -> None:
    """Write the folder, complete or not at all; one that stands there already is replaced. TrainingError if that fails."""
    try:
        with new_folder(folder) as new:
            tensors = {name: values.cpu().contiguous() for name, values in model.base_tensors().items()}
            (new / "model.safetensors").write_bytes(save(tensors, metadata={"format": "pt"}))
            _write(new / "config.json", _config(model.sizes, tokenizer))
            (new / "tokenizer.json").write_text(tokenizer.backend.to_str(), encoding="utf-8")
            _write(new / "tokenizer_config.json", {"eos_token": tokenizer.end, "tokenizer_class": "PreTrainedTokenizerFast"})
            _save_heads(new, folder.name, model, acceptance, record)
            _write(new / RECORD, {"format": _FORMAT, "version": _VERSION, **record})
    except OSError as error:
        raise TrainingError(
            f"{folder} cannot be written ({error.strerror}); the checkpoint is kept, so make room and resume"
        ) from error


def _save_heads(new: Path, name: str, model: FutureModel, acceptance: Acceptance | None, record: Mapping[str, Any]) -> None:
    config = model.sizes.heads_config()
    if config is None:
        return
    base = BaseIdentity(_fingerprint(model), config.hidden_size, config.vocab_size, name)
    provenance = {key: record[key] for key in ("command", "headstart", "versions", "machine", "data", "settings")}
    card = HeadsCard(base, acceptance, provenance)
    tensors = {key: _host(values) for key, values in model.head_tensors().items()}
    save_heads(new / HEADS_FOLDER, FutureHeads(config, tensors, card))


def _fingerprint(model: FutureModel) -> str:
    ids = sampled_rows(model.sizes.vocab_size)
    return fingerprint(
        num_layers=model.sizes.num_base_layers,
        vocab_size=model.sizes.vocab_size,
        embedding=_host(model.embedding)[ids],
        output=_host(model.output)[ids],
        norm=_host(model.norm),
    )


def _config(sizes: ModelSizes, tokenizer: TextTokenizer) -> dict[str, Any]:
    """In the words of transformers' ``config.json``."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "hidden_act": "silu",
        "hidden_size": sizes.hidden_size,
        "intermediate_size": sizes.intermediate_size,
        "num_hidden_layers": sizes.num_base_layers,
        "num_attention_heads": sizes.num_attention_heads,
        "num_key_value_heads": sizes.num_key_value_heads,
        "head_dim": sizes.head_dim,
        "max_position_embeddings": sizes.context,
        "rms_norm_eps": sizes.rms_norm_eps,
        "rope_theta": sizes.rope_theta,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "vocab_size": sizes.vocab_size,
        "bos_token_id": None,
        "eos_token_id": tokenizer.end_id,
    }


def _write(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def _host(values: Tensor) -> NDArray[np.float32]:
    array: NDArray[np.float32] = values.detach().float().cpu().numpy()
    return array
