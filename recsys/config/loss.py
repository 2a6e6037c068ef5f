"""Training losses: the items that a target is compared with, and how."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from recsys.config.section import MAX_COUNT, Section


class CrossEntropy(Section):
    """Cross-entropy of the target over the full catalogue."""

    kind: Literal["cross_entropy"] = "cross_entropy"


class _Sampled(Section):
    num_negatives: int = Field(1024, ge=1, le=MAX_COUNT)
    """Number of items drawn for each step, which all of its targets share. If it reaches the size
    of the catalogue and negatives are uniform, every item is drawn once."""
    negatives: Literal["uniform", "popularity", "in_batch"] = "uniform"
    """How negatives are drawn. uniform: all items equally likely; popularity: in proportion to
    their purchases in training; in_batch: from the targets of the step."""


class SampledSoftmax(_Sampled):
    """Cross-entropy over the target and sampled negatives, corrected for the sampling."""

    kind: Literal["sampled_softmax"]


class BinaryCrossEntropy(_Sampled):
    """Binary cross-entropy of the target and each negative: SASRec's loss."""

    kind: Literal["bce"]


class GeneralisedBinaryCrossEntropy(_Sampled):
    """Binary cross-entropy that corrects overconfidence from few negatives: gSASRec's loss."""

    kind: Literal["gbce"]
    calibration: float = Field(0.75, ge=0, le=1)
    """The t of gSASRec: 0 is plain binary cross-entropy, 1 removes all overconfidence."""


SampledLossConfig = SampledSoftmax | BinaryCrossEntropy | GeneralisedBinaryCrossEntropy


def _with_kind(section: object) -> object:
    """Expand ``bce`` to ``{kind: bce}``."""
    return {"kind": section} if isinstance(section, str) else section


LossConfig = Annotated[
    CrossEntropy | SampledLossConfig, Field(discriminator="kind"), BeforeValidator(_with_kind)
]
