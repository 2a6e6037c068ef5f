"""The fingerprint of a protocol: equal for equal protocols, different for any other."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from recsys.config import DataConfig, EvaluationConfig, LeaveLastOut
from recsys.data.histories import Histories
from recsys.data.prepared import Part, PreparedDataset, prepare
from recsys.evaluation.candidates import Candidates
from recsys.evaluation.protocol import protocol_tags

NAME = "protocol.fingerprint"


@pytest.fixture
def other(tiny_log: pl.DataFrame, tmp_path: Path) -> PreparedDataset:
    return prepare(tiny_log, DataConfig(split=LeaveLastOut(targets=2)), tmp_path / "other")


def test_fields_stay_readable(tiny_dataset: PreparedDataset) -> None:
    tags = protocol_tags(tiny_dataset, EvaluationConfig())
    assert len(tags.pop(NAME)) == 64
    assert tags == {
        "protocol.split": "leave_last_out",
        "protocol.seen": "filter",
        "protocol.candidates": "catalogue",
        "protocol.ties": "against_target",
        "protocol.request_time": "unknown",
    }


def test_every_field_changes_the_fingerprint(
    tiny_dataset: PreparedDataset, other: PreparedDataset
) -> None:
    usual, allow = EvaluationConfig(), EvaluationConfig(seen="allow")
    few = Candidates("given 0123", Histories.from_lists([]))
    cases: list[tuple[PreparedDataset, EvaluationConfig, Candidates | None, Part]] = [
        (tiny_dataset, usual, None, "test"),
        (other, usual, None, "test"),
        (tiny_dataset, allow, None, "test"),
        (tiny_dataset, usual, few, "test"),
        (tiny_dataset, usual, None, "valid"),
    ]
    prints = [protocol_tags(*case)[NAME] for case in cases]
    assert len(set(prints)) == len(cases)
    assert prints == [protocol_tags(*case)[NAME] for case in cases]
    # What is shown does not change what is measured.
    assert protocol_tags(tiny_dataset, EvaluationConfig(cutoffs=(3,)))[NAME] == prints[0]
