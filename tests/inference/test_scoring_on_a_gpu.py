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

from recsys.baselines.count_ensemble import CountEnsemble
from recsys.baselines.transitions import PCTM, PCTMSettings
from recsys.config.experiment import Experiment
from recsys.config.files import parse_experiment
from recsys.data.prepared import PreparedDataset, prepare
from recsys.errors import InputError
from recsys.evaluation.held_out import find_holdout, temperature_of
from recsys.evaluation.tables import evaluate
from recsys.model.sequence_to_sequence import Beam
from recsys.server.service import ServedModel, ServerSettings
from recsys.serving.bundle import ModelBundle
from recsys.serving.index import make_index
from recsys.serving.recommender import Recommender
from tests.helpers.commands import refused
from tests.helpers.own_process import passed_in_own_process
from tests.helpers.pretended_gpu import PretendedGpu, pretended_gpu
from tests.helpers.random_models import random_bundle

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
            "pretended", marks=pytest.mark.skipif(not PRETENDED, reason="the test above runs it")
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
    "recommend": lambda model: model.recommend(HISTORIES, k=3),
    "what was seen": lambda model: model.recommend(HISTORIES, k=3, seen="allow"),
    "some": lambda model: model.recommend(HISTORIES, k=2, allow=["hat", "socks"]),
    "diverse": lambda model: model.recommend(HISTORIES, k=2, diversity=0.5),
    "score": lambda model: model.score(HISTORIES, ["hat", "boots"]),
    "rank": ranks,
    "temperature": temperature,
}
OF_TARGET_ATTENTION: dict[str, Answer] = {
    "in two stages": lambda model: model.recommend(HISTORIES, k=2, retrieve=3),
    "explain": lambda model: model.explain(["gloves", "hat"], "boots"),
}
OF_DOT_PRODUCTS: dict[str, Answer] = {
    "similar items": lambda model: model.similar_items("hat", 2),
    "embeddings": lambda model: model.embeddings(),
    "embeddings of histories": lambda model: model.embeddings(HISTORIES),
}
OF_SEQUENCES: dict[str, Answer] = {
    "generate": lambda model: model.generate(
        KNOWN, n=2, strategy=Beam(width=2), candidates=["hat", "socks", "boots"]
    )
}
SIZES = {"embedding_dim": 8, "max_sequence_length": 3}
ATTENTION = {"kind": "target_attention", "num_heads": 2, "head_dim": 4}
SUMMED = {"head": {"kind": "target_attention", "pooling": "sum"}}
DOT = {"head": {"kind": "dot_product"}}
MODELS: dict[str, tuple[dict[str, Any], dict[str, Answer]]] = {
    "target attention that averages": ({"head": ATTENTION}, OF_TARGET_ATTENTION),
    "target attention that sums up": (SUMMED, OF_TARGET_ATTENTION),
    "dot product": (DOT, OF_DOT_PRODUCTS),
    "hstu": ({"kind": "hstu", "times": "past", **DOT}, {}),
    "masked items": ({"kind": "masked_item", "mask_probability": 0.3}, {}),
    "sequence to sequence": ({"kind": "sequence_to_sequence", "max_generated": 3}, OF_SEQUENCES),
    "a mean": (
        {"kind": "averaged", "members": [{"model": {**SIZES, **head}} for head in (SUMMED, DOT)]},
        {},
    ),
}


# --- The answers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_the_answers_are_those_of_the_cpu(
    name: str, device: torch.device, tiny_dataset: PreparedDataset, tmp_path: Path
) -> None:
    chosen, further = MODELS[name]
    sizes = {} if "members" in chosen else SIZES
    experiment = parse_experiment({"model": {**sizes, **chosen}}, [], "test")
    counts = further is not OF_DOT_PRODUCTS
    bundle = write_bundle(tmp_path / "bundle", experiment, tiny_dataset, counts=counts)
    on_cpu, on_gpu = (Recommender(ModelBundle.open(bundle), tiny_dataset) for _ in range(2))
    on_gpu.bundle.model.to(device)
    for what, answer in {**ANSWERS, **further}.items():
        assert_close(answer(on_gpu), answer(on_cpu), what)


