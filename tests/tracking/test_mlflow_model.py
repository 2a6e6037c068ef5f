"""Bundles as MLflow models: logged with each run, registered by name, served without pickle."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import mlflow.pyfunc
import pandas as pd
import polars as pl
import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

import recsys
from recsys.config.experiment import Experiment, TrackingConfig
from recsys.config.model import DotProduct, HSTUConfig
from recsys.data.prepared import PreparedDataset
from recsys.errors import InputError
from recsys.experiments.baselines import fit_baseline
from recsys.experiments.results import register
from recsys.loading import bundle_folder
from recsys.model.build import build_model
from recsys.server.service import ServerSettings
from recsys.serving.bundle import ModelBundle
from recsys.serving.pyfunc import HistoryModel
from recsys.serving.recommender import Recommender
from recsys.tracking.registry import NEEDED, Registered
from tests.conftest import tiny_experiment
from tests.helpers.commands import run_json
from tests.helpers.running_server import running
from tests.helpers.server_process import wait_for

HISTORIES = {"ann": ["hat", "boots"], "bob": ["gloves"], "cat": []}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TrackingConfig:
    return TrackingConfig(uri=f"sqlite:///{tmp_path_factory.mktemp('store')}/mlflow.db")


@pytest.fixture(scope="module")
def champion(tiny_bundle: ModelBundle, store: TrackingConfig) -> Registered:
    return register(tiny_bundle.path, "shop", alias="champion", tracking=store)


@pytest.fixture(scope="module")
def folder(champion: Registered, store: TrackingConfig) -> Path:
    return bundle_folder(champion.uri, store).parents[1]


def frame_of_histories() -> pd.DataFrame:
    return pd.DataFrame({"user_id": list(HISTORIES), "items": list(HISTORIES.values())})


def test_a_loaded_model_recommends_as_the_bundle_does(
    folder: Path, tiny_bundle: ModelBundle
) -> None:
    model = mlflow.pyfunc.load_model(str(folder))
    rules: dict[str, Any] = {
        "k": 2,
        "seen": "allow",
        "deny": ["socks"],
        "where": "item_id <> 'hat'",
    }
    answer = model.predict(frame_of_histories(), params=rules | {"diversity": 0.2, "retrieve": 4})
    expected = Recommender(tiny_bundle).recommend(HISTORIES, **rules, diversity=0.2, retrieve=4)
    assert answer["user_id"].tolist() == list(HISTORIES)
    for user, row in answer.set_index("user_id").iterrows():
        own = expected.filter(pl.col("user_id") == user)
        assert row["item_id"] == own["item_id"].to_list()
        assert row["score"] == own["score"].to_list()
        assert {row["source"]} == set(own["source"])


def test_rows_with_candidates_are_scored_and_the_others_recommended(
    folder: Path, tiny_bundle: ModelBundle
) -> None:
    """Rows that are split in any way have the same answers."""
    model, direct = mlflow.pyfunc.load_model(str(folder)), Recommender(tiny_bundle)
    candidates = pd.Series([["socks", "no such", "hat"], None, ["no such"]], dtype=object)
    frame = frame_of_histories().drop(columns="user_id").assign(candidates=candidates)
    answer = model.predict(frame)
    assert answer["item_id"].tolist()[::2] == [["socks", "hat"], []]
    scores = direct.score([HISTORIES["ann"]], ["socks", "hat"])["score"].to_list()
    assert answer["score"][0] == scores
    best = direct.recommend([HISTORIES["bob"]], k=5)
    assert answer["item_id"][1] == best["item_id"].to_list()
    assert answer["source"].tolist() == ["model", "model", "popularity"]
    rows = pd.concat([model.predict(frame[row : row + 1]) for row in range(3)])
    assert rows["item_id"].tolist() == answer["item_id"].tolist()


@pytest.mark.parametrize(
    ("frame", "params", "message"),
    [
        ({"item": [["hat"]]}, {}, "no column 'items'"),
        ({"items": ["hat"]}, {}, "row 0: items is a list, not 'hat'"),
        ({"items": [["hat"]]}, {"seen": "hide"}, "must be 'filter' or 'allow'"),
    ],
)
def test_what_a_caller_can_do_wrong_is_one_line(
    frame: dict[str, object], params: dict[str, object], message: str, tiny_bundle: ModelBundle
) -> None:
    with pytest.raises(InputError, match=message):
        HistoryModel(Recommender(tiny_bundle)).predict(pl.DataFrame(frame), params)


def test_a_model_that_reads_times_gets_them(
    tiny_dataset: PreparedDataset, tmp_path: Path, store: TrackingConfig
) -> None:
    experiment = tiny_experiment(DotProduct())
    config = HSTUConfig(
        kind="hstu", embedding_dim=8, num_heads=1, max_sequence_length=3, times="request"
    )
    known = experiment.evaluation.model_copy(update={"request_time": "known"})
    experiment = experiment.model_copy(update={"model": config, "evaluation": known})
    network = build_model(config, tiny_dataset.num_items)
    bundle = ModelBundle.write(tmp_path / "b", network, experiment, tiny_dataset, ("train",))
    logged = register(bundle.path, "timed", tracking=store)
    model = mlflow.pyfunc.load_model(str(bundle_folder(logged.uri, store).parents[1]))
    frame = pd.DataFrame({"items": [["hat", "boots"]], "times": [[3, 4]]})
    answer = model.predict(frame, params={"at": "9", "k": 2})
    log = pl.DataFrame({"user_id": ["x", "x"], "item_id": ["hat", "boots"], "timestamp": [3, 4]})
    expected = Recommender(bundle).recommend(log, k=2, at=9)
    assert answer["score"][0] == expected["score"].to_list()
    mixed_up = pd.DataFrame({"items": [["boots", "hat"]], "times": [[4, 3]]})
    again = model.predict(mixed_up, params={"at": "9", "k": 2})
    assert again["score"][0] == expected["score"].to_list()
    with pytest.raises(MlflowException, match="times"):
        model.predict(frame[["items"]], params={"at": "9"})


def test_a_registered_model_is_the_bundle_with_the_code_that_reads_it(
    folder: Path, tiny_bundle: ModelBundle
) -> None:
    """No pickle, and no requirement that a package index could fill with another project."""
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    own = {f"data/{tiny_bundle.path.name}/{path.name}" for path in tiny_bundle.path.iterdir()}
    added = {"MLmodel", "conda.yaml", "python_env.yaml", "requirements.txt", "input_example.json"}
    code = {name for name in files if name.startswith("code/recsys/")}
    assert "code/recsys/serving/pyfunc.py" in code
    assert files - code == own | added | {"serving_input_example.json"}
    lines = (folder / "requirements.txt").read_text().splitlines()
    assert {line.partition("==")[0] for line in lines} == set(NEEDED)
    assert all(line.partition("==")[2] and "+" not in line for line in lines)
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    core = project.partition("dependencies = [")[2].partition("]")[0]
    assert {*re.findall(r'"([\w-]+)', core)} <= {*NEEDED}


@pytest.mark.slow
def test_mlflow_reads_a_registered_model_with_its_own_code(folder: Path, tmp_path: Path) -> None:
    code = """
