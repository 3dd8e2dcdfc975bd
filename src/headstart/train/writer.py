"""The model writes its own training data.

A chat model samples the user's turn from its template and then answers it (Magpie, Xu et al. 2024); a model without a template
continues from nothing. A round writes, in batches: fresh conversations of many kinds (``kinds.py``), second turns for a third
of the short ones, and summaries of and questions over passages that the model wrote in earlier rounds. Answers are written at
temperature 0, 0.5 and 0.8: each question is answered greedily, as that is how heads are used most, and once more warmly.

Only the answers are supervised. What is written depends on the seed and on how many documents stood before, so a writer that
was stopped goes on with new text.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from headstart.errors import DataError
from headstart.train.base import FrozenModel
from headstart.train.capture import StateFiles
from headstart.train.corpus import Corpus, Document, Span
from headstart.train.generation import Text, write
from headstart.train.kinds import ARTICLE, FOLLOW_UPS, READINGS, SUMMARIES, draw_kind, excerpt
from headstart.train.template import Codec, Turns

_WARM = (0.5, 0.8)
_MIXED = -1.0
_ABANDON = 0.04
_SECOND_TURNS = 0.35
_SHORT = 330  # tokens up to which a conversation may get a second turn
_PASSAGES_KEPT = 400
_PASSAGE_KINDS = 0.13  # of a round, for summaries and for questions each
_LONG_PROMPT = 300  # tokens; answers over longer ones are shorter
_LONG_ANSWER = 160
_EMPTY_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class _Chat:
    """A conversation whose last user's turn is written and closed; the answer comes next."""

    kind: str
    tokens: tuple[int, ...]
    spans: tuple[Span, ...] = ()
    temperature: float | None = None  # of earlier answers
    states: tuple[Text, ...] = ()  # the answers, with the states that they were drawn from


@dataclass(frozen=True, slots=True)
class Written:
    """A finished document, with the hidden states and the argmax of its rows (see ``capture.py``)."""

    document: Document
    hidden: Tensor  # [n, D]
    greedy: Tensor  # [n]


