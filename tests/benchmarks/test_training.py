"""Training throughput beside RecTools, RePlay and RecBole, in tokens that have a target."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from contest import Contest, Side, chosen, from_environment, medians
from problems import config_path, problem_of, settings_of

FLOAT32, BF16 = {"precision": "32-true"}, {"precision": "bf16-mixed"}


def sides_for(log: str) -> list[Side]:
    """Every library as it trains by default; and in both precisions, where it can."""
    target_attention = {"config": config_path(log, "target attention")}
    return [
        Side("ours dot-product", "ours"),
        Side("ours target-attention", "ours", target_attention),
        Side("ours dot-product float32", "ours", FLOAT32),
        Side("ours dot-product bf16", "ours", BF16),
        Side("rectools", "rectools"),
        Side("rectools bf16", "rectools", BF16),
        Side("rectools fast", "rectools", {"fast": True}),
        Side("rectools fast bf16", "rectools", {"fast": True} | BF16),
        Side("replay", "replay"),
        Side("replay bf16", "replay", BF16),
        Side("recbole", "recbole"),
    ]


@pytest.mark.benchmark
@pytest.mark.parametrize("log", ["ml-1m", "amazon-beauty"])
def test_training_throughput(log: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """BENCH_ROUNDS of BENCH_SECONDS in turn, each after BENCH_WARM_UP seconds; medians."""
    seconds, warm_up = from_environment("SECONDS", 30), from_environment("WARM_UP", 10)
    settings = replace(settings_of(log), seconds=seconds, warm_up=warm_up)
    contest = Contest(tmp_path, problem_of(log, tmp_path), settings)
    with capsys.disabled():
        found = contest.in_turn(chosen(sides_for(log)), "train")
        print(f"\n{log}: {settings}")
        for name, answers in found.items():
            print(f"{name}: {answers[0]['made']}")
        middle = {name: medians(answers) for name, answers in found.items()}
        first = next(iter(middle.values()))
        for name, figures in middle.items():
            print(
                f"{name}: {figures['tokens_per_second']:,.0f} tokens/s, "
                f"{figures['tokens_per_second'] / first['tokens_per_second']:.4f} x the first, "
                f"{figures['seconds_per_batch']:.3f} s a batch of "
                f"{figures['tokens_per_batch']:,.0f} tokens, peak {figures['peak_mib']:,.0f} MiB, "
                f"{figures['cores']:.2f} cores, {figures['batches']:.0f} batches, "
                f"loss {figures['first_loss']:.3f} to {figures['last_loss']:.3f}"
            )
    for name, figures in middle.items():
        assert figures["last_loss"] < figures["first_loss"], f"{name} did not learn"
