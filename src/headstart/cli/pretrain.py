"""``headstart pretrain``: a small model from scratch that predicts several tokens at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from headstart.cli.options import JsonFile, flags_of, given, switch
from headstart.errors import RequestError
from headstart.pretrain.settings import PretrainSettings, read_config

if TYPE_CHECKING:
    from headstart.pretrain import PretrainResult

    PretrainFlags = PretrainSettings
else:
    _TEXTS = {
        "heads": "attention heads",
        "steps": "updates of the weights",
        "weight_decay": "of the optimiser, on matrices",
        "betas": "of the optimiser, two numbers",
        "seed": "of the weights and the order of the text",
    }
    PretrainFlags = flags_of(PretrainSettings, _TEXTS, optional=True)

PretrainOptions = Annotated[PretrainFlags | None, Parameter(name="*")]


def pretrain(
    *,
    data: Annotated[
        tuple[str, ...],
        Parameter(
            help="text files, or .jsonl with a text a line; several in a row",
            consume_multiple=True,
            negative=(),
            show_default=False,
        ),
    ] = (),
    out: Annotated[
        str | None, Parameter(help="folder for the model; what can be thrown away afterwards lies beside it")
    ] = None,
    config: Annotated[str | None, Parameter(help="TOML file with these options by name (with _ for -); flags go first")] = None,
    no_resume: Annotated[bool, switch("begin anew, even where a stopped run could go on")] = False,
    json: JsonFile = None,
    settings: PretrainOptions = None,
) -> None:
    """Pretrain a small model to predict several tokens at once; a run that was stopped goes on."""
    from headstart.cli.terminal import STDOUT, check_json, progress, reporter, write_json

    check_json(json)
    options: dict[str, Any] = read_config(config) if config else {}
    if settings is not None:
        options |= {name: value for name, value in given(settings).items() if value is not None}
    files, folder = data or options.pop("data", ()), out or options.pop("out", None)
    options = {name: value for name, value in options.items() if name not in ("data", "out")}
    if not files or folder is None:
        raise RequestError(f"--{'data' if not files else 'out'} is missing; give it, or name it in the file of --config")
    chosen = PretrainSettings.of(**options)
    from headstart.pretrain import pretrain as run

    with progress("pretraining") as update:
        result = run(files, folder, resume=not no_resume, settings=chosen, report=reporter(update))
    if not result.is_first:
        return
    if json != STDOUT:
        _show(result)
    if json is not None:
        write_json(json, describe(result))


def _show(result: PretrainResult) -> None:
    from headstart.cli.terminal import say, table

    last = result.progress.curve[-1]
    measured = last.get("held_out_loss") or last["loss"]
    shares = last.get("held_out_accuracy")
    rows = []
    for ahead, loss in enumerate(measured, start=1):
        rows.append([str(ahead), "–" if loss is None else f"{loss:.3f}", f"{shares[ahead - 1]:.3f}" if shares else "–"])
    table(["tokens ahead", "held-out loss" if "held_out_loss" in last else "training loss", "first guess right"], rows)
    say(
        f"{result.path.name}: {result.progress.num_tokens} tokens seen, {result.progress.seconds / 60:.1f} minutes, "
        f"{result.sizes.body_parameters} parameters without embedding and output matrix"
    )


def describe(result: PretrainResult) -> dict[str, Any]:
    """The result as JSON."""
    return {
        "model": result.path.name,
        "body_parameters": result.sizes.body_parameters,
        "layers_of_the_next_token_path": result.sizes.num_base_layers,
        "train_tokens": result.num_train_tokens,
        "steps": result.progress.step,
        "tokens": result.progress.num_tokens,
        "seconds": result.progress.seconds,
        "curve": result.progress.curve,
    }
