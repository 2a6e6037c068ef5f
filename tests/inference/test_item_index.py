"""The approximate index: with all lists it is exact search, with few it is fast and misses few."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from numpy.typing import NDArray
from polars.testing import assert_frame_equal
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner

from recsys.baselines.count_ensemble import CountEnsemble
from recsys.baselines.popularity import Popularity
from recsys.baselines.saved import FittedBaseline
from recsys.baselines.transitions import PCTM, PCTMSettings
from recsys.cli import app
from recsys.config import (
    DotProduct,
    Experiment,
    KernelAttention,
    NextItemConfig,
    TargetAttention,
)
from recsys.data.histories import Histories
from recsys.data.prepared import PreparedDataset, prepare
from recsys.errors import InputError
from recsys.folders.digests import file_sha256
from recsys.inference.item_index import (
    IndexedScorer,
    ItemIndex,
    choose_probes,
    recall,
    recall_of,
)
from recsys.inference.ranking import top_k
from recsys.inference.scorer import Seen
from recsys.model.build import build_model
from recsys.server.service import ServerSettings
from recsys.serving.bundle import ModelBundle
from recsys.serving.index import BundleIndex, IndexManifest, make_index, query_encoder
from recsys.serving.recommender import Recommender, ranking_scorer
from tests.helpers.running_server import running
from tests.helpers.server_process import ASKED, wait_for, write_other

ITEMS, USERS, ALL = 400, 60, 10**6
HEADS: dict[str, DotProduct | KernelAttention | TargetAttention] = {
    "dot_product": DotProduct(),
    "kernel_attention": KernelAttention(kind="kernel_attention"),
    "target_attention": TargetAttention(num_heads=2, head_dim=4),
}


def vectors(count: int, clusters: int = 60, width: int = 16) -> NDArray[np.float32]:
    """Vectors in clusters, of different lengths."""
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
    for weight in model.parameters():  # past the zeros that target attention starts from
        torch.nn.init.normal_(weight, std=0.3)
    with torch.no_grad():
        model.items.weight[1:] = torch.from_numpy(vectors(dataset.num_items))
        model.items.weight[0] = 0
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


def index_of(bundle: ModelBundle, path: Path, probes: int) -> BundleIndex:
    items = ItemIndex.build(query_encoder(bundle).vectors().numpy()).reading(probes)
    return BundleIndex.write(path, bundle, items, 10, 1.0)


# --- The index -----------------------------------------------------------------------------------


def test_few_lists_hold_most_of_the_best_items_and_all_lists_hold_all() -> None:
    items, queries = vectors(5_000), vectors(300)
    exact = np.argsort(-(queries @ items.T), axis=1)[:, :10].astype(np.int32) + 1
    index = ItemIndex.build(items).reading(8)
    assert index.num_items == 5_000
    assert index.items_read < 5_000 / 12
    assert 0.9 < recall(index.find(queries, 10), exact) < 1
    assert recall(index.reading(1).find(queries, 10), exact) < 0.9
    assert index.reading(ALL).find(queries, 10).tolist() == exact.tolist()


# --- Recommending by it --------------------------------------------------------------------------


@pytest.mark.parametrize("head", ["dot_product", "kernel_attention", "target_attention"])
@pytest.mark.parametrize("seen", ["filter", "allow"])
def test_all_lists_give_the_answers_of_exact_search(
    head: str,
    seen: Seen,
    bundle_of: Callable[[str], ModelBundle],
    dataset: PreparedDataset,
    tmp_path: Path,
) -> None:
    bundle = bundle_of(head)
    exact = Recommender(bundle, dataset)
    indexed = replace(exact, index=index_of(bundle, tmp_path / "index", ALL))
    retrieve = 30 if head == "target_attention" else None
    some = list(range(1, ITEMS, 2))
    for rules in (
        {},
        {"allow": some},
        {"deny": some},
        {"allow": [3, 5, 8]},
        {"diversity": 0.3},
    ):
        one = exact.recommend(k=7, seen=seen, retrieve=retrieve, **rules)
        two = indexed.recommend(k=7, seen=seen, retrieve=retrieve, **rules)
        assert_frame_equal(two, one, abs_tol=1e-4)
    new = {"nobody": [], "ann": [3, 5, 3, 9]}
    one, two = (model.recommend(new, k=5, retrieve=retrieve) for model in (exact, indexed))
    assert_frame_equal(two, one, abs_tol=1e-4)
    assert set(two["source"]) == {"model", "popularity"}


def test_users_for_whom_too_few_items_are_found_get_exact_answers(
    bundle_of: Callable[[str], ModelBundle], tmp_path: Path
) -> None:
    """The one list that is read has only items that were seen."""
    bundle = bundle_of("dot_product")
    index = index_of(bundle, tmp_path / "index", 1)
    scorer = ranking_scorer(bundle, "filter", index=index)
    assert isinstance(scorer, IndexedScorer)
    # The state, and so the list, depends on the latest five items; all of it is seen before them.
    latest = [3, 5, 8, 13, 21]
    queries = scorer.encoder.states(Histories.from_lists([latest])).numpy()
    own = index.items.find(queries, ITEMS)[0]
    own = own[own != 0]
    assert 0 < len(own) < 100
    histories = Histories.from_lists([[*own.tolist(), *latest], [34]])
    found, values = top_k(scorer, histories, 10, "filter")
    best, scores = top_k(scorer.exact, histories, 10, "filter")
    assert found[0].tolist() == best[0].tolist()
    assert values[0].tolist() == pytest.approx(scores[0].tolist(), abs=1e-4)
    assert not set(found[0].tolist()) & {*own.tolist(), *latest}
    assert found[1].all()


# --- What it cannot search -----------------------------------------------------------------------


def test_scores_that_are_no_dot_products_are_refused_by_name(
    bundle_of: Callable[[str], ModelBundle], dataset: PreparedDataset, tmp_path: Path
) -> None:
    counts = PCTM.fit(dataset.histories("test"), dataset.num_items, PCTMSettings())
    popular = FittedBaseline(
        "popularity", Popularity.fit(dataset.histories("test"), dataset.num_items)
    )
    experiment = Experiment(baseline="popularity")
    baseline = ModelBundle.write(tmp_path / "baseline", popular, experiment, dataset, ("train",))
    counting = replace(bundle_of("dot_product"), count_ensemble=CountEnsemble(counts, 1.0))
    for bundle in (counting, baseline):
        with pytest.raises(InputError, match="cannot be searched by an index: its counts"):
            make_index(bundle, dataset, tmp_path / "index")
        assert not (tmp_path / "index").exists()


def test_target_attention_needs_the_number_of_items_to_rank(
    bundle_of: Callable[[str], ModelBundle], tmp_path: Path
) -> None:
    bundle = bundle_of("target_attention")
    model = replace(Recommender(bundle), index=index_of(bundle, tmp_path / "index", 1))
    with pytest.raises(InputError, match="target attention ranks them: say how many"):
        model.recommend([[1]])


# --- The folder ----------------------------------------------------------------------------------


def test_a_foreign_or_damaged_index_is_refused_in_one_line(
    bundle_of: Callable[[str], ModelBundle], tmp_path: Path
) -> None:
    bundle, path = bundle_of("dot_product"), tmp_path / "index"
    index_of(bundle, path, 3)
    with pytest.raises(InputError, match="an index of another model than .*recsys index"):
        BundleIndex.open(path, bundle_of("target_attention"))
    with pytest.raises(InputError, match="not the manifest of an index of items: format"):
        BundleIndex.open(bundle.path, bundle)
    lists = path / "lists.safetensors"
    content = lists.read_bytes()
    lists.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(InputError, match="the file was changed; make it again with recsys index"):
        BundleIndex.open(path, bundle)


@pytest.mark.parametrize(
    ("name", "harm"),
    [
        ("lists", lambda lists: np.append(lists[1:], np.int32(ITEMS))),
        ("lists", lambda lists: np.append(lists[1:], np.int32(-1))),
        ("lists", lambda lists: lists[1:].copy()),
        ("directions", lambda directions: directions[:, 1:].copy()),
        ("directions", lambda directions: directions + np.float32(np.nan)),
    ],
)
def test_lists_that_do_not_fit_the_model_are_refused_whatever_their_checksum(
    name: str,
    harm: Callable[[NDArray[Any]], NDArray[Any]],
    bundle_of: Callable[[str], ModelBundle],
    tmp_path: Path,
) -> None:
    """faiss would read memory that is not its own."""
    bundle, path = bundle_of("dot_product"), tmp_path / "index"
    index_of(bundle, path, 3)
    tensors = load_file(path / "lists.safetensors")
    save_file({**tensors, name: harm(tensors[name])}, path / "lists.safetensors")
    manifest = IndexManifest.read(path)
    sealed = {"lists.safetensors": file_sha256(path / "lists.safetensors")}
    manifest.model_copy(update={"files": sealed}).write(path)
    with pytest.raises(InputError, match="lists.safetensors: does not fit"):
        BundleIndex.open(path, bundle)


def test_no_more_lists_are_read_than_the_recall_takes(
    bundle_of: Callable[[str], ModelBundle], dataset: PreparedDataset, tmp_path: Path
) -> None:
    bundle, histories = bundle_of("dot_product"), dataset.histories("test")
    index_of(bundle, tmp_path / "index", 1)
    scorer = ranking_scorer(
        bundle, index=BundleIndex.open(tmp_path / "index", bundle), seen="allow"
    )
    assert isinstance(scorer, IndexedScorer)
    chosen = {
        wanted: choose_probes(scorer, histories, 10, "filter", wanted)
        for wanted in (0.0, 0.9, 0.99, 1.1)
    }
    probes = [one.index.probes for one in chosen.values()]
    assert probes == sorted(probes)
    assert (probes[0], probes[-1]) == (1, len(scorer.index.directions))
    assert 1 < probes[1] < probes[2]
    assert recall_of(chosen[0.9], histories, 10, "filter") >= 0.9
    fewer = replace(scorer, index=scorer.index.reading(probes[1] - max(1, probes[1] // 8)))
    assert recall_of(fewer, histories, 10, "filter") < 0.9


# --- The command and the server -------------------------------------------------------------------


def test_commands_make_measure_and_use_an_index(
    bundle_of: Callable[[str], ModelBundle], dataset: PreparedDataset, tmp_path: Path
) -> None:
    bundle, index = bundle_of("dot_product").path, tmp_path / "index"

    def run(*words: object) -> str:
        answer = CliRunner().invoke(app, [*map(str, words)])
        assert answer.exit_code == 0, answer.output
        return answer.stdout

    make = ("index", bundle, "--data", dataset.path, "--out", index, "--recall", "1")
    rows = json.loads(run(*make, "--json"))
    assert [row["users"] for row in rows] == [1, 8, 64]
    assert all(row["exact_ms"] > 0 < row["index_ms"] for row in rows)
    assert (rows[0]["items"], rows[0]["k"], rows[0]["histories"]) == (ITEMS, 10, USERS // 2)
    assert rows[0]["recall"] > 0.9
    assert {row["device"] for row in rows} == {"cpu"}
    shown = run(*make)
    assert "of the 10 best items: use it for" in shown

    recommend = ("recommend", bundle, "--data", dataset.path, "-k", "3", "--json")
    answers = run(*recommend), run(*recommend, "--index", index)
    exact, found = ({(row["user_id"], row["item_id"]) for row in json.loads(x)} for x in answers)
    assert len(found & exact) > 0.9 * len(exact) == 0.9 * 3 * USERS


def test_a_new_model_waits_for_its_index(
    tiny_bundle: ModelBundle,
    tiny_dataset: PreparedDataset,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path, index = shutil.copytree(tiny_bundle.path, tmp_path / "bundle"), tmp_path / "index"
    index_of(ModelBundle.open(path), index, ALL)
    options = ServerSettings(path, retrieve=3, index=index, reload_seconds=0.02)
    with running(options) as server:
        model, expected = server.service.model, server.get("/v1/recommend", ASKED)
        write_other(path, tiny_bundle, tiny_dataset, 0.5)
        wait_for(lambda: "cannot be loaded" in caplog.text)
        assert server.service.model is model
        assert server.get("/v1/recommend", ASKED) == expected
        index_of(ModelBundle.open(path), index, ALL)
        wait_for(lambda: server.service.model is not model)
        exact = Recommender.load(path).recommend([["hat", "boots"]], k=3, retrieve=3)
        items = server.get("/v1/recommend", ASKED)["items"]
        assert [item["item_id"] for item in items] == exact["item_id"].to_list()
        index_of(ModelBundle.open(path), index, 1)  # a new index alone is loaded, too
        new = server.service.model
        wait_for(lambda: server.service.model is not new)
