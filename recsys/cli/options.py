"""Arguments, options and helpers that several commands share."""

import hashlib
import inspect
import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, NamedTuple, cast, get_args, get_type_hints

import typer
from typer import Argument, Option

from recsys.config.data import DataConfig
from recsys.config.experiment import Experiment, TrackingConfig
from recsys.config.files import load_experiment, parse_experiment
from recsys.console import AS_JSON
from recsys.data.audit import audit
from recsys.data.prepared import LogWords, PreparedDataset, prepare, with_words
from recsys.data.sources import source_name
from recsys.errors import InputError
from recsys.folders import library_version

logger = logging.getLogger(__name__)

app = typer.Typer(
    help="Sequential recommendation: train on a log of interactions, then recommend, score, "
    "explain and compare.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"recsys {library_version()}")
        raise typer.Exit


@app.callback()
def for_all_commands(
    version: Annotated[
        bool, Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Take what holds for all commands."""


# --- Commands ------------------------------------------------------------------------------------

PANELS = ("Start here", "Logs", "Train", "Evaluate and compare", "Recommend and explain", "Deploy")


def command(
    name: str, panel: str, *, prints_rows: bool = True
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that makes a function a command.

    The docstring is the help: what stands before ``Options:`` is that of the command, what follows
    is that of its parameters. A parameter is an option unless it is annotated as an `Argument`. One
    of the type `LogOptions` becomes an option for each of its fields. All commands have --verbose,
    and --json if they print rows.
    """

    def register(function: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(function, eval_str=True)
        about, helps = _help_of(function)
        parameters: list[inspect.Parameter] = []
        for parameter in signature.parameters.values():
            if parameter.annotation is LogOptions:
                helps_of_log = _help_of(LogOptions)[1]
                for field, kind in get_type_hints(LogOptions, include_extras=True).items():
                    parameters.append(_parameter(field, kind, None, helps_of_log))
            else:
                facts = parameter.name, parameter.annotation, parameter.default
                parameters.append(_parameter(*facts, helps))
        if prints_rows:
            parameters.append(_parameter("json", bool, False, _FLAGS))
        parameters.append(_parameter("verbose", bool, False, _FLAGS))

        @wraps(function)
        def run(*, json: bool = False, verbose: bool = False, **values: Any) -> None:
            library = logging.getLogger("recsys")
            if verbose and library.isEnabledFor(logging.INFO):  # the first process of torchrun's
                library.setLevel(logging.DEBUG)
            if "log" in signature.parameters:
                values["log"] = LogOptions(*map(values.pop, LogOptions._fields))
            before = AS_JSON.set(json)
            try:
                function(**values)
            finally:
                AS_JSON.reset(before)

        run.__doc__ = about
        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        app.command(name, rich_help_panel=panel)(run)
        return function

    return register


_FLAGS = {
    "json": "Print JSON, not a table.",
    "verbose": "Log each step: what is tried, chosen and measured.",
}


def _help_of(described: object) -> tuple[str, dict[str, str]]:
    """Split a docstring into what it says of a command, and of each of its options."""
    about, _, options = (inspect.getdoc(described) or "").partition("\n\nOptions:\n")
    entries = re.findall(r"^    (\w+): (.+(?:\n {8}.+)*)", options, flags=re.MULTILINE)
    return about, {name: " ".join(text.split()) for name, text in entries}


def _parameter(
    name: str, annotation: Any, default: object, helps: Mapping[str, str]
) -> inspect.Parameter:
    """Return a parameter as typer reads it; shared annotations have a help of their own."""
    kind, *info = get_args(annotation) if hasattr(annotation, "__metadata__") else [annotation]
    flag = ["--" + name.replace("_", "-")] if kind is bool else []
    option = copy(info[0]) if info else Option(*flag)
    option.help = helps.get(name, option.help)
    by_name = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, by_name, default=default, annotation=Annotated[kind, option])


# --- Options that several commands have ----------------------------------------------------------

Set = Annotated[
    list[str] | None,
    Option(
        "--set",
        help="Override a setting: model.dropout=0.1, of a log data.k_core=true; repeatable.",
    ),
]
Uri = Annotated[
    str | None, Option("--tracking-uri", help="MLflow store or server; overrides the config.")
]
Config = Annotated[
    str, Argument(help="An experiment: a YAML file, or a preset's name (recsys configs).")
]
Bundle = Annotated[
    Path,
    Argument(help="Folder of a trained model: runs/NAME; or models:/NAME@ALIAS (recsys register)."),
]
Data = Annotated[Path | None, Option(help="Folder of a prepared dataset.")]
BundleData = Annotated[Path, Option(help="Folder of the prepared dataset.")]
Fresh = Annotated[
    bool, Option("--fresh", help="Start from the first epoch, even if there is a checkpoint.")
]
Index = Annotated[
    Path | None,
    Option(
        help="Folder of an index (recsys index): faster on large catalogues; misses some items."
    ),
]
Retrieve = Annotated[
    int | None,
    Option(
        min=1,
        help="Rank only so many items by target attention, the best by the dot product: for large "
        "catalogues; recsys evaluate --retrieve shows what is missed. Default: all.",
    ),
]


def check_format(out: Path | None) -> Path | None:
    """Raise an `InputError` if the extension of a file is of no known format."""
    if out is not None and out.suffix not in (".parquet", ".csv"):
        raise InputError(f"{out}: can write .parquet, .csv, not {out.suffix or 'no extension'}")
    return out


Out = Annotated[Path | None, Option(callback=check_format, help="File to write: .parquet or .csv.")]
OutFile = Annotated[Path, Option(callback=check_format)]
Items = Annotated[
    Path | None, Option(help="Table of item features: item_id and a column per feature.")
]


class LogOptions(NamedTuple):
    """How a log is read; see `LogWords`. All are None, or empty, where they are not given.

    Options:
        user: Column of user ids; guessed where its name leaves no doubt.
        item: Column of item ids; guessed likewise.
        time: Column of times; guessed likewise. row-order: the rows are in order of time.
        time_format: Form of dates, if it leaves a doubt, in the codes of strftime:
            '%d/%m/%Y %H:%M'; number: times such as 20241231 are numbers, not dates.
        no_header: Text without a header: columns are called 1, 2, ….
        encoding: Encoding of text that is neither UTF-8 nor UTF-16: cp1252, latin-1.
        where: Keep the rows that meet a condition in SQL: "event == 'purchase'".
        since: Drop the rows before this date, date-time or number.
        user_minimum: Drop the users with fewer interactions.
        item_minimum: Drop the items with fewer interactions.
        keep: Extra column to keep, for models to read with past interactions; repeatable.
    """

    user: str | None
    item: str | None
    time: str | None
    time_format: Annotated[str | None, Option(metavar="FORM")]
    no_header: Annotated[bool | None, Option("--no-header")]
    encoding: str | None
    where: str | None
    since: str | None
    user_minimum: Annotated[int | None, Option(min=1)]
    item_minimum: Annotated[int | None, Option(min=1)]
    keep: list[str] | None

    @property
    def words(self) -> LogWords:
        """The settings that were given."""
        words = {name: value for name, value in self._asdict().items() if value not in (None, [])}
        if words.pop("no_header", False):
            words["header"] = False
        if self.since is not None:
            with suppress(ValueError):  # it may be a date
                words["since"] = float(self.since)
        return cast("LogWords", words)


# --- What options mean ---------------------------------------------------------------------------


def with_uri(overrides: Sequence[str] | None, uri: str | None) -> list[str]:
    """Return the changes of --set, and that of --tracking-uri."""
    return [*(overrides or []), *([] if uri is None else [f"tracking.uri={uri}"])]


def read_experiment(
    config: str | None, overrides: Sequence[str] | None, uri: str | None = None
) -> Experiment:
    """Read the experiment of a config, or the defaults if None, and apply the overrides."""
    changes = with_uri(overrides, uri)
    return load_experiment(config, changes) if config else parse_experiment({}, changes, "--set")


def read_preparation(log: str, options: LogOptions, overrides: Sequence[str] | None) -> Experiment:
    """Read the experiment of a config, or make one with default settings for a log.

    The options of the command line win over the config and the overrides.
    """
    if Path(log).suffix in (".yaml", ".yml"):
        experiment = read_experiment(log, overrides)
    else:
        experiment = read_experiment(None, [f"data.source={json.dumps(log)}", *(overrides or [])])
    data = with_words(experiment.data, options.words)
    return experiment.model_copy(update={"data": data})


def store_of(uri: str | None, experiment: str = "recsys") -> TrackingConfig:
    """Return the store of --tracking-uri, or the default one."""
    store = TrackingConfig(experiment=experiment)
    return store if uri is None else store.model_copy(update={"uri": uri})


def prepared_for(
    experiment: Experiment, data: Path | None, overrides: Sequence[str] | None
) -> tuple[Experiment, PreparedDataset]:
    """Return an experiment with its dataset; that of --data has its own settings."""
    if data is None:
        return experiment, find_dataset(experiment)
    if stray := [words for words in overrides or [] if words.startswith(("data.", "data="))]:
        raise InputError(f"--set {stray[0]}: --data has its own settings: prepare it again")
    dataset = PreparedDataset.open(data)
    return experiment.model_copy(update={"data": dataset.config}), dataset


def find_dataset(experiment: Experiment) -> PreparedDataset:
    """Prepare the source of an experiment, unless that is already done."""
    config = experiment.data
    name, settings = source_name(config.source), config.model_dump_json()
    if config != DataConfig(source=name):  # other settings or another folder: another dataset
        name += "-" + hashlib.sha256(settings.encode()).hexdigest()[:8]
    dataset = prepare(config.source, config, Path("data") / name)
    count_warnings(dataset, experiment)
    return dataset


def count_warnings(dataset: PreparedDataset, experiment: Experiment) -> int:
    """Audit a dataset, log the names of the warnings and return their number."""
    findings = audit(dataset, experiment.evaluation.seen)
    warned = [finding.name for finding in findings if finding.severity == "warn"]
    if warned:
        logger.info("the audit warns of %s: recsys audit %s", ", ".join(warned), dataset.path)
    return len(warned)
