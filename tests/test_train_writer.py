"""What the model writes for itself: kinds and their shares, conversations from turn to turn, what is thrown away."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chat_model import END, chat_tokenizer, tiny_base, tiny_loaded
from headstart.errors import DataError, ModelError, RequestError
from headstart.target.loading import Loaded
from headstart.train import base as base_module
from headstart.train import capture as capture_module
from headstart.train.base import Base, TokenizerCodec
from headstart.train.capture import StateFiles, hidden_states, num_rows
from headstart.train.corpus import SECOND, Corpus, Document, statistics
from headstart.train.filling import fill
from headstart.train.kinds import BY_NAME, KINDS, can_open, excerpt, follow_up, open_turn
from headstart.train.loops import loops
from headstart.train.sentences import french, german_text, spanish
from headstart.train.shares import Shares
from headstart.train.template import Turns
from headstart.train.writer import Writer, Written
from scripted import MixProposer, ScriptedTarget, random_target, table_target

TOKENIZER = chat_tokenizer()
CODEC = TokenizerCodec(TOKENIZER)
TURNS = Turns.of(CODEC)
PASSAGES = tuple(" ".join(f"Sentence {i} of text {j} has seven words." for i in range(60)) for j in range(9))


def chatty(seed: int = 0, **options: Any) -> ScriptedTarget:
    """A target that says anything; a turn has about forty characters."""
    return random_target(seed, TOKENIZER.vocab_size, end_tokens=(END,), **options)


def writer(target: ScriptedTarget, **options: Any) -> Writer:
    sizes: dict[str, Any] = {"batch": 12, "answer_tokens": 30, "question_tokens": 60, "seed": 0}
    return Writer(target, CODEC, **(sizes | options))


def written(made: Writer, number: int) -> list[Written]:
    """At least so many documents."""
    steps, found = made.steps(), list[Written]()
    while len(found) < number:
        found += next(steps)
    steps.close()
    return found


def test_every_kind_opens_with_all_of_its_fields_filled() -> None:
    rng = random.Random(1)
    for kind in KINDS:
        turns = [open_turn(kind, rng, PASSAGES) for _ in range(80)]
        assert all("{" not in turn.text for turn in turns), kind.name
        assert {turn.is_whole for turn in turns} == {bool(text) for text in (kind.requests, not kind.openings) if text} | (
            {False} if kind.openings else set()
        )
        assert isinstance(follow_up(kind, rng), str)


def test_kinds_that_read_wait_for_passages() -> None:
    waiting = {kind.name for kind in KINDS if not can_open(kind, ())}
    assert waiting == {"summary", "extraction", "reading", "long"}
    rng = random.Random(0)
    assert all("Sentence" not in open_turn(BY_NAME["translation"], rng, ()).text for _ in range(99))
    texts = [open_turn(BY_NAME["reading"], rng, PASSAGES).text for _ in range(50)]
    assert all("Sentence 0 of text" in text for text in texts)
    assert any(text.count("Sentence 0 of text") > 1 for text in texts)


def test_an_excerpt_ends_with_a_sentence() -> None:
    rng = random.Random(2)
    for _ in range(20):
        found = excerpt(PASSAGES[0], rng, 50, 130)
        assert PASSAGES[0].startswith(found) and found.endswith("words.")
        assert 42 <= len(found.split()) <= 130
    assert excerpt("no full stop here", rng, 2, 2) == "no full"


@pytest.mark.parametrize("make", [german_text, french, spanish])
def test_sentences_to_translate_are_varied_and_whole(make: Any) -> None:
    rng = random.Random(3)
    texts = [make(rng) for _ in range(300)]
    assert len(set(texts)) > 150
    assert all(text[0].isupper() and text[-1] in ".?" and "  " not in text for text in texts)


def test_kinds_keep_to_their_shares_of_the_tokens_whatever_their_length() -> None:
    shares = Shares({"long": 0.5, "short": 0.3, "failing": 0.2})
    tokens: Counter[str] = Counter()
    attempts: Counter[str] = Counter()
    rng = random.Random(0)
    open_attempts = [shares.begin(("long", "short", "failing")) for _ in range(20)]
    for _ in range(4000):
        attempt = open_attempts.pop(rng.randrange(20))
        number = {"long": 900, "short": 50, "failing": 0}[attempt.kind]
        tokens[attempt.kind] += number
        attempts[attempt.kind] += 1
        shares.settle(attempt, number)
        open_attempts.append(shares.begin(("long", "short", "failing")))
    assert tokens["long"] / tokens["short"] == pytest.approx(5 / 3, rel=0.1)
    assert attempts["failing"] < 2 * attempts["short"]


def test_what_stood_before_counts_and_what_cannot_be_opened_waits() -> None:
    shares = Shares({"a": 1.0, "b": 1.0})
    shares.count("a", 5000)
    shares.count("of old", 10**9)
    assert [shares.begin(("a", "b")).kind for _ in range(5)] == ["b"] * 5
    assert shares.begin(("a",)).kind == "a"


def test_a_conversation_with_two_answers_is_settled_with_the_second() -> None:
    shares = Shares({"a": 1.0, "b": 1.0})
    attempt = shares.begin(("a",))
    attempt.num_open += 1
    shares.settle(attempt, 1000)
    shares.settle(attempt, 1000)
    shares.count("b", 1999)
    assert shares.begin(("a", "b")).kind == "b"


def test_each_first_question_is_answered_greedily_and_once_more_warmly() -> None:
    temperatures: dict[tuple[int, ...], list[float]] = {}
    for found in written(writer(chatty()), 50):
        prompt = found.document.tokens[: found.document.supervised[0][0]]
        temperatures.setdefault(prompt, []).append(found.document.temperature)
    assert all(len(set(both)) == len(both) <= 2 for both in temperatures.values())
    whole = [sorted(both) for both in temperatures.values() if len(both) == 2]
    assert len(whole) > 12 and all(cold == 0 < warm for cold, warm in whole)


@pytest.mark.parametrize("drafts", [False, True])
def test_greedy_documents_are_what_the_target_says_turn_by_turn(drafts: bool) -> None:
    target = chatty(1)
    documents = [found.document for found in written(writer(target, proposer=MixProposer(target) if drafts else None), 50)]
    assert any(len(read.supervised) > 1 for read in documents)
    for read in documents:
        assert read.tokens[: len(TURNS.opening)] == TURNS.opening
        assert (SECOND in read.kind) == (len(read.supervised) > 1)
        for start, stop in read.supervised:
            assert read.tokens[start - len(TURNS.user_to_assistant) : start] == TURNS.user_to_assistant
            for place in range(start, stop) if read.temperature == 0 else ():
                logits = target.next_logits(read.tokens[:place]).copy()
                logits[END] -= np.inf if place == start else 0
                assert read.tokens[place] == logits.argmax()


@pytest.mark.parametrize("drafts", [False, True])
def test_states_of_written_documents_are_those_of_the_target(drafts: bool) -> None:
    target = chatty(2)
    for found in written(writer(target, proposer=MixProposer(target) if drafts else None), 30):
        places = [place for start, stop in found.document.supervised for place in range(start, stop)]
        hidden, greedy, _ = found.states
        assert len(hidden) == len(greedy) == len(places) == num_rows(found.document)
        for row, place in list(enumerate(places))[::7]:
            prefix = found.document.tokens[:place]
            np.testing.assert_array_equal(hidden[row].numpy(), target.hidden_state(prefix))
            assert int(greedy[row]) == int(target.next_logits(prefix).argmax())


def test_no_more_than_the_batch_is_in_flight_and_all_slots_are_given_back() -> None:
    target = chatty(3)
    made = writer(target, batch=10)
    steps = made.steps()
    opened = []
    for _ in range(300):
        next(steps)
        opened.append(target.num_open)
    steps.close()
    assert 10 < max(opened) <= 2 * 10 + 1  # second answers wait for the first; and what all begin with
    assert target.num_open == 0
    assert max(len(batch) for batch in target.feeds) <= 10


def test_a_prompt_is_read_once_for_both_of_its_answers() -> None:
    target = chatty(3)
    documents = [found.document for found in written(writer(target, kinds=(BY_NAME["translation"],)), 60)]
    prompts = {read.tokens[: read.supervised[0][0]] for read in documents}
    read_rows = sum(len(tree) for batch in target.feeds for _, tree in batch if len(tree) > 1)
    assert len(prompts) < 40
    assert read_rows < 1.5 * sum(map(len, prompts))  # with those that are in flight, and further turns


def test_what_was_written_counts_every_token_that_was_drawn() -> None:
    made, answers, before = writer(chatty(4)), 0, 0
    for found in (steps := made.steps()):
        assert before <= made.num_written <= before + 12
        before, answers = made.num_written, answers + sum(read.document.num_supervised for read in found)
        if answers > 1000:
            break
    steps.close()
    assert 1000 < answers < made.num_written < 4 * answers


def test_a_batch_of_one_writes_too() -> None:
    assert len(written(writer(chatty(), batch=1), 5)) >= 5


def test_long_answers_become_passages_that_are_read_later() -> None:
    words = CODEC.encode(" ".join(["tell them a story"] * 3))
    rng = random.Random(0)
    documents = []
    for _ in range(16):
        answer = [rng.choice(words) if i % 5 else CODEC.encode(" ")[0] for i in range(700)]
        prompt = (*TURNS.opening, *CODEC.encode("go on"), *TURNS.user_to_assistant)
        documents.append(Document("article", 0.8, (*prompt, *answer, END), ((len(prompt), len(prompt) + 701),)))
    made = writer(chatty(4, context_limit=8192))
    made.start(documents)
    kinds = {found.document.kind.removesuffix(SECOND): found.document for found in written(made, 70)}
    assert {"summary", "reading"} <= set(kinds)
    assert any(CODEC.decode(read.tokens[len(words) :])[:10] in CODEC.decode(kinds["summary"].tokens) for read in documents)


def test_what_does_not_fit_the_context_is_not_begun() -> None:
    target = chatty(5, context_limit=200)
    documents = [found.document for found in written(writer(target), 60)]
    assert max(len(read.tokens) for read in documents) <= 200  # the target itself refuses rows behind its context


def test_a_question_is_asked_once() -> None:
    a, b = CODEC.encode("ab")
    always = table_target({(): {a: 5.0}, (a,): {b: 5.0}, (b,): {END: 5.0}}, TOKENIZER.vocab_size, end_tokens=(END,))
    documents = [found.document for found in written(writer(always), 150)]
    prompts = Counter(read.tokens[: read.supervised[0][0]] for read in documents)
    assert max(prompts.values()) == 2
    assert sum(read.kind.startswith("chat") for read in documents) == 2  # their opening is empty, so all would ask the same


def test_a_model_that_never_ends_a_question_writes_nothing() -> None:
    endless = table_target({(): {7: 5.0, 8: 5.0}}, TOKENIZER.vocab_size)
    made = writer(endless, question_tokens=4)
    made._kinds = {"chat": BY_NAME["chat"]}
    made.start(())
    with pytest.raises(DataError, match="no usable text"):
        for part in made.steps():
            assert not part
    assert endless.num_open == 0


def test_questions_that_stood_before_are_not_asked_again() -> None:
    first = [found.document for found in written(writer(chatty(6)), 40)]
    again = writer(chatty(6))
    again.start(first)
    again._rng = random.Random(0)  # as if it drew the same
    later = [found.document for found in written(again, 40)]
    asked = [{read.tokens[: read.supervised[0][0]] for read in documents} for documents in (first, later)]
    assert not asked[0] & asked[1]


def circling(prefix: tuple[int, ...]) -> Any:
    """Answers go round in circles when their question has an even number of tokens."""
    logits = np.random.default_rng(abs(hash(prefix)) % 2**32).standard_normal(TOKENIZER.vocab_size) * 2
    marker = TURNS.user_to_assistant
    starts = [i for i in range(len(prefix) - len(marker) + 1) if prefix[i : i + len(marker)] == marker]
    if starts and END not in prefix[starts[-1] + len(marker) :] and starts[-1] % 2 == 0:
        logits[6 + len(prefix) % 3] += 99
    return logits.astype(np.float32)


def test_of_texts_that_go_round_in_circles_a_small_share_is_kept() -> None:
    target = ScriptedTarget(circling, TOKENIZER.vocab_size, end_tokens=(END,))
    documents = [found.document for found in written(writer(target), 60)]
    spans = [read.tokens[start:stop] for read in documents for start, stop in read.supervised]
    looping = sum(len(text) for text in spans if loops(text))
    assert 0 < looping <= 0.1 * sum(map(len, spans))


def falling_into_a_circle(prefix: tuple[int, ...]) -> Any:
    """Answers say something new for forty tokens, and then the same three for ever."""
    logits = np.random.default_rng(abs(hash(prefix)) % 2**32).standard_normal(TOKENIZER.vocab_size) * 2
    marker = TURNS.user_to_assistant
    starts = [i for i in range(len(prefix) - len(marker) + 1) if prefix[i : i + len(marker)] == marker]
    if starts and END not in prefix[starts[-1] + len(marker) :]:
        logits[END] = -9
        if len(prefix) - starts[-1] - len(marker) >= 40:
            logits[6 + len(prefix) % 3] += 99
    return logits.astype(np.float32)


def test_an_answer_that_falls_into_a_circle_is_kept_up_to_there_with_its_states() -> None:
    target = ScriptedTarget(falling_into_a_circle, TOKENIZER.vocab_size, end_tokens=(END,))
    found = written(writer(target, answer_tokens=200), 40)
    cut = [one for one in found if not loops(one.document.tokens[one.document.supervised[0][0] :])]
    assert len(cut) > 30  # the others are the few that may be kept
    for one in cut:
        (start, stop), states = one.document.supervised[0], one.states
        assert stop == len(one.document.tokens) and 40 <= stop - start <= 43
        assert len(states.hidden) == len(states.greedy) == stop - start
    assert target.num_open == 0


def test_the_statistics_of_a_corpus_are_of_its_kinds() -> None:
    documents = [
        Document("chat", 0.0, (1, 2, 3, 4), ((1, 4),)),
        Document("chat-second", 0.0, (1, 2, 3, 4), ((1, 2), (3, 4))),
        Document("code", 0.0, (1, 2, 3, 4, 5, 6), ((1, 6),)),
    ]
    assert statistics(documents) == {
        "documents": 3,
        "longest_document": 6,
        "documents_by_kind": {"chat": 2, "code": 1},
        "tokens_by_kind": {"chat": 5, "code": 5},
        "share_by_kind": {"chat": 0.5, "code": 0.5},
    }


def test_writing_stops_at_the_deadline_with_two_documents_at_least(tmp_path: Path) -> None:
    target = chatty(7)
    documents = fill(
        Corpus(tmp_path, "m"), writer(target, batch=2), num_tokens=10**9, deadline=0.0, report=lambda have, speed: None
    )
    assert len(documents) in (2, 3, 4)
    assert Corpus(tmp_path, "m").read() == documents
    assert target.num_open == 0


def test_answers_that_are_cut_off_are_documents_too() -> None:
    target = chatty(9)
    made = writer(target)
    steps = made.steps()
    finished = [found for _ in range(90) for found in next(steps)]
    cut = made.cut_off()
    assert finished and cut
    assert target.num_open == 1  # what all begin with
    for read in (found.document for found in cut):
        start, stop = read.supervised[-1]
        assert stop == len(read.tokens) and (read.tokens[-1] == END or stop - start >= 16)
    steps.close()
    assert target.num_open == 0


@pytest.mark.parametrize("rows", [3, 40, 1024])
def test_states_of_given_documents_are_those_of_the_target(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture_module, "_ROWS_AT_ONCE", rows)
    target, rng = random_target(8, 30), random.Random(1)
    documents = [Document("text", -1, tuple(rng.randrange(30) for _ in range(n)), ((0, n),)) for n in (1, 2, 9, 30, 4)]
    documents.append(Document("chat", -1, tuple(rng.randrange(30) for _ in range(50)), ((20, 23), (30, 31))))
    documents.append(Document("chat", -1, (1, 2), ()))
    for read, (hidden, greedy, _) in zip(documents, hidden_states(target, documents), strict=True):
        prefixes = [read.tokens[:place] for start, stop in read.supervised for place in range(max(start, 1), stop)]
        expected = [target.hidden_state(prefix) for prefix in prefixes]
        assert hidden.shape == (len(prefixes), target.hidden_size)
        np.testing.assert_array_equal(hidden.numpy(), np.array(expected).reshape(hidden.shape))
        assert greedy.tolist() == [int(target.next_logits(prefix).argmax()) for prefix in prefixes]
    assert target.num_open == 0
    assert max(sum(len(tree) for _, tree in batch) for batch in target.feeds) <= max(rows, 50)


def test_states_of_another_engine_are_replaced(tmp_path: Path) -> None:
    target, documents = random_target(8, 30), [Document("text", -1, (1, 2, 3), ((0, 3),))]
    StateFiles(tmp_path, documents, target, "float32").append(documents, hidden_states(target, documents))
    assert StateFiles(tmp_path, documents, target, "float32").num_documents == 1
    target.dtype = "bfloat16"
    assert StateFiles(tmp_path, documents, target, "float32").num_documents == 0


class Places:
    """Stands for loading a name: the native engine has another target than PyTorch, or none."""

    def __init__(self, native: ScriptedTarget | None) -> None:
        self.native = native
        self.asked: list[tuple[str, str]] = []

    def put(self, monkeypatch: pytest.MonkeyPatch) -> Places:
        monkeypatch.setattr(base_module, "load_model", self)
        monkeypatch.setattr(base_module, "native_obstacle", lambda name: None if self.native else "it knows no such models")
        return self

    def __call__(self, name: str, *, dtype: str, engine: str) -> Loaded:
        self.asked.append((engine, dtype))
        loaded = tiny_loaded()
        if engine == "hf":
            return loaded
        if self.native is None:
            raise ModelError("HEADSTART_ISA is 'mmx'")
        return Loaded(self.native, loaded.tokenizer, loaded.source)


def test_the_native_engine_writes_where_it_can_run_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    native = chatty()
    places = Places(native).put(monkeypatch)
    made = Base.of("toy", "float32")
    assert made.target is native and made.model.width == 32
    assert places.asked == [("hf", "float32"), ("native", "auto")]


@pytest.mark.parametrize(("isa", "written_in"), [("amx", "bfloat16"), ("avx512", "auto")])
def test_blocks_are_written_in_bfloat16_where_that_is_faster(
    isa: str, written_in: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    native = chatty()
    native.dtype = "q4_1"
    places = Places(native).put(monkeypatch)
    monkeypatch.setattr(base_module, "runtime", lambda engine: {"threads": 2, "isa": isa})
    made = Base.of("toy", "float32")
    assert places.asked[1:] == [("native", dtype) for dtype in dict.fromkeys(("auto", written_in))]
    made.as_loaded()
    assert places.asked[-1] == ("native", "auto")
    places.asked.clear()
    assert Base.of("toy", "float32", "stored").as_loaded() is native
    assert places.asked == [("hf", "float32"), ("native", "auto")]


def test_pytorch_writes_where_the_native_engine_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    Places(None).put(monkeypatch)
    assert Base.of("toy", "float32").target.engine == "hf"
    with pytest.raises(
        RequestError, match="writer_dtype is 'int8', which needs the native engine, and toy cannot run there: it knows"
    ):
        Base.of("toy", "float32", "int8")
    with pytest.raises(RequestError, match="no effect on a model that is loaded already"):
        Base.of(tiny_loaded(), "float32", "int8")


def test_an_engine_that_is_set_up_wrongly_is_not_replaced_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    Places(None).put(monkeypatch)
    monkeypatch.setattr(base_module, "native_obstacle", lambda name: None)
    with pytest.raises(ModelError, match="HEADSTART_ISA"):
        Base.of("toy", "float32")


def test_the_real_engine_writes_as_well() -> None:
    base = tiny_base()
    made = Writer(base.target, base.codec, batch=8, answer_tokens=12, question_tokens=24, seed=3)
    assert max(len(found.document.tokens) for found in written(made, 20)) <= base.target.context_limit
