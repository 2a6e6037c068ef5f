"""Do figures know what nobody may know? A log in which only a held-out target tells a target.

Everybody walks: the leaders of a walk take its items q, d, e, h in turn, the followers a step
later. Nothing but the walk says which item follows which; the first item, f, is of another walk.

              training | validation | test
    leader     f  q  d | e          | h
    follower      f  q | d          | e

So nobody can know the leaders' targets without having been trained on them. The followers'
validation targets are known from the leaders' training; their test targets from the leaders'
validation targets alone, in which e is seen for the first time: with a refit, and not without.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from mlflow import MlflowClient
from scipy.stats import binom

from recsys.baselines.tuned import BASELINES
from recsys.config.data import Backtest, DataConfig
from recsys.config.experiment import Experiment, TrackingConfig
from recsys.config.files import parse_experiment
from recsys.data.histories import Histories
from recsys.data.preparation import fold_configs
from recsys.data.prepared import Part, PreparedDataset, prepare
from recsys.evaluation.tables import RankTable, TopKTable
from recsys.experiments.baselines import fit_baselines
from recsys.experiments.fit import fit
from recsys.experiments.results import Run
from recsys.experiments.suite import MODEL, Suite, backtest, run_suite
from recsys.experiments.tune import Search, tune
from recsys.serving.bundle import ModelBundle
from recsys.tracking.store import find_runs

WALKS, LEADERS, FOLLOWERS, TEST = 40, 3, 2, 6
"""The last one is the time of everybody's test target."""
BEST = 5
"""A target is found if it is among the so many best of the catalogue."""
KNOWN = 0.8
"""Of the targets that can be known, more than so many are found."""

SMALL: dict[str, Any] = {
    "model": {
        "embedding_dim": 16,
        "num_blocks": 1,
        "feed_forward_dim": 16,
        "max_sequence_length": 4,
        "dropout": 0.0,
        "head": {"kind": "dot_product"},
    },
    "training": {
        "max_epochs": 6,
        "validate_every": 6,  # at the end: targets that nobody can know must not end it early
        "batch_tokens": 200,
        "learning_rate": 0.05,
        "precision": "float32",
    },
    "evaluation": {"cutoffs": [BEST]},
}
MODELS: dict[str, dict[str, Any]] = {
    "target_attention": {"model": {"head": {"kind": "target_attention", "head_dim": 8}}},
    "dot_product": {"count_ensemble": {}},
    # The model learns nothing: what is found, the count ensemble finds.
    "counts": {"training": {"learning_rate": 1e-9, "max_epochs": 1}, "count_ensemble": {}},
}
ALONE = ", model alone"
"""Ends the name of a run where its figures are those of the model without the counts."""
TRAINED = ("target_attention", "dot_product", f"dot_product{ALONE}", "counts")
COUNTING = ("markov", "sequential_rules", "pctm", "item_knn", "ease", "matrix_factorisation")
"""The baselines that can learn a walk."""


def make_log(changed: int | None = None) -> pl.DataFrame:
    """All walks, to the item w of another fold; each first item is the h or w of another walk.

    At the time `changed` everybody has the item of another walk.
    """
    rng = np.random.default_rng(0)
    rows = []
    for number in range(LEADERS + FOLLOWERS):
        order, others = rng.permutation(WALKS), np.empty(WALKS, dtype=np.int64)
        others[order] = np.roll(order, 1)
        role, items = ("leader", "qdehw") if number < LEADERS else ("follower", "qdeh")
        for walk, other in enumerate(others):
            user, start = f"{walk} {role} {number}", TEST + 2 - len(items)
            rows.append((user, f"{'hw'[number % 2]}{other}", start - 1))
            for time, item in enumerate(items, start):
                rows.append((user, f"{item}{(walk + (time == changed)) % WALKS}", time))
    return pl.DataFrame(rows, schema=["user_id", "item_id", "timestamp"], orient="row")


def prepare_walks(folder: Path, changed: int | None = None) -> PreparedDataset:
    """The log up to the test part."""
    return prepare(make_log(changed).filter(pl.col("timestamp") <= TEST), out=folder / "walks")


def make_experiment(tracking: TrackingConfig, **changes: Any) -> Experiment:
    """A small one; changes are sections, of which fields not given stay as they are."""
    tree = {key: {**SMALL.get(key, {}), **changes.get(key, {})} for key in SMALL | changes}
    return parse_experiment({"name": "walks", **tree, "tracking": tracking.model_dump()})


class Leaking(PreparedDataset):
    """What is known before a part of the split holds that part too."""

    @classmethod
    def of(cls, dataset: PreparedDataset) -> Leaking:
        return cls(**{field.name: getattr(dataset, field.name) for field in fields(dataset)})

    def histories(self, before: Part) -> Histories:
        starts = self.offsets[:-1]
        ends = starts + self.cuts[:, 1 if before == "valid" else 2]
        return self.histories_between(starts, ends)


