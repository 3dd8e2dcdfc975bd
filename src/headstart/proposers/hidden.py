"""The last hidden state of each sequence, which heads read: a row of what one question to the engine gave."""

from __future__ import annotations

from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headstart.heads.operations import Array, Operations
from headstart.proposers.base import Observation, Sequence
from headstart.proposers.calibration import Calibration
from headstart.proposers.questions import asked_together


@dataclass(slots=True)
class SequenceState:
    """What heads hold of a sequence."""

    hidden: Any = None  # [rows, D]
    row: int = 0
    root: int = -1  # the token that follows it
    calibration: Calibration = field(default_factory=Calibration)


class HiddenStates:
    """The states of the sequences in flight."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations
        self._states: dict[int, SequenceState] = {}

    def __len__(self) -> int:
        return len(self._states)

    def observe(self, observations: ListOf[Observation]) -> None:
        """Take the hidden states behind the new roots, with one question for each scored batch."""
        told = asked_together(observations, lambda observation: [observation.row], lambda scored, rows: scored.hidden(rows))
        for observation, hidden, own in told:
            state = self._states.get(observation.key)
            if state is None:
                state = self._states[observation.key] = SequenceState()
            state.hidden, state.row, state.root = hidden, own.start, observation.tokens[-1]
            if not observation.is_of_prompt:
                state.calibration.observe(observation.tree, observation.tokens)

    def forget(self, key: int) -> None:
        """Free what is held for the sequence."""
        self._states.pop(key, None)

    def known(self, sequence: Sequence) -> SequenceState | None:
        """The state right before this root, if it is held and a draft may use it."""
        state = self._states.get(sequence.key)
        is_right = state is not None and state.root == sequence.tokens[-1] and min(sequence.max_nodes, sequence.max_depth) > 0
        return state if is_right else None

    def gather(self, states: ListOf[SequenceState]) -> Array:
        """Hidden states [n, D]; as they lie if they are exactly what the engine gave."""
        hidden, ops = states[0].hidden, self._operations
        if all(state.hidden is hidden for state in states):
            rows = [state.row for state in states]
            return hidden if rows == list(range(int(hidden.shape[0]))) else ops.take(hidden, np.array(rows))
        return ops.stack([ops.take(state.hidden, np.array([state.row])) for state in states])
