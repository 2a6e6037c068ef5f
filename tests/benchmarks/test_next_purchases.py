"""Lists of the next purchases on real logs: what is written, ranked and counted, side by side."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray

from recsys.baselines.tuned import BASELINES
from recsys.config.experiment import EvaluationConfig
from recsys.config.files import load_experiment
from recsys.data.prepared import PreparedDataset, prepare
from recsys.evaluation.held_out import ListMaker, evaluate_lists
from recsys.evaluation.metrics import bootstrap_means
from recsys.experiments.baselines import baselines_of
from recsys.experiments.fit import fit
from recsys.inference.model_scorer import ModelScorer, generate_lists
from recsys.inference.scorer import Scorer
from recsys.model.sequence_to_sequence import Beam, SequenceToSequence
from recsys.reports.statistics import holm, paired_difference
from recsys.serving.bundle import ModelBundle

CONFIGS = Path(__file__).parents[2] / "configs"
SEEDS = (0, 1, 2)
RIVAL = (
    "model={kind: next_item, embedding_dim: 64, num_heads: 2, feed_forward_dim: 256, "
    "max_sequence_length: %d, dropout: %s, head: {kind: dot_product}}"
)
"""Half the blocks: it has no decoder."""

Figures = dict[str, NDArray[np.float64]]
"""By name: of every user [Q], or of every seed and user [S, Q]."""


def figures_of_bundle(folder: Path, dataset: PreparedDataset) -> dict[str, Figures]:
    """Test figures of every user by how the list was made."""
    bundle = ModelBundle.open(folder)
    model, length = bundle.model, bundle.experiment.model.max_sequence_length
    seen = bundle.experiment.evaluation.seen
    ranking = ModelScorer(model, length)
    sources: dict[str, Scorer | ListMaker]
    if not isinstance(model, SequenceToSequence):
        sources = {"dot product, n best": ranking}
    else:
        sources = {
            "written, greedy": partial(generate_lists, model, length),
            "written, beam of 4": partial(generate_lists, model, length, strategy=Beam(4)),
            "the same model's n best first steps": ranking,
        }
    tables = evaluate_lists(sources, dataset, seen)
    return {name: table.metrics() for name, table in tables.items()}


def figures_of_baselines(
    dataset: PreparedDataset, evaluation: EvaluationConfig, names: Sequence[str]
) -> dict[str, Figures]:
    found = {}
    for name in names:
        baseline = BASELINES[name]
        scorer = baseline.fit(dataset, "valid", baseline.choose(dataset, evaluation.seen))
        tables = evaluate_lists({name: scorer}, dataset, evaluation.seen)
        found[name] = tables[name].metrics()
    return found


def show(found: Mapping[str, Sequence[Figures]]) -> pl.DataFrame:
    """Means over seeds with 95% intervals over users, the spread of seeds; p against the first."""
    rows = []
    first: dict[str, NDArray[np.float64]] = {}
    tested: dict[str, list[float]] = {}
    for name, seeds in found.items():
        row: dict[str, object] = {"list": name}
        for metric in seeds[0]:
            each = np.stack([figures[metric] for figures in seeds])
            users = each.mean(axis=0)
            values, counts = np.unique(users, return_counts=True)
            (interval,) = bootstrap_means(values[None], counts, np.random.default_rng(0))
            spread = each.mean(axis=1).std(ddof=1) if len(seeds) > 1 else 0.0
            row[metric] = f"{interval.mean:.4f} [{interval.low:.4f}, {interval.high:.4f}]"
            row[metric] = f"{row[metric]} ±{spread:.4f}"
            if metric not in first:
                first[metric] = users
            else:
                p = paired_difference(users, first[metric]).p_value
                tested.setdefault(metric, []).append(p)
        rows.append(row)
    frame = pl.DataFrame(rows)
    for metric, ps in tested.items():
        frame = frame.with_columns(pl.Series(f"p {metric}", [None, *holm(ps)]))
    return frame


@pytest.mark.benchmark
@pytest.mark.realdata
@pytest.mark.parametrize(
    ("config", "rival"),
    [
        ("ml-1m-next-purchases", RIVAL % (100, 0.2)),
        ("amazon-beauty-next-purchases", RIVAL % (50, 0.5)),
        ("online-retail-ii-next-basket", RIVAL % (100, 0.2)),
    ],
)
def test_lists_of_next_purchases(
    config: str,
    rival: str,
    mirror: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Hours. BUNDLES names a folder of runs (CONFIG-s2s-s0/bundle, …) to look at instead."""
    path = CONFIGS / f"{config}.yaml"
    experiment = load_experiment(path)
    dataset = prepare(experiment.data.source, experiment.data, tmp_path / "data")
    folder = Path(os.environ.get("BUNDLES", tmp_path))
    found: dict[str, list[Figures]] = {}
    for kind, change in (("s2s", ()), ("dot", (rival,))):
        for seed in SEEDS:
            run = folder / f"{config}-{kind}-s{seed}"
            if not run.exists():
                store = f"tracking.uri=sqlite:///{tmp_path}/mlflow.db"
                fit(load_experiment(path, [*change, f"seed={seed}", store]), dataset, run)
            for name, figures in figures_of_bundle(run / "bundle", dataset).items():
                found.setdefault(name, []).append(figures)
    names = baselines_of(experiment, dataset)
    for name, figures in figures_of_baselines(dataset, experiment.evaluation, names).items():
        found[name] = [figures]
    with (
        capsys.disabled(),
        pl.Config(tbl_cols=-1, tbl_rows=-1, tbl_width_chars=500, fmt_str_lengths=80),
    ):
        print(f"\n{config}\n{show(found)}")
