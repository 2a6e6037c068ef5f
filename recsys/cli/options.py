"""What several commands take."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from recsys.config import Columns, DataConfig, Experiment, load_experiment, parse_experiment
from recsys.data.audit import audit
from recsys.data.prepared import PreparedDataset, prepare

if TYPE_CHECKING:
    from recsys.serving.bundle import ModelBundle

logger = logging.getLogger(__name__)

app = typer.Typer(
    help="Sequential recommendation: from an interaction log to ranked items, lists of next "
    "purchases, figures and reasons.",
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
Data = Annotated[Path | None, typer.Option(help="Folder of a prepared dataset.")]
BundleData = Annotated[Path, typer.Option(help="The prepared dataset.")]
HeldOutPart = Annotated[Literal["valid", "test"], typer.Option(help="Which targets.")]
Fresh = Annotated[
    bool, typer.Option("--fresh", help="Start anew, even if there is a checkpoint to go on from.")
]
Out = Annotated[Path | None, typer.Option(help="File to write (.parquet or .csv).")]


def read_experiment(
    config: Path | None, overrides: Sequence[str] | None, uri: str | None = None
) -> Experiment:
    """The experiment of a config (None: the defaults), with the overrides applied."""
    changes = [*(overrides or [])]
    if uri is not None:
        changes.append(f"tracking.uri={uri}")
    return load_experiment(config, changes) if config else parse_experiment({}, changes, "--set")


def open_beside(
    bundle: Path, data: Path, part: Literal["valid", "test"]
) -> tuple[ModelBundle, PreparedDataset]:
    """A bundle, on the GPU if there is one, and the dataset whose targets it is to be asked for.

    Raises:
        InputError: one cannot be opened, or they do not go together.
    """
    import torch

    from recsys.serving.bundle import ModelBundle

    loaded = ModelBundle.open(bundle)
    dataset = PreparedDataset.open(data)
    loaded.refuse_held_out(dataset, part)
    loaded.model.to("cuda" if torch.cuda.is_available() else "cpu")
    return loaded, loaded.encoders.read(dataset)


Log = Annotated[
    str, typer.Argument(help="A log (CSV, TSV, Parquet, JSONL), a dataset, or a config (YAML).")
]
User = Annotated[str | None, typer.Option(help="Column of user ids [user_id].")]
Item = Annotated[str | None, typer.Option(help="Column of item ids [item_id].")]
Time = Annotated[str | None, typer.Option(help="Column of times [timestamp].")]
Keep = Annotated[
    list[str] | None,
    typer.Option(help="Another column to keep, for model.interaction_features; repeatable."),
]


def read_preparation(
    log: str, columns: Mapping[str, str | None], overrides: Sequence[str] | None
) -> Experiment:
    """An experiment on a log: that of a config, or the defaults with the log as their source."""
    if Path(log).suffix in (".yaml", ".yml"):
        experiment = read_experiment(Path(log), overrides)
    else:
        experiment = read_experiment(None, [f"data.source={json.dumps(log)}", *(overrides or [])])
    data = experiment.data
    if given := {role: name for role, name in columns.items() if name is not None}:
        known = data.columns or Columns()
        data = data.model_copy(update={"columns": known.model_copy(update=given)})
    return experiment.model_copy(update={"data": data})


def count_warnings(dataset: PreparedDataset, experiment: Experiment) -> int:
    """How many findings of the audit are warnings; where there are any, they are named."""
    findings = audit(dataset, experiment.evaluation.seen)
    warned = [finding.name for finding in findings if finding.severity == "warn"]
    if warned:
        names = ", ".join(warned)
        logger.info("the audit warns of %s: recsys audit %s", names, dataset.path)
    return len(warned)


def find_dataset(experiment: Experiment, data: Path | None) -> PreparedDataset:
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
    dataset = prepare(config.source, config, Path("data") / name)
    count_warnings(dataset, experiment)
    return dataset
