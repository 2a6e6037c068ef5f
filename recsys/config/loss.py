"""What training minimises: how a target is told from the other items."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from recsys.config.section import Section


class CrossEntropy(Section):
    """The target against every item of the catalogue."""

    kind: Literal["cross_entropy"] = "cross_entropy"


class _Sampled(Section):
    num_negatives: int = Field(1024, ge=1)
    """Items drawn for each step; all of its targets are held against them. As many as the catalogue
    has, or more, drawn uniformly: every item once."""
    negatives: Literal["uniform", "popularity", "in_batch"] = "uniform"
    """How they are drawn: evenly; in proportion to their purchases in training; from the targets of
    the step."""


class SampledSoftmax(_Sampled):
    """Cross-entropy over the target and a few items, weighted to stand for the whole catalogue."""

    kind: Literal["sampled_softmax"]


class BinaryCrossEntropy(_Sampled):
    """Each of the items is an answer of its own, right or wrong: SASRec's loss."""

    kind: Literal["bce"]


class GeneralisedBinaryCrossEntropy(_Sampled):
    """gSASRec's loss: binary cross-entropy, less sure of itself the fewer the negatives are."""

    kind: Literal["gbce"]
    calibration: float = Field(0.75, ge=0, le=1)
    """Its t: 0 is plain binary cross-entropy, 1 undoes all of the sampling's overconfidence."""


SampledLossConfig = SampledSoftmax | BinaryCrossEntropy | GeneralisedBinaryCrossEntropy


def _with_kind(section: object) -> object:
    """``bce`` is short for ``{kind: bce}``."""
    return {"kind": section} if isinstance(section, str) else section


LossConfig = Annotated[
    CrossEntropy | SampledLossConfig, Field(discriminator="kind"), BeforeValidator(_with_kind)
]
