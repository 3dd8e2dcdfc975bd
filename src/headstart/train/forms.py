"""The kinds of heads that can be trained: what sets them apart, and the only place that knows which there are.

A *form* is heads of one kind and size as the trainer sees them. It makes fresh tensors, says what the heads guess at some rows
of a batch (with autograd's arrays, and the text's own tokens in the place of drafted ones: teacher forcing), and turns trained
tensors into heads that are saved. Loss, acceptance, checkpoints and the loop are the same for all.

A further kind is a class here and an entry in ``FORMS``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from headstart.errors import RequestError
from headstart.heads import hydra, medusa, mtp
from headstart.heads.base import Heads, HeadsCard
from headstart.heads.base import Tensors as HostTensors
from headstart.proposers.mtp import watched
from headstart.target.torch_operations import TorchOperations
from headstart.train.base import FrozenModel
from headstart.train.capture import Batch
from headstart.train.inputs import DEFAULT_CONTEXT, Reading
from headstart.train.settings import EAGLE3, TrainSettings
from headstart.train.unroll import unrolled

Tensors = Mapping[str, Tensor]
DraftVocab = tuple[int, ...] | None


class Form(Protocol):
    """Heads of one kind and size as training sees them."""

    @property
    def reads_texts(self) -> bool:
        """Whether a row's guesses depend on the rows of its text before it, so that texts stay whole."""

    @property
    def config(self) -> Any:
        """The heads' sizes and layout."""

    def settings(self) -> dict[str, Any]:
        """The settings that this kind reads, as these heads have them."""

    def reading(self, settings: TrainSettings) -> Reading | None:
        """What it reads beside the hidden states of its rows."""

    def fresh(self, seed: int) -> HostTensors:
        """Tensors of heads that have not learnt anything."""

    def outputs(self, tensors: Tensors, base_output: Tensor) -> list[Tensor]:
        """The output matrices [V', D]: one for all depths, or one a depth. ``base_output``: the base's rows."""

    def guessed(self, tensors: Tensors, batch: Batch, rows: slice, outputs: list[Tensor]) -> list[Tensor]:
        """Logits [c, V'] of each depth for some rows of a batch."""

    def heads(self, tensors: HostTensors, card: HeadsCard | None) -> Heads:
        """Heads to save, out of trained tensors."""

    def trained(self, heads: Heads) -> HostTensors:
        """The tensors to train, out of saved heads."""


class MedusaForm:
    """Parallel heads (``heads/medusa.py``): each reads the row and its root."""

    READS = ("num_heads", "num_blocks", "sees_root", "output", "inner_factor", "draft_vocab")
    DEFAULT_HEADS = 3
    reads_texts = False

    def __init__(self, config: medusa.MedusaConfig, model: FrozenModel) -> None:
        self.config, self._model = config, model

    @classmethod
    def of(cls, settings: TrainSettings, model: FrozenModel, draft_vocab: DraftVocab) -> MedusaForm:
        """Heads as the settings want them."""
        config = medusa.MedusaConfig(
            num_heads=settings.num_heads or cls.DEFAULT_HEADS,
            hidden_size=model.width,
            vocab_size=model.vocab_size,
            num_blocks=settings.num_blocks,
            sees_root=settings.sees_root,
            output=settings.output,
            inner_size=round(settings.inner_factor * model.width) or None,
            draft_vocab=draft_vocab,
        )
        return cls(config, model)

    def settings(self) -> dict[str, Any]:
        """The settings that this kind reads, as these heads have them."""
        config = self.config
        return {
            "num_heads": config.num_heads,
            "num_blocks": config.num_blocks,
            "sees_root": config.sees_root,
            "output": config.output,
            "inner_factor": (config.inner_size or 0) / config.hidden_size,
            "draft_vocab": config.num_outputs,
        }

    def reading(self, settings: TrainSettings) -> None:
        """None: its rows are enough."""

    def fresh(self, seed: int) -> HostTensors:
        """Tensors of heads that say what the base's own output says."""
        output = self._model.output.float().cpu().numpy() if self.config.output_names() else None
        return medusa.initial_tensors(self.config, np.random.default_rng(seed), output)

    def outputs(self, tensors: Tensors, base_output: Tensor) -> list[Tensor]:
        """The trained output matrices, or the base's rows."""
        return [tensors[name] for name in self.config.output_names()] or [base_output]

    def guessed(self, tensors: Tensors, batch: Batch, rows: slice, outputs: list[Tensor]) -> list[Tensor]:
        """Logits [c, V'] of each head."""
        hidden = batch.hidden[rows].float()
        roots = self._model.embedding[batch.roots[rows]].float() if self.config.sees_root else None
        ops = TorchOperations(torch.float32, hidden.device)
        logits: list[Tensor] = medusa.medusa_logits(ops, self.config, tensors, hidden, roots, outputs)
        return logits

    def heads(self, tensors: HostTensors, card: HeadsCard | None) -> medusa.MedusaHeads:
        """Heads to save."""
        return medusa.MedusaHeads(self.config, tensors, card).rounded()

    def trained(self, heads: Heads) -> HostTensors:
        """The tensors as they are."""
        return heads.tensors


