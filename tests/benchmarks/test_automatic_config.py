"""What the hand-tuned config of a log reaches in the time of an automatic run, on the same targets.

First run test_automatic.py with RECSYS_RESULTS=FOLDER; then this with the same variable,
RECSYS_MINUTES and RECSYS_LOGS. The config has so many epochs that `recsys train` ends in the time,
as many as it was tuned to at most. It prepares no log and tests no baselines, so it has more time
for its training than the automatic run.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from recsys.config.experiment import Experiment
from recsys.config.files import load_experiment
from recsys.data.prepared import PreparedDataset
from recsys.evaluation.held_out import HeldOutParts
from recsys.evaluation.tables import RankTable
from recsys.experiments.fit import fit
from recsys.inference.catalogue import Catalogue
from recsys.reports.statistics import paired_test
from recsys.training.loop import build_batches, train
from tests.benchmarks.test_automatic import LOGS, MINUTES, RESULTS

CONFIGS = {
    "shop": ("shop",),
    "ml-1m": ("ml-1m-hstu", "ml-1m-sasrec"),
    "amazon-beauty": ("amazon-beauty", "amazon-beauty-dot-product"),
    "amazon-sports": ("amazon-sports", "amazon-sports-dot-product"),
    "online-retail-ii": ("online-retail-ii",),
}
"""The best config of a log, and a faster one where there is one."""
_FOLDER = Path(__file__).parents[2] / "configs"


def affordable_epochs(experiment: Experiment, dataset: PreparedDataset, seconds: float) -> int:
    """Return the epochs that can be trained, validated, repeated by the refit, and tested in time.

    The second epoch is timed: the first one is slower. There is at least one.
    """
    short, started = experiment.training.model_copy(update={"max_epochs": 1}), time.monotonic()
    run = fit(experiment.model_copy(update={"training": short}), dataset, fresh=True)
    evaluation = time.monotonic() - started - run.seconds
    catalogue = Catalogue.of(experiment.model, dataset)
    encoded = catalogue.encoders.read(dataset)
    holdout = HeldOutParts.find(encoded, experiment.evaluation.request_time).valid
    every = experiment.training.validate_every
    timed = experiment.model_copy(
        update={"training": experiment.training.model_copy(update={"validate_every": 2})}
    )
    histories = encoded.histories("valid")
    _, curve = train(timed, catalogue, histories, holdout, 2, lambda *_: False)
    once = curve.epochs[-1]["train/seconds"]
    validation = curve.epochs[-1]["epoch/valid_seconds"]
    steps = [len(build_batches(experiment, encoded.histories(part))) for part in ("valid", "test")]
    each = once * (1 + steps[1] / max(steps[0], 1))
    most = experiment.training.max_epochs
    left = seconds - evaluation
    fitting = [n for n in range(1, most + 1) if n * each + -(-n // every) * validation <= left]
    print(f"seconds: epoch {once:.1f}, validation {validation:.1f}, evaluation {evaluation:.1f}")
    return max(fitting, default=1)


@pytest.mark.benchmark
@pytest.mark.parametrize(
    ("log", "config"), [(log, config) for log in LOGS for config in CONFIGS.get(log, ())]
)
def test_the_hand_tuned_config_in_the_same_time(
    log: str, config: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if RESULTS is None or not (RESULTS / log / "runs" / log / "bundle").is_dir():
        pytest.skip(f"RECSYS_RESULTS has no run of {log}: run test_automatic.py first")
    monkeypatch.chdir(RESULTS / log)
    dataset = PreparedDataset.open(Path("data") / log)
    experiment = load_experiment(_FOLDER / f"{config}.yaml").with_data(dataset.config)
    tuned = experiment.training.max_epochs
    with capsys.disabled():
        print()
        experiment = experiment.model_copy(update={"name": f"{config}-in-time"})
        epochs = affordable_epochs(experiment, dataset, 60 * MINUTES)
        training = experiment.training.model_copy(update={"max_epochs": epochs})
        started = time.monotonic()
        run = fit(experiment.model_copy(update={"training": training}), dataset, fresh=True)
        took = time.monotonic() - started
        test = run.test["ndcg_at_10"]
        automatic = RankTable.load(Path("runs") / log / "ranks_test.parquet")
        theirs = RankTable.load(run.bundle.with_name("ranks_test.parquet"))
        found = paired_test(automatic, theirs, "ndcg_at_10")
        print(
            f"{log}: test NDCG@10 of {config} {test.mean:.4f} [{test.low:.4f}, {test.high:.4f}] "
            f"after {epochs} of {tuned} epochs in {took:.0f} s; the automatic run less it "
            f"{found.difference:+.4f} [{found.low:.4f}, {found.high:.4f}], p {found.p_value:.4f}"
        )
