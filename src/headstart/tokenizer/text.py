"""``Tokenizer``: text to token ids and back, without PyTorch and without transformers.

It wraps a ``tokenizers.Tokenizer`` and the model's chat template. ``Tokenizer.from_folder`` reads a Hugging Face
folder; GGUF files are read in ``target/gguf_tokenizer.py``. Text streams through ``detokenizer.py``.

Limits: a folder must hold ``tokenizer.json`` (the fast format); the ``clean_up_tokenization_spaces`` pass of old models is not
applied; an end token that a tokenizer would append to a prompt (``add_eos_token``) is never appended.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers.processors import TemplateProcessing

from headstart.errors import ModelError, RequestError
from headstart.tokenizer.backend import guarded, read_backend
from headstart.tokenizer.chat_template import ChatTemplate, Message, check_messages, check_text

TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|end|>", "<|end_of_turn|>", "<turn|>")
"""Tokens with which chat templates close a turn; one of them ends a generation when the model's template uses it."""


class Tokenizer:
    """A model's vocabulary, its special tokens and its chat template."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        chat_template: str | None = None,
        special_tokens: Mapping[str, str] | None = None,
        end_tokens: Iterable[int] = (),
        source: str = "The tokenizer",
    ) -> None:
        """``special_tokens`` are the template's names (``bos_token``, ``eos_token``, ...); ``eos_token`` also ends a text.

        ``source`` is what errors call the vocabulary.
        """
        self.backend = backend
        self._source = source
        self.token_bytes: dict[int, bytes] = {}  # what the detokenizer found out; asking the backend takes ten times as long
        self.special_tokens = dict(special_tokens or {})
        self._template = ChatTemplate(chat_template, self.special_tokens) if chat_template else None
        self.special_ids = frozenset(id for id, token in backend.get_added_tokens_decoder().items() if token.special)
        self.end_tokens = frozenset(end_tokens) | self._declared_ends(chat_template or "")

    def _declared_ends(self, template: str) -> frozenset[int]:
        names = [self.special_tokens.get("eos_token"), *(name for name in TURN_ENDS if name in template)]
        ids = [self.backend.token_to_id(name) for name in names if name]
        return frozenset(id for id in ids if id is not None)

    @classmethod
    def from_folder(cls, folder: str | Path) -> Tokenizer:
        """Read ``tokenizer.json`` and the files beside it. ``ModelError`` names a missing or damaged file."""
        folder = Path(folder)
        backend = _read_backend(folder / "tokenizer.json")
        source = f"tokenizer.json in {folder.name}"
        config = read_json(folder / "tokenizer_config.json", default={})
        special = special_tokens(folder / "special_tokens_map.json") | special_tokens(folder / "tokenizer_config.json")
        if config.get("add_bos_token") is True and "bos_token" in special:
            put_bos_first(backend, special["bos_token"], source)
        generation = read_json(folder / "generation_config.json", default={})
        return cls(
            backend,
            chat_template=_read_template(folder, config),
            special_tokens=special,
            end_tokens=token_ids(generation.get("eos_token_id")),
            source=source,
        )

    @cached_property
    def vocab_size(self) -> int:
        """The highest token id plus one: ids below it exist, but for gaps that the vocabulary itself has."""
        return max(self.backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    @property
    def has_chat_template(self) -> bool:
        """Whether ``apply_chat`` can work; a base model has none."""
        return self._template is not None

    @property
    def chat_template(self) -> str | None:
        """The template's source, if there is one."""
        return None if self._template is None else self._template.source

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text. ``add_special_tokens`` puts the beginning-of-text token first where the model has one.

        ``ModelError`` where the vocabulary is damaged.
        """
        if not isinstance(text, str):
            raise RequestError(f"A prompt must be text, not {type(text).__name__}")
        check_text(text, "The text")
        ids: list[int] = guarded(
            lambda: self.backend.encode(text, add_special_tokens=add_special_tokens).ids,
            f"{self._source} cannot encode this text",
        )
        return ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of token ids; ids that the vocabulary does not know give nothing."""
        text: str = guarded(
            lambda: self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens),
            f"{self._source} cannot decode these tokens",
        )
        return text

    def apply_chat(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True, extra: Mapping[str, Any] | None = None
    ) -> str:
        """The prompt text of a chat, special tokens written out. ``extra`` holds further variables of the template."""
        if self._template is None:
            check_messages(messages)
            raise RequestError("This is a base model without a chat template: pass a plain prompt instead of messages")
        return self._template.render(messages, add_generation_prompt=add_generation_prompt, extra=extra or {})

    def encode_chat(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True, extra: Mapping[str, Any] | None = None
    ) -> list[int]:
        """Token ids of a chat; the template writes its own beginning-of-text token, so none is added."""
        text = self.apply_chat(messages, add_generation_prompt=add_generation_prompt, extra=extra)
        return self.encode(text, add_special_tokens=False)

    def token_text(self, token: int) -> str | None:
        """A token as the vocabulary spells it (not decoded), or None where the id is unknown."""
        if token < 0:
            return None
        text: str | None = self.backend.id_to_token(token)
        return text

    def token_id(self, text: str) -> int | None:
        """The id of a token as the vocabulary spells it, or None."""
        token: int | None = self.backend.token_to_id(text)
        return token


def read_json(path: Path, default: Any = None) -> Any:
    """A JSON object from a file; ``default`` (if given) where there is no file. ``ModelError`` names a damaged one."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if default is not None:
            return default
        raise ModelError(f"{path.parent.name} has no {path.name}") from None
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, nested or long beyond reason
        raise ModelError(f"{path.name} in {path.parent.name} is not valid JSON: {error}") from error
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path.name} in {path.parent.name} holds no JSON object")
    return value


def token_ids(value: Any) -> frozenset[int]:
    """The ids of a config's ``eos_token_id``: absent, one or several."""
    values = value if isinstance(value, list) else [value]
    return frozenset(id for id in values if isinstance(id, int) and not isinstance(id, bool) and id >= 0)


def put_bos_first(backend: tokenizers.Tokenizer, bos: str, source: str) -> None:
    """Make ``encode`` begin with the token ``bos``, unless it already does; ``source`` is what errors call the vocabulary."""
    id = backend.token_to_id(bos)
    if id is None:
        raise ModelError(f"The tokenizer's bos_token {bos!r} is not in its vocabulary")
    if id not in guarded(lambda: backend.encode("", add_special_tokens=True).ids, f"{source} cannot encode a text"):
        backend.post_processor = guarded(
            lambda: TemplateProcessing(single=[bos, "$A"], pair=[bos, "$A", "$B"], special_tokens=[(bos, id)]),
            f"{source} cannot begin a text with {bos!r}",
        )


def _read_backend(path: Path) -> tokenizers.Tokenizer:
    if not path.is_file():
        raise ModelError(
            f"{path.parent.name} has no tokenizer.json; convert its tokenizer to the fast format and save it there"
        )
    return read_backend(path)


def special_tokens(path: Path) -> dict[str, str]:
    """The tokens that a JSON file names (``bos_token``, ``eos_token``, ...), none if there is no file."""
    found: dict[str, str] = {}
    for name, value in read_json(path, default={}).items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            check_text(text, f"The {name} of {path.name} in {path.parent.name}", ModelError)
            found[name] = text
    return found


def _read_template(folder: Path, config: Mapping[str, Any]) -> str | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ModelError(f"{file.name} in {folder.name} cannot be read: {error}") from error
    template = config.get("chat_template")
    if isinstance(template, list):  # several named ones; "default" is for plain chats
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None
