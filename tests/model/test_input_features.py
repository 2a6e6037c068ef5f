"""Features of interactions and users, from the log to the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from recsys.config.data import DataConfig
from recsys.config.experiment import Experiment
from recsys.config.files import parse_experiment
from recsys.data.batches import TrainingBatches
from recsys.data.features import Encoders
from recsys.data.prepared import PreparedDataset, prepare
from recsys.errors import InputError
from recsys.inference.catalogue import Catalogue
from recsys.inference.model_scorer import ModelScorer, model_inputs
from recsys.model.models import ModelInputs, NextItemModel
from recsys.serving.bundle import ModelBundle
from recsys.serving.recommender import Recommender
from tests.helpers.random_models import drawn, random_bundle

LOG = pl.DataFrame(
    [
        *[("ann", "boots", 0, "buy", 5, ["x"]), ("ann", "hat", 1, "view", 3, ["y", "x"])],
        *[("ann", "coat", 2, "buy", None, []), ("ann", "boots", 3, "view", 1, ["x"])],
        *[("ann", "hat", 4, "sell", 2, ["x"]), ("bob", "hat", 0, "buy", 4, ["y"])],
        *[("bob", "boots", 1, None, 5, ["z"]), ("bob", "hat", 2, "buy", 5, [])],
        *[("bob", "coat", 3, "view", 4, ["x"]), ("cat", "coat", 0, "view", 1, ["y"])],
        *[("cat", "hat", 1, "buy", 2, ["x"]), ("cat", "scarf", 2, "buy", 3, ["y"])],
    ],
    schema=["user_id", "item_id", "timestamp", "action", "rating", "tags"],
    orient="row",
)
USERS = pl.DataFrame(
    {"user_id": ["bob", "ann", "eve"], "age": [40, 20, 99], "sex": ["m", "f", "m"]}
)
READ = {
    "interaction_features": [
        "action",
        {"kind": "number", "column": "rating"},
        {"kind": "categories", "column": "tags"},
    ],
    "user_features": [{"kind": "number", "column": "age"}],
}
WITH_USERS = LOG.join(USERS, on="user_id", how="left", maintain_order="left")
KEEP = DataConfig(keep=("action", "rating", "tags"))


def make_experiment(**model: Any) -> Experiment:
    tree = {
        "model": {
            "embedding_dim": 8,
            "num_blocks": 1,
            "feed_forward_dim": 16,
            "max_sequence_length": 3,
            "head": {"kind": "target_attention", "head_dim": 4},
            **model,
        },
        "evaluation": {"seen": "allow"},
    }
    return parse_experiment(tree)


def randomised(experiment: Experiment, catalogue: Catalogue) -> NextItemModel:
    torch.manual_seed(3)
    model = catalogue.new_model(experiment.model, np.ones(catalogue.num_items + 1, dtype=np.int64))
    assert isinstance(model, NextItemModel)
    return drawn(model).eval()


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    return prepare(LOG, KEEP, tmp_path_factory.mktemp("data") / "d", users=USERS)


@pytest.fixture(scope="module")
def bundle(dataset: PreparedDataset, tmp_path_factory: pytest.TempPathFactory) -> ModelBundle:
    return random_bundle(tmp_path_factory.mktemp("bundle") / "b", make_experiment(**READ), dataset)


def test_encoders_learn_only_from_the_training_part(dataset: PreparedDataset) -> None:
    """The action sell, and some ratings, occur only at test targets."""
    encoders = Encoders.fit(make_experiment(**READ).model, dataset)
    assert encoders.interactions is not None
    trained = dataset.interaction_table.filter(dataset.in_training)
    assert len(trained) == 6
    facts = [getattr(column, "values", None) for column in encoders.interactions.fitted.values()]
    assert facts == [["buy", "view"], None, ["x", "y", "z"]]
    number = [*encoders.interactions.fitted.values()][1]
    assert getattr(number, "mean") == pytest.approx(trained["rating"].mean())  # noqa: B009
    read = encoders.interactions, encoders.users
    assert sum(encoder.num_categories for encoder in read) == 5
    assert sum(encoder.num_numbers for encoder in read) == 4


def test_features_follow_their_items(dataset: PreparedDataset) -> None:
    encoders = Encoders.fit(make_experiment(**READ).model, dataset)
    histories = encoders.read(dataset).histories("test")
    taken = histories.take(np.array([1, 0])).latest(2)
    found = taken.padded_features(3)
    assert found is not None
    categories, shares, numbers = found
    # Bob has boots (no action, 5, z) and hat (buy, 5, no tags); ann has coat and boots.
    assert categories.shape[:2] == (2, 3)
    assert [sorted(set(row)) for row in categories[0].tolist()] == [[0, 5], [0, 1], [0]]
    assert [sorted(set(row)) for row in categories[1].tolist()] == [[0, 1], [0, 2, 3], [0]]
    assert shares.sum(axis=2).tolist() == [[1, 1, 0], [1, 2, 0]]
    assert numbers[1, 0, 1] == 1  # no rating
    ages = numbers[..., 2]
    assert ages[0, 0] == ages[0, 1] == -ages[1, 0] != 0
    assert not ages[:, 2].any()
    assert histories[1:].padded_features() is not None


@pytest.mark.parametrize("kind", [{}, {"kind": "hstu"}])
@torch.inference_mode()
def test_scoring_reads_the_same_features_as_training(
    dataset: PreparedDataset, kind: dict[str, Any]
) -> None:
    """The state before a user's last item is that of the history that ends there."""
    model = {"embedding_dim": 8, "num_blocks": 1, "max_sequence_length": 3, **READ, **kind}
    experiment = parse_experiment({"model": model})
    catalogue = Catalogue.of(experiment.model, dataset)
    ours, known = (
        randomised(experiment, catalogue),
        catalogue.encoders.read(dataset).histories("test"),
    )
    (batch,) = list(TrainingBatches(known, 3, 1000, seed=0))
    history, _ = ours.teacher_forced(
        ModelInputs(batch.items, batch.lengths, batch.times, batch.features), batch.targets
    )
    before = known.spans(known.offsets[:-1], known.offsets[1:] - 1).latest(3)
    inputs = model_inputs(ours, before)
    side, lengths = ours(inputs), inputs.lengths
    order = np.argsort(-lengths.numpy(), kind="stable")  # ann has 3 items, bob 2 and cat 1
    rows = np.argsort(-batch.lengths.numpy(), kind="stable")
    for row, user in zip(rows, order, strict=True):
        length = int(lengths[user])
        assert batch.items[row, :length].tolist() == before.padded(3)[user, :length].tolist()
        trained, scored = history[0][row, length - 1], side[0][user, length - 1]
        assert torch.allclose(trained, scored, atol=1e-5)


