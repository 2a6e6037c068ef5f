"""Scoring works where only the core dependencies are installed; what else is missing is named."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from itertools import chain
from pathlib import Path

import polars as pl
import pytest

from recsys.data.prepared import PreparedDataset
from recsys.errors import DISTRIBUTION, EXTRAS
from recsys.serving.bundle import ModelBundle
from recsys.serving.index import make_index

ROOT = Path(__file__).parents[2]
WITHOUT_EXTRAS = f"""
import sys
import recsys
from recsys.cli import main

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {sorted(chain.from_iterable(EXTRAS.values()))}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

def command(*arguments):
    sys.argv[1:] = arguments
    try:
        main()
    except SystemExit as end:
        print("status", end.code)

sys.meta_path.insert(0, Missing())
bundle, index, log, pairs = sys.argv[1:]
model = recsys.load(bundle)
histories = {{"ann": ["hat", "boots"], "new": []}}
assert len(model.recommend(histories, k=2)) == 4
assert len(model.score(histories, ["socks"])) == 2
assert len(model.similar_items("hat", 2)) == 2
command("recommend", bundle, log, "-k", "2")
command("score", bundle, log, pairs)
command("recommend", bundle, log, "--index", index)
command("train", "configs/shop.yaml")
command("compare")
recsys.fit
"""


def test_scoring_needs_no_extra_and_a_missing_one_is_named(
    tiny_dot_bundle: ModelBundle, tiny_dataset: PreparedDataset, tmp_path: Path
) -> None:
    """In a process in which no module of an extra can be imported."""
    make_index(tiny_dot_bundle, tiny_dataset, tmp_path / "index", k=2)
    log, pairs = tmp_path / "log.csv", tmp_path / "pairs.csv"
    pl.DataFrame({"user_id": ["b"], "item_id": ["hat"], "timestamp": [1]}).write_csv(log)
    pl.DataFrame({"user_id": ["b"], "item_id": ["boots"]}).write_csv(pairs)
    words = [tiny_dot_bundle.path, tmp_path / "index", log, pairs]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTRAS, *map(str, words)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert re.findall("status (.*)", done.stdout) == ["0", "0", "2", "2", "2"]
    assert "boots" in done.stdout
    index, train, compare, *_, last = done.stderr.splitlines()
    ending = "of the extra {0}: pip install '.[{0}]' where recsys was cloned"
    assert index == f"error: an index of items needs faiss, {ending.format('ann')}"
    for line in (train, compare):
        assert line.startswith("error: this command needs ")
        assert line.endswith(ending.format("train"))
    assert last.startswith("ModuleNotFoundError: recsys.fit needs ")
    assert last.endswith(ending.format("train"))


def test_each_module_is_in_its_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["name"] == DISTRIBUTION
    extras = {
        re.split(r"[<>=\[]", requirement)[0]: extra
        for extra in ("ann", "onnx", "serve", "spark", "train", "tune")
        for requirement in project["optional-dependencies"][extra]
        if not requirement.startswith(DISTRIBUTION)
    }
    modules = {
        "faiss-cpu": "faiss",
        "prometheus-client": "prometheus_client",
        "pytorch-lightning": "pytorch_lightning",
        "scikit-learn": "sklearn",
    }
    found = {(modules.get(name, name), extra) for name, extra in extras.items()}
    assert found == {(module, extra) for extra, names in EXTRAS.items() for module in names}
    core = {re.split(r"[<>=]", requirement)[0] for requirement in project["dependencies"]}
    assert not core & set(extras)


def test_help_and_refused_options_do_not_wait_for_torch() -> None:
    slow = "{'torch', 'scipy', 'sklearn', 'pandas', 'mlflow', 'lightning_fabric', 'matplotlib'}"
    code = f"import sys, recsys.cli; print(sorted({slow} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(("variable", "code"), [("JOB_ID", 0), ("TORCHELASTIC_RUN_ID", 2)])
def test_only_processes_of_torchrun_are_several(variable: str, code: int) -> None:
    """Job systems number their processes too."""
    environment = os.environ | {"WORLD_SIZE": "2", "RANK": "1", variable: "a"}
    command = [sys.executable, "-m", "recsys", "prepare", "--help"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, "torchrun: only train" in done.stderr) == (code, code == 2)
