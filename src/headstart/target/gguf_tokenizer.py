"""The tokenizer that a GGUF file declares, built with the ``tokenizers`` library and checked against the declaration.

Two kinds (``tokenizer.ggml.model``): ``gpt2``, byte-level BPE with its merges, whose ``tokenizer.ggml.pre`` names the rule that
cuts text into words before merging; and ``llama``, SentencePiece BPE with scores and byte fallback, whose merges follow from
the scores. The word rule matters: SmolLM cuts numbers into single digits, Llama 3 into groups of three. An unknown rule is an
error, since a wrong one gives a wrong prompt without any sign of it. Token types of the file: control and user-defined tokens
become one id each wherever they stand in a text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from headstart.errors import ModelError
from headstart.target.gguf_file import GgufFile
from headstart.tokenizer import Tokenizer
from headstart.tokenizer.backend import guarded
from headstart.tokenizer.text import put_bos_first

_CONTROL, _USER_DEFINED = 3, 4
_ID, _FLAG, _NUMBERS = (int,), (bool, int), (float, int)
_FIELDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("tokenizer.ggml.model", "tokenizer.ggml.pre", "tokenizer.chat_template"), (str,)),
    **{f"tokenizer.ggml.{name}_token_id": _ID for name in ("bos", "eos", "eot", "eom", "unknown", "padding")},
    **dict.fromkeys(("tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_space_prefix"), _FLAG),
}
_LISTS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("tokenizer.ggml.tokens", "tokenizer.ggml.merges"), (str,)),
    "tokenizer.ggml.scores": _NUMBERS,
    "tokenizer.ggml.token_type": _ID,
}

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _TAIL
_QWEN2 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _TAIL
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _TAIL
)
_DEFAULT = (
    r"[\p{P}\$\+<=>\^~\|]+",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
    r"\p{N}+",
    r"[0-9][0-9][0-9]",
)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}")

_DIGITS = "digits"  # each digit alone, then GPT-2's rule
_GPT2 = "gpt2"
_RULES: dict[str, str | tuple[str, ...]] = {
    **dict.fromkeys(("gpt-2", "gpt2", "mpt", "olmo", "phi-2", "jais", "granite-docling"), _GPT2),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell"), _DIGITS),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "smaug-bpe", "dbrx"), _LLAMA3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez"), _QWEN2),
    "tekken": _TEKKEN,
    "default": _DEFAULT,  # also what llama.cpp takes for a file that names none
    "deepseek-coder": _DEEPSEEK_CODER,
}
_EVERY_SPACE = ("phi3",)  # architectures whose pieces keep a text's own space beside the one put in front, after any token
_WHOLE_WORDS_FIRST = (_LLAMA3, _TEKKEN)  # a word that is a token as it stands is not merged from its bytes


def gguf_tokenizer(file: GgufFile) -> Tokenizer:
    """The file's tokenizer, template and end tokens. ``ModelError`` for an unknown kind or the first token that is wrong."""
    _check_types(file)
    tokens = _token_list(file)
    kind = file.metadata["tokenizer.ggml.model"]
    if kind == "gpt2":
        backend = _byte_level(file, tokens)
    elif kind == "llama":
        backend = _sentencepiece(file, tokens)
    else:
        raise ModelError(f"{file.path.name} has a tokenizer of the kind {kind!r}, which cannot be built; use its HF folder")
    types = file.metadata.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    if len(types) != len(tokens):
        raise ModelError(f"{file.path.name} declares {len(tokens)} tokens but {len(types)} token types")
    _add_whole_tokens(backend, tokens, types)
    special = _special_tokens(file, tokens)
    if _adds_bos(file) and "bos_token" in special:
        put_bos_first(backend, special["bos_token"], _source(file))
    _check(file, backend, tokens, types)
    return Tokenizer(
        backend,
        chat_template=file.metadata.get("tokenizer.chat_template"),
        special_tokens=special,
        end_tokens=_ids(file, "eos", "eot", "eom"),
        source=_source(file),
    )


def _source(file: GgufFile) -> str:
    return f"The tokenizer of {file.path.name}"


def _check_types(file: GgufFile) -> None:
    for key, value in file.metadata.items():
        single, listed = _FIELDS.get(key), _LISTS.get(key)
        if single and type(value) not in single:
            raise ModelError(f"{file.path.name} is damaged: its {key} is of the wrong type")
        if listed and not (isinstance(value, list) and {*map(type, value)} <= {*listed}):
            raise ModelError(f"{file.path.name} is damaged: its {key} is no list of the right type")


def _token_list(file: GgufFile) -> list[str]:
    if "tokenizer.ggml.model" not in file.metadata or "tokenizer.ggml.tokens" not in file.metadata:
        raise ModelError(f"{file.path.name} holds no tokenizer; it is no complete language model")
    tokens: list[str] = file.metadata["tokenizer.ggml.tokens"]
    if len(set(tokens)) < len(tokens):
        repeated, _ = Counter(tokens).most_common(1)[0]
        raise ModelError(f"{file.path.name} lists the token {repeated!r} twice")
    return tokens


