"""The saved folder of trained heads.

``config.json`` says what the heads are: format name and version, kind, sizes and layout, the base model they were trained
on (with the fingerprint of its weights), the acceptance that was measured, and where they come from. ``model.safetensors``
holds the tensors, and ``draft_vocab`` (the base's ids in the order of the output rows) when they propose from a part of the
vocabulary. Nothing is ever unpickled.

Saving is exact: a tensor is stored as float16 where that loses nothing (heads that were ``rounded()`` before), else as float32.
Loading names what is missing, superfluous, misshapen or not finite, and refuses heads of another base model: they would decode
rightly, since nothing a head says can change the text, but guess at random.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path as FilePath
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from headstart.errors import HeadsError
from headstart.folders import new_folder
from headstart.heads.reliability import Reliability
from headstart.tree import Path, optimal_paths

FORMAT, VERSION = "headstart-heads", 1
CONFIG_FILE, TENSORS_FILE = "config.json", "model.safetensors"
SEARCH_VARIABLE = "HEADSTART_HEADS"
BUNDLED = FilePath(__file__).parent / "bundled"
DRAFT_VOCAB = "draft_vocab"

_KINDS = {
    "medusa": "headstart.heads.medusa:MedusaHeads",
    "hydra": "headstart.heads.hydra:HydraHeads",
    "mtp": "headstart.heads.mtp:MtpHeads",
}
_OF_THE_MODEL = {"mtp": "headstart.heads.future:FutureHeads"}  # trained together with their base; 'sizes' names a variant
HEADS_FOLDER = "heads"  # in the folder of such a base

Tensors = dict[str, NDArray[np.float32]]


class Identified(Protocol):
    """What a target says of its model."""

    @property
    def name(self) -> str:
        """As the user wrote it."""

    @property
    def fingerprint(self) -> str:
        """Of the weights."""

    @property
    def hidden_size(self) -> int:
        """D."""

    @property
    def vocab_size(self) -> int:
        """Ids that may be sampled."""


@dataclass(frozen=True, slots=True)
class BaseIdentity:
    """Which model heads belong to."""

    fingerprint: str
    hidden_size: int
    vocab_size: int
    name: str = ""

    @classmethod
    def of(cls, target: Identified) -> BaseIdentity:
        """The identity of a loaded target."""
        return cls(target.fingerprint, target.hidden_size, target.vocab_size, target.name)

    def difference(self, other: Identified) -> str | None:
        """What sets two models apart, in words; names do not count."""
        for what in ("hidden_size", "vocab_size", "fingerprint"):
            mine, theirs = getattr(self, what), getattr(other, what)
            if mine != theirs:
                return f"{what.replace('_', ' ')} {mine}, not {theirs}"
        return None


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Measured on held-out text: ``accuracies[k][r]`` is the share of positions where exactly guess r of head k was right."""

    accuracies: tuple[tuple[float, ...], ...]  # [K][R], by which static trees are built
    by_position: tuple[float, ...] = ()  # accepted share of the first guesses, by depth
    predicted_length: Mapping[int, float] = field(default_factory=dict)  # rows of a step -> L
    reliability: Reliability | None = None  # of the estimates, by depth; None: not measured

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Acceptance:
        """What ``asdict`` and JSON made of it."""
        return cls(
            tuple(tuple(float(a) for a in ranks) for ranks in record["accuracies"]),
            tuple(float(a) for a in record["by_position"]),
            {int(rows): float(length) for rows, length in record["predicted_length"].items()},
            Reliability.from_record(record["reliability"]) if record.get("reliability") else None,
        )

    def fits(self, num_heads: int) -> bool:
        """Whether there is one row a head, all equally long, of shares."""
        widths = {len(ranks) for ranks in self.accuracies}
        shares = all(0 <= share <= 1 for ranks in self.accuracies for share in ranks)
        judged = self.reliability is None or len(self.reliability.expected) == num_heads
        return len(self.accuracies) == num_heads and len(widths) == 1 and 0 not in widths and shares and judged

    def array(self) -> NDArray[np.float64]:
        """``accuracies`` as [K, R]."""
        return np.array(self.accuracies, dtype=np.float64)

    def paths(self, num_nodes: int) -> list[Path]:
        """The best static tree of this many nodes by these accuracies, as paths of ranks."""
        return optimal_paths(self.array(), num_nodes)


