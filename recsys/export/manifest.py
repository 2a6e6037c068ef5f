"""The manifest of an export: what made it, and what a program must know to run it."""

from __future__ import annotations

import re
from typing import ClassVar, Literal

from pydantic import Field

from recsys.folders.manifest import FolderManifest
from recsys.model.encoder import TimesRead


class ExportManifest(FolderManifest):
    """The manifest of an export."""

    noun: ClassVar[str] = "an ONNX export"
    remedy: ClassVar[str] = "export the bundle again"
    current_version: ClassVar[int] = 1
    own_names: ClassVar[re.Pattern[str]] = re.compile(
        r"(encoder|head)\.onnx(\.data)?|(items|popularity)\.json"
    )

    format: Literal["recsys.onnx"] = "recsys.onnx"
    format_version: int = current_version
    bundle: str
    """The digest of the bundle's manifest."""
    experiment: str
    """The name of the experiment that trained the model."""
    model: str
    """The family of the model."""
    git_commit: str | None
    """The commit of the code that trained the model."""
    num_items: int
    """Size of the catalogue, I: entry i of items.json, counted from 0, is item token i + 1."""
    max_sequence_length: int
    """The most items of a history that the encoder takes: the latest ones, the oldest first."""
    times: TimesRead
    """The times that the encoder takes beside the items; the last column is the request time."""
    seen: Literal["filter", "allow"]
    """Whether items of a user's history are filtered from recommendations, as in training."""
    encoder_inputs: list[str]
    encoder_outputs: list[str]
    head_inputs: list[str]
    int8: bool
    """Whether the weights are 8-bit integers."""
    largest_difference: float
    """The largest difference of a score from torch's, before weights were rounded to 8 bits."""
    ndcg_at_10: dict[str, float] = Field(default_factory=dict)
    """NDCG@10 on the test targets of the given dataset: float32, and int8 if that was made."""
