"""The manifest of a model bundle: what it was trained on, and the rules that it recommends by."""

from __future__ import annotations

import re
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from recsys.config import Section, StartConfig
from recsys.data.prepared import TrainedOn
from recsys.folders.manifest import FolderManifest


class ServingProtocol(Section):
    """The rules that the model was trained under and recommends by."""

    split: str
    """The split, as `recsys.config` writes it."""
    seen: Literal["filter", "allow"]
    """Whether items of a user's history are filtered from recommendations."""
    trained_on: TrainedOn
    """The parts of the split that the weights were trained on."""


class EarlierBundle(Section):
    """A bundle that another one was made of."""

    path: str
    """Its folder."""
    digest: str | None
    """The SHA-256 of its manifest."""

    @classmethod
    def of_start(cls, start: StartConfig | None) -> EarlierBundle | None:
        """Name the bundle that a training started from, if any."""
        return None if start is None else cls(path=start.bundle, digest=start.digest)

    @classmethod
    def of(cls, path: Path, manifest: BundleManifest) -> EarlierBundle:
        """Name the bundle in a folder."""
        return cls(path=str(path), digest=manifest.digest)


class BundleManifest(FolderManifest):
    """The manifest of a model bundle."""

    noun: ClassVar[str] = "a model bundle"
    remedy: ClassVar[str] = "train the model again"
    current_version: ClassVar[int] = 2
    own_names: ClassVar[re.Pattern[str]] = re.compile(
        r"(weights|baseline|count_ensemble|vectors|(\w+_)?features)\.safetensors"
        r"|config\.yaml|items\.parquet"
    )

    format: Literal["recsys.bundle"] = "recsys.bundle"
    format_version: int = current_version
    dataset_fingerprint: str
    """The fingerprint of the prepared dataset that the model was trained on."""
    num_items: int
    """Size of the catalogue, I."""
    protocol: ServingProtocol
    git_commit: str | None
    """The commit of the code that trained the model; None if unknown."""
    trained_until: int | None = None
    """The time of the newest interaction that the weights were trained on, on the scale of the log;
    None if unknown."""
    usual_gap: int | None = None
    """The median time between two successive interactions of a user, on the scale of the log; None
    if unknown."""
    started_from: EarlierBundle | None = None
    """The bundle whose weights the training started from; None if they were random."""
    extended_from: EarlierBundle | None = None
    """The bundle to whose catalogue items were added without training; None if there is none."""
    temperature: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """What scores are divided by for calibrated probabilities; None if none was fitted."""
    name: str | None = None
    """What the model is, in words, where an automatic run chose it; else None."""