@dataclass(frozen=True, slots=True)
class HeadsCard:
    """What is known about heads beside their tensors."""

    base: BaseIdentity
    acceptance: Acceptance | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)  # command, commit, versions, machine, seed, data, tokens, ...


class HeadsConfig(Protocol):
    """Sizes and layout of one kind of heads: a frozen dataclass."""

    @property
    def kind(self) -> str:
        """The kind's name, which is also the proposer's."""

    @property
    def draft_vocab(self) -> tuple[int, ...] | None:
        """Base ids of the output rows; None: the whole vocabulary."""

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every tensor."""

    def sizes(self) -> dict[str, Any]:
        """What ``config.json`` says of it, without kind and draft vocabulary."""


class Heads(Protocol):
    """Trained heads of any kind."""

    @property
    def config(self) -> Any:
        """Sizes and layout."""

    @property
    def tensors(self) -> Tensors:
        """Every tensor by name."""

    @property
    def card(self) -> HeadsCard | None:
        """Base model, acceptance, provenance."""

    @classmethod
    def from_saved(
        cls, sizes: Mapping[str, Any], draft_vocab: tuple[int, ...] | None, tensors: Tensors, card: HeadsCard
    ) -> Self:
        """Heads out of what a folder holds; the tensors are not checked yet."""


def save_heads(folder: str | os.PathLike[str], heads: Heads) -> None:
    """Write heads to ``folder``, complete or not at all; heads that stand there already are replaced, anything else is not."""
    path = FilePath(folder).absolute()
    if heads.card is None:
        raise HeadsError(f"{path}: heads are saved together with the identity of their base model; give them a card")
    check_tensors(path, heads.config, heads.tensors)
    check_place(path)
    stored: dict[str, NDArray[Any]] = {name: _compact(values) for name, values in heads.tensors.items()}
    if heads.config.draft_vocab is not None:
        stored[DRAFT_VOCAB] = np.array(heads.config.draft_vocab, dtype=np.int64)
    try:
        with new_folder(path) as new:
            (new / CONFIG_FILE).write_text(_config_text(path, heads.config, heads.card), encoding="utf-8")
            (new / TENSORS_FILE).write_bytes(save(stored))  # the library's own writer makes a file only its owner may read
    except (OSError, SafetensorError) as error:
        raise HeadsError(f"{path}: heads cannot be written ({getattr(error, 'strerror', None) or error})") from error


def check_place(folder: str | os.PathLike[str]) -> None:
    """HeadsError if something that must not be replaced stands where heads shall be saved."""
    path = FilePath(folder)
    if path.name in ("", ".."):
        raise HeadsError(f"{str(folder)!r} cannot hold heads; name a folder of their own")
    if path.exists() and not (_is_heads_folder(path) or (path.is_dir() and not any(path.iterdir()))):
        raise HeadsError(f"{path} exists and is not a heads folder; choose another name")


def load_heads(folder: str | os.PathLike[str], target: Identified | None = None, *, allow_other_base: bool = False) -> Any:
    """Heads of whatever kind ``folder`` holds, checked against the target they shall serve.

    ``allow_other_base`` accepts another fingerprint (a fine-tuned sibling); hidden and vocabulary size must always agree.
    """
    path = FilePath(folder)
    config = _read_config(path)
    kind = _kind(path, config)
    card = _card(path, config)
    _check_base(path, card.base, target, allow_other_base)
    stored = _read_tensors(path)
    draft_vocab = stored.pop(DRAFT_VOCAB, None)
    vocab = None if draft_vocab is None else _vocab(path, draft_vocab, card.base.vocab_size)
    said, listed = config.get("draft_vocab_size"), None if vocab is None else len(vocab)
    if said != listed:
        raise HeadsError(f"{path / CONFIG_FILE}: 'draft_vocab_size' is {said}, and the tensor {DRAFT_VOCAB} lists {listed}")
    tensors = {name: _widened(path, name, values) for name, values in stored.items()}
    sizes = config.get("sizes")
    if not isinstance(sizes, dict):
        raise HeadsError(f"{path / CONFIG_FILE}: 'sizes' is missing")
    module, name = (_OF_THE_MODEL if kind in _OF_THE_MODEL and "variant" in sizes else _KINDS)[kind].split(":")
    heads_type: type[Heads] = getattr(import_module(module), name)
    try:
        heads = heads_type.from_saved(sizes, vocab, tensors, card)
    except (HeadsError, TypeError, ValueError) as error:
        raise HeadsError(f"{path / CONFIG_FILE}: {error}") from error
    if card.base.hidden_size != heads.config.hidden_size or card.base.vocab_size != heads.config.vocab_size:
        raise HeadsError(f"{path / CONFIG_FILE}: 'sizes' and 'base' disagree on the base model's size")
    if card.acceptance is not None and not card.acceptance.fits(heads.config.num_heads):
        raise HeadsError(f"{path / CONFIG_FILE}: 'accuracies' must hold one row of shares between 0 and 1 for each head")
    check_tensors(path, heads.config, tensors)
    return heads


def kind_of_heads(folder: str | os.PathLike[str]) -> str:
    """The kind of the heads in a folder."""
    return _kind(FilePath(folder), _read_config(FilePath(folder)))


def find_heads(fingerprint: str, kind: str | None = None, home: FilePath | None = None) -> FilePath | None:
    """The folder of heads for a base model: in ``HEADSTART_HEADS``, then in the model's own folder ``home``, then bundled ones.

    Each folder of the variable is a heads folder or holds some. What is no readable heads folder is passed over here;
    ``load_heads`` says what is wrong with it.
    """
    for folder in _candidates(home):
        try:
            config = _read_config(folder)
        except HeadsError:
            continue
        base = config.get("base")
        found = base.get("fingerprint") if isinstance(base, dict) else None
        if found == fingerprint and kind in (None, config.get("kind")):
            return folder
    return None


def check_tensors(path: FilePath, config: HeadsConfig, tensors: Tensors) -> None:
    """Raise a HeadsError that names the first missing, extra, misshapen or not finite tensor."""
    shapes = config.shapes()
    for what, names in (("misses", shapes.keys() - tensors.keys()), ("has an unknown", tensors.keys() - shapes.keys())):
        if names:
            raise HeadsError(f"{path}: {config.kind} heads: the file {what} tensor {min(names)!r}")
    for name, shape in shapes.items():
        if tensors[name].shape != shape:
            raise HeadsError(f"{path}: tensor {name!r} has shape {tensors[name].shape}; its config asks for {shape}")
        if not np.isfinite(tensors[name]).all():
            raise HeadsError(f"{path}: tensor {name!r} holds NaN or infinity; the training broke, use an earlier checkpoint")


def _candidates(home: FilePath | None) -> Iterator[FilePath]:
    roots = []
    for entry in filter(None, os.environ.get(SEARCH_VARIABLE, "").split(os.pathsep)):
        if not FilePath(entry).is_dir():
            raise HeadsError(f"{SEARCH_VARIABLE} names {entry}, which is not a folder; correct or unset it")
        roots.append(FilePath(entry))
    for root in [*roots, *([home / HEADS_FOLDER] if home else []), BUNDLED]:
        yield root
        if root.is_dir():
            yield from sorted(folder for folder in root.iterdir() if (folder / CONFIG_FILE).is_file())


def _is_heads_folder(path: FilePath) -> bool:
    try:
        return bool(json.loads((path / CONFIG_FILE).read_text(encoding="utf-8"))["format"] == FORMAT)
    except (OSError, ValueError, TypeError, KeyError):
        return False


def _config_text(path: FilePath, config: HeadsConfig, card: HeadsCard) -> str:
    content = {
        "format": FORMAT,
        "version": VERSION,
        "kind": config.kind,
        "sizes": config.sizes(),
        "draft_vocab_size": None if config.draft_vocab is None else len(config.draft_vocab),
        "base": asdict(card.base),
        "acceptance": None if card.acceptance is None else asdict(card.acceptance),
        "provenance": dict(card.provenance),
    }
    try:
        return json.dumps(content, indent=2, allow_nan=False) + "\n"
    except ValueError as error:
        raise HeadsError(f"{path}: the measured acceptance or the provenance holds NaN or infinity") from error


def _read_config(path: FilePath) -> dict[str, Any]:
    if not path.is_dir():
        raise HeadsError(f"{path} is not a heads folder: there is no such folder")
    file = path / CONFIG_FILE
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise HeadsError(f"{path} is not a heads folder: {CONFIG_FILE} is missing") from error
    except (OSError, ValueError, RecursionError) as error:
        raise HeadsError(f"{file} is damaged ({error})") from error
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        raise HeadsError(f"{file} does not describe heads: its 'format' is not {FORMAT!r}")
    if config.get("version") != VERSION:
        raise HeadsError(f"{file} has version {config.get('version')!r}; this Headstart reads version {VERSION}")
    return config


def _kind(path: FilePath, config: Mapping[str, Any]) -> str:
    kind = config.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise HeadsError(f"{path}: heads of unknown kind {kind!r}; known are {', '.join(sorted(_KINDS))}")
    return kind


def _card(path: FilePath, config: Mapping[str, Any]) -> HeadsCard:
    try:
        base = BaseIdentity(**config["base"])
        for size in (base.hidden_size, base.vocab_size):
            if type(size) is not int:
                raise TypeError(f"a size of the base is {size!r}")
        measured = config.get("acceptance")
        acceptance = None if measured is None else Acceptance.from_record(measured)
        return HeadsCard(base, acceptance, dict(config.get("provenance") or {}))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise HeadsError(f"{path / CONFIG_FILE}: 'base' or 'acceptance' cannot be read ({error})") from error


def _check_base(path: FilePath, base: BaseIdentity, target: Identified | None, allow_other_base: bool) -> None:
    difference = None if target is None else base.difference(target)
    if difference is None or (allow_other_base and difference.startswith("fingerprint")):
        return
    trained_on = f" ({base.name})" if base.name else ""
    raise HeadsError(f"{path}: these heads were trained on another base model{trained_on}: {difference}")


def _read_tensors(path: FilePath) -> dict[str, NDArray[Any]]:
    file = path / TENSORS_FILE
    if not file.is_file():
        pickles = sorted(f.name for f in path.iterdir() if f.suffix in {".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle"})
        if pickles:
            raise HeadsError(f"{path / pickles[0]} is a pickle, which is never loaded; save the heads as {TENSORS_FILE}")
        raise HeadsError(f"{path}: {TENSORS_FILE} is missing")
    try:
        return dict(load_file(file))
    except (SafetensorError, OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise HeadsError(f"{file} is damaged or holds a type that is not float16 or float32 ({error})") from error


def _vocab(path: FilePath, ids: NDArray[Any], vocab_size: int) -> tuple[int, ...]:
    valid = ids.ndim == 1 and ids.size and np.issubdtype(ids.dtype, np.integer) and np.unique(ids).size == ids.size
    if not valid or ids.min() < 0 or ids.max() >= vocab_size:
        raise HeadsError(f"{path}: tensor {DRAFT_VOCAB!r} must list different token ids below {vocab_size}")
    return tuple(int(i) for i in ids)


def _widened(path: FilePath, name: str, values: NDArray[Any]) -> NDArray[np.float32]:
    if values.dtype not in (np.float16, np.float32):
        raise HeadsError(f"{path}: tensor {name!r} is {values.dtype}; heads are float16 or float32")
    return values.astype(np.float32)


def _compact(values: NDArray[np.float32]) -> NDArray[Any]:
    """float16 if every value survives it, and contiguous (the file format takes the memory as it lies)."""
    with np.errstate(over="ignore"):
        half = values.astype(np.float16)
    return np.ascontiguousarray(half if np.array_equal(half.astype(np.float32), values) else values)