@dataclass(frozen=True, slots=True)
class Found:
    leaders: float
    followers: float
    chance: float
    """What guesses exceed once in a million times, as if each walk had a single user."""

    @classmethod
    def of(cls, ranks: RankTable, dataset: PreparedDataset) -> Found:
        assert len(ranks.frame) == WALKS * (LEADERS + FOLLOWERS)  # no target is left out
        users, places = ranks.frame["user"], ranks.frame["rank"].to_numpy()
        leading = dataset.user_ids.gather(users).str.contains("leader").to_numpy()
        hits, luck = places <= BEST, binom(WALKS, BEST / ranks.protocol.num_items)
        leaders, followers = float(hits[leading].mean()), float(hits[~leading].mean())
        return cls(leaders, followers, float(luck.ppf(1 - 1e-6)) / WALKS)


Findings = Mapping[tuple[str, str, Part], Found]
"""By an entry of the suite, plain or refit, what was fitted, and a part of the split."""


def run_all(dataset: PreparedDataset, tracking: TrackingConfig, folder: Path) -> Findings:
    """Models and baselines in a suite, without a refit and with one; leaking ones with one."""
    plain, refit = {"name": "plain"}, {"name": "refit", "training": {"refit": True}}
    suite = Suite.model_validate(
        {
            **SMALL,
            "name": "walks",
            "datasets": [refit] if isinstance(dataset, Leaking) else [plain, refit],
            "models": [{"name": name, **changes} for name, changes in MODELS.items()],
            "baselines": COUNTING,
            "tracking": tracking,
        }
    )
    found: dict[tuple[str, str, Part], Found] = {}
    for entry, runs in run_suite(suite, lambda _: dataset, folder).items():
        parts: dict[Part, list[str]] = {"valid": runs[: len(MODELS)], "test": runs}
        for part, evaluated in parts.items():  # baselines have no validation figures
            for run in find_runs(evaluated, suite.tracking, part):
                name = run.name.removeprefix(f"walks-{entry}-").replace("-s0", "")
                found[entry, name, part] = Found.of(run.ranks, dataset)
    return found


