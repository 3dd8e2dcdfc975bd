"""Text in, text out: a target, its tokenizer and a proposer behind three verbs, ``generate``, ``generate_many`` and ``stream``.

What lives here is text: the chat template, incremental detokenising, stop strings. A stop string ends a sequence at the token
that completes it, wherever that token stands in an accepted block; the text ends before the stop string, and streamed text is
held back while it may still become one. Only generated text is searched, never the prompt, and not before ``min_tokens``.
"""

from __future__ import annotations

import difflib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from headstart.accept import EXACT, Rule, choose_rule
from headstart.decode import Decoder, FinishReason, Generation, StepResult
from headstart.errors import RequestError, require
from headstart.first_use import check_first_use
from headstart.guessers import check_guesser, check_use, choose_guesser
from headstart.proposers.base import Planner, Proposer
from headstart.proposers.choose import Guesser, choose_proposer
from headstart.sampling import Sampling, sampling_names
from headstart.stats import Stats
from headstart.target.base import ChosenLogprob, Target
from headstart.timings import Timings
from headstart.tokenizer import Detokenizer, Tokenizer

if TYPE_CHECKING:
    from headstart.heads.base import Heads
    from headstart.proposers.past import PastOutputs
    from headstart.target.loading import Loaded

Prompt = str | Sequence[Mapping[str, Any]]
"""A user's turn (plain text where the model has no chat template), or a conversation of role and content.

Content is text, or OpenAI's list of text parts, which are joined line by line.
"""


@dataclass(frozen=True, slots=True)
class Step:
    """What one step, or the prompt's pass, added to one answer. ``text`` may be empty while characters or stops are open.

    Where a stream gives one token an event, a step's counts stand in its first event.
    """

    text: str
    tokens: tuple[int, ...]
    num_drafted: int
    num_accepted: int
    index: int = 0  # which of the n answers
    logprobs: tuple[ChosenLogprob, ...] = ()
    finish_reason: FinishReason | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """A finished answer. ``tokens`` include the stop token that ended it, ``text`` does not."""

    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    stop_reason: str | int | None  # the stop string or stop token
    seed: int
    num_prompt: int
    logprobs: tuple[ChosenLogprob, ...]
    stats: Stats
    seconds: float  # from joining to leaving
    seconds_to_first: float  # from joining to its first token
    drafted: tuple[bool, ...]  # of each token: whether it was drafted and accepted
    timings: Timings  # of the whole loop that it ran in
    accept: str = EXACT.name  # the rule of acceptance
    is_lossless: bool = True  # whether that rule follows the model's own distribution
    others: tuple[Answer, ...] = ()  # the second to n-th answer

    @property
    def choices(self) -> tuple[Answer, ...]:
        """All n answers, this one first."""
        return (self, *self.others)


