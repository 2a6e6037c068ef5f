"""The fingerprints of protocols and runs: equal for equal settings, different for any other."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from recsys.config.data import DataConfig, LeaveLastOut
from recsys.config.experiment import EvaluationConfig
from recsys.config.files import flatten, parse_experiment
from recsys.data.histories import Histories
from recsys.data.prepared import PreparedDataset, prepare
from recsys.evaluation.tables import Candidates, protocol_tags
from recsys.tracking.tracker import config_fingerprint


@pytest.fixture
def renamed(tiny_log: pl.DataFrame, tmp_path: Path) -> PreparedDataset:
    log = tiny_log.with_columns(pl.col("item_id").replace("hat", "helmet"))
    return prepare(log, DataConfig(), tmp_path / "renamed")


def test_every_field_and_the_data_change_the_tags(
    tiny_dataset: PreparedDataset, tiny_log: pl.DataFrame, renamed: PreparedDataset, tmp_path: Path
) -> None:
    usual = EvaluationConfig()
    other = prepare(tiny_log, DataConfig(split=LeaveLastOut(targets=2)), tmp_path / "other")
    few = Candidates("given 0123", Histories.from_lists([]))
    cases: list[tuple[PreparedDataset, EvaluationConfig, Candidates | None]] = [
        (tiny_dataset, usual, None),
        (other, usual, None),
        (renamed, usual, None),
        (tiny_dataset, EvaluationConfig(seen="allow"), None),
        (tiny_dataset, EvaluationConfig(request_time="known"), None),
        (tiny_dataset, usual, few),
    ]
    tags = [(case[0].fingerprint, *protocol_tags(*case).values()) for case in cases]
    assert len(set(tags)) == len(cases)
    # What is shown does not change what is measured.
    shown = protocol_tags(tiny_dataset, EvaluationConfig(cutoffs=(3,)))
    assert (tiny_dataset.fingerprint, *shown.values()) == tags[0]


def fingerprint(dataset: PreparedDataset, *overrides: str, model: str = "") -> str:
    experiment = parse_experiment({"count_ensemble": {}}, overrides)
    return config_fingerprint(dataset, model or experiment.family, flatten(experiment))


def test_whatever_decides_a_result_makes_a_run_of_its_own(
    tiny_dataset: PreparedDataset, renamed: PreparedDataset
) -> None:
    """A suite would take the figures of the one for those of the other, and not run it."""
    overrides = ["seed=1", "model.dropout=0.3", "model.num_blocks=3", "training.learning_rate=0.01"]
    overrides += ["training.weight_decay=1", "count_ensemble.weights=[1.0]", "count_ensemble=null"]
    overrides += ["evaluation.seen=allow", "evaluation.candidates=sampled"]
    prints = [fingerprint(tiny_dataset), fingerprint(renamed), fingerprint(tiny_dataset, model="x")]
    prints += [fingerprint(tiny_dataset, override) for override in overrides]
    assert len(set(prints)) == len(prints)
    for decides_nothing in (
        "name=other",
        "tracking.experiment=other",
        "training.checkpoint_minutes=1",
        # The dataset says itself how it was prepared; here it was with other settings.
        "data.min_user_interactions=9",
    ):
        assert fingerprint(tiny_dataset, decides_nothing) == prints[0]


def test_candidates_of_the_same_file_name_are_told_apart_by_what_the_file_holds(
    tiny_dataset: PreparedDataset, tmp_path: Path
) -> None:
    file, prints = tmp_path / "candidates.csv", []
    for content in ("user_id,item_id\nann,hat\n", "user_id,item_id\nann,boots\n"):
        file.write_text(content)
        override = f"evaluation.candidates={{kind: given, file: {file}}}"
        prints.append(fingerprint(tiny_dataset, override))
    assert prints[0] != prints[1]
