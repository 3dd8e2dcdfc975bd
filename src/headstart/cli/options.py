"""Flags that follow from dataclasses: every default and every explanation stands once, beside the field.

A field's flag has its name, its type and its default; the help text is the comment behind the field, or stands here where the
name says it all. ``load`` keeps its own defaults: a flag that is not given is not passed on.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, make_dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, get_origin, get_type_hints

from cyclopts import Parameter, Token, convert

from headstart.errors import RequestError
from headstart.sampling import Sampling, fresh_seed

if TYPE_CHECKING:
    from headstart.llm import LLM

_WHOLE = re.compile(r"[+-]?[0-9]+")
_WHOLE_HINTS = (int, int | None, tuple[int, ...])
_COMMENT = re.compile(r"^    (\w+): .*?  # (.+)$", re.MULTILINE)

SAMPLING_HELP = {
    "temperature": "0: the likeliest token; above 0: sample",
    "top_p": "sample from the likeliest tokens that together reach this probability; 1: off",
    "min_p": "drop tokens less likely than this share of the likeliest one; 0: off",
    "logit_bias": "ID=VALUE, added to a token's logit (-inf bans it); may be repeated",
    "min_tokens": "no end before so many tokens",
    "stop": "end before this text; may be repeated",
    "stop_token_ids": "end at this token; may be repeated",
    "ignore_eos": "go on behind the model's own end",
    "n": "answers to the prompt",
}


def whole(hint: Any, tokens: Sequence[Token]) -> Any:
    """Convert whole numbers: the library's own conversion would round 2.5 to 2 in silence."""
    values = _split(hint, tokens)
    for value in values:
        if not _WHOLE.fullmatch(value):
            raise ValueError(f"{value!r} is no whole number")
    return convert(hint, values)


def listed(hint: Any, tokens: Sequence[Token]) -> Any:
    """Convert what stands between commas."""
    return convert(hint, _split(hint, tokens))


def _split(hint: Any, tokens: Sequence[Token]) -> list[str]:
    if get_origin(hint) is not tuple:
        return [token.value for token in tokens]
    return [value.strip() for token in tokens for value in token.value.split(",")]


def flags_of(
    source: type,
    texts: Mapping[str, str],
    types: Mapping[str, Any] | None = None,
    *,
    without: Collection[str] = (),
    with_commas: Collection[str] = (),
    optional: bool = False,
) -> type:
    """A dataclass of flags with the fields of ``source``; ``types`` replaces those that a shell cannot write.

    ``with_commas``: fields of several values, which stand between commas. ``optional``: a flag that is not given is None, so
    that a file may say it; its default stands in the help text alone.
    """
    comments = dict(_COMMENT.findall(inspect.getsource(source))) | dict(texts)
    hints = get_type_hints(source) | dict(types or {})
    made: list[tuple[str, Any, Any]] = []
    for entry in (entry for entry in fields(source) if entry.name not in without):
        default = entry.default if entry.default is not MISSING else ()
        shown = default is not None and default != () and default is not False
        text = comments.get(entry.name, "").replace("None:", "not given:")
        hint = hints[entry.name]
        if optional and default is not None:
            text, default, hint = f"{text} [default: {default}]".lstrip(), None, hint | None
        converter = whole if hints[entry.name] in _WHOLE_HINTS else listed if entry.name in with_commas else None
        parameter = Parameter(
            help=text + ("; several with commas" if entry.name in with_commas else ""),
            negative=None if default is True else (),
            show_default=_joined if isinstance(default, tuple) and default else shown and not optional,
            converter=converter,
            allow_leading_hyphen=hints[entry.name] == tuple[str, ...] and entry.name not in with_commas,
        )
        made.append((entry.name, Annotated[hint, parameter], field(default=default)))
    flags = make_dataclass(f"{source.__name__}Flags", made, frozen=True)
    flags.__module__ = __name__  # cyclopts takes classes of the standard library's modules for plain values
    return flags


def _joined(values: tuple[object, ...]) -> str:
    return ",".join(map(str, values))


def given(flags: Any) -> dict[str, Any]:
    """The flags by name."""
    return {entry.name: getattr(flags, entry.name) for entry in fields(flags)}


def named(flags: Any) -> dict[str, Any]:
    """What was given of these flags, as the command line calls it."""
    if flags is None:
        return {}
    usual = given(type(flags)())
    found = {f"--{name.replace('_', '-')}": value for name, value in given(flags).items() if value != usual[name]}
    return found or {"an option, also with its usual value,": flags}


if TYPE_CHECKING:
    SamplingFlags = Sampling
else:
    SamplingFlags = flags_of(Sampling, SAMPLING_HELP, {"logit_bias": tuple[str, ...]})


def sampling_of(flags: SamplingFlags | None) -> Sampling:
    """The request that the flags describe."""
    if flags is None:
        return Sampling()
    chosen: dict[str, Any] = given(flags)
    return Sampling(**chosen | {"logit_bias": dict(map(_bias, chosen["logit_bias"]))})