def _byte_level(file: GgufFile, tokens: Sequence[str]) -> Backend:
    name = file.metadata.get("tokenizer.ggml.pre", "default")
    if name not in _RULES:
        raise ModelError(f"{file.path.name} cuts words by an unknown rule, {name!r}; use its HF folder")
    rule = _RULES[name]
    merges = [_pair(file, merge) for merge in file.need("tokenizer.ggml.merges")]
    backend = _bpe(file, tokens, merges, ignore_merges=rule in _WHOLE_WORDS_FIRST)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=rule in (_DIGITS, _GPT2))
    splits: list[Any] = []
    if rule == _DIGITS:
        splits = [pre_tokenizers.Digits(individual_digits=True)]
    elif rule != _GPT2:
        patterns = (rule,) if isinstance(rule, str) else rule
        splits = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in patterns]
    backend.pre_tokenizer = pre_tokenizers.Sequence([*splits, byte_level])
    if rule == _QWEN2:
        backend.normalizer = normalizers.NFC()
    backend.decoder = decoders.ByteLevel()
    return backend


def _pair(file: GgufFile, merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    if not left or not right:
        raise ModelError(f"{file.path.name} has the merge {merge!r}, which is no pair of tokens")
    return left, right


def _bpe(file: GgufFile, tokens: Sequence[str], merges: list[tuple[str, str]], **options: Any) -> Backend:
    vocabulary = {token: id for id, token in enumerate(tokens)}
    try:
        return Backend(models.BPE(vocabulary, merges, **options))
    except Exception as error:  # the library raises plain Exception, such as for a merge of unknown tokens
        raise ModelError(f"{file.path.name}: its merges do not fit its tokens: {' '.join(str(error).split())}") from error


def _sentencepiece(file: GgufFile, tokens: Sequence[str]) -> Backend:
    prefix = file.metadata.get("tokenizer.ggml.add_space_prefix", True)
    unknown = _ids(file, "unknown")
    scores = file.need("tokenizer.ggml.scores")
    if len(scores) != len(tokens):
        raise ModelError(f"{file.path.name} declares {len(tokens)} tokens but {len(scores)} scores")
    backend = _bpe(
        file,
        tokens,
        _merges_of_scores(tokens, scores),
        unk_token=tokens[unknown[0]] if unknown else None,
        fuse_unk=True,
        byte_fallback=True,
    )
    if prefix and file.architecture in _EVERY_SPACE:
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:  # the first word alone gets a space in front, unless the text brings one
        backend.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="first" if prefix else "never", split=False)
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    return backend


def _merges_of_scores(tokens: Sequence[str], scores: Sequence[float]) -> list[tuple[str, str]]:
    """SentencePiece joins the neighbours whose joint piece scores highest: all splits of all pieces, the best pieces first.

    Of equal scores come the longest left parts first, then the longest right ones, as transformers has it.
    """
    known = set(tokens)
    merges = [
        (score, piece[:cut], piece[cut:])
        for piece, score in zip(tokens, scores, strict=True)
        for cut in range(1, len(piece))
        if piece[:cut] in known and piece[cut:] in known
    ]
    merges.sort(key=lambda merge: (-merge[0], -len(merge[1]), -len(merge[2])))
    return [(left, right) for _, left, right in merges]


def _add_whole_tokens(backend: Backend, tokens: Sequence[str], types: Sequence[int]) -> None:
    whole = [(token, type) for token, type in zip(tokens, types, strict=True) if type in (_CONTROL, _USER_DEFINED) and token]
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token, type in whole if type == _CONTROL])
    backend.add_tokens([AddedToken(token, normalized=False) for token, type in whole if type == _USER_DEFINED])


def _ids(file: GgufFile, *names: str) -> list[int]:
    size = len(file.metadata["tokenizer.ggml.tokens"])
    ids = [file.metadata.get(f"tokenizer.ggml.{name}_token_id") for name in names]
    for id, name in zip(ids, names, strict=True):
        if id is not None and not 0 <= id < size:
            raise ModelError(f"{file.path.name} declares {name} token {id}, but has {size} tokens")
    return [id for id in ids if id is not None]


def _special_tokens(file: GgufFile, tokens: Sequence[str]) -> dict[str, str]:
    names = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
    return {name: tokens[id] for short, name in names.items() for id in _ids(file, short)}


def _adds_bos(file: GgufFile) -> bool:
    usual = file.metadata["tokenizer.ggml.model"] == "llama" or (
        _RULES.get(file.metadata.get("tokenizer.ggml.pre", "default")) in _WHOLE_WORDS_FIRST
    )
    return bool(file.metadata.get("tokenizer.ggml.add_bos_token", usual))


def _check(file: GgufFile, backend: Backend, tokens: Sequence[str], types: Sequence[int]) -> None:
    """Every id means the file's token, nothing was added, and whole tokens encode as one id."""
    size = backend.get_vocab_size(with_added_tokens=True)
    if size != len(tokens):
        raise ModelError(f"{file.path.name} declares {len(tokens)} tokens, but its tokenizer came out with {size}")
    for id, (token, type) in enumerate(zip(tokens, types, strict=True)):
        if backend.id_to_token(id) != token:
            raise ModelError(f"{file.path.name}: token {id} should be {token!r} but came out as {backend.id_to_token(id)!r}")
        if type not in (_CONTROL, _USER_DEFINED) or not token:
            continue
        if _encoded(file, backend, token) != [id]:
            raise ModelError(f"{file.path.name}: the special token {id}, {token!r}, is cut into pieces")


def _encoded(file: GgufFile, backend: Backend, text: str) -> list[int]:
    ids: list[int] = guarded(
        lambda: backend.encode(text, add_special_tokens=False).ids, f"{_source(file)} cannot encode {text!r}"
    )
    return ids
