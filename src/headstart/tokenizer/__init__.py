"""Text and tokens: ``Tokenizer`` (vocabulary and chat template) and ``Detokenizer`` (streaming). No PyTorch here."""

from headstart.tokenizer.chat_template import ChatTemplate, Message
from headstart.tokenizer.detokenizer import Detokenizer
from headstart.tokenizer.text import Tokenizer

__all__ = ["ChatTemplate", "Detokenizer", "Message", "Tokenizer"]