@pytest.fixture(scope="module")
def tracking(tmp_path_factory: pytest.TempPathFactory) -> TrackingConfig:
    """One store for all: a new one takes seconds to make."""
    return TrackingConfig(uri=f"sqlite:///{tmp_path_factory.mktemp('store')}/mlflow.db")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    return prepare_walks(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the runs of the suite have their folders."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def found(dataset: PreparedDataset, tracking: TrackingConfig, outputs: Path) -> Findings:
    return run_all(dataset, tracking, outputs)


@pytest.fixture(scope="module")
def leaked(
    dataset: PreparedDataset, tracking: TrackingConfig, tmp_path_factory: pytest.TempPathFactory
) -> Findings:
    apart = tracking.model_copy(update={"experiment": "leaking"})
    return run_all(Leaking.of(dataset), apart, tmp_path_factory.mktemp("leaking"))


@pytest.mark.parametrize("name", [*TRAINED, *COUNTING])
def test_a_leak_would_be_seen(leaked: Findings, name: str) -> None:
    """Else the other tests would say nothing."""
    assert leaked["refit", name, "test"].leaders > KNOWN
    if name in TRAINED:
        assert leaked["refit", name, "valid"].leaders > KNOWN


@pytest.mark.parametrize("name", [*TRAINED, *COUNTING])
def test_what_only_test_targets_tell_is_not_known(found: Findings, name: str) -> None:
    for entry in ("plain", "refit"):
        test = found[entry, name, "test"]
        assert test.leaders <= test.chance


@pytest.mark.parametrize("name", [*TRAINED, *COUNTING])
def test_what_validation_targets_tell_is_known_on_test_after_a_refit_alone(
    found: Findings, name: str
) -> None:
    plain, refit = (found[entry, name, "test"] for entry in ("plain", "refit"))
    assert plain.followers <= plain.chance
    assert refit.followers > KNOWN


@pytest.mark.parametrize("name", TRAINED)
def test_validation_figures_are_of_what_has_seen_no_validation_target(
    found: Findings, name: str
) -> None:
    for entry in ("plain", "refit"):
        valid = found[entry, name, "valid"]
        assert valid.leaders <= valid.chance
        assert valid.followers > KNOWN


@pytest.mark.parametrize("name", [name for name in MODELS if "count_ensemble" in MODELS[name]])
def test_counts_are_weighed_as_if_there_were_no_refit(
    found: Findings, outputs: Path, name: str
) -> None:
    assert found
    plain, refit = (
        ModelBundle.open(outputs / f"walks-{entry}-{name}-s0" / "bundle").count_ensemble
        for entry in ("plain", "refit")
    )
    assert plain is not None
    assert refit is not None
    assert (plain.weight, plain.counts.settings) == (refit.weight, refit.counts.settings)
    assert plain.weight > 0 or name != "counts"


def test_a_search_is_judged_on_validation_and_knows_no_validation_target(
    dataset: PreparedDataset, tracking: TrackingConfig
) -> None:
    search = Search.model_validate(
        {"space": {"training.learning_rate": {"choices": [0.05]}}, "trials": 1}
    )
    experiment = make_experiment(tracking)
    knowable = FOLLOWERS / (LEADERS + FOLLOWERS)
    figure = tune(experiment, dataset, search).ndcg_at_10
    assert KNOWN * knowable < figure < knowable + 0.1
    leaking = experiment.model_copy(update={"name": "leaking"})
    assert tune(leaking, Leaking.of(dataset), search).ndcg_at_10 > KNOWN


@pytest.fixture(scope="module")
def fold_datasets(tmp_path_factory: pytest.TempPathFactory) -> list[PreparedDataset]:
    folder = tmp_path_factory.mktemp("folds")
    make_log().write_csv(folder / "log.csv")
    split = Backtest(cuts=(TEST, TEST + 1), valid_fraction=0.1)
    configs = fold_configs(DataConfig(source=str(folder / "log.csv"), split=split))
    return [
        prepare(config.source, config, folder / str(number))
        for number, config in enumerate(configs)
    ]


@pytest.mark.parametrize(("name", "refit"), [("markov", False), ("markov", True), (MODEL, True)])
def test_no_fold_of_a_backtest_knows_what_it_may_not(
    fold_datasets: list[PreparedDataset],
    tracking: TrackingConfig,
    name: str,
    refit: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)  # it writes into runs
    experiment = make_experiment(tracking, training={"refit": refit})
    ranks_of_folds, _ = backtest(name, experiment, fold_datasets)
    for ranks, dataset in zip(ranks_of_folds, fold_datasets, strict=True):
        targets = dataset.holdout("test").targets
        assert ranks.frame["target"].to_list() == targets.tolist()  # of this fold, no other
        test = Found.of(ranks, dataset)
        assert test.leaders <= test.chance
        assert (test.followers > KNOWN) if refit else (test.followers <= test.chance)


# Whatever a scorer makes of a log, popularity or anything else: what it may not know does not
# change it by a bit. Of two logs that differ in one part, all that may not know that part is equal.


@pytest.fixture(scope="module")
def other_targets(tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    """A log with other test targets; the catalogue is the same."""
    return prepare_walks(tmp_path_factory.mktemp("other"), TEST)


def trained_files(run: Run, *names: str) -> list[bytes]:
    return [(run.bundle / name).read_bytes() for name in names]


def test_other_test_targets_change_nothing_but_the_test_figures(
    dataset: PreparedDataset,
    other_targets: PreparedDataset,
    tracking: TrackingConfig,
    tmp_path: Path,
) -> None:
    """Of a training that chooses its epoch, weighs counts and is refitted, repeats allowed."""
    loss = {"kind": "sampled_softmax", "num_negatives": 20}
    training = {"max_epochs": 3, "validate_every": 1, "refit": True, "loss": loss}
    experiment = make_experiment(
        tracking, training=training, count_ensemble={}, evaluation={"seen": "allow"}
    )
    mine, theirs = (
        fit(experiment, log, tmp_path / str(number))
        for number, log in enumerate((dataset, other_targets))
    )
    files = ("weights.safetensors", "count_ensemble.safetensors", "items.parquet")
    assert trained_files(mine, *files) == trained_files(theirs, *files)
    assert (mine.best_epoch, mine.valid) == (theirs.best_epoch, theirs.valid)
    best = [TopKTable.load(run.bundle.parent / "topk_test.parquet").frame for run in (mine, theirs)]
    assert best[0].equals(best[1])
    assert mine.test != theirs.test


@pytest.mark.parametrize("name", BASELINES)
def test_other_test_targets_change_no_baseline(
    name: str,
    dataset: PreparedDataset,
    other_targets: PreparedDataset,
    tracking: TrackingConfig,
    tmp_path: Path,
) -> None:
    client = MlflowClient(tracking.absolute_uri)
    evaluation = {"seen": "allow", "cutoffs": [100]}
    experiment = make_experiment(tracking, training={"refit": True}, evaluation=evaluation)

    def made_of(log: PreparedDataset, folder: Path) -> tuple[dict[str, str], list[Any]]:
        """The settings that were chosen, and the best items after every history."""
        folder.mkdir()
        run = client.get_run(fit_baselines([name], experiment, log)[0])
        chosen = {key: value for key, value in run.data.params.items() if "baseline." in key}
        path = client.download_artifacts(run.info.run_id, "topk_test.parquet", str(folder))
        return chosen, TopKTable.load(path).frame.rows()

    mine = made_of(dataset, tmp_path / "mine")
    assert mine == made_of(other_targets, tmp_path / "theirs")
