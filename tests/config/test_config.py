import re
from pathlib import Path
from typing import Any

import pytest

from recsys.config.data import DataConfig
from recsys.config.experiment import Experiment, TrainingConfig
from recsys.config.files import (
    continued,
    dump_experiment,
    find_config,
    flatten,
    load_experiment,
    load_section,
    parse_experiment,
)
from recsys.config.model import DotProduct, NextItemConfig, TargetAttention
from recsys.errors import InputError
from recsys.experiments.suite import load_suite
from recsys.experiments.tune import Search
from tests.helpers.commands import refused, run, run_json

FOLDER = Path(__file__).parents[2] / "configs"
CONFIGS = [path for path in FOLDER.glob("*.yaml") if not path.stem.startswith(("suite", "tune"))]


def refusal(tree: dict[str, Any], *overrides: str) -> str:
    """The message on a wrong experiment, which is one line."""
    with pytest.raises(InputError) as caught:
        parse_experiment(tree, overrides, origin="mine.yaml")
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_shipped_config_loads_and_is_named_after_its_file(path: Path) -> None:
    assert load_experiment(path).name == path.stem


def test_a_dumped_experiment_loads_as_itself(tmp_path: Path) -> None:
    experiment = parse_experiment({"model": {"head": {"kind": "dot_product"}}, "seed": 7})
    (tmp_path / "config.yaml").write_text(dump_experiment(experiment))
    assert load_experiment(tmp_path / "config.yaml") == experiment
    assert experiment.model == NextItemConfig(head=DotProduct())


@pytest.mark.parametrize(
    ("head", "half_lives"),
    [
        ({"num_heads": 3, "half_life": [2, 50]}, [2, 10, 50]),
        ({"num_heads": 2, "half_life": 5}, [5, 5]),
        ({"num_heads": 1}, [2]),
    ],
)
def test_half_lives_are_geometrically_spaced_over_the_heads(
    head: dict[str, object], half_lives: list[float]
) -> None:
    assert TargetAttention.model_validate(head).half_lives == pytest.approx(half_lives)


def test_an_experiment_takes_the_data_settings_of_a_dataset_unless_it_sets_others() -> None:
    prepared = DataConfig(source="the log", k_core=True, min_user_interactions=5)
    for data in ({}, {"source": "elsewhere"}, {"k_core": True}):
        assert parse_experiment({"data": data}).with_data(prepared).data == prepared
    other = parse_experiment({"data": {"k_core": True, "min_user_interactions": 3}})
    wanted = "data.min_user_interactions: the experiment has 3, but the dataset was prepared with 5"
    with pytest.raises(InputError, match=wanted):
        other.with_data(prepared)


def test_overrides_are_yaml_and_reach_nested_fields() -> None:
    experiment = parse_experiment(
        {"model": {"dropout": 0.5}, "training": {"loss": "gbce"}},
        ["model.dropout=0.1", "training.learning_rate=1e-4", "training.loss.calibration=0.5"],
    )
    settings = flatten(experiment)
    assert settings["model.dropout"] == 0.1
    assert settings["training.learning_rate"] == 1e-4
    assert settings["training.loss.calibration"] == 0.5
    assert settings["training.loss.num_negatives"] == 1024
    assert flatten(Experiment())["training.loss"] == "cross_entropy"


def test_settings_have_names_that_mlflow_takes() -> None:
    settings = flatten(Experiment(data=DataConfig(where={"100% off?": "price > 0"})))
    assert settings["data.where"] == {"100% off?": "price > 0"}
    assert all(re.fullmatch(r"[\w\-. :/]+", name) for name in settings)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.dropuot=0.1", "model.dropuot: unknown key; did you mean 'dropout'?"),
        ("modle.dropout=0.1", "modle: unknown key; did you mean 'model'?"),
        ("model.head.poolings=sum", "did you mean 'pooling'?"),
        ("model.dropout=2", "model.dropout: input should be less than 1, not 2"),
        ("model.dropout", "write it as key=value"),
        ("seed.x=1", "seed has no fields"),
        ("model.num_heads=3", "model.num_heads: must divide embedding_dim, 64, not 3"),
        ("model.head.half_life=[0, 5]", "half_life.0: input should be greater than 0"),
        ("name=../elsewhere", "name: string should match pattern"),
        ("training.loss=softmax", "training.loss: the kind must be"),
        ("training.loss={kind: bce, calibration: 0.5}", "training.loss.calibration: unknown key"),
        ("model.head={num_heads: 2}", "model.head: needs a kind, not {'num_heads': 2}"),
        ("model.item_features=[{column: x, separator: ','}]", "only kind: categories has"),
        ("model.item_features=[{kind: vector, kolumn: x}]", "item_features.0.kolumn: unknown key"),
    ],
)
def test_wrong_settings_name_their_full_path(override: str, message: str) -> None:
    tree = {"seed": 1, "model": {"head": {"kind": "target_attention"}}}
    assert message in refusal(tree, override)


