"""Bundles: opening one gives what was written, and broken folders are refused."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from recsys.config.model import DotProduct, TargetAttention
from recsys.data.prepared import PreparedDataset
from recsys.errors import InputError
from recsys.folders import file_sha256, tree_sha256
from recsys.model.heads import DotProductHead
from recsys.serving.bundle import BundleManifest, ModelBundle
from recsys.serving.recommender import Recommender
from tests.conftest import write_tiny_bundle


@pytest.fixture
def folder(tiny_bundle: ModelBundle, tmp_path: Path) -> Path:
    """A copy of the bundle that a test may break."""
    return shutil.copytree(tiny_bundle.path, tmp_path / "bundle")


def sign(folder: Path, **changes: object) -> None:
    """Make the manifest fit the files again, with fields of it changed."""
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"] = {name: file_sha256(folder / name) for name in manifest["files"]}
    manifest |= changes
    (folder / "manifest.json").write_text(json.dumps(manifest | {"digest": tree_sha256(manifest)}))


def test_opening_a_bundle_gives_what_was_written(
    tiny_bundle: ModelBundle, tiny_dataset: PreparedDataset
) -> None:
    opened = ModelBundle.open(tiny_bundle.path)
    assert opened.experiment == tiny_bundle.experiment
    assert opened.manifest.dataset_fingerprint == tiny_dataset.fingerprint
    assert opened.manifest.git_commit == "c0ffee"
    assert opened.manifest.trained_on == ("train",)
    assert opened.vocabulary.ids.to_list() == ["boots", "gloves", "hat", "jacket", "socks"]
    assert opened.num_items == 5
    assert not opened.model.training
    weights = tiny_bundle.model.state_dict()
    for name, weight in opened.model.state_dict().items():
        assert torch.equal(weight, weights[name])


def test_no_pickle_the_same_bytes_twice_and_counts_of_what_was_trained_on(
    tiny_bundle: ModelBundle, tiny_dataset: PreparedDataset, tmp_path: Path
) -> None:
    parts = tiny_bundle.model, tiny_bundle.experiment, tiny_dataset
    again = ModelBundle.write(tmp_path / "again", *parts, ("train",), "c0ffee")
    names = {"weights.safetensors", "config.yaml", "items.parquet", "manifest.json"}
    assert {file.name for file in again.path.iterdir()} == names
    for name in names:
        assert (again.path / name).read_bytes() == (tiny_bundle.path / name).read_bytes()
    assert again.popularity.tolist() == [2, 2, 2, 1, 1]
    refitted = ModelBundle.write(tmp_path / "refitted", *parts, ("train", "valid"))
    assert refitted.popularity.tolist() == [5, 3, 3, 1, 1]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda table: {"items.weight": table[:-1].clone()}, "size mismatch for items.weight"),
        (lambda table: {"items.weight": table * math.nan}, "' must be finite .* nan"),
        (lambda _: {"items.weight": None}, "Missing key.*items.weight"),
        (lambda _: {"extra": torch.zeros(2)}, "Unexpected key.*extra"),
    ],
)
def test_weights_must_be_those_of_the_model(
    change: Callable[[torch.Tensor], dict[str, torch.Tensor | None]], words: str, folder: Path
) -> None:
    weights = load_file(folder / "weights.safetensors")
    changed = weights | change(weights["items.weight"])
    kept = {name: weight for name, weight in changed.items() if weight is not None}
    save_file(kept, folder / "weights.safetensors")
    sign(folder)
    with pytest.raises(InputError, match=words):
        ModelBundle.open(folder)


def test_a_bundle_is_replaced_and_nothing_else_is(
    tiny_bundle: ModelBundle, tiny_dataset: PreparedDataset, folder: Path, tmp_path: Path
) -> None:
    model, experiment = tiny_bundle.model, tiny_bundle.experiment
    replaced = ModelBundle.write(folder, model, experiment, tiny_dataset, ("train", "valid"))
    assert replaced.manifest.trained_on == ("train", "valid")
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="left alone: notes.txt is not part of a model bundle"):
        ModelBundle.write(folder, model, experiment, tiny_dataset, ("train",))
    assert [file.name for file in tmp_path.iterdir()] == ["bundle"]


def test_a_bundle_that_is_replaced_while_it_is_read_is_read_again(
    folder: Path, tiny_dot_bundle: ModelBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifest and half of the files would be of one bundle, the rest of another."""
    newer = shutil.copytree(tiny_dot_bundle.path, folder.with_name("newer"))
    load = ModelBundle._load
    calls = []

    def replaced(path: Path, manifest: BundleManifest) -> ModelBundle:
        calls.append(manifest.files["config.yaml"])
        if len(calls) == 1:
            shutil.rmtree(folder)
            newer.rename(folder)
        return load(path, manifest)

    monkeypatch.setattr(ModelBundle, "_load", replaced)
    opened = ModelBundle.open(folder)
    assert len(set(calls)) == 2
    assert opened.manifest.files == tiny_dot_bundle.manifest.files
    assert isinstance(opened.model.head, DotProductHead)


def test_a_model_that_another_one_replaced_is_not_saved_as_it(
    tiny_dataset: PreparedDataset, tmp_path: Path
) -> None:
    first = write_tiny_bundle(tmp_path / "run" / "bundle", tiny_dataset, DotProduct())
    assert ModelBundle.open(tmp_path / "run").path == first.path
    (tmp_path / "run" / "report.html").touch()
    assert Recommender(first).report().name == "report.html"
    write_tiny_bundle(tmp_path / "run" / "bundle", tiny_dataset, TargetAttention(head_dim=4))
    with pytest.raises(InputError, match="another model has replaced it since"):
        first.copy_to(tmp_path / "copy")
    with pytest.raises(InputError, match="another model has replaced it"):
        Recommender(first).report()
    assert not (tmp_path / "copy").exists()
