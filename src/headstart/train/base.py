"""The base model as training sees it: frozen, with its output matrix, its tokenizer and its template.

Two engines hold it. PyTorch has the matrices that the loss reads. What writes the corpus and gives the hidden states is the
engine that the heads will decode with, native where it can run the model: it is much faster at writing, and its states are the
ones that heads will see. Blocks of 4 or 8 bits, which are made for few rows, are turned into bfloat16 for it where the CPU
multiplies that in tiles: with the rows of many texts it is faster there, and its states are the blocks' up to their rounding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.errors import RequestError
from headstart.heads.base import BaseIdentity
from headstart.llm import LLM
from headstart.target.base import Target
from headstart.target.hf_watch import final_norm
from headstart.target.loading import Loaded, load_model, native_obstacle
from headstart.target.machine import runtime
from headstart.tokenizer import Tokenizer

STORED = "stored"
_BLOCKS = ("int8", "q4_0", "q4_1")
_WITH_TILES = "amx"
_SOME_TOKENS = 64


class FrozenModel:
    """A transformers causal LM of which training reads the matrices alone: no gradient, no dropout."""

    def __init__(self, model: Any, vocab_size: int | None = None) -> None:
        """``vocab_size``: ids that may be sampled; padding rows of the output matrix are never looked at."""
        self.module = model.eval()
        self.module.requires_grad_(False)
        self.output: Tensor = model.get_output_embeddings().weight  # [V or more, D]
        self.embedding: Tensor = model.get_input_embeddings().weight
        self.vocab_size = int(self.output.shape[0]) if vocab_size is None else vocab_size
        self.width = int(self.output.shape[1])
        self.num_layers = int(model.config.get_text_config(decoder=True).num_hidden_layers)

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.output.device

    @torch.no_grad()
    def state_scale(self) -> float:
        """Root mean square of the hidden states that the output matrix reads, behind some tokens."""
        states = self.module.base_model(input_ids=self._some_tokens(), use_cache=False).last_hidden_state
        return float(states.float().square().mean().sqrt())

    @torch.no_grad()
    def stream_sizes(self, layers: Sequence[int]) -> list[float]:
        """Root mean square of the residual streams before these layers, behind most of some tokens (a few are far larger)."""
        found = self.module.base_model(input_ids=self._some_tokens(), use_cache=False, output_hidden_states=True).hidden_states
        return [float(found[layer].float().square().mean(-1).sqrt().median()) for layer in layers]

    @torch.no_grad()
    def last_norm(self) -> NDArray[np.float32]:
        """What the norm in front of the output matrix makes of normalised states, as weights [D]; 1 where none is known."""
        norm = final_norm(self.module.get_decoder())
        signs = torch.ones(self.width, device=self.device, dtype=self.output.dtype)
        signs[1::2] = -1.0  # of mean 0 and square 1, so that a norm of either kind leaves them as they are
        weights = signs * signs if norm is None else norm(signs[None])[0] * signs
        found: NDArray[np.float32] = weights.float().cpu().numpy()
        return found

    def _some_tokens(self) -> Tensor:
        return torch.arange(min(_SOME_TOKENS, self.vocab_size), device=self.device)[None]


@dataclass(frozen=True, slots=True)
class TokenizerCodec:
    """A tokenizer and its chat template, as the corpus needs them."""

    tokenizer: Tokenizer

    @property
    def has_template(self) -> bool:
        """Whether the model was made for chats."""
        return self.tokenizer.has_chat_template

    def encode(self, text: str) -> list[int]:
        """Tokens of a piece of text; none is added."""
        return self.tokenizer.encode(text, add_special_tokens=False)

    def encode_whole(self, text: str) -> list[int]:
        """Tokens of a text that stands alone, behind what the model puts first."""
        return self.tokenizer.encode(text)

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of tokens, special tokens included."""
        return self.tokenizer.decode(tokens, skip_special_tokens=False)

    def render(self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool) -> str:
        """A conversation as the template writes it."""
        return self.tokenizer.apply_chat(messages, add_generation_prompt=add_generation_prompt)


@dataclass(frozen=True, slots=True)
class Base:
    """A frozen model with everything around it."""

    model: FrozenModel
    target: Target  # writes the corpus and computes hidden states, as it will when the heads are used
    codec: TokenizerCodec
    identity: BaseIdentity
    dtype: str  # of ``model``
    faster: str = ""  # the model's name, if its blocks were turned into something faster for ``target``

    @property
    def end_tokens(self) -> frozenset[int]:
        """What ends a text."""
        return self.target.end_tokens

    def as_loaded(self) -> Target:
        """The target that ``load`` gives, for what depends on its speed."""
        return _on_native(self.faster, "auto") if self.faster else self.target

    @classmethod
    def of(cls, model: str | Loaded | LLM, dtype: str, writer_dtype: str = "auto") -> Base:
        """The base of a name, which is loaded in ``dtype``, or of what is loaded already.

        A name is loaded into the native engine as well, in ``writer_dtype``, which then writes; where it cannot run the model,
        PyTorch does. "auto" is what is fastest at many rows, "stored" what the file holds. RequestError if ``writer_dtype``
        is given and cannot take effect.
        """
        loaded = load_model(model, dtype=dtype, engine="hf") if isinstance(model, str) else model
        if loaded.target.engine != "hf":
            raise RequestError(
                f"training runs on PyTorch; the {loaded.target.engine} engine only decodes. Give the model's name instead"
            )
        if not isinstance(model, str) and writer_dtype != "auto":
            raise RequestError(f"writer_dtype is {writer_dtype!r}, which has no effect on a model that is loaded already")
        module: Any = loaded.target
        target, is_faster = writing_target(model, writer_dtype) if isinstance(model, str) else (None, False)
        return cls(
            FrozenModel(module.model, loaded.target.vocab_size),
            target or loaded.target,
            TokenizerCodec(loaded.tokenizer),
            BaseIdentity.of(loaded.target),
            loaded.target.dtype,
            model if isinstance(model, str) and is_faster else "",
        )


def writing_target(name: str, dtype: str) -> tuple[Target | None, bool]:
    """The model on the native engine, if that can run it, and whether it is in another dtype than the file's to be faster.

    A wrong setting of the engine is an error.
    """
    found = native_obstacle(name)
    if found is None:
        return _fast_at_many_rows(name) if dtype == "auto" else (_on_native(name, "auto" if dtype == STORED else dtype), False)
    if dtype != "auto":
        raise RequestError(f"writer_dtype is {dtype!r}, which needs the native engine, and {name} cannot run there: {found}")
    return None, False


def _fast_at_many_rows(name: str) -> tuple[Target, bool]:
    stored = _on_native(name, "auto")
    if stored.dtype in _BLOCKS and runtime("native")["isa"] == _WITH_TILES:
        del stored  # before the other is loaded
        return _on_native(name, "bfloat16"), True
    return stored, False


def _on_native(name: str, dtype: str) -> Target:
    return load_model(name, dtype=dtype, engine="native").target
