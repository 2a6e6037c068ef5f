"""Runs of an MLflow store, found by id or name, with the tables that they saved."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import polars as pl
from mlflow import MlflowClient
from mlflow.entities import LifecycleStage, Run
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import RESOURCE_DOES_NOT_EXIST, ErrorCode
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID
from pydantic import TypeAdapter

from recsys.config import WITH_COUNTS, TrackingConfig
from recsys.data.audit import AUDIT, Finding
from recsys.data.prepared import Part
from recsys.errors import InputError
from recsys.evaluation.metrics import Source, find_metric
from recsys.evaluation.tables import NextListTable, RankTable, TopKTable
from recsys.tracking.artifacts import (
    COMPARISON,
    VALIDATION_CURVE,
    model_alone_file,
    next_list_file,
    rank_file,
    top_k_file,
)
from recsys.tracking.store import existing_store, refuse_broken_store

logger = logging.getLogger(__name__)

_MISSING = ErrorCode.Name(RESOURCE_DOES_NOT_EXIST)


@dataclass(frozen=True, slots=True)
class EvaluatedRun:
    """A run with the tables that its metrics are computed from."""

    run: Run
    ranks: RankTable
    lists: NextListTable | None = None
    """None if the run has no lists of next purchases, or they were not fetched."""
    top_k: TopKTable | None = None
    """None if the run has no top-k table, or it was not fetched."""
    model_alone: bool = False
    """Are these the ranks of its model without the count ensemble?"""

    @property
    def name(self) -> str:
        """The name of the run."""
        name: str = self.run.info.run_name
        return f"{name}, model alone" if self.model_alone else name

    @property
    def model(self) -> str:
        """The family of the model or baseline."""
        family: str = self.run.data.tags.get("model", "unknown")
        return family.removesuffix(WITH_COUNTS) if self.model_alone else family

    def table(self, metric: str) -> RankTable | NextListTable:
        """Return the table that has a value of the metric for every user.

        Raises:
            InputError: the metric is one of lists of next purchases, and the run has none.
        """
        if find_metric(metric).source == "ranks":
            return self.ranks
        if self.lists is None:
            raise InputError(
                f"run {run_label(self.run)}: has no lists of next purchases, "
                "hence no metrics next_..."
            )
        return self.lists

    def value(self, metric: str) -> float:
        """Return a metric of all users.

        Raises:
            InputError: the run has neither the table of the metric nor logged it.
        """
        source = find_metric(metric).source
        if source == "top_k":
            if self.top_k is None:
                raise InputError(f"run {run_label(self.run)}: has no top-k table for {metric}")
            return self.top_k.value(metric)
        if source == "logged":
            logged: dict[str, float] = self.run.data.metrics
            name = f"{self.ranks.protocol.part}/{metric}"
            if name not in logged:
                raise InputError(f"run {run_label(self.run)}: did not log {name}")
            return logged[name]
        return float(self.table(metric).values(metric).mean())

    def among(self, targets: pl.DataFrame) -> EvaluatedRun:
        """Return the run with the ranks and best items of some targets alone.

        Args:
            targets: the columns user, history_length and target.
        """
        top_k, lists_of = self.top_k, ["user", "history_length"]
        if top_k is not None:
            frame = top_k.frame.join(targets, on=lists_of, how="semi", maintain_order="left")
            top_k = replace(top_k, frame=frame)
        frame = self.ranks.frame.join(
            targets, on=targets.columns, how="semi", maintain_order="left"
        )
        return replace(self, ranks=replace(self.ranks, frame=frame), top_k=top_k)

    def shares_targets(self, other: EvaluatedRun) -> bool:
        """Do both rank the same targets of the same dataset, under any protocol?"""
        mine, theirs = (run.run.data.tags.get("dataset_fingerprint") for run in (self, other))
        columns = ["user", "target"]
        return mine == theirs and self.ranks.frame[columns].equals(other.ranks.frame[columns])


def run_label(run: Run) -> str:
    """Return the name of a run and the beginning of its id, as messages show it."""
    return f"{run.info.run_name} ({run.info.run_id[:8]})"


def find_runs(
    runs: Sequence[str],
    tracking: TrackingConfig,
    part: Part,
    sources: Collection[Source] = (),
    across_protocols: bool = False,
) -> list[EvaluatedRun]:
    """Find runs by id or name, and fetch their rank tables.

    A model with a count ensemble is followed by the same model alone, if ranks are all there is to
    compare: there are no lists of the model alone.

    Args:
        runs: ids, beginnings of ids or names. If empty, the latest finished run of every name.
        tracking: the store.
        part: the part of the split.
        sources: the tables to fetch, where a run has them; the rank table always.
        across_protocols: without ``runs``, include those that cannot be compared with the latest.

    Raises:
        InputError: the store, a run or its rank table cannot be found or read.
    """
    with existing_store(tracking) as client:
        there, latest = _runs_of(client, tracking)
        chosen = [_find(wanted, there, latest) for wanted in runs]
        if not runs:
            chosen = [*latest.values()] if across_protocols else comparable_runs(latest.values())
        if not chosen:
            raise InputError(f"experiment {tracking.experiment!r}: no run has finished")
        return [found for run in chosen for found in _download(client, run, part, sources)]


def find_run(wanted: str, tracking: TrackingConfig) -> Run:
    """Find a run by its id, the beginning of its id, or its name if it has finished.

    Raises:
        InputError: the store or the run cannot be found.
    """
    with existing_store(tracking) as client:
        return _find(wanted, *_runs_of(client, tracking))


def learning_curves(
    runs: Sequence[EvaluatedRun], tracking: TrackingConfig
) -> dict[str, dict[int, float]]:
    """Return NDCG@10 on the validation targets by epoch, by run id, for runs that logged it."""
    client = MlflowClient(tracking.absolute_uri)
    curves = {}
    for run_id in dict.fromkeys(run.run.info.run_id for run in runs):
        points = client.get_metric_history(run_id, VALIDATION_CURVE)
        if curve := {point.step: point.value for point in points}:
            curves[run_id] = curve
    return curves


def audit_of(run: EvaluatedRun, tracking: TrackingConfig) -> list[Finding]:
    """Return the findings of the audit of the run's dataset; empty if the run logged no audit."""
    client = MlflowClient(tracking.absolute_uri)
    run_id = run.run.info.run_id
    if AUDIT not in {artifact.path for artifact in client.list_artifacts(run_id)}:
        return []
    with tempfile.TemporaryDirectory() as folder:
        path = client.download_artifacts(run_id, AUDIT, folder)
        return TypeAdapter(list[Finding]).validate_json(Path(path).read_bytes())


