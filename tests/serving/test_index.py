"""The approximate index: with all lists it is exact search, with few it is fast and misses few."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from numpy.typing import NDArray
from polars.testing import assert_frame_equal
from safetensors.numpy import load_file, save_file

from recsys.baselines.count_ensemble import CountEnsemble
from recsys.baselines.transitions import PCTM, PCTMSettings
from recsys.config.experiment import Experiment
from recsys.config.model import DotProduct, KernelAttention, NextItemConfig, TargetAttention
from recsys.data.histories import Histories
from recsys.data.prepared import PreparedDataset, prepare
from recsys.errors import InputError
from recsys.inference.model_scorer import ModelScorer
from recsys.inference.ranking import NotANumberError
from recsys.inference.scorer import Seen
from recsys.model.build import build_model
from recsys.server.service import ServerSettings
from recsys.serving.bundle import ModelBundle
from recsys.serving.index import IndexManifest, make_index, open_index, query_encoder
from recsys.serving.recommender import Recommender
from tests.helpers.commands import run_json
from tests.helpers.random_models import drawn
from tests.helpers.running_server import running
from tests.helpers.server_process import ASKED, wait_for, write_other

ITEMS, USERS = 400, 60
HEADS: dict[str, DotProduct | KernelAttention | TargetAttention] = {
    "dot_product": DotProduct(),
    "kernel_attention": KernelAttention(kind="kernel_attention"),
    "target_attention": TargetAttention(num_heads=2, head_dim=4),
}


def vectors(count: int, clusters: int = 60, width: int = 16) -> NDArray[np.float32]:
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((clusters, width))
    found = centres[rng.integers(0, clusters, count)] + 0.5 * rng.standard_normal((count, width))
    return (found * rng.uniform(0.8, 1.2, (count, 1))).astype(np.float32)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    """Every item is in some history: the catalogue has all of them."""
    rng = np.random.default_rng(1)
    items = np.concatenate([rng.permutation(ITEMS), rng.integers(0, ITEMS, USERS * 4)])
    users = np.concatenate([np.arange(ITEMS) % USERS, np.repeat(np.arange(USERS), 4)])
    times = np.arange(len(items))
    log = pl.DataFrame({"user_id": users, "item_id": items, "timestamp": times})
    return prepare(log, out=tmp_path_factory.mktemp("data") / "wide")


def write_bundle(path: Path, dataset: PreparedDataset, head: str) -> ModelBundle:
    experiment = Experiment(
        model=NextItemConfig(
            embedding_dim=16, num_blocks=1, max_sequence_length=5, head=HEADS[head]
        )
    )
    torch.manual_seed(0)
    model = build_model(experiment.model, dataset.num_items)
    drawn(model, 0.3).items.weight.data[1:] = torch.from_numpy(vectors(dataset.num_items))
    return ModelBundle.write(path, model, experiment, dataset, ("train",))


@pytest.fixture(scope="module")
def bundle_of(
    dataset: PreparedDataset, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], ModelBundle]:
    """A bundle with a head; treat its folder as read-only."""
    made: dict[str, ModelBundle] = {}

    def bundle_of(head: str) -> ModelBundle:
        if head not in made:
            made[head] = write_bundle(tmp_path_factory.mktemp("b") / head, dataset, head)
        return made[head]

    return bundle_of


# --- Recommending by it --------------------------------------------------------------------------


@pytest.mark.parametrize("head", ["dot_product", "kernel_attention", "target_attention"])
@pytest.mark.parametrize("seen", ["filter", "allow"])
def test_all_lists_give_the_answers_of_exact_search(
    head: str,
    seen: Seen,
    bundle_of: Callable[[str], ModelBundle],
    dataset: PreparedDataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exact = Recommender(bundle_of(head), dataset)
    make_index(exact.bundle, dataset, tmp_path / "index", recall=1.1)
    indexed = exact.with_index(tmp_path / "index")
    retrieve = 30 if head == "target_attention" else None
    new = {"nobody": [], "ann": [3, 5, 3, 9]}
    for histories, rules in ((None, {}), (None, {"allow": [3, 5, 8]}), (new, {"diversity": 0.3})):
        expected, found = (
            model.recommend(histories, k=3, seen=seen, retrieve=retrieve, **rules)
            for model in (exact, indexed)
        )
        assert_frame_equal(found, expected, abs_tol=1e-4)
    if head != "target_attention":
        with pytest.raises(InputError, match="two stages need target attention"):
            indexed.recommend([[1]], k=3, retrieve=30)
    else:
        with pytest.raises(InputError, match="or counts rank them: say how many"):
            indexed.recommend([[1]])
        monkeypatch.setattr(ModelScorer, "score", lambda *_: torch.full((1, 30), torch.nan))
        with pytest.raises(NotANumberError, match="gave NaN"):
            indexed.recommend([[1]], k=3, retrieve=30)


def test_no_more_lists_are_read_than_the_recall_takes(
    bundle_of: Callable[[str], ModelBundle], dataset: PreparedDataset, tmp_path: Path
) -> None:
    bundle, path = bundle_of("dot_product"), tmp_path / "index"
    facts = [make_index(bundle, dataset, path, recall=recall) for recall in (0.0, 0.9, 0.99, 1.1)]
    probes = [row["probes"] for row in facts]
    assert probes == sorted(set(probes))
    assert (probes[0], probes[-1]) == (1, facts[0]["lists"])
    recalls = [row["recall"] for row in facts]  # of other histories than those they are chosen for
    assert recalls == sorted(recalls)
    assert recalls[0] < 0.8
    assert recalls[1] > 0.85
    assert recalls[2] > 0.97
    assert facts[3]["recall"] == 1


def test_users_for_whom_too_few_items_are_found_get_exact_answers(
    bundle_of: Callable[[str], ModelBundle], dataset: PreparedDataset, tmp_path: Path
) -> None:
    """The one list that is read has only items that were seen."""
    exact = Recommender(bundle_of("dot_product"))
    make_index(exact.bundle, dataset, tmp_path / "index", recall=0.0)
    indexed = exact.with_index(tmp_path / "index")
    assert indexed.index is not None
    # The state, and so the list, depends on the latest five items; all of it is seen before them.
    latest = [3, 5, 8, 13, 21]
    tokens = exact.bundle.vocabulary.encode(pl.Series(latest))
    state = query_encoder(exact.bundle).states(Histories.from_lists([tokens.tolist()])).numpy()
    _, rows = indexed.index.search(state, ITEMS)
    own = exact.bundle.vocabulary.ids.gather(rows[rows >= 0]).to_list()
    assert 0 < len(own) < 100
    histories = [[*own, *latest], [34]]
    found, expected = (model.recommend(histories, k=10) for model in (indexed, exact))
    assert_frame_equal(found[:10], expected[:10], abs_tol=1e-4)
    assert len(found) == 20


# --- What it cannot search -----------------------------------------------------------------------


def test_scores_that_are_no_dot_products_are_refused_by_name(
    bundle_of: Callable[[str], ModelBundle], dataset: PreparedDataset, tmp_path: Path
) -> None:
    baseline = replace(bundle_of("dot_product"), trained=None)
    with pytest.raises(InputError, match="holds the baseline"):
        make_index(baseline, dataset, tmp_path / "index")
    assert not (tmp_path / "index").exists()


def test_counts_rank_what_an_index_finds(
    bundle_of: Callable[[str], ModelBundle], dataset: PreparedDataset, tmp_path: Path
) -> None:
    """All items are found here: the best are those of exact search with counts."""
    counts = PCTM.fit(dataset.histories("test"), dataset.num_items, PCTMSettings())
    counting = replace(bundle_of("dot_product"), count_ensemble=CountEnsemble(counts, 1e3))
    assert make_index(counting, dataset, tmp_path / "index", recall=1.1)["k"] == 200
    exact = Recommender(counting)
    indexed = exact.with_index(tmp_path / "index")
    with pytest.raises(InputError, match="or counts rank them: say how many"):
        indexed.recommend([[1]])
    found = indexed.recommend([[3, 5], [34]], k=10, seen="allow", retrieve=ITEMS)
    expected = exact.recommend([[3, 5], [34]], k=10, seen="allow")
    assert_frame_equal(found, expected, abs_tol=1e-4)
    alone = Recommender(bundle_of("dot_product")).recommend([[3, 5], [34]], k=10, seen="allow")
    assert found["item_id"].to_list() != alone["item_id"].to_list()


# --- The folder ----------------------------------------------------------------------------------


def test_a_foreign_or_damaged_index_is_refused_in_one_line(
    bundle_of: Callable[[str], ModelBundle], dataset: PreparedDataset, tmp_path: Path
) -> None:
    bundle, path = bundle_of("dot_product"), tmp_path / "index"
    make_index(bundle, dataset, path)
    with pytest.raises(InputError, match="an index of another model than .*recsys index"):
        open_index(path, bundle_of("target_attention"))
    with pytest.raises(InputError, match="not the manifest of an index of items: format"):
        open_index(bundle.path, bundle)
    file = path / "directions.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(InputError, match="the file was changed; make it again with recsys index"):
        open_index(path, bundle)
    file.write_bytes(content)
    directions = load_file(file)["directions"]
    for wrong in directions[:0], directions[:, 1:].copy(), np.full_like(directions, np.nan):
        save_file({"directions": wrong}, file)
        IndexManifest.read(path).write(path)
        with pytest.raises(InputError, match="directions.safetensors: does not fit"):
            open_index(path, bundle)


# --- The command and the server -------------------------------------------------------------------


def test_commands_make_and_use_an_index(
    bundle_of: Callable[[str], ModelBundle], dataset: PreparedDataset, tmp_path: Path
) -> None:
    bundle, index = bundle_of("dot_product").path, tmp_path / "index"
    (facts,) = run_json("index", bundle, "--data", dataset.path, "--out", index, "--recall", "0.9")
    assert (facts["items"], facts["k"], facts["histories"]) == (ITEMS, 10, USERS // 2)
    recommend = ("recommend", bundle, "--data", dataset.path, "-k", "3")
    answers = run_json(*recommend), run_json(*recommend, "--index", index)
    exact, found = ({(row["user_id"], row["item_id"]) for row in rows} for rows in answers)
    assert len(found & exact) > 0.9 * len(exact) == 0.9 * 3 * USERS


def test_a_new_model_waits_for_its_index(
    tiny_bundle: ModelBundle,
    tiny_dataset: PreparedDataset,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path, index = shutil.copytree(tiny_bundle.path, tmp_path / "bundle"), tmp_path / "index"
    make_index(ModelBundle.open(path), tiny_dataset, index, k=3)
    options = ServerSettings(path, retrieve=3, index=index, reload_seconds=0.02)
    with running(options) as server:
        model, expected = server.service.model, server.get("/v1/recommend", ASKED)
        write_other(path, tiny_bundle, tiny_dataset, 0.5)
        wait_for(lambda: "cannot be loaded" in caplog.text)
        assert server.service.model is model
        assert server.get("/v1/recommend", ASKED) == expected
        make_index(ModelBundle.open(path), tiny_dataset, index, recall=1.1, k=3)
        wait_for(lambda: server.service.model is not model)
        exact = Recommender.load(path).recommend([["hat", "boots"]], k=3, retrieve=3)
        items = server.get("/v1/recommend", ASKED)["items"]
        assert [item["item_id"] for item in items] == exact["item_id"].to_list()
        new = server.service.model
        make_index(ModelBundle.open(path), tiny_dataset, index, recall=0.0, k=3)  # that alone
        wait_for(lambda: server.service.model is not new)
