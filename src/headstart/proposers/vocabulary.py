"""Whether two models speak the same tokens, which a draft model must do with its target."""

from __future__ import annotations

from typing import Protocol

from headstart.errors import ModelError


class Vocabulary(Protocol):
    """What is compared of two tokenizers."""

    @property
    def vocab_size(self) -> int:
        """Ids are below."""

    def token_text(self, token: int) -> str | None:
        """The token of an id; None in padding rows."""

    def token_id(self, text: str) -> int | None:
        """The id of a token, if it is one."""


def check_vocabularies(target: Vocabulary, draft: Vocabulary) -> None:
    """Raise a ModelError that names the first token on which two vocabularies disagree.

    Ids that only one of them uses are padding rows of the other and do no harm: they are never proposed.
    """
    for token in range(max(target.vocab_size, draft.vocab_size)):
        texts = [v.token_text(token) if token < v.vocab_size else None for v in (target, draft)]
        moved = None not in texts and texts[0] != texts[1]
        for text, other in ((texts[0], draft), (texts[1], target)):
            moved = moved or (text is not None and other.token_id(text) not in (None, token))
        if moved:
            raise ModelError(
                f"the draft model's vocabulary differs from the target's: token {token} is {texts[0]!r} in the target and "
                f"{texts[1]!r} in the draft; choose a draft model of the same family"
            )
