from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from recsys.cli import app
from recsys.config import (
    Experiment,
    find_config,
    load_experiment,
    load_search,
    load_suite,
    preset_by_part,
    presets,
)
from recsys.errors import InputError

FOLDER = Path(__file__).parents[2] / "configs"


def run(*words: str) -> str:
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_every_config_is_a_preset_that_says_what_it_is() -> None:
    assert {preset.path for preset in presets()} == set(FOLDER.glob("*.yaml"))
    for preset in presets():
        assert len(preset.description) > 20, preset.name
        assert preset.dataset or preset.name == "tune"


def test_a_preset_is_loaded_by_name_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_experiment("ml-1m", ["seed=3"]).data.source == "ml-1m"
    assert load_suite("suite").name == "suite"
    assert load_search("tune").trials == 50
    Path("ml-1m.yaml").write_text("name: mine")
    assert load_experiment("ml-1m.yaml").name == "mine"
    assert load_experiment("ml-1m").name == "ml-1m"


def test_a_file_wins_over_a_preset_of_its_name_and_a_folder_or_a_log_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_config("shop") == FOLDER / "shop.yaml"
    Path("shop").mkdir()
    assert find_config("shop") == FOLDER / "shop.yaml"
    Path("shop").rmdir()
    Path("shop").write_text("name: mine")
    assert find_config("shop") == Path("shop")
    Path("log.csv").write_text("user_id,item_id,timestamp")
    assert find_config("log.csv") is None
    assert find_config("absent") is None


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sasrec", "sasrec: neither a config file nor a preset; did you mean 'ml-1m-sasrec'?"),
        ("configs/shopp.yaml", "configs/shopp.yaml: neither a config file nor a preset; did you "),
        ("zzz.yaml", "zzz.yaml: neither a config file nor a preset; recsys configs lists the"),
        (".", ".: is a folder: a config is a YAML file or a preset's name"),
    ],
)
def test_an_unknown_name_is_answered_in_one_line(name: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        load_experiment(name)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_words_of_a_name_choose_a_preset_if_no_other_has_them() -> None:
    assert preset_by_part("sasrec").name == "ml-1m-sasrec"  # not gsasrec, not esasrec
    assert preset_by_part("ml-1m").name == "ml-1m"
    with pytest.raises(InputError, match="several have it in their name: amazon-beauty, amazon"):
        preset_by_part("beauty")
    with pytest.raises(InputError, match="did you mean 'ml-1m-hstu'"):
        preset_by_part("ml-1m-hst")


def test_the_command_lists_and_shows_presets() -> None:
    listed = json.loads(run("configs", "--json"))
    assert {"name": "suite", "dataset": "ml-1m, amazon-beauty, amazon-sports"}.items() <= next(
        row for row in listed if row["name"] == "suite"
    ).items()
    assert "ml-1m-factorisation-machine" in run("configs")  # not cut off
    shown = run("configs", "show", "sasrec")
    assert shown == (FOLDER / "ml-1m-sasrec.yaml").read_text()
    (tree,) = json.loads(run("configs", "show", "sasrec", "--json"))
    assert Experiment.model_validate(tree) == load_experiment("ml-1m-sasrec")
