from __future__ import annotations

from pathlib import Path

import pytest

from recsys.config import (
    DotProduct,
    Experiment,
    NextItemConfig,
    dump_experiment,
    flatten,
    load_experiment,
    parse_experiment,
)
from recsys.errors import InputError

CONFIGS = [
    path
    for path in sorted(Path(__file__).parents[2].glob("configs/*.yaml"))
    if not path.stem.startswith(("suite", "tune"))  # they have tests of their own
]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_shipped_config_loads_and_bears_the_name_of_its_file(path: Path) -> None:
    assert load_experiment(path).name == path.stem


def test_there_are_shipped_configs() -> None:
    assert {"shop", "ml-1m", "amazon-beauty"} <= {path.stem for path in CONFIGS}


def test_a_dumped_experiment_loads_as_itself(tmp_path: Path) -> None:
    experiment = parse_experiment({"model": {"head": {"kind": "dot_product"}}, "seed": 7})
    (tmp_path / "config.yaml").write_text(dump_experiment(experiment))
    assert load_experiment(tmp_path / "config.yaml") == experiment
    assert experiment.model == NextItemConfig(head=DotProduct())


def test_runs_of_before_are_known_by_their_having_had_nothing_that_is_gone() -> None:
    settings = flatten(Experiment())
    assert settings["training.ema_decay"] == 0
    assert settings["model.embedding_dropout"] is None
    with pytest.raises(InputError, match=r"training\.ema_decay"):
        parse_experiment({"training": {"ema_decay": 0.9}})
    with pytest.raises(InputError, match=r"model\..*embedding_dropout"):
        parse_experiment({"model": {"embedding_dropout": 0.3}})


def test_overrides_are_yaml_and_go_deep() -> None:
    experiment = parse_experiment(
        {"model": {"dropout": 0.5}},
        ["model.dropout=0.1", "training.learning_rate=1e-4", "evaluation.cutoffs=[3, 7]"],
    )
    assert experiment.model.dropout == 0.1
    assert experiment.training.learning_rate == 1e-4
    assert experiment.evaluation.cutoffs == (3, 7)
    assert flatten(experiment)["training.learning_rate"] == 1e-4


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.dropuot=0.1", "model.dropuot: unknown key; did you mean 'dropout'?"),
        ("modle.dropout=0.1", "modle: unknown key; did you mean 'model'?"),
        ("model.head.memry=items", "did you mean 'memory'?"),
        ("model.dropout=2", "model.dropout: input should be less than 1, not 2"),
        ("model.dropout", "write it as key=value"),
        ("seed.x=1", "seed has no fields"),
        ("training.max_epochs=0", "training.max_epochs"),
        (
            "model.num_heads=3",
            "model.num_heads: must divide embedding_dim, 64, unless wide_heads is true, not 3",
        ),
        ("model.head.half_life=[0, 5]", "half_life.0: input should be greater than 0"),
        ("name=../elsewhere", "name: string should match pattern"),
    ],
)
def test_wrong_settings_name_their_full_path(override: str, message: str) -> None:
    tree = {"seed": 1, "model": {"head": {"kind": "target_attention"}}}
    with pytest.raises(InputError) as caught:
        parse_experiment(tree, [override])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_all_wrong_settings_are_reported_together() -> None:
    with pytest.raises(InputError, match=r"seed.*model\.num_heads"):
        parse_experiment({"seed": -1, "model": {"num_heads": 0}})


def test_unreadable_configs_name_the_file(tmp_path: Path) -> None:
    for name, text in (("list.yaml", "- 1"), ("broken.yaml", "a: [")):
        (tmp_path / name).write_text(text)
        with pytest.raises(InputError, match=name):
            load_experiment(tmp_path / name)
    with pytest.raises(InputError, match=r"absent\.yaml"):
        load_experiment(tmp_path / "absent.yaml")


def test_numbers_with_exponents_are_numbers(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("training: {learning_rate: 1e-3, weight_decay: 2E-2}")
    training = load_experiment(tmp_path / "c.yaml").training
    assert (training.learning_rate, training.weight_decay) == (0.001, 0.02)


def test_defaults_are_a_valid_experiment() -> None:
    assert Experiment().model.family == "target_attention"


def test_losses_are_written_in_short_or_with_their_settings() -> None:
    assert parse_experiment({}).training.loss.kind == "cross_entropy"
    short = parse_experiment({"training": {"loss": "gbce"}}, ["training.loss.calibration=0.5"])
    whole = {"kind": "gbce", "num_negatives": 1024, "negatives": "uniform", "calibration": 0.5}
    assert short.model_dump()["training"]["loss"] == whole
    assert Experiment().model_dump()["training"]["loss"] == "cross_entropy"


@pytest.mark.parametrize(
    ("training", "message"),
    [
        ({"loss": "softmax"}, "training.loss: the kind must be"),
        ({"loss": {"kind": "bce", "calibration": 0.5}}, "training.loss.calibration: unknown key"),
        ({"loss": "bce", "label_smoothing": 0.1}, "label_smoothing: must be 0 with loss bce"),
    ],
)
def test_losses_that_cannot_be(training: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_experiment({"training": training})
    assert message in str(caught.value)
