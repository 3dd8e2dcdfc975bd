"""The base model as training sees it: frozen, with its output matrix, its tokenizer and its template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from headstart.errors import RequestError
from headstart.heads.base import BaseIdentity
from headstart.llm import LLM
from headstart.target.base import Target
from headstart.target.hf_support import cache_keyword
from headstart.target.loading import Loaded, load_model
from headstart.tokenizer import Tokenizer


class FrozenModel:
    """A transformers causal LM that is only ever read: no gradient, no dropout."""

    def __init__(self, model: Any, vocab_size: int | None = None) -> None:
        """``vocab_size``: ids that may be sampled; padding rows of the output matrix are never looked at."""
        self.module = model.eval()
        self.module.requires_grad_(False)
        output = model.get_output_embeddings()
        self.output: Tensor = output.weight  # [V or more, D]
        self._bias: Tensor | None = getattr(output, "bias", None)
        self.embedding: Tensor = model.get_input_embeddings().weight
        self.vocab_size = int(self.output.shape[0]) if vocab_size is None else vocab_size
        self._cache_keyword = cache_keyword(model)
        self.width = int(self.output.shape[1])

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.output.device

    def states(self, *, cache: Any = None, **inputs: Tensor) -> Tensor:
        """Last hidden states [batch, rows, D]: what the output matrix reads. ``cache`` is read and extended, if given."""
        cached = {} if cache is None else {self._cache_keyword: cache}
        states: Tensor = self.module.base_model(use_cache=cache is not None, **cached, **inputs).last_hidden_state
        return states

    def logits(self, hidden: Tensor) -> Tensor:
        """Raw logits of the ids that may be sampled."""
        bias = None if self._bias is None else self._bias[: self.vocab_size]
        return functional.linear(hidden, self.output[: self.vocab_size], bias)


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
    codec: TokenizerCodec
    end_tokens: frozenset[int]
    identity: BaseIdentity
    context_limit: int
    dtype: str

    @classmethod
    def of(cls, model: str | Loaded | LLM, dtype: str) -> Base:
        """The base of a name, which is loaded in ``dtype``, or of what is loaded already."""
        loaded = load_model(model, dtype=dtype) if isinstance(model, str) else model
        target: Target = loaded.target
        if target.engine != "hf":
            raise RequestError(
                f"training runs on PyTorch; the {target.engine} engine only decodes. Give the model's name instead"
            )
        module: Any = target
        return cls(
            FrozenModel(module.model, target.vocab_size),
            TokenizerCodec(loaded.tokenizer),
            target.end_tokens,
            BaseIdentity.of(target),
            target.context_limit,
            target.dtype,
        )