import sys, mlflow.pyfunc, pandas
model = mlflow.pyfunc.load_model(sys.argv[1])
import recsys
assert recsys.__file__.startswith(sys.argv[1]), recsys.__file__
assert not {"pytorch_lightning", "matplotlib"} & set(sys.modules)
print(model.predict(pandas.DataFrame({"items": [["hat"]]}), params={"k": 1}))
"""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    words = [sys.executable, "-c", code, str(folder)]
    assert subprocess.run(words, cwd=tmp_path, env=environment, check=False).returncode == 0


def test_an_alias_names_one_version(
    tiny_bundle: ModelBundle,
    tiny_dot_bundle: ModelBundle,
    store: TrackingConfig,
    champion: Registered,
) -> None:
    assert champion.uri == "models:/shop@champion"
    challenger = register(tiny_dot_bundle.path, "shop", alias="challenger", tracking=store)
    assert challenger.version == str(int(champion.version) + 1)
    for uri, bundle in ((champion.uri, tiny_bundle), (challenger.uri, tiny_dot_bundle)):
        loaded = recsys.load(uri, tracking=store)
        assert loaded.bundle.manifest.digest == bundle.manifest.digest
    assert bundle_folder(f"models:/shop/{champion.version}", store) == bundle_folder(
        champion.uri, store
    )


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("models:/boutique@champion", "no such model in the store: .* registry has .*shop"),
        ("models:/shop@nobody", "no such model in the store"),
        ("models:/shop", "a model is models:/NAME@ALIAS, models:/NAME/VERSION or runs:"),
        ("runs:/nobody/bundle", "no such model in the store"),
    ],
)
def test_an_unknown_model_is_one_line(
    uri: str, message: str, store: TrackingConfig, champion: Registered
) -> None:
    with pytest.raises(InputError, match=message):
        bundle_folder(uri, store)


def test_each_run_logs_its_model_and_can_be_registered_by_name(
    tiny_dataset: PreparedDataset, store: TrackingConfig, tmp_path: Path
) -> None:
    experiment = Experiment(name="popular", baseline="popularity", tracking=store)
    run = fit_baseline(experiment, tiny_dataset, tmp_path / "out")
    logged = bundle_folder(f"runs:/{run.run_id}/bundle", store)
    digest = ModelBundle.open(run.bundle).manifest.digest
    assert ModelBundle.open(logged).manifest.digest == digest
    with pytest.raises(InputError, match="cannot be used|no such model|is not a bundle|not"):
        ModelBundle.open(bundle_folder(f"runs:/{run.run_id}/nothing", store))
    words = ["--alias", "champion", "--tracking-uri", store.uri]
    done = run_json("register", "popular", "counts", *words)
    assert done == [{"model": "models:/counts@champion", "version": "1"}]
    best = recsys.load("models:/counts@champion", tracking=store).recommend([["hat"]], k=1)
    assert best["item_id"].to_list() == ["boots"]
    with pytest.raises(InputError, match="neither an id nor the name"):
        register("nobody", "counts", tracking=store)


def test_the_server_follows_an_alias(
    tiny_bundle: ModelBundle,
    tiny_dot_bundle: ModelBundle,
    store: TrackingConfig,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    uri = register(tiny_bundle.path, "followed", alias="champion", tracking=store).uri
    monkeypatch.chdir(Path(store.uri.removeprefix("sqlite:///")).parent)  # where the default one is
    with running(ServerSettings(uri, reload_seconds=0.05)) as server:
        first = server.service.model
        time.sleep(0.3)
        assert server.service.model is first  # asked again, the alias names the same model
        register(tiny_dot_bundle.path, "followed", alias="champion", tracking=store)
        wait_for(lambda: server.service.model is not first)
        digest = server.service.model.bundle.manifest.digest
        assert digest == tiny_dot_bundle.manifest.digest
        # Rollback: the alias is moved to the version before.
        client = MlflowClient(store.uri)
        client.set_registered_model_alias("followed", "champion", "1")
        wait_for(lambda: server.service.model.bundle.manifest.digest != digest)
        assert server.service.model.bundle.manifest.digest == tiny_bundle.manifest.digest
        # A registry that cannot be asked is reported; the model goes on answering.
        second = server.service.model
        client.delete_registered_model_alias("followed", "champion")
        failed = server.service.metrics.reloads.labels("failed")
        wait_for(lambda: failed._value.get() > 0)
        time.sleep(0.2)
        assert failed._value.get() == 1
        assert server.get("/v1/recommend", {"history": ["hat"], "k": 2})["items"]
        assert server.service.model is second


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
def test_spark_answers_as_the_bundle_does(
    folder: Path,
    tiny_bundle: ModelBundle,
    spark_environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sql = import_module("pyspark.sql")
    for name, value in spark_environment.items():
        monkeypatch.setenv(name, value)
    builder = sql.SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.driver.host", "127.0.0.1").getOrCreate()
    try:
        predict = mlflow.pyfunc.spark_udf(
            spark,
            str(folder),
            result_type="item_id array<string>, score array<double>, source string",
            env_manager="local",
            params={"k": 2, "seen": "allow"},
        )
        rows = list(HISTORIES.items())
        frame = spark.createDataFrame(rows, "user_id string, items array<string>")
        answered = frame.withColumn("best", predict(sql.functions.struct("items"))).collect()
    finally:
        spark.stop()
    expected = HistoryModel(Recommender.load(tiny_bundle.path)).predict(
        pl.DataFrame({"user_id": list(HISTORIES), "items": list(HISTORIES.values())}),
        {"k": 2, "seen": "allow"},
    )
    given = [{"user_id": row["user_id"], **row["best"].asDict()} for row in answered]
    assert given == expected.to_dicts()
