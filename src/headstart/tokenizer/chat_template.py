"""Chat templates: messages to prompt text, in the dialect of Jinja that model folders and GGUF files carry.

A template comes with the model, so it is a stranger's program: it runs in Jinja's immutable sandbox. The dialect is Jinja with
``trim_blocks`` and ``lstrip_blocks``, ``break`` and ``continue`` in loops, ``raise_exception``, ``strftime_now``, a ``tojson``
that leaves non-ASCII text alone, and ``{% generation %}`` blocks (they mark the assistant's span for training; here they are
plain text).

Limits: the sandbox keeps a template from files and from Python, and whatever fails is one error; but a template may still loop
for hours or build a text as large as the memory.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from headstart.errors import HeadstartError, ModelError, RequestError

Message = Mapping[str, Any]
"""One turn: ``role``, ``content`` (text, or parts ``{"type": "text", "text": ...}``), and whatever else the template reads."""

_TEXT = "text"


class _GenerationBlock(jinja2.ext.Extension):
    tags = {"generation"}  # noqa: RUF012 - Jinja's own way to declare it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _to_json(value: Any, indent: int | None = None, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent, **options)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


class ChatTemplate:
    """A compiled chat template. ``variables`` are the special tokens it may name (``bos_token``, ``eos_token``, ...)."""

    def __init__(self, source: str, variables: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, _GenerationBlock]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        check_text(source, "The model's chat template", ModelError)
        self.source = source
        self.variables = dict(variables)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            reason = f"line {error.lineno}: {_reason(error)}"
            raise ModelError(f"The model's chat template does not compile: {reason}") from error
        except Exception as error:  # Jinja folds constants and Python compiles the result: either may fail in any way
            raise ModelError(f"The model's chat template does not compile: {_reason(error)}") from error

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool, extra: Mapping[str, Any]) -> str:
        """The prompt's text. ``extra`` is passed on (``tools``, ``enable_thinking``, ...).

        ``RequestError`` where the template refuses the messages, ``ModelError`` where it fails for another reason.
        """
        check_messages(messages)
        values = {**self.variables, "tools": None, "documents": None, **extra}
        values |= {"messages": [_with_text(message) for message in messages], "add_generation_prompt": add_generation_prompt}
        try:
            text = self._template.render(values)
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
            raise RequestError(f"The model's chat template refuses these messages: {_reason(error)}") from error
        except Exception as error:  # a stranger's program: recursion without end, memory, filters of Jinja that assert
            raise ModelError(f"The model's chat template cannot be rendered: {_reason(error)}") from error
        check_text(text, "What the model's chat template makes of these messages")
        return text


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply, or calls itself without end"
    if isinstance(error, MemoryError):
        return "it takes more memory than there is"
    text = error.message if isinstance(error, jinja2.TemplateError) else str(error)
    return " ".join((text or type(error).__name__).split())


def check_messages(messages: Sequence[Message]) -> None:
    """Refuse what no template can render: no messages, or one without a role or content, or with parts that are no text."""
    if isinstance(messages, str) or not isinstance(messages, Sequence) or not messages:
        raise RequestError("messages must be a non-empty list of {role, content}")
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise RequestError(f"Message {index} must be an object with role and content, not {type(message).__name__}")
        if not isinstance(message.get("role"), str) or not message["role"]:
            raise RequestError(f"Message {index} has no role")
        where, content = f"Message {index} ({message['role']})", message.get("content")
        if isinstance(content, bytes):
            raise RequestError(f"{where} has bytes for content; decode them to text")
        if isinstance(content, list | tuple):
            _check_parts(content, where)
        elif isinstance(content, str):
            check_text(content, f"The text of {where[0].lower()}{where[1:]}")
        if (not isinstance(content, str | list | tuple) or content in ([], ())) and not message.get("tool_calls"):
            raise RequestError(f"{where} has no content")


def check_text(text: str, where: str, kind: type[HeadstartError] = RequestError) -> None:
    """An error of the ``kind`` for text that UTF-8 cannot write, such as what broken bytes were read as; it names the place."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise kind(f"{where} is not valid at character {error.start}; give it in UTF-8") from None


def _check_parts(parts: Sequence[Any], where: str) -> None:
    """RequestError for the first part of a content that is no text."""
    for index, part in enumerate(parts):
        if not isinstance(part, Mapping) or not isinstance(part.get("type"), str):
            raise RequestError(f'{where}: part {index} must be an object such as {{"type": "text", "text": "..."}}')
        if part["type"] != _TEXT:
            raise RequestError(f"{where} has a part of type {part['type']}; only parts of type text can be read, leave it out")
        if not isinstance(part.get("text"), str):
            raise RequestError(f"{where}: part {index} is of type text and has no text")
        check_text(part["text"], f"{where}: part {index}")


def _with_text(message: Message) -> dict[str, Any]:
    """The message with the text of its parts as one, a line each: templates of text models know nothing of parts."""
    content = message.get("content")
    if not isinstance(content, list | tuple):
        return dict(message)
    return dict(message) | {"content": "\n".join(part["text"] for part in content)}
