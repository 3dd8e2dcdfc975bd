"""Text files as one stream of tokens: documents in an order that the seed decides, each behind it the end token.

A file whose name ends in ``.jsonl`` holds a document a line (``{"text": ...}``), any other file is one document. Sequences of
training are cut from the stream one behind the other, regardless of where documents end, as pretraining does; the last
documents of the order are held out.

The byte tokenizer gives each byte its own value as id, and the end token 256. BPE tokenizers are trained by the library
``tokenizers`` on bytes as well, so no text is unknown to them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import decoders, models, pre_tokenizers, trainers

from headstart.errors import DataError, RequestError, require
from headstart.tokenizer.backend import guarded, read_backend
from headstart.tokenizer.text import special_tokens

BYTES = "bytes"
_BPE = "bpe:"
_END = "<|endoftext|>"
_KNOWN_ENDS = (_END, "</s>", "<|end_of_text|>", "<|im_end|>", "<eos>", "[EOS]")
_NUM_BYTES = 256
_AT_ONCE = 1000  # documents that are encoded in one call


@dataclass(frozen=True, slots=True)
class TextTokenizer:
    """A tokenizer as it is saved, and the token behind each document."""

    backend: tokenizers.Tokenizer
    end: str
    is_bytes: bool = False

    @property
    def end_id(self) -> int:
        """Id of the end token."""
        found = self.backend.token_to_id(self.end)
        assert found is not None  # or it would not be the end token
        return int(found)

    @property
    def vocab_size(self) -> int:
        """The highest id plus one."""
        return max(self.backend.get_vocab(with_added_tokens=True).values()) + 1

    def encode(self, documents: Sequence[bytes], names: Sequence[str]) -> list[NDArray[np.int32]]:
        """Ids of documents, without end tokens; DataError names a document that is no UTF-8 where that matters."""
        if self.is_bytes:
            return [np.frombuffer(document, dtype=np.uint8).astype(np.int32) for document in documents]
        texts = []
        for document, name in zip(documents, names, strict=True):
            try:
                texts.append(document.decode("utf-8"))
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{name} is no UTF-8 text at byte {error.start}; the tokenizer {BYTES} takes any file"
                ) from None
        found: list[NDArray[np.int32]] = []
        for start in range(0, len(texts), _AT_ONCE):
            some = texts[start : start + _AT_ONCE]
            found += [np.array(encoding.ids, dtype=np.int32) for encoding in self._encoded(some)]
        return found

    def _encoded(self, texts: list[str]) -> list[tokenizers.Encoding]:
        return guarded(
            lambda: self.backend.encode_batch(texts, add_special_tokens=False),
            "The tokenizer is damaged and cannot encode the documents",
            DataError,
        )


@dataclass(frozen=True, slots=True)
class TokenStream:
    """Training text and held-out text, each one array of ids."""

    train: NDArray[np.int32]
    held_out: NDArray[np.int32]
    num_documents: int

    @property
    def fingerprint(self) -> str:
        """Of all tokens in their order."""
        digest = hashlib.sha256(self.train.tobytes())
        digest.update(self.held_out.tobytes())
        return digest.hexdigest()[:16]


def read_documents(files: Sequence[str | Path]) -> list[tuple[str, bytes]]:
    """Name and text of every document; DataError for a file that cannot be read, is cut off, or holds nothing."""
    documents: list[tuple[str, bytes]] = []
    for file in map(Path, files):
        try:
            content = file.read_bytes()
        except OSError as error:
            raise DataError(f"{file} cannot be read: {error.strerror}") from error
        documents += _lines(file, content) if file.suffix == ".jsonl" else [(str(file), content)]
    documents = [(name, text) for name, text in documents if text]
    if not documents:
        raise DataError(f"{', '.join(map(str, files)) or 'no file'}: there is no text to learn from")
    return documents


def _lines(file: Path, content: bytes) -> Iterator[tuple[str, bytes]]:
    for number, line in enumerate(content.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            text = json.loads(line)["text"]
            yield f"{file}, line {number}", text.encode("utf-8")
        except (ValueError, KeyError, TypeError, AttributeError):
            raise DataError(f"{file}, line {number} is no JSON object with a 'text'; is the file cut off?") from None


def choose_tokenizer(name: str, documents: Sequence[tuple[str, bytes]]) -> TextTokenizer:
    """The tokenizer of a name: bytes, bpe:SIZE (trained on the documents), or a ``tokenizer.json`` or its folder."""
    if name == BYTES:
        return byte_tokenizer()
    if name.startswith(_BPE):
        size = name.removeprefix(_BPE)
        require(size.isdecimal() and int(size) > _NUM_BYTES, "tokenizer", name, f"bpe:SIZE with a SIZE above {_NUM_BYTES}")
        return _trained(int(size), documents)
    return _read(Path(name))


def byte_tokenizer() -> TextTokenizer:
    """Each byte is a token, of the byte's own value."""
    vocab = {character: byte for byte, character in enumerate(_byte_characters())}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    return TextTokenizer(_on_bytes(backend), _END, is_bytes=True)


