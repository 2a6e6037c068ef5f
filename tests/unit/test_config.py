from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from recsys.config import (
    DataConfig,
    DotProduct,
    Experiment,
    NextItemConfig,
    TargetAttention,
    TrainingConfig,
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
def test_every_shipped_config_loads_and_is_named_after_its_file(path: Path) -> None:
    assert load_experiment(path).name == path.stem


def test_there_are_shipped_configs() -> None:
    assert {"shop", "ml-1m", "amazon-beauty"} <= {path.stem for path in CONFIGS}


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
        ({"num_heads": 1, "half_life": 5}, [5]),
        ({"num_heads": 1}, [2]),
        ({}, [2, 50]),
    ],
)
def test_half_lives_are_geometrically_spaced_over_the_heads(
    head: dict[str, object], half_lives: list[float]
) -> None:
    attention = TargetAttention.model_validate(head)
    assert attention.half_lives == pytest.approx(half_lives)
    assert TargetAttention.model_validate(attention.model_dump(mode="json")) == attention


def test_a_single_head_refuses_a_range_of_half_lives() -> None:
    tree = {"model": {"head": {"kind": "target_attention", "num_heads": 1, "half_life": [2, 20]}}}
    with pytest.raises(InputError, match=r"half_life: must be one number where num_heads is 1"):
        parse_experiment(tree)


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
        {"model": {"dropout": 0.5}},
        ["model.dropout=0.1", "training.learning_rate=1e-4", "evaluation.cutoffs=[3, 7]"],
    )
    assert flatten(experiment)["model.dropout"] == 0.1
    assert experiment.training.learning_rate == 1e-4
    assert experiment.evaluation.cutoffs == (3, 7)
    assert flatten(experiment)["training.learning_rate"] == 1e-4


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.dropuot=0.1", "model.dropuot: unknown key; did you mean 'dropout'?"),
        ("modle.dropout=0.1", "modle: unknown key; did you mean 'model'?"),
        ("model.head.kv_sources=items", "did you mean 'kv_source'?"),
        ("model.dropout=2", "model.dropout: input should be less than 1, not 2"),
        ("model.dropout", "write it as key=value"),
        ("seed.x=1", "seed has no fields"),
        ("training.max_epochs=0", "training.max_epochs"),
        (
            "model.num_heads=3",
            "model.num_heads: must divide embedding_dim, 64, not 3",
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


def test_a_loss_is_its_kind_or_a_section() -> None:
    assert parse_experiment({}).training.loss.kind == "cross_entropy"
    short = parse_experiment({"training": {"loss": "gbce"}}, ["training.loss.calibration=0.5"])
    full = {"kind": "gbce", "num_negatives": 1024, "negatives": "uniform", "calibration": 0.5}
    assert short.model_dump()["training"]["loss"] == full
    assert Experiment().model_dump()["training"]["loss"] == "cross_entropy"


@pytest.mark.parametrize(
    ("training", "message"),
    [
        ({"loss": "softmax"}, "training.loss: the kind must be"),
        ({"loss": {"kind": "bce", "calibration": 0.5}}, "training.loss.calibration: unknown key"),
        ({"label_smoothing": 0.1}, "training.label_smoothing: unknown key"),
    ],
)
def test_wrong_losses_are_refused(training: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_experiment({"training": training})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        (
            {"model": {"head": {"num_heads": 2}}},
            "model.head: needs a kind, one of 'target_attention', 'dot_product'",
        ),
        (
            {"training": {"loss": {}}},
            "training.loss: needs a kind, one of 'cross_entropy', 'sampled_softmax', 'bce', 'gbce'",
        ),
    ],
)
def test_a_section_without_its_kind_is_told_the_kinds(
    tree: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError) as caught:
        parse_experiment(tree, origin="mine.yaml")
    assert str(caught.value).startswith(f"mine.yaml: {message}")
    assert "\n" not in str(caught.value)


def test_what_an_override_breaks_is_not_blamed_on_the_file() -> None:
    overrides = ["model.dropuot=0.1", "training.patience=3"]
    with pytest.raises(InputError) as caught:
        parse_experiment({"seed": -1}, overrides, "mine.yaml")
    assert str(caught.value) == (
        "mine.yaml: seed: input should be greater than or equal to 0, not -1; "
        "--set model.dropuot=0.1: model.dropuot: unknown key; did you mean 'dropout'?"
    )


def test_an_experiment_is_made_of_plain_keyword_arguments() -> None:
    fields: dict[str, Any] = {
        "name": "mine",
        "model": {"kind": "next_item", "head": {"kind": "dot_product"}},
        "training": {"max_epochs": 5, "loss": "bce"},
    }
    assert Experiment(**fields) == parse_experiment(fields)


def test_wrong_keyword_arguments_are_one_line() -> None:
    with pytest.raises(InputError, match=r"^Experiment: sed: unknown key; did you mean 'seed'\?$"):
        Experiment(name="x", sed=1)  # type: ignore[call-arg]
    with pytest.raises(InputError, match=r"^Experiment: model\.dropuot: unknown key; did you mean"):
        Experiment(name="x", model={"dropuot": 0.1})  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"^TrainingConfig: batch_tokens: .*, not 0$"):
        TrainingConfig(batch_tokens=0)