class TextWatcher:
    """Text of one sequence as it grows; finds the stop string that is completed first."""

    def __init__(self, detokenizer: Detokenizer, sampling: Sampling, silent: frozenset[int]) -> None:
        """``silent`` tokens end the sequence and add no text."""
        self._detokenizer, self._silent = detokenizer, silent
        self._stops, self._min_tokens = sampling.stop, sampling.min_tokens
        self._num_tokens = self._num_taken = self._num_settled = 0
        self.text = ""

    def feed(self, token: int) -> str | None:
        """Add a token; the stop string that it completed, if any."""
        self._num_tokens += 1
        if token in self._silent:
            return None
        before = len(self.text)
        self.text += self._detokenizer.feed(token)
        if self._num_tokens <= self._min_tokens:
            self._num_settled = len(self.text)
            return None
        return self._cut_at_stop(before)

    def take(self, *, final: bool = False) -> str:
        """Text that is new since the last call and cannot be taken back; all of it at the end."""
        end = len(self.text) if final else len(self.text) - self._num_open()
        new = self.text[self._num_taken : end]
        self._num_taken = max(end, self._num_taken)
        return new

    def finish(self) -> None:
        """No token follows: flush what the detokenizer still holds."""
        self.text += self._detokenizer.finish()

    def _cut_at_stop(self, before: int) -> str | None:
        found: list[tuple[int, int, str]] = []  # (end, start, stop): the one completed first, then the longest
        for stop in self._stops:
            first_end = max(before, self._num_settled) + 1  # the stop's last character is new
            start = self.text.find(stop, max(first_end - len(stop), 0))
            if start >= 0:
                found.append((start + len(stop), start, stop))
        if not found:
            return None
        _, start, stop = min(found)
        self.text = self.text[:start]
        return stop

    def _num_open(self) -> int:
        """Characters at the end that may be the beginning of a stop string."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for size in range(min(longest, len(self.text)), 0, -1):
            tail = self.text[-size:]
            if any(stop.startswith(tail) for stop in self._stops):
                return size
        return 0


class TokenWatcher(TextWatcher):
    """Keeps apart what each token adds."""

    def __init__(self, detokenizer: Detokenizer, sampling: Sampling, silent: frozenset[int]) -> None:
        super().__init__(detokenizer, sampling, silent)
        self._pieces: list[str] = []

    def feed(self, token: int) -> str | None:
        """Add a token; the stop string that it completed, if any."""
        stop = super().feed(token)
        self._pieces.append(self.take())
        return stop

    def take_pieces(self, rest: str) -> list[str]:
        """What each token since the last call added and cannot be taken back; ``rest`` belongs to the last one."""
        pieces, self._pieces = self._pieces, []
        return [*pieces[:-1], pieces[-1] + rest]


@dataclass(slots=True, eq=False)
class _Job:
    """One answer in the making."""

    generation: Generation
    watcher: TextWatcher
    index: int
    started: float
    first: float = field(default=0.0)  # when its first token was there
    ended: float = field(default=0.0)

    def saw(self, now: float) -> None:
        """A step committed tokens of it."""
        self.first = self.first or now
        if self.generation.finished:
            self.ended = now


class LLM:
    """A target, its tokenizer and whatever guesses for it."""

    def __init__(
        self,
        target: Target,
        tokenizer: Tokenizer,
        guesser: Guesser,
        *,
        source: Mapping[str, Any] | None = None,
        num_nodes: int | None = None,
        notes: Sequence[str] = (),
        rule: Rule = EXACT,
        location: str | None = None,
    ) -> None:
        """``num_nodes``: drafted nodes a step; None takes the proposer's own default. ``notes``: of the target's loading.

        ``location``: what :func:`load` was given, so that another engine can be given the same.
        """
        check_use(guesser.proposer is None, guesser.past_outputs is not None, num_nodes, rule)
        self.target, self.tokenizer, self.source = target, tokenizer, dict(source or {})
        self._guesser, self._notes, self.rule, self.location = guesser, tuple(notes), rule, location
        self.num_nodes = guesser.num_nodes if num_nodes is None else num_nodes

    @property
    def proposer(self) -> Proposer | None:
        """Whatever guesses; None in plain decoding."""
        return self._guesser.proposer

    @property
    def proposer_name(self) -> str:
        """Name of the proposer; "none" in plain decoding."""
        return self._guesser.name

    @property
    def heads(self) -> Heads | None:
        """The heads in use, if the proposer has any."""
        return self._guesser.heads

    @property
    def past_outputs(self) -> PastOutputs | None:
        """What earlier answers left to copy from; None unless it was asked for."""
        return self._guesser.past_outputs

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know of how this was loaded: why not natively, and what was rounded on the way."""
        return (*self._notes, *self._guesser.notes, *([self.rule.note] if self.rule.note else []))

    def explain(self) -> dict[str, Any]:
        """Why ``auto`` drafted as it did so far: costs by rows, what each proposer costs and earned, and what was drafted."""
        if not isinstance(self.proposer, Planner):
            raise RequestError(f"proposer {self.proposer_name} has nothing to explain: it drafts as it is told; auto chooses")
        return self.proposer.describe()

    def with_proposer(self, name: str, *, num_nodes: int | None = None, **options: Any) -> LLM:
        """The same target with another guesser; options as in :func:`load`."""
        _check_texts(name=name)
        guesser = choose_guesser(name, self.target, self.tokenizer, **options)
        rule = self.rule if guesser.proposer else EXACT  # plain decoding accepts nothing
        return self._with(guesser, num_nodes, rule)

    def with_accept(self, name: str, *, epsilon: float | None = None, delta: float | None = None) -> LLM:
        """The same target and guesser with another rule of acceptance; names and options as in :func:`load`."""
        return self.with_rule(choose_rule(name, epsilon=epsilon, delta=delta))

    def with_rule(self, rule: Rule) -> LLM:
        """The same target and guesser with this rule of acceptance."""
        return self._with(self._guesser, self.num_nodes if self.proposer else None, rule)

    def _with(self, guesser: Guesser, num_nodes: int | None, rule: Rule) -> LLM:
        return LLM(
            self.target,
            self.tokenizer,
            guesser,
            source=self.source,
            num_nodes=num_nodes,
            notes=self._notes,
            rule=rule,
            location=self.location,
        )

    def encode(self, prompt: Prompt, *, chat: bool | None = None) -> list[int]:
        """Token ids of a prompt. ``chat``: through the chat template; None: if the model has one."""
        require(chat is None or isinstance(chat, bool), "chat", chat, "True, False or None")
        if not isinstance(prompt, str):
            is_conversation = isinstance(prompt, Sequence) and not isinstance(prompt, bytes | bytearray)
            require(is_conversation, "prompt", prompt, "text, or a list of messages with role and content")
            if chat is False:
                raise RequestError("a conversation needs the chat template; give plain text, or leave chat on")
            return self.tokenizer.encode_chat(prompt)
        if self.tokenizer.has_chat_template if chat is None else chat:
            return self.tokenizer.encode_chat([{"role": "user", "content": prompt}])
        return self.tokenizer.encode(prompt)

    def generate(self, prompt: Prompt, sampling: Sampling | None = None, *, chat: bool | None = None, **fields: Any) -> Answer:
        """One answer (n of them behind ``Answer.choices``); sampling fields may be given by name."""
        return self.generate_many([prompt], sampling, chat=chat, **fields)[0]

    def generate_many(
        self,
        prompts: Sequence[Prompt],
        sampling: Sampling | None = None,
        *,
        batch: int = 1,
        chat: bool | None = None,
        **fields: Any,
    ) -> list[Answer]:
        """Answers in the order of the prompts, with at most ``batch`` prompts in flight."""
        is_list = isinstance(prompts, Sequence) and not isinstance(prompts, str | bytes)
        require(is_list, "prompts", prompts, "a list of prompts; generate takes a single one")
        require(type(batch) is int and batch >= 1, "batch", batch, "a whole number, 1 or more")
        settings = sampling_from(sampling, fields)
        encoded = [self.encode(prompt, chat=chat) for prompt in prompts]
        return self.generate_encoded(encoded, settings, batch=batch)

    def generate_encoded(self, prompts: Sequence[Sequence[int]], sampling: Sampling, *, batch: int = 1) -> list[Answer]:
        """As :meth:`generate_many`, from token ids."""
        decoder = self._decoder()
        for prompt in prompts:  # before any work is done for the others
            decoder.check_prompt(prompt)
        waiting = list(enumerate(prompts))[::-1]
        jobs: dict[int, list[_Job]] = {}
        try:
            while waiting or decoder.num_running:
                while waiting and sum(any(not j.generation.finished for j in js) for js in jobs.values()) < batch:
                    number, prompt = waiting.pop()
                    jobs[number] = self._join(decoder, prompt, sampling)
                by_key = {job.generation.key: job for js in jobs.values() for job in js}
                for result in decoder.step():
                    by_key[result.generation.key].saw(time.perf_counter())
        finally:
            decoder.close()
        return [_answer(jobs[number], decoder) for number in range(len(prompts))]

    def stream(
        self,
        prompt: Prompt,
        sampling: Sampling | None = None,
        *,
        chat: bool | None = None,
        one_token_per_event: bool = False,
        **fields: Any,
    ) -> Iterator[Step]:
        """Steps as they are committed; closing the iterator cancels. The steps' texts join to the answer's text.

        ``one_token_per_event`` cuts each step into events of one token, for readers who do not expect several at once.
        """
        settings = sampling_from(sampling, fields)
        require(isinstance(one_token_per_event, bool), "one_token_per_event", one_token_per_event, "True or False")
        encoded = self.encode(prompt, chat=chat)
        decoder = self._decoder()
        watcher = TokenWatcher if one_token_per_event else TextWatcher
        joined = self._join(decoder, encoded, settings, watcher)  # errors come before iteration
        jobs = {job.generation.key: job for job in joined}

        def steps() -> Iterator[Step]:
            try:
                for job in jobs.values():
                    if job.generation.finished:  # max_tokens is 0
                        yield Step("", (), 0, 0, job.index, (), job.generation.finish_reason)
                while decoder.num_running:
                    for result in decoder.step():
                        yield from _events(jobs[result.generation.key], result)
            finally:
                decoder.close()

        return steps()

    def _decoder(self) -> Decoder:
        return Decoder(self.target, self.proposer, num_nodes=self.num_nodes, rule=self.rule)

    def _join(
        self, decoder: Decoder, prompt: Sequence[int], sampling: Sampling, watcher: type[TextWatcher] = TextWatcher
    ) -> list[_Job]:
        silent = frozenset(sampling.stop_token_ids) | self.target.end_tokens
        if sampling.ignore_eos:
            silent = frozenset(sampling.stop_token_ids)
        watchers = [watcher(Detokenizer(self.tokenizer), sampling, silent) for _ in range(sampling.n)]
        now = time.perf_counter()
        generations = decoder.add(prompt, sampling, watchers=watchers)
        return [_Job(g, w, i, now, ended=now) for i, (g, w) in enumerate(zip(generations, watchers, strict=True))]


