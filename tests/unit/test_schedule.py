"""Learning-rate schedules."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recsys.config import TrainingConfig
from recsys.training.optimiser import Schedule


def inverse_square_root(step: int, warmup: int) -> float:
    return Schedule("inverse_square_root", warmup, 0, 0)(step)


@given(st.integers(0, 200_000), st.integers(1, 10_000), st.integers(1, 2_048))
def test_the_published_rate_is_the_factor_times_its_peak(step: int, warmup: int, dim: int) -> None:
    number = step + 1  # the paper counts from 1
    published = dim**-0.5 * min(number**-0.5, number * warmup**-1.5)
    peak = (dim * warmup) ** -0.5
    assert inverse_square_root(step, warmup) * peak == pytest.approx(published, rel=1e-12)


def test_the_rate_rises_linearly_and_halves_in_four_times_the_steps() -> None:
    factors = [inverse_square_root(step, 8) for step in range(128)]
    assert factors[:8] == [number / 8 for number in range(1, 9)]
    assert factors[31] == 0.5
    assert factors[127] == 0.25
    assert all(later < earlier for earlier, later in itertools.pairwise(factors[7:]))


def test_without_a_warm_up_the_rate_only_decays() -> None:
    assert [inverse_square_root(step, 0) for step in (0, 3, 99)] == [1.0, 0.5, 0.1]


def test_the_config_chooses_the_schedule() -> None:
    published = TrainingConfig(schedule="inverse_square_root", warmup_steps=4)
    schedule = Schedule.plan(published, epochs=10, steps_per_epoch=20)
    assert [schedule(step) for step in (0, 3, 15, 199)] == [0.25, 1.0, 0.5, (4 / 200) ** 0.5]
    held = Schedule.plan(TrainingConfig(warmup_steps=4, decay_fraction=0.5), 10, 20)
    assert [held(step) for step in (0, 3, 100, 150)] == [0.25, 1.0, 1.0, 0.5]
