"""How long each library trains until its validation NDCG@10 passes what is wanted."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contest import Contest, Side, chosen, from_environment, ndcg_of_lists
from problems import CONFIGS, config_path, problem_of, settings_of

WANTED = {"ml-1m": (0.17, 0.19, 0.20), "amazon-beauty": (0.06, 0.07)}
"""NDCG@10 on the validation targets."""
FASTER: dict[str, Any] = {"learning_rate": 4e-3}
"""That of our configs; the peers' default is 1e-3."""
TWICE: dict[str, Any] = {"learning_rate": 2e-3}
BF16: dict[str, Any] = {"precision": "bf16-mixed"}
SMALL = {"embedding_dim": 192, "num_heads": 4, "max_sequence_length": 50, "dropout": 0.3}
"""What RePlay's `SasRec.from_params` is if nothing is said."""
PEERS = [
    # Our shape, and what the libraries take if nothing is said.
    Side("rectools", "rectools"),
    Side(
        "rectools defaults",
        "rectools",
        {"embedding_dim": 256, "num_heads": 4, "max_sequence_length": 100, "dropout": 0.2},
    ),
    Side("rectools twice", "rectools", TWICE),
    Side("rectools faster", "rectools", FASTER),
    Side("rectools bf16", "rectools", BF16),
    Side("rectools twice bf16", "rectools", TWICE | BF16),
    Side("rectools faster bf16", "rectools", FASTER | BF16),
    Side("replay", "replay"),
    Side("replay twice", "replay", TWICE),
    Side("replay faster", "replay", FASTER),
    Side("replay bf16", "replay", BF16),
    Side("replay twice bf16", "replay", TWICE | BF16),
    Side("replay faster bf16", "replay", FASTER | BF16),
    Side("replay defaults", "replay", SMALL),
    Side("replay defaults twice", "replay", SMALL | TWICE),
    Side("replay defaults bf16", "replay", SMALL | BF16),
    Side("replay defaults faster bf16", "replay", SMALL | FASTER | BF16),
]


def sides_for(log: str) -> list[Side]:
    """Ours and the peers."""
    target_attention = {"config": config_path(log, "target attention")}
    # The peers are told no times, so neither is HSTU.
    without_times = ("training.validate_every=1", "model.times=none")
    hstu = {"config": str(CONFIGS / "ml-1m-hstu.yaml"), "overrides": without_times}
    return [
        Side("ours dot-product", "ours"),
        Side("ours target-attention", "ours", target_attention),
        *([Side("ours hstu", "ours", hstu)] if log == "ml-1m" else []),
        *PEERS,
    ]


@pytest.mark.benchmark
@pytest.mark.realdata
@pytest.mark.parametrize(
    ("log", "side"),
    [pytest.param(log, side, id=f"{log}-{side.name}") for log in WANTED for side in sides_for(log)],
)
def test_seconds_to_quality(
    log: str,
    side: Side,
    mirror: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Leave-last-out, the second-last item ranked in the whole catalogue without seen ones.

    The clock counts training alone. After BENCH_BUDGET seconds of training (or twice as many of
    everything) the best so far is reported. BENCH_USERS changes the number of users.
    """
    monkeypatch.setenv("RECSYS_MIRROR", str(mirror))
    if not chosen([side]):
        pytest.skip(f"BENCH_SIDES or PEERS leaves {side.name} out")
    left, budget = list(WANTED[log]), from_environment("BUDGET", 3600)
    monkeypatch.setenv("BENCH_BUDGET", str(2 * budget))
    problem = problem_of(log, tmp_path).first(round(from_environment("USERS", 1e6)))
    settings = replace(settings_of(log), overrides=("training.validate_every=1",))
    best = 0.0
    contest = Contest(tmp_path, problem, settings)
    with capsys.disabled(), closing(contest.answers(side, "quality")) as answers:
        print(f"\n{side.name}: {settings} {side.changes}")
        for answer in answers:
            if "failed" in answer:
                print(f"{side.name}: {answer['failed']}")
                break
            if "lists" in answer:
                answer["ndcg"] = ndcg_of_lists(np.load(answer["lists"]), problem.targets)
            best = max(best, answer["ndcg"])
            print(
                f"{side.name}: epoch {answer['epoch']}, {answer['seconds']:,.1f} s, "
                f"loss {answer['loss']:.4f}, NDCG@10 {answer['ndcg']:.4f}, "
                f"peak {answer['peak_mib']:,.0f} MiB",
                flush=True,
            )
            while left and best >= left[0]:
                reached = f"{left.pop(0)} reached in {answer['seconds']:,.1f} s of training"
                print(f"{side.name}: {reached}")
            if not left:
                return
            if answer["seconds"] >= budget:
                break
        print(f"{side.name}: {left[0]} not reached in {budget:,.0f} s: {best:.4f}")
