"""Where the time of a run goes: the line at its end, and the metrics."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from mlflow import MlflowClient

from recsys.config import parse_experiment
from recsys.data.prepared import PreparedDataset
from recsys.experiments.fit import fit
from recsys.experiments.results import Phases

PARTS = ["training", "validation", "evaluation", "bootstrap"]


def test_the_line_says_what_takes_a_tenth_of_the_training_or_more() -> None:
    phases = Phases()
    for name, seconds in {"baselines": 9.0, "training": 90.0, "evaluation": 8.9}.items():
        phases.add(name, seconds)
    phases.add("training", -2.0)  # which belong to the validation
    phases.add("validation", 2.0)
    line = "baselines 9.0 s (10% of training), training 88.0 s, evaluation 8.9 s (10% of training)"
    assert str(phases) == f"{line}, validation 2.0 s"
    assert phases.of("training", "validation") == 90.0


def test_a_failed_phase_counts() -> None:
    phases = Phases()
    with pytest.raises(KeyError), phases.timed("evaluation"):
        raise KeyError
    assert phases.seconds["evaluation"] >= 0


def test_a_run_logs_its_phases(
    tiny_dataset: PreparedDataset, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    tree = {
        "model": {"embedding_dim": 4, "max_sequence_length": 3},
        "training": {"max_epochs": 1, "precision": "float32"},
        "evaluation": {"seen": "allow", "cutoffs": [10]},
        "tracking": {"uri": f"sqlite:///{tmp_path}/mlflow.db"},
    }
    run = fit(parse_experiment(tree), tiny_dataset, tmp_path / "out")
    (line,) = (text for text in caplog.messages if text.startswith("time: "))
    metrics = MlflowClient(run.tracking.absolute_uri).get_run(run.run_id).data.metrics
    assert [part for part in PARTS if f"{part} " in line] == PARTS
    assert {f"seconds_of/{part}" for part in PARTS} <= set(metrics)
    assert metrics["seconds_of/training"] <= metrics["fit_seconds"] == run.seconds
