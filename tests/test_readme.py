"""The README's commands and its Python run as a newcomer would run them."""

from __future__ import annotations

import logging
import re
import shlex
import shutil
import sys
from pathlib import Path

import polars as pl
import pytest
from mlflow import MlflowClient
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID

from recsys.cli import main
from recsys.shop.simulation import make_shop

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SHORT = README.replace("--time-limit 10m", "--time-limit 8s").replace('"5m"', '"8s"')
"""With little time for the small log of the test."""
SHORT = SHORT.replace("--user USER", "--user C00042").replace("--item ITEM", "--item P0335")
COMMANDS = re.findall(r"^recsys (.+)$", SHORT, flags=re.MULTILINE)
CUSTOMERS = 150


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone's configs and the files that the README names."""
    folder = tmp_path_factory.mktemp("readme")
    shutil.copytree(ROOT / "configs", folder / "configs")
    log = make_shop(seed=0, num_customers=CUSTOMERS).interactions
    log = log.rename({"user_id": "customer", "item_id": "sku", "timestamp": "bought_at"})
    log.write_csv(folder / "purchases.csv")
    some = log.filter(pl.col("customer") <= "C00003")
    some.write_csv(folder / "histories.csv")
    popular = log["sku"].value_counts(sort=True)["sku"].head(5).to_frame("item_id")
    users = some.select(user_id="customer").unique(maintain_order=True)
    users.join(popular, how="cross").write_csv(folder / "candidates.csv")
    return folder


def recsys_command(line: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["recsys", *shlex.split(line)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logging.getLogger(), "handlers", [])  # else pytest takes the log
        with pytest.raises(SystemExit) as end:
            main()
    return int(end.value.code or 0)


def test_the_commands_run_in_the_order_of_the_page(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(COMMANDS) >= 6
    monkeypatch.chdir(folder)
    for line in COMMANDS:
        status, said = recsys_command(line, monkeypatch), capsys.readouterr().err
        assert status == 0, f"recsys {line}\n{said}"
        assert len(re.findall("^(INFO|WARNING)", said, flags=re.MULTILINE)) <= 5, said
    assert pl.read_parquet("scores.parquet").height > 0
    assert Path("comparison", "comparison.html").is_file()
    assert Path("runs", "purchases", "report.html").is_file()
    runs = MlflowClient(f"sqlite:///{folder}/mlflow.db").search_runs(["1"])
    parents = {run.info.run_id: run for run in runs if MLFLOW_PARENT_RUN_ID not in run.data.tags}
    assert sorted(run.info.run_name for run in parents.values()) == ["mine", "purchases"]
    assert all("headline/ndcg_at_10" in run.data.metrics for run in parents.values())
    assert {run.data.tags.get(MLFLOW_PARENT_RUN_ID) for run in runs} - {None} < set(parents)
    compared = pl.read_csv("comparison/comparison.csv")["name"]
    assert {"mine", "purchases"} <= {*compared}


def test_the_python_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = re.findall(r"```python\n(.+?)```", SHORT, flags=re.DOTALL)
    assert len(code.splitlines()) <= 15
    monkeypatch.chdir(folder)
    exec(compile(code, "README.md", "exec"), {})  # noqa: S102 - it is our own page
    printed = capsys.readouterr().out
    assert "rank" in printed
    assert "report.html" in printed


def test_each_link_and_folder_exists() -> None:
    for target in re.findall(r"\]\(([^)]+)\)", README):
        assert (ROOT / target).exists(), target
    (tree,) = re.findall(r"```\n(recsys/cli.+?)```", README, flags=re.DOTALL)
    for line in tree.splitlines():
        for name in re.split(r"\s{2,}", line.replace("recsys/", "")):
            if " " not in name:  # the description has several words
                path = ROOT / "recsys" / name
                assert path.is_dir() or path.with_suffix(".py").is_file(), name


def test_each_folder_of_the_package_is_in_the_tree() -> None:
    (tree,) = re.findall(r"```\n(recsys/cli.+?)```", README, flags=re.DOTALL)
    folders = {
        path.name for path in (ROOT / "recsys").iterdir() if (path / "__init__.py").is_file()
    }
    assert not {name for name in folders if name not in tree}


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 135


@pytest.mark.parametrize("target", ["demo", "test"])
def test_make_has_the_target(target: str) -> None:
    assert f"\n{target}:" in (ROOT / "Makefile").read_text(encoding="utf-8")
    assert f"make {target}" in README
