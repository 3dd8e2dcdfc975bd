"""Text to tokens and back: three kinds of tokenizer, built here, and chat templates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from headstart.errors import ModelError, RequestError
from headstart.tokenizer import Detokenizer, Tokenizer
from headstart.tokenizer.backend import guarded
from headstart.tokenizer.detokenizer import byte_alphabet

BYTES = sorted(byte_alphabet(), key=lambda character: byte_alphabet()[character])
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}\n"
    "    {% if m.role == 'tool' %}{% continue %}{% endif %}\n"
    "    {{- '<|im_start|>' + m.role + ':' + m.content + '<|im_end|>' -}}\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant:{% endif %}"
)
SPECIAL = ("<s>", "</s>", "<|im_start|>", "<|im_end|>")


def byte_level() -> Backend:
    """Every byte is a token (id = byte), then merges for " t", "th", and the pieces of a CJK character."""
    merges = [("Ġ", "t"), ("t", "h"), ("æ", "Ĺ"), ("æĹ", "¥")]
    vocabulary = {token: id for id, token in enumerate([*BYTES, *(left + right for left, right in merges)])}
    backend = Backend(models.BPE(vocabulary, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    backend.add_tokens([AddedToken("<｜think｜>", normalized=False)])
    return backend


def byte_fallback(prefix: bool = True) -> Backend:
    """SentencePiece's kind: words carry their space as ``▁``; unknown characters become byte tokens."""
    tokens = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "▁a", "▁b", "ab", "▁ab", "é", "日"]
    merges = [("▁", "a"), ("▁", "b"), ("a", "b"), ("▁a", "b")]
    backend = Backend(
        models.BPE({token: id for id, token in enumerate(tokens)}, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    replace = normalizers.Replace(" ", "▁")
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replace]) if prefix else replace
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return backend


def metaspace() -> Backend:
    backend = byte_fallback()
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    return backend


def word_level() -> Backend:
    backend = Backend(models.WordLevel({"[UNK]": 0, "hello": 1, "world": 2, "!": 3}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.add_special_tokens([AddedToken("[END]", special=True)])
    return backend


KINDS = {
    "byte level": byte_level(),
    "byte fallback": byte_fallback(),
    "byte fallback without prefix": byte_fallback(prefix=False),
    "metaspace": metaspace(),
    "word level": word_level(),
}
kinds = pytest.mark.parametrize("kind", KINDS)


def deltas(tokenizer: Tokenizer, ids: list[int], skip: bool = True) -> tuple[list[str], str]:
    stream = Detokenizer(tokenizer, skip_special_tokens=skip)
    return [stream.feed(id) for id in ids], stream.finish()


# --- streaming -----------------------------------------------------------------------------------------------------------


@kinds
@given(data=st.data(), skip=st.booleans())
@settings(max_examples=150, deadline=None)
def test_deltas_of_any_tokens_join_to_the_decoded_text(kind: str, data: st.DataObject, skip: bool) -> None:
    tokenizer = Tokenizer(KINDS[kind])
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 2), max_size=30))
    # A plain token at the end finishes every character, so that nothing is left to drop.
    last = tokenizer.token_id("a" if tokenizer.token_id("a") is not None else "hello")
    assert last is not None
    pieces, rest = deltas(tokenizer, [*ids, last], skip)
    assert "".join(pieces) + rest == tokenizer.decode([*ids, last], skip_special_tokens=skip)


@kinds
@given(text=st.text(st.sampled_from("ab é日本🙂👩‍👧\n hello"), max_size=20))
@settings(max_examples=100, deadline=None)
def test_every_cut_of_a_sound_text_shows_its_whole_characters_only(kind: str, text: str) -> None:
    tokenizer = Tokenizer(KINDS[kind])
    ids = tokenizer.encode(text)
    whole = tokenizer.decode(ids)
    for cut in range(len(ids) + 1):
        pieces, rest = deltas(tokenizer, ids[:cut])
        shown = "".join(pieces) + rest
        assert whole.startswith(shown)
        assert "�" not in shown
        assert tokenizer.decode(ids[:cut]).rstrip("�") == shown or kind.startswith("byte fallback")