def nest_run(run_id: str, name: str, parent: str, tracking: TrackingConfig) -> None:
    """Give a run another name, and have MLflow's pages show it below another run.

    Raises:
        InputError: the store cannot be used.
    """
    with refuse_broken_store(tracking.uri):
        client = MlflowClient(tracking.absolute_uri)
        client.update_run(run_id, name=name)
        client.set_tag(run_id, MLFLOW_PARENT_RUN_ID, parent)


def are_finished(run_ids: Collection[str], tracking: TrackingConfig) -> bool:
    """Return whether a store has all of these runs, finished and not deleted.

    Raises:
        InputError: the store does not exist or cannot be used.
    """
    with existing_store(tracking) as client:
        for run_id in run_ids:
            try:
                info = client.get_run(run_id).info
            except MlflowException as error:
                if error.error_code != _MISSING:
                    raise
                return False
            if info.status != "FINISHED" or info.lifecycle_stage != LifecycleStage.ACTIVE:
                return False
    return True


def log_report(folder: Path, run: EvaluatedRun, tracking: TrackingConfig) -> None:
    """Log the files of a comparison report as artifacts of a run, in the folder ``comparison``."""
    client = MlflowClient(tracking.absolute_uri)
    try:
        client.log_artifacts(run.run.info.run_id, str(folder), COMPARISON)
    except (MlflowException, OSError) as error:
        raise InputError(
            f"tracking.uri {tracking.uri}: cannot log {folder} to run {run_label(run.run)}: {error}"
        ) from error


