"""Training throughput beside RecTools, RePlay and RecBole, in tokens that have a target."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from contest import Contest, Side, chosen, from_environment, medians
from problems import CONFIGS, config_path, large, large_settings, problem_of, settings_of

FLOAT32, BF16 = {"precision": "32-true"}, {"precision": "bf16-mixed"}


PEERS = [
    Side("rectools", "rectools"),
    Side("rectools bf16", "rectools", BF16),
    Side("rectools fast", "rectools", {"fast": True}),
    Side("rectools fast bf16", "rectools", {"fast": True} | BF16),
    Side("replay", "replay"),
    Side("replay bf16", "replay", BF16),
    Side("recbole", "recbole"),
]
HEAD_OF_ML_1M = "{kind: target_attention, num_heads: 1, head_dim: 64, pooling: sum, half_life: 2}"
OTHERS = {
    "ml-1m": [
        Side(
            "ours hstu",
            "ours",
            {"config": str(CONFIGS / "ml-1m-hstu.yaml"), "overrides": ("model.times=none",)},
        ),
        Side(
            "ours target-attention on SASRec",
            "ours",
            {
                "config": config_path("ml-1m", "dot product"),
                "overrides": (f"model.head={HEAD_OF_ML_1M}",),
            },
        ),
        Side(
            "ours sequence-to-sequence",
            "ours",
            {"config": str(CONFIGS / "ml-1m-next-purchases.yaml")},
        ),
    ],
    "amazon-beauty": [],
}
"""Models that peers do not have, or not with these settings."""


def sides_for(log: str) -> list[Side]:
    """Every library as it trains by default; and in both precisions, where it can."""
    target_attention = {"config": config_path(log, "target attention")}
    return [
        Side("ours dot-product", "ours"),
        Side("ours target-attention", "ours", target_attention),
        Side("ours dot-product float32", "ours", FLOAT32),
        Side("ours dot-product bf16", "ours", BF16),
        Side("ours target-attention float32", "ours", target_attention | FLOAT32),
        *OTHERS[log],
        *PEERS,
    ]


def compare(contest: Contest, sides: list[Side]) -> dict[str, dict[str, float]]:
    """Train all sides in turn; print and return the medians of their figures."""
    found = contest.in_turn(chosen(sides), "train")
    print(f"\n{contest.settings}")
    for name, answers in found.items():
        print(f"{name}: {answers[0].get('made', answers[0])}")
    middle = {
        name: medians(answers) for name, answers in found.items() if "failed" not in answers[-1]
    }
    for name, figures in middle.items():
        first = next(iter(middle.values()))
        print(
            f"{name}: {figures['tokens_per_second']:,.0f} tokens/s, "
            f"{figures['tokens_per_second'] / first['tokens_per_second']:.4f} x the first, "
            f"{figures['seconds_per_batch']:.3f} s a batch of "
            f"{figures['tokens_per_batch']:,.0f} tokens, peak {figures['peak_mib']:,.0f} MiB, "
            f"{figures['cores']:.2f} cores, {figures['batches']:.0f} batches, "
            f"loss {figures['first_loss']:.3f} to {figures['last_loss']:.3f}"
        )
    return middle


@pytest.mark.benchmark
@pytest.mark.parametrize("log", ["ml-1m", "amazon-beauty"])
def test_training_throughput(log: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """BENCH_ROUNDS of BENCH_SECONDS in turn, each after BENCH_WARM_UP seconds; medians."""
    seconds, warm_up = from_environment("SECONDS", 30), from_environment("WARM_UP", 10)
    settings = replace(settings_of(log), seconds=seconds, warm_up=warm_up)
    contest = Contest(tmp_path, problem_of(log, tmp_path), settings)
    with capsys.disabled():
        middle = compare(contest, sides_for(log))
    for name, figures in middle.items():
        assert figures["last_loss"] < figures["first_loss"], f"{name} did not learn"


@pytest.mark.benchmark
def test_sampled_softmax(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """100,000 items, histories of 50, d 64, 256 negatives; BENCH_ITEMS and BENCH_NEGATIVES.

    RecTools draws negatives for every position, RePlay and ours for a batch. RecBole and
    `FlatSASRecNet` have no sampled softmax: they are left out.
    """
    items = round(from_environment("ITEMS", 100_000))
    negatives = round(from_environment("NEGATIVES", 256))
    seconds, warm_up = from_environment("SECONDS", 30), from_environment("WARM_UP", 10)
    settings = replace(large_settings(0), seconds=seconds, warm_up=warm_up, negatives=negatives)
    sampled = f"training.loss={{kind: sampled_softmax, num_negatives: {negatives}}}"
    contest = Contest(
        tmp_path,
        large(items // 50, items),
        replace(settings, overrides=(*settings.overrides, sampled)),
    )
    target_attention = {"config": config_path("ml-1m", "target attention")}
    sides = [
        Side("ours dot-product", "ours"),
        Side("ours target-attention", "ours", target_attention),
        Side("ours dot-product float32", "ours", FLOAT32),
        *(side for side in PEERS if "fast" not in side.changes and side.library != "recbole"),
    ]
    with capsys.disabled():
        middle = compare(contest, sides)
    assert all(figures["batches"] > 0 for figures in middle.values())