class Writer:
    """Writes documents of one model, a round at a time."""

    def __init__(
        self,
        model: FrozenModel,
        codec: Codec,
        end_tokens: frozenset[int],
        *,
        batch: int,
        answer_tokens: int,
        question_tokens: int,
        seed: int,
    ) -> None:
        """``batch``: conversations written at once; the longest answer and the longest user's turn in tokens."""
        self._model, self._codec, self._end, self._batch = model, codec, end_tokens, batch
        self._answer, self._question = answer_tokens, question_tokens
        self._seed = seed
        self._turns = Turns.of(codec) if codec.has_template else None
        self._passages: list[str] = []
        self._rng = random.Random(seed)
        self._generator = torch.Generator(device=model.device)

    def start(self, written: Sequence[Document]) -> None:
        """Go on behind documents that were written before."""
        self._rng = random.Random(self._seed * 1_000_003 + len(written))
        self._generator.manual_seed(self._rng.getrandbits(62))
        for document in written:
            self._remember(document)

    def parts(self) -> Iterator[list[Written]]:
        """Finished documents, batch by batch and without end; DataError after some rounds without a usable one."""
        num_empty = 0
        while num_empty < _EMPTY_ROUNDS:
            num_empty += 1
            for part in self._chats() if self._turns else self._texts():
                for written in part:
                    self._remember(written.document)
                num_empty = 0 if part else num_empty
                yield part
        raise DataError("the model writes no usable text; give training data of your own")

    def _texts(self) -> Iterator[list[Written]]:
        """Without a template: continuations of what the model puts first and, in most texts, of a random token."""
        first, size = self._codec.encode_whole(""), self._model.vocab_size
        starts = [first if first and i % 4 == 0 else [*first, self._rng.randrange(size)] for i in range(self._batch)]
        temperatures = [self._rng.choice((0.0, *_WARM)) for _ in starts]
        texts = self._write(starts, temperatures, self._answer, keep_states=True)
        chats = [_Chat("text", tuple(start)) for start in starts]
        yield [
            _written(_answered(chat, text, temperature))
            for chat, text, temperature in zip(chats, texts, temperatures, strict=True)
            if len(text.tokens) > 1
        ]

    def _chats(self) -> Iterator[list[Written]]:
        waiting = [self._open(*draw_kind(self._rng)) for _ in range(2 * self._batch)]
        finished: list[_Chat] = []
        for done in self._answers(self._questions(waiting, self._question)):
            follow = [chat for chat in done if len(chat.tokens) < _SHORT and self._rng.random() < _SECOND_TURNS]
            finished += follow
            chosen = set(map(id, follow))
            yield [_written(chat) for chat in done if id(chat) not in chosen]
        for done in self._answers(self._questions(list(map(self._follow_up, finished)), self._question // 2)):
            yield list(map(_written, done))
        for done in self._answers(self._about_passages()):
            yield list(map(_written, done))

    def _open(self, kind: str, opening: str) -> _Chat:
        assert self._turns is not None
        return _Chat(kind, (*self._turns.opening, *self._codec.encode(opening)))

    def _follow_up(self, chat: _Chat) -> _Chat:
        assert self._turns is not None
        closing = self._turns.assistant_to_user
        tokens = chat.tokens
        if closing and tokens[-1] in self._end and closing[0] in self._end:
            closing = closing[1:]  # the answer brought its own end token
        opening = self._codec.encode(self._rng.choice(FOLLOW_UPS))
        kind = chat.kind if chat.kind.endswith("-second") else f"{chat.kind}-second"
        return replace(chat, kind=kind, tokens=(*tokens, *closing, *opening))

    def _questions(self, chats: list[_Chat], longest: int) -> list[_Chat]:
        """Let the model write the users' turns to their end and close them; unfinished ones are dropped."""
        assert self._turns is not None
        closing = self._turns.user_to_assistant
        stops = self._end | frozenset(closing[:1])
        asked = []
        for part in self._parts(chats):
            texts = self._write([chat.tokens for chat in part], [1.0] * len(part), longest, stops)
            for chat, text in zip(part, texts, strict=True):
                if text.tokens[-1] in stops:
                    asked.append(replace(chat, tokens=(*chat.tokens, *text.tokens[:-1], *closing)))
        return asked

    def _answers(self, chats: list[_Chat]) -> Iterator[list[_Chat]]:
        """Conversations with an answer appended, each twice, batch by batch; batches hold prompts of like length."""
        drawn = [(chat, t) for chat in chats for t in (0.0, self._rng.choice(_WARM))]
        drawn.sort(key=lambda pair: len(pair[0].tokens))
        for start in range(0, len(drawn), self._batch):
            part, temperatures = zip(*drawn[start : start + self._batch], strict=True)
            long = len(part[-1].tokens) > _LONG_PROMPT
            longest = min(self._answer, _LONG_ANSWER) if long else self._answer
            texts = self._write([chat.tokens for chat in part], temperatures, longest, keep_states=True)
            yield [
                _answered(chat, text, temperature)
                for chat, text, temperature in zip(part, texts, temperatures, strict=True)
                if len(text.tokens) > 1
            ]

    def _about_passages(self) -> list[_Chat]:
        if not self._passages:
            return []
        assert self._turns is not None
        rng, number = self._rng, max(1, round(2 * self._batch * _PASSAGE_KINDS))
        summaries = []
        for _ in range(number):
            text = rng.choice(SUMMARIES).format(passage=excerpt(rng.choice(self._passages), rng, 260))
            chat = self._open("summary", text)
            summaries.append(_Chat("summary", (*chat.tokens, *self._turns.user_to_assistant)))
        readings = []
        for _ in range(number):
            passage, other = excerpt(rng.choice(self._passages), rng, 220), excerpt(rng.choice(self._passages), rng, 120)
            readings.append(self._open("reading", rng.choice(READINGS).format(passage=passage, other=other)))
        return summaries + self._questions(readings, self._question // 2)

    def _parts(self, chats: list[_Chat]) -> list[list[_Chat]]:
        return [chats[i : i + self._batch] for i in range(0, len(chats), self._batch)]

    def _write(
        self,
        prompts: Sequence[Sequence[int]],
        temperatures: Sequence[float],
        longest: int,
        stops: frozenset[int] | None = None,
        *,
        keep_states: bool = False,
    ) -> list[Text]:
        return write(
            self._model,
            prompts,
            temperatures,
            max_new=longest,
            stop_tokens=stops or self._end,
            generator=self._generator,
            abandon=_ABANDON,
            keep_states=keep_states,
        )

    def _remember(self, document: Document) -> None:
        if document.kind == ARTICLE and document.supervised:
            start, stop = document.supervised[-1]
            words = [token for token in document.tokens[start:stop] if token not in self._end]
            self._passages = [*self._passages, self._codec.decode(words)][-_PASSAGES_KEPT:]


def _answered(chat: _Chat, text: Text, temperature: float) -> _Chat:
    tokens = (*chat.tokens, *text.tokens)
    mixed = chat.temperature is not None and chat.temperature != temperature
    spans = (*chat.spans, (len(chat.tokens), len(tokens)))
    return _Chat(chat.kind, tokens, spans, _MIXED if mixed else temperature, (*chat.states, text))


def _written(chat: _Chat) -> Written:
    document = Document(chat.kind, _MIXED if chat.temperature is None else chat.temperature, chat.tokens, chat.spans)
    hidden = torch.cat([text.hidden for text in chat.states if text.hidden is not None])
    return Written(document, hidden, torch.cat([text.greedy for text in chat.states if text.greedy is not None]))


def fill(
    corpus: Corpus,
    writer: Writer,
    *,
    num_tokens: int,
    deadline: float | None,
    report: Callable[[int, float], None],
    states: StateFiles | None = None,
) -> list[Document]:
    """Write until the corpus has ``num_tokens`` supervised tokens or the clock (``time.monotonic``) reaches ``deadline``.

    ``states`` that cover the corpus so far get what is written now for free, as the writer has just computed it. ``report``
    hears the supervised tokens of the corpus and the tokens written per second. Returns all documents of the corpus.
    Batches are appended as they are finished; one that is likely to end behind the deadline is not begun.
    """
    documents = corpus.read()
    have = before = sum(document.num_supervised for document in documents)
    writer.start(documents)
    started = began = time.monotonic()
    parts, longest = writer.parts(), 0.0
    while have < num_tokens and (deadline is None or began + longest / 2 < deadline):
        part = next(parts)
        new = [written.document for written in part]
        corpus.append(new)
        if states is not None and states.num_documents == len(documents):
            states.append(new, [(written.hidden, written.greedy) for written in part])
        documents += new
        have += sum(document.num_supervised for document in new)
        now = time.monotonic()
        longest, began = max(longest, now - began), now
        report(have, (have - before) / (now - started))
    return documents
