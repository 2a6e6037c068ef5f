"""Whether a kernel is taken: it must be right, and clearly faster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

from recsys.config import parse_experiment
from recsys.training import kernel_choice
from recsys.training.kernel_choice import KernelChoice, worthwhile


@pytest.fixture(autouse=True)
def _nothing_was_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_choice, "_shares", {})


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
    caplog.set_level("DEBUG")
    monkeypatch.setattr(kernel_choice, "median_share", lambda *_: share)
    taken = worthwhile("it", 1, kernel, computing(1, 20), 0.01)
    assert taken == ("a Triton kernel" in message)
    assert caplog.messages == [message]
    compared = "took" in message
    assert caplog.records[0].levelname == ("DEBUG" if compared else "WARNING")


def test_other_processes_take_the_choice_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recsys.training.processes.index", lambda: 1)
    monkeypatch.setattr("recsys.training.processes.broadcast_from_rank0", lambda _: True)
    assert worthwhile("it", 1, failing, failing, 0.01)


def test_a_case_is_compared_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log of every training says what it takes, but a failure is no news."""
    caplog.set_level("DEBUG")
    shares = iter([0.5, 0.95])
    monkeypatch.setattr(kernel_choice, "median_share", lambda *_: next(shares))
    kernel = computing(1, 20)
    asked = [("it", 1), ("it", 2), ("it", 1), ("it", 2)]
    taken = [worthwhile(*one, kernel, kernel, 0.01) for one in asked]
    assert taken == [True, False, True, False]
    assert caplog.messages[2:] == caplog.messages[:2]
    caplog.clear()
    assert [worthwhile("that", 1, failing, kernel, 0.01) for _ in range(2)] == [False, False]
    assert caplog.messages == ["that: torch: the kernel failed: PTX assembly aborted"]


def test_a_training_compares_once_after_its_first_step_and_on_a_gpu_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    experiment = parse_experiment(
        {
            "model": {"embedding_dim": 8, "max_sequence_length": 10},
            "training": {"max_epochs": 1, "learning_rate": 1e-3},
            "evaluation": {"seen": "allow", "cutoffs": [10]},
        }
    )
    for device, expected in (("cpu", 0), ("cuda", 1)):
        module = Mock(device=torch.device(device))
        choice = KernelChoice(module, experiment, torch.float32)
        compared = Mock()
        monkeypatch.setattr(choice, "choose", compared)
        monkeypatch.setattr(kernel_choice, "find_spec", lambda _: True)
        for _ in range(3):
            choice.on_train_batch_end()
        assert compared.call_count == expected


def test_without_triton_a_gpu_uses_torch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    monkeypatch.setattr(kernel_choice, "find_spec", lambda _: None)
    KernelChoice(Mock(device=torch.device("cuda")), Mock(), torch.float32).on_train_batch_end()
    assert caplog.messages == ["kernels: torch's: triton is not installed"]
