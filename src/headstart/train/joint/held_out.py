"""Held-out text of a joint run: how well the heads guess on the base as it is now, and what became of the base.

Right is what the current base says greedily behind the text's own tokens, whoever wrote them: the text is the original's, and
the current one may say something else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headstart.errors import TrainingError
from headstart.heads.base import Acceptance, BaseIdentity
from headstart.target.loading import load_model
from headstart.train.acceptance import ReliabilityCounter, acceptance, measure_ranks
from headstart.train.base import Base, FrozenModel
from headstart.train.capture import Batch, batch_of, num_rows
from headstart.train.corpus import Document
from headstart.train.forms import form_of
from headstart.train.frozen import halves
from headstart.train.joint.adapters import split
from headstart.train.joint.objective import JointObjective, base_logits, some_of, states_of
from headstart.train.joint.quality import Quality, quality
from headstart.train.settings import TrainSettings
from headstart.train.trainer import Measured

_DRIFT = 0.02  # nats a place between the trained model and its saved folder, read again, that rounding may explain


@dataclass(frozen=True, slots=True)
class Judged:
    """A saved model and its heads, looked at."""

    identity: BaseIdentity
    quality: Quality
    acceptance: Acceptance
    is_within_bound: bool
    bounds: dict[str, float]

    def marks(self) -> dict[str, Any]:
        """What its folder, its heads' card and the record say of it."""
        price = asdict(self.quality) | {"perplexity_rise": self.quality.rise}
        return {"quality": price, "bounds": self.bounds, "is_within_bound": self.is_within_bound}


class HeldOut:
    """About ``evaluation_rows`` places of the held-out documents, with what the original says there."""

    def __init__(self, base: Base, documents: Sequence[Document], settings: TrainSettings) -> None:
        self._settings, self._base = settings, base
        self.documents = some_of(documents, settings.evaluation_rows)
        self._originals = self.states(base.model)
        self._tokens = batch_of(self._originals, torch.zeros(len(self._originals), dtype=torch.long), self.documents).roots

    def states(self, model: FrozenModel) -> Tensor:
        """Hidden states [n, D] by a model as it is now."""
        with torch.no_grad():
            return states_of(model.module, self.documents, model.device)

    def measured(self, objective: JointObjective, tensors: Mapping[str, Tensor]) -> Measured:
        """Predicted L of the heads as they would be saved, and what the adapters cost the base."""
        of_heads, of_base = split(tensors)
        with objective.adapters.on(of_base):
            hidden = self.states(objective.model)
        price = self._quality(objective.model, hidden)
        notes = {"perplexity_rise": price.rise, "divergence": price.divergence, "agreement": price.agreement}
        return Measured(self._acceptance(objective, of_heads, hidden), notes, self._is_within_bound(price))

    def judged(
        self, folder: Path, objective: JointObjective, of_heads: Mapping[str, Tensor], trained: Tensor, has_choice: bool
    ) -> Judged:
        """A saved model as it will be loaded; ``trained`` [n, D] are the states that it should have.

        TrainingError if it is not what was trained, or cannot be told from its origin. Without a choice (no measured tensors
        but the untouched ones left the base within its bound) it counts as out of bounds.
        """
        base = self._base
        target: Any = load_model(str(folder), dtype=base.dtype, engine="hf").target
        identity = BaseIdentity.of(target)
        if identity.fingerprint == base.identity.fingerprint:
            raise TrainingError(
                f"the tuned {base.identity.name} cannot be told apart from the model that it came from: it learned too little; "
                "give more minutes, more joint_epochs or a higher joint_rate"
            )
        model = FrozenModel(target.model.to(base.model.device), target.vocab_size)
        hidden = self.states(model)
        drift = quality(base.model, model, trained, hidden, self._tokens, self._settings.chunk_rows).divergence
        if not drift <= _DRIFT:
            raise TrainingError(
                f"the tuned {base.identity.name} does not survive saving (what was read again differs by {drift:.3f} nats a "
                "place), so this model cannot be tuned; train heads alone"
            )
        price = self._quality(model, hidden)
        form = form_of(objective.heads.form.config, model)
        on_saved = replace(objective, model=model, heads=replace(objective.heads, form=form))
        found = self._acceptance(on_saved, of_heads, hidden)
        bounds = {name: getattr(self._settings, name) for name in ("max_harm", "max_divergence")}
        return Judged(identity, price, found, has_choice and self._is_within_bound(price), bounds)

    def _quality(self, model: FrozenModel, hidden: Tensor) -> Quality:
        return quality(self._base.model, model, self._originals, hidden, self._tokens, self._settings.chunk_rows)

    def _acceptance(self, objective: JointObjective, of_heads: Mapping[str, Tensor], hidden: Tensor) -> Acceptance:
        form, chunk = objective.heads.form, self._settings.chunk_rows
        with torch.no_grad():
            picks = [base_logits(objective.model, hidden[i : i + chunk]).argmax(-1) for i in range(0, len(hidden), chunk)]
        states = _Fixed(self.documents, hidden, torch.cat(picks))
        num_ranks = min(self._settings.num_ranks, form.config.num_outputs)
        numbers = range(len(self.documents))
        counter = ReliabilityCounter(form.config.num_heads)
        ranks = measure_ranks(form, halves(dict(of_heads)), objective.heads.base, states, numbers, num_ranks, counter)
        return acceptance(ranks, num_ranks, counter.reliability())

    def _is_within_bound(self, price: Quality) -> bool:
        settings = self._settings  # a quality that is no number is out of bounds
        return price.rise <= settings.max_harm and price.divergence <= settings.max_divergence


class _Fixed:
    """States of held-out documents as they are now, for ``measure_ranks``."""

    def __init__(self, documents: Sequence[Document], hidden: Tensor, picks: Tensor) -> None:
        self._documents, self._hidden, self._picks = documents, hidden, picks
        self.num_rows = len(hidden)

    def rows_of(self, document: int) -> int:
        """Rows that a document has."""
        return num_rows(self._documents[document])

    def batch(self, documents: Sequence[int]) -> Batch:
        """Rows of some documents, which follow each other; right is what the model says greedily now."""
        start = sum(map(self.rows_of, range(documents[0])))
        rows = slice(start, start + sum(map(self.rows_of, documents)))
        picks = self._picks[rows]
        return replace(batch_of(self._hidden[rows], picks, [self._documents[i] for i in documents]), picks=picks)