class HydraForm:
    """Sequential heads (``heads/hydra.py``): the text's own tokens stand for the drafted ones.

    Embeddings of many models are far smaller than their hidden states (0.14 against 2 in SmolLM2-135M), and an optimiser that
    moves every weight by the same step would hardly let the heads look at them. So the cell is trained on embeddings of about
    unit size, and the factor, a power of two, is multiplied into its weights when they are saved, which is exact.
    """

    READS = ("num_heads", "inner_factor", "draft_vocab")
    DEFAULT_HEADS = 4
    reads_texts = False

    def __init__(self, config: hydra.HydraConfig, model: FrozenModel) -> None:
        self.config, self._model = config, model
        size = float(model.embedding.float().square().mean().sqrt())
        self._factor = 2.0 ** -round(math.log2(size)) if size > 0 else 1.0

    @classmethod
    def of(cls, settings: TrainSettings, model: FrozenModel, draft_vocab: DraftVocab) -> HydraForm:
        """Heads as the settings want them."""
        config = hydra.HydraConfig(
            num_heads=settings.num_heads or cls.DEFAULT_HEADS,
            hidden_size=model.width,
            vocab_size=model.vocab_size,
            inner_size=round(settings.inner_factor * model.width),
            draft_vocab=draft_vocab,
        )
        return cls(config, model)

    def settings(self) -> dict[str, Any]:
        """The settings that this kind reads, as these heads have them."""
        config = self.config
        return {
            "num_heads": config.num_heads,
            "inner_factor": config.inner_size / config.hidden_size,
            "draft_vocab": config.num_outputs,
        }

    def reading(self, settings: TrainSettings) -> None:
        """None: its rows are enough."""

    def fresh(self, seed: int) -> HostTensors:
        """Tensors of heads that say what the base's own output says."""
        return hydra.initial_tensors(self.config, np.random.default_rng(seed))

    def outputs(self, tensors: Tensors, base_output: Tensor) -> list[Tensor]:
        """The base's rows."""
        return [base_output]

    def guessed(self, tensors: Tensors, batch: Batch, rows: slice, outputs: list[Tensor]) -> list[Tensor]:
        """Logits [c, V'] of each depth, behind the text's own tokens up to there (behind the batch's last row, any)."""
        states = batch.hidden[rows].float()
        ops = TorchOperations(torch.float32, states.device)
        places = torch.arange(rows.start, rows.stop, device=states.device)
        logits = []
        for depth in range(self.config.num_heads):
            tokens = batch.roots[(places + depth).clamp_max(batch.num_rows - 1)]
            embeddings = self._model.embedding[tokens].float() * self._factor
            states = hydra.next_states(ops, tensors, states, embeddings, depth)
            logits.append(ops.linear(states, outputs[0]))
        return logits

    def heads(self, tensors: HostTensors, card: HeadsCard | None) -> hydra.HydraHeads:
        """Heads to save."""
        return hydra.HydraHeads(self.config, self._scaled(tensors, self._factor), card).rounded()

    def trained(self, heads: Heads) -> HostTensors:
        """The tensors of saved heads, for embeddings of unit size."""
        return self._scaled(heads.tensors, 1 / self._factor)

    def _scaled(self, tensors: HostTensors, factor: float) -> HostTensors:
        weight = tensors["cell.weight"].copy()
        weight[:, self.config.hidden_size :] *= np.float32(factor)
        return tensors | {"cell.weight": weight}


