"""ONNX exports: they score as torch does, for every shape, and say what made them."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import polars as pl
import pytest
import torch

from recsys.baselines.count_ensemble import CountEnsemble
from recsys.config.experiment import Experiment
from recsys.config.model import (
    AveragedConfig,
    DotProduct,
    FactorisationMachineConfig,
    HSTUConfig,
    KernelAttention,
    MaskedItemConfig,
    ModelConfig,
    NextItemConfig,
    SequenceToSequenceConfig,
    TargetAttention,
)
from recsys.data.histories import Histories
from recsys.data.prepared import PreparedDataset, prepare
from recsys.errors import InputError
from recsys.export.onnx import ExportManifest, OnnxScorer, _check, export_onnx
from recsys.inference.model_scorer import ModelScorer
from recsys.serving.bundle import ModelBundle
from tests.helpers.commands import run_json
from tests.helpers.random_models import random_bundle

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "recommend_without_torch.py"
LONGEST = 12


def small(**fields: object) -> NextItemConfig:
    known = {"embedding_dim": 8, "num_blocks": 1, "num_heads": 2, "feed_forward_dim": 16}
    return NextItemConfig.model_validate({**known, "max_sequence_length": LONGEST, **fields})


def write_bundle(path: Path, dataset: PreparedDataset, config: ModelConfig) -> ModelBundle:
    times = getattr(config, "times", "none")
    known = {"request_time": "known" if times == "request" else "unknown"}
    experiment = Experiment.model_validate({"model": config, "evaluation": known})
    return random_bundle(path, experiment, dataset, std=0.3)


KINDS: dict[str, ModelConfig] = {
    "dot product": small(head=DotProduct(), positions="learned"),
    "target attention": small(head=TargetAttention(head_dim=4)),
    "target attention, sums": small(head=TargetAttention(head_dim=4, pooling="sum")),
    "kernel attention": small(head=KernelAttention(kind="kernel_attention")),
    "gated rotary": small(
        num_blocks=2, head=DotProduct(), norm="gated", positions="rotary", activation="swiglu"
    ),
    "filter": small(num_blocks=2, head=DotProduct(), norm="post", filter=True),
    "HSTU": HSTUConfig(
        kind="hstu",
        embedding_dim=8,
        num_blocks=1,
        num_heads=2,
        max_sequence_length=LONGEST,
        times="request",
    ),
    "masked items": MaskedItemConfig(
        kind="masked_item", embedding_dim=8, num_blocks=1, max_sequence_length=LONGEST
    ),
    "mean": AveragedConfig.model_validate(
        {
            "kind": "averaged",
            "members": [
                {"model": small(head=DotProduct())},
                {"model": small(head=KernelAttention(kind="kernel_attention"))},
                {"model": small(head=TargetAttention(head_dim=4), embedding_dim=16)},
            ],
        }
    ),
    "factorisation machine": FactorisationMachineConfig(
        kind="factorisation_machine", embedding_dim=8, max_sequence_length=LONGEST
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_an_export_scores_as_torch_does(
    kind: str, tiny_dataset: PreparedDataset, tmp_path: Path
) -> None:
    bundle = write_bundle(tmp_path / "bundle", tiny_dataset, KINDS[kind])
    counting = replace(bundle, count_ensemble=object.__new__(CountEnsemble))
    made = export_onnx(counting, tmp_path / "onnx", model_alone=True)
    assert made.largest_difference < 1e-5
    exported = OnnxScorer(tmp_path / "onnx", bundle.num_items, LONGEST)
    rng = np.random.default_rng(0)
    lists = [rng.integers(1, 6, size=length).tolist() for length in (1, 3, 12, 40, 2)]
    histories = Histories.from_lists(lists)
    if bundle.times != "none":
        times = np.concatenate([np.arange(len(row)) * 1_000 for row in lists])
        requests = np.array([10**5] * len(lists))
        histories = replace(histories, times=times, request_times=requests)
    expected = ModelScorer(bundle.model, LONGEST)
    found = exported.score(histories)
    assert torch.allclose(found, expected.score(histories), atol=1e-5)
    few = np.array([[2], [0], [5], [1], [1]], dtype=np.int32)
    assert torch.allclose(exported.score(histories, few), expected.score(histories, few), atol=1e-5)


@pytest.mark.slow
def test_item_features_become_part_of_the_item_table(
    tiny_log: pl.DataFrame, tmp_path: Path
) -> None:
    kinds = {"boots": "shoe", "gloves": "hand", "hat": "head", "jacket": "body", "socks": "shoe"}
    table = pl.DataFrame({"item_id": [*kinds], "kind": [*kinds.values()]})
    dataset = prepare(tiny_log, out=tmp_path / "data", items=table)
    config = small(head=DotProduct(), item_features=["kind"])
    bundle = write_bundle(tmp_path / "b", dataset, config)
    items = bundle.model.items
    export_onnx(bundle, tmp_path / "onnx")
    assert bundle.model.items is items
    assert items.features is not None
    histories = Histories.from_lists([[1, 3], [5]])
    found = OnnxScorer(tmp_path / "onnx", bundle.num_items, LONGEST).score(histories)
    assert torch.allclose(found, bundle.scorer.score(histories), atol=1e-5)


@pytest.fixture(scope="module")
def exported(
    tiny_bundle: ModelBundle,
    tiny_dataset: PreparedDataset,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """The bundle with target attention, by the command, in 8 bits."""
    folder = tmp_path_factory.mktemp("export") / "onnx"
    words = ["--out", folder, "--int8", "--data", tiny_dataset.path]
    (shown,) = run_json("export", tiny_bundle.path, *words)
    assert {"ndcg_at_10 float32", "ndcg_at_10 int8"} < set(shown)
    return folder


@pytest.mark.slow
def test_an_export_in_8_bits_measures_what_it_loses(
    exported: Path, tiny_bundle: ModelBundle
) -> None:
    about = ExportManifest.read(exported)
    assert about.int8
    assert set(about.ndcg_at_10) == {"float32", "int8"}
    assert about.largest_difference < 1e-5  # of the graphs before rounding
    assert about.bundle == tiny_bundle.manifest.digest
    assert {path.name for path in exported.iterdir()} == {*about.files, "manifest.json"}
    weights = onnx.load(exported / "encoder.onnx").graph.initializer
    assert onnx.TensorProto.INT8 in {weight.data_type for weight in weights}
    exact = tiny_bundle.scorer.score(Histories.from_lists([[1, 3]]))
    rounded = OnnxScorer(exported, 5, 3).score(Histories.from_lists([[1, 3]]))
    difference = (exact - rounded)[0, 1:].abs().max()
    assert 0 < difference < 0.5
    with pytest.raises(InputError, match="differ by"):
        _check(tiny_bundle.model, OnnxScorer(exported, 5, 3), 3)
    broken = deepcopy(tiny_bundle.model)
    with torch.no_grad():
        broken.items.weight[2] = torch.nan
    with pytest.raises(InputError, match="differ by nan"):
        _check(broken, OnnxScorer(exported, 5, 3), 3)


def test_what_has_no_graph_is_refused_by_one_line(
    tiny_dataset: PreparedDataset, tiny_bundle: ModelBundle, tmp_path: Path
) -> None:
    config = SequenceToSequenceConfig(
        kind="sequence_to_sequence", embedding_dim=8, num_heads=1, max_sequence_length=3
    )
    generator = write_bundle(tmp_path / "s2s", tiny_dataset, config)
    with pytest.raises(InputError, match="generates step by step"):
        export_onnx(generator, tmp_path / "onnx")
    counting = replace(tiny_bundle, count_ensemble=object.__new__(CountEnsemble))
    with pytest.raises(InputError, match="count ensemble has no graph: --model-alone"):
        export_onnx(counting, tmp_path / "onnx")
    baseline = replace(tiny_bundle, trained=None)
    with pytest.raises(InputError, match="counts, and has no graph"):
        export_onnx(baseline, tmp_path / "onnx")
    assert not (tmp_path / "onnx").exists()