def load(
    name: str | os.PathLike[str],
    *,
    proposer: str = "auto",
    heads: str | os.PathLike[str] | None = None,
    draft: str | os.PathLike[str] | None = None,
    draft_dtype: str | None = None,
    dtype: str = "auto",
    kv_dtype: str = "auto",
    device: str = "cpu",
    target: str = "auto",
    accept: str = "exact",
    epsilon: float | None = None,
    delta: float | None = None,
    num_nodes: int | None = None,
    growth: str | None = None,
    allow_other_base: bool = False,
    past_outputs: int | None = None,
) -> LLM:
    """A model ready to decode: a Hugging Face folder, a GGUF file, a hub id or a bundled name (``smollm2``).

    ``proposer``: "none", "ngram", "suffix", "draft_model" (with ``draft``), "medusa", "hydra" or "mtp" (with ``heads``, or
    heads found by the model's fingerprint), "combined" (suffix with the heads that are found or named, and with ``draft`` if
    given), or "auto": the same members, each asked as far as it pays by what is measured here and now. ``past_outputs``: tokens
    of earlier answers that suffix may copy from as well (none if left out; ``LLM.past_outputs`` is the store).

    ``accept``: "exact" (the tokens of plain decoding), "rejection" or "block" (other tokens of the same distribution), or
    "typical" (lossy, with ``epsilon`` and ``delta``).

    Heads that are used with this model for the first time are checked on a few answers, which takes a second or two;
    HeadsError if they change the text.

    ``target`` names the engine: "native" (C++, on a CPU), "hf" (PyTorch), or "auto": native where that is possible;
    ``LLM.notes`` says why it was not. ``dtype``: "auto" (what the file stores), "float32", "bfloat16", or natively "int8";
    ``kv_dtype`` is that of the native engine's cache: "bfloat16", "float32", or "auto" (float32 beside float32 weights).
    """
    from headstart.target.loading import load_model

    name, heads, draft = map(_as_text, (name, heads, draft))
    _check_texts(name=name, proposer=proposer, dtype=dtype, kv_dtype=kv_dtype, device=device, target=target)
    rule = choose_rule(accept, epsilon=epsilon, delta=delta)
    options: dict[str, Any] = {
        "heads": heads,
        "draft": draft,
        "draft_dtype": draft_dtype,
        "growth": growth,
        "allow_other_base": allow_other_base,
        "past_outputs": past_outputs,
    }
    check_guesser(proposer, num_nodes=num_nodes, rule=rule, **options)
    loaded = load_model(str(name), dtype=dtype, device=device, engine=target, kv_dtype=kv_dtype)
    guesser = choose_guesser(proposer, loaded.target, loaded.tokenizer, **options)
    source = asdict(loaded.source)
    llm = LLM(
        loaded.target,
        loaded.tokenizer,
        guesser,
        source=source,
        num_nodes=num_nodes,
        notes=loaded.notes,
        rule=rule,
        location=str(name),
    )
    if guesser.heads is not None:
        own = {"heads": heads, "allow_other_base": allow_other_base}
        check_first_use(loaded.target, guesser.heads, loaded.tokenizer.encode, lambda: _of_heads(loaded, guesser, own))
    return llm