def seeded(request: Sampling) -> Sampling:
    """The request with a seed, drawn here where it samples and brings none: so that what is shown can be repeated."""
    return replace(request, seed=fresh_seed()) if request.seed is None and request.temperature > 0 else request


def _bias(text: str) -> tuple[int, float]:
    token, _, value = text.partition("=")
    try:
        return int(token), float(value)
    except ValueError:
        raise RequestError(f"--logit-bias is {text!r}; write ID=VALUE, such as 42=-1.5") from None


def switch(text: str) -> Parameter:
    """A flag that is off unless it is given."""
    return Parameter(help=text, negative=(), show_default=False)


@dataclass(frozen=True, slots=True)
class EngineFlags:
    """How the model is loaded."""

    dtype: Annotated[str | None, Parameter(help="float32, bfloat16, int8 (native), or auto for what the file stores")] = None
    kv_dtype: Annotated[str | None, Parameter(help="of the cache: bfloat16, float32, or auto (native)")] = None
    device: Annotated[str | None, Parameter(help="cpu, cuda, or auto")] = None
    target: Annotated[str | None, Parameter(help="engine: native (C++, on a CPU), hf (PyTorch), or auto")] = None


@dataclass(frozen=True, slots=True)
class ProposerFlags:
    """What the proposers read."""

    heads: Annotated[str | None, Parameter(help="folder of trained heads (medusa, hydra, mtp, combined)")] = None
    draft: Annotated[
        str | None, Parameter(help="a second model, or layers:N for the model's own first ones (draft_model, combined)")
    ] = None
    draft_dtype: Annotated[str | None, Parameter(help="dtype of the second model (draft_model, combined)")] = None
    growth: Annotated[str | None, Parameter(help="shape of the drafts: dynamic or static (medusa, combined)")] = None
    allow_other_base: Annotated[bool, switch("take heads that were trained for another base model (with heads)")] = False
    nodes: Annotated[int | None, Parameter(help="drafted nodes a step, at most", converter=whole)] = None

    def options(self) -> dict[str, Any]:
        """What was given, nodes apart."""
        return {name: value for name, value in given(self).items() if value not in (None, False) and name != "nodes"}


@dataclass(frozen=True, slots=True)
class AcceptFlags:
    """Which drafted tokens become text."""

    accept: Annotated[
        str | None, Parameter(help="exact (plain decoding's tokens), rejection or block (their distribution), typical (lossy)")
    ] = None
    epsilon: Annotated[float | None, Parameter(help="accept tokens likelier than this (typical)")] = None
    delta: Annotated[float | None, Parameter(help="or likelier than this share of exp(-entropy) (typical)")] = None


Engine = Annotated[EngineFlags | None, Parameter(name="*")]
Proposers = Annotated[ProposerFlags | None, Parameter(name="*")]
Accepting = Annotated[AcceptFlags | None, Parameter(name="*")]
Explain = Annotated[bool, switch("show on stderr what auto measured, asked and drafted")]
SamplingOptions = Annotated[SamplingFlags | None, Parameter(name="*")]
ModelName = Annotated[str, Parameter(help="a Hugging Face folder, a GGUF file, a hub id, or smollm2")]
ProposerName = Annotated[
    str | None,
    Parameter(help="auto (what pays, by what is measured), none, ngram, suffix, medusa, hydra, mtp, draft_model or combined"),
]
JsonFile = Annotated[str | None, Parameter(help="write the results as JSON to a file; - is stdout", allow_leading_hyphen=True)]


def check_explain(explain: bool, proposer: str | None) -> None:
    """RequestError before any work, if there will be nothing to explain."""
    from headstart.proposers.choose import AUTO

    if explain and proposer not in (None, AUTO):
        raise RequestError(f"--explain has no effect with proposer {proposer}, which drafts as it is told; auto chooses")


def read_input(read: Callable[[], str]) -> str:
    """What comes from stdin; RequestError if it is no text."""
    try:
        return read()
    except UnicodeDecodeError as error:
        raise RequestError(f"stdin is no {error.encoding} text at byte {error.start}; pipe in UTF-8") from None


def open_model(
    name: str,
    engine: EngineFlags | None,
    proposer: str | None,
    proposers: ProposerFlags | None,
    accepting: AcceptFlags | None = None,
    *,
    is_long: bool = False,
) -> LLM:
    """Load a model with what was given on the command line, and remark on how it was loaded.

    ``is_long``: for work that takes minutes, which tells in a pipe as well that it has begun.
    """
    from headstart.cli.terminal import remark, working
    from headstart.llm import load

    flags = given(engine or EngineFlags()) | given(accepting or AcceptFlags())
    options = {key: value for key, value in flags.items() if value is not None}
    if proposer is not None:
        options["proposer"] = proposer
    chosen = proposers or ProposerFlags()
    with working(f"loading {name}", is_long=is_long):
        llm = load(name, num_nodes=chosen.nodes, **options, **chosen.options())
    for note in llm.notes:
        remark(note)
    return llm
