"""Whether a kernel is taken: it must be right, and clearly faster."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from recsys.training import kernel_choice
from recsys.training.kernel_choice import worthwhile


def computing(*values: float) -> Callable[[], Callable[[], Sequence[Tensor]]]:
    return lambda: lambda: [torch.tensor([float(value)]) for value in values]


def failing() -> Callable[[], Sequence[Tensor]]:
    raise RuntimeError("PTX assembly\naborted")


@pytest.mark.parametrize(
    ("kernel", "share", "message"),
    [
        (computing(1, 20.1), 0.42, "it: a Triton kernel: the kernel took 0.42 of torch's time"),
        (computing(1, 20.1), 0.95, "it: torch: the kernel took 0.95 of torch's time"),
        (computing(1, 20.3), 0.42, "it: torch: the kernel's result differs by 0.015 of its norm"),
        (
            computing(1, torch.nan),
            0.42,
            "it: torch: the kernel's result differs by nan of its norm",
        ),
        (failing, 0.42, "it: torch: the kernel failed: PTX assembly aborted"),
    ],
    ids=["right and faster", "hardly faster", "another result", "NaN", "does not compile"],
)
def test_a_kernel_is_taken_if_it_is_right_and_clearly_faster(
    kernel: Callable[[], Callable[[], Sequence[Tensor]]],
    share: float,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Results may differ by a hundredth; what fails or differs is a warning."""
    caplog.set_level("INFO")
    monkeypatch.setattr(kernel_choice, "median_share", lambda *_: share)
    taken = worthwhile("it", kernel, computing(1, 20), 0.01)
    assert taken == ("a Triton kernel" in message)
    assert caplog.messages == [message]
    compared = "took" in message
    assert caplog.records[0].levelname == ("INFO" if compared else "WARNING")


def test_other_processes_take_the_choice_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recsys.training.processes.index", lambda: 1)
    monkeypatch.setattr("recsys.training.processes.broadcast_from_rank0", lambda _: True)
    assert worthwhile("it", failing, failing, 0.01)