@given(data=st.binary(max_size=24), cut=st.integers(0, 24))
@settings(max_examples=300, deadline=None)
def test_invalid_bytes_come_out_as_decode_gives_them(data: bytes, cut: int) -> None:
    tokenizer = Tokenizer(KINDS["byte level"])
    pieces, rest = deltas(tokenizer, [*data, ord("x")])
    assert "".join(pieces) + rest == tokenizer.decode([*data, ord("x")])


def test_an_emoji_over_four_tokens_appears_with_the_last_one() -> None:
    pieces, rest = deltas(Tokenizer(KINDS["byte level"]), list("🙂".encode()))
    assert (pieces, rest) == (["", "", "", "🙂"], "")


def test_certainly_invalid_bytes_are_not_held_back() -> None:
    pieces, _ = deltas(Tokenizer(KINDS["byte level"]), [0xFF, 0xE6, ord("a")])
    assert pieces == ["�", "", "�a"]


def test_an_unfinished_character_is_dropped_at_the_end() -> None:
    for kind in ("byte level", "byte fallback"):
        tokenizer = Tokenizer(KINDS[kind])
        first = 0 if kind == "byte level" else 1
        ids = [first + byte for byte in "é🙂".encode()[:-1]]
        pieces, rest = deltas(tokenizer, ids)
        assert "".join(pieces) + rest == "é"


def test_a_byte_fallback_run_with_a_bad_byte_is_spoilt_as_a_whole() -> None:
    tokenizer = Tokenizer(KINDS["byte fallback"])
    ids = [1 + byte for byte in "é".encode() + b"\xff"]
    pieces, rest = deltas(tokenizer, ids)
    assert "".join(pieces) + rest == tokenizer.decode(ids) == "���"


def test_the_leading_space_is_stripped_once() -> None:
    tokenizer = Tokenizer(KINDS["byte fallback"])
    ids = [tokenizer.token_id(token) or 0 for token in ("▁", "▁a", "▁", "▁", "▁ab", "b")]
    pieces, _ = deltas(tokenizer, ids)
    assert pieces == ["", " a", " ", " ", " ab", "b"]


def test_special_tokens_are_skipped_or_shown() -> None:
    tokenizer = Tokenizer(KINDS["byte level"])
    ids = [ord("a"), tokenizer.token_id("<|im_end|>") or 0, ord("b")]
    assert "".join(deltas(tokenizer, ids)[0]) == "ab"
    assert "".join(deltas(tokenizer, ids, skip=False)[0]) == "a<|im_end|>b"


