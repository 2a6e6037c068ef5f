"""Which matrices target attention sums with: measured in bf16, and no other result for it."""

from __future__ import annotations

import pytest
import torch

from recsys.config import Experiment, parse_experiment
from recsys.model.build import build_model
from recsys.model.decayed_sums import NARROW, WIDE
from recsys.model.protocols import Model
from recsys.training import product_timing, share_cache
from recsys.training.precision import Precision
from recsys.training.triangle_choice import settle_triangles

ATTENTION = "{kind: target_attention, head_dim: 4}"
narrow_share = product_timing.narrow_share  # before the fixture of all tests replaces it


def made(head: str = ATTENTION) -> tuple[Experiment, Model]:
    model = f"model={{embedding_dim: 8, max_sequence_length: 20, head: {head}}}"
    experiment = parse_experiment({"name": "one", "data": {"source": "shop"}}, (model,))
    return experiment, build_model(experiment.model, 30)


def settled(monkeypatch: pytest.MonkeyPatch, share: float, precision: Precision) -> object:
    monkeypatch.setattr(product_timing, "narrow_share", lambda _: share)
    experiment, model = made()
    settle_triangles(experiment, model, precision)
    return model.head.attend.keywords["triangles"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(("share", "expected"), [(0.4, NARROW), (0.95, WIDE), (3.0, WIDE)])
def test_the_faster_matrices_are_taken_in_bf16(
    share: float, expected: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert settled(monkeypatch, share, "bf16") is expected


def test_in_float32_and_without_target_attention_nothing_is_timed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def never(_: int) -> float:
        raise AssertionError("timed")

    monkeypatch.setattr(product_timing, "narrow_share", never)
    settle_triangles(*made(), "float32")
    settle_triangles(*made("{kind: dot_product}"), "bf16")


def test_other_processes_take_the_choice_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recsys.training.processes.index", lambda: 1)
    monkeypatch.setattr("recsys.training.processes.broadcast_from_rank0", lambda _: True)
    assert settled(monkeypatch, 9.0, "bf16") is NARROW


def test_the_sums_are_timed_on_one_thread_and_remembered(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setattr(share_cache, "_known", {})
    used = []

    def timed(one: object, other: object) -> float:
        used.append(torch.get_num_threads())
        for way in (one, other):
            way()  # type: ignore[operator]
        return 0.4

    monkeypatch.setattr(product_timing, "median_share", timed)
    threads, random_state = torch.get_num_threads(), torch.get_rng_state()
    assert narrow_share(20) == narrow_share(32) == 0.4
    assert narrow_share(200) == 0.4
    assert used == [1, 1]
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), random_state)
