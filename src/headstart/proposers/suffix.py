"""Suffix matching: a tree of everything that followed the last tokens before, weighed by how long and how often it matched.

SuffixDecoding (Oliaro et al., NeurIPS 2025, arXiv 2411.04975) matches the end of a request against its own text and against
past outputs, and drafts a tree by counts. Prompt lookup (``ngram``) copies from the latest match alone; here every match takes
part (``occurrences.py``), of any length, so a draft branches where the text branched before, and grows long only where matches
are long.

Estimates are those of prediction by partial matching (Cleary and Witten 1984). Followers of the longest matches share the
confidence that matches of such a length have, by their counts; what is left of the probability goes to the followers of the
next shorter ones that are new there, and so on. The confidence depends on the length's class and on whether the followers there
were one, the same one repeatedly, or several. It starts from what greedy texts of a small chat model showed, and is corrected
in each sequence by every token that is committed, whoever drafted it, also while nothing is asked. So the budget that a match
may claim grows with its length by itself (the paper sets it to a factor of the length).

Matches of past outputs (``past.py``), if the proposer was given some, count like those of the text itself. Drafts then depend
on what other requests said before; with the rule ``exact``, the only one that is allowed beside them, no text does.

At temperature > 0 with the rule ``exact`` the children of the root are weighed with the noise that the sampler will use there
(``children.py`` has the idea). The weight is small, since what followed once says little of the odds: on texts of temperature
0.8 the best child is the pick in 48.8% of places instead of 47.6%. Deeper down, and where there is no choice, the noise costs
more than it gains.

A sequence holds its text once more with one number a token. The compiled engine does the matching where there is one
(``compiled.py``); in Python a committed token costs about 10 microseconds, a drafted node as much.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as ListOf
from typing import NamedTuple, Protocol

import numpy as np

from headstart.proposers.base import Observation, Sequence
from headstart.proposers.compiled import native
from headstart.proposers.occurrences import LATEST, MOST_MATCHES, TAIL, Matches, Occurrences
from headstart.proposers.past import PastOutputs
from headstart.proposers.walk import Children, State, Walk, grow
from headstart.sampling import Sampler, noise_key, rough_gumbel
from headstart.tree import Draws, Tree

_CLASSES = (0, 1, 2, 3, 4, 4, 5, 5, 5, 6, 6, 6, 6)  # of match lengths; longer ones are of the last class
_LAST_CLASS = 7
_NUM_KINDS = 4
_ONE, _SAME, _SEVERAL, _SHORTER = range(
    _NUM_KINDS
)  # the longest matches' followers: one, one repeatedly, several; then shorter matches
_PRIOR = (
    (0.0, 0.0, 0.0, 0.0),
    (0.25, 0.48, 0.34, 0.25),
    (0.51, 0.76, 0.51, 0.33),
    (0.62, 0.81, 0.57, 0.38),
    (0.72, 0.87, 0.69, 0.52),
    (0.81, 0.93, 0.54, 0.6),
    (0.88, 0.96, 0.76, 0.7),
    (0.96, 0.98, 0.82, 0.75),
)
_PRIOR_WEIGHT = 8.0  # tokens that outweigh the prior
_WEIGHT_OF_NOISE = 0.3
_NOISE_OF_OTHERS = math.exp(_WEIGHT_OF_NOISE * 0.5772)  # the mean of Gumbel noise, for all that never followed

Level = tuple[int, dict[int, int]]  # the place of a confidence, and how often each token followed that no longer match knows


class Place(NamedTuple):
    """A walk's state: what matches behind a drafted path, in the text and in past outputs."""

    own: Matches
    past: Matches
    path: tuple[int, ...]


class Text(Protocol):
    """What is held of one sequence."""

    said: ListOf[int]
    num_prompt: int

    @property
    def walk(self) -> Walk:
        """What it may copy."""

    def update(self, sequence: Sequence) -> None:
        """Take in what was committed since."""