def test_each_token_decodes_a_bounded_window(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = Tokenizer(KINDS["byte fallback"])
    longest = 0
    plain = tokenizer.decode

    def counting(ids: list[int], *, skip_special_tokens: bool = True) -> str:
        nonlocal longest
        longest = max(longest, len(ids))
        return plain(ids, skip_special_tokens=skip_special_tokens)

    monkeypatch.setattr(tokenizer, "decode", counting)
    space = tokenizer.token_id("▁")
    assert space is not None
    deltas(tokenizer, tokenizer.encode("ab a b " * 50) + [space] * 40 + tokenizer.encode("ab " * 50))
    assert longest <= 9


# --- chat templates ------------------------------------------------------------------------------------------------------


def chat(template: str | None = TEMPLATE) -> Tokenizer:
    return Tokenizer(
        KINDS["byte level"], chat_template=template, special_tokens={"bos_token": "<s>", "eos_token": "</s>"}, end_tokens=()
    )


USER = [{"role": "user", "content": "hé"}]
TEXT = {"type": "text", "text": "hello"}


def test_a_chat_is_rendered_with_loop_controls_and_trimmed_blocks() -> None:
    messages = [*USER, {"role": "tool", "content": "x"}]
    assert chat().apply_chat(messages) == "<s><|im_start|>user:hé<|im_end|><|im_start|>assistant:"
    assert chat().apply_chat(USER, add_generation_prompt=False) == "<s><|im_start|>user:hé<|im_end|>"


def test_a_chat_gets_no_second_bos() -> None:
    tokenizer = chat()
    ids = tokenizer.encode_chat(USER)
    assert ids.count(tokenizer.token_id("<s>") or -1) == 1
    assert tokenizer.decode(ids, skip_special_tokens=False) == tokenizer.apply_chat(USER)


def test_the_turn_end_of_the_template_and_the_eos_token_end_a_text() -> None:
    tokenizer = chat()
    assert tokenizer.end_tokens == {tokenizer.token_id("</s>"), tokenizer.token_id("<|im_end|>")}
    assert chat("{{ messages }}").end_tokens == {tokenizer.token_id("</s>")}


def test_a_template_raises_as_a_request_error() -> None:
    with pytest.raises(RequestError, match="roles must alternate"):
        chat("{{ raise_exception('roles must alternate') }}").apply_chat(USER)


def test_a_template_that_reads_what_is_missing_is_a_request_error() -> None:
    with pytest.raises(RequestError, match="refuses these messages"):
        chat("{{ messages[7].content }}").apply_chat(USER)


def test_json_keeps_its_letters_and_extra_variables_arrive() -> None:
    tokenizer = chat("{{ tools | tojson }}{{ thinking }}{% generation %}{{ messages[0].content }}{% endgeneration %}")
    text = tokenizer.apply_chat(USER, extra={"tools": [{"name": "<é>"}], "thinking": False})
    assert text == '[{"name": "<é>"}]Falsehé'


def test_the_time_is_available() -> None:
    assert len(chat("{{ strftime_now('%Y') }}").apply_chat(USER)) == 4


def test_a_template_cannot_leave_the_sandbox() -> None:
    with pytest.raises(RequestError):
        chat("{{ messages.__class__.__mro__[1].__subclasses__() }}").apply_chat(USER)
    with pytest.raises(RequestError):
        chat("{{ messages.append(1) }}").apply_chat(USER)


def test_a_template_that_does_not_compile_is_a_model_error() -> None:
    with pytest.raises(ModelError, match="line 1"):
        chat("{% if %}")


@pytest.mark.parametrize(
    ("template", "match"),
    [
        ("{% if true %}" * 3000 + "{% endif %}" * 3000, "does not compile: it is nested too deeply"),
        ("{% if true %}" * 150 + "{% endif %}" * 150, "does not compile: too many levels"),
        ("{{ '\ud800' }}", "is not valid at character 4"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "cannot be rendered: it is nested too deeply, or calls itself"),
        ("{{ 'a' * 10 ** 18 }}", "cannot be rendered: it takes more memory"),
        ("{{ 'aaaa' | truncate(-5) }}", "cannot be rendered: expected length >="),
        ("{{ cycler() }}", "cannot be rendered: at least one item"),
    ],
    ids=["deep", "indented", "surrogate", "recursion", "memory", "assertion", "runtime"],
)
def test_a_template_that_fails_in_any_way_is_a_model_error(template: str, match: str) -> None:
    with pytest.raises(ModelError, match=f"The model's chat template {match}") as raised:
        chat(template).apply_chat(USER)
    assert "\n" not in str(raised.value)


def test_an_interrupt_passes_through_a_template() -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        chat("{{ stop() }}").apply_chat(USER, extra={"stop": interrupted})


def test_a_template_that_makes_no_valid_text_is_refused() -> None:
    with pytest.raises(RequestError, match="not valid at character 1"):
        chat(r"{{ 'a\ud800' }}").apply_chat(USER)


@pytest.mark.parametrize(
    ("messages", "match"),
    [
        ([], "non-empty"),
        ("hello", "non-empty"),
        (5, "non-empty"),
        (USER[0], "non-empty"),
        (["hello"], "Message 0 must be an object"),
        ([{"content": "x"}], "Message 0 has no role"),
        ([*USER, {"role": "user"}], r"Message 1 \(user\) has no content"),
        ([{"role": "user", "content": []}], r"Message 0 \(user\) has no content"),
        ([{"role": "user", "content": ()}], r"Message 0 \(user\) has no content"),
        ([{"role": "user", "content": b"x"}], r"Message 0 \(user\) has bytes for content; decode them"),
        ([{"role": "user", "content": ["x"]}], r"Message 0 \(user\): part 0 must be an object such as"),
        ([{"role": "user", "content": [{"text": "x"}]}], r"Message 0 \(user\): part 0 must be an object such as"),
        ([{"role": "user", "content": [TEXT, {"type": "image_url"}]}], "has a part of type image_url; only parts of type text"),
        ([{"role": "user", "content": [TEXT, {"type": "text", "text": 5}]}], "part 1 is of type text and has no text"),
    ],
)
def test_a_malformed_message_is_named(messages: Any, match: str) -> None:
    with pytest.raises(RequestError, match=match):
        chat().apply_chat(messages)


def test_text_parts_are_joined_line_by_line() -> None:
    parts = [{"role": "user", "content": [TEXT, {"type": "text", "text": "there"}]}]
    tokenizer = chat("{% for m in messages %}{{ m.role + ':' + m.content }}{% endfor %}")
    assert tokenizer.apply_chat(parts) == "user:hello\nthere"
    assert tokenizer.apply_chat([{"role": "user", "content": tuple(parts[0]["content"])}]) == "user:hello\nthere"
    assert parts[0]["content"] == [TEXT, {"type": "text", "text": "there"}]


def test_a_base_model_asks_for_a_plain_prompt() -> None:
    tokenizer = chat(None)
    assert not tokenizer.has_chat_template
    with pytest.raises(RequestError, match="plain prompt"):
        tokenizer.apply_chat(USER)


def test_a_prompt_that_is_no_text_is_refused() -> None:
    with pytest.raises(RequestError, match="must be text, not list"):
        chat().encode([1, 2])  # type: ignore[arg-type]


# --- folders -------------------------------------------------------------------------------------------------------------


def folder(path: Path, **files: Any) -> Path:
    byte_level().save(str(path / "tokenizer.json"))
    for name, content in files.items():
        (path / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return path


def test_a_folder_gives_vocabulary_template_and_end_tokens(tmp_path: Path) -> None:
    config = {"eos_token": {"content": "</s>"}, "bos_token": "<s>", "chat_template": TEMPLATE, "add_bos_token": True}
    tokenizer = Tokenizer.from_folder(folder(tmp_path, tokenizer_config=config, generation_config={"eos_token_id": [7, 9]}))
    bos = tokenizer.token_id("<s>")
    assert tokenizer.encode("a") == [bos, ord("a")]
    assert tokenizer.encode("a", add_special_tokens=False) == [ord("a")]
    assert tokenizer.encode_chat(USER).count(bos or -1) == 1
    assert tokenizer.end_tokens == {7, 9, tokenizer.token_id("</s>"), tokenizer.token_id("<|im_end|>")}
    assert tokenizer.special_ids == {tokenizer.token_id(token) for token in SPECIAL}
    assert tokenizer.vocab_size == 265
    assert tokenizer.token_text(tokenizer.vocab_size) is None
    assert tokenizer.token_text(-1) is None


def test_a_template_file_and_named_templates_are_found(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "default"}]
    folder(tmp_path, tokenizer_config={"chat_template": named}, special_tokens_map={"eos_token": "</s>"})
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer.apply_chat(USER) == "default"
    assert tokenizer.end_tokens == {tokenizer.token_id("</s>")}
    (tmp_path / "chat_template.jinja").write_text("from the file", encoding="utf-8")
    assert Tokenizer.from_folder(tmp_path).apply_chat(USER) == "from the file"


def test_a_folder_without_a_tokenizer_says_so(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no tokenizer\.json"):
        Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize("content", ["{", '{"model": 3}', "\udcff"])
def test_a_damaged_tokenizer_file_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        Tokenizer.from_folder(tmp_path)


TRUNCATION = {"max_length": 3, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
PADDING = {"direction": "Right", "pad_to_multiple_of": None, "pad_id": 2, "pad_type_id": 0, "pad_token": "</s>"}


def changed(path: Path, **changes: Any) -> Path:
    """A folder whose ``tokenizer.json`` differs in these entries."""
    file = folder(path) / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text(encoding="utf-8")) | changes), encoding="utf-8")
    return path


