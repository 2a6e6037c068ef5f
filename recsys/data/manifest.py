"""The manifest of a prepared dataset."""

from __future__ import annotations

import re
from typing import Any, ClassVar, Literal

from pydantic import Field

from recsys.config import Columns
from recsys.data.appended import AppendedLog
from recsys.folders.manifest import FolderManifest


class Manifest(FolderManifest):
    """The manifest of a prepared dataset."""

    noun: ClassVar[str] = "a prepared dataset"
    remedy: ClassVar[str] = "prepare the dataset again"
    current_version: ClassVar[int] = 2
    own_names: ClassVar[re.Pattern[str]] = re.compile(
        r"(items|timestamps|offsets|cuts)\.npy|(users|items|interactions|outside)\.parquet"
    )

    format: Literal["recsys.prepared"] = "recsys.prepared"
    format_version: int = current_version
    origin: str
    """The name or path of the log."""
    log_fingerprint: str
    """The SHA-256 of the rows of the first log, before any filter."""
    fingerprint: str
    """The SHA-256 of settings and content. It depends neither on the log's file nor on when it was
    prepared."""
    settings: dict[str, Any]
    """The fields of DataConfig that determine the content."""
    columns: Columns
    """The names of the log's columns, which do not affect the content."""
    ordered_by: str
    """The total order of the interactions."""
    filtered_on: str
    """The rows on which the minimum numbers of interactions were counted."""
    counts: dict[str, int]
    """Sizes of the log and of the dataset; see `recsys.data.arrays.count_rows`."""
    dropped: dict[str, int] = Field(default_factory=dict)
    """The number of dropped rows of the source, by reason: those of data.drop, the names of the
    settings that drop rows, and blank rows. They and the interactions add up to the rows read."""
    appended: tuple[AppendedLog, ...] = ()
    """The logs that were appended, the earliest first."""
