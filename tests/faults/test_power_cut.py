"""The power is cut before and after every step that moves, syncs or deletes a file."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from recsys.config.data import DataConfig
from recsys.config.files import parse_experiment
from recsys.data.prepared import PreparedDataset, prepare
from recsys.experiments.fit import fit
from recsys.folders import new_file, new_folder, recover
from recsys.serving.bundle import ModelBundle
from recsys.training.checkpoints import CheckpointFile
from tests.helpers.logs import log_of_histories

STEPS = ("fsync", "rename", "replace", "unlink", "rmdir", "mkdir")
LOG = log_of_histories({user: "qrstuv"[n:] + "qrstuv"[:n] for n, user in enumerate("abcdefgh")})


@dataclass
class Disk:
    """An ext4 file system in a file. What was not synced is not in the file."""

    image: Path
    folder: Path
    """Where it is mounted."""
    snapshots: list[Path] = field(default_factory=list)

    def cut(self) -> Path:
        """Copy the file as a power cut would leave it, and return the copy."""
        copy = self.image.with_name(f"{self.image.name}.{len(self.snapshots)}")
        shutil.copyfile(self.image, copy)
        self.snapshots.append(copy)
        return copy

    @contextmanager
    def after(self, snapshot: Path) -> Iterator[Path]:
        """Mount a snapshot, as the next start of the machine does, and yield its folder."""
        folder = snapshot.with_name(f"{snapshot.name}.mounted")
        folder.mkdir(exist_ok=True)
        with mounted(snapshot, folder):
            yield folder


@contextmanager
def mounted(image: Path, folder: Path) -> Iterator[None]:
    # Without the option ext4 itself would store what was written some seconds ago.
    subprocess.run(["mount", "-o", "loop,commit=3600", image, folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.fixture
def disk(tmp_path: Path, budget: Callable[[int, int], int]) -> Iterator[Disk]:
    """A disk of 24 MiB, or 128 in a soak; the test is skipped where it cannot be mounted."""
    if os.geteuid() != 0 or not shutil.which("mkfs.ext4") or not Path("/dev/loop-control").exists():
        pytest.skip("a disk that loses power needs root, mkfs.ext4 and loop devices")
    image, folder = tmp_path / "image", tmp_path / "disk"
    folder.mkdir()
    with image.open("wb") as file:
        file.truncate(budget(24, 128) << 20)  # each training of a soak leaves its artifacts
    subprocess.run(["mkfs.ext4", "-q", "-b", "4096", image], check=True)
    try:
        subprocess.run(["mount", "-o", "loop", image, folder], check=True, capture_output=True)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no loop device can be mounted here: {error.stderr.decode().strip()}")
    subprocess.run(["umount", "--lazy", folder], check=True)
    with mounted(image, folder):
        yield Disk(image, folder)


@contextmanager
def power_cut_around_each_step(disk: Disk, patch: pytest.MonkeyPatch) -> Iterator[None]:
    def watched(step: Callable[..., Any]) -> Callable[..., Any]:
        def cut_and_step(*args: Any, **kwargs: Any) -> Any:
            disk.cut()
            return step(*args, **kwargs)

        return cut_and_step

    with patch.context() as steps:
        for name in STEPS:
            steps.setattr(os, name, watched(getattr(os, name)))
        yield
    disk.cut()


def content(path: Path) -> dict[str, str]:
    if path.is_file():
        return {path.name: path.read_text()}
    return {file.name: file.read_text() for file in sorted(path.iterdir())}


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_is_written_is_old_or_new(
    kind: str, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, wanted = disk.folder / "out", []
    for text in ("old", "new"):
        disk.snapshots.clear()
        with power_cut_around_each_step(disk, monkeypatch):
            if kind == "file":
                with new_file(path) as out:
                    out.write_text(text * 5000)
            else:
                with new_folder(path) as out:
                    (out / "a.txt").write_text(text * 5000)
                    (out / "b.txt").write_text(text * 3000)
        wanted.append(content(path))
    seen = []
    for snapshot in disk.snapshots:
        with disk.after(snapshot) as folder:
            recover(folder / "out")
            seen.append(wanted.index(content(folder / "out")))
            if kind == "folder":
                assert {path.name for path in folder.iterdir()} == {"out", "lost+found"}
    assert (seen[0], seen[-1]) == (0, 1)
    assert seen == sorted(seen), "new never turns to old"


def test_a_replaced_dataset_opens(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    path = disk.folder / "deep" / "data"
    prepare(LOG, DataConfig(), path)
    with power_cut_around_each_step(disk, monkeypatch):
        prepare(LOG, DataConfig(min_user_interactions=2, session_gap=2), path)
    users = []
    for snapshot in disk.snapshots:
        with disk.after(snapshot) as folder:
            opened = PreparedDataset.open(folder / "deep" / "data")
            users.append(opened.manifest.settings["min_user_interactions"])
            prepare(LOG, DataConfig(), opened.path)  # no damage that the next command refuses
    assert users[0] == 1
    assert users[-1] == 2


@pytest.mark.slow
def test_a_training_is_on_the_disk_before_its_checkpoint_is_deleted(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The bundle, the tables and the artifacts of MLflow; the store is on the same disk."""
    tree = {
        "model": {"embedding_dim": 8, "num_blocks": 1, "feed_forward_dim": 8},
        "training": {"max_epochs": 2},
        "evaluation": {"cutoffs": [5]},
        "tracking": {"uri": f"sqlite:///{disk.folder}/mlflow.db"},
    }
    dataset = prepare(LOG, DataConfig(), tmp_path / "data")
    remove = CheckpointFile.remove
    before = []

    def cut_and_remove(self: CheckpointFile) -> None:
        before.append(disk.cut())
        remove(self)

    monkeypatch.setattr(CheckpointFile, "remove", cut_and_remove)
    run = fit(parse_experiment(tree), dataset, disk.folder / "runs" / "out")
    for snapshot in (before[-1], disk.cut()):
        with disk.after(snapshot) as folder:
            assert ModelBundle.open(folder / "runs" / "out" / "bundle").num_items == 6
            artifacts = folder / "mlartifacts" / run.run_id / "artifacts"
            assert ModelBundle.open(artifacts / "bundle").num_items == 6
            for name in ("ranks_test.parquet", "ranks_valid.parquet", "topk_test.parquet"):
                saved = (folder / "runs" / "out" / name).read_bytes()
                assert saved == (artifacts / name).read_bytes()
            logged = MlflowClient(f"sqlite:///{folder}/mlflow.db").get_run(run.run_id)
            assert logged.data.metrics["test/ndcg_at_5"] == run.test["ndcg_at_5"].mean