@pytest.mark.parametrize("length", [6, 10**15])
def test_saved_cutting_and_padding_are_ignored(tmp_path: Path, length: int) -> None:
    tokenizer = Tokenizer.from_folder(
        changed(tmp_path, truncation=TRUNCATION, padding=PADDING | {"strategy": {"Fixed": length}})
    )
    for text in ("", "a", "Why is the sky blue?"):
        assert tokenizer.encode(text) == Tokenizer(byte_level()).encode(text)


def test_ids_equal_those_of_transformers_after_a_training_script(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=byte_level(), pad_token="</s>")
    theirs(["hello world", "a"], padding="max_length", truncation=True, max_length=6)
    theirs.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))["truncation"]
    ours, theirs = Tokenizer.from_folder(tmp_path), transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in ("a", "Why is the sky blue?"):
        assert ours.encode(text) == theirs(text)["input_ids"]


WORD_PIECE = {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 9}
UNKNOWN_SPECIAL = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<x>", "type_id": 0}}],
    "pair": [],
    "special_tokens": {},
}


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"pre_tokenizer": {"type": "FixedLength", "length": 0}}, "cannot encode this text: chunk size"),
        ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}}, "cannot be parsed: Precompiled"),
        ({"post_processor": UNKNOWN_SPECIAL}, "cannot encode this text: no entry"),
        ({"model": WORD_PIECE | {"vocab": {"a": 0}}}, r"cannot encode this text: .* \[UNK\]"),
        ({"model": {"type": "Unigram", "vocab": [], "unk_id": None}}, "cannot encode this text: .* unknown token"),
    ],
    ids=["fixed length", "charsmap", "special token", "word piece", "unigram"],
)
def test_a_tokenizer_file_that_makes_the_library_fail_is_named(tmp_path: Path, changes: dict[str, Any], match: str) -> None:
    with pytest.raises(ModelError, match=rf"tokenizer\.json in {tmp_path.name} {match}") as raised:
        Tokenizer.from_folder(changed(tmp_path, **changes)).encode("xyz")
    assert "\n" not in str(raised.value)


