"""The corpus: its file format, the writer, the user's own data, and the boundaries of what is supervised."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from chat_model import END, chat_tokenizer, tiny_base
from headstart.errors import DataError, RequestError
from headstart.proposers.base import Proposer
from headstart.proposers.suffix import SuffixProposer
from headstart.target.base import HIDDEN, Target
from headstart.target.hf import HfTarget
from headstart.target.loading import load_model
from headstart.train.base import TokenizerCodec
from headstart.train.capture import Captured, Online, StateFiles
from headstart.train.corpus import DOCUMENTS, META, Corpus, Document, fingerprint_of
from headstart.train.data import read_jsonl, require_supervised, supervised_share
from headstart.train.filling import fill
from headstart.train.generation import Order, Scribe, Text, copying
from headstart.train.loops import before_loop, loops, repeated_share
from headstart.train.settings import TrainSettings
from headstart.train.template import Turns, encode_chat
from headstart.train.vocabulary import choose_draft_vocab
from headstart.train.writer import Writer
from scripted import MixProposer, random_target, table_target
from tiny import tiny_llama, tiny_mistral

CODEC = TokenizerCodec(chat_tokenizer())
ENDS = frozenset({END})


def written(target: Target, orders: Sequence[Order], **options: Any) -> list[Text]:
    """The texts of these orders, in their order, all written side by side."""
    scribe = Scribe(target, **options)
    for order in orders:
        scribe.add(order)
    found: dict[int, Text] = {}
    while scribe.num_running:
        found |= {id(order): text for order, text in scribe.step()}
    return [found[id(order)] for order in orders]


def order(target: Target, prompt: Sequence[int], *, temperature: float = 0.0, seed: int = 0, **options: Any) -> Order:
    fields: dict[str, Any] = {"max_new": 50, "stop_tokens": ENDS, "keep_states": True}
    return Order(target.open(), prompt, temperature, seed=seed, **(fields | options))


def written_alone(target: HfTarget, prompt: Sequence[int], max_new: int) -> list[int]:
    tokens = list(prompt)
    while len(tokens) < len(prompt) + max_new and tokens[len(prompt) :][-1:] != [END]:
        logits = target.plain_logits(tokens)[-1]
        if len(tokens) == len(prompt):
            logits[END] = -np.inf
        tokens.append(int(logits.argmax()))
    return tokens[len(prompt) :]


PROMPTS = ([5, 6, 7], [9], list(range(3, 23)), [40, 41], [8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 30])


@pytest.mark.parametrize("prompt_rows", [1, 7, 256])
@pytest.mark.parametrize("build", [tiny_llama, tiny_mistral])
def test_a_greedy_text_among_others_is_the_one_written_alone(build: Any, prompt_rows: int) -> None:
    target = HfTarget(build(), name="tiny", dtype="float32", end_tokens=ENDS)
    texts = written(target, [order(target, prompt) for prompt in PROMPTS], prompt_rows=prompt_rows)
    assert [list(text.tokens) for text in texts] == [written_alone(target, prompt, 50) for prompt in PROMPTS]


def test_a_warm_text_depends_on_its_prompt_and_seed_alone() -> None:
    target = random_target(3, 60, end_tokens=(END,))

    def text(seed: int, *others: Sequence[int]) -> tuple[int, ...]:
        orders = [order(target, prompt, temperature=0.8, seed=i) for i, prompt in enumerate(others)]
        return written(target, [*orders, order(target, [5, 6], temperature=0.8, seed=seed)])[-1].tokens

    assert text(1) == text(1, [7], [8, 9, 10])
    assert text(1) != text(2)


def test_a_text_never_starts_with_its_end_and_ends_with_it_or_at_its_limit() -> None:
    target = table_target({(): {END: 9.0, 7: 8.0, 8: 8.0}}, 20, end_tokens=(END,))
    texts = written(target, [order(target, [i], temperature=t, seed=i) for i in range(3, 20) for t in (0.0, 1.0)])
    assert all(text.tokens[0] != END and END not in text.tokens[:-1] for text in texts)
    assert {text.tokens[-1] for text in texts} == {END}
    endless = random_target(1, 60)
    assert len(written(endless, [order(endless, [4], max_new=9)])[0].tokens) == 9


def test_a_text_brings_the_states_it_was_drawn_from_and_the_argmax_there() -> None:
    target = random_target(5, 30, end_tokens=(END,))
    (text,) = written(target, [order(target, [4, 5], temperature=1.0, max_new=20)], prompt_rows=1)
    before = [(4, 5, *text.tokens[:i]) for i in range(len(text.tokens))]
    np.testing.assert_array_equal(text.hidden, np.stack([target.hidden_state(prefix) for prefix in before]))
    assert text.greedy.tolist() == [int(target.next_logits(prefix).argmax()) for prefix in before]
    (bare,) = written(target, [order(target, [4, 5], keep_states=False)])
    assert bare.hidden.shape == (0, target.hidden_size) and len(bare.greedy) == 0


def test_a_text_goes_on_behind_what_its_slot_holds_and_prompts_share_a_forward() -> None:
    target = random_target(7, 40)
    first = order(target, list(range(5, 25)), max_new=6)
    (text,) = written(target, [first])
    whole = (*first.prompt, *text.tokens)
    assert target.tokens(first.slot) == whole[:-1]
    twins = [order(target, (*whole, 3)), order(target, (*whole, 3))]
    twins[0].slot = target.fork(first.slot)
    target.feeds.clear()
    again = written(target, twins, prompt_rows=50)
    assert again[0].tokens == again[1].tokens
    assert [len(tree) for _, tree in target.feeds[0]] == [2, len(whole) + 1]


@given(seed=st.integers(0, 99), width=st.integers(1, 3), temperature=st.sampled_from([0.0, 0.7, 1.0]), layers=st.booleans())
@settings(max_examples=25, deadline=None)
def test_drafts_change_the_number_of_steps_and_nothing_else(seed: int, width: int, temperature: float, layers: bool) -> None:
    prompts = ([5, 6, 7], [9], list(range(3, 23)))

    def run(drafts: bool) -> tuple[list[Order], list[Text], list[tuple[int, ...]], int]:
        target = random_target(seed, 30, memory=2, end_tokens=(END,))
        target.watch((0, HIDDEN) if layers else ())
        orders = [order(target, prompt, temperature=temperature, seed=i, max_new=40) for i, prompt in enumerate(prompts)]
        proposer = MixProposer(target, width=width, seed=seed) if drafts else None
        texts = written(target, orders, prompt_rows=9, proposer=proposer, layers=target.watched)
        assert proposer is None or not proposer.known
        return orders, texts, [target.tokens(each.slot) for each in orders], len(target.feeds)

    plain, drafted = run(drafts=False), run(drafts=True)
    assert drafted[2] == plain[2] and drafted[3] <= plain[3]
    for mine, own, text, other in zip(drafted[0], plain[0], drafted[1], plain[1], strict=True):
        assert text.tokens == other.tokens
        np.testing.assert_array_equal(text.hidden, other.hidden)
        np.testing.assert_array_equal(text.greedy, other.greedy)
        if layers:
            np.testing.assert_array_equal(np.concatenate(mine.read), np.concatenate(own.read))


def test_what_repeats_itself_is_copied() -> None:
    words = [*range(5, 25)] * 3
    target = table_target([*words, END], 30, end_tokens=(END,))
    (text,) = written(target, [order(target, words[:1], max_new=70)], proposer=SuffixProposer())
    assert list(text.tokens) == [*words[1:], END]
    assert len(target.feeds) < 40 and max(len(tree) for _, tree in target.feeds[-3]) > 4


def test_a_hint_is_copied_from_and_changes_no_token() -> None:
    target = random_target(3, 40)
    (text,) = written(target, [order(target, [4, 5, 6])])
    target.feeds.clear()
    (again,) = written(target, [order(target, [4, 5, 6], hint=(5, 6, *text.tokens))], proposer=SuffixProposer())
    assert again.tokens == text.tokens and len(target.feeds) < 15


def test_an_order_may_be_to_read_only() -> None:
    target = random_target(3, 40)
    reading, writing = order(target, list(range(3, 33)), max_new=0, keep_states=False), order(target, [7], max_new=2)
    texts = written(target, [reading, writing], prompt_rows=8)
    assert [len(text.tokens) for text in texts] == [0, 2]
    assert list(target.tokens(reading.slot)) == reading.prompt
    with pytest.raises(ValueError, match="a row of its prompt"):
        Scribe(target).add(Order(reading.slot, reading.prompt, 0.0, 5, ENDS, 0))


def test_the_native_engine_writes_the_same_with_drafts() -> None:
    target = load_model("smollm2", engine="native", dtype="bfloat16").target
    prompts = [CODEC.encode(text) for text in ("one two three one two", "tell", "again and again and again and")]

    def texts(proposer: Proposer | None) -> tuple[list[Text], int]:
        scribe, num_steps, found = Scribe(target, proposer=proposer), 0, dict[int, Text]()
        orders = [
            order(target, prompt, temperature=i / 2, seed=i, max_new=40, stop_tokens=frozenset())
            for i, prompt in enumerate(prompts)
        ]
        for each in orders:
            scribe.add(each)
        while scribe.num_running:
            found |= {id(each): text for each, text in scribe.step()}
            num_steps += 1
        return [found[id(each)] for each in orders], num_steps

    (plain, num_plain), (drafted, num_drafted) = texts(None), texts(copying(target))
    assert num_drafted < num_plain
    for mine, own in zip(drafted, plain, strict=True):
        assert mine.tokens == own.tokens
        np.testing.assert_array_equal(mine.hidden, own.hidden)
        np.testing.assert_array_equal(mine.greedy, own.greedy)


def test_a_text_that_goes_round_in_circles_is_stopped() -> None:
    target = table_target({(4,): {5: 9.0}, (5,): {6: 9.0}, (6,): {4: 9.0}, (): {4: 9.0}}, 20)
    (text,) = written(target, [order(target, [4], max_new=500)])
    assert len(text.tokens) == 64 and loops(text.tokens)
    assert not loops(tuple(range(100))) and not loops((3,) * 20)
    assert loops((*range(40), *([7, 8] * 30)))


def test_a_loop_is_found_soon_and_so_is_where_it_begins() -> None:
    fresh, circle = tuple(range(100, 300)), (7, 8, 9, 10, 11)
    for number in (0, 3, 40, 200):
        text = (*fresh[:number], *circle * 12)
        assert loops(text)
        assert before_loop(text) == number + len(circle)  # the first time round is still new
    late = (*fresh, *circle * 12)
    assert repeated_share(late) < 0.3 and not loops(late[:240])
    assert before_loop(fresh) == len(fresh) and before_loop(()) == 0 and not loops(fresh)
    refrain = (*fresh[:60], *circle * 2, *fresh[60:90], *circle * 2, *fresh[90:120])
    assert not loops(refrain) and before_loop(refrain) == len(refrain)


def document(
    tokens: Sequence[int] = (1, 2, 3, 4), spans: Sequence[tuple[int, int]] = ((1, 3),), temperature: float = 0
) -> Document:
    return Document("chat", temperature, tuple(tokens), tuple(spans))


def test_documents_come_back_as_they_were_appended(tmp_path: Path) -> None:
    documents = [document(), document((7, 8, 9), ((0, 1), (2, 3)), 0.5)]
    Corpus(tmp_path, "model").append(documents[:1])
    Corpus(tmp_path, "model").append(documents[1:])
    assert Corpus(tmp_path, "model").read() == documents


def test_a_torn_last_line_is_dropped_and_does_not_spoil_the_next(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path, "model")
    corpus.append([document(), document()])
    file = tmp_path / DOCUMENTS
    file.write_bytes(file.read_bytes()[:-9])
    assert corpus.read() == [document()]
    corpus.append([document((5, 6), ((1, 2),))])
    assert corpus.read() == [document(), document((5, 6), ((1, 2),))]


def test_the_corpus_of_another_model_is_refused(tmp_path: Path) -> None:
    Corpus(tmp_path, "one")
    with pytest.raises(DataError, match="written for another model"):
        Corpus(tmp_path, "two")


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path, "model")
    corpus.append([document()])
    with (tmp_path / DOCUMENTS).open("a") as file:
        file.write('{"kind": "chat", "temperature": 0, "tokens": [1, 2], "supervised": [[1, 5]]}\n')
    with pytest.raises(DataError, match=r"line 2: supervised span \[1, 5\]"):
        corpus.read()


@pytest.mark.parametrize("content", ["{", "[]", '{"format": "other", "version": 1}'])
def test_a_folder_that_is_no_corpus_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / META).write_text(content)
    with pytest.raises(DataError, match="give another corpus folder"):
        Corpus(tmp_path, "model")


@given(st.lists(st.integers(0, 60), min_size=1, max_size=30))
def test_the_split_follows_the_tokens(tokens: list[int]) -> None:
    one = Document("a", 0.0, tuple(tokens), ())
    other = Document("b", 0.5, tuple(tokens), ((0, 1),))
    assert one.digest == other.digest
    assert [one.is_held_out(share) for share in (0.0, 1.0)] == [False, True]


def test_turns_are_read_off_the_template() -> None:
    turns = Turns.of(CODEC)
    assert CODEC.decode(turns.opening) == "<s>be kind<e>\n<u>"
    assert CODEC.decode(turns.user_to_assistant) == "<e>\n<a>"
    assert CODEC.decode(turns.assistant_to_user) == "<e>\n<u>"


CHAT = [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "hello"},
    {"role": "user", "content": "and"},
    {"role": "assistant", "content": "so on"},
]


def test_only_assistant_turns_are_supervised_with_exact_boundaries() -> None:
    tokens, spans = encode_chat(CODEC, CHAT, ENDS)
    assert [CODEC.decode(tokens[start:stop]) for start, stop in spans] == ["hello<e>", "so on<e>"]
    assert CODEC.decode(tokens) == CODEC.render(CHAT, add_generation_prompt=False).removesuffix("\n")
    for i, (start, _) in zip((1, 3), spans, strict=True):
        assert tokens[:start] == CODEC.encode(CODEC.render(CHAT[:i], add_generation_prompt=True))


@pytest.mark.parametrize(
    "record",
    [
        {"messages": CHAT},
        {"turns": ["hi", "hello", "and", "so on"]},
        {"conversations": [{"from": r, "value": m["content"]} for r, m in zip(("human", "gpt") * 2, CHAT, strict=True)]},
    ],
)
def test_every_form_of_chat_gives_the_same_document(tmp_path: Path, record: dict[str, Any]) -> None:
    file = tmp_path / "chats.jsonl"
    file.write_text(json.dumps(record) + "\n\n")
    (read,) = read_jsonl(file, CODEC, ENDS, 100)
    tokens, spans = encode_chat(CODEC, CHAT, ENDS)
    assert (list(read.tokens), list(read.supervised)) == (tokens, spans)


def test_plain_text_is_supervised_whole_and_cut_at_the_context(tmp_path: Path) -> None:
    file = tmp_path / "texts.jsonl"
    file.write_text(json.dumps({"text": "a long text"}) + "\n")
    (read,) = read_jsonl(file, CODEC, ENDS, 6)
    assert CODEC.decode(read.tokens) == "a long"
    assert read.supervised == ((0, 6),)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "line 2"),
        ("3", "line 2: expected an object"),
        ('{"prompt": "x"}', "line 2: expected messages, conversations, turns or text; found 'prompt'"),
        ('{"text": 3}', "line 2: text must be a string"),
        ('{"messages": [{"role": "bard", "content": "x"}]}', "line 2: unknown role 'bard'"),
        ('{"messages": [{"role": "user"}]}', "line 2: turn 1 has no role and content"),
        ('{"messages": [3]}', "line 2: turn 1 is neither"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, complaint: str) -> None:
    file = tmp_path / "data.jsonl"
    file.write_text('{"text": "fine"}\n' + line + "\n")
    with pytest.raises(DataError, match=complaint):
        read_jsonl(file, CODEC, ENDS, 100)


def test_only_line_feeds_end_a_line_of_data(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text("\ufeff" + '{"text": "a\u2028b\u0085c"}\n{"text": "d"}\n', encoding="utf-8", newline="\n")
    base = tiny_base()
    assert len(read_jsonl(path, base.codec, base.end_tokens, 99)) == 2


def test_data_without_a_supervised_token_shows_how_it_reads(tmp_path: Path) -> None:
    file = tmp_path / "data.jsonl"
    file.write_text(json.dumps({"messages": CHAT[:1]}) + "\n" + json.dumps({"messages": CHAT}) + "\n")
    documents = read_jsonl(file, CODEC, ENDS, 100)
    assert 0 < require_supervised(documents, CODEC) == supervised_share(documents) < 1
    masked = [Document("chat", -1, read.tokens, ()) for read in documents[1:]]
    with pytest.raises(DataError, match=r"no token of the data is supervised.*<u>hi<e>"):
        require_supervised(masked, CODEC)


def test_a_chat_model_writes_conversations_whose_answers_alone_are_supervised(tmp_path: Path) -> None:
    base = tiny_base()
    corpus = Corpus(tmp_path, "model")
    writer = Writer(base.target, base.codec, batch=8, answer_tokens=12, question_tokens=24, seed=3)
    speeds: list[float] = []
    documents = fill(corpus, writer, num_tokens=200, deadline=None, report=lambda have, speed: speeds.append(speed))
    assert corpus.read() == documents
    assert sum(d.num_supervised for d in documents) >= 200
    assert speeds and min(speeds) > 0
    prompt = CODEC.encode("<e>\n<a>")
    for read in documents:
        for start, stop in read.supervised:
            assert list(read.tokens[start - len(prompt) : start]) == prompt
            assert END not in read.tokens[start : stop - 1]
    assert {t for d in documents for t in [d.temperature]} > {0.0}


def test_states_kept_while_writing_are_those_of_a_fresh_forward(tmp_path: Path) -> None:
    base = tiny_base()
    writer = Writer(base.target, base.codec, batch=8, answer_tokens=12, question_tokens=24, seed=1)
    files = StateFiles(tmp_path / "states", [], base.target, "float32")
    corpus = Corpus(tmp_path, "model")
    documents = fill(corpus, writer, num_tokens=200, deadline=None, report=lambda have, speed: None, states=files)
    assert any(len(read.supervised) > 1 for read in documents)
    kept = Captured(tmp_path / "states", documents, base.model.width, "float32").batch(range(len(documents)))
    anew = Online(base.target, documents).batch(range(len(documents)))
    torch.testing.assert_close(kept.hidden, anew.hidden, rtol=1e-4, atol=1e-4)
    assert kept.picks.equal(anew.picks)


def test_a_writer_that_was_stopped_goes_on_with_new_text(tmp_path: Path) -> None:
    base = tiny_base()
    corpus = Corpus(tmp_path, "model")
    for num_tokens in (80, 160):
        writer = Writer(base.target, base.codec, batch=6, answer_tokens=10, question_tokens=24, seed=3)
        documents = fill(corpus, writer, num_tokens=num_tokens, deadline=None, report=lambda have, speed: None)
    assert fingerprint_of(documents) == fingerprint_of(corpus.read())
    assert len({d.tokens for d in documents}) > 0.9 * len(documents)
    again = fill(corpus, writer, num_tokens=100, deadline=None, report=lambda have, speed: None)
    assert again == documents  # enough stands there already


def test_a_base_model_continues_from_nothing(tmp_path: Path) -> None:
    base = tiny_base(chat=False)
    writer = Writer(base.target, base.codec, batch=4, answer_tokens=9, question_tokens=24, seed=0)
    documents = fill(Corpus(tmp_path, "m"), writer, num_tokens=30, deadline=None, report=lambda have, speed: None)
    assert all(d.kind == "text" and d.supervised == ((1, len(d.tokens)),) for d in documents)


def test_the_draft_vocabulary_holds_the_most_frequent_supervised_tokens_and_the_ends() -> None:
    documents = [document((50, 50, 7, 7, 7, 9, 9, 4), ((2, 8),))]
    assert choose_draft_vocab(documents, 4, 60, {2}) == (2, 4, 7, 9)
    assert choose_draft_vocab(documents, 3, 60, {2}) == (2, 7, 9)
    assert choose_draft_vocab(documents, 0, 60, {2}) is None


def test_unknown_and_impossible_settings_are_refused_by_name() -> None:
    with pytest.raises(RequestError, match="no option learning_rat; did you mean learning_rate"):
        TrainSettings.of(learning_rat=1)
    for name, value in {
        "num_heads": 0,
        "soft_weight": 1.5,
        "learning_rate": 0.0,
        "states_dtype": "int8",
        "minutes": -1,
    }.items():
        with pytest.raises(RequestError, match=name):
            TrainSettings.of(**{name: value})


def test_answers_to_one_prompt_fall_on_the_same_side_of_the_split() -> None:
    sides = set()
    for prompt in range(40):
        documents = [Document("chat", 0.0, (1, prompt, 7, answer), ((3, 4),)) for answer in range(20)]
        chosen = {document.is_held_out(0.5) for document in documents}
        assert len(chosen) == 1
        sides |= chosen
    assert sides == {False, True}