class CompiledText:
    """One sequence, its text held by the engine."""

    def __init__(self, tokens: ListOf[int], num_prompt: int) -> None:
        """``tokens``: prompt and committed tokens."""
        self.said, self.num_prompt = tokens, num_prompt
        self.walk = native.Copying(
            list(tokens[:num_prompt]),
            latest=LATEST,
            most_matches=MOST_MATCHES,
            tail=TAIL,
            classes=(*_CLASSES, _LAST_CLASS),
            prior=[share for row in _PRIOR for share in row],
            prior_weight=_PRIOR_WEIGHT,
            weight_of_noise=_WEIGHT_OF_NOISE,
            noise_of_others=_NOISE_OF_OTHERS,
        )

    def update(self, sequence: Sequence) -> None:
        """Take in what was committed since, and with it the noise that is known of the next token."""
        self.said = sequence.tokens
        self.walk.extend(self.said[self.walk.num_tokens :])
        is_coupled = sequence.sampler.sampling.temperature > 0 and sequence.choice == "coupled"
        self.walk.weigh_by(noise_key(sequence.sampler.seed, len(self.said)) if is_coupled else None)


class PythonText:
    """One sequence: its occurrences, and how far its matches are to be trusted."""

    def __init__(self, tokens: ListOf[int], num_prompt: int, past: PastOutputs | None = None) -> None:
        self.said, self.num_prompt, self.past = tokens, num_prompt, past  # ``said`` grows in the loop
        self.coupled: Sampler | None = None  # whose noise weighs the root's children
        self.occurrences = Occurrences()
        self.occurrences.start(tokens[:num_prompt])
        self.past_matches: Matches = past.matches(tokens[:num_prompt]) if past else {}
        self.hits = [share * _PRIOR_WEIGHT for row in _PRIOR for share in row]
        self.tries = [_PRIOR_WEIGHT] * len(self.hits)

    @property
    def walk(self) -> PythonText:
        """It walks itself."""
        return self

    def update(self, sequence: Sequence) -> None:
        """Take in what was committed since, and learn from each token how good the matches before it were."""
        self.said = sequence.tokens
        is_coupled = sequence.sampler.sampling.temperature > 0 and sequence.choice == "coupled"
        self.coupled = sequence.sampler if is_coupled else None
        for token in self.said[len(self.occurrences.tokens) :]:
            for place, followers in self._levels(self.start()):
                self.tries[place] += 1
                if token in followers:
                    self.hits[place] += 1
                    break
            state = self.step(self.start(), token)
            self.occurrences.append(token)
            self.past_matches = state.past

    def start(self) -> Place:
        """What matches at the text's end."""
        return Place(self.occurrences.matches, self.past_matches, ())

    def step(self, state: State, token: int) -> Place:
        """What matches behind a drafted token."""
        own, past, path = state
        if self.past:
            past = self.past.step(past, (*self.occurrences.tokens[-2:], *path, token)[-3:])
        return Place(self.occurrences.step(own, path, token), past, (*path, token))

    def children(self, state: State) -> Children:
        """Followers of the matches, with their probabilities."""
        left, found = 1.0, dict[int, float]()
        for place, followers in self._levels(state):
            confidence = self.hits[place] / self.tries[place]
            share = left * confidence / sum(followers.values())
            for token, count in followers.items():
                found[token] = share * count
            left *= 1.0 - confidence
        if self.coupled and not state.path and len(found) > 1:
            return self._weighed(self.coupled, found, left)
        return found

    def _weighed(self, sampler: Sampler, found: dict[int, float], left: float) -> Children:
        """Probabilities of the root's children, with the noise that is known of them; ``left`` is that of all other tokens."""
        tokens = np.array([list(found)])
        key = np.array([noise_key(sampler.seed, len(self.occurrences.tokens))], dtype=np.uint64)
        weights = np.exp(_WEIGHT_OF_NOISE * rough_gumbel(key, tokens)[0]).tolist()
        values = [value * weight for value, weight in zip(found.values(), weights, strict=True)]
        total = sum(values) + left * _NOISE_OF_OTHERS
        return {token: value / total for token, value in zip(found, values, strict=True)}

    def beside(self, state: State, children: Children) -> Children:
        """The same."""
        return children

    def draws(self, state: State) -> tuple[Draws, ...]:
        """None: what is copied is not drawn."""
        return ()

    def first_estimate(self) -> float:
        """Of the likeliest follower."""
        return max(self.children(self.start()).values(), default=0.0)

    def _levels(self, state: Place) -> list[Level]:
        """Followers by class of match length, longest first, each token where it stands first."""
        by_class: dict[int, dict[int, int]] = {}
        for token, length in self._followers(state):
            length_class = _CLASSES[length] if length < len(_CLASSES) else _LAST_CLASS
            counts = by_class.get(length_class)
            if counts is None:
                by_class[length_class] = {token: 1}
            else:
                counts[token] = counts.get(token, 0) + 1
        levels: list[Level] = []
        known: set[int] = set()
        for length_class in sorted(by_class, reverse=True):
            followers = by_class[length_class]
            if known:
                followers = {token: count for token, count in followers.items() if token not in known}
            if followers:
                known.update(followers)
                kind = _SHORTER if levels else _kind(followers)
                levels.append((_NUM_KINDS * length_class + kind, followers))
        return levels

    def _followers(self, state: Place) -> list[tuple[int, int]]:
        """(token, match length) of each match."""
        tokens, path = self.occurrences.tokens, state.path
        num_tokens = len(tokens)
        found = [
            (tokens[position] if position < num_tokens else path[position - num_tokens], length)
            for position, length in state.own.items()
        ]
        return found + self.past.followers(state.past) if self.past and state.past else found


