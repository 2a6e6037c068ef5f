"""The README's commands and its Python run as a newcomer would run them."""

from __future__ import annotations

import inspect
import logging
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from mlflow import MlflowClient
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID

import recsys
from recsys.cli import main
from recsys.shop.simulation import make_shop

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SHORT = README.replace("--time-limit 10m", "--time-limit 8s")
"""With little time, and a short training, for the small log of the test."""
SHORT = SHORT.replace("--user USER", "--user C00042").replace("--item ITEM", "--item P0335")
SHORT = SHORT.replace("--set name=mine", "--set name=mine --set training.max_epochs=2")
COMMANDS = re.findall(r"^recsys (.+)$", SHORT, flags=re.MULTILINE)
(TREE,) = re.findall(r"```\n(recsys/cli.+?)```", README, flags=re.DOTALL)


def test_the_commands_run_in_the_order_of_the_page_and_so_does_the_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    monkeypatch.chdir(tmp_path)
    log = make_shop(seed=0, num_customers=150).interactions
    log = log.rename({"user_id": "customer", "item_id": "sku", "timestamp": "bought_at"})
    log.write_csv("purchases.csv")
    some = log.filter(pl.col("customer") <= "C00003")
    some.write_csv("histories.csv")
    popular = log["sku"].value_counts(sort=True)["sku"].head(5).to_frame("item_id")
    users = some.select(user_id="customer").unique(maintain_order=True)
    users.join(popular, how="cross").write_csv("candidates.csv")
    assert len(COMMANDS) >= 6
    for line in COMMANDS:
        status, said = run(line, monkeypatch), capsys.readouterr().err
        assert status == 0, f"recsys {line}\n{said}"
        assert len(re.findall("^(INFO|WARNING)", said, flags=re.MULTILINE)) <= 5, said
    assert pl.read_parquet("scores.parquet").height > 0
    assert Path("comparison", "comparison.html").is_file()
    assert Path("runs", "purchases", "report.html").is_file()
    runs = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db").search_runs(["1"])
    parents = {run.info.run_id: run for run in runs if MLFLOW_PARENT_RUN_ID not in run.data.tags}
    assert sorted(run.info.run_name for run in parents.values()) == ["mine", "purchases"]
    assert all("headline/ndcg_at_10" in run.data.metrics for run in parents.values())
    assert {run.data.tags.get(MLFLOW_PARENT_RUN_ID) for run in runs} - {None} < set(parents)
    compared = pl.read_csv("comparison/comparison.csv")["name"]
    assert {"mine", "purchases"} <= {*compared}

    fit = inspect.signature(recsys.fit)

    def fitted(*words: Any, **more: Any) -> recsys.Recommender:
        """The model that the command made: a run of its own would take its time again."""
        fit.bind(*words, **more)
        return recsys.load("runs/purchases", next(Path("data").glob("purchases*")))

    monkeypatch.setattr(recsys, "fit", fitted, raising=False)
    (code,) = re.findall(r"```python\n(.+?)```", README, flags=re.DOTALL)
    assert len(code.splitlines()) <= 15
    exec(compile(code, "README.md", "exec"), {})  # noqa: S102 - it is our own page
    printed = capsys.readouterr().out
    assert "rank" in printed
    assert "report.html" in printed


def run(line: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["recsys", *shlex.split(line)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logging.getLogger(), "handlers", [])  # else pytest takes the log
        with pytest.raises(SystemExit) as end:
            main()
    return int(end.value.code or 0)


def test_each_link_and_folder_exists_and_each_folder_is_named() -> None:
    for target in re.findall(r"\]\(([^)]+)\)", README):
        assert (ROOT / target).exists(), target
    for line in TREE.splitlines():
        for name in re.split(r"\s{2,}", line.replace("recsys/", "")):
            if " " not in name:  # the description has several words
                path = ROOT / "recsys" / name
                assert path.is_dir() or path.with_suffix(".py").is_file(), name
    for path in (ROOT / "recsys").iterdir():
        assert path.name in TREE or not (path / "__init__.py").is_file(), path
    assert len(README.splitlines()) <= 135
    for target in ("demo", "test"):
        assert f"\n{target}:" in (ROOT / "Makefile").read_text(encoding="utf-8")
        assert f"make {target}" in README
