"""What peers reach at their defaults in the time of an automatic run, on the same targets.

First run test_automatic.py with RECSYS_RESULTS=FOLDER; then this with the same variable, and
RECSYS_MINUTES, RECSYS_LOGS and PEERS (see sides/contest.py). A peer trains on the training part for
half of the time, at most until its validation NDCG@10 has not risen for ten epochs; then on both
parts together for as many epochs as were best. Only its training counts, so it has more time than
the automatic run, whose limit holds for everything.
"""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from contest import Contest, Side, chosen, ndcg_of_lists
from side import K, Problem, Settings

from recsys.data.prepared import Part, PreparedDataset
from recsys.evaluation.held_out import find_holdout
from recsys.evaluation.metrics import metric_values
from recsys.inference.ranking import NEVER
from recsys.reports.statistics import paired_difference
from recsys.serving.bundle import ModelBundle
from tests.benchmarks.test_automatic import LOGS, MINUTES, RESULTS

PATIENCE = 10
DEFAULTS = Settings(embedding_dim=256, num_heads=4, max_sequence_length=100, dropout=0.2)
"""Those of RecTools' SASRecModel; the other two change them."""
PEERS = [
    Side("rectools", "rectools"),
    Side(
        "replay",
        "replay",
        {"embedding_dim": 192, "max_sequence_length": 50, "dropout": 0.3},
    ),
    Side(
        "recbole",
        "recbole",
        {
            "embedding_dim": 64,
            "num_heads": 2,
            "max_sequence_length": 50,
            "dropout": 0.5,
            "batch_size": 2048,
        },
    ),
]


def problem_before(dataset: PreparedDataset, part: Part) -> tuple[Problem, np.ndarray]:
    """Return all histories before a part with the first target of each, and the users [U]."""
    histories, holdout = dataset.histories(part), find_holdout(dataset, part, "unknown")
    users, first = np.unique(holdout.users, return_index=True)
    targets = np.zeros(len(histories), dtype=np.int32)
    targets[users] = holdout.targets[first]
    known = (histories.items > 0) & (histories.items <= dataset.num_items)
    lengths = np.bincount(histories.users[known], minlength=len(histories))
    rows = np.flatnonzero(lengths > 0)
    offsets = np.concatenate([[0], np.cumsum(lengths[rows])])
    return Problem(histories.items[known], offsets, targets[rows], dataset.num_items), rows


def train(contest: Contest, side: Side, seconds: float, epochs: int | None) -> tuple[int, Path]:
    """Return the best epoch within the time, or the given one, and its lists."""
    best, best_epoch, path = -1.0, 0, Path()
    with closing(contest.answers(side, "quality")) as answers:
        for answer in answers:
            if "failed" in answer:
                print(f"{side.name}: {answer['failed']}")
                break
            lists = np.load(answer["lists"])
            known = contest.problem.targets > 0
            ndcg = ndcg_of_lists(lists[known], contest.problem.targets[known])
            if (epochs is None and ndcg > best) or answer["epoch"] == epochs:
                best, best_epoch = ndcg, answer["epoch"]
                path = Path(answer["lists"]).with_name("best.npy")
                np.save(path, lists)
            late = answer["seconds"] >= seconds or answer["epoch"] >= best_epoch + PATIENCE
            if answer["epoch"] == epochs or (epochs is None and late):
                print(f"{side.name}: {answer['epoch']} epochs in {answer['seconds']:.0f} s")
                break
    return best_epoch, path


@pytest.mark.benchmark
@pytest.mark.parametrize("side", PEERS, ids=lambda side: side.name)
@pytest.mark.parametrize("log", LOGS)
def test_peers_defaults_in_the_same_time(
    log: str, side: Side, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if RESULTS is None or not (RESULTS / log / "runs" / log / "bundle").is_dir():
        pytest.skip(f"RECSYS_RESULTS has no run of {log}: run test_automatic.py first")
    if not chosen([side]):
        pytest.skip(f"BENCH_SIDES or PEERS leaves {side.name} out")
    os.environ["BENCH_BUDGET"] = str(240 * MINUTES)
    folder = RESULTS / log
    dataset = PreparedDataset.open(folder / "data" / log)
    seen = ModelBundle.open(folder / "runs" / log / "bundle").experiment.evaluation.seen
    settings = Settings(**{**vars(DEFAULTS), "seen": seen})
    half = 30 * MINUTES
    with capsys.disabled():
        print()
        problem, _ = problem_before(dataset, "valid")
        epochs, _ = train(Contest(tmp_path / "valid", problem, settings), side, half, None)
        if not epochs:
            print(f"{log}: {side.name}: no epoch in {half:.0f} s")
            return
        problem, rows = problem_before(dataset, "test")
        _, path = train(Contest(tmp_path / "test", problem, settings), side, half, epochs)
        if not path.name:
            print(f"{log}: {side.name}: not trained anew in {240 * MINUTES:.0f} s")
            return
        lists = np.load(path)
        ours = pl.read_parquet(folder / "runs" / log / "ranks_test.parquet")
        ours = ours.unique("user", keep="first", maintain_order=True)
        places = np.searchsorted(rows, ours["user"].to_numpy())
        hits = lists[places] == problem.targets[places, None]
        ranks = np.where(hits.any(axis=1), hits.argmax(axis=1) + 1, NEVER)
        ours_ndcg = metric_values(ours["rank"].to_numpy(), f"ndcg_at_{K}")
        theirs_ndcg = metric_values(ranks, f"ndcg_at_{K}")
        found = paired_difference(ours_ndcg, theirs_ndcg)
        print(
            f"{log}: test NDCG@10 of {side.name} {theirs_ndcg.mean():.4f} ({epochs} epochs), ours "
            f"{ours_ndcg.mean():.4f}: {found.difference:+.4f} [{found.low:.4f}, {found.high:.4f}], "
            f"p {found.p_value:.4f}"
        )
