"""The public functions: they take paths or objects, runs or their ids."""

import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Unpack

from recsys.automatic.rules import Plan, Preset
from recsys.automatic.run import fit_log, name_of
from recsys.config.experiment import Experiment, TrackingConfig
from recsys.data.frames import empty_like
from recsys.data.prepared import LogWords, Part, PreparedDataset
from recsys.data.tables import TableSource
from recsys.experiments import fit as training
from recsys.experiments.results import Run
from recsys.loading import experiment_to_train
from recsys.progress import shown_log
from recsys.reports import comparison
from recsys.reports.comparison import Comparison
from recsys.reports.comparison_page import write_comparison_report
from recsys.serving.recommender import Recommender
from recsys.tracking.store import log_report

logger = logging.getLogger(__name__)

PathLike = str | os.PathLike[str]


def fit(
    log: TableSource,
    *,
    items: TableSource | None = None,
    users: TableSource | None = None,
    time_limit: str | float | None = None,
    preset: Preset = "balanced",
    name: str | None = None,
    seed: int = 0,
    tracking: TrackingConfig | None = None,
    fresh: bool = False,
    **words: Unpack[LogWords],
) -> Recommender:
    """Make the best recommender for a log that the time allows, with no settings to write.

    The columns are found, the log is prepared (``data/NAME``), baselines are tuned, models race on
    validation, the winner is tested once, and all of it is tracked. ``runs/NAME`` then has the
    bundle, ``report.html`` and the settings. An interrupted call resumes when it is made again.

    Args:
        log: a frame (pandas, polars, Arrow, DuckDB …), a file, a folder of parts or a pattern.
        items: a table with the column item_id, whose names explanations and the page show; the
            models read its columns of categories, such as a brand.
        users: a table with the column user_id, which the models do not read.
        time_limit: seconds, or text such as ``"30m"``; 5, 15 and 60 minutes for the presets if
            None.
        preset: ``fast``, ``balanced`` or ``best``: how many kinds of model are tried.
        name: of the run and its folders, which it replaces; if None that of the file, and
            ``recommender`` of a frame.
        seed: of the weights, the batches and the samples.
        tracking: the MLflow store; the default one if None.
        fresh: start anew, even if an interrupted call can be resumed.
        **words: ``user="customer"``, ``item``, ``time``, ``where``, ``since``, ``split`` …; see
            `prepare`. The models read the columns of ``keep``, and histories then need them.

    Returns:
        The recommender, with the log to look users up in; it answers in the library of the log.

    Raises:
        InputError: the log, a setting or the store is invalid.
    """
    plan = Plan(name or name_of(log), preset, seed, tracking or TrackingConfig(), fresh)
    with shown_log():
        answer = fit_log(log, plan, time_limit, items=items, users=users, **words)
        logger.info("%s", answer.sentence)
    recommender = Recommender.load(answer.run.bundle, answer.context.dataset)
    return replace(recommender, like=empty_like(log))


def train(
    experiment: Experiment | PathLike | None,
    dataset: PreparedDataset | PathLike,
    *,
    start: PathLike | None = None,
    overrides: Sequence[str] = (),
    out: PathLike | None = None,
    fresh: bool = False,
) -> Run:
    """Train, evaluate and log, or resume; see `recsys.experiments.fit.fit`.

    Args:
        experiment: an `Experiment`, or the path of its YAML; with ``start`` also None.
        dataset: a `PreparedDataset`, or its folder.
        start: the bundle or run to start from, or ``models:/NAME@ALIAS``: its settings stay unless
            the experiment or the overrides change them; see `StartConfig`.
        overrides: fields to change in the YAML, e.g. ``["model.dropout=0.1"]``.
        out: folder of the results, ``runs/NAME`` if None.
        fresh: start from the first epoch, even if there is a checkpoint to resume from.
    """
    experiment = experiment_to_train(experiment, start, overrides)
    with shown_log():
        return training.fit(experiment, PreparedDataset.open(dataset), out, fresh=fresh)


def compare(
    runs: Sequence[Run | str] = (),
    tracking: TrackingConfig | None = None,
    *,
    part: Part = "test",
    metrics: Sequence[str] | None = None,
    pooled: bool = False,
    report: PathLike | None = None,
) -> Comparison:
    """Compare runs in one table, each with a paired test against the first.

    A model with a count ensemble has a second row, of the model alone, where only ranks are
    compared. Runs that differ only in the sample of users that they ranked are compared on the
    targets of all of them.

    Args:
        runs: runs, their ids, unambiguous beginnings of ids (four letters or more), or names, each
            meaning the latest finished run of that name. If empty, the latest finished run of every
            name that can be compared with the latest run of all.
        tracking: the MLflow store; if None, that of the first `Run` given, or the default one.
        part: the targets, ``test`` or ``valid``.
        metrics: names of metrics. If None, recall and NDCG at 10 and, if every run has lists of n
            next purchases, next_recall_at_n and next_ndcg_at_n.
        pooled: whether runs that differ only in seed and name share a row.
        report: a folder to write the comparison to as an HTML page, SVG pictures, CSV and LaTeX;
            the first run gets a copy as its artifact ``comparison``.

    Raises:
        InputError: the store, a run, or a table that a metric needs is missing; there is no such
            metric; or two runs differ in dataset or protocol.
    """
    fitted = [run for run in runs if isinstance(run, Run)]
    if tracking is None:
        tracking = fitted[0].tracking if fitted else TrackingConfig()
    ids = [run.run_id if isinstance(run, Run) else run for run in runs]
    compared = comparison.compare(ids, tracking, part=part, metrics=metrics, pooled=pooled)
    if report is not None:
        page = write_comparison_report(report, compared)
        log_report(page.parent, compared.rows[0].runs[0], tracking)
    return compared
