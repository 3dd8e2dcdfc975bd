"""Any server with OpenAI's interface, as its users see it: latency, tokens a second, and vLLM's counters of speculation.

The first address is what the others are compared with: the same model without speculation, say, beside one with it. Each
batch of prompts goes to every server before the next batch, and who goes first rotates. Answers are streamed, so the first
token has a time of its own; tokens are those of the server's own count. At temperature 0 answers are compared as text.

L and acceptance by position come from ``/metrics`` before and after: vLLM counts drafts, drafted and accepted tokens. A server
without these counters is measured all the same, and its L is not known.
"""

from __future__ import annotations

import http.client
import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from headstart.errors import DataError
from headstart.measure.intervals import Rate, interval, percentiles
from headstart.measure.prompts import Prompt, PromptSet
from headstart.measure.tables import Table

FORMAT, VERSION = "headstart-server", 1
_PATIENCE = 600.0  # seconds without a byte
_COUNTER = re.compile(r"^vllm:spec_decode_(num_\w+?)(?:_total)?(?:\{(?P<labels>[^}]*)\})? (?P<value>[0-9.eE+]+)$", re.MULTILINE)
_POSITION = re.compile(r'position="(\d+)"')

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked of every server, beside the prompts."""

    max_tokens: int = 128
    temperature: float = 0.0
    seed: int = 0
    batch: int = 1  # requests in flight


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer; seconds from the request to the first token and to the last."""

    text: str
    num_tokens: int
    first: float
    seconds: float


@dataclass(slots=True)
class Served:
    """One server's replies, the seconds of each batch, and what its counters rose by."""

    url: str
    model: str
    replies: list[Reply] = field(default_factory=list)
    batch_seconds: list[float] = field(default_factory=list)
    counters: dict[str, float] = field(default_factory=dict)


def measure_servers(
    urls: Sequence[str], prompts: PromptSet, request: Request, *, model: str | None = None, progress: Progress | None = None
) -> dict[str, Any]:
    """The record; DataError for a server that does not answer."""
    servers = [Served(url.rstrip("/"), model or _first_model(url.rstrip("/"))) for url in urls]
    groups = [prompts.prompts[i : i + request.batch] for i in range(0, len(prompts.prompts), request.batch)]
    total, done = len(groups) * len(servers), 0
    for server in servers:
        _ask(server, prompts.prompts[0], Request(max_tokens=1))  # warms up
    before = [_counters(server.url) for server in servers]
    for number, group in enumerate(groups):
        first = number % len(servers)
        for server in (*servers[first:], *servers[:first]):
            if progress:
                progress(done, total, server.url)
            started = time.perf_counter()
            with ThreadPoolExecutor(len(group)) as pool:
                server.replies += pool.map(lambda prompt, to=server: _ask(to, prompt, request), group)
            server.batch_seconds.append(time.perf_counter() - started)
            done += 1
    for server, old in zip(servers, before, strict=True):
        server.counters = {name: value - old.get(name, 0.0) for name, value in _counters(server.url).items()}
    return {
        "format": FORMAT,
        "version": VERSION,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "prompts": prompts.describe(),
        "request": {"max_tokens": request.max_tokens, "temperature": request.temperature, "seed": request.seed},
        "batch": request.batch,
        "servers": [_described(server, servers[0], request) for server in servers],
    }


def server_table(record: Mapping[str, Any]) -> Table:
    """A row a server, the first being what the others are compared with."""
    header = ["server", "model", "tokens", "ms/token", "p10", "p90", "first ms", "tokens/s", "speedup", "95%", "L", "same text"]
    rows = []
    for number, one in enumerate(record["servers"], start=1):
        each, first = one["ms_per_token"], one["ms_to_first_token"]
        spread = [f"{each[key]:.1f}" for key in ("median", "p10", "p90")] if each else ["-"] * 3
        low_high = one["speedup_interval"]
        rows.append(
            [
                str(number),
                one["model"],
                str(one["tokens"]),
                *spread,
                f"{first['median']:.0f}" if first else "-",
                f"{one['tokens_per_second']:.1f}",
                f"{one['speedup']:.2f}",
                f"{low_high[0]:.2f}-{low_high[1]:.2f}" if low_high and number > 1 else "-",
                f"{one['acceptance_length']:.2f}" if one["acceptance_length"] else "-",
                one["identical"] or "-",
            ]
        )
    return Table("servers", header, rows)


def _described(server: Served, base: Served, request: Request) -> dict[str, Any]:
    tokens, seconds = sum(reply.num_tokens for reply in server.replies), sum(server.batch_seconds)
    base_tokens, base_seconds = sum(reply.num_tokens for reply in base.replies), sum(base.batch_seconds)
    own, its = _rate(server, request.batch), _rate(base, request.batch)
    found = interval([own], [its])
    same = sum(a.text == b.text for a, b in zip(server.replies, base.replies, strict=True))
    return {
        "model": server.model,
        "tokens": tokens,
        "seconds": seconds,
        "tokens_per_second": tokens / seconds,
        "ms_per_token": percentiles(
            [1000 * (r.seconds - r.first) / (r.num_tokens - 1) for r in server.replies if r.num_tokens > 1]
        ),
        "ms_to_first_token": percentiles([1000 * r.first for r in server.replies]),
        "speedup": (tokens / seconds) / (base_tokens / base_seconds) if base_tokens else 0.0,
        "speedup_interval": [found.low, found.high] if found and len(own.over) > 1 else None,
        "identical": f"{same}/{len(server.replies)}" if request.temperature == 0 else None,
        **_speculation(server.counters),
    }


