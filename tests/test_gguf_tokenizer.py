"""Tokenizers of GGUF files against transformers' own, token for token, over vocabularies that are trained here."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
import transformers
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers, trainers

from gguf_files import ALPHABET, finish
from headstart.target.gguf_file import read_gguf
from headstart.target.gguf_tokenizer import gguf_tokenizer
from headstart.tokenizer import Tokenizer

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
PIECES = ["<unk>", "<s>", "</s>"]

PROSE = """\
It was one of those mornings when the fog wouldn't lift: the ferry's horn sounded twice, then -- nothing. "You'll see," said
Mrs. O'Neil, "it'll clear by ten; it's always cleared by ten." She'd been right 3 times out of 4 (that's 75 %, or 0.75).
Naïve façades, coöperation, Ærøskøbing; Straße und Größe; l'été, où ça? El niño comió piñas. Привет, как дела? Καλημέρα κόσμε!
שלום עולם. مرحبا بالعالم. नमस्ते दुनिया। สวัสดีชาวโลก. e\u0301 is not \u00e9, and A\u030a is not \u00c5.
   Leading spaces,\ttabs\t\tand trailing ones   \n\n\nThree new lines, a return\r\nand a no-break\u00a0space\u2003or two.
"""
CODE = '''\
def fibonacci(n: int) -> int:
    """Return the n-th number; F(0) == 0."""
    a, b = 0, 1
    for _ in range(n):
        a, b = b, a + b  # no recursion: 2**n calls
\treturn a if n >= 0 else -1

x += array[i - 1][j] * 0xFF_FF; s = f"{x!r:>10}" ; assert s != '' and not (x & ~7)
<html lang="en"><body class='a b'>&nbsp;</body></html>  // C++: std::vector<std::pair<int, char*>> v{{1, "a"}};
SELECT COUNT(*) FROM t WHERE id IN (1,2) AND name LIKE '%x_y%';
$HOME/.config ~/x.y-z a@b.example https://example.org/?q=1&r=%20
'''
DIGITS = (
    "0 1 12 123 1234 12345 1234567890 3.14159 1,000,000.00 2024-02-29T23:59:60Z +49 (0)30 123-456 ½ ² ٣٤٥ १२३ ⅷ 1e-10 0b1010\n"
)
SYMBOLS = "🙂🙂 👩‍👩‍👧‍👦 🇩🇪 👍🏽 ❤️ ☃ ♞ → ∑∫√ ≤≥ «» „“ … — ™ \u200b\ufeff ㍿ ﷽\n"
CJK = "日本語の文章です。漢字と仮名、１２３。中文分词测试，没有空格！한국어 문장입니다.\n"
TEXT = PROSE + CODE + DIGITS + SYMBOLS + CJK
CHAT = "<|im_start|>user\nHi<|im_end|>\n <|im_start|> x<|endoftext|><|endoftext|>1234<|im_end|>é"
SPM_CHAT = "<s>[INST] Hi [/INST] Hello </s><s> [INST]  two</s>x"


def trained(pre_tokenizer: Any, alphabet: list[str], size: int, text: str = TEXT) -> tuple[list[str], list[tuple[str, str]]]:
    """Tokens and merges that BPE learns from the text."""
    backend: Any = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizer
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator([text] * 3, trainer)
    model = json.loads(backend.to_str())["model"]
    return sorted(model["vocab"], key=model["vocab"].__getitem__), [tuple(merge) for merge in model["merges"]]


def byte_level_file(path: Path, pre: str, tokens: list[str], merges: list[tuple[str, str]]) -> Tokenizer:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list([*tokens, *SPECIAL])
    writer.add_token_types([1] * len(tokens) + [3] * len(SPECIAL))
    writer.add_token_merges([" ".join(merge) for merge in merges])
    writer.add_add_bos_token(False)
    writer.add_eos_token_id(len(tokens))
    finish(writer)
    return gguf_tokenizer(read_gguf(path))


def published(tokens: list[str], merges: list[tuple[str, str]], pre_tokenizers: list[dict[str, Any]]) -> Any:
    """What a model's own folder holds in its tokenizer.json."""
    added = [
        {"id": len(tokens) + i, "content": token, "special": True, "normalized": False}
        | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
        for i, token in enumerate(SPECIAL)
    ]
    state = {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": pre_tokenizers},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "vocab": {token: id for id, token in enumerate([*tokens, *SPECIAL])},
            "merges": [list(merge) for merge in merges],
            "ignore_merges": len(pre_tokenizers) > 1 and pre_tokenizers[0]["type"] == "Split",
        },
    }
    return transformers.PreTrainedTokenizerFast(tokenizer_object=Backend.from_str(json.dumps(state)))