def test_all_wrong_settings_are_reported_together() -> None:
    overrides = ["model.dropuot=0.1", "training.patience=3"]
    assert refusal({"seed": -1}, *overrides) == (
        "mine.yaml: seed: input should be greater than or equal to 0, not -1; "
        "model.dropuot: unknown key; did you mean 'dropout'?"
    )


def test_an_experiment_is_made_of_plain_keyword_arguments_and_refused_in_one_line() -> None:
    fields: dict[str, Any] = {
        "name": "mine",
        "model": {"kind": "next_item", "head": {"kind": "dot_product"}},
        "training": {"max_epochs": 5, "loss": "bce"},
    }
    assert Experiment(**fields) == parse_experiment(fields)
    with pytest.raises(InputError, match=r"^Experiment: sed: unknown key; did you mean 'seed'\?$"):
        Experiment(name="x", sed=1)  # type: ignore[call-arg]
    with pytest.raises(InputError, match=r"^Experiment: model\.dropuot: unknown key; did you mean"):
        Experiment(name="x", model={"dropuot": 0.1})  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"^TrainingConfig: batch_tokens: .*, not 0$"):
        TrainingConfig(batch_tokens=0)


def test_a_continued_experiment_merges_sections_and_replaces_those_of_another_kind() -> None:
    model = {"dropout": 0.4, "head": {"kind": "target_attention", "head_dim": 8}}
    earlier = parse_experiment({"name": "shop-2", "model": model, "data": {"k_core": True}})
    changes = parse_experiment({"model": {"head": {"kind": "dot_product"}}})
    later = continued(earlier, "runs/shop-2", changes, ["start.epochs=0.5"])
    assert later.name == "shop-3"
    assert later.model == NextItemConfig(dropout=0.4, head=DotProduct())
    assert later.data == DataConfig()
    assert later.start is not None
    assert (later.start.bundle, later.start.epochs) == ("runs/shop-2", 0.5)


def test_a_preset_is_loaded_by_name_from_any_folder_and_a_file_of_its_name_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_experiment("ml-1m", ["seed=3"]).data.source == "ml-1m"
    assert load_suite("suite").name == "suite"
    assert load_section("tune", Search).trials == 50
    Path("shop").mkdir()
    assert find_config("shop") == FOLDER / "shop.yaml"
    Path("shop").rmdir()
    Path("shop").write_text("name: mine")
    assert load_experiment("shop").name == "mine"
    Path("log.csv").write_text("user_id,item_id,timestamp")
    assert find_config("log.csv") is None


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sasrec", "sasrec: neither a config file nor a preset; did you mean 'ml-1m-sasrec'?"),
        ("configs/shopp.yaml", "configs/shopp.yaml: neither a config file nor a preset; did you "),
        ("zzz.yaml", "zzz.yaml: neither a config file nor a preset; recsys configs lists the"),
        (".", ".: neither a config file nor a preset; "),
        ("list.yaml", "list.yaml: a config is a mapping of sections, not list"),
    ],
)
def test_an_unknown_or_unreadable_config_is_answered_in_one_line(
    name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("list.yaml").write_text("- 1")
    with pytest.raises(InputError) as caught:
        load_experiment(name)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_the_command_lists_and_shows_presets() -> None:
    rows = {row["name"]: row for row in run_json("configs")}
    assert rows.keys() == {path.stem for path in FOLDER.glob("*.yaml")}
    assert all(len(row["description"]) > 20 for row in rows.values())
    assert "ml-1m-factorisation-machine" in run("configs")  # not cut off
    assert run("configs", "ml-1m-sasrec") == (FOLDER / "ml-1m-sasrec.yaml").read_text()
    assert "did you mean 'ml-1m-hstu'" in refused("configs", "ml-1m-hst")