class MtpForm:
    """A decoder layer unrolled over its own outputs (``heads/mtp.py``, ``unroll.py``); attention is shaped as the base's is.

    Streams from between layers are of very different sizes, as embeddings are beside hidden states (see above): ``fc`` is
    trained on features of about unit size, and the factors, powers of two, are multiplied into its weights when they are saved.
    """

    READS = ("num_heads", "inner_factor", "draft_vocab", "feature_layers", "context_tokens")
    DEFAULT_HEADS = 4  # steps
    reads_texts = True

    def __init__(self, config: mtp.MtpConfig, model: FrozenModel) -> None:
        self.config, self._model = config, model
        layers = config.eagle_aux_hidden_state_layer_ids
        self._factors = None if layers is None else feature_factors(model, layers)

    @classmethod
    def of(cls, settings: TrainSettings, model: FrozenModel, draft_vocab: DraftVocab) -> MtpForm:
        """A layer as the settings want it."""
        shape = model.module.config
        num_heads = shape.num_attention_heads
        rope = getattr(shape, "rope_parameters", None) or {}
        config = mtp.MtpConfig(
            hidden_size=model.width,
            vocab_size=model.vocab_size,
            num_attention_heads=num_heads,
            num_key_value_heads=getattr(shape, "num_key_value_heads", None) or num_heads,
            head_dim=getattr(shape, "head_dim", None) or model.width // num_heads,
            intermediate_size=round(settings.inner_factor * model.width),
            num_steps=settings.num_heads or cls.DEFAULT_HEADS,
            rms_norm_eps=float(getattr(shape, "rms_norm_eps", 1e-5)),
            rope_theta=float(rope.get("rope_theta") or getattr(shape, "rope_theta", None) or 10_000.0),
            eagle_aux_hidden_state_layer_ids=chosen_layers(settings.feature_layers, model.num_layers),
            reads_prompt=settings.context_tokens != 0,
            draft_vocab=draft_vocab,
        )
        return cls(config, model)

    def settings(self) -> dict[str, Any]:
        """The settings that this kind reads, as these heads have them."""
        config = self.config
        layers = config.eagle_aux_hidden_state_layer_ids
        named = None if layers is None else ",".join(map(str, layers))
        found = {
            "num_heads": config.num_steps,
            "inner_factor": config.intermediate_size / config.hidden_size,
            "draft_vocab": config.num_outputs,
            "feature_layers": EAGLE3 if layers == eagle3_layers(self._model.num_layers) else named,
        }
        return found if config.reads_prompt else found | {"context_tokens": 0}

    def reading(self, settings: TrainSettings) -> Reading | None:
        """The features, and as much of prompts as the settings say; None: hidden states of its segments are enough."""
        layers = self.config.eagle_aux_hidden_state_layer_ids
        if self.config.reads_prompt and settings.context_tokens == 0:
            raise RequestError("context_tokens is 0, which has no effect on a layer that reads prompts; give 1 or more")
        if layers is None and not self.config.reads_prompt:
            return None
        asked = DEFAULT_CONTEXT if settings.context_tokens is None else settings.context_tokens
        return Reading(watched(self.config), asked if self.config.reads_prompt else 0)

    def fresh(self, seed: int) -> HostTensors:
        """Tensors of a layer that says what the base's own output says."""
        norm = self._model.state_scale() if self._factors is None else self._model.last_norm()
        return mtp.initial_tensors(self.config, np.random.default_rng(seed), norm)

    def outputs(self, tensors: Tensors, base_output: Tensor) -> list[Tensor]:
        """The base's rows."""
        return [base_output]

    def guessed(self, tensors: Tensors, batch: Batch, rows: slice, outputs: list[Tensor]) -> list[Tensor]:
        """Logits [c, V'] of each step, for rows of whole texts, behind the text's own tokens."""
        texts = batch.texts.of(rows)
        states = texts.states.float()
        if self._factors is not None:
            states = states * torch.from_numpy(self._factors).to(states.device)
        states_by_step = unrolled(self.config, tensors, self._model.embedding, replace(texts, states=states))
        return [functional.linear(state, outputs[0]) for state in states_by_step]

    def heads(self, tensors: HostTensors, card: HeadsCard | None) -> mtp.MtpHeads:
        """Heads to save."""
        return mtp.MtpHeads(self.config, self._scaled(tensors, 1.0), card).rounded()

    def trained(self, heads: Heads) -> HostTensors:
        """The tensors of saved heads, for features of unit size."""
        return self._scaled(heads.tensors, -1.0)

    def _scaled(self, tensors: HostTensors, power: float) -> HostTensors:
        if self._factors is None:
            return tensors
        return tensors | {mtp.FUSE: tensors[mtp.FUSE] * self._factors**power}


