"""Configs that no one meant: each ends in one line, soon, and with little memory."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recsys.config.experiment import Experiment
from recsys.config.files import load_experiment, parse_experiment
from recsys.errors import InputError

BOMB = "a0: &a0 [x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 11)
)
MERGED = "a0: &a0 {x: 1}\n" + "".join(
    f"a{n}: &a{n}\n  <<: [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 11)
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (BOMB, "more than 20 aliases"),
        (MERGED, "more than 20 aliases"),
        ("data: &a [*a]", "data"),
        ("[" * 3000, "recursion"),
        ("seed: 2020-13-45", "month must be in 1..12"),
        ("seed: !!int abc", "not valid YAML: invalid literal for int"),
        ("seed: !!python/object/apply:os.system [ls]", "could not determine a constructor"),
        ("seed: 1\nseed: 2", "'seed' is given twice in"),
        ("{[a]: 1}", "unhashable"),
        ("a: \x07", "not allowed"),
        (f"seed: {'9' * 400}", "seed: input should be less than or equal to 9223372036854775807"),
        (f"seed: {'9' * 5000}", "not valid YAML: Exceeds the limit"),
        ("x" * 300_000, "a config is a mapping of sections, not str"),
        (f"{'k' * 900}: 1", "kkk: unknown key"),
        ("\n".join(f"k{n}: 1" for n in range(500)), "k499: unknown key"),
        ('"\\e[2J": 1', "?[2J: unknown key"),
    ],
)
def test_odd_documents_end_in_one_line(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    started = time.monotonic()
    with pytest.raises(InputError) as caught:
        load_experiment(file)
    message = str(caught.value)
    assert words in message
    assert message.isprintable()
    assert len(message) < 4_000
    assert time.monotonic() - started < 5


@pytest.mark.parametrize(
    "override",
    [
        *("model.dropout=[", "seed=2020-13-45", "seed=2**70", f"seed={2**70}", "=", "a..b="),
        *("model.embedding_dim=1000000000", "model.head.head_dim=1e9", "model.dropout=.nan"),
        *("model.head.half_life=.inf", "training.learning_rate=.nan", "training.max_epochs=1e30"),
        *("training.loss={kind: bce, num_negatives: 1e30}", "count_ensemble.weights=[.inf]"),
        *("model.head={kind: [1]}", "model=[1]", "data.session_gap=1e30"),
        f"data.split={{kind: global_time, test_from: {'9' * 400}}}",
        "data.split={kind: backtest, folds: 1000000000000}",
    ],
)
def test_odd_overrides_end_in_one_line(override: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_experiment({}, [override])
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1_000


KEYS = st.sampled_from([*Experiment.model_fields, "kind", "head", "loss", "split", "x", "<<", "1"])
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.dates()
)
TREES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@given(tree=st.dictionaries(KEYS, TREES, max_size=4))
def test_any_tree_is_an_experiment_or_an_input_error(tree: dict[str, object]) -> None:
    try:
        assert isinstance(parse_experiment(tree), Experiment)
    except InputError as error:
        assert "\n" not in str(error)  # noqa: PT017 - either outcome is right