@torch.inference_mode()
def test_features_of_a_target_are_never_used(dataset: PreparedDataset, tmp_path: Path) -> None:
    """Other ratings and actions of the test targets change neither scores nor batches."""
    experiment = make_experiment(**READ)
    last = pl.int_range(pl.len()).over("user_id") == pl.len().over("user_id") - 1
    other = LOG.with_columns(
        action=pl.when(last).then(pl.lit("view")).otherwise("action"),
        rating=pl.when(last).then(77).otherwise("rating"),
    )
    changed = prepare(other, KEEP, tmp_path / "other", users=USERS)
    catalogue = Catalogue.of(experiment.model, dataset)
    model = randomised(experiment, catalogue)
    one, two = (
        ModelScorer(model, 3).score(catalogue.encoders.read(data).holdout("test").histories)
        for data in (dataset, changed)
    )
    assert torch.equal(one, two)
    later = [
        Recommender(random_bundle(tmp_path / name, experiment, data), data).score(
            users=["ann"], candidates=["hat"]
        )["score"][0]
        for name, data in (("a", dataset), ("b", changed))
    ]
    assert later[0] != pytest.approx(later[1], abs=1e-4)  # used once it is part of the history
    batches = []
    for data in (dataset, changed):
        known = catalogue.encoders.read(data)
        ends = known.offsets[1:]
        everything = known.histories_between(known.offsets[:-1], ends).take(np.array([0, 1]))
        batches.append(next(iter(TrainingBatches(everything, 4, 100, seed=0))))
    for ours, theirs in zip(batches[0].features or (), batches[1].features or (), strict=True):
        assert torch.equal(ours, theirs)


def test_a_bundle_is_restored_with_its_features(
    bundle: ModelBundle, dataset: PreparedDataset
) -> None:
    assert "features.json" in bundle.manifest.files
    opened = ModelBundle.open(bundle.path)
    known = opened.encoders.read(dataset).histories("test")
    expected = bundle.scorer.score(bundle.encoders.read(dataset).histories("test"))
    assert torch.equal(opened.scorer.score(known), expected)
    with pytest.raises(ValueError, match="reads features of its inputs, and there are none"):
        opened.scorer.score(dataset.histories("test"))


RAW = WITH_USERS.drop("sex")
"""Each row has its user's age."""


def test_histories_without_the_features_are_refused(
    bundle: ModelBundle, dataset: PreparedDataset
) -> None:
    recommender, raw = Recommender(bundle, dataset), RAW
    with pytest.raises(InputError, match="histories: no column 'rating' among user_id, item_id"):
        recommender.recommend(raw.drop("rating"), k=1)
    with pytest.raises(InputError, match="histories: no column 'age' among user_id"):
        recommender.recommend(raw.drop("age"), k=1)
    reads = "histories: the model reads action, rating, tags, age too, and lists of items do not"
    with pytest.raises(InputError, match=reads):
        recommender.recommend([["hat"]], k=1)
    assert recommender.recommend({"new": []}, k=1)["source"].to_list() == ["popularity"]
    both = "column 'age' is a user feature, but user 'ann' has several"
    with pytest.raises(InputError, match=both):
        recommender.recommend(raw.with_columns(age=pl.col("age") + pl.col("timestamp")), k=1)
