"""A model as its file or folder declares it, before any engine takes it up.

Both engines read the same thing: the settings in the words of transformers' ``config.json``, and tensors under the names that
transformers gives them. A folder says so itself (here); a GGUF file is translated (``gguf_checkpoint.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.errors import ModelError
from headstart.target.safetensors_file import folder_tensors
from headstart.target.stored_tensor import StoredTensor
from headstart.tokenizer.text import read_json

_GENERATES = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Settings and tensors of a model, by transformers' names."""

    name: str
    config: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]
    rotary_factors: NDArray[np.float32] | None = None  # divide the rotary frequencies [head size / 2]
    is_complete: bool = False  # whether every tensor belongs to the model; a folder may hold others

    @property
    def family(self) -> str:
        """The model's type (``llama``, ``qwen2``, ...)."""
        return str(self.config.get("model_type"))


def folder_checkpoint(name: str, folder: Path) -> Checkpoint:
    """Read a Hugging Face folder; ``ModelError`` for damaged files and for a model that does not write text."""
    config = read_json(folder / "config.json")
    classes = [str(entry) for entry in _listed(config.get("architectures"))]
    if classes and not any(entry.endswith(_GENERATES) for entry in classes):
        raise ModelError(f"{name} is a {classes[0]}, which is no causal language model")
    return Checkpoint(name, config, folder_tensors(folder))


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
