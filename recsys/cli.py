"""The commands: parse, call, print."""

from __future__ import annotations

import hashlib
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.logging import RichHandler

from recsys.config import (
    Columns,
    DataConfig,
    Experiment,
    TrackingConfig,
    load_experiment,
    parse_experiment,
)
from recsys.console import ids_like, show_comparison, show_frame, show_rows
from recsys.data.prepared import PreparedDataset, prepare
from recsys.data.sources import DATASETS
from recsys.errors import InputError

app = typer.Typer(
    help="Sequential recommendation: from an interaction log to ranked items, figures and reasons.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)

Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="Override one field, e.g. --set model.dropout=0.1; repeatable."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs, not a table.")]
Uri = Annotated[
    str | None,
    typer.Option("--tracking-uri", help="MLflow store or server, in place of the config's."),
]
Config = Annotated[Path, typer.Argument(help="An experiment, e.g. configs/shop.yaml.")]
Bundle = Annotated[Path, typer.Argument(help="Folder of a trained bundle (runs/NAME/bundle).")]
Data = Annotated[
    Path | None, typer.Option(help="A prepared dataset; without it the config's source is used.")
]
Out = Annotated[Path | None, typer.Option(help="File to write (.parquet or .csv).")]


def main() -> None:
    """Entry point: one line for what users can mend, and status 2."""
    logging.basicConfig(
        level=logging.WARNING,
        format="%(message)s",
        handlers=[RichHandler(console=Console(stderr=True), show_path=False, show_time=False)],
    )
    logging.getLogger("recsys").setLevel(logging.INFO)
    try:
        app()
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


@app.command("data")
def list_data(as_json: Json = False) -> None:
    """List the named datasets. Their files are found through the variable RECSYS_MIRROR."""
    rows = [
        {
            "name": dataset.name,
            "interactions": dataset.interactions,
            "users": dataset.users,
            "items": dataset.items,
            "description": dataset.description,
            "homepage": dataset.homepage,
            "licence": dataset.licence,
        }
        for dataset in DATASETS
    ]
    show_rows(rows, as_json, hidden=("homepage", "licence"))


@app.command("prepare")
def prepare_data(
    source: Annotated[str, typer.Argument(help="A log (CSV, TSV, Parquet, JSONL) or a dataset.")],
    out: Annotated[Path, typer.Option(help="Folder of the prepared dataset.")],
    user: Annotated[str | None, typer.Option(help="Column of user ids [user_id].")] = None,
    item: Annotated[str | None, typer.Option(help="Column of item ids [item_id].")] = None,
    time: Annotated[str | None, typer.Option(help="Column of times [timestamp].")] = None,
    overrides: Set = None,
    as_json: Json = False,
) -> None:
    """Check, order, split and encode a log. Further settings: --set data.k_core=true and so on."""
    experiment = _experiment(None, overrides)
    given = {"user_id": user, "item_id": item, "timestamp": time}
    columns = {name: column for name, column in given.items() if column is not None}
    config = experiment.data.model_copy(update={"source": source})
    if columns:
        known = config.columns or Columns()
        config = config.model_copy(update={"columns": known.model_copy(update=columns)})
    dataset = prepare(source, config, out)
    show_rows([{"dataset": str(out), **dataset.manifest.counts}], as_json)


@app.command("train")
def train_model(
    config: Config, data: Data = None, overrides: Set = None, uri: Uri = None, as_json: Json = False
) -> None:
    """Train, validate every epoch, test once; write runs/NAME and an MLflow run."""
    from recsys.training.fit import fit  # torch and mlflow take seconds to load

    experiment = _experiment(config, overrides, uri)
    if data is not None and (stray := [o for o in overrides or [] if o.startswith("data.")]):
        raise InputError(f"--set {stray[0]}: with --data its own settings count; prepare it anew")
    run = fit(experiment, _dataset(experiment, data))
    row = {"run": run.run_id, "bundle": str(run.bundle), "best_epoch": run.best_epoch}
    show_rows([row | {name: figure.mean for name, figure in run.test.items()}], as_json)


@app.command("run")
def run_experiment(
    config: Config, overrides: Set = None, uri: Uri = None, as_json: Json = False
) -> None:
    """The whole way: prepare, count baselines, train, evaluate, compare."""
    from recsys.evaluation.compare import compare
    from recsys.training.baseline import BASELINES, fit_baseline
    from recsys.training.fit import fit

    experiment = _experiment(config, overrides, uri)
    dataset = _dataset(experiment, None)
    runs = [fit_baseline(name, experiment, dataset) for name in BASELINES]
    runs.append(fit(experiment, dataset).run_id)
    show_comparison(compare(runs[::-1], experiment.tracking), as_json)


@app.command("evaluate")
def evaluate_bundle(
    bundle: Bundle,
    data: Annotated[Path, typer.Option(help="The prepared dataset.")],
    part: Annotated[Literal["valid", "test"], typer.Option(help="Which targets.")] = "test",
    out: Annotated[Path | None, typer.Option(help="Rank table to write (.parquet).")] = None,
    as_json: Json = False,
) -> None:
    """Exact ranks of a bundle's model over the full catalogue: recall, NDCG, MRR, intervals."""
    import torch

    from recsys.evaluation.metrics import summarise
    from recsys.evaluation.model_scorer import ModelScorer
    from recsys.evaluation.rank_table import evaluate
    from recsys.scoring.bundle import ModelBundle

    if out is not None and out.suffix != ".parquet":
        raise InputError(f"{out}: a rank table is a .parquet file")
    loaded = ModelBundle.open(bundle)
    if part == "valid" and loaded.manifest.protocol.trained_until == "valid":
        raise InputError(f"{bundle}: was trained on the validation targets too (a refit)")
    dataset = PreparedDataset.open(data)
    if dataset.fingerprint != loaded.manifest.dataset_fingerprint:
        raise InputError(
            f"{data}: fingerprint {dataset.fingerprint[:12]} is not that of the bundle's dataset, "
            f"{loaded.manifest.dataset_fingerprint[:12]}: item tokens would not match"
        )
    experiment = loaded.experiment
    model = loaded.model.to("cuda" if torch.cuda.is_available() else "cpu")
    scorer = ModelScorer(model, experiment.model.max_sequence_length)
    table = evaluate(scorer, dataset.holdout(part), part, experiment.evaluation.seen)
    if out is not None:
        table.save(out)
    figures = summarise(table.ranks, experiment.evaluation.cutoffs)
    show_rows(
        [{"metric": name, **interval._asdict()} for name, interval in figures.items()], as_json
    )


@app.command("recommend")
def recommend_items(
    bundle: Bundle,
    histories: Annotated[
        Path | None, typer.Argument(help="Log of histories: user_id, item_id, timestamp.")
    ] = None,
    user: Annotated[
        list[str] | None, typer.Option("--user", help="A user of --data; repeatable.")
    ] = None,
    data: Data = None,
    k: Annotated[int, typer.Option("-k", help="Items per user.")] = 10,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """The k best items for each history, or for users of a prepared dataset."""
    from recsys.scoring.recommender import Recommender

    dataset = None if data is None else PreparedDataset.open(data)
    recommender = Recommender.load(bundle, dataset)
    users = None
    if user is not None:
        if dataset is None:
            raise InputError("--user: users are looked up in a dataset: give its folder as --data")
        users = ids_like(user, dataset.user_ids)
    show_frame(recommender.recommend(histories, users=users, k=k), out, as_json)


@app.command("score")
def score_items(
    bundle: Bundle,
    histories: Annotated[Path, typer.Argument(help="Log of histories.")],
    candidates: Annotated[Path, typer.Argument(help="Table of user_id, item_id to score.")],
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Score candidate items for each history."""
    from recsys.scoring.recommender import Recommender

    show_frame(Recommender.load(bundle).score(histories, candidates), out, as_json)


@app.command("explain")
def explain_item(
    bundle: Bundle,
    user: Annotated[str, typer.Option(help="A user of the dataset.")],
    item: Annotated[str, typer.Option(help="The item whose score is to be explained.")],
    data: Annotated[Path, typer.Option(help="The prepared dataset.")],
    as_json: Json = False,
) -> None:
    """What each purchase of a user adds to the score of an item."""
    from recsys.scoring.recommender import Recommender

    dataset = PreparedDataset.open(data)
    recommender = Recommender.load(bundle, dataset)
    vocabulary = recommender.bundle.vocabulary
    asked = recommender.read_histories(users=ids_like([user], dataset.user_ids))
    history = vocabulary.decode(asked.histories.items).to_list()
    (item_id,) = ids_like([item], vocabulary.ids)
    show_frame(recommender.explain(history, item_id), None, as_json)


@app.command("compare")
def compare_runs(
    runs: Annotated[list[str] | None, typer.Argument(help="Run ids or names; all if none.")] = None,
    experiment: Annotated[str, typer.Option(help="MLflow experiment.")] = "recsys",
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Compare MLflow runs of one protocol: recall, NDCG, intervals, paired tests."""
    from recsys.evaluation.compare import compare

    tracking = TrackingConfig(experiment=experiment)
    if uri is not None:
        tracking = tracking.model_copy(update={"uri": uri})
    show_comparison(compare(runs or [], tracking), as_json)


@app.command("demo")
def run_demo(
    config: Annotated[Path, typer.Argument(help="Experiment on the shop.")] = Path(
        "configs/shop.yaml"
    ),
    overrides: Set = None,
    uri: Uri = None,
) -> None:
    """The simulated shop, end to end, in about five minutes: table, reasons, recovered rules."""
    from recsys.demo import demo

    demo(_experiment(config, overrides, uri), Console())


def _experiment(
    config: Path | None, overrides: Sequence[str] | None, uri: str | None = None
) -> Experiment:
    changes = [*(overrides or [])]
    if uri is not None:
        changes.append(f"tracking.uri={uri}")
    return load_experiment(config, changes) if config else parse_experiment({}, changes, "--set")


def _dataset(experiment: Experiment, data: Path | None) -> PreparedDataset:
    """The prepared dataset given, or that of the config's source, prepared unless it is there."""
    if data is not None:
        return PreparedDataset.open(data)
    config = experiment.data
    name = Path(config.source).stem
    if config.model_dump(exclude={"mirror"}) != DataConfig(source=name).model_dump(
        exclude={"mirror"}
    ):  # other settings or another folder: another dataset
        settings = config.model_dump_json(exclude={"mirror"})
        name += "-" + hashlib.sha256(settings.encode()).hexdigest()[:8]
    return prepare(config.source, config, Path("data") / name)