def _of_heads(loaded: Loaded, guesser: Guesser, options: Mapping[str, Any]) -> Guesser:
    """The proposer that drafts with a guesser's heads alone."""
    assert guesser.heads is not None
    kind = guesser.heads.config.kind
    return guesser if guesser.name == kind else choose_proposer(kind, loaded.target, loaded.tokenizer, **options)


def _as_text(name: Any) -> Any:
    """A path object as text; anything else as it is."""
    return os.fspath(name) if isinstance(name, os.PathLike) else name


def _check_texts(**options: object) -> None:
    for name, value in options.items():
        require(isinstance(value, str), name, value, "text")


def sampling_from(sampling: Sampling | None, fields: Mapping[str, Any]) -> Sampling:
    """The sampling of a request: one object, or fields by name; an unknown field is refused with the nearest known one."""
    require(sampling is None or isinstance(sampling, Sampling), "sampling", sampling, "a Sampling, or its fields by name")
    for name in fields:
        if name not in sampling_names():
            near = difflib.get_close_matches(name, sampling_names(), n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; known are {', '.join(sampling_names())}"
            raise RequestError(f"unknown option {name}{hint}")
    return replace(sampling, **fields) if sampling else Sampling(**fields)


def _step(job: _Job, result: StepResult) -> Step:
    finished = job.generation.finished
    if finished and not isinstance(job.generation.stop_reason, str):
        job.watcher.finish()
    text = job.watcher.take(final=finished)
    return Step(
        text, result.tokens, result.num_drafted, result.num_accepted, job.index, result.logprobs, job.generation.finish_reason
    )


def _events(job: _Job, result: StepResult) -> list[Step]:
    """A step, or one event for each of its tokens."""
    step = _step(job, result)
    if not isinstance(job.watcher, TokenWatcher) or not step.tokens:
        return [step]
    texts = job.watcher.take_pieces(step.text)
    last = len(texts) - 1
    return [
        replace(
            step,
            text=text,
            tokens=step.tokens[i : i + 1],
            num_drafted=0 if i else step.num_drafted,
            num_accepted=0 if i else step.num_accepted,
            logprobs=step.logprobs[i : i + 1],
            finish_reason=step.finish_reason if i == last else None,
        )
        for i, text in enumerate(texts)
    ]


def _answer(jobs: Sequence[_Job], decoder: Decoder) -> Answer:
    answers = []
    for job in jobs:
        generation = job.generation
        if not isinstance(generation.stop_reason, str):
            job.watcher.finish()
        answers.append(
            Answer(
                job.watcher.text,
                tuple(generation.tokens),
                generation.finish_reason or "cancelled",
                generation.stop_reason,
                generation.seed,
                len(generation.prompt),
                tuple(generation.logprobs),
                generation.stats,
                job.ended - job.started,
                (job.first or job.started) - job.started,
                tuple(generation.drafted),
                decoder.timings,
                decoder.rule.name,
                decoder.rule.is_lossless,
            )
        )
    return replace(answers[0], others=tuple(answers[1:]))
