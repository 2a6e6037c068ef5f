"""The mean of several models: its scores are the mean of theirs, wherever they are needed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import numpy as np
import polars as pl
import pytest
import torch
from mlflow import MlflowClient
from torch import nn

from recsys.config.data import DataConfig
from recsys.config.experiment import Experiment
from recsys.config.files import flatten, load_experiment, parse_experiment
from recsys.config.model import (
    AveragedConfig,
    AveragedMember,
    DotProduct,
    FactorisationMachineConfig,
    Feature,
    HSTUConfig,
    KernelAttention,
    MaskedItemConfig,
    NextItemConfig,
    TargetAttention,
)
from recsys.data.histories import Histories
from recsys.data.prepared import PreparedDataset, prepare
from recsys.errors import InputError
from recsys.experiments.fit import fit
from recsys.experiments.trainings import members_of
from recsys.inference.catalogue import Catalogue
from recsys.inference.model_scorer import ModelScorer
from recsys.model.build import build_model
from recsys.model.models import AveragedModel
from recsys.serving.bundle import ModelBundle
from recsys.serving.recommender import Recommender
from recsys.shop.simulation import make_shop
from recsys.training.module import TrainingModule
from tests.helpers.killed import Killed
from tests.helpers.random_models import drawn, random_bundle

ITEMS, LENGTH = 9, 4
SIZES: dict[str, Any] = {"embedding_dim": 8, "max_sequence_length": LENGTH}
ATTENTION = NextItemConfig(**SIZES, head=TargetAttention(num_heads=2, head_dim=4))
DOT = NextItemConfig(**SIZES | {"embedding_dim": 6}, head=DotProduct())
KERNEL = NextItemConfig(**SIZES, head=KernelAttention(kind="kernel_attention"))
HSTU = HSTUConfig(kind="hstu", **SIZES, times="past")
OTHERS = (
    NextItemConfig(**SIZES, head=TargetAttention(num_heads=1, head_dim=4, pooling="sum")),
    MaskedItemConfig(kind="masked_item", **SIZES),
    FactorisationMachineConfig(kind="factorisation_machine", **SIZES),
)
HISTORIES = Histories.from_lists([[1, 2], [3], [4, 5, 6, 7, 8, 9], [2, 2, 1]])
HISTORIES = Histories(
    HISTORIES.items, HISTORIES.offsets, np.arange(12) * 70, np.array([300, 500, 900, 990])
)


def mean_of(*models: Any) -> AveragedConfig:
    members = tuple(AveragedMember(model=each) for each in models)
    return AveragedConfig(kind="averaged", members=members)


def build(config: AveragedConfig, num_items: int = ITEMS) -> AveragedModel:
    torch.manual_seed(3)
    model = build_model(config, num_items)
    assert isinstance(model, AveragedModel)
    return drawn(model).eval()


def scores(model: Any, candidates: Any = None) -> Any:
    return ModelScorer(model, LENGTH).score(HISTORIES, candidates).numpy()


MEANS = [mean_of(KERNEL, DOT), mean_of(HSTU, ATTENTION, DOT, KERNEL), mean_of(*OTHERS, ATTENTION)]


@pytest.mark.parametrize("config", MEANS)
def test_scores_are_the_mean_of_the_scores_of_the_members(config: AveragedConfig) -> None:
    model = build(config)
    members = [scores(member) for member in model.members]
    found = scores(model)
    assert np.allclose(found[:, 1:], np.mean(members, axis=0)[:, 1:], atol=1e-5)
    assert np.isneginf(found[:, 0]).all()
    own = np.array([[1, 2, 0], [3, 4, 5], [9, 8, 7], [1, 1, 2]], dtype=np.int32)
    expected = np.take_along_axis(found, own.astype(int), axis=1)
    assert np.allclose(scores(model, own), expected, atol=1e-5)
    shared = np.tile(np.array([[2, 5]], dtype=np.int32), (4, 1))
    assert np.allclose(scores(model, shared), found[:, [2, 5]], atol=1e-5)


def test_the_first_stage_is_the_mean_of_the_dot_products() -> None:
    model = build(mean_of(ATTENTION, DOT, KERNEL))
    stages = [ModelScorer(each, LENGTH, each.head.dot_product) for each in (model, *model.members)]
    found, *members = (stage.score(HISTORIES).numpy()[:, 1:] for stage in stages)
    assert np.allclose(found, np.mean(members, axis=0), atol=1e-5)


# --- Bundles -------------------------------------------------------------------------------------


def bundle_of(folder: Path, dataset: PreparedDataset, *models: Any) -> ModelBundle:
    return random_bundle(folder, Experiment(model=mean_of(*models)), dataset)


@pytest.fixture(scope="module")
def bundle(tiny_dataset: PreparedDataset, tmp_path_factory: pytest.TempPathFactory) -> ModelBundle:
    return bundle_of(tmp_path_factory.mktemp("bundle") / "mean", tiny_dataset, ATTENTION, DOT)


def test_an_explanation_adds_up_to_the_score(bundle: ModelBundle) -> None:
    parts = Recommender(bundle).explain(["boots", "hat", "socks"], "jacket")
    score = Recommender(bundle).score([["boots", "hat", "socks"]], ["jacket"])["score"].item()
    assert parts["contribution"].sum() + parts["rest"][0] == pytest.approx(score, abs=1e-5)
    assert bundle.model.head.explains


def test_embeddings_multiply_to_the_scores(tiny_dataset: PreparedDataset, tmp_path: Path) -> None:
    model = Recommender(bundle_of(tmp_path / "mean", tiny_dataset, DOT, KERNEL))
    vectors = model.embeddings([["boots", "hat"]])["embedding"].to_numpy()
    products = vectors @ model.embeddings()["embedding"].to_numpy().T
    scores = model.score([["boots", "hat"]], model.embeddings()["item_id"])["score"]
    assert products[0].tolist() == pytest.approx(scores.to_list(), abs=1e-5)


def test_members_read_the_same_item_features(tiny_log: pl.DataFrame, tmp_path: Path) -> None:
    ids = tiny_log["item_id"].unique(maintain_order=True)
    items = pl.DataFrame({"item_id": ids, "kind": [n % 2 * "b" or "a" for n in range(len(ids))]})
    dataset = prepare(tiny_log, out=tmp_path / "data", items=items)
    read = {"item_features": (Feature(column="kind"),)}
    config = mean_of(*(model.model_copy(update=read) for model in (ATTENTION, DOT)))
    catalogue = Catalogue.of(config, dataset)
    sold = np.ones(dataset.num_items + 1, dtype=np.int64)
    some = np.where(np.arange(len(sold)) == 2, 0, sold)  # one member was not refitted
    trained = zip(config.members, (some, sold), strict=True)
    model = AveragedModel([catalogue.new_model(m.model, counts) for m, counts in trained]).eval()
    tables = [w for name, w in model.named_parameters() if "category_weight" in name]
    for table in tables:
        nn.init.normal_(table[1:])
    written = ModelBundle.write(
        tmp_path / "bundle",
        *(model, Experiment(model=config), dataset, ("train", "valid")),
        encoders=catalogue.encoders,
    )
    histories, members = dataset.histories("valid"), next(iter(model.children()))
    alone = [ModelScorer(member, LENGTH).score(histories) for member in cast("Any", members)]
    found = written.scorer.score(histories)[:, 1:]
    assert np.allclose(found, torch.stack(alone).mean(dim=0)[:, 1:], atol=1e-5)
    nn.init.zeros_(tables[1])
    assert not np.allclose(ModelScorer(model, LENGTH).score(histories)[:, 1:], found)


# --- Settings ------------------------------------------------------------------------------------


def tree(*members: dict[str, Any], **others: Any) -> dict[str, Any]:
    return {"model": {"kind": "averaged", "members": list(members)}, **others}


PLAIN: dict[str, Any] = {"model": {"head": {"kind": "dot_product"}}}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (tree(PLAIN), "at least 2 items"),
        (tree(PLAIN, {"model": {"kind": "sequence_to_sequence"}}), "kind must be"),
        (tree(PLAIN, {"model": {"max_sequence_length": 9}}), "the same max_sequence_length"),
        (tree(PLAIN, {"model": {"item_features": ["colour"]}}), "have the same item_features"),
        (tree(PLAIN, {"model": {"user_features": ["age"]}}), "of interactions or users have no"),
        (tree(PLAIN, {"model": {"num_blocks": -1}}), r"model\.members\.1\.model\.num_blocks"),
        (
            tree(PLAIN, {"model": {"kind": "hstu", "times": "request"}}),
            "request_time must be known",
        ),
    ],
)
def test_settings_that_cannot_be_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_experiment(wrong)


# --- Training ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    log = make_shop(seed=0, num_customers=60).interactions
    config = DataConfig(duplicates="drop_exact", min_user_interactions=3)
    return prepare(log, config, tmp_path_factory.mktemp("data") / "shop")


def experiment_of(folder: Path, **training: Any) -> Experiment:
    member = {**SIZES, "feed_forward_dim": 8, "head": {"kind": "dot_product"}}
    file = folder / "mean.yaml"
    settings = tree(
        {"model": member, "max_epochs": 3},
        {"model": member | {"head": {"kind": "target_attention", "head_dim": 4}}, "max_epochs": 2},
        name="mean",
        training={"batch_tokens": 150, "learning_rate": 0.01, "checkpoint_minutes": 0, **training},
        evaluation={"seen": "allow", "cutoffs": [10]},
        count_ensemble={},
        tracking={"uri": f"sqlite:///{folder}/mlflow.db"},
    )
    file.write_text(json.dumps(settings))
    return load_experiment(file)


def taught_by(experiment: Experiment, *models: Any) -> Experiment:
    """The first model of a mean, with other models for teachers."""
    assert isinstance(experiment.model, AveragedConfig)
    teachers = tuple(AveragedMember(model=each, max_epochs=2) for each in models)
    training = experiment.training.model_copy(update={"teachers": teachers, "max_epochs": 3})
    update = {"model": experiment.model.members[0].model, "training": training}
    return Experiment.model_validate(
        experiment.model_copy(update=update).model_dump(exclude={"data"})
    )


def counted(patch: pytest.MonkeyPatch, most: int | None = None) -> list[int]:
    steps, train = [0], TrainingModule.training_step

    def step(self: TrainingModule, *args: Any) -> Any:
        if steps[0] == most:
            raise Killed
        steps[0] += 1
        return train(self, *args)

    patch.setattr(TrainingModule, "training_step", step)
    return steps


@pytest.mark.slow
def test_a_yaml_trains_the_members_and_resumes_between_them(
    shop: PreparedDataset, tmp_path: Path
) -> None:
    experiment, out = experiment_of(tmp_path, refit=True), tmp_path / "out"
    with pytest.MonkeyPatch.context() as patch:
        steps = counted(patch)
        whole = fit(experiment, shop, tmp_path / "whole")
    model = ModelBundle.open(whole.bundle).model
    assert isinstance(model, AveragedModel)
    client = MlflowClient(experiment.tracking.uri)
    history = client.get_metric_history(whole.run_id, "epoch/valid_ndcg_at_10")
    params = client.get_run(whole.run_id).data.params  # whole: runs with equal ones are pooled
    assert params["model.members"] == str(flatten(experiment)["model.members"])
    assert [each.step for each in history] == [1, 2, 3, 4, 5, 6]  # the last is that of the mean
    assert whole.best_epoch == 6
    assert not list(tmp_path.glob("*.checkpoint*"))
    with pytest.MonkeyPatch.context() as patch:
        counted(patch, steps[0] - 2)  # in the refit of the second member
        with pytest.raises(Killed):
            fit(experiment, shop, out)
    assert len(list(tmp_path.glob("out.checkpoint.*"))) == 2
    with pytest.MonkeyPatch.context() as patch:
        again = counted(patch)
        resumed = fit(experiment, shop, out)
    assert 0 < again[0] < steps[0] / 5
    assert resumed.test == whole.test
    assert resumed.valid == whole.valid
    weights = ModelBundle.open(resumed.bundle).model.state_dict()
    assert all(torch.equal(weights[name], w) for name, w in model.state_dict().items())
    assert not list(tmp_path.glob("*.checkpoint*"))


def test_members_of_one_kind_have_seeds_of_their_own(tmp_path: Path) -> None:
    experiment = experiment_of(tmp_path)
    first, second = members_of(experiment)
    assert first.seed != second.seed
    assert (first.training.max_epochs, second.training.max_epochs) == (3, 2)
    assert first.training.batch_tokens == second.training.batch_tokens == 150


# --- Teachers ------------------------------------------------------------------------------------


def test_a_model_learns_of_teachers_only_what_they_may_know_and_resumes(
    shop: PreparedDataset, tmp_path: Path
) -> None:
    """Those of the training part teach the training, those of the refit teach the refit."""
    experiment = taught_by(experiment_of(tmp_path, refit=True), DOT, KERNEL)
    learned: list[tuple[int, Any]] = []
    with pytest.MonkeyPatch.context() as patch:
        steps, start = counted(patch), TrainingModule.__init__

        def note(module: TrainingModule, *args: Any, **words: Any) -> None:
            learned.append((steps[0], words["teacher"]))
            start(module, *args, **words)

        patch.setattr(TrainingModule, "__init__", note)
        whole = fit(experiment, shop, tmp_path / "whole")
    teachers = [teacher for _, teacher in learned]
    assert teachers[:4] == [None] * 4  # two teachers, each refitted
    trained, refitted = teachers[4:]
    assert isinstance(trained, AveragedModel)
    assert isinstance(refitted, AveragedModel)
    assert not torch.equal(trained.items.table(), refitted.items.table())
    bundle = ModelBundle.open(whole.bundle)
    assert bundle.experiment.training.teachers == experiment.training.teachers
    weights = bundle.model.state_dict()
    with pytest.MonkeyPatch.context() as patch:
        counted(patch, learned[-1][0] + 1)  # in the refit of the model
        with pytest.raises(Killed):
            fit(experiment, shop, tmp_path / "out")
    with pytest.MonkeyPatch.context() as patch:
        again = counted(patch)
        resumed = fit(experiment, shop, tmp_path / "out")
    assert 0 < again[0] < steps[0] / 4
    found = ModelBundle.open(resumed.bundle).model.state_dict()
    assert all(torch.equal(found[name], weight) for name, weight in weights.items())
    assert not list(tmp_path.glob("*.checkpoint*"))
    untaught = experiment.training.model_copy(update={"teachers": ()})
    plain = fit(experiment.model_copy(update={"training": untaught}), shop, tmp_path / "plain")
    assert plain.best_epoch <= 3
    other = ModelBundle.open(plain.bundle).model.state_dict()
    assert not torch.equal(other["items.weight"], weights["items.weight"])


@pytest.mark.parametrize(
    ("models", "training", "message"),
    [
        ((ATTENTION,), {}, "needs a dot product or kernel attention"),
        ((OTHERS[2],), {}, "needs a dot product or kernel attention"),
        ((DOT,), {"loss": {"kind": "bce"}}, "need the loss cross_entropy"),
        ((DOT.model_copy(update={"max_sequence_length": 9}),), {}, "same max_sequence_length"),
        ((HSTU.model_copy(update={"times": "request"}),), {}, "request_time must be known"),
    ],
)
def test_teachers_that_cannot_teach_are_refused(
    tmp_path: Path, models: Any, training: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        taught_by(experiment_of(tmp_path, **training), *models)
