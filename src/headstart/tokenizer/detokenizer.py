"""Text from a stream of tokens: what each token adds, in amortised constant time.

The law: the deltas of a stream, joined, equal ``Tokenizer.decode`` of all its tokens, wherever the stream is cut - but for a
character that the cut left unfinished, which is held back and never shown as U+FFFD. Two kinds of decoder need two ways:

* Byte-level BPE: every token is a string of bytes and the text is the UTF-8 decoding of all of them, with U+FFFD for each
  maximal invalid part. An incremental UTF-8 decoder does exactly that.
* Every other kind works on tokens: the text of a token may depend on whether it comes first (the leading space of
  SentencePiece). So a token is decoded behind the one before it, and that one's text is taken off. Byte-fallback tokens
  (``<0xE2>``) come in runs that decode as a whole - one bad byte spoils its run - so a run is held until it ends.
"""

from __future__ import annotations

import codecs
import json
import re
from typing import Protocol

from headstart.tokenizer.text import Tokenizer

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_MAX_CONTEXT = 8  # tokens; more than one only while they decode to nothing


class _Stream(Protocol):
    def feed(self, token: int) -> str: ...
    def finish(self) -> str: ...


class Detokenizer:
    """The text of one sequence, token by token."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True) -> None:
        self._skipped = tokenizer.special_ids if skip_special_tokens else frozenset()
        kind, has_byte_fallback = _decoder_kind(tokenizer)
        self._stream: _Stream = (
            _ByteStream(tokenizer) if kind == "ByteLevel" else _TokenStream(tokenizer, has_byte_fallback, skip_special_tokens)
        )

    def feed(self, token: int) -> str:
        """The text that this token adds; empty while a character is unfinished."""
        return "" if token in self._skipped else self._stream.feed(token)

    def finish(self) -> str:
        """What was held back and is whole; bytes of an unfinished character are dropped. Nothing may be fed afterwards."""
        return self._stream.finish()


def byte_alphabet() -> dict[str, int]:
    """The 256 characters that stand for bytes in a byte-level vocabulary: printable Latin-1, then U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if chr(byte) not in alphabet)
    return alphabet | {chr(0x100 + index): byte for index, byte in enumerate(others)}


_ALPHABET = byte_alphabet()


class _ByteStream:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._bytes = tokenizer.token_bytes
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token: int) -> str:
        data = self._bytes.get(token)
        if data is None:
            data = self._bytes[token] = _spelled(self._tokenizer.token_text(token) or "")
        return self._utf8.decode(data)

    def finish(self) -> str:
        self._utf8.reset()
        return ""


def _spelled(text: str) -> bytes:
    """The bytes that a token of a byte-level vocabulary spells."""
    try:
        return bytes([_ALPHABET[character] for character in text])
    except KeyError:  # an added token with characters outside the alphabet stands for itself
        return text.encode()


class _TokenStream:
    def __init__(self, tokenizer: Tokenizer, has_byte_fallback: bool, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._has_byte_fallback = has_byte_fallback
        self._skip = skip_special_tokens
        self._context: list[int] = []  # already shown
        self._run: list[tuple[int, int]] = []  # (token, byte)

    def feed(self, token: int) -> str:
        spelling = self._tokenizer.token_text(token)
        if spelling is None:
            return ""
        byte = _BYTE_TOKEN.fullmatch(spelling) if self._has_byte_fallback else None
        if byte:
            self._run.append((token, int(byte[1], 16)))
            return ""
        return self._show([*(held for held, _ in self._run), token])

    def finish(self) -> str:
        data = bytes(byte for _, byte in self._run)
        whole = _without_unfinished(data)
        return self._show([token for token, _ in self._run[: len(whole)]]) if whole else ""

    def _show(self, tokens: list[int]) -> str:
        before = self._decode(self._context)
        text = self._decode(self._context + tokens)
        self._run = []
        last = tokens[-1]
        self._context = [last] if self._decode([last]) else [*self._context, last][-_MAX_CONTEXT:]
        return text[len(before) :]

    def _decode(self, tokens: list[int]) -> str:
        return self._tokenizer.decode(tokens, skip_special_tokens=self._skip) if tokens else ""


def _without_unfinished(data: bytes) -> bytes:
    """Without the unfinished character at the end, when all before it is sound; a spoilt run stays as it is."""
    decoder = codecs.getincrementaldecoder("utf-8")("strict")
    try:
        decoder.decode(data)
    except UnicodeDecodeError:
        return data
    return data[: len(data) - len(decoder.getstate()[0])]


def _decoder_kind(tokenizer: Tokenizer) -> tuple[str | None, bool]:
    """(the decoder's type, whether it joins byte-fallback tokens); a sequence of one is that one."""
    decoder = tokenizer.backend.decoder
    if decoder is None:
        return None, False
    state = json.loads(decoder.__getstate__())
    parts = state.get("decoders", [state])
    kinds = [part["type"] for part in parts]
    return (kinds[0] if len(kinds) == 1 else "Sequence"), "ByteFallback" in kinds
