"""A tiny chat model: a tokenizer of single characters with a chat template, over :func:`tiny.tiny_llama`."""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

import tokenizers
import torch
from tokenizers import Regex, decoders, models, pre_tokenizers

from headstart.target.hf import HfTarget
from headstart.target.loading import Loaded, Source
from headstart.tokenizer import Tokenizer
from headstart.train.base import Base
from tiny import tiny_llama

SPECIAL = ["<pad>", "<s>", "<e>", "<u>", "<a>"]
END = SPECIAL.index("<e>")
_CHARACTERS = string.ascii_letters[:26] + "\n .,:?!'" + "WSETRQ"
TEMPLATE = (
    "<s>be kind<e>\n{% for m in messages %}{{ '<u>' if m['role'] == 'user' else '<a>' }}{{ m['content'] }}<e>\n{% endfor %}"
    "{% if add_generation_prompt %}<a>{% endif %}"
)


def chat_tokenizer(*, chat: bool = True) -> Tokenizer:
    """Characters as tokens; unknown ones become a full stop."""
    vocab = {token: i for i, token in enumerate([*SPECIAL, *_CHARACTERS])}
    backend: Any = tokenizers.Tokenizer(models.WordLevel(vocab, unk_token="."))
    backend.add_special_tokens(SPECIAL)
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    backend.decoder = decoders.Fuse()
    return Tokenizer(backend, chat_template=TEMPLATE if chat else None, special_tokens={"eos_token": "<e>"})


def tiny_loaded(seed: int = 0, *, chat: bool = True, **config: Any) -> Loaded:
    """Model and tokenizer as ``load_model`` gives them."""
    tokenizer = chat_tokenizer(chat=chat)
    model = tiny_llama(seed, vocab_size=tokenizer.vocab_size, **config)
    bias = torch.zeros(tokenizer.vocab_size)
    bias[END] = 4.0  # turns shall be short
    model.get_output_embeddings().bias = torch.nn.Parameter(bias)
    target = HfTarget(model, name="tiny", dtype="float32", end_tokens=(END,))
    return Loaded(target, tokenizer, Source("folder", "tiny", "none"))


def save_chat_model(folder: Path, **config: Any) -> str:
    """A folder as transformers saves it, with a tokenizer and a chat template; the native engine takes ``head_dim=16``."""
    tokenizer = chat_tokenizer()
    tiny_llama(vocab_size=tokenizer.vocab_size, **config).save_pretrained(folder)
    tokenizer.backend.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": "<e>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return str(folder)


def tiny_base(seed: int = 0, *, chat: bool = True, **config: Any) -> Base:
    """The same, as training sees it."""
    return Base.of(tiny_loaded(seed, chat=chat, **config), "float32")