def _runs_of(client: MlflowClient, tracking: TrackingConfig) -> tuple[list[Run], dict[str, Run]]:
    """Return the latest 50,000 runs, the oldest first, and the latest finished one of each name."""
    experiment = client.get_experiment_by_name(tracking.experiment)
    if experiment is None:
        names = ", ".join(sorted(found.name for found in client.search_experiments()))
        raise InputError(
            f"tracking.experiment {tracking.experiment!r}: not in {tracking.uri}, which has {names}"
        )
    latest_first = ["attributes.start_time DESC"]
    runs = client.search_runs([experiment.experiment_id], "", 1, 50_000, latest_first)[::-1]
    return runs, {run.info.run_name: run for run in runs if run.info.status == "FINISHED"}


def comparable_runs(runs: Collection[Run]) -> list[Run]:
    """Return the runs that can be compared with the latest of them."""
    if not runs:
        return []
    latest = max(runs, key=lambda run: run.info.start_time)
    others: dict[str, list[str]] = {}
    for run in runs:
        if differing := differing_tags(latest, run):
            others.setdefault(", ".join(differing), []).append(run.info.run_name)
    for tags, names in others.items():
        logger.info(
            "left out, for another %s than that of %s, the latest run: %s",
            *(tags, run_label(latest), ", ".join(names)),
        )
    return [run for run in runs if not differing_tags(latest, run)]


def differing_tags(a: Run, b: Run) -> list[str]:
    """Return the tags of data and protocol in which two runs differ.

    The fingerprint of the protocol is ignored: it is a digest of the others.
    """
    ours, theirs = a.data.tags, b.data.tags
    protocol = sorted(
        tag
        for tag in ours.keys() | theirs.keys()
        if tag.startswith("protocol.") and tag != "protocol.fingerprint"
    )
    return [t for t in ("dataset_fingerprint", *protocol) if ours.get(t) != theirs.get(t)]


def _find(wanted: str, there: Sequence[Run], latest: Mapping[str, Run]) -> Run:
    """Find a run by its id, a finished one by its name, or one by the beginning of its id."""
    by_id = [run for run in there if run.info.run_id.startswith(wanted)]
    if wanted in latest and wanted not in (run.info.run_id for run in by_id):
        return latest[wanted]
    # Four letters or more: a mistyped name must not match the one id that begins with "e".
    if not by_id or len(wanted) < 4:
        raise InputError(
            f"run {wanted!r}: neither an id nor the name of a finished run; the latest are: "
            + (", ".join(map(run_label, list(latest.values())[:-11:-1])) or "none")
        )
    if len(by_id) > 1:
        ids = ", ".join(run.info.run_id for run in by_id)
        raise InputError(f"run {wanted!r}: several ids begin with it: {ids}")
    return by_id[0]


def _download(
    client: MlflowClient, run: Run, part: Part, sources: Collection[Source]
) -> list[EvaluatedRun]:
    there = {artifact.path for artifact in client.list_artifacts(run.info.run_id)}
    name, lists, top_k = rank_file(part), next_list_file(part), top_k_file(part)
    if name not in there:
        raise InputError(
            f"run {run_label(run)}: has no rank table {name} (it is {run.info.status})"
        )
    lists_wanted = "next_lists" in sources and lists in there
    top_k_wanted = "top_k" in sources and top_k in there
    with tempfile.TemporaryDirectory() as folder:
        fetch = partial(client.download_artifacts, run.info.run_id, dst_path=folder)
        try:
            evaluated = EvaluatedRun(
                run,
                RankTable.load(fetch(name)),
                NextListTable.load(fetch(lists)) if lists_wanted else None,
                TopKTable.load(fetch(top_k)) if top_k_wanted else None,
            )
            alone = model_alone_file(part)
            if alone not in there or lists_wanted or not {"top_k", "logged"}.isdisjoint(sources):
                return [evaluated]
            ranks = RankTable.load(fetch(alone))
            return [evaluated, EvaluatedRun(run, ranks, model_alone=True)]
        except InputError as error:
            raise InputError(f"run {run_label(run)}: {error}") from error