def chosen_layers(asked: str | None, num_layers: int) -> tuple[int, ...] | None:
    """The layers whose features a setting asks for; RequestError if the model has too few."""
    if asked is None:
        return None
    layers = eagle3_layers(num_layers) if asked == EAGLE3 else tuple(int(layer) for layer in asked.split(","))
    if len(set(layers)) < len(layers) or list(layers) != sorted(layers) or not 0 <= layers[0] <= layers[-1] < num_layers:
        named = f" ({', '.join(map(str, layers))})" if asked == EAGLE3 else ""
        raise RequestError(
            f"feature_layers is {asked}{named}, and the model has {num_layers} layers; list some of 0 to {num_layers - 1}, "
            "from low to high"
        )
    return layers


def eagle3_layers(num_layers: int) -> tuple[int, ...]:
    """EAGLE-3's own choice."""
    return 2, num_layers // 2, num_layers - 3


def feature_factors(model: FrozenModel, layers: Sequence[int]) -> NDArray[np.float32]:
    """Powers of two [F * D] that bring the streams before these layers to about unit size."""
    factors = [2.0 ** -round(math.log2(size)) if size > 0 else 1.0 for size in model.stream_sizes(layers)]
    return np.repeat(np.array(factors, dtype=np.float32), model.width)


FORMS: dict[str, type[MedusaForm] | type[HydraForm] | type[MtpForm]] = {
    "medusa": MedusaForm,
    "hydra": HydraForm,
    "mtp": MtpForm,
}


def check_kind(kind: str, settings: TrainSettings) -> None:
    """RequestError if there is no such kind, or if it does not read a setting that was given."""
    if kind not in FORMS:
        raise RequestError(f"heads of kind {kind!r} cannot be trained; choose {' or '.join(FORMS)}")
    for name in sorted(set().union(*(form.READS for form in FORMS.values())) - set(FORMS[kind].READS)):
        if getattr(settings, name) != getattr(TrainSettings(), name):
            raise RequestError(f"{name} has no effect with heads of kind {kind}")
    if kind != "medusa" and not settings.inner_factor:
        raise RequestError(f"inner_factor is 0, which heads of kind {kind} cannot have; it must be above 0")


def form_of(config: Any, model: FrozenModel) -> Form:
    """The form of heads that exist already."""
    form: Form = FORMS[config.kind](config, model)
    return form


def refuse_other_form(settings: TrainSettings, form: Form, init: object) -> None:
    """Heads that training starts from bring their form along: a setting that asks for another one could not take effect."""
    for name, value in form.settings().items():
        asked = getattr(settings, name)
        if asked not in (value, getattr(TrainSettings(), name)):
            raise RequestError(f"{name} is {asked!r}, which has no effect with init: the heads in {init} have {value!r}")
