"""Text in, text out: stop strings, streaming and many requests, on scripted targets with a byte-level tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers

import headstart as hs
from chat_model import save_chat_model
from headstart.errors import HeadsError, RequestError
from headstart.llm import LLM, Answer, Step
from headstart.proposers.base import Proposer
from headstart.proposers.choose import Guesser, choose_members, choose_proposer
from headstart.proposers.combined import CombinedProposer
from headstart.sampling import Sampling
from headstart.tokenizer import Tokenizer
from headstart.tokenizer.detokenizer import byte_alphabet
from scripted import HalfProposer, MixProposer, OracleProposer, ScriptedTarget, WrongProposer, random_target, table_target

END = "<end>"
DRAFTS = ("none", "oracle", "oracle tree", "wrong", "half", "mix")
Piece = str | bytes


def byte_tokenizer(pieces: Sequence[Piece]) -> Tokenizer:
    """A vocabulary of the 256 bytes, then ``pieces``, then the end token; prompts are encoded byte by byte."""
    letter_of = {byte: letter for letter, byte in byte_alphabet().items()}
    spelled = ["".join(letter_of[b] for b in (p.encode() if isinstance(p, str) else p)) for p in pieces]
    vocabulary = {letter_of[byte]: byte for byte in range(256)}
    for piece in spelled:
        vocabulary.setdefault(piece, len(vocabulary))
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([END])
    return Tokenizer(backend, special_tokens={"eos_token": END})


def ids_of(tokenizer: Tokenizer, pieces: Sequence[Piece]) -> list[int]:
    letter_of = {byte: letter for letter, byte in byte_alphabet().items()}
    spelled = [p if p == END else "".join(letter_of[b] for b in (p.encode() if isinstance(p, str) else p)) for p in pieces]
    ids = [tokenizer.token_id(text) for text in spelled]
    assert None not in ids
    return [id for id in ids if id is not None]


def guesser(target: ScriptedTarget, draft: str, num_nodes: int) -> Guesser:
    made: dict[str, Proposer | None] = {
        "none": None,
        "oracle": OracleProposer(target, num_nodes),
        "oracle tree": OracleProposer(target, num_nodes, width=2),
        "wrong": WrongProposer(target, num_nodes),
        "half": HalfProposer(target, num_nodes),
        "mix": MixProposer(target, num_nodes),
    }
    return Guesser(draft, made[draft], num_nodes)


def says(pieces: Sequence[Piece], draft: str = "none", num_nodes: int = 8, *, prompt: str = "?") -> LLM:
    """A model that answers ``prompt`` with these tokens, whatever they add up to, and then ends."""
    tokenizer = byte_tokenizer([p for p in pieces if p != END])
    script = [*tokenizer.encode(prompt), *ids_of(tokenizer, [*pieces, END])]
    target = table_target(script, tokenizer.vocab_size, end_tokens=tokenizer.end_tokens)
    return LLM(target, tokenizer, guesser(target, draft, num_nodes))


def babbles(draft: str = "none", num_nodes: int = 6, key: int = 0, **options: Any) -> LLM:
    """A model of random words."""
    tokenizer = byte_tokenizer(["alpha ", "beta ", "gamma", "é", " 🙂"])
    target = random_target(key, tokenizer.vocab_size, memory=3, end_tokens=tokenizer.end_tokens, **options)
    return LLM(target, tokenizer, guesser(target, draft, num_nodes))


def scripted(llm: LLM) -> ScriptedTarget:
    assert isinstance(llm.target, ScriptedTarget)
    return llm.target


def seen(answer: Answer) -> tuple[object, ...]:
    return answer.text, answer.tokens, answer.finish_reason, answer.stop_reason, answer.logprobs, answer.seed, answer.num_prompt


def streamed(llm: LLM, prompt: str, sampling: Sampling) -> list[Step]:
    steps = list(llm.stream(prompt, sampling))
    assert scripted(llm).num_open == 0
    assert all(step.finish_reason is None for step in steps[:-1])
    return steps


def everywhere(pieces: Sequence[Piece], sampling: Sampling, *, prompt: str = "?") -> Answer:
    """The answer of plain decoding, after every draft, size and way of reading gave the same."""
    expected = says(pieces, prompt=prompt).generate(prompt, sampling)
    for draft in DRAFTS:
        for num_nodes in (1, 2, 4, 12):
            llm = says(pieces, draft, num_nodes, prompt=prompt)
            assert seen(llm.generate(prompt, sampling)) == seen(expected)
            steps = streamed(llm, prompt, sampling)
            assert "".join(step.text for step in steps) == expected.text
            assert tuple(token for step in steps for token in step.tokens) == expected.tokens
            assert tuple(entry for step in steps for entry in step.logprobs) == expected.logprobs
            assert steps[-1].finish_reason == expected.finish_reason
    return expected


# -- stop strings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", range(10))
def test_a_stop_string_completed_at_any_offset_of_a_block_ends_there(offset: int) -> None:
    pieces = [*(f"w{i} " for i in range(offset)), "xEND", *(f"v{i} " for i in range(12))]
    answer = everywhere(pieces, Sampling(stop=("END",), seed=1, logprobs=1))
    assert answer.text == "".join(f"w{i} " for i in range(offset)) + "x"
    assert (answer.finish_reason, answer.stop_reason, len(answer.tokens)) == ("stop", "END", offset + 1)


@pytest.mark.parametrize("gap", range(6))
def test_a_stop_string_split_over_tokens_and_blocks_is_found(gap: int) -> None:
    pieces = [*["a"] * gap, " E", "N", "D!", "b", "c", "d"]
    answer = everywhere(pieces, Sampling(stop=("END",), seed=1))
    assert answer.text == "a" * gap + " " and answer.stop_reason == "END"


def test_the_stop_completed_first_wins_whatever_their_order() -> None:
    for stop in (("HALT", "END"), ("END", "HALT")):
        answer = everywhere(["foo", " EN", "D", " bar", " HALT"], Sampling(stop=stop, seed=1))
        assert (answer.text, answer.stop_reason) == ("foo ", "END")


def test_of_two_stops_that_one_token_completes_the_earlier_end_wins_and_then_the_longer() -> None:
    assert everywhere(["a one two b"], Sampling(stop=("two", "one"), seed=1)).stop_reason == "one"
    answer = everywhere(["a the end"], Sampling(stop=("end", "the end"), seed=1))
    assert (answer.text, answer.stop_reason) == ("a ", "the end")


def test_a_stop_string_is_never_searched_in_the_prompt() -> None:
    assert everywhere(["x", "y"], Sampling(stop=("END",), seed=1), prompt="END").text == "xy"
    assert everywhere(["ND", "y"], Sampling(stop=("END",), seed=1), prompt="E").text == "NDy"


def test_no_stop_string_before_min_tokens() -> None:
    pieces = ["END", "a", "EN", "D", "b", "END", "c"]
    assert everywhere(pieces, Sampling(stop=("END",), seed=1, min_tokens=0)).text == ""
    assert everywhere(pieces, Sampling(stop=("END",), seed=1, min_tokens=3)).text == "ENDa"
    assert everywhere(pieces, Sampling(stop=("END",), seed=1, min_tokens=5)).text == "ENDaENDb"


def test_text_that_only_looked_like_a_stop_comes_back() -> None:
    assert everywhere(["E", "N", "E", "N", "x", "EN"], Sampling(stop=("END",), seed=1)).text == "ENENxEN"
    answer = everywhere(["a", "a", "a", "b"], Sampling(stop=("aab",), seed=1))
    assert (answer.text, answer.stop_reason) == ("a", "aab")


@settings(max_examples=60)
@given(
    pieces=st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=12),
    stop=st.lists(st.text("abc", min_size=1, max_size=4), max_size=3).map(tuple),
    draft=st.sampled_from(DRAFTS),
    num_nodes=st.integers(1, 12),
    cap=st.integers(1, 13),
    least=st.integers(0, 3),
)
def test_text_ends_before_the_stop_that_is_completed_first(
    pieces: list[str], stop: tuple[str, ...], draft: str, num_nodes: int, cap: int, least: int
) -> None:
    sampling = Sampling(stop=stop, max_tokens=max(cap, least), min_tokens=least, seed=1)
    llm = says([*pieces, *["z"] * 4], draft, num_nodes)
    answer = llm.generate("?", sampling)
    text, start_of_search, expected = "", 0, None
    for number, piece in enumerate([*pieces, *["z"] * 4][: sampling.max_tokens], start=1):
        text += piece
        found = [(text.find(s, max(start_of_search - len(s) + 1, 0)), s) for s in stop]
        ends = sorted((at + len(s), at, s) for at, s in found if at >= 0)
        if number > least and ends:
            expected = ends[0]
            break
        start_of_search = len(text)
    assert answer.stop_reason == (expected[2] if expected else None if answer.finish_reason == "length" else llm_end(llm))
    assert answer.text == (text[: expected[1]] if expected else text)
    assert "".join(step.text for step in streamed(llm, "?", sampling)) == answer.text


def llm_end(llm: LLM) -> int:
    (end,) = llm.target.end_tokens
    return end


# -- ends and characters --------------------------------------------------------------------------------------------------


def test_nothing_behind_the_end_token_is_sent() -> None:
    answer = everywhere(["7", "8", END, "9", "9", "9"], Sampling(seed=1, logprobs=0))
    assert (answer.text, answer.finish_reason, len(answer.tokens)) == ("78", "stop", 3)
    assert answer.stop_reason == answer.tokens[-1]
    ignored = says(["7", END, "9"], "oracle").generate("?", ignore_eos=True, max_tokens=3)
    assert (ignored.text, ignored.finish_reason) == ("79", "length")


def test_a_stop_token_adds_no_text() -> None:
    llm = says(["a", "b", "c"])
    token = llm.tokenizer.token_id("b")
    assert token is not None
    answer = everywhere(["a", "b", "c"], Sampling(stop_token_ids=(token,), seed=1))
    assert (answer.text, answer.stop_reason, len(answer.tokens)) == ("a", token, 2)


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_characters_split_over_tokens_and_blocks_arrive_whole(cut: int) -> None:
    data = "né 🙂漢字🏳️‍🌈 ok".encode()
    pieces = [data[i : i + cut] for i in range(0, len(data), cut)]
    answer = everywhere(pieces, Sampling(seed=1))
    assert answer.text == data.decode()
    for cap in range(1, len(pieces)):
        short = everywhere(pieces, Sampling(seed=1, max_tokens=cap)) if cap == 4 else says(pieces).generate("?", max_tokens=cap)
        assert "\ufffd" not in short.text and data.decode().startswith(short.text)
        assert len(short.tokens) == cap, "every token is counted, also one whose character is unfinished"


def test_no_step_shows_a_part_of_a_character() -> None:
    pieces = [bytes([byte]) for byte in "🙂é".encode()]
    for draft in DRAFTS:
        for step in streamed(says(pieces, draft, 3), "?", Sampling(seed=1)):
            assert "\ufffd" not in step.text


def test_a_stop_string_of_split_characters_is_found() -> None:
    pieces = [b"a", *(bytes([byte]) for byte in "🙂".encode()), b"b"]
    answer = everywhere(pieces, Sampling(stop=("🙂",), seed=1))
    assert (answer.text, answer.stop_reason, len(answer.tokens)) == ("a", "🙂", 5)


@pytest.mark.parametrize("draft", DRAFTS)
def test_every_cut_of_a_text_streams_to_the_same_text(draft: str) -> None:
    text = "Write . </think> <tool_call> {..}"
    for size in range(1, len(text) + 1):
        pieces = [text[i : i + size] for i in range(0, len(text), size)]
        steps = streamed(says(pieces, draft, 6), "?", Sampling(seed=1, stop=("</tool",)))
        assert "".join(step.text for step in steps) == text


# -- the master property over text ----------------------------------------------------------------------------------------


@settings(max_examples=50)
@given(
    key=st.integers(0, 20),
    draft=st.sampled_from(DRAFTS),
    num_nodes=st.sampled_from([0, 1, 2, 4, 8, 15]),
    temperature=st.sampled_from([0.0, 0.8, 1.0]),
    stop=st.sampled_from([(), ("beta",), ("a b", "é")]),
    batch=st.integers(1, 5),
    n=st.integers(1, 2),
    penalty=st.sampled_from([0.0, 0.5]),
)
def test_texts_reasons_logprobs_and_counts_are_those_of_plain_decoding(
    key: int, draft: str, num_nodes: int, temperature: float, stop: tuple[str, ...], batch: int, n: int, penalty: float
) -> None:
    words = {256: 7.0, 257: 7.0, 258: 7.0, 259: 7.0, 260: 6.0, 261: 4.0}  # the words, and now and then the end
    base = Sampling(temperature=temperature, seed=key, max_tokens=14, stop=stop, logprobs=1, n=n)
    sampling = replace(base, logit_bias=words, frequency_penalty=penalty)
    prompts = ["a", "some more", "é!", "a", "zz top"]
    expected = [babbles(key=key).generate(prompt, sampling) for prompt in prompts]
    llm = babbles(draft, num_nodes, key)
    answers = llm.generate_many(prompts, sampling, batch=batch)
    for got, wanted in zip(answers, expected, strict=True):
        assert [seen(choice) for choice in got.choices] == [seen(choice) for choice in wanted.choices]
    steps = list(llm.stream(prompts[1], sampling))
    for index, choice in enumerate(expected[1].choices):
        own = [step for step in steps if step.index == index]
        assert "".join(step.text for step in own) == choice.text
        assert tuple(token for step in own for token in step.tokens) == choice.tokens
        assert own[-1].finish_reason == choice.finish_reason
    assert scripted(llm).num_open == 0


# -- requests -------------------------------------------------------------------------------------------------------------


def test_a_path_object_names_a_model(tmp_path: Path) -> None:
    save_chat_model(tmp_path / "model", head_dim=16)
    named, given = (hs.load(place, proposer="ngram") for place in (str(tmp_path / "model"), tmp_path / "model"))
    assert given.generate("hi", max_tokens=3).tokens == named.generate("hi", max_tokens=3).tokens


def test_an_answer_without_a_seed_reports_one_that_repeats_it() -> None:
    llm = babbles("mix")
    first = llm.generate("hi", temperature=1.0, max_tokens=12)
    assert seen(llm.generate("hi", temperature=1.0, max_tokens=12, seed=first.seed)) == seen(first)
    others = [llm.generate("hi", temperature=1.0, max_tokens=12) for _ in range(20)]
    assert len({answer.seed for answer in others}) == 20
    assert len({answer.tokens for answer in others}) > 10  # some end at once


def test_steps_report_what_was_drafted_and_accepted() -> None:
    steps = streamed(says(list("abcdefgh"), "oracle", 3), "?", Sampling(seed=1))
    assert [(len(s.tokens), s.num_drafted, s.num_accepted) for s in steps] == [(1, 0, 0), (4, 3, 3), (4, 3, 3)]


def test_answers_come_in_the_order_of_the_prompts_with_at_most_batch_in_flight() -> None:
    llm = babbles("half")
    prompts = ["x" * (1 + 5 * i % 7) for i in range(9)]
    answers = llm.generate_many(prompts, Sampling(max_tokens=6, ignore_eos=True), batch=3)
    assert [answer.num_prompt for answer in answers] == [len(prompt) for prompt in prompts]
    assert max(len(batch) for batch in scripted(llm).feeds) == 3
    assert llm.generate_many([]) == []


def test_ids_of_a_prompt_may_be_an_array_and_are_never_truths() -> None:
    llm = babbles()
    sampling = Sampling(max_tokens=5)
    (expected,) = llm.generate_encoded([[1, 2, 3]], sampling)
    (answer,) = llm.generate_encoded([np.array([1, 2, 3])], sampling)  # type: ignore[list-item]
    assert answer.tokens == expected.tokens
    with pytest.raises(RequestError, match="the prompt holds True; tokens are whole numbers"):
        llm.generate_encoded([[1, True]], sampling)
    with pytest.raises(RequestError, match="the prompt is empty"):
        llm.generate_encoded([np.array([], dtype=np.int64)], sampling)  # type: ignore[list-item]


def test_max_tokens_of_zero_does_no_model_work() -> None:
    llm = babbles("oracle")
    answer = llm.generate("hi", max_tokens=0, n=2)
    assert [(c.text, c.tokens, c.finish_reason) for c in answer.choices] == [("", (), "length")] * 2
    assert [(step.text, step.finish_reason) for step in llm.stream("hi", max_tokens=0)] == [("", "length")]
    assert scripted(llm).num_forwards == 0


def test_a_prompt_that_is_too_long_is_refused_before_the_others_are_computed() -> None:
    llm = babbles(context_limit=10)
    with pytest.raises(RequestError, match="11 tokens"):
        llm.generate_many(["ok", "x" * 11], max_tokens=3)
    with pytest.raises(RequestError, match="10 tokens"):
        llm.stream("x" * 10)
    assert scripted(llm).num_forwards == 0
    assert len(llm.generate("x" * 9, ignore_eos=True).tokens) == 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"temprature": 1}, "unknown option temprature; did you mean temperature?"),
        ({"xyz": 1}, "unknown option xyz; known are temperature"),
        ({"top_p": 2}, "top_p is 2"),
        ({"logit_bias": {9999: 1.0}}, "logit_bias is 9999"),
    ],
)
def test_a_wrong_option_is_refused_by_name_before_any_work(fields: dict[str, Any], message: str) -> None:
    llm = babbles()
    for call in (llm.generate, llm.stream):
        with pytest.raises(RequestError, match=message.replace("?", "[?]")):
            call("hi", **fields)
    assert scripted(llm).num_forwards == 0


@pytest.mark.parametrize("option", ["heads", "draft", "draft_dtype"])
def test_an_empty_name_is_refused(option: str) -> None:
    llm = babbles()
    empty: dict[str, Any] = {option: ""}
    for call in (partial(choose_proposer, "combined"), choose_members):
        with pytest.raises(RequestError, match=f"option {option} is empty"):
            call(llm.target, llm.tokenizer, **empty)


def test_fields_by_name_change_a_given_sampling() -> None:
    base = Sampling(temperature=1.0, seed=3, max_tokens=9)
    llm = babbles()
    assert seen(llm.generate("hi", base, max_tokens=4)) == seen(llm.generate("hi", temperature=1.0, seed=3, max_tokens=4))
    assert base.max_tokens == 9


def test_wrong_batch_nodes_and_templates_are_refused() -> None:
    llm = babbles()
    with pytest.raises(RequestError, match="batch is 0"):
        llm.generate_many(["hi"], batch=0)
    with pytest.raises(RequestError, match="num_nodes is -1"):
        LLM(llm.target, llm.tokenizer, guesser(scripted(llm), "oracle", 3), num_nodes=-1)
    with pytest.raises(RequestError, match="chat template"):
        llm.generate([{"role": "user", "content": "hi"}])
    with pytest.raises(RequestError, match="chat template"):
        llm.generate([{"role": "user", "content": "hi"}], chat=False)
    with pytest.raises(RequestError, match="empty"):
        llm.generate("")
    wrong: Any
    for wrong in (b"hi", bytearray(b"hi"), 5, None, {"role": "user", "content": "hi"}, Path("hi")):
        for call in (llm.generate, llm.stream, llm.encode):
            with pytest.raises(RequestError, match=r"^prompt is .*; it must be text, or a list of messages with role"):
                call(wrong)


# -- cancelling and faults ------------------------------------------------------------------------------------------------


def test_closing_a_stream_computes_nothing_further_and_frees_its_slots() -> None:
    llm = babbles("oracle", 4)
    stream = llm.stream("hi", max_tokens=50, ignore_eos=True, n=2)
    next(stream)
    forwards = scripted(llm).num_forwards
    stream.close()  # type: ignore[attr-defined]
    assert (scripted(llm).num_forwards, scripted(llm).num_open) == (forwards, 0)
    assert forwards == 1, "the first event costs the prompt's pass alone"


@settings(max_examples=30)
@given(
    key=st.integers(0, 20),
    draft=st.sampled_from(DRAFTS),
    stop=st.sampled_from([(), ("a b",), ("gam", "beta ")]),
    temperature=st.sampled_from([0.0, 1.0]),
)
def test_a_stream_of_one_token_an_event_says_the_same(key: int, draft: str, stop: tuple[str, ...], temperature: float) -> None:
    llm = babbles(draft, key=key)
    sampling = Sampling(temperature=temperature, stop=stop, max_tokens=14, n=2, seed=key, logprobs=1)
    expected = llm.generate("hi", sampling)
    events = list(llm.stream("hi", sampling, one_token_per_event=True))
    for index, answer in enumerate(expected.choices):
        own = [event for event in events if event.index == index]
        assert [event.tokens for event in own] == [(token,) for token in answer.tokens]
        assert "".join(event.text for event in own) == answer.text
        assert tuple(entry for event in own for entry in event.logprobs) == answer.logprobs
        assert all(len(event.logprobs) == 1 for event in own)
        assert [event.finish_reason for event in own] == [None] * (len(own) - 1) + [answer.finish_reason]
        assert sum(event.num_drafted for event in own) == answer.stats.num_drafted
        assert sum(event.num_accepted for event in own) == answer.stats.num_accepted


def test_each_event_of_one_token_carries_its_own_text() -> None:
    pieces = ["one ", "two ", "th", "ree ", "four"]
    events = list(says(pieces, "oracle", 8).stream("?", one_token_per_event=True))
    assert [event.text for event in events] == [*pieces, ""]
    assert [event.num_drafted > 0 for event in events] == [False, True, False, False, False, False]


def test_an_answer_of_no_tokens_is_one_event() -> None:
    (event,) = babbles("oracle").stream("hi", max_tokens=0, one_token_per_event=True)
    assert (event.tokens, event.finish_reason) == ((), "length")


api: Any = hs


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda llm: llm.generate("hi", 5), "sampling is 5; it must be a Sampling"),
        (lambda llm: llm.generate("hi", {"temperature": 1}), "it must be a Sampling"),
        (lambda llm: llm.generate("hi", chat="yes"), "chat is 'yes'"),
        (lambda llm: llm.generate(None), "it must be text, or a list of messages"),
        (lambda llm: llm.generate_many("hi"), "prompts is 'hi'; it must be a list of prompts"),
        (lambda llm: llm.generate_many(5), "prompts is 5"),
        (lambda llm: llm.generate_many([5]), "it must be text, or a list of messages"),
        (lambda llm: llm.generate_many(["hi"], batch="4"), "batch is '4'; it must be a whole number"),
        (lambda llm: llm.generate_many(["hi"], batch=0), "batch is 0"),
        (lambda llm: llm.generate_many(["hi"], batch=True), "batch is True"),
        (lambda llm: llm.stream(5), "it must be text, or a list of messages"),
        (lambda llm: llm.stream("hi", 5), "sampling is 5"),
        (lambda llm: llm.stream("hi", one_token_per_event="yes"), "one_token_per_event is 'yes'"),
        (lambda llm: llm.with_proposer(5), "name is 5; it must be text"),
        (lambda llm: llm.with_proposer("ngram", num_nodes="4"), "num_nodes is '4'"),
        (lambda _: api.load(5), "name is 5; it must be text"),
        (lambda _: api.load("smollm2", proposer=None), "proposer is None; it must be text"),
        (lambda _: api.measure("smollm2", ["hi"]), "llm is 'smollm2'; it must be a loaded model"),
        (lambda llm: api.measure(llm, 5), "the prompts are of type int"),
        (lambda llm: api.measure(llm, ["hi"], 5), "settings is 5; it must be a MeasureSettings"),
        (lambda llm: api.measure(llm, ["hi"], limit="3"), "limit is '3'; it must be a whole number"),
        (lambda llm: api.measure(llm, ["hi"], proposers="ngram"), "proposers is 'ngram'; it must be a list"),
        (lambda llm: api.measure(llm, ["hi"], proposers=5), "proposers is 5; it must be a list"),
        (lambda llm: api.measure(llm, ["hi"], options=["heads"]), "options is"),
        (lambda llm: api.measure(llm, ["hi"], num_nodes="3"), "num_nodes is '3'"),
        (lambda _: api.check("smollm2"), "llm is 'smollm2'"),
        (lambda llm: api.check(llm, 5), "the prompts are of type int"),
    ],
)
def test_an_argument_of_the_wrong_type_is_one_clear_line(call: Any, reason: str) -> None:
    with pytest.raises(hs.HeadstartError, match=reason) as caught:
        call(babbles())
    assert "\n" not in str(caught.value)


def test_a_stream_that_is_never_read_opens_no_slot() -> None:
    llm = babbles("oracle")
    stream = llm.stream("hi", max_tokens=5)
    assert (scripted(llm).num_open, scripted(llm).num_forwards) == (0, 0)
    del stream
    assert scripted(llm).num_open == 0


def test_streams_of_one_model_run_side_by_side() -> None:
    llm = babbles("half")
    sampling = Sampling(max_tokens=12, ignore_eos=True, seed=1)
    expected = [llm.generate(prompt, sampling).text for prompt in ("one", "two")]
    one, two = llm.stream("one", sampling), llm.stream("two", sampling)
    texts = ["", ""]
    for _ in range(40):
        for i, stream in enumerate((one, two)):
            texts[i] += getattr(next(stream, None), "text", "")
    assert texts == expected


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError()])
def test_an_interrupt_in_a_step_leaves_the_model_usable(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = babbles("oracle", 3)
    sampling = Sampling(max_tokens=12, ignore_eos=True, seed=1)
    expected = seen(llm.generate("hi", sampling))
    forward, left = scripted(llm).forward, [2]

    def interrupted(batch: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            raise error
        return forward(batch)

    for call in (lambda: llm.generate("hi", sampling), lambda: list(llm.stream("hi", sampling))):
        left[0] = 2
        monkeypatch.setattr(llm.target, "forward", interrupted)
        with pytest.raises(type(error)):
            call()
        monkeypatch.undo()
        assert scripted(llm).num_open == 0
        assert seen(llm.generate("hi", sampling)) == expected


@pytest.mark.parametrize("method", ["propose", "observe", "forget"])
def test_a_fault_in_a_proposer_reaches_the_caller_and_leaves_no_slot_open(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = babbles("oracle", 3)

    def broken(*_: object) -> None:
        raise ValueError("broken")

    monkeypatch.setattr(llm.proposer, method, broken)
    with pytest.raises(ValueError, match="broken"):
        llm.generate_many(["a", "bb", "ccc"], max_tokens=5, batch=3, n=2)
    assert scripted(llm).num_open == 0


# -- choosing what guesses ------------------------------------------------------------------------------------------------


def test_another_proposer_on_the_same_target_says_the_same() -> None:
    llm = babbles()
    sampling = Sampling(max_tokens=20, seed=1, ignore_eos=True)
    looking = llm.with_proposer("ngram", num_nodes=4)
    assert (looking.proposer_name, looking.num_nodes, looking.target) == ("ngram", 4, llm.target)
    assert seen(looking.generate("hi hi", sampling)) == seen(llm.with_proposer("plain").generate("hi hi", sampling))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("ngramm", {}, "unknown proposer 'ngramm'; did you mean ngram"),
        ("zzz", {}, "unknown proposer 'zzz'; known: auto, none, ngram"),
        ("ngram", {"heads": "folder"}, "option heads has no effect with proposer ngram; it belongs to medusa"),
        ("none", {"growth": "static"}, "option growth has no effect with proposer none"),
        ("medusa", {"draft": "model"}, "option draft has no effect with proposer medusa"),
        ("medusa", {"growth": "wild"}, "growth is 'wild'"),
        ("suffix", {"heads": "folder"}, "option heads has no effect with proposer suffix; it belongs to medusa and hydra"),
        (
            "ngram",
            {"past_outputs": 9},
            "option past_outputs has no effect with proposer ngram; it belongs to suffix",
        ),
        ("suffix", {"past_outputs": 0}, "past outputs hold 0 tokens"),
        ("combined", {"draft_dtype": "float32"}, "proposer draft_model needs a model"),
        ("draft_model", {}, "proposer draft_model needs a model"),
        ("draft_model", {"draft": "layers:1", "draft_dtype": "float32"}, "draft_dtype has no effect"),
        ("auto", {"growth": "wild"}, "growth is 'wild'"),
        ("auto", {"draft_dtype": "float32"}, "proposer draft_model needs a model"),
    ],
)
def test_a_proposer_or_option_that_cannot_work_is_refused_by_name(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError) as caught:
        babbles().with_proposer(name, **options)
    assert message in str(caught.value)


def test_past_outputs_are_copied_from_and_can_be_forgotten() -> None:
    llm = babbles().with_proposer("suffix", past_outputs=1000)
    assert llm.past_outputs is not None
    first, second = (llm.generate("hi", max_tokens=30, seed=1, temperature=1.0, ignore_eos=True) for _ in range(2))
    assert first.tokens == second.tokens
    assert second.stats.num_steps < first.stats.num_steps
    llm.past_outputs.clear()
    assert llm.generate("hi", max_tokens=30, seed=1, temperature=1.0, ignore_eos=True).stats == first.stats
    assert llm.with_proposer("suffix").past_outputs is None
    with pytest.raises(RequestError, match="depend on earlier requests"):
        llm.with_accept("rejection")


def test_everything_that_fits_is_combined() -> None:
    alone = babbles().with_proposer("combined")
    assert isinstance(alone.proposer, CombinedProposer)
    assert list(alone.proposer.members) == ["suffix"]
    assert (alone.proposer_name, alone.num_nodes) == ("combined", 15)
    with pytest.raises(HeadsError, match="no heads fit"):
        babbles().with_proposer("combined", growth="static")


def test_the_rule_of_acceptance_is_the_models_and_the_answer_says_it() -> None:
    llm = babbles("mix")
    sampling = Sampling(max_tokens=12, temperature=0.9, seed=3)
    exact, lossy = llm.generate("hi", sampling), llm.with_accept("typical", epsilon=0.2).generate("hi", sampling)
    assert (exact.accept, exact.is_lossless) == ("exact", True)
    assert (lossy.accept, lossy.is_lossless) == ("typical", False)
    assert llm.with_accept("block").with_proposer("ngram").rule.name == "block"
    assert llm.with_accept("block").with_proposer("none").rule.name == "exact"
    assert llm.notes == ()
    assert "lossy" in llm.with_accept("typical").notes[-1]


def test_a_rule_that_cannot_take_effect_is_refused() -> None:
    with pytest.raises(RequestError, match="accept rejection has no effect in plain decoding"):
        babbles().with_accept("rejection")
    with pytest.raises(RequestError, match="option delta has no effect with accept exact"):
        babbles("mix").with_accept("exact", delta=0.5)