def test_a_bos_put_first_by_a_damaged_file_is_named(tmp_path: Path) -> None:
    config = {"bos_token": "<s>", "add_bos_token": True}
    changed(tmp_path, post_processor=UNKNOWN_SPECIAL)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(ModelError, match=r"tokenizer\.json in .* cannot encode a text"):
        Tokenizer.from_folder(tmp_path)


def test_only_what_the_library_raises_over_a_file_is_the_files_fault() -> None:
    for error in (KeyboardInterrupt, SystemExit, MemoryError):

        def failing(error: type[BaseException] = error) -> None:
            raise error

        with pytest.raises(error):
            guarded(failing, "x")


@pytest.mark.parametrize("file", ["tokenizer_config", "special_tokens_map"])
@pytest.mark.parametrize("value", ["\ud800", {"content": "a\ud800"}])
def test_a_special_token_that_is_no_text_is_named(tmp_path: Path, file: str, value: Any) -> None:
    with pytest.raises(ModelError, match=rf"eos_token of {file}\.json in {tmp_path.name} is not valid at character"):
        Tokenizer.from_folder(folder(tmp_path, **{file: {"eos_token": value}}))


def test_a_damaged_config_is_named(tmp_path: Path) -> None:
    folder(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("[1]")
    with pytest.raises(ModelError, match=r"tokenizer_config\.json .* no JSON object"):
        Tokenizer.from_folder(tmp_path)
