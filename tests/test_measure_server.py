"""Servers with OpenAI's interface, measured against a small one of our own."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from headstart.cli import app
from headstart.errors import DataError
from headstart.measure.prompts import prompt_set
from headstart.measure.server import Request, measure_servers, server_table

PROMPTS = ["why?", "tell me.", "who are you?", "and then?", "so?"]


class Fake(BaseHTTPRequestHandler):
    """Answers four tokens, counts two drafts of three tokens an answer, of which three are accepted in all."""

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        server: Any = self.server
        if self.path == "/v1/models":
            self._send(json.dumps({"data": [{"id": "fake-model"}]}))
        elif server.answers is None or self.path != "/metrics":
            self.send_error(404)
        else:
            n = server.answers
            self._send(
                "# HELP vllm:spec_decode_num_drafts_total x\n"
                f'vllm:spec_decode_num_drafts_total{{engine="0",model_name="m"}} {2.0 * n}\n'
                f'vllm:spec_decode_num_draft_tokens_total{{engine="0",model_name="m"}} {6.0 * n}\n'
                f'vllm:spec_decode_num_accepted_tokens_total{{engine="0",model_name="m"}} {3.0 * n}\n'
                f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",position="0"}} {2.0 * n}\n'
                f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",position="1"}} {1.0 * n}\n'
                "vllm:num_requests_running 0.0\n"
            )

    def do_POST(self) -> None:
        server: Any = self.server
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server.asked.append(asked)
        if server.status != 200:
            self.send_error(server.status, "no such model")
            return
        with server.lock:
            server.answers = None if server.answers is None else server.answers + 1
        words = [asked["messages"][-1]["content"], " a", " b", " c"]
        events: list[dict[str, Any]] = [{"choices": [{"delta": {"role": "assistant", "content": ""}}]}]
        events += [{"choices": [{"delta": {"content": word}}]} for word in words]
        events += [{"choices": [], "usage": {"completion_tokens": 4}}]
        text = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
        self._send(text if server.sends is None else server.sends(text))

    def _send(self, text: str) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text.encode())


@pytest.fixture
def servers() -> Iterator[list[Any]]:
    """Two servers; the second has counters."""
    made: list[Any] = []
    for answers in (None, 7):
        server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Fake)
        server.answers, server.asked, server.lock, server.status = answers, [], threading.Lock(), 200
        server.sends = None  # what goes out instead of an answer's text
        server.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        made.append(server)
    yield made
    for server in made:
        server.shutdown()
        server.server_close()


def test_servers_are_measured_side_by_side_and_counters_are_read(servers: list[Any]) -> None:
    record = measure_servers([server.url for server in servers], prompt_set(PROMPTS), Request(max_tokens=9, batch=2))
    plain, fast = record["servers"]
    assert (plain["model"], plain["tokens"], plain["identical"], plain["speedup"]) == ("fake-model", 20, "5/5", 1.0)
    assert (plain["acceptance_length"], plain["acceptance_by_position"]) == (None, None)
    assert (fast["drafts"], fast["acceptance_length"], fast["acceptance_rate"]) == (10, 2.5, 0.5)  # without the warm-up
    assert fast["acceptance_by_position"] == [1.0, 0.5]
    assert fast["ms_per_token"]["p10"] >= 0 and fast["ms_to_first_token"]["median"] > 0
    asked = servers[0].asked
    assert len(asked) == 6 and {one["max_tokens"] for one in asked[1:]} == {9} and all(one["stream"] for one in asked)
    assert "127.0.0.1" not in json.dumps(record)
    assert [len(row) for row in server_table(record).rows] == [12, 12]


def test_sampled_answers_are_not_compared_and_a_model_may_be_named(servers: list[Any]) -> None:
    record = measure_servers([servers[0].url], prompt_set(PROMPTS[:1]), Request(temperature=0.7), model="mine")
    assert record["servers"][0]["identical"] is None and record["servers"][0]["speedup_interval"] is None
    assert servers[0].asked[-1]["model"] == "mine"


def test_a_server_that_does_not_answer_is_one_clear_line(servers: list[Any]) -> None:
    prompts = prompt_set(PROMPTS[:1])
    servers[0].status = 404
    with pytest.raises(DataError, match=r"/v1/chat/completions answers 404"):
        measure_servers([servers[0].url], prompts, Request())
    with pytest.raises(DataError, match=r"cannot be reached: .*; start the server"):
        measure_servers(["http://127.0.0.1:9"], prompts, Request())
    with pytest.raises(DataError, match="is no address"):
        measure_servers(["localhost:8000"], prompts, Request())


@pytest.mark.parametrize(
    "url, told",
    [
        ("http://local host:80", "is no address"),
        ("http://127.0.0.1:abc", "is no address"),
        ("http://[::1", "is no address"),
        ("http://a..b", "is no address|cannot be reached"),
    ],
)
def test_an_address_that_is_none_is_one_clear_line(url: str, told: str) -> None:
    with pytest.raises(DataError, match=told):
        measure_servers([url], prompt_set(PROMPTS[:1]), Request())


@pytest.mark.parametrize("greeting", [b"SSH-2.0-OpenSSH_9.2\r\n", b""])
def test_an_address_without_http_is_one_clear_line(greeting: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def greet() -> None:
            caller, _ = listener.accept()
            with caller:
                caller.recv(1 << 16)
                caller.sendall(greeting)

        threading.Thread(target=greet, daemon=True).start()
        with pytest.raises(DataError, match=r"does not speak HTTP|cannot be reached"):
            measure_servers([f"http://127.0.0.1:{listener.getsockname()[1]}"], prompt_set(PROMPTS[:1]), Request())


@pytest.mark.parametrize(
    "event",
    ["[1]", "3", '{"choices": [1]}', '{"choices": [{"delta": {"content": 1}}]}', '{"usage": {"completion_tokens": "x"}}'],
)
def test_an_event_of_another_form_is_one_clear_line(servers: list[Any], event: str) -> None:
    servers[0].sends = lambda text: f"data: {event}\n\n" + text
    with pytest.raises(DataError, match="none of a chat completion"):
        measure_servers([servers[0].url], prompt_set(PROMPTS[:1]), Request())


def test_an_answer_that_breaks_off_is_not_counted_as_a_whole_one(servers: list[Any]) -> None:
    servers[0].sends = lambda text: text[: text.index(" b")]
    with pytest.raises(DataError, match=r"no JSON|broke off"):
        measure_servers([servers[0].url], prompt_set(PROMPTS[:1]), Request())
    servers[0].sends = lambda text: text[: text.index("data: [DONE]")]
    with pytest.raises(DataError, match="broke off an answer behind 4 pieces"):
        measure_servers([servers[0].url], prompt_set(PROMPTS[:1]), Request())


def test_servers_on_the_command_line(servers: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["measure", "--url", ",".join(server.url for server in servers), "--limit", "3", "--max-tokens", "4"]
    assert app.run([*line, "--json", str(tmp_path / "r.json")]) == 0
    assert "fake-model" in capsys.readouterr().out
    assert json.loads((tmp_path / "r.json").read_text())["format"] == "headstart-server"
    assert app.run([*line, "--proposer", "ngram"]) == 1
    assert "--proposer has no effect with --url" in capsys.readouterr().err
    assert app.run([*line, "--batch", "1,2"]) == 1
    assert "one batch" in capsys.readouterr().err
