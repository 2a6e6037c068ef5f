"""Scoring works where only the core dependencies are installed; what else is missing is named."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import polars as pl
import pytest

from recsys.extras import DISTRIBUTION, EXTRA_OF
from recsys.inference.item_index import ItemIndex
from recsys.serving.bundle import ModelBundle
from recsys.serving.index import BundleIndex, query_encoder

ROOT = Path(__file__).parents[2]
WITHOUT_EXTRAS = f"""
import sys
import recsys
from recsys.cli import main

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {sorted(EXTRA_OF)}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

def command(*arguments):
    sys.argv[1:] = arguments
    try:
        main()
    except SystemExit as end:
        print("status", end.code)

sys.meta_path.insert(0, Missing())
"""


def run(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run Python in a process in which no module of an extra can be imported."""
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTRAS + code, *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_scoring_needs_no_extra(tiny_bundle: ModelBundle, tmp_path: Path) -> None:
    log, pairs = tmp_path / "log.csv", tmp_path / "pairs.csv"
    pl.DataFrame({"user_id": ["b"], "item_id": ["hat"], "timestamp": [1]}).write_csv(log)
    pl.DataFrame({"user_id": ["b"], "item_id": ["boots"]}).write_csv(pairs)
    code = """
bundle, log, pairs = sys.argv[1:]
model = recsys.load(bundle)
histories = {"ann": ["hat", "boots"], "new": []}
assert len(model.recommend(histories, k=2)) == 4
assert len(model.score(histories, ["socks"])) == 2
assert len(model.explain(["hat", "boots"], "socks")) == 2
command("recommend", bundle, log, "-k", "2")
command("score", bundle, log, pairs)
"""
    done = run(code, tiny_bundle.path, log, pairs)
    assert done.stderr == ""
    assert re.findall("status .*", done.stdout) == ["status 0"] * 2
    assert "boots" in done.stdout


@pytest.mark.slow
def test_a_missing_extra_is_named() -> None:
    code = """
command("train", "configs/shop.yaml")
command("compare")
recsys.fit
"""
    done = run(code)
    first, second, *_, last = done.stderr.splitlines()
    install = r"needs \w+, of the extra train: pip install '\.\[train\]' where recsys was cloned"
    for line in (first, second):
        assert re.fullmatch(f"error: this command {install}", line)
    assert re.fullmatch(rf"ModuleNotFoundError: recsys\.fit {install}", last)
    assert re.findall("status .*", done.stdout) == ["status 2"] * 2


def test_an_index_names_the_extra_that_it_needs(
    tiny_dot_bundle: ModelBundle, tmp_path: Path
) -> None:
    index, log = tmp_path / "index", tmp_path / "log.csv"
    vectors = query_encoder(tiny_dot_bundle).vectors().numpy()
    BundleIndex.write(index, tiny_dot_bundle, ItemIndex.build(vectors), 5, 1.0)
    pl.DataFrame({"user_id": ["b"], "item_id": ["hat"], "timestamp": [1]}).write_csv(log)
    code = """
bundle, log, index = sys.argv[1:]
command("recommend", bundle, log, "--index", index)
"""
    done = run(code, tiny_dot_bundle.path, log, index)
    line = "error: an index of items needs faiss, of the extra ann: pip install '.[ann]' "
    assert done.stderr == f"{line}where recsys was cloned\n"


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
    assert {modules.get(name, name): extra for name, extra in extras.items()} == EXTRA_OF
    core = {re.split(r"[<>=]", requirement)[0] for requirement in project["dependencies"]}
    assert not core & set(extras)


def test_help_and_refused_options_do_not_wait_for_torch() -> None:
    slow = "{'torch', 'scipy', 'sklearn', 'pandas', 'mlflow', 'lightning_fabric', 'matplotlib'}"
    code = f"import sys, recsys.cli; print(sorted({slow} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
