"""The model that is pretrained: a Llama with heads for further tokens, each part of it able to run alone.

The decoder layer is that of ``target/torch_draft_layer.py``, which the heads decode with; over a batch its rows lie one behind
the other and attention looks at the sequences one by one. Embedding and output matrix are not tied (Gloeckle et al. 2024,
section 3). Weights are drawn from the seed alone, so that every process of a distributed run has the same.

How the heads hang together is a tree of :class:`Node`: what each reads, and which token it predicts (``heads/future.py`` has
the variants). The objective walks it.

Letters: B sequences, S positions, n = B S rows, D hidden size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from headstart.heads.future import LAYER, MODULE_INPUT, NORM, decoder_layer_shapes, head_name
from headstart.pretrain.sizes import ModelSizes
from headstart.target.torch_draft_layer import finished, projected_at, rms_norm, turns

_SCALE = 0.02  # of fresh weights
_OF_RESIDUAL = ("o_proj", "down_proj")  # what is added to the residual stream: smaller, the more layers there are
_TRANSFORMERS = {f"{LAYER}hidden_norm.weight": "input_layernorm.weight"}


@dataclass(frozen=True, slots=True)
class Rows:
    """The tokens of a batch, and the angles of its positions."""

    tokens: Tensor  # [B, S + num_future]
    length: int  # S
    turns: tuple[Tensor, Tensor]  # [n, d / 2] each

    @property
    def num_sequences(self) -> int:
        """B."""
        return int(self.tokens.shape[0])

    def ahead(self, distance: int) -> Tensor:
        """The token that stands so far behind each position, [n]; 0: its own."""
        return self.tokens[:, distance : distance + self.length].reshape(-1)


@dataclass(frozen=True, slots=True)
class Node:
    """A head: its state from the one it reads, both [n, D]; which token it predicts; and the heads that read its state."""

    predicts: int  # the token so many positions ahead
    run: Callable[[Tensor, Rows], Tensor]
    below: list[Node] = field(default_factory=list)


class DecoderLayer(nn.Module):
    """One layer of the Llama family over states."""

    def __init__(self, sizes: ModelSizes) -> None:
        super().__init__()
        self.sizes = sizes
        self._names = {name: name.split(".")[-2] for name in decoder_layer_shapes(sizes)}
        for name, shape in decoder_layer_shapes(sizes).items():
            self.register_parameter(self._names[name], nn.Parameter(torch.ones(shape)))

    @property
    def weights(self) -> dict[str, Tensor]:
        """Under the names of ``target/draft_layer.py``."""
        return {name: getattr(self, own) for name, own in self._names.items()}

    def forward(self, states: Tensor, rows: Rows) -> Tensor:
        """States [n, D] behind the layer."""
        sizes, weights = self.sizes, self.weights
        q, k, v = projected_at(sizes, weights, None, states, rows.turns)
        shape = (rows.num_sequences, rows.length, -1, sizes.head_dim)
        q, k, v = (each.view(shape).transpose(1, 2) for each in (q, k, v))
        grouped = sizes.num_key_value_heads < sizes.num_attention_heads
        found = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
        return finished(sizes, weights, states, found.transpose(1, 2).reshape(len(states), -1))


class Module(nn.Module):
    """A sequential module: a projection of the state before it beside the embedding of a token, then a decoder layer."""

    def __init__(self, sizes: ModelSizes) -> None:
        super().__init__()
        wide = sizes.hidden_size
        self.eh_proj = nn.Parameter(torch.ones(wide, 2 * wide))
        self.enorm, self.hnorm = nn.Parameter(torch.ones(wide)), nn.Parameter(torch.ones(wide))
        self.layer = DecoderLayer(sizes)

    def forward(self, states: Tensor, embedded: Tensor, rows: Rows) -> Tensor:
        """States [n, D] behind the module."""
        epsilon = self.layer.sizes.rms_norm_eps
        parts = [rms_norm(states, self.hnorm, epsilon), rms_norm(embedded, self.enorm, epsilon)]
        found: Tensor = self.layer(functional.linear(torch.cat(parts, dim=-1), self.eh_proj).to(states.dtype), rows)
        return found


class FutureModel(nn.Module):
    """Trunk, heads, last norm and output matrix."""

    def __init__(self, sizes: ModelSizes, seed: int) -> None:
        super().__init__()
        self.sizes = sizes
        shape = (sizes.vocab_size, sizes.hidden_size)
        self.embedding, self.output = nn.Parameter(torch.ones(shape)), nn.Parameter(torch.ones(shape))
        self.norm = nn.Parameter(torch.ones(sizes.hidden_size))
        self.layers = nn.ModuleList(DecoderLayer(sizes) for _ in range(sizes.num_base_layers))
        self.heads = nn.ModuleList(self._head() for _ in range(sizes.num_further))
        self._initialise(seed)

    def _head(self) -> nn.Module:
        variant, sizes = self.sizes.variant, self.sizes
        if variant == "sequential":
            return Module(sizes)
        if variant == "linear":
            return nn.Linear(sizes.hidden_size, sizes.hidden_size, bias=False)
        return nn.Identity() if variant == "anticausal" else DecoderLayer(sizes)

    @torch.no_grad()
    def _initialise(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        smaller = _SCALE / math.sqrt(2 * self.sizes.num_layers)
        for name, values in self.named_parameters():
            if values.ndim == 2:
                nn.init.normal_(values, std=smaller if name.endswith(_OF_RESIDUAL) else _SCALE, generator=generator)

    def rows(self, tokens: Tensor) -> Rows:
        """A batch [B, S + n] with what all layers need to know of it."""
        length = int(tokens.shape[1]) - self.sizes.num_future
        positions = torch.arange(length, device=tokens.device).repeat(tokens.shape[0])
        cosines, sines = (turn.float() for turn in turns(self.sizes, positions))
        return Rows(tokens, length, (cosines, sines))

    def trunk(self, rows: Rows) -> Tensor:
        """What all heads share: states [n, D] behind the trunk's layers."""
        states = functional.embedding(rows.ahead(0), self.embedding)
        for layer in self.layers[: self.sizes.num_trunk_layers]:
            states = layer(states, rows)
        return states

    def logits(self, states: Tensor) -> Tensor:
        """The unembedding of states [n, D]: [n, V], in float32."""
        return functional.linear(rms_norm(states, self.norm, self.sizes.rms_norm_eps), self.output).float()

    def states(self, rows: Rows) -> Iterator[tuple[int, Tensor]]:
        """States [n, D] of every head, each with how far ahead the token is that it predicts."""
        trunk = self.trunk(rows)
        waiting = [(node, trunk) for node in self.nodes()]
        while waiting:
            node, read = waiting.pop()
            states = node.run(read, rows)
            waiting += [(below, states) for below in node.below]
            yield node.predicts, states

    def nodes(self) -> list[Node]:
        """The heads that read the trunk's states."""
        variant, count = self.sizes.variant, self.sizes.num_future
        own = {i: self._node(i) for i in range(1, count + 1)}
        if variant == "anticausal":
            chain = [own[i] for i in range(count, 0, -1)]
        elif variant in ("causal", "sequential"):
            chain = [own[i] for i in range(1, count + 1)]
        elif variant == "linear":
            own[1].below.extend(own[i] for i in range(2, count + 1))
            return [own[1]]
        else:
            return list(own.values())
        for upper, lower in pairwise(chain):
            upper.below.append(lower)
        return chain[:1]

    def _node(self, predicts: int) -> Node:
        """The head that predicts the token so many positions ahead."""
        sizes = self.sizes
        if predicts > 1 and sizes.variant != "anticausal":
            head = self.heads[predicts - 2]
            if isinstance(head, Module):
                return Node(predicts, lambda states, rows: head(states, self._embedded(rows, predicts - 1), rows))
            if isinstance(head, nn.Linear):
                return Node(predicts, lambda states, rows: head(states).to(states.dtype))
            return Node(predicts, head)
        if sizes.variant in ("linear", "sequential"):  # the trunk is the whole next-token path
            return Node(predicts, lambda states, rows: states)
        return Node(predicts, self.layers[sizes.num_base_layers - predicts])

    def _embedded(self, rows: Rows, distance: int) -> Tensor:
        return functional.embedding(rows.ahead(distance), self.embedding)

    def base_tensors(self) -> dict[str, Tensor]:
        """The next-token path under transformers' names."""
        tensors: dict[str, Tensor] = {
            "model.embed_tokens.weight": self.embedding,
            "model.norm.weight": self.norm,
            "lm_head.weight": self.output,
        }
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, DecoderLayer)
            for name, values in layer.weights.items():
                tensors[f"model.layers.{index}.{_TRANSFORMERS.get(name, name.removeprefix(LAYER))}"] = values
        return {name: values.detach() for name, values in tensors.items()}

    def head_tensors(self) -> dict[str, Tensor]:
        """The other heads as ``heads/future.py`` names them."""
        tensors: dict[str, Tensor] = {NORM: self.norm}
        for index, head in enumerate(self.heads):
            own: dict[str, Tensor] = {}
            if isinstance(head, Module):
                own = head.layer.weights | {name: getattr(head, name.partition(".")[0]) for name in MODULE_INPUT}
            elif isinstance(head, DecoderLayer):
                own = head.weights
            elif isinstance(head, nn.Linear):
                own = {"weight": head.weight}
            tensors |= {f"{head_name(index)}{name}": values for name, values in own.items()}
        return {name: values.detach() for name, values in tensors.items()}
