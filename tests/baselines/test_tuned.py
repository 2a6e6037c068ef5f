"""Tuning of the baselines on validation."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from mlflow import MlflowClient

from recsys.baselines import neighbours
from recsys.baselines.counts import Popularity, latest_histories
from recsys.baselines.tuned import BASELINES, Baseline
from recsys.config.experiment import Experiment
from recsys.config.files import parse_experiment
from recsys.data.histories import Histories
from recsys.data.prepared import Part, PreparedDataset
from recsys.evaluation.tables import TopKTable
from recsys.experiments import baselines as baseline_module
from recsys.experiments.baselines import baselines_of, fit_baselines


class Favourite:
    """A baseline whose setting is the item that it ranks first; it records its fits."""

    def __init__(self) -> None:
        self.fitted: list[tuple[Part, int]] = []

    def __call__(self, dataset: PreparedDataset, before: Part, item: int) -> Popularity:
        self.fitted.append((before, item))
        return Popularity(np.eye(dataset.num_items + 1)[item])


def test_validation_chooses_the_settings(tiny_dataset: PreparedDataset) -> None:
    targets = tiny_dataset.holdout("valid").targets.tolist()
    best = max(set(targets), key=targets.count)
    assert targets.count(best) > 1  # else the test would prove nothing
    fit = Favourite()
    items = list(range(1, tiny_dataset.num_items + 1))
    assert Baseline(fit, Popularity, items).choose(tiny_dataset, "allow") == best
    assert fit.fitted == [("valid", item) for item in items]
    fit.fitted.clear()
    valid = tiny_dataset.holdout("valid")
    trial = Baseline(fit, Popularity, items).measure(tiny_dataset, valid, "allow", lambda: True)
    assert (trial.settings, fit.fitted) == (1, [("valid", 1)])  # its time was over
    assert trial.seconds > 0
    tied = Baseline(fit, Popularity, [best, best, 0])
    assert tied.choose(tiny_dataset, "allow") is tied.grid[0]


def test_published_settings_are_used_under_the_published_protocol(
    tiny_dataset: PreparedDataset,
) -> None:
    fit = Favourite()
    published = {tiny_dataset.manifest.origin: 4}
    assert Baseline(fit, Popularity, [1, 2], published).choose(tiny_dataset, "filter") == 4
    assert not fit.fitted
    # Under another protocol they may have been chosen on what is held out here.
    assert Baseline(fit, Popularity, [1, 2], published).choose(tiny_dataset, "allow") in (1, 2)


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    return parse_experiment(
        {
            "name": "tiny",
            "evaluation": {"seen": "allow", "cutoffs": [3]},
            "tracking": {"uri": f"sqlite:///{tmp_path}/mlflow.db"},
        }
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", BASELINES)
def test_every_baseline_is_tuned_and_logged(
    name: str, tiny_dataset: PreparedDataset, experiment: Experiment
) -> None:
    run = MlflowClient(experiment.tracking.absolute_uri).get_run(
        fit_baselines([name], experiment, tiny_dataset)[0]
    )
    chosen = {key.partition(".")[2] for key in run.data.params if key.startswith("baseline.")}
    settings = BASELINES[name].grid[0]
    assert chosen == (set() if settings is None else set(asdict(settings)))
    assert run.info.run_name == f"tiny-{name}"
    assert {"test/ndcg_at_3", "tune_seconds", "fit_seconds"} <= set(run.data.metrics)


def test_uninformative_baselines_are_excluded(
    tiny_dataset: PreparedDataset, experiment: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert baselines_of(experiment, tiny_dataset) == list(BASELINES)
    evaluation = experiment.evaluation.model_copy(update={"seen": "filter"})
    filtering = experiment.model_copy(update={"evaluation": evaluation})
    excluded = {"repeat_last", "personal_frequency", "transitions_and_repeats"}
    assert set(BASELINES) - set(baselines_of(filtering, tiny_dataset)) == excluded
    monkeypatch.setattr(baseline_module, "MAX_ITEMS", 3)
    assert "ease" not in baselines_of(experiment, tiny_dataset)
    assert neighbours.MAX_ITEMS == 20_000


def test_the_latest_histories_have_the_newest_times(tiny_dataset: PreparedDataset) -> None:
    # Before the test targets: ann boots 0 gloves 1 hat 2, bob boots 0 hat 1 boots 2, cat gloves 0
    # boots 1, dan socks 0, eve hat 0 gloves 1, fay jacket 0 boots 1: two of thirteen at time 2.
    every = tiny_dataset.histories("test")
    newest = latest_histories(tiny_dataset, "test", 0.15)
    decoded = tiny_dataset.vocabulary.decode(newest.items).to_list()
    assert decoded == ["hat", "boots"]
    assert newest.lengths.tolist() == [1, 1, 0, 0, 0, 0]
    assert latest_histories(tiny_dataset, "test", 0.5).lengths.tolist() == [2, 2, 1, 0, 1, 1]
    same: Histories = latest_histories(tiny_dataset, "test", 1.0)
    assert same.items.tolist() == every.items.tolist()
    assert same.offsets.tolist() == every.offsets.tolist()


def popularities(
    name: str, experiment: Experiment, dataset: PreparedDataset, folder: Path
) -> dict[str, float]:
    """What a baseline that ranks alike for everyone thinks of each item."""
    client = MlflowClient(experiment.tracking.absolute_uri)
    (run_id,) = fit_baselines([name], experiment, dataset)
    path = client.download_artifacts(run_id, "topk_test.parquet", str(folder))
    best = TopKTable.load(path).frame.row(0, named=True)
    items = dataset.vocabulary.decode(np.array(best["items"], dtype=np.int32))
    return dict(zip(items.to_list(), best["scores"], strict=True))


@pytest.mark.parametrize(
    ("name", "trained", "refitted"),
    [
        # Before the validation targets: boots, boots, gloves, gloves, hat, hat, jacket, socks.
        # Those are hat, boots, boots, gloves, boots.
        ("popularity", [2, 2, 2, 1, 1], [5, 3, 3, 1, 1]),
        # Before them all are recent; with them, what is as new as they are.
        ("recent_popularity", [2, 2, 2, 1, 1], [3, 2, 2, 0, 0]),
    ],
)
def test_validation_targets_are_counted_where_the_model_is_refitted_and_only_there(
    name: str,
    trained: list[int],
    refitted: list[int],
    tiny_dataset: PreparedDataset,
    experiment: Experiment,
    tmp_path: Path,
) -> None:
    tree = experiment.model_dump(mode="json")
    tree["evaluation"]["cutoffs"] = [tiny_dataset.num_items]
    items = tiny_dataset.item_table["item_id"].to_list()
    for refit, counts in (("false", trained), ("true", refitted)):
        changed = parse_experiment(tree, [f"training.refit={refit}"])
        counted = popularities(name, changed, tiny_dataset, tmp_path)
        assert counted == dict(zip(items, counts, strict=True))
