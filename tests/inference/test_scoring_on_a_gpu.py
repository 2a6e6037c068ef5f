"""Scoring on a GPU: the same answers as on the CPU. Without one, on a pretended one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from polars.testing import assert_frame_equal
from torch import nn
from typer.testing import CliRunner

from recsys.baselines.count_ensemble import CountEnsemble
from recsys.baselines.transitions import PCTM, PCTMSettings
from recsys.cli import app
from recsys.config import Experiment, parse_experiment
from recsys.data.prepared import PreparedDataset, prepare
from recsys.errors import InputError
from recsys.evaluation.held_out import find_holdout
from recsys.evaluation.tables import evaluate
from recsys.inference import model_scorer
from recsys.inference.catalogue import Catalogue
from recsys.inference.scorer import FEWEST_USERS
from recsys.model.generation import Beam
from recsys.server.service import ServedModel, ServerSettings
from recsys.serving.bundle import ModelBundle
from recsys.serving.calibration import temperature_of
from recsys.serving.index import make_index
from recsys.serving.recommender import Recommender
from tests.helpers.own_process import passed_in_own_process
from tests.helpers.pretended_gpu import PretendedGpu, pretended_gpu

PRETENDED = os.environ.get("RECSYS_PRETENDED_GPU") == "1"
HISTORIES = {"zoe": ["gloves", "hat", "boots", "hat"], "ann": ["socks"], "new": []}
KNOWN = {user: items for user, items in HISTORIES.items() if items}
Answer = Callable[[Recommender], Any]


@pytest.mark.slow
def test_scoring_is_right_on_a_pretended_gpu() -> None:
    """In a process of its own, which has that accelerator then."""
    if PRETENDED:
        pytest.skip("this is that process")
    file = "tests/inference/test_scoring_on_a_gpu.py"
    assert passed_in_own_process(file, RECSYS_PRETENDED_GPU="1") >= 10


@pytest.fixture(
    params=[
        pytest.param(
            "pretended",
            marks=pytest.mark.skipif(not PRETENDED, reason="the test above runs it"),
        ),
        pytest.param(
            "cuda",
            marks=[
                pytest.mark.gpu,
                pytest.mark.skipif(
                    PRETENDED or not torch.cuda.is_available(), reason="no CUDA device"
                ),
            ],
        ),
    ]
)
def device(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[torch.device]:
    if request.param == "cuda":
        yield torch.device("cuda")
        return
    # Tensors of inference mode cannot be wrapped, and this one is not dispatched.
    monkeypatch.setattr(torch._C, "_InferenceMode", lambda _: torch.no_grad())
    plain = torch.tensor

    def tensor(data: Any, *, device: torch.device | None = None, **options: Any) -> torch.Tensor:
        made = plain(data, **options)
        return made if device is None else made.to(device)

    monkeypatch.setattr(torch, "tensor", tensor)
    gpu = pretended_gpu()
    with PretendedGpu():  # type: ignore[no-untyped-call]
        yield gpu


# --- What is asked -------------------------------------------------------------------------------


def ranks(recommender: Recommender) -> pl.DataFrame:
    dataset, bundle = recommender.dataset, recommender.bundle
    assert dataset is not None
    holdout = find_holdout(dataset, "test", "unknown")
    return evaluate(bundle.scorer, holdout, "test", "filter").frame


def temperature(recommender: Recommender) -> list[float | None]:
    assert recommender.dataset is not None
    holdout = recommender.dataset.holdout("valid", "unknown")
    return [temperature_of(recommender.bundle.scorer, holdout, seed=0)]


ANSWERS: dict[str, Answer] = {
    "recommend": lambda one: one.recommend(HISTORIES, k=3),
    "recommend what was seen": lambda one: one.recommend(HISTORIES, k=3, seen="allow"),
    "recommend some": lambda one: one.recommend(HISTORIES, k=2, allow=["hat", "socks"]),
    "recommend diverse": lambda one: one.recommend(HISTORIES, k=2, diversity=0.5),
    "score": lambda one: one.score(HISTORIES, ["hat", "boots"]),
    "rank": ranks,
    "temperature": temperature,
}
OF_TARGET_ATTENTION: dict[str, Answer] = {
    "recommend in two stages": lambda one: one.recommend(HISTORIES, k=2, retrieve=3),
    "explain": lambda one: one.explain(["gloves", "hat"], "boots"),
}
OF_DOT_PRODUCTS: dict[str, Answer] = {
    "similar items": lambda one: one.similar_items("hat", 2),
    "embeddings": lambda one: one.embeddings(),
    "embeddings of histories": lambda one: one.embeddings(HISTORIES),
}


def of_mean(pooling: str | None) -> dict[str, Any]:
    head = {"kind": "target_attention", "pooling": pooling} if pooling else {"kind": "dot_product"}
    return {"embedding_dim": 8, "max_sequence_length": 3, "head": head}


MODELS: dict[str, tuple[dict[str, Any], dict[str, Answer]]] = {
    "target attention that averages": (
        {"head": {"kind": "target_attention", "num_heads": 2, "head_dim": 4}},
        OF_TARGET_ATTENTION,
    ),
    "target attention that sums up": (
        {"head": {"kind": "target_attention", "pooling": "sum"}},
        OF_TARGET_ATTENTION,
    ),
    "dot product": ({"head": {"kind": "dot_product"}}, OF_DOT_PRODUCTS),
    "hstu": ({"kind": "hstu", "times": "past", "head": {"kind": "dot_product"}}, {}),
    "masked items": ({"kind": "masked_item", "mask_probability": 0.3}, {}),
    "sequence to sequence": (
        {"kind": "sequence_to_sequence", "max_generated": 3},
        {
            "generate": lambda one: one.generate(KNOWN, n=2),
            "generate the best of some": lambda one: one.generate(
                KNOWN, n=2, strategy=Beam(width=2), candidates=["hat", "socks", "boots"]
            ),
        },
    ),
    "a mean": (
        {"kind": "averaged", "members": [{"model": of_mean(pooling)} for pooling in ("sum", None)]},
        {},
    ),
}


# --- The answers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("counts", [False, True], ids=["model", "with counts"])
@pytest.mark.parametrize("name", MODELS)
def test_the_answers_are_those_of_the_cpu(
    name: str, counts: bool, device: torch.device, tiny_dataset: PreparedDataset, tmp_path: Path
) -> None:
    given, further = MODELS[name]
    sizes = {} if "members" in given else {"embedding_dim": 8, "max_sequence_length": 3}
    experiment = parse_experiment({"model": {**sizes, **given}}, [], "test")
    bundle = write_bundle(tmp_path / "bundle", experiment, tiny_dataset, counts=counts)
    on_cpu, on_gpu = (Recommender(ModelBundle.open(bundle), tiny_dataset) for _ in range(2))
    on_gpu.bundle.model.to(device)
    for what, answer in {**ANSWERS, **further}.items():
        assert_close(answer(on_gpu), answer(on_cpu), what)


def test_new_items_and_an_index_are_those_of_the_cpu(
    device: torch.device, tiny_log: pl.DataFrame, tmp_path: Path
) -> None:
    kinds = pl.DataFrame({"item_id": tiny_log["item_id"].unique().sort()})
    kinds = kinds.with_columns(
        kind=pl.when(pl.int_range(pl.len()) % 2 == 0).then(pl.lit("warm")).otherwise(pl.lit("cold"))
    )
    dataset = prepare(tiny_log, out=tmp_path / "data", items=kinds)
    sizes = {"embedding_dim": 8, "max_sequence_length": 3, "item_features": ["kind"]}
    experiment = parse_experiment({"model": {**sizes, "head": {"kind": "dot_product"}}}, [], "test")
    bundle = write_bundle(tmp_path / "bundle", experiment, dataset, counts=False)
    new = pl.DataFrame({"item_id": ["scarf"], "kind": ["warm"]})
    on_cpu, on_gpu = (Recommender(ModelBundle.open(bundle), dataset) for _ in range(2))
    on_gpu.bundle.model.to(device)
    made = make_index(on_gpu.bundle, dataset, tmp_path / "index", k=2)
    assert made.facts["device"] == device.type
    assert " on the GPU" in made.advice
    expected, found = (
        [
            one.with_new_items(new).recommend(HISTORIES, k=2),
            one.with_index(tmp_path / "index").recommend(HISTORIES, k=2),
        ]
        for one in (on_cpu, on_gpu)
    )
    for ours, theirs, what in zip(found, expected, ("new items", "index"), strict=True):
        assert_close(ours, theirs, what)


def test_a_large_catalogue_is_searched_on_the_device(
    device: torch.device, tiny_bundle: ModelBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its best items are found block by block; the rules for its size are patched."""
    monkeypatch.setattr(model_scorer, "users_per_batch", lambda _: FEWEST_USERS)
    on_cpu, on_gpu = (Recommender(ModelBundle.open(tiny_bundle.path)) for _ in range(2))
    on_gpu.bundle.model.to(device)
    for seen in ("filter", "allow"):
        expected = on_cpu.recommend(HISTORIES, k=2, seen=seen)
        assert_close(on_gpu.recommend(HISTORIES, k=2, seen=seen), expected, seen)


