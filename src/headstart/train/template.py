"""What stands around the turns of a chat, found out from the model's own chat template.

A template is a program, so its parts are read off what it renders: a conversation of four marker words is rendered and cut at
the markers. Nothing about any family of models is written here.

    opening  MARK  user_to_assistant  MARK  assistant_to_user  MARK  ...

``opening`` holds the system message that the template brings along, if any, and what introduces the user's first turn. The
pieces are tokenised one by one, as they are when one decodes: a prompt ends where the template's text ends, and the answer's
first token never merges with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from headstart.errors import DataError

Message = Mapping[str, str]
_MARKS = ("QzaVexo", "QzbVexo", "QzcVexo", "QzdVexo")


class Codec(Protocol):
    """Text to tokens and back, and the chat template."""

    @property
    def has_template(self) -> bool:
        """Whether the model was made for chats."""

    def encode(self, text: str) -> list[int]:
        """Tokens of a text; special tokens written in it are recognised, none is added."""

    def encode_whole(self, text: str) -> list[int]:
        """Tokens of a text that stands alone, behind what the model puts first (its beginning-of-text token, if any)."""

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of tokens, special tokens included."""

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
        """A conversation as the template writes it."""


@dataclass(frozen=True, slots=True)
class Turns:
    """Tokens around the turns of a chat."""

    opening: tuple[int, ...]
    user_to_assistant: tuple[int, ...]
    assistant_to_user: tuple[int, ...]

    @classmethod
    def of(cls, codec: Codec) -> Turns:
        """Read them off the template; DataError if it leaves messages out or reorders them."""
        roles = ("user", "assistant", "user", "assistant")
        messages = [{"role": role, "content": mark} for role, mark in zip(roles, _MARKS, strict=True)]
        parts = [codec.render(messages, add_generation_prompt=False)]
        for mark in _MARKS:
            head, found, tail = parts.pop().partition(mark)
            if not found:
                raise DataError("the model's chat template does not render a plain conversation in order; give data instead")
            parts += [head, tail]
        asked = codec.render(messages[:1], add_generation_prompt=True)
        return cls(
            tuple(codec.encode(parts[0])),
            tuple(codec.encode(asked.partition(_MARKS[0])[2])),
            tuple(codec.encode(parts[2])),
        )


def encode_chat(
    codec: Codec, messages: Sequence[Message], end_tokens: frozenset[int]
) -> tuple[list[int], list[tuple[int, int]]]:
    """Tokens of a conversation and the spans of its assistant turns, each up to its end token.

    Before each assistant turn the tokens are exactly those of the prompt that one would decode from.
    """
    tokens: list[int] = []
    spans: list[tuple[int, int]] = []
    written = ""
    for i, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        prompt = codec.render(messages[:i], add_generation_prompt=True)
        whole = codec.render(messages[: i + 1], add_generation_prompt=False)
        if not prompt.startswith(written) or not whole.startswith(prompt):
            raise DataError("the chat template rewrites earlier turns of this conversation; give it as single turns")
        tokens += codec.encode(prompt[len(written) :])
        answer = codec.encode(whole[len(prompt) :])
        last_end = max((j for j, token in enumerate(answer) if token in end_tokens), default=len(answer) - 1)
        answer = answer[: last_end + 1]
        spans.append((len(tokens), len(tokens) + len(answer)))
        tokens += answer
        written = prompt + codec.decode(answer)
    return tokens, [span for span in spans if span[0] < span[1]]