def byte_level(*, use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def gpt2(tokens: list[str], merges: list[tuple[str, str]]) -> Any:
    vocabulary = {token: id for id, token in enumerate([*tokens, *SPECIAL])}
    tokenizer = transformers.GPT2Tokenizer(vocab=vocabulary, merges=merges)
    tokenizer.add_special_tokens({"additional_special_tokens": SPECIAL})
    return tokenizer


def qwen2(tokens: list[str], merges: list[tuple[str, str]]) -> Any:
    vocabulary = {token: id for id, token in enumerate([*tokens, *SPECIAL])}
    tokenizer = transformers.Qwen2Tokenizer(vocab=vocabulary, merges=merges)
    tokenizer.add_special_tokens({"additional_special_tokens": SPECIAL})
    return tokenizer


def smollm(tokens: list[str], merges: list[tuple[str, str]]) -> Any:
    return published(tokens, merges, [{"type": "Digits", "individual_digits": True}, byte_level(use_regex=True)])


def llama3(tokens: list[str], merges: list[tuple[str, str]]) -> Any:
    rule = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    split = {"type": "Split", "pattern": {"Regex": rule}, "behavior": "Isolated", "invert": False}
    return published(tokens, merges, [split, byte_level(use_regex=False)])


@pytest.mark.parametrize(
    ("pre", "own"),
    [("gpt-2", gpt2), ("smollm", smollm), ("llama-bpe", llama3), ("qwen2", qwen2)],
    ids=["gpt-2", "smollm", "llama-bpe", "qwen2"],
)
@pytest.mark.parametrize("size", [300, 700, 1200])
def test_byte_level_tokens_are_those_of_transformers(tmp_path: Path, pre: str, own: Callable[..., Any], size: int) -> None:
    tokens, merges = trained(pre_tokenizers.ByteLevel(add_prefix_space=False), ALPHABET, size)
    ours, theirs = byte_level_file(tmp_path / "t.gguf", pre, tokens, merges), own(tokens, merges)
    assert len(ours.encode(TEXT)) > 400
    for text in (TEXT, CHAT, TEXT + CHAT + TEXT, " " + CHAT, *TEXT.splitlines(keepends=True)):
        expected = theirs(text, add_special_tokens=False)["input_ids"]
        assert ours.encode(text, add_special_tokens=False) == expected, text
        assert ours.decode(expected, skip_special_tokens=False) == theirs.decode(expected, clean_up_tokenization_spaces=False)


def sentencepiece_file(path: Path, size: int) -> tuple[Tokenizer, Any]:
    """Pieces as SentencePiece would have them, with scores by rank, and the same file as transformers reads it."""
    spelled = TEXT[: len(PROSE + CODE)].replace(" ", "▁")
    pieces, _ = trained(pre_tokenizers.Split("▁", "merged_with_next"), ["▁"], size, spelled)
    tokens = [*PIECES, *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * 259 + [-float(rank // 3) for rank in range(len(pieces))])  # some of them equal
    writer.add_token_types([2, 3, 3] + [6] * 256 + [1] * len(pieces))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    finish(writer)
    return gguf_tokenizer(read_gguf(path)), transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)


@pytest.mark.parametrize("size", [150, 400, 900])
def test_sentencepiece_tokens_are_those_of_transformers(tmp_path: Path, size: int) -> None:
    ours, theirs = sentencepiece_file(tmp_path / "s.gguf", size)
    assert len(ours.encode(TEXT)) > 400
    for text in (TEXT, SPM_CHAT, TEXT + SPM_CHAT + TEXT, " " + SPM_CHAT, *TEXT.splitlines(keepends=True)):
        expected = theirs(text, add_special_tokens=False)["input_ids"]
        assert ours.encode(text, add_special_tokens=False) == expected, text
        assert ours.decode(expected, skip_special_tokens=False) == theirs.decode(expected, clean_up_tokenization_spaces=False)
    assert ours.encode("a") == theirs("a")["input_ids"]
