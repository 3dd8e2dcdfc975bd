"""The command line: every verb on a tiny saved model, its streams, its files and its errors."""

from __future__ import annotations

import errno
import io
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from chat_model import save_chat_model
from headstart.accept import Rule, Verdict, exact
from headstart.cli import app, chat, demo, options, terminal
from headstart.cli import pretrain as pretrain_verb
from headstart.cli import train as train_verb
from headstart.llm import Step
from headstart.measure.settings import MeasureSettings
from headstart.pretrain.settings import PretrainSettings
from headstart.sampling import Sampling
from headstart.train.settings import TrainSettings

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder that the native engine takes."""
    return save_chat_model(tmp_path_factory.mktemp("models") / "tiny-chat", head_dim=16)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command line in this process: its status, stdout and stderr."""

    def command(*arguments: str, stdin: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        capsys.readouterr()
        status = app.run(arguments)
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return command


def python(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=120, check=False, **options)


# help and errors


@pytest.mark.parametrize("verb", ["", *app.VERBS])
def test_help_answers_without_loading_an_engine(verb: str) -> None:
    code = (
        "import sys; from headstart.cli.app import run; status = run(sys.argv[1:]);"
        "heavy = {'torch', 'transformers', 'tokenizers', 'scipy'} & set(sys.modules);"
        "sys.exit(status or f'loaded {heavy}' if heavy else status)"
    )
    done = python("-c", code, *([verb] if verb else []), "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"Usage: headstart {verb}".strip() in done.stdout


def test_every_field_of_the_settings_is_a_flag_with_a_default_and_a_help_text() -> None:
    for source, made, without in (
        (Sampling, options.SamplingFlags, set()),
        (TrainSettings, train_verb.TrainFlags, set()),
        (PretrainSettings, pretrain_verb.PretrainFlags, set()),
        (MeasureSettings, options.flags_of(MeasureSettings, {}), set()),
    ):
        flags = {entry.name: entry for entry in fields(made)}
        assert flags.keys() == {entry.name for entry in fields(source)} - without
        for entry in flags.values():
            assert entry.type.__metadata__[0].help, f"{source.__name__}.{entry.name} has no help text"  # type: ignore[union-attr]


def test_flags_become_the_sampling_that_they_describe(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Sampling] = []
    monkeypatch.setattr("headstart.cli.generate.open_model", lambda *_: _Recorder(seen))
    line = (
        "generate m hi --temperature 0.5 --top-k 3 --top-p 0.9 --min-p 0.1 --repetition-penalty 1.1 --presence-penalty 0.2 "
        "--frequency-penalty 0.3 --logit-bias 3=1.5 --logit-bias 4=-inf --min-tokens 1 --max-tokens 9 --stop a --stop b "
        "--stop-token-ids 7 --ignore-eos --seed 11 --n 1"
    )
    assert run(*line.split())[0] == 0
    expected = Sampling(
        temperature=0.5, top_k=3, top_p=0.9, min_p=0.1, repetition_penalty=1.1, presence_penalty=0.2, frequency_penalty=0.3,
        logit_bias={3: 1.5, 4: float("-inf")}, min_tokens=1, max_tokens=9, stop=("a", "b"), stop_token_ids=(7,),
        ignore_eos=True, seed=11,
    )  # fmt: skip
    assert seen == [expected]
    run("generate", "m", "hi")
    assert seen[1] == Sampling()


class _Recorder:
    def __init__(self, seen: list[Sampling]) -> None:
        self._seen = seen

    def stream(self, prompt: object, sampling: Sampling, chat: bool | None) -> list[Step]:
        self._seen.append(sampling)
        return []


@pytest.mark.parametrize(
    ("line", "status", "reason"),
    [
        ("generate MODEL hi --temprature 1", 2, "Did you mean --temperature? See `headstart generate --help`."),
        ("generate MODEL hi --seed x", 2, "'x' is no whole number. See `headstart generate --help`."),
        ("generate MODEL why so blue", 2, "Nothing takes 'so' 'blue'; write what belongs together in quotes. See"),
        ("--temperature 1", 2, "See `headstart --help`."),
        ("gnerate", 2, 'Did you mean "generate"?'),
        ("generate", 2, "MODEL requires an argument"),
        ("generate MODEL hi --top-k x", 2, "--top-k"),
        ("generate MODEL hi --top-k 2.5", 2, "'2.5' is no whole number"),
        ("generate MODEL hi --stop-token-ids 7.2", 2, "'7.2' is no whole number"),
        ("generate MODEL hi --nodes 3.7", 2, "'3.7' is no whole number"),
        ("demo MODEL --max-tokens 9.9", 2, "'9.9' is no whole number"),
        ("train MODEL --out OUT --num-heads 2.5", 2, "'2.5' is no whole number"),
        ("measure MODEL --prompts no.jsonl --limit 1.5", 2, "'1.5' is no whole number"),
        ("generate MODEL hi --top-p 2", 1, "top_p is 2.0"),
        ("generate MODEL hi --logit-bias 3", 1, "write ID=VALUE"),
        ("generate MODEL hi --proposer ngrm", 1, "did you mean ngram"),
        ("generate MODEL hi --dtype float31", 1, "float31"),
        ("generate MODEL hi --proposer ngram --heads x", 1, "no effect with proposer ngram"),
        ("generate MODEL hi --proposer medusa", 1, "no heads fit"),
        ("generate MODEL hi --logprobs 1", 1, "--logprobs has no effect without --json"),
        ("generate MODEL hi --show-steps --n 2", 1, "--show-steps has no effect"),
        ("generate MODEL hi --raw --system x", 1, "--system has no effect with --raw"),
        ("generate MODEL", 1, "the prompt from stdin is empty"),
        ("generate no/such/model hi --json nowhere/x.json", 1, "there is no folder nowhere"),
        ("demo no/such/model --json nowhere/x.json", 1, "there is no folder nowhere"),
        ("measure no/such/model --prompts no.jsonl --json nowhere/x.json", 1, "there is no folder nowhere"),
        ("train no/such/model --out OUT --json nowhere/x.json", 1, "there is no folder nowhere"),
        ("train no/such/model --out OUT --json .", 1, "it must name a file"),
        ("generate no/such/model hi", 1, "no/such/model"),
        ("chat MODEL --n 2", 1, "--n has no effect in a chat"),
        ("measure MODEL --prompts no.jsonl", 1, "cannot read the prompts no.jsonl"),
        ("measure no/such/model --limit 0", 1, "limit is 0"),
        ("measure MODEL --price cheap", 2, "cheap"),
        ("measure MODEL --categories chat,jokes", 1, "category jokes has no prompts in the built-in set; there are chat,"),
        ("measure MODEL --batch 1,x", 2, "'x' is no whole number"),
        ("measure MODEL --batch 1,70", 1, "batch 70 needs as many prompts"),
        ("check MODEL --draws 0", 1, "draws is 0"),
        ("check MODEL --accept lucky", 1, "unknown accept rule 'lucky'"),
        ("check MODEL --proposer plain", 1, "plain decoding is what the others are checked against"),
        ("check MODEL --prompts no.jsonl", 1, "cannot read the prompts no.jsonl"),
        ("check no/such/model --json nowhere/x.json", 1, "there is no folder nowhere"),
        ("train MODEL --out OUT --epochs 0", 1, "epochs is 0"),
        ("train MODEL --out OUT --heads eagle", 1, "'eagle' cannot be trained"),
        ("train MODEL", 2, "--out requires an argument"),
    ],
)
def test_a_mistake_is_one_line_on_stderr(run: Run, model: str, tmp_path: Path, line: str, status: int, reason: str) -> None:
    names = {"MODEL": model, "OUT": str(tmp_path / "heads")}
    found, out, err = run(*(names.get(word, word) for word in line.split()))
    assert (found, out) == (status, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert reason in err


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("generate m hi --proposer ngrm", "unknown proposer 'ngrm'; did you mean ngram?"),
        ("generate m hi --proposer none --nodes 3", "num_nodes has no effect in plain decoding"),
        ("generate m hi --proposer none --accept block", "accept block has no effect in plain decoding"),
        ("generate m hi --heads NONE", "there is no such folder"),
        ("generate m hi --proposer mtp --heads NONE", "there is no such folder"),
        ("generate m hi --proposer medusa --growth wild", "growth is 'wild'"),
        ("generate m hi --proposer draft_model", "name it with --draft"),
        ("generate m hi --proposer draft_model --draft m --draft-dtype int3", "draft_dtype is 'int3'"),
        ("generate m hi --nodes -1", "num_nodes is -1"),
        ("generate m hi --explain --proposer ngram", "--explain has no effect with proposer ngram"),
        ("chat m --proposer foo", "known: auto, none, ngram"),
        ("chat m --explain --proposer none", "--explain has no effect with proposer none"),
        ("demo m --max-tokens 0", "max_tokens is 0"),
        ("demo m --json /proc/x.json", "the folder /proc takes no files"),
        ("measure m --proposer ngram,foo", "unknown proposer 'foo'; known: plain, auto, ngram, suffix"),
        ("measure m --proposer transformers", "measure it with --against transformers"),
        ("measure m --proposer plain --nodes 3", "num_nodes has no effect in plain decoding"),
        ("measure m --proposer ngram --growth static", "option growth has no effect without proposer medusa"),
        ("measure m --heads NONE", "there is no such folder"),
        ("measure m --dtype float32,int3", "dtype is 'int3'"),
        ("measure m --dtype int8,int8", "dtype int8 is given twice"),
        ("measure m --temperature 0,-1", "temperature is -1.0"),
        ("measure m --max-tokens 8 --min-tokens 9", "min_tokens is 9"),
        ("measure m --batch 70", "batch 70 needs as many prompts"),
        ("measure m --accept exact,foo", "unknown accept rule 'foo'"),
        ("measure m --epsilon 0.1", "option epsilon has no effect with accept exact"),
        ("measure m --against llama.cpp --against-python NONE", "it must be a Python that can be run"),
        ("measure m --against openvino --repetition-penalty 1.2", "cannot be compared with openvino"),
        ("measure m --html NONE/y.html", "there is no folder"),
        ("measure m --csv /proc/y.csv", "the folder /proc takes no files"),
        ("plan m --proposers foo", "unknown proposer 'foo'; known: ngram, suffix"),
        ("plan m --proposers auto", "auto decides by itself"),
        ("plan m --proposers plain", "plain decoding is what a plan compares with"),
        ("plan m --proposers ngram,ngram", "proposer ngram is given twice"),
        ("plan m --temperature -1", "temperature is -1.0"),
        ("check m --proposer ngram,foo", "unknown proposer 'foo'; known: ngram, suffix"),
        ("check m --accept typical", "there is nothing to check"),
        ("check m --nodes -1", "num_nodes is -1"),
        ("check m --heads NONE", "there is no such folder"),
        ("check m --growth wild", "growth is 'wild'"),
        ("train m --out /proc/x", "out cannot be written: the folder /proc takes no files"),
        ("train m --out FILE/x", "is no folder; name another place"),
        ("train m --out NONE --model-out /proc/x", "model_out cannot be written"),
        ("train m --out NONE --corpus /proc/x", "corpus cannot be written"),
        ("train m --out NONE --data NONE", "there is no such file"),
        ("train m --out NONE --init NONE", "there is no such folder"),
        ("train m --out NONE --mixture foo=1", "mixture names the kind 'foo', which there is not"),
        ("pretrain --data FILE --out /proc/x", "out cannot be written: the folder /proc takes no files"),
    ],
)
def test_what_no_model_could_do_is_refused_before_one_is_loaded(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, line: str, reason: str
) -> None:
    monkeypatch.setattr("headstart.target.loading.load_model", lambda *_, **__: pytest.fail("a model is loaded"))
    monkeypatch.setattr("headstart.train.base.Base.of", lambda *_, **__: pytest.fail("a model is loaded"))
    monkeypatch.setattr("headstart.pretrain.run.read_documents", lambda *_: pytest.fail("text is read"))
    (tmp_path / "file.txt").write_text("x", encoding="utf-8")
    names = {"NONE": str(tmp_path / "none"), "FILE": str(tmp_path / "file.txt")}
    for word, path in names.items():
        line = line.replace(word, path)
    status, out, err = run(*line.split())
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert err.startswith("error: ")
    assert reason in err
    assert [path.name for path in tmp_path.iterdir()] == ["file.txt"]


def test_an_empty_prompt_is_refused_from_argument_and_pipe(run: Run, model: str) -> None:
    for line, stdin in ((["generate", model, ""], ""), (["generate", model, "-"], "\n"), (["generate", model], "\n")):
        status, out, err = run(*line, stdin=stdin)
        assert (status, out) == (1, "")
        assert "empty" in err


def test_a_prompt_that_is_no_text_is_one_line(run: Run, model: str) -> None:
    for words in (["generate", model, "x\udcff"], ["generate", model, "x\udcff", "--raw"]):
        status, out, err = run(*words)
        assert (status, out) == (1, "")
        assert "not valid at character 1;" in err


@pytest.mark.parametrize("verb", ["generate", "chat"])
def test_a_pipe_that_carries_no_text_is_one_line(
    verb: str, model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\n"), "utf-8"))
    assert app.run([verb, model]) == 1
    assert capsys.readouterr().err == "error: stdin is no utf-8 text at byte 0; pipe in UTF-8\n"


def test_a_stop_string_may_begin_with_a_hyphen(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Sampling] = []
    monkeypatch.setattr("headstart.cli.generate.open_model", lambda *_: _Recorder(seen))
    assert run("generate", "m", "hi", "--stop", "---", "--stop", "-x", "--top-k", "3")[0] == 0
    assert seen == [Sampling(stop=("---", "-x"), top_k=3)]


def test_ctrl_c_ends_with_130_and_no_traceback(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("headstart.cli.generate.open_model", interrupted)
    assert run("generate", "m", "hi") == (130, "", "\n")


def test_outputs_in_one_file_are_refused_before_any_work(run: Run, tmp_path: Path) -> None:
    one = str(tmp_path / "out")
    status, _, err = run("measure", "smollm2", "--json", one, "--csv", f"{tmp_path}/../{tmp_path.name}/out")
    assert status == 1
    assert "--json and --csv name the same file" in err
    assert run("measure", "smollm2", "--json", "/dev/null", "--csv", "/dev/null", "--batch", "0")[2].count("same file") == 0


@pytest.mark.parametrize("error", [MemoryError("std::bad_alloc"), OSError(errno.ENOMEM, "Cannot allocate memory")])
def test_memory_that_does_not_suffice_is_one_line(run: Run, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def full(*_: Any) -> Any:
        raise error

    monkeypatch.setattr("headstart.cli.generate.open_model", full)
    status, _, err = run("generate", "smollm2", "hi")
    assert status == 1
    assert err.count("\n") == 1
    assert "not enough memory" in err


def test_ctrl_c_while_the_libraries_are_imported_ends_with_130_and_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "cyclopts.py").write_text("raise KeyboardInterrupt", encoding="utf-8")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from headstart.cli.app import main; main()"
    done = python("-c", code)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "\n")


def test_a_reader_that_goes_away_is_no_error(model: str) -> None:
    generate = f'"{sys.executable}" -m headstart generate "{model}" hi --max-tokens 60 --ignore-eos'
    command = f'{generate} | head -c 1; echo "${{PIPESTATUS[0]}}"'
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120, check=False)
    assert done.stderr == ""
    assert done.stdout[1:].strip() in ("0", "141")  # 0 if it was faster than head


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="no device that is always full")
@pytest.mark.parametrize(
    "words", ["--help", 'generate "{model}" hi --max-tokens 3', 'generate "{model}" hi --max-tokens 3 --json -']
)
def test_a_disk_that_is_full_under_the_output_is_one_line(model: str, words: str) -> None:
    command = f'"{sys.executable}" -m headstart {words.format(model=model)} > /dev/full'
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert done.stderr == "error: cannot write the output: No space left on device\n"


