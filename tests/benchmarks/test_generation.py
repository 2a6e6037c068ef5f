"""How fast purchases are written for all users of MovieLens-1M: greedy, beam; cached, uncached."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from recsys.config import DataConfig, SequenceToSequenceConfig
from recsys.data.prepared import prepare
from recsys.inference.generator import SequenceGenerator
from recsys.model.build import build_model
from recsys.model.generation import Beam, GeneratedLists, Greedy, Strategy
from recsys.model.sequence_to_sequence import EncodedHistory, SequenceToSequence

ROUNDS = 3


@dataclass(frozen=True)
class UncachedGreedy:
    """`Greedy` that runs the whole decoder anew for every purchase."""

    def __call__(
        self,
        model: SequenceToSequence,
        memory: EncodedHistory,
        allowed: Tensor,
        length: int,
        *,
        repeats: bool = False,
    ) -> GeneratedLists:
        tokens = torch.empty(len(allowed), 0, dtype=torch.int64)
        for _ in range(length):
            scores = model.decode(memory, tokens)[:, -1] @ model.items.weight.T
            scores.masked_fill_(~allowed, -math.inf)
            scores.scatter_(1, tokens, -math.inf)
            tokens = torch.cat([tokens, scores.argmax(1, keepdim=True)], dim=1)
        return GeneratedLists(tokens[:, None], torch.zeros(len(tokens), 1))


@pytest.mark.benchmark
@pytest.mark.realdata
@pytest.mark.parametrize("length", [5, 20])
def test_users_a_second(
    length: int, mirror: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """6,040 users; d 64, 2 + 2 blocks, L 64, 3,706 items; medians of 3 rounds, side by side."""
    dataset = prepare("ml-1m", DataConfig(mirror=str(mirror)), tmp_path / "ml-1m")
    torch.manual_seed(0)
    config = SequenceToSequenceConfig(kind="sequence_to_sequence", max_sequence_length=64)
    model = build_model(config, dataset.num_items).eval()
    histories = dataset.histories("test")
    strategies: dict[str, Callable[..., GeneratedLists]] = {
        "greedy, uncached": UncachedGreedy(),
        "greedy": Greedy(),
        "beam of 4": Beam(4),
        "beam of 10": Beam(10),
    }
    seconds: dict[str, list[float]] = {name: [] for name in strategies}
    lists = {}
    for _ in range(ROUNDS):
        for name, strategy in strategies.items():
            assert isinstance(strategy, Strategy | UncachedGreedy)
            generator = SequenceGenerator(model, 64, strategy)  # type: ignore[arg-type]
            started = time.perf_counter()
            lists[name], _ = generator.generate(histories, length, "filter")
            seconds[name].append(time.perf_counter() - started)
    assert (lists["greedy"] == lists["greedy, uncached"]).mean() > 0.999
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    with capsys.disabled():
        for name, median in medians.items():
            ratio = medians["greedy, uncached"] / median
            print(
                f"\n{length} purchases, {name}: {median:.2f} s, "
                f"{len(histories) / median:,.0f} users/s, {ratio:.2f} x uncached greedy",
                end="",
            )