def test_new_items_and_an_index_are_those_of_the_cpu(
    device: torch.device, tiny_log: pl.DataFrame, tmp_path: Path
) -> None:
    kinds = {"item_id": tiny_log["item_id"].unique().sort(), "kind": ["warm", "cold"] * 3}
    dataset = prepare(tiny_log, out=tmp_path / "data", items=pl.DataFrame(kinds))
    tree = {"model": {**SIZES, **DOT, "item_features": ["kind"]}}
    experiment = parse_experiment(tree, [], "test")
    bundle = write_bundle(tmp_path / "bundle", experiment, dataset, counts=False)
    new = pl.DataFrame({"item_id": ["scarf"], "kind": ["warm"]})
    on_cpu, on_gpu = (Recommender(ModelBundle.open(bundle), dataset) for _ in range(2))
    on_gpu.bundle.model.to(device)
    make_index(on_gpu.bundle, dataset, tmp_path / "index", k=2)
    expected, found = (
        [
            model.with_new_items(new).recommend(HISTORIES, k=2),
            model.with_index(tmp_path / "index").recommend(HISTORIES, k=2),
        ]
        for model in (on_cpu, on_gpu)
    )
    for ours, theirs, what in zip(found, expected, ("new items", "index"), strict=True):
        assert_close(ours, theirs, what)


def test_a_bundle_that_has_answered_moves(
    device: torch.device, tiny_bundle: ModelBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its scorers keep of the catalogue is made anew where the model is."""
    recommender = Recommender(ModelBundle.open(tiny_bundle.path))
    expected = [recommender.recommend(HISTORIES, k=2, retrieve=count) for count in (None, 3)]
    if device.type != "cuda":
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        plain = nn.Module.to
        monkeypatch.setattr(nn.Module, "to", lambda module, _: plain(module, device))
    recommender.bundle.use_gpu()
    for count, before in zip((None, 3), expected, strict=True):
        assert_close(recommender.recommend(HISTORIES, k=2, retrieve=count), before, "recommend")


def test_a_gpu_that_is_not_there_is_refused(
    tiny_bundle: ModelBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    message = refused("serve", tiny_bundle.path, "--gpu")
    assert "--gpu: torch finds no GPU here that it can use" in message


def test_a_model_that_does_not_fit_on_the_gpu_stays_on_the_cpu(
    tiny_bundle: ModelBundle, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The GPU has memory for some of the weights only; a server that is to use it refuses."""
    recommender, plain, moved = Recommender(ModelBundle.open(tiny_bundle.path)), nn.Module.to, []

    def to(module: nn.Module, where: Any) -> nn.Module:
        if where == "cuda":
            moved.append(module)
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
        if where == "cpu" and module in moved:
            moved.remove(module)
        return plain(module, where)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(nn.Module, "to", to)
    before = recommender.recommend(HISTORIES, k=2)
    recommender.bundle.use_gpu()
    problem = f"{tiny_bundle.path}: the model needs more memory than the GPU has"
    assert caplog.messages == [f"{problem}: it stays on the CPU"]
    assert_close(recommender.recommend(HISTORIES, k=2), before, "recommend")
    with pytest.raises(InputError, match="needs more memory than the GPU has"):
        ServedModel.load(ServerSettings(tiny_bundle.path, gpu=True))
    assert not moved


def write_bundle(
    path: Path, experiment: Experiment, dataset: PreparedDataset, *, counts: bool
) -> Path:
    ensemble = None
    if counts:
        fitted = PCTM.fit(dataset.histories("valid"), dataset.num_items, PCTMSettings())
        ensemble = CountEnsemble(fitted, 1.0)
    return random_bundle(path, experiment, dataset, count_ensemble=ensemble).path


def assert_close(found: Any, expected: Any, what: str) -> None:
    if isinstance(expected, pl.DataFrame):
        assert_frame_equal(found, expected, rel_tol=1e-3, abs_tol=1e-4)
        return
    if isinstance(expected, list):
        assert np.allclose(found, expected, rtol=1e-3), what
        return
    raise TypeError(f"{what}: {type(expected)}")