def test_output_that_was_closed_before_the_start_goes_nowhere(model: str, tmp_path: Path) -> None:
    generate = f'"{sys.executable}" -m headstart generate "{model}" hi --max-tokens 3'
    for command in (f'{generate} --json "{tmp_path}/a.json" >&-', f"{generate} >&- 2>&-"):
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert json.loads((tmp_path / "a.json").read_text())["tokens"]


def test_the_module_is_the_command(model: str) -> None:
    done = python("-m", "headstart", "generate", model, "-", "--max-tokens", "4", input="hi\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert python("-m", "headstart", "--version").stdout.strip() == "0.1.0"


# generate


def test_generate_writes_the_same_text_from_argument_and_pipe_with_any_proposer(run: Run, model: str) -> None:
    status, out, err = run("generate", model, "why so blue?", "--max-tokens", "20", "--proposer", "none")
    assert (status, err) == (0, "")
    assert len(out) > 1
    for line in (["-"], []):
        assert run("generate", model, *line, "--max-tokens", "20", "--proposer", "ngram", stdin="why so blue?\n")[1] == out


def test_steps_are_bracketed_in_a_pipe_and_counted_on_stderr(run: Run, model: str) -> None:
    plain = run("generate", model, "why?", "--max-tokens", "20", "--ignore-eos")[1]
    status, out, err = run("generate", model, "why?", "--max-tokens", "20", "--ignore-eos", "--show-steps")
    assert status == 0
    assert out.startswith("[")
    assert out.replace("][", "").strip("[]\n") == plain.strip("\n")
    assert err.startswith("20 tokens, ")
    assert "tokens/s" in err


def test_a_seed_that_was_drawn_is_shown_and_gives_the_same_text_again(run: Run, model: str) -> None:
    drawn = ("--max-tokens", "12", "--ignore-eos", "--temperature", "1")
    line = ("generate", model, "why?", *drawn)
    for more in ((), ("--explain",), ("--n", "2")):
        status, out, err = run(*line, *more)
        seed = err.rstrip().rpartition(", seed ")[2]
        assert (status, seed.isdigit()) == (0, True), err
        assert run(*line, *more, "--seed", seed)[1] == out
    _, out, err = run("chat", model, *drawn, stdin="why?\nwhy?\n")
    seeds = [each.rpartition(", seed ")[2] for each in err.splitlines() if "tokens/s" in each]
    assert len(set(seeds)) == 2 and all(seed.isdigit() for seed in seeds)
    assert out.startswith(run(*line, "--seed", seeds[0])[1])
    assert "seed" not in run("generate", model, "why?", "--max-tokens", "4", "--show-steps")[2]


def test_reasons_end_with_what_came_of_them(run: Run, model: str) -> None:
    limit = ("--max-tokens", "12", "--ignore-eos", "--explain")
    generate = ("generate", model, "why?", *limit)
    for line, stdin, num_tokens in (
        (generate, "", 12),
        ((*generate, "--n", "2", "--temperature", "1", "--seed", "3"), "", 24),
        (("chat", model, *limit), "why?\nand?\n", 24),
        (("measure", model, "--limit", "2", "--max-tokens", "8", "--proposer", "auto", "--explain", "--target", "hf"), "", 16),
    ):
        status, _, err = run(*line, stdin=stdin)
        reasons, _, last = err[: err.index(" tokens/s", err.index("share of the steps"))].rpartition("\n")
        assert (status, "ms at load" in reasons) == (0, True), err
        assert last.startswith(f"{num_tokens} tokens, ")
        assert " steps, L " in last


@pytest.mark.parametrize("verb", ["measure", "plan", "check"])
def test_work_that_takes_minutes_says_in_a_pipe_that_it_has_begun(run: Run, tmp_path: Path, verb: str) -> None:
    _, _, err = run(verb, str(tmp_path))
    assert err.startswith(f"loading {tmp_path}\nerror: ")


def test_progress_in_a_pipe_is_a_line_now_and_then(run: Run, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    clock = iter((0.0, 59.0, 61.0, 61.0, 90.0))
    monkeypatch.setattr("headstart.cli.terminal.time.monotonic", lambda: next(clock))
    with terminal.progress("measuring") as update:
        for done in (1, 2, 3):
            update(done, 4, "plain")
    assert capsys.readouterr().err == "measuring: plain, 50%\n"


def test_the_system_message_and_raw_text_reach_the_model(run: Run, model: str) -> None:
    answers = {
        run("generate", model, "why?", "--max-tokens", "20", *more)[1] for more in ([], ["--raw"], ["--system", "be rude"])
    }
    assert len(answers) == 3


def test_json_holds_the_answer_and_its_counts(run: Run, model: str, tmp_path: Path) -> None:
    path = tmp_path / "answer.json"
    line = [
        "generate",
        model,
        "why?",
        "--max-tokens",
        "12",
        "--temperature",
        "1",
        "--seed",
        "3",
        "--logprobs",
        "2",
        "--ignore-eos",
    ]
    _, text, _ = run(*line, "--json", str(path))
    status, out, err = run(*line, "--json", "-")
    assert (status, err) == (0, "")
    answer, saved = json.loads(out), json.loads(path.read_text())
    assert answer.keys() == saved.keys()
    assert answer["text"] == saved["text"] == text.removesuffix("\n")
    assert (answer["seed"], len(answer["tokens"]), answer["finish_reason"]) == (3, 12, "length")
    assert len(answer["logprobs"]) == 12
    assert len(answer["logprobs"][0]["top"]) == 2
    assert answer["stats"]["num_emitted"] == 11


def test_several_answers_are_all_written(run: Run, model: str) -> None:
    line = ["generate", model, "why?", "--max-tokens", "8", "--temperature", "1", "--seed", "3", "--n", "3"]
    _, out, _ = run(*line)
    assert out.count("--- answer ") == 3
    choices = json.loads(run(*line, "--json", "-")[1])["choices"]
    assert len({choice["seed"] for choice in choices}) == 3


# chat


def test_a_piped_chat_answers_turn_by_turn_and_forgets_on_request(run: Run, model: str) -> None:
    status, out, err = run("chat", model, "--max-tokens", "12", stdin="why?\nwhy?\n\n/clear\nwhy?\n/help\n/exit\nnot read\n")
    assert status == 0
    assert err.count("tokens/s") == 3
    assert chat._HELP in err
    first = run("generate", model, "why?", "--max-tokens", "12")[1]
    assert out.startswith(first)
    assert out.endswith(first)  # after /clear the same turn has the same answer
    assert out != 3 * first


def test_an_unknown_chat_command_is_refused(run: Run, model: str) -> None:
    status, _, err = run("chat", model, stdin="/quit\n")
    assert status == 1
    assert "unknown command /quit" in err


def test_a_conversation_that_outgrows_the_context_is_an_error(run: Run, model: str) -> None:
    status, _, err = run("chat", model, "--max-tokens", "2", stdin="a" * 300 + "\n")
    assert status == 1
    assert "context 256" in err


# measure


def test_measure_prints_a_table_and_writes_its_record(run: Run, model: str, tmp_path: Path) -> None:
    prompts, record = tmp_path / "prompts.jsonl", tmp_path / "record.json"
    lines = [{"prompt": f"why {i}?", "category": f"c{i % 2}"} for i in range(6)]
    prompts.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    line = ["measure", model, "--prompts", str(prompts), "--limit", "4", "--max-tokens", "8", "--batch", "2"]
    beside = ["--proposer", "ngram", "--against", "transformers", "--csv", str(tmp_path / "record.csv")]
    status, out, err = run(*line, "--target", "hf", *beside, "--json", str(record))
    assert status == 0, err
    assert [row.split()[0] for row in out.splitlines() if row][2:6] == ["proposer", "plain", "ngram", "transformers"]
    csv = (tmp_path / "record.csv").read_text().splitlines()
    assert [len(csv), csv[0].split(",")[:2], csv[2].split(",")[:2]] == [4, ["proposer", "accept"], ["ngram", "exact"]]
    assert "plain was added" in err
    saved = json.loads(record.read_text())
    assert saved["model"] == "tiny-chat"
    assert saved["source"]["kind"] == "folder"
    assert saved["prompts"]["categories"] == {"c0": 2, "c1": 2}
    assert str(tmp_path) not in record.read_text()
    assert [c["identical"] for c in saved["configurations"]] == ["4/4"] * 3
    status, out, _ = run(*line, "--json", "-")
    assert [c["proposer"] for c in json.loads(out)["configurations"]] == ["plain", "ngram", "auto"]


# check


def test_check_shows_what_was_compared_and_ends_well(run: Run, model: str, tmp_path: Path) -> None:
    record, prompts = tmp_path / "record.json", tmp_path / "prompts.jsonl"
    prompts.write_text("\n".join(json.dumps({"prompt": f"why {i}?"}) for i in range(3)), encoding="utf-8")
    line = ["check", model, "--prompts", str(prompts), "--max-tokens", "8"]
    status, out, err = run(*line, "--json", str(record))
    assert status == 0, err
    first = [row.split()[0] for row in out.splitlines()]
    assert (first[:3], first[-1]) == (["tiny-chat", "proposer", "ngram"], "identical:")
    assert "medusa was not checked: no heads fit" in err
    saved = json.loads(record.read_text())
    assert (saved["passed"], saved["prompts"]["number"], saved["settings"]["max_tokens"]) == (True, 3, 8)
    assert str(tmp_path) not in record.read_text()
    draft = ["--proposer", "draft_model", "--draft", "layers:1"]
    status, out, _ = run(*line, *draft, "--limit", "1", "--json", "-")
    assert [entry["proposer"] for entry in json.loads(out)["proposers"]] == ["draft_model"]


def test_check_of_a_wrong_engine_shows_the_first_difference_and_ends_with_1(
    run: Run, model: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def wrong(scored: Any, drafts: Any) -> Any:
        found = zip(exact(scored, drafts), drafts, strict=True)
        return [Verdict(verdict.path, (*verdict.tokens[:-1], 7)) if d.tree.num_drafted else verdict for verdict, d in found]

    rule = Rule("exact", wrong, "coupled", is_lossless=True, repeats_plain=True)
    monkeypatch.setattr("headstart.check.settings.choose_rule", lambda _: rule)
    record = tmp_path / "record.json"
    status, out, err = run(
        "check", model, "--proposer", "ngram", "--max-tokens", "24", "--accept", "exact", "--json", str(record)
    )
    assert status == 1
    assert "WRONG" in out
    assert "\nerror: ngram changes the text: fault in prompt " in err
    assert "(top-2 gap " in err
    assert json.loads(record.read_text())["passed"] is False


# train


def test_train_makes_heads_that_generate_uses(run: Run, model: str, tmp_path: Path) -> None:
    data, out = tmp_path / "data.jsonl", tmp_path / "heads"
    chats = [
        [{"role": "user", "content": f"why {a}?"}, {"role": "assistant", "content": f"so {a} it is."}] for a in "abcdefghij"
    ]
    data.write_text("\n".join(json.dumps({"messages": messages}) for messages in chats), encoding="utf-8")
    line = f"train {model} --out {out} --data {data} --epochs 2 --batch-rows 16 --minutes 0 --base-dtype float32 --num-heads 2"
    status, text, err = run(*line.split(), "--num-ranks", "4", "--held-out", "0.2", "--json", str(tmp_path / "result.json"))
    assert (status, err.startswith("capture: ")) == (0, True), err
    assert text.startswith("acceptance")
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["heads"], result["documents"]) == ("heads", 10)
    plain = run("generate", model, "why?", "--max-tokens", "12", "--proposer", "none")[1]
    status, text, err = run("generate", model, "why?", "--max-tokens", "12", "--proposer", "medusa", "--heads", str(out))
    assert (status, text, err) == (0, plain, "")


def test_train_with_the_model_ends_with_an_error_if_that_harmed_it(run: Run, model: str, tmp_path: Path) -> None:
    data, record = tmp_path / "data.jsonl", tmp_path / "result.json"
    data.write_text("\n".join(json.dumps({"turns": [f"why {a}?", f"so {a} it is."]}) for a in "abcdefghij"), encoding="utf-8")
    line = f"train {model} --out {tmp_path / 'heads'} --model-out {tmp_path / 'tuned'} --data {data} --epochs 1 --batch-rows 16"
    line += " --minutes 0 --base-dtype float32 --num-heads 2 --num-ranks 4 --held-out 0.2 --lora-rank 2"
    status, text, err = run(*line.split(), "--joint-rate", "1.0", "--json", str(record))
    assert status == 1
    assert "OUT OF ITS BOUNDS" in text
    assert f"error: {tmp_path / 'tuned'} is out of its bounds (max_harm 1.0%, max_divergence 0.05): held-out perplexity" in err
    assert json.loads(record.read_text())["tuned"]["is_within_bound"] is False


def test_train_of_several_kinds_names_the_best_one(run: Run, model: str, tmp_path: Path) -> None:
    data, record = tmp_path / "data.jsonl", tmp_path / "result.json"
    data.write_text("\n".join(json.dumps({"turns": [f"why {a}?", f"so {a} it is."]}) for a in "abcdefghij"), encoding="utf-8")
    line = f"train {model} --heads medusa,hydra --out {tmp_path / 'heads'} --data {data} --epochs 1 --batch-rows 16 --minutes 0"
    line += " --base-dtype float32 --num-heads 2 --num-ranks 4 --held-out 0.2 --decoded-prompts 1 --decoded-tokens 4"
    status, text, err = run(*line.split(), "--json", str(record))
    assert status == 0, err
    result = json.loads(record.read_text())
    best = result["offers"][0]
    assert f"best on this machine: {best['heads']} at {best['rows']} rows, {best['speedup']:.2f} times plain" in text
    assert result["kinds"].keys() == {"medusa", "hydra"}


# the engine


def test_what_a_user_should_know_of_the_engine_is_one_line_on_stderr(run: Run, tmp_path: Path) -> None:
    folder = save_chat_model(tmp_path / "odd", head_dim=8)
    status, out, err = run("generate", folder, "why?", "--max-tokens", "8")
    assert status == 0
    assert err.count("\n") == 1
    assert err.startswith("odd runs on PyTorch, several times slower on a CPU than the native engine: ")
    assert run("generate", folder, "why?", "--max-tokens", "8", "--target", "hf") == (0, out, "")
    status, out, err = run("generate", folder, "why?", "--target", "native")
    assert (status, out) == (1, "")
    assert err.startswith("error: odd cannot run on the native engine: ")


def test_both_engines_answer_alike_and_refuse_what_is_not_theirs(run: Run, model: str) -> None:
    line = ["generate", model, "why?", "--max-tokens", "12"]
    assert run(*line, "--target", "native", "--kv-dtype", "float32") == run(*line, "--target", "hf")
    assert "kv_dtype float32 exists on the native engine alone" in run(*line, "--target", "hf", "--kv-dtype", "float32")[2]


# demo


def test_demo_compares_both_ways_on_every_kind(run: Run, model: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(demo, "PROMPTS", {"chat": "why?", "code": "write it."})
    status, out, _ = run("demo", model, "--max-tokens", "10", "--json", str(tmp_path / "demo.json"))
    assert status == 0
    assert out.startswith("== chat\n[")
    assert "target steps" in out
    assert "100 tokens took " in out
    assert "identical: yes" in out
    saved = json.loads((tmp_path / "demo.json").read_text())
    assert [entry["identical"] for entry in saved["prompts"]] == [True, True]
    assert json.loads(run("demo", model, "--max-tokens", "4", "--json", "-")[1])["proposer"] == "auto"


# the terminal


def steps(*texts: str) -> Sequence[Step]:
    return [Step(text, tuple(range(len(text))), 0, 0) for text in texts]


def test_a_tally_counts_as_the_statistics_do() -> None:
    tally = terminal.Tally()
    for step in steps("a", "bcd", "", "e"):
        tally.add(step)
    assert (tally.num_tokens, tally.num_steps, tally.acceptance_length) == (5, 2, 2.0)
    assert tally.line(2.0) == "5 tokens, 2 steps, L 2.00, 2.5 tokens/s"
    tally.join(terminal.Tally(3, 1, 2))
    assert tally.line(2.0) == "8 tokens, 3 steps, L 2.00, 4.0 tokens/s"
    assert terminal.Tally().acceptance_length == 1.0


def test_blocks_alternate_their_colour_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    writer = terminal.StepWriter(show_steps=True)
    for step in steps("ab", "", "[c]", "d"):
        writer.write(step)
    out = capsys.readouterr().out
    assert "ab" in out
    assert "[c]" in out
    colours = [part.split("m")[0] for part in out.split("\x1b[") if not part.startswith("0m")]
    assert colours == ["", "1;36", "1;33", "1;36"]


def test_a_drawn_table_holds_every_cell(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    terminal.table(["a", "b"], [["x", "[1]"]])
    drawn = capsys.readouterr().out
    assert "[1]" in drawn
    assert "┃" in drawn


def test_the_rule_of_acceptance_is_an_option(run: Run, model: str, tmp_path: Path) -> None:
    file = tmp_path / "answer.json"
    sampled = ("--temperature", "0.8", "--max-tokens", "6", "--proposer", "ngram", "--json", str(file))
    status, _, err = run("generate", model, "hello", *sampled, "--accept", "typical", "--epsilon", "0.2")
    assert (status, "lossy" in err) == (0, True)
    answer = json.loads(file.read_text(encoding="utf-8"))
    assert (answer["accept"], answer["lossless"]) == ("typical", False)
    status, _, err = run("generate", model, "hello", *sampled, "--accept", "block")
    assert (status, "lossy" in err, json.loads(file.read_text(encoding="utf-8"))["lossless"]) == (0, False, True)
    status, _, err = run("generate", model, "hello", "--proposer", "ngram", "--accept", "block", "--delta", "0.3")
    assert status != 0
    assert "delta has no effect with accept block" in err
