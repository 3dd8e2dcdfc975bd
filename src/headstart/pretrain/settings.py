"""Every default of pretraining, once: the keyword of ``pretrain``, the flag of the command line, the key of the TOML file.

The optimiser's defaults are those of Gloeckle et al. 2024 (tables S13 and S14: AdamW with betas 0.9 and 0.95, weight decay 0.1,
clipping at 1, a cosine down to 0.03 of the peak), but for the peak of the learning rate and the batch, which suit small models.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

from headstart.errors import RequestError, require
from headstart.heads.future import VARIANTS, Variant

Curriculum = Literal["none", "forward", "reverse"]
Precision = Literal["float32", "bfloat16"]

_LANES = 16  # the native engine wants sizes of heads that are a multiple of it


@dataclass(frozen=True, slots=True)
class PretrainSettings:
    """What pretraining may be told."""

    tokenizer: str = "bytes"  # bytes, bpe:SIZE (trained on the data), or a tokenizer.json
    # the model
    future_tokens: int = 4  # n: tokens predicted at each position; 1 is plain next-token training
    variant: Variant = "parallel"  # what the heads read: parallel, causal, anticausal, linear or sequential (DeepSeek-V3)
    width: int = 256  # of the residual stream
    layers: int = 8  # decoder layers of plain training; with n > 1 as many parameters are spent, heads included
    heads: int = 4  # attention heads
    kv_heads: int = 0  # heads of keys and values; 0: as many as attention heads
    inner: int = 0  # inner width of the MLP; 0: about 8/3 of the width
    context: int = 512  # positions of a training sequence, and of the model
    rope_theta: float = 10_000.0  # base of the rotary frequencies
    # the objective
    future_weight: float | None = None  # weight of each further token's loss; None: 1, and 0.3 / (n - 1) if sequential
    curriculum: Curriculum = "none"  # forward: from 1 to n tokens over the run; reverse: from n to 1
    # the optimiser
    steps: int = 1000
    batch: int = 16  # sequences of a step
    micro_batch: int = 0  # sequences computed at once; 0: the whole batch
    learning_rate: float = 1e-3  # at its peak
    warmup: float = 0.05  # share of the steps
    final_rate: float = 0.03  # of the peak, at the end of the cosine
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    clip: float = 1.0  # largest gradient norm; 0: no limit
    precision: Precision = "float32"  # bfloat16: products in bfloat16, weights and sums in float32
    # the run
    device: str = "cpu"  # cpu or cuda
    held_out: float = 0.02  # share of the text that is kept for measuring
    evaluations: int = 10  # measurements on it during the run
    evaluation_sequences: int = 32
    num_ranks: int = 10  # guesses a head whose accuracy is measured
    checkpoint_minutes: float = 2.0  # between two checkpoints; 0: after every step
    seed: int = 0

    def __post_init__(self) -> None:
        for entry in fields(self):
            if entry.default is not None:
                value = getattr(self, entry.name)
                require(_is_like(value, entry.default), entry.name, value, _TYPES[type(entry.default)])
        for name in _AT_LEAST_ONE:
            require(getattr(self, name) >= 1, name, getattr(self, name), "a whole number, 1 or more")
        for name in _NOT_NEGATIVE:
            value = getattr(self, name)
            require(value is None or (math.isfinite(value) and value >= 0), name, value, "0 or more")
        for name in ("learning_rate", "rope_theta"):
            value = getattr(self, name)
            require(0 < value < math.inf, name, value, "a finite number above 0")
        for name in ("warmup", "final_rate"):
            require(0 <= getattr(self, name) <= 1, name, getattr(self, name), "between 0 and 1")
        require(0 <= self.held_out < 1, "held_out", self.held_out, "from 0 to below 1")
        betas = len(self.betas) == 2 and all(0 <= beta < 1 for beta in self.betas)
        require(betas, "betas", self.betas, "two numbers from 0 to below 1")
        for name, choices in _CHOICES.items():
            require(getattr(self, name) in choices, name, getattr(self, name), f"one of {', '.join(choices)}")
        self._check_sizes()

    def _check_sizes(self) -> None:
        groups = self.kv_heads or self.heads
        require(
            self.width % (_LANES * self.heads) == 0, "width", self.width, f"a multiple of {_LANES} times heads, {self.heads}"
        )
        require(self.heads % groups == 0, "kv_heads", self.kv_heads, f"a divisor of heads, {self.heads}")
        require(self.inner % _LANES == 0, "inner", self.inner, f"a multiple of {_LANES}")
        micro = self.micro_batch or self.batch
        require(self.batch % micro == 0, "micro_batch", self.micro_batch, f"a divisor of batch, {self.batch}")
        needed = self.future_tokens if self.future_tokens > 1 else 0
        require(self.layers > needed, "layers", self.layers, f"more than future_tokens, {self.future_tokens}")
        plain = self.future_tokens == 1
        require(not plain or self.curriculum == "none", "curriculum", self.curriculum, "none where future_tokens is 1")
        require(
            not plain or self.future_weight is None, "future_weight", self.future_weight, "left out where future_tokens is 1"
        )
        require(not plain or self.variant == "parallel", "variant", self.variant, "left out where future_tokens is 1")

    @property
    def further_weight(self) -> float:
        """Weight of the loss of each token but the next one."""
        if self.future_weight is not None:
            return self.future_weight
        return 0.3 / max(self.future_tokens - 1, 1) if self.variant == "sequential" else 1.0

    @classmethod
    def of(cls, **options: Any) -> PretrainSettings:
        """Settings from keywords; an unknown one is refused, with the nearest known name."""
        _require_known(options, "pretraining")
        return cls(**options)

    def changed(self, **options: Any) -> PretrainSettings:
        """A copy with other values; an unknown name is refused."""
        _require_known(options, "pretraining")
        return dataclasses.replace(self, **options)


_AT_LEAST_ONE = (
    "future_tokens", "width", "layers", "heads", "context", "steps", "batch", "evaluations", "evaluation_sequences",
    "num_ranks",
)  # fmt: skip
_NOT_NEGATIVE = (
    "kv_heads",
    "inner",
    "micro_batch",
    "future_weight",
    "weight_decay",
    "clip",
    "checkpoint_minutes",
    "seed",
)
_CHOICES: dict[str, tuple[str, ...]] = {
    "variant": VARIANTS,
    "curriculum": get_args(Curriculum),
    "precision": get_args(Precision),
    "device": ("cpu", "cuda"),
}
_TYPES: dict[type, str] = {int: "a whole number", float: "a number", str: "text", tuple: "two numbers from 0 to below 1"}


def read_config(path: str | Path) -> dict[str, Any]:
    """Settings from a TOML file, and ``data`` and ``out`` if it names them; RequestError for an unknown key."""
    path = Path(path)
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise RequestError(f"{path} is no TOML: {error}") from error
    _require_known(found.keys() - {"data", "out"}, str(path))
    return {name: tuple(value) if name == "betas" and isinstance(value, list) else value for name, value in found.items()}


def changes(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Settings that differ and may not, when a run goes on."""
    return [name for name in one if name != "checkpoint_minutes" and one[name] != other.get(name)]


def _is_like(value: object, default: object) -> bool:
    """Whether a value is of its default's type; a whole number is a number, and nothing else passes for another."""
    if isinstance(default, tuple):
        return isinstance(value, tuple) and all(_is_like(entry, 0.0) for entry in value)
    return type(value) is type(default) or (isinstance(default, float) and type(value) is int)


def _require_known(options: Iterable[str], where: str) -> None:
    known = [f.name for f in fields(PretrainSettings)]
    for name in sorted(options):
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise RequestError(f"{where} has no option {name}" + (f"; did you mean {near[0]}?" if near else ""))
