"""The model writes its own training data.

A chat model samples the user's turn from its template and then answers it (Magpie, Xu et al. 2024); a model without a template
continues from nothing. Conversations are of many kinds (``kinds.py``), each with its share of the tokens (``shares.py``), and
some have further turns. Each first question is answered twice, greedily, as that is how heads are used most, and at
temperature 0.5 or 0.8; long answers become the passages of later conversations.

All that is in flight goes through one :class:`~headstart.train.generation.Scribe`. A conversation keeps its slot from turn to
turn, and its second answer starts from a fork behind the prompt, so nothing is computed twice. It waits until the first one is
there, as the two often say the same, and what one said is drafted for the other.

Only the answers are supervised. A question that was asked before, or that does not end, is thrown away, and most answers that
go round in circles are cut where they begin to: the model does that in use as well, but such text teaches little. What is
written depends on the seed and on how many documents stood before, so a writer that was stopped goes on with new text.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.errors import DataError
from headstart.proposers.base import Proposer
from headstart.target.base import Feed, Slot, Target
from headstart.train.capture import DocumentStates
from headstart.train.corpus import SECOND, Document, Span
from headstart.train.generation import Order, Scribe, Text
from headstart.train.inputs import Reading
from headstart.train.kinds import KINDS, Kind, can_open, follow_up, open_turn
from headstart.train.loops import before_loop, loops, repeated_share
from headstart.train.shares import Attempt, Shares
from headstart.train.template import Codec, Turns
from headstart.tree import Tree

_WARM = (0.5, 0.8)
_LONGEST = 1100  # tokens up to which a conversation may get a further turn
_PASSAGES_KEPT = 1000
_ENOUGH_PASSAGES = 16  # before which nothing is read
_PASSAGE_WORDS = 100  # of an answer that may become a passage
_MOST_REPEATED = 0.2  # of a passage
_LOOPS = 0.08  # of the supervised tokens, for text that goes round in circles
_HEADER = 4  # tokens of a prompt's end by which a second answer finds the beginning of the first
_LEAST_ROOM = 16  # tokens of an answer that must fit behind a prompt
_MOST_FAILURES = 500  # conversations in a row that come to nothing
_TEXT = Kind("text", 1.0, ("",))


@dataclass(frozen=True, slots=True)
class Written:
    """A finished document, with its states (see ``capture.py``)."""

    document: Document
    states: DocumentStates


@dataclass(slots=True, eq=False)
class _Talk:
    """A conversation in flight. ``tokens`` end where the model writes next; the slot holds some of them."""

    kind: Kind
    attempt: Attempt
    slot: Slot
    tokens: tuple[int, ...]
    is_asking: bool  # the user's turn is being written
    is_reading: bool = False  # the first question is being read, up to its last row
    temperature: float | None = None  # of its answers; None until it has a first question
    spans: tuple[Span, ...] = ()
    answers: list[Text] = field(default_factory=list)
    read: list[NDArray[np.float32]] = field(default_factory=list)  # what is watched, of all rows that the slot holds
    twin: _Talk | None = None  # which answers the first question when this one has
    hint: tuple[int, ...] = ()  # the end of the question and its twin's answer

    @property
    def waits_for_twin(self) -> bool:
        """Whether a second conversation will fork off when its question is read."""
        return self.temperature is None

    def add(self, answer: Text) -> None:
        """Append an answer."""
        self.spans = (*self.spans, (len(self.tokens), len(self.tokens) + len(answer.tokens)))
        self.tokens += answer.tokens
        self.answers.append(answer)


class Writer:
    """Writes documents of one model."""

    def __init__(
        self,
        target: Target,
        codec: Codec,
        *,
        batch: int,
        answer_tokens: int,
        question_tokens: int,
        seed: int,
        kinds: Sequence[Kind] = KINDS,
        reading: Reading | None = None,
        proposer: Proposer | None = None,
    ) -> None:
        """``batch``: conversations that are being written; the longest answer and the longest user's turn in tokens.

        As many slots again may hold prompts whose second answer waits for the first.

        ``kinds`` of conversation; a model without a chat template knows but one. ``reading``: what else of the states is kept.
        ``proposer``: see :class:`~headstart.train.generation.Scribe`.
        """
        self._target, self._codec, self._batch, self._seed = target, codec, batch, seed
        self._answer, self._question = answer_tokens, question_tokens
        self._turns = Turns.of(codec) if codec.has_template else None
        self._kinds = {kind.name: kind for kind in (kinds if self._turns else (_TEXT,))}
        self._reading, self._proposer = reading, proposer
        self._opening: list[NDArray[np.float32]] = []  # what is watched of the rows that all conversations begin with
        self._scribe = self._fresh_scribe()
        self._talks: dict[int, _Talk] = {}  # by the order of its next turn
        self._ready: deque[_Talk] = deque()  # twins that have waited long enough
        self.start(())

    @property
    def num_written(self) -> int:
        """Tokens that the model wrote since :meth:`steps` began, users' turns and what came to nothing included."""
        return self._scribe.num_written

    def start(self, written: Sequence[Document]) -> None:
        """Go on behind documents that were written before."""
        self._rng = random.Random(self._seed * 1_000_003 + len(written))
        self._shares = Shares({kind.name: kind.share for kind in self._kinds.values()})
        self._passages: deque[str] = deque(maxlen=_PASSAGES_KEPT)
        self._asked: set[int] = set()
        self._num_tokens = self._num_looping = 0
        for document in written:
            self._remember(document)
            self._shares.count(_kind_of(document), document.num_supervised)
            if document.supervised:
                self._asked.add(hash(document.tokens[: document.supervised[0][0]]))

    def steps(self) -> Generator[list[Written], None, None]:
        """After each forward the documents that it finished, without end; DataError if nothing usable comes for long."""
        self._scribe, self._talks = self._fresh_scribe(), {}
        if self._reading is not None:
            self._target.watch(self._reading.layers)
        root = self._target.open()
        self._failures = 0
        try:
            self._begin(root)
            while self._failures < _MOST_FAILURES:
                self._admit(root)
                finished: list[Written] = []
                for order, text in self._scribe.step():
                    talk = self._talks.pop(id(order))
                    talk.read += order.read
                    going = self._next(talk, text)
                    for one in going:
                        self._order(one)
                    finished += [] if going else self._close(talk)
                yield finished
        finally:
            for talk in self._talks.values():
                for one in (talk, *([talk.twin] if talk.twin else ())):
                    self._target.close(one.slot)
            for talk in self._ready:
                self._target.close(talk.slot)
            self._talks = {}
            self._ready.clear()
            self._target.close(root)
        raise DataError("the model writes no usable text; give training data of your own")

    def cut_off(self) -> list[Written]:
        """End the answers that are being written where they are; of conversations without one nothing is kept."""
        written: list[Written] = []
        for order, text in self._scribe.so_far():
            talk = self._talks.pop(id(order))
            talk.read += order.read
            text = _without_loop(text)
            if not talk.is_asking and len(text.tokens) >= _LEAST_ROOM:
                talk.add(text)
            written += self._close(talk)
            if talk.twin:
                self._close(talk.twin)
        while self._ready:
            self._close(self._ready.popleft())
        self._scribe = self._fresh_scribe()
        return written

    def _begin(self, root: Slot) -> None:
        """Compute what all conversations begin with, but for one row: a prompt needs at least that."""
        opening, self._opening = self._turns.opening[:-1] if self._turns else (), []
        if opening:
            scored = self._target.forward([Feed(root, Tree.chain(opening), len(opening))])
            if self._reading is not None:
                states = scored.states([(0, row) for row in range(len(opening))], self._reading.layers)
                self._opening = [self._target.operations.numpy(states)]
            self._target.keep(root, tuple(range(len(opening))))

    def _fresh_scribe(self) -> Scribe:
        layers = self._reading.layers if self._reading else ()
        return Scribe(self._target, layers=layers, proposer=self._proposer)

    def _admit(self, root: Slot) -> None:
        """Start conversations while there is room for them, those first whose twin has answered."""
        while len(self._talks) < self._batch:
            if self._ready:
                self._order(self._ready.popleft())
                continue
            if self._failures >= _MOST_FAILURES:
                break
            talk, going = self._fresh(root)
            for one in going:
                self._order(one)
            if not going:
                self._close(talk)

    def _order(self, talk: _Talk) -> None:
        """Let the model write the next turn, or read the first one."""
        longest = self._question if talk.is_asking else round(self._answer * talk.kind.answer_factor)
        order = Order(
            talk.slot,
            talk.tokens[:-1] if talk.is_reading else talk.tokens,
            1.0 if talk.is_asking else talk.temperature or 0.0,
            0 if talk.is_reading else min(longest, self._room(talk.tokens)),
            self._stops(talk),
            self._rng.getrandbits(62),
            keep_states=not talk.is_asking,
            hint=talk.hint,
        )
        self._talks[id(order)] = talk
        self._scribe.add(order)

    def _stops(self, talk: _Talk) -> frozenset[int]:
        closing = self._turns.user_to_assistant[:1] if self._turns and talk.is_asking else ()
        return self._target.end_tokens | frozenset(closing)

    def _room(self, tokens: Sequence[int]) -> int:
        return self._target.context_limit - len(tokens)

    def _fresh(self, root: Slot) -> tuple[_Talk, list[_Talk]]:
        """A new conversation, and itself if something is to be written of it."""
        passages = self._passages if len(self._passages) >= _ENOUGH_PASSAGES else ()
        attempt = self._shares.begin([kind.name for kind in self._kinds.values() if can_open(kind, passages)])
        if self._turns is None:
            temperature = self._rng.choice((0.0, *_WARM))
            start = self._start_of_text()
            talk = _Talk(
                _TEXT, attempt, self._target.fork(root), start, False, temperature=temperature, read=list(self._opening)
            )
            return talk, [talk]
        kind = self._kinds[attempt.kind]
        turn = open_turn(kind, self._rng, passages)
        tokens = (*self._turns.opening, *self._codec.encode(turn.text))
        slot = self._target.fork(root)
        talk = _Talk(kind, attempt, slot, tokens, is_asking=not turn.is_whole, read=list(self._opening))
        if turn.is_whole:
            return talk, self._answering(talk, tokens)
        return talk, [talk] if tokens and self._room(tokens) >= self._question + _LEAST_ROOM else []

    def _start_of_text(self) -> tuple[int, ...]:
        """Without a template: what the model puts first and, in most texts, a random token."""
        first = self._codec.encode_whole("")
        if first and self._rng.random() < 0.25:
            return tuple(first)
        return (*first, self._rng.randrange(self._target.vocab_size))

    def _next(self, talk: _Talk, text: Text) -> list[_Talk]:
        """Take a finished turn; the conversation itself if it goes on, or nothing if it ends here."""
        if talk.is_reading:
            return [self._forked(talk)]
        if talk.is_asking:
            ended = text.tokens[-1] in self._stops(talk)
            return self._answering(talk, (*talk.tokens, *text.tokens[:-1])) if ended else []
        if talk.twin:
            talk.twin.hint = (*talk.tokens[-_HEADER:], *text.tokens)
            self._ready.append(talk.twin)
        talk.twin, talk.hint = None, ()
        text = self._without_excess(text)
        if len(text.tokens) < 2:
            return []
        talk.add(text)
        ended = self._turns is not None and text.tokens[-1] in self._target.end_tokens
        return [self._following(talk)] if ended and self._wants_more(talk) else []

    def _answering(self, talk: _Talk, asked: tuple[int, ...]) -> list[_Talk]:
        """Answer a first question twice and a further one as the first was; nothing if it was asked before."""
        assert self._turns is not None
        prompt = (*asked, *self._turns.user_to_assistant)
        if self._room(prompt) < _LEAST_ROOM:
            return []
        if talk.waits_for_twin and hash(prompt) in self._asked:
            return []
        talk.tokens, talk.is_asking = prompt, False
        if not talk.waits_for_twin:
            return [talk]
        self._asked.add(hash(prompt))
        talk.is_reading = self._target.length(talk.slot) < len(prompt) - 1
        return [talk if talk.is_reading else self._forked(talk)]

    def _forked(self, talk: _Talk) -> _Talk:
        """The conversation behind its first question, with a twin that waits."""
        talk.is_reading, talk.temperature = False, 0.0
        talk.attempt.num_open += 1
        slot = self._target.fork(talk.slot)
        talk.twin = replace(talk, slot=slot, temperature=self._rng.choice(_WARM), answers=[], read=list(talk.read))
        return talk

    def _wants_more(self, talk: _Talk) -> bool:
        fits = self._room(talk.tokens) >= 2 * self._question + _LEAST_ROOM and len(talk.tokens) < _LONGEST
        return fits and self._rng.random() < talk.kind.follow_ups

    def _following(self, talk: _Talk) -> _Talk:
        assert self._turns is not None
        closing = self._turns.assistant_to_user
        if closing and closing[0] in self._target.end_tokens:
            closing = closing[1:]  # the answer brought its own end token
        talk.tokens += (*closing, *self._codec.encode(follow_up(talk.kind, self._rng)))
        talk.is_asking = True
        return talk

    def _close(self, talk: _Talk) -> list[Written]:
        """The conversation's document, if it has an answer."""
        self._target.close(talk.slot)
        if not talk.spans:
            self._failures += 1
            self._shares.settle(talk.attempt, 0)
            return []
        self._failures = 0
        name = talk.kind.name + SECOND * (len(talk.spans) > 1)
        document = Document(name, talk.temperature or 0.0, talk.tokens[: talk.spans[-1][1]], talk.spans)
        self._shares.settle(talk.attempt, document.num_supervised)
        self._remember(document)
        hidden = np.concatenate([text.hidden for text in talk.answers])
        greedy = np.concatenate([text.greedy for text in talk.answers])
        return [
            Written(document, DocumentStates(torch.from_numpy(hidden), torch.from_numpy(greedy), self._inputs(talk, document)))
        ]

    def _inputs(self, talk: _Talk, document: Document) -> Tensor | None:
        """What was watched of the document's texts."""
        if self._reading is None:
            return None
        states = np.concatenate(talk.read)
        return torch.from_numpy(np.concatenate([states[start:stop] for start, stop in self._reading.texts(document)]))

    def _without_excess(self, text: Text) -> Text:
        """An answer, without the part that goes round in circles if there are enough of those."""
        size = len(text.tokens)
        if not loops(text.tokens) or self._num_looping + size <= _LOOPS * (self._num_tokens + size):
            return text
        return _without_loop(text)

    def _remember(self, document: Document) -> None:
        """Count what was written; a long answer of plain words becomes a passage."""
        self._num_tokens += document.num_supervised
        for start, stop in document.supervised:
            self._num_looping += (stop - start) * loops(document.tokens[start:stop])
        kind = self._kinds.get(_kind_of(document))
        if kind is None or not kind.gives_passages or not document.supervised:
            return
        start, stop = document.supervised[0]
        words = [token for token in document.tokens[start:stop] if token not in self._target.end_tokens]
        text = self._codec.decode(words)
        if len(text.split()) >= _PASSAGE_WORDS and "```" not in text and repeated_share(words) < _MOST_REPEATED:
            self._passages.append(text)


def _kind_of(document: Document) -> str:
    return document.kind.removesuffix(SECOND)


def _without_loop(text: Text) -> Text:
    """A text up to where it begins to go round in circles; nothing if too little is left, or that does the same."""
    if not loops(text.tokens):
        return text
    number = before_loop(text.tokens)
    return text.first(number if number >= _LEAST_ROOM and not loops(text.tokens[:number]) else 0)
