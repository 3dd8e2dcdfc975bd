"""The base install: neither PyTorch nor transformers can be imported, and models are decoded, chatted with and measured."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from test_native_target import save_folder
from tiny import tiny_gpt2, tiny_llama

WITHOUT = """
import sys

class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "transformers", "accelerate"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Without())
"""
COMMAND = WITHOUT + "from headstart.cli import app\nsys.exit(app.run())"


def headstart(*arguments: str, code: str = COMMAND, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, input=stdin)


def output(*arguments: str, code: str = COMMAND, stdin: str = "") -> str:
    done = headstart(*arguments, code=code, stdin=stdin)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_the_real_model_answers_with_its_heads_and_with_prompt_lookup() -> None:
    question = ("generate", "smollm2", "Name three colours.", "--max-tokens", "24", "--temperature", "0.7", "--seed", "1")
    plain = output(*question, "--proposer", "none")
    assert len(plain) > 20
    answer = json.loads(output(*question, "--json", "-"))
    assert answer["text"] + "\n" == plain
    assert answer["stats"]["num_drafted"] > 0
    assert output(*question, "--proposer", "ngram") == plain


def test_the_library_finds_heads_and_imports_no_torch() -> None:
    code = WITHOUT + (
        "import headstart as hs\n"
        "llm = hs.load('smollm2')\n"
        "print(llm.proposer_name, llm.target.engine, llm.target.dtype, llm.target.fingerprint, llm.notes)\n"
        "print({'torch', 'transformers'} & set(sys.modules))\n"
    )
    assert output(code=code) == "auto native q4_1 fa7d33cbdbde7cc0 ()\nset()\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_folder(tmp_path_factory.mktemp("models") / "tiny", tiny_llama(head_dim=16))


def test_a_folder_with_a_chat_template_works(folder: Path) -> None:
    plain = output("generate", str(folder), "why?", "--system", "be short", "--max-tokens", "8", "--proposer", "none")
    draft = ("--proposer", "draft_model", "--draft", "layers:1")
    assert output("generate", str(folder), "why?", "--system", "be short", "--max-tokens", "8", *draft) == plain
    chat = ("chat", str(folder), "--max-tokens", "8", "--temperature", "0", "--proposer", "ngram")
    done = headstart(*chat, stdin="why?\n")
    assert (done.returncode, bool(done.stdout.strip())) == (0, True)
    assert "tokens/s" in done.stderr


def test_a_measurement_runs_and_says_that_the_reference_is_missing(folder: Path, tmp_path: Path) -> None:
    prompts, record = tmp_path / "prompts.jsonl", tmp_path / "record.json"
    prompts.write_text('{"prompt": "why?", "category": "c"}\n', encoding="utf-8")
    line = ("measure", str(folder), "--prompts", str(prompts), "--max-tokens", "8")
    done = headstart(*line, "--proposer", "plain,ngram", "--against", "transformers", "--json", str(record))
    saved = json.loads(record.read_text())
    assert (done.returncode, done.stderr.strip().splitlines()) == (0, [f"loading {folder}", *saved["notes"]])
    assert saved["notes"][0].startswith("transformers was not measured:") and "headstart[torch]" in saved["notes"][0]
    assert (saved["engine"], saved["machine"]["threads"] > 0, "isa" in saved["machine"]) == ("native", True, True)
    assert [entry["lossless"] for entry in saved["configurations"]] == [True, True]


def test_what_needs_pytorch_names_the_extra(folder: Path, tmp_path: Path) -> None:
    other = save_folder(tmp_path / "other", tiny_gpt2())
    for line, reason in (
        (("generate", str(folder), "why?", "--target", "hf"), ""),
        (("generate", str(other), "why?"), "the native engine knows no gpt2 models"),
        (("train", str(folder), "--out", str(tmp_path / "heads")), ""),
        (("generate", str(folder), "why?", "--device", "cuda"), ""),
    ):
        done = headstart(*line)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.count("\n") == 1
        assert "pip install 'headstart[torch]'" in done.stderr
        assert reason in done.stderr
