"""Where the time of a run goes: the line at its end, and the metrics."""

from __future__ import annotations

from pathlib import Path

import pytest
from mlflow import MlflowClient

from recsys.config import parse_experiment
from recsys.data.prepared import PreparedDataset
from recsys.experiments.fit import fit
from recsys.experiments.results import Phases

PARTS = ["training", "validation", "evaluation", "bootstrap"]


def test_phases_add_up() -> None:
    phases = Phases()
    for name, seconds in {"baselines": 9.0, "training": 90.0}.items():
        phases.add(name, seconds)
    phases.add("training", -2.0)  # which belong to the validation
    phases.add("validation", 2.0)
    assert str(phases) == "baselines 9.0 s, training 88.0 s, validation 2.0 s"
    assert phases.of("training", "validation") == 90.0


def test_a_failed_phase_counts() -> None:
    phases = Phases()
    with pytest.raises(KeyError), phases.timed("evaluation"):
        raise KeyError
    assert phases.seconds["evaluation"] >= 0


def test_a_run_logs_its_phases(tiny_dataset: PreparedDataset, tmp_path: Path) -> None:
    tree = {
        "model": {"embedding_dim": 4, "max_sequence_length": 3},
        "training": {"max_epochs": 1, "precision": "float32"},
        "evaluation": {"seen": "allow", "cutoffs": [10]},
        "tracking": {"uri": f"sqlite:///{tmp_path}/mlflow.db"},
    }
    run = fit(parse_experiment(tree), tiny_dataset, tmp_path / "out")
    metrics = MlflowClient(run.tracking.absolute_uri).get_run(run.run_id).data.metrics
    assert {f"seconds_of/{part}" for part in PARTS} <= set(metrics)
    assert metrics["seconds_of/training"] <= metrics["fit_seconds"] == run.seconds
