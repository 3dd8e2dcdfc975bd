"""``headstart train``: heads that guess for a model, from text that the model writes itself or from yours."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from headstart.cli.options import JsonFile, ModelName, flags_of, given, switch
from headstart.errors import TrainingError
from headstart.train.settings import TrainSettings

if TYPE_CHECKING:
    from headstart.train import TrainResult
    from headstart.train.offers import Offer
    from headstart.train.result import Tuned

    TrainFlags = TrainSettings
else:
    _TEXTS = {
        "minutes": "the whole budget, writing the corpus included; 0: no limit",
        "states_dtype": "of the captured states",
        "batch_rows": "positions in one step",
        "evaluation_rows": "positions of one such measurement, at most",
        "checkpoint_minutes": "between two checkpoints",
        "online": "recompute hidden states for each batch (no disk) instead of capturing them once",
        "max_bad_batches": "batches with NaN in a row, before training stops",
        "num_heads": "heads, each for one position farther ahead; none: 3 of kind medusa, 4 of others",
        "num_blocks": "residual blocks of a head (medusa)",
        "sees_root": "let heads read the root's embedding; without it: the published form (medusa)",
        "learning_rate": "of the optimiser, after its warm-up",
        "weight_decay": "of the optimiser",
        "betas": "of the optimiser, two numbers",
        "seed": "of the corpus, the heads and the order",
    }
    TrainFlags = flags_of(TrainSettings, _TEXTS)

TrainOptions = Annotated[TrainFlags | None, Parameter(name="*")]


def train(
    model: ModelName,
    /,
    *,
    out: Annotated[str, Parameter(help="folder for the heads; what can be thrown away afterwards lies beside it")],
    heads: Annotated[
        str | None,
        Parameter(help="kind of heads: medusa (parallel), hydra (sequential), mtp (a decoder layer), or several: medusa,hydra"),
    ] = None,
    data: Annotated[str | None, Parameter(help="JSON Lines of chats or texts; without it the model writes its own")] = None,
    corpus: Annotated[str | None, Parameter(help="folder of a corpus that the model wrote or goes on writing")] = None,
    init: Annotated[str | None, Parameter(help="folder of heads to start from")] = None,
    model_out: Annotated[
        str | None, Parameter(help="train the model too (Medusa-2), and save what comes of it in this folder")
    ] = None,
    no_resume: Annotated[bool, switch("begin anew, even where a stopped run could go on")] = False,
    json: JsonFile = None,
    settings: TrainOptions = None,
) -> None:
    """Train heads for a model, which stays as it is unless told otherwise; a run that was stopped goes on."""
    from headstart.cli.terminal import STDOUT, check_json, progress, reporter, write_json

    check_json(json)
    chosen = TrainSettings(**given(settings)) if settings else TrainSettings()
    options: dict[str, Any] = {"heads": heads} if heads else {}
    from headstart.train import train as run

    with progress("training") as update:
        result = run(
            model,
            out=out,
            data=data,
            corpus=corpus,
            init=init,
            model_out=model_out,
            resume=not no_resume,
            settings=chosen,
            report=reporter(update),
            **options,
        )
    if json != STDOUT:
        _show(result)
    if json is not None:
        write_json(json, describe(result))
    if result.tuned is not None and not result.tuned.is_within_bound:
        raise TrainingError(
            f"{result.tuned.path} is out of its bounds (max_harm {chosen.max_harm:.1%}, max_divergence "
            f"{chosen.max_divergence}): {result.tuned.quality}; lower joint_rate, base_rate or heads_weight"
        )


def _show(result: TrainResult) -> None:
    from headstart.cli.terminal import say, table

    rows = []
    for name, measured in (("before", result.before), ("after", result.after)):
        shares = [f"{share:.3f}" for share in measured.by_position]
        rows.append([name, *shares, *(f"{length:.2f}" for length in measured.predicted_length.values())])
    for kind, found in result.by_kind.items():
        shares = [f"{share:.3f}" for share in found.by_position]
        rows.append([f"after, {kind}", *shares, *(f"{length:.2f}" for length in found.predicted_length.values())])
    positions = [f"position {i}" for i, _ in enumerate(result.after.by_position, start=1)]
    table(["acceptance", *positions, *(f"L, {n} rows" for n in result.after.predicted_length)], rows)
    say(
        f"{result.path}: {result.num_documents} documents, {result.num_corpus_tokens} supervised tokens "
        f"({result.supervised_share:.0%} of all), best at step {result.progress.best_step} of {result.progress.step}, "
        f"{result.progress.num_skipped} batches skipped, {result.seconds / 60:.1f} minutes"
    )
    if result.offers:
        _show_offers(result.offers)
    if result.tuned is not None:
        bound = "within its bounds" if result.tuned.is_within_bound else "OUT OF ITS BOUNDS"
        say(f"{result.tuned.path}: the model that the heads belong to, {bound}: {result.tuned.quality}")
    for size in result.after.predicted_length:
        say(f"static tree of {size} rows: {' '.join(map(str, result.after.paths(size - 1)))}")


def _show_offers(offers: tuple[Offer, ...]) -> None:
    from headstart.cli.terminal import say, table

    rows = [
        [
            offer.heads,
            str(offer.rows),
            f"{offer.acceptance_length:.2f}",
            f"{offer.forward_ms:.2f}",
            f"{offer.asking_ms:.2f}",
            f"{offer.tokens_per_second:.0f}",
            f"{offer.speedup:.2f}",
        ]
        for offer in offers
    ]
    table(["heads", "rows", "L", "forward, ms", "asking, ms", "tokens/s, predicted", "over plain"], rows)
    best = offers[0]
    say(f"best on this machine: {best.heads} at {best.rows} rows, {best.speedup:.2f} times plain by prediction")


def describe(result: TrainResult) -> dict[str, Any]:
    """The result as JSON."""
    return {
        "heads": result.path.name,
        "before": asdict(result.before),
        "after": asdict(result.after),
        "by_kind": {kind: asdict(found) for kind, found in result.by_kind.items()},
        "static_trees": {size: result.after.paths(size - 1) for size in result.after.predicted_length},
        "documents": result.num_documents,
        "corpus_tokens": result.num_corpus_tokens,
        "supervised_share": result.supervised_share,
        "progress": asdict(result.progress),
        "seconds": result.seconds,
        "kinds": {kind: describe(one) for kind, one in result.kinds.items()},
        "offers": [asdict(offer) | {"speedup": offer.speedup} for offer in result.offers],
        "tuned": None if result.tuned is None else _tuned(result.tuned),
    }


def _tuned(tuned: Tuned) -> dict[str, Any]:
    quality = asdict(tuned.quality) | {"perplexity_rise": tuned.quality.rise}
    return {"model": tuned.path.name, "is_within_bound": tuned.is_within_bound, "quality": quality}
