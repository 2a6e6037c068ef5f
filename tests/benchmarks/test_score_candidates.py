"""Scoring a few candidates of each user against recommending from the whole catalogue."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn

from recsys.baselines.count_ensemble import CountEnsemble
from recsys.baselines.transitions import PCTM, PUBLISHED_PCTM
from recsys.config import load_experiment
from recsys.data.prepared import prepare
from recsys.inference.catalogue import Catalogue
from recsys.serving.bundle import ModelBundle

ROOT = Path(__file__).resolve().parents[2]
USERS = int(os.environ.get("USERS", "2000"))
CANDIDATES = int(os.environ.get("CANDIDATES", "5"))
ROUNDS = int(os.environ.get("ROUNDS", "3"))

MEASURE = """
import json, sys, time
import polars as pl
from recsys.data.prepared import PreparedDataset
from recsys.serving.recommender import Recommender
from recsys.machine import reset_peak_memory, peak_memory_mib

task, bundle, dataset, candidates = sys.argv[1:]
model = Recommender.load(bundle, dataset)
pairs = pl.read_parquet(candidates)
users = pairs["user_id"].unique(maintain_order=True).to_list()
histories = model.read_histories(users=users)
model.recommend(model.read_histories(users=users[:8]), k=10)  # a warm-up, and all imports
reset_peak_memory()  # ru_maxrss would start at the peak of the parent process
loaded = peak_memory_mib()["peak_memory_mib"]
started, worked = time.perf_counter(), time.process_time()
if task == "recommend":
    model.recommend(histories, k=10)
elif task == "score":
    model.score(histories, pairs)
seconds, work = time.perf_counter() - started, time.process_time() - worked
peak = peak_memory_mib()["peak_memory_mib"]
print(json.dumps({"seconds": seconds, "work": work, "peak": peak, "above": peak - loaded}))
"""


def write_bundle(folder: Path, mirror: Path, counts: bool) -> tuple[ModelBundle, Path, Path]:
    """An untrained model of configs/ml-1m.yaml, the dataset, and the pairs to score."""
    experiment = load_experiment(ROOT / "configs/ml-1m.yaml", [f"data.mirror={mirror}"])
    dataset = prepare(experiment.data.source, experiment.data, folder / "data")
    histories = dataset.histories("test")
    torch.manual_seed(0)
    interactions = np.bincount(histories.items, minlength=dataset.num_items + 1)
    catalogue = Catalogue.of(experiment.model, dataset)
    model = catalogue.new_model(experiment.model, interactions)
    for weight in model.parameters():
        nn.init.normal_(weight, std=0.05)
    ensemble = None
    if counts:
        ensemble = CountEnsemble(
            PCTM.fit(histories, dataset.num_items, PUBLISHED_PCTM["ml-1m"]), weight=1.0
        )
    bundle = ModelBundle.write(
        folder / "bundle", model, experiment, dataset, ("train", "valid"), count_ensemble=ensemble
    )
    rng = np.random.default_rng(0)
    users = rng.permutation(len(dataset.user_ids))[:USERS].repeat(CANDIDATES)
    items = rng.integers(0, dataset.num_items, len(users))
    pairs = pl.DataFrame(
        {
            "user_id": dataset.user_ids.gather(users),
            "item_id": dataset.vocabulary.ids.gather(items),
        }
    )
    pairs.write_parquet(folder / "pairs.parquet")
    return bundle, folder / "data", folder / "pairs.parquet"


def measure(task: str, *paths: Path) -> dict[str, float]:
    """Run a task in a process of its own, on one thread."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, task, *map(str, paths)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.benchmark
@pytest.mark.parametrize("counts", [False, True], ids=["model", "model and counts"])
def test_score_a_few_candidates(
    counts: bool, mirror: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """ML-1M: CANDIDATES of each of USERS users against the ten best; medians of ROUNDS in turn."""
    bundle, dataset, pairs = write_bundle(tmp_path, mirror, counts)
    found: dict[str, list[dict[str, float]]] = {"recommend": [], "score": []}
    for _ in range(ROUNDS):
        for task, results in found.items():
            results.append(measure(task, bundle.path, dataset, pairs))
    medians = {
        task: {name: float(np.median([one[name] for one in results])) for name in results[0]}
        for task, results in found.items()
    }
    with capsys.disabled():
        print(f"\n{USERS:,} users, {CANDIDATES} candidates each, counts: {counts}")
        for task, figures in medians.items():
            print(
                f"{task}: {figures['seconds']:.2f} s ({figures['work']:.2f} s of the processor), "
                f"peak {figures['peak']:,.0f} MiB, {figures['above']:,.0f} MiB above the model"
            )
        ratios = {
            name: medians["score"][name] / max(medians["recommend"][name], 1e-9)
            for name in ("seconds", "work", "peak", "above")
        }
        print(
            f"score / recommend: time {ratios['seconds']:.2f} (processor {ratios['work']:.2f}), "
            f"peak {ratios['peak']:.2f}, above the loaded model {ratios['above']:.2f}"
        )
    assert all(len(results) == ROUNDS for results in found.values())