def _trained(size: int, documents: Sequence[tuple[str, bytes]]) -> TextTokenizer:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=[_END], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    backend.train_from_iterator((text.decode("utf-8", errors="replace") for _, text in documents), trainer)
    return TextTokenizer(backend, _END)


def _read(path: Path) -> TextTokenizer:
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise RequestError(f"tokenizer is {str(path)!r}; it must be {BYTES}, {_BPE}SIZE, a tokenizer.json or a folder with one")
    backend = read_backend(file, DataError)
    declared = special_tokens(file.parent / "tokenizer_config.json").get("eos_token")
    ends = [end for end in (declared, *_KNOWN_ENDS) if end is not None and backend.token_to_id(end) is not None]
    if not ends:
        raise DataError(
            f"{file} has no end-of-text token; name one as eos_token in a tokenizer_config.json beside it, or train a tokenizer"
            f" with {_BPE}SIZE"
        )
    return TextTokenizer(backend, ends[0])


def token_stream(
    tokenizer: TextTokenizer, documents: Sequence[tuple[str, bytes]], *, held_out: float, seed: int
) -> TokenStream:
    """All documents as tokens; ``held_out`` is the share of tokens at the end of the order."""
    encoded = tokenizer.encode([text for _, text in documents], [name for name, _ in documents])
    order = np.random.default_rng([seed, len(encoded)]).permutation(len(encoded))
    end = np.array([tokenizer.end_id], dtype=np.int32)
    tokens = np.concatenate([part for number in order for part in (encoded[number], end)])
    border = len(tokens) - round(held_out * len(tokens))
    return TokenStream(tokens[:border], tokens[border:], len(encoded))


class Sequences:
    """Sequences of ``length`` tokens and the ``num_future`` behind them, cut from a stream one behind the other."""

    def __init__(self, tokens: NDArray[np.int32], length: int, num_future: int, seed: int, what: str = "to learn from") -> None:
        """DataError if the stream, which is ``what``, does not hold a single one."""
        self._tokens, self._length, self._width, self._seed = tokens, length, length + num_future, seed
        self.count = (len(tokens) - num_future) // length
        if self.count < 1:
            raise DataError(
                f"there are {len(tokens)} tokens {what}, and a sequence needs {self._width}; give more text or less context"
            )
        self._epoch, self._order = -1, np.empty(0, dtype=np.int64)

    def training(self, first: int, count: int) -> NDArray[np.int64]:
        """Sequences ``first``.. of the endless training order [count, length + num_future]; every epoch has one of its own."""
        return self._at([self._place(number) for number in range(first, first + count)])

    def in_order(self, first: int, count: int) -> NDArray[np.int64]:
        """Sequences as they stand in the text."""
        return self._at(range(first, min(first + count, self.count)))

    def _place(self, number: int) -> int:
        epoch, place = divmod(number, self.count)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, np.random.default_rng([self._seed, epoch]).permutation(self.count)
        return int(self._order[place])

    def _at(self, places: Sequence[int]) -> NDArray[np.int64]:
        rows = [self._tokens[place * self._length : place * self._length + self._width] for place in places]
        return np.stack(rows).astype(np.int64)


def _on_bytes(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([_END])
    return backend


def _byte_characters() -> list[str]:
    """The character that stands for each byte in byte-level vocabularies: itself if it can be printed, else one from 256 on."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(_NUM_BYTES, 2 * _NUM_BYTES))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(_NUM_BYTES)]