def test_a_bundle_that_has_answered_moves(
    device: torch.device, tiny_bundle: ModelBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its scorers keep of the catalogue is made anew where the model is."""
    recommender = Recommender(ModelBundle.open(tiny_bundle.path))
    expected = [recommender.recommend(HISTORIES, k=2, retrieve=one) for one in (None, 3)]
    if device.type != "cuda":
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        plain = nn.Module.to
        monkeypatch.setattr(nn.Module, "to", lambda module, _: plain(module, device))
    recommender.bundle.use_gpu()
    for one, before in zip((None, 3), expected, strict=True):
        assert_close(recommender.recommend(HISTORIES, k=2, retrieve=one), before, "recommend")


@pytest.mark.parametrize("name", ["target attention that sums up", "dot product"])
def test_a_server_answers_as_on_the_cpu(
    name: str,
    device: torch.device,
    tiny_dataset: PreparedDataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given, _ = MODELS[name]
    tree = {"model": {"embedding_dim": 8, "max_sequence_length": 3, **given}}
    bundle = write_bundle(
        tmp_path / "bundle", parse_experiment(tree, [], "test"), tiny_dataset, counts=True
    )
    if device.type != "cuda":
        monkeypatch.setattr(ModelBundle, "move_to_gpu", lambda bundle: bundle.model.to(device))
    retrieve = None if name == "dot product" else 3
    answers = []
    for gpu in (False, True):
        settings = ServerSettings(bundle, tiny_dataset.path, retrieve=retrieve, gpu=gpu)
        model = ServedModel.load(settings)
        assert (model.bundle.model.items.weight.device.type == "cpu") != gpu
        ask, states = model.recommender, model.bundle.states
        users = [
            ask.read_histories([["gloves", "hat"]]),
            ask.read_histories([["socks"]], users=["bob"]),
        ]
        found: list[Any] = []
        for user in [*users, *users]:  # the second time of kept states
            best = ask.recommend(user, k=2, seen="filter", retrieve=retrieve)
            found += zip(best["item_id"], best["score"], strict=True)
            found += ask.score(user, ["boots", "gloves", "hat"])["score"].to_list()
        assert states is not None
        assert states.hits
        near = ask.similar_items("hat", 2)
        found += zip(near["item_id"], near["similarity"], strict=True)
        if name != "dot product":
            parts = ask.explain(users[0], "boots")
            found += zip(parts["item_id"], parts["contribution"], strict=True)
        answers.append(found)
    on_cpu, on_gpu = answers
    for ours, theirs in zip(on_gpu, on_cpu, strict=True):
        assert _name(ours) == _name(theirs)
        assert_close([_number(ours)], [_number(theirs)], name)


def _name(answer: Any) -> Any:
    return answer[0] if isinstance(answer, tuple) else None


def _number(answer: Any) -> float:
    return float(answer[1] if isinstance(answer, tuple) else answer)


def test_a_gpu_that_is_not_there_is_refused(
    tiny_bundle: ModelBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    folder = str(tiny_bundle.path)
    for words in (["serve", folder], ["index", folder, "--data", folder, "--out", folder]):
        answer = CliRunner().invoke(app, [*words, "--gpu"])
        assert answer.exit_code != 0
        assert "--gpu: torch finds no GPU here that it can use" in str(answer.exception)


@pytest.fixture
def full_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A GPU that has memory for some of the weights of a model only."""
    plain, moved = nn.Module.to, list[nn.Module]()

    def to(module: nn.Module, where: Any) -> nn.Module:
        if where == "cuda":
            moved.append(module)
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
        if where == "cpu" and module in moved:
            moved.remove(module)
        return plain(module, where)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(nn.Module, "to", to)
    yield
    assert not moved


@pytest.mark.usefixtures("full_gpu")
def test_a_model_that_does_not_fit_on_the_gpu_stays_on_the_cpu(
    tiny_bundle: ModelBundle, caplog: pytest.LogCaptureFixture
) -> None:
    recommender = Recommender(ModelBundle.open(tiny_bundle.path))
    before, scorer = recommender.recommend(HISTORIES, k=2), recommender.bundle.scorer
    recommender.bundle.use_gpu()
    problem = f"{tiny_bundle.path}: the model needs more memory than is free on the GPU"
    assert caplog.messages == [f"{problem}: it stays on the CPU"]
    assert recommender.bundle.scorer is scorer
    assert_close(recommender.recommend(HISTORIES, k=2), before, "recommend")
    with pytest.raises(InputError) as refused:
        recommender.bundle.move_to_gpu()
    assert str(refused.value) == problem


@pytest.mark.usefixtures("full_gpu")
def test_a_server_that_is_to_use_the_gpu_refuses_a_model_that_does_not_fit(
    tiny_bundle: ModelBundle,
) -> None:
    settings = ServerSettings(tiny_bundle.path, gpu=True)
    with pytest.raises(InputError, match="needs more memory than is free on the GPU"):
        ServedModel.load(settings)


def test_commands_that_answer_many_use_the_gpu(
    device: torch.device,
    tiny_bundle: ModelBundle,
    tiny_dataset: PreparedDataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moved: list[ModelBundle] = []
    plain = ModelBundle.use_gpu

    def use_gpu(bundle: ModelBundle) -> None:
        moved.append(bundle)
        plain(bundle)
        if device.type != "cuda":
            bundle.model.to(device)

    monkeypatch.setattr(ModelBundle, "use_gpu", use_gpu)
    folder, data = str(tiny_bundle.path), ["--data", str(tiny_dataset.path)]
    for words in (
        ["recommend", folder, *data, "-k", "2"],
        ["score", folder, *data, "--item", "hat"],
        ["evaluate", folder, *data],
        ["embeddings", folder, "--out", str(tmp_path / "vectors.parquet")],
    ):
        answer = CliRunner().invoke(app, words)
        assert answer.exit_code == 0, answer.output
        assert moved.pop().model.items.weight.device.type == device.type
    assert not moved


def write_bundle(
    path: Path, experiment: Experiment, dataset: PreparedDataset, *, counts: bool
) -> Path:
    torch.manual_seed(3)
    catalogue = Catalogue.of(experiment.model, dataset)
    counts_of = np.ones(dataset.num_items + 1, dtype=np.int64)
    model = catalogue.new_model(experiment.model, counts_of)
    for weight in model.parameters():  # past the zeros that target attention starts from
        nn.init.normal_(weight, std=0.5)
    ensemble = None
    if counts:
        fitted = PCTM.fit(dataset.histories("valid"), dataset.num_items, PCTMSettings())
        ensemble = CountEnsemble(fitted, 1.0)
    return ModelBundle.write(
        path,
        model,
        experiment,
        dataset,
        ("train",),
        count_ensemble=ensemble,
        encoders=catalogue.encoders,
    ).path


def assert_close(found: Any, expected: Any, what: str) -> None:
    if isinstance(expected, pl.DataFrame):
        assert_frame_equal(found, expected, rel_tol=1e-3, abs_tol=1e-4)
        return
    if isinstance(expected, list):
        assert np.allclose(found, expected, rtol=1e-3), what
        return
    raise TypeError(f"{what}: {type(expected)}")
