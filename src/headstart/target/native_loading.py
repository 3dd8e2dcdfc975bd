"""Models for the native engine: a checkpoint of the Llama family, packed."""

from __future__ import annotations

from headstart import _native
from headstart.errors import ModelError
from headstart.target.checkpoint import Checkpoint
from headstart.target.native import NativeTarget
from headstart.target.native_settings import native_settings
from headstart.target.native_weights import pack
from headstart.tokenizer import Tokenizer
from headstart.tokenizer.text import token_ids


def load_native(
    name: str, checkpoint: Checkpoint, tokenizer: Tokenizer, *, dtype: str, kv_dtype: str
) -> tuple[NativeTarget, tuple[str, ...]]:
    """The target, and remarks about weights that are used in another form than they are stored in.

    ``ModelError`` for settings and tensors that do not fit each other, and for a ``HEADSTART_ISA`` or
    ``HEADSTART_THREADS`` that makes no sense here.
    """
    try:
        _native.isa()
        _native.num_threads()
    except ValueError as error:
        raise ModelError(str(error)) from error
    settings = native_settings(checkpoint)
    if tokenizer.vocab_size > settings.num_embeddings:
        raise ModelError(
            f"{checkpoint.name}: the tokenizer has {tokenizer.vocab_size} tokens, but the model only {settings.num_embeddings}"
        )
    weights = pack(checkpoint, settings, dtype, tokenizer.vocab_size)
    ends = tokenizer.end_tokens | token_ids(checkpoint.config.get("eos_token_id"))
    target = NativeTarget(
        weights,
        name=name,
        vocab_size=tokenizer.vocab_size,
        end_tokens=frozenset(id for id in ends if id < tokenizer.vocab_size),
        kv_dtype=kv_dtype,
    )
    return target, weights.notes
