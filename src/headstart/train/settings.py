"""Every default of training, once: the keyword of ``train``, the flag of the command line and the help text.

The published recipe (Medusa, Cai et al. 2024, section 2.2.1 and appendix B) is ``sees_root=False, inner_factor=0,
output="own", draft_vocab=0, soft_weight=0``. The defaults are what held-out text of a small model liked better: a square block
ends in a SiLU, which can hardly subtract, while a head over the base's own output matrix has to take the next token away.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, Literal

from headstart.errors import RequestError

EAGLE3 = "eagle3"  # as feature_layers: the third layer, the middle one and the last but two
Precision = Literal["float32", "bfloat16", "float16"]


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """What training may be told; ``minutes`` is the whole budget, the writing of the corpus included."""

    minutes: float = 30.0  # 0: no limit
    # the corpus that the model writes
    corpus_tokens: int = 2_000_000  # supervised tokens, at most
    corpus_share: float = 0.7  # of the minutes, for writing
    writer_batch: int = 64  # conversations written at once
    writer_dtype: str = "auto"  # of the native engine while it writes; auto: the fastest there; stored: the file's
    answer_tokens: int = 260  # longest answer written
    question_tokens: int = 110  # a user's turn that has not ended by then is thrown away
    kinds: str = ""  # JSON file of the kinds of conversation to write, in place of those that are built in
    mixture: str = ""  # of which kinds, and their shares: code=2,chat=1; empty: all of them
    max_copied: float = 0.9  # of data: share of a document that may stand in earlier ones, or it is left out; 1: keep all
    held_out: float = 0.05  # share of documents kept for measuring acceptance
    # the heads
    num_heads: int | None = None  # None: as many as the kind of heads likes (medusa 3, hydra 4)
    num_blocks: int = 1
    inner_factor: float = 2.0  # inner width of a head's blocks over the model's; 0: the published square block (medusa)
    sees_root: bool = True  # False: the published form, which reads the hidden state alone
    output: Literal["base", "own"] = "base"  # the base's own output rows, or trained ones (medusa)
    draft_vocab: int = 8192  # most frequent tokens that heads may propose; 0: all
    feature_layers: str | None = None  # residual streams that an mtp layer reads, fused: eagle3, or layers as 2,15,27 (mtp)
    context_tokens: int | None = None  # of a prompt that an mtp layer learns behind, at most; not given: 1024 (mtp)
    num_ranks: int = 10  # guesses a head whose accuracy is measured
    # hidden states
    online: bool = False  # recompute them for each batch (no disk) instead of capturing them once
    capture_share: float = 0.8  # of the minutes, at which capturing ends
    states_dtype: Precision = "bfloat16"
    base_dtype: Precision = "bfloat16"  # of the frozen base in PyTorch, which writes where the native engine cannot
    # the optimiser
    epochs: float = 8.0  # passes over the corpus, at most
    batch_rows: int = 1024
    learning_rate: float = 3e-3
    warmup: float = 0.03  # share of the steps
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.95)
    clip: float = 1.0  # largest gradient norm
    head_decay: float = 0.8  # the loss of head k counts head_decay ** k
    soft_weight: float = 0.5  # 0: hard labels as published; 1: the base's own distribution alone
    vocab_sample: int = 2048  # draft-vocabulary tokens in a step's loss, beside its own targets; 0: all (slower)
    chunk_rows: int = 512  # rows whose logits exist at once
    evaluations: int = 12  # measurements of held-out acceptance during the run
    evaluation_rows: int = 6000
    decoded_prompts: int = 8  # held-out prompts that each of them decodes; 0: none
    decoded_tokens: int = 48  # of the answer to each
    checkpoint_minutes: float = 2.0
    max_bad_batches: int = 5  # in a row, before training stops
    # the base, where it learns together with the heads (Medusa-2)
    joint_share: float = 0.5  # of the minutes, for the joint stage
    joint_epochs: float = 1.0  # passes of the joint stage over the corpus, at most
    joint_rows: int = 512  # supervised tokens in a joint step
    joint_rate: float = 4e-4  # learning rate of the heads in the joint stage
    base_rate: float = 0.25  # learning rate of the base over that of the heads, in the joint stage
    heads_weight: float = 0.05  # of the heads' loss beside the base's distance from what it was (lambda_0)
    lora_rank: int = 32  # of the base's adapters
    lora_alpha: float = 16.0  # alpha / rank scales what an adapter adds
    calibrate: bool = True  # scale the base's logits until they are as sure as they were, on text that was learned from
    max_harm: float = 0.01  # share by which held-out perplexity of the base may rise
    max_divergence: float = 0.05  # nats a place by which the base may differ from what it was
    seed: int = 0

    def __post_init__(self) -> None:
        for entry in fields(self):
            if entry.default is not None:
                _require(_is_like(getattr(self, entry.name), entry.default), self, entry.name, _TYPES[type(entry.default)])
        for name in _AT_LEAST_ONE:
            value = getattr(self, name)
            given = value is not None or name not in _MAY_BE_NONE
            _require(not given or (isinstance(value, int) and value >= 1), self, name, "a whole number, 1 or more")
        for name in _NOT_NEGATIVE:
            value = getattr(self, name)
            _require(math.isfinite(value) and value >= 0, self, name, "0 or more")
        for name in ("corpus_share", "capture_share", "held_out", "warmup", "soft_weight", "joint_share", "max_copied"):
            _require(0 <= getattr(self, name) <= 1, self, name, "between 0 and 1")
        _require(isinstance(self.seed, int) and 0 <= self.seed < 2**32, self, "seed", "a whole number from 0 to below 2**32")
        context = self.context_tokens
        _require(
            context is None or (type(context) is int and context >= 0), self, "context_tokens", "a whole number, 0 or more"
        )
        layers = self.feature_layers
        listed = isinstance(layers, str) and all(layer.isdecimal() for layer in layers.split(","))
        _require(layers in (None, EAGLE3) or listed, self, "feature_layers", "eagle3, or numbers of layers with commas between")
        for name in ("learning_rate", "epochs", "head_decay", "joint_epochs", "joint_rate", "base_rate", "lora_alpha"):
            _require(0 < getattr(self, name) < math.inf, self, name, "a finite number above 0")
        _require(
            len(self.betas) == 2 and all(0 <= beta < 1 for beta in self.betas), self, "betas", "two numbers from 0 to below 1"
        )
        _require(isinstance(self.writer_dtype, str), self, "writer_dtype", "the name of a dtype, auto or stored")
        _require(self.output in ("base", "own"), self, "output", '"base" or "own"')
        for name in ("states_dtype", "base_dtype"):
            _require(getattr(self, name) in ("float32", "bfloat16", "float16"), self, name, "float32, bfloat16 or float16")

    def refuse_joint(self) -> None:
        """RequestError that names the first setting of the joint stage that was given."""
        for name in JOINT:
            if getattr(self, name) != getattr(TrainSettings(), name):
                raise RequestError(f"{name} has no effect while the base stays as it is; give model_out (--model-out)")

    def refuse_with_joint(self) -> None:
        """RequestError that names the first setting that was given and that the joint stage cannot follow."""
        for name in ("feature_layers", "context_tokens"):
            if getattr(self, name):
                raise RequestError(
                    f"{name} has no effect with model_out: a layer reads hidden states alone while the base changes"
                )

    @classmethod
    def of(cls, **options: Any) -> TrainSettings:
        """Settings from keywords; an unknown one is refused, with the nearest known name."""
        _require_known(options)
        return cls(**options)

    def changed(self, **options: Any) -> TrainSettings:
        """A copy with other values; an unknown name is refused."""
        _require_known(options)
        return dataclasses.replace(self, **options)


_AT_LEAST_ONE = (
    "writer_batch", "answer_tokens", "question_tokens", "num_heads", "num_blocks", "num_ranks", "batch_rows", "chunk_rows",
    "evaluations", "evaluation_rows", "max_bad_batches", "joint_rows", "lora_rank",
    "decoded_tokens",
)  # fmt: skip
_MAY_BE_NONE = ("num_heads",)
_NOT_NEGATIVE = (
    "minutes",
    "inner_factor",
    "corpus_tokens",
    "draft_vocab",
    "weight_decay",
    "vocab_sample",
    "checkpoint_minutes",
    "clip",
    "decoded_prompts",
    "heads_weight",
    "max_harm",
    "max_divergence",
)
JOINT = (
    "joint_share", "joint_epochs", "joint_rows", "joint_rate", "base_rate", "heads_weight", "lora_rank", "lora_alpha",
    "calibrate", "max_harm", "max_divergence",
)  # fmt: skip
"""Settings that only a run which trains the base as well can follow."""


_TYPES: dict[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    tuple: "two numbers from 0 to below 1",
}


def _is_like(value: object, default: object) -> bool:
    """Whether a value is of its default's type; a whole number is a number, and nothing else passes for another."""
    if isinstance(default, tuple):
        return isinstance(value, list | tuple) and all(_is_like(entry, 0.0) for entry in value)
    return type(value) is type(default) or (isinstance(default, float) and type(value) is int)


def _require_known(options: Iterable[str]) -> None:
    known = [f.name for f in fields(TrainSettings)]
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise RequestError(f"training has no option {name}{hint}")


def _require(holds: bool, settings: TrainSettings, name: str, allowed: str) -> None:
    if not holds:
        raise RequestError(f"{name} is {getattr(settings, name)!r}; it must be {allowed}")
