"""What vectors of texts add: films by title and genres, products by description."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray
from sklearn.decomposition import TruncatedSVD  # type: ignore[import-untyped]
from sklearn.feature_extraction.text import TfidfVectorizer  # type: ignore[import-untyped]

from recsys.config.data import DataConfig
from recsys.config.experiment import Experiment
from recsys.config.files import load_experiment, parse_experiment
from recsys.data.histories import Histories
from recsys.data.prepared import PreparedDataset, prepare
from recsys.data.sources import find_named_dataset, read_named
from recsys.data.splits import Holdout
from recsys.evaluation.tables import RankTable, evaluate
from recsys.inference.catalogue import Catalogue
from recsys.inference.model_scorer import ModelScorer
from recsys.training.loop import train

LOGS = os.environ.get("LOGS", "ml-1m,online-retail-ii").split(",")
EPOCHS = int(os.environ.get("EPOCHS", "30"))
USERS = int(os.environ.get("USERS", "1000000"))
DIMS = int(os.environ.get("DIMS", "128"))
LENGTH = 50
CONFIGS = Path(__file__).parents[2] / "configs"
VECTOR = {"kind": "vector", "column": "text"}
MODELS: dict[str, dict[str, Any]] = {
    "ids only": {},
    "ids and vectors": {"item_features": [VECTOR]},
    "vectors only": {"item_features": [VECTOR], "item_ids": False},
}


def described(name: str, mirror: Path, folder: Path) -> PreparedDataset:
    """Prepare a log with the vectors of its item texts."""
    config = DataConfig(source=name)
    if name == "online-retail-ii":
        config = load_experiment(CONFIGS / "online-retail-ii.yaml").data
    dataset = find_named_dataset(config.source)
    assert dataset is not None
    _, items = read_named(dataset, str(mirror))
    assert items is not None
    words = [items[column].cast(pl.String).fill_null("") for column in items.columns[1:]]
    texts = [" ".join(row).replace("|", " ") for row in zip(*words, strict=True)]
    counts = TfidfVectorizer(min_df=2, sublinear_tf=True).fit_transform(texts)
    vectors = TruncatedSVD(DIMS, random_state=0).fit_transform(counts).astype(np.float32)
    return prepare(config.source, config, folder / name, items.with_columns(text=vectors))


def experiment_of(seen: str, model: dict[str, Any]) -> Experiment:
    tree = {"embedding_dim": 64, "num_blocks": 2, "max_sequence_length": LENGTH}
    tree |= {"head": {"kind": "dot_product"}} | model
    training = {"learning_rate": 1e-3, "precision": "float32"}
    return parse_experiment({"model": tree, "training": training, "evaluation": {"seen": seen}})


def without(histories: Histories, new: NDArray[np.bool_]) -> Histories:
    """Return the first histories without new items."""
    spans = zip(histories.offsets[:-1], histories.offsets[1:], strict=True)
    rows = (histories.items[start:end] for start, end in islice(spans, USERS))
    return Histories.from_lists([row[~new[row]] for row in rows])


def targets_of(dataset: PreparedDataset, new: NDArray[np.bool_]) -> Holdout:
    """Return the test targets of the first users; histories that lose all of their items go."""
    holdout = dataset.holdout("test")
    histories = without(holdout.histories, new)
    kept = holdout.history_rows < len(histories)
    kept[kept] = histories.lengths[holdout.history_rows[kept]] > 0
    return replace(
        holdout,
        users=holdout.users[kept],
        targets=holdout.targets[kept],
        history_rows=holdout.history_rows[kept],
        histories=histories,
    )


def segments_of(counts: NDArray[np.int64], new: NDArray[np.bool_]) -> dict[str, NDArray[np.bool_]]:
    """Return which items belong to a segment [I + 1]; the tail is the rarer half of the old."""
    old = ~new & (np.arange(len(new)) > 0)
    tail = old & (counts <= np.median(counts[old]))
    return {"all items": old | new, "old items": old, "tail items": tail, "new items": new}


@pytest.mark.benchmark
@pytest.mark.parametrize("name", LOGS)
def test_text_vectors(
    name: str, mirror: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """NDCG@10 on the test targets, with 95% intervals over the users.

    Every tenth item, by a random draw, is new: training and histories have none of its purchases,
    but it is among the ranked items. LOGS, EPOCHS, USERS and DIMS size it.
    """
    dataset = described(name, mirror, tmp_path)
    seen = "allow" if name == "online-retail-ii" else "filter"
    drawn = np.random.default_rng(0).permutation(dataset.num_items) % 10 == 0
    new = np.concatenate([[False], drawn])
    histories = without(dataset.histories("test"), new)
    histories = histories.take(np.flatnonzero(histories.lengths > 1))
    holdout = targets_of(dataset, new)
    counts = np.bincount(histories.items, minlength=len(new))
    for model, settings in MODELS.items():
        experiment = experiment_of(seen, settings)
        catalogue = Catalogue.of(experiment.model, dataset)
        made, _ = train(experiment, catalogue, histories, None, EPOCHS, lambda *_: None)
        scorer = ModelScorer(made, LENGTH)
        table = evaluate(scorer, holdout, "test", experiment.evaluation.seen)
        for segment, inside in segments_of(counts, new).items():
            rows = pl.Series(inside[holdout.targets])
            part = RankTable(table.frame.filter(rows), table.protocol)
            if not len(part.frame):
                continue
            found = part.summary(["ndcg_at_10"])["ndcg_at_10"]
            with capsys.disabled():
                print(
                    f"\n{name}, {model}, {segment} ({len(part.frame):,} targets): NDCG@10 "
                    f"{found.mean:.4f} [{found.low:.4f}, {found.high:.4f}]",
                    end="",
                )