def _rate(server: Served, batch: int) -> Rate:
    """Tokens over seconds of each batch."""
    sizes = [server.replies[i : i + batch] for i in range(0, len(server.replies), batch)]
    return Rate([float(sum(reply.num_tokens for reply in group)) for group in sizes], server.batch_seconds)


def _speculation(counters: Mapping[str, float]) -> dict[str, Any]:
    """L, rate and acceptance by position, by the server's own counters; None where it has none or did not draft."""
    drafts, drafted = counters.get("num_drafts", 0.0), counters.get("num_draft_tokens", 0.0)
    accepted = counters.get("num_accepted_tokens", 0.0)
    if not drafts:
        return {"drafts": None, "acceptance_length": None, "acceptance_rate": None, "acceptance_by_position": None}
    places = sorted(int(name.rpartition(" ")[2]) for name in counters if name.startswith("num_accepted_tokens_per_pos "))
    return {
        "drafts": int(drafts),
        "acceptance_length": 1 + accepted / drafts,
        "acceptance_rate": accepted / drafted if drafted else 0.0,
        "acceptance_by_position": [counters[f"num_accepted_tokens_per_pos {place}"] / drafts for place in places],
    }


def _counters(url: str) -> dict[str, float]:
    """VLLM's counters of speculation, summed over models and engines; empty if there are none."""
    try:
        with _open(f"{url}/metrics") as answer:
            text = answer.read().decode("utf-8", "replace")
    except DataError:
        return {}
    found: dict[str, float] = {}
    for match in _COUNTER.finditer(text):
        position = _POSITION.search(match["labels"] or "")
        name = f"{match[1]} {position[1]}" if position else match[1]
        found[name] = found.get(name, 0.0) + float(match["value"])
    return found


def _first_model(url: str) -> str:
    with _open(f"{url}/v1/models") as answer:
        try:
            return str(json.load(answer)["data"][0]["id"])
        except (ValueError, KeyError, IndexError, TypeError):
            raise DataError(f"{url}/v1/models names no model; give the model's name") from None


def _ask(server: Served, prompt: Prompt, request: Request) -> Reply:
    messages = prompt.content if isinstance(prompt.content, list) else [{"role": "user", "content": prompt.content}]
    body = {
        "model": server.model,
        "messages": messages,
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "seed": request.seed,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    started = time.perf_counter()
    pieces: list[str] = []
    first = last = 0.0
    counted: int | None = None
    is_whole = False
    with _open(f"{server.url}/v1/chat/completions", body) as answer:
        for event in _events(answer, server.url):
            counted = event.counted if event.counted is not None else counted
            is_whole = is_whole or event.is_end
            if event.text:
                last = time.perf_counter() - started
                first = first or last
                pieces.append(event.text)
    if not is_whole:
        raise DataError(f"{server.url} broke off an answer behind {len(pieces)} pieces; look at its log, then measure anew")
    return Reply("".join(pieces), len(pieces) if counted is None else counted, first, last)


@dataclass(frozen=True, slots=True)
class Event:
    """What one event of a stream says."""

    text: str = ""
    counted: int | None = None  # tokens so far, where the server says it
    is_end: bool = False


def _events(answer: Any, url: str) -> Iterator[Event]:
    for line in answer:
        text = line.decode("utf-8", "replace").strip()
        if not text.startswith("data:"):
            continue
        text = text.removeprefix("data:").strip()
        yield Event(is_end=True) if text == "[DONE]" else _event(text, url)


def _event(text: str, url: str) -> Event:
    try:
        event = json.loads(text)
    except (ValueError, RecursionError):
        raise DataError(f"{url} sent an event that is no JSON: {text[:80]}") from None
    if isinstance(event, dict) and "error" in event:
        raise DataError(f"{url} refused: {event['error']}")
    try:
        choices = event.get("choices") or []
        pieces = [(choice.get("delta") or {}).get("content") or "" for choice in choices]
        counted = (event.get("usage") or {}).get("completion_tokens")
        is_end = any(choice.get("finish_reason") for choice in choices)
        return Event("".join(pieces), None if counted is None else int(counted), is_end)
    except (AttributeError, TypeError, ValueError):
        raise DataError(f"{url} sent an event that is none of a chat completion: {text[:80]}") from None


@contextmanager
def _open(url: str, body: Mapping[str, Any] | None = None) -> Iterator[Any]:
    with _asked(url, body) as answer:
        try:
            yield answer
        except (http.client.HTTPException, OSError) as error:
            raise DataError(f"{url} broke off its answer ({error}); look at its log, then measure anew") from None


def _asked(url: str, body: Mapping[str, Any] | None) -> Any:
    if not url.startswith(("http://", "https://")):
        raise DataError(f"{url} is no address; it begins with http:// or https://")
    data = None if body is None else json.dumps(body).encode()
    try:
        asked = urllib.request.Request(url, data, {"Content-Type": "application/json"})
        return urllib.request.urlopen(asked, timeout=_PATIENCE)
    except urllib.error.HTTPError as error:
        with error:
            reason = error.read().decode("utf-8", "replace").strip()[:200]
        raise DataError(f"{url} answers {error.code}: {reason}") from None
    except OSError as error:
        why = error.reason if isinstance(error, urllib.error.URLError) else error
        raise DataError(f"{url} cannot be reached: {why}; start the server, or correct the address") from None
    except (http.client.InvalidURL, ValueError) as error:
        raise DataError(f"{url} is no address: {error}") from None
    except http.client.HTTPException as error:
        raise DataError(f"{url} does not speak HTTP ({str(error).strip() or 'no answer'}); correct the address") from None