def _kind(followers: dict[int, int]) -> int:
    if len(followers) > 1:
        return _SEVERAL
    return _SAME if max(followers.values()) > 1 else _ONE


class SuffixProposer:
    """Suffix matching over the sequences in flight, and over past outputs if given."""

    name = "suffix"
    reads_text_alone = True  # whoever asks need not tell it what became of the last draft

    def __init__(self, past: PastOutputs | None = None) -> None:
        """``past``: outputs of finished sequences to copy from, which finished sequences join."""
        self.past = past
        self._texts: dict[int, Text] = {}

    def propose(self, sequences: ListOf[Sequence]) -> list[Tree]:
        """The likeliest paths of each sequence; the root alone where nothing matches."""
        trees = []
        for sequence, walk in zip(sequences, self.walks(sequences), strict=True):
            trees.append(grow(sequence.tokens[-1], [walk], sequence.max_nodes, sequence.max_depth).tree)
        return trees

    def walks(self, sequences: ListOf[Sequence]) -> list[Walk]:
        """What each sequence may copy, to be asked node by node."""
        walks = []
        for sequence in sequences:
            text = self._texts.get(sequence.key)
            if text is None:
                text = self._texts[sequence.key] = self._new(sequence)
            text.update(sequence)
            walks.append(text.walk)
        return walks

    def _new(self, sequence: Sequence) -> Text:
        """The engine's text, but beside past outputs, which it does not know."""
        if native and self.past is None:
            return CompiledText(sequence.tokens, sequence.num_prompt)
        return PythonText(sequence.tokens, sequence.num_prompt, self.past)

    def observe(self, observations: ListOf[Observation]) -> None:
        """Nothing to do: what was committed is read from the sequences when they ask next."""

    def forget(self, key: int) -> None:
        """Free the sequence's text; its output joins the past ones."""
        text = self._texts.pop(key, None)
        if text is not None and self.past is not None:
            self.past.add(text.said[text.num_prompt :])
