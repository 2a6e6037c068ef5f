"""The evaluation protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_serializer

from recsys.config.section import MAX_COUNT, MAX_SEED, Section


class AllItems(Section):
    """Every target is ranked among the full catalogue."""

    kind: Literal["all"] = "all"


class SampledItems(Section):
    """Every target is ranked among a few random items, only to reproduce published metrics.

    Such metrics do not order models as the full catalogue does (Krichene and Rendle 2020).
    """

    kind: Literal["sampled"] = "sampled"
    num: int = Field(100, ge=1, le=MAX_COUNT)
    """The number of items drawn per user, without replacement, in addition to the user's targets;
    items of the history are not drawn if ``evaluation.seen`` is ``filter``."""
    seed: int = Field(0, ge=0, le=MAX_SEED)
    """The seed of the draws: every model is evaluated with the same items."""
    by: Literal["uniform", "popularity"] = "uniform"
    """uniform: with equal probability; popularity: in proportion to the interactions before the
    targets."""


class GivenItems(Section):
    """Every target is ranked among the candidates that a table names for its user."""

    kind: Literal["given"] = "given"
    file: Path
    """A table with the columns user_id and item_id, which includes every target of a user."""


def _with_kind(section: object) -> object:
    """Expand ``sampled`` to ``{kind: sampled}``."""
    return {"kind": section} if isinstance(section, str) else section


CandidatesConfig = Annotated[
    AllItems | SampledItems | GivenItems,
    Field(discriminator="kind"),
    BeforeValidator(_with_kind),
]


RequestTime = Literal["unknown", "known"]
"""known: scorers read the time of each request, which is the time of its target."""


class EvaluationConfig(Section):
    """The evaluation protocol."""

    seen: Literal["filter", "allow"] = "filter"
    """filter: items of the user's full history are not ranked (nor, unless training.exclude_seen is
    false, compared with the targets in training); allow: repeat purchases count."""
    cutoffs: tuple[Annotated[int, Field(ge=1, le=MAX_COUNT)], ...] = (1, 5, 10, 20, 50, 100)
    """The k of recall@k and NDCG@k."""
    request_time: RequestTime = "unknown"
    """known: a model may read the time of each request, which is the time of its target. Only some
    models do (``model.times: request``), which changes their metrics: it is another protocol."""
    candidates: CandidatesConfig = AllItems()
    """The items that test targets are ranked among. Validation targets are always ranked among all
    items."""

    @field_serializer("candidates")
    def _in_short(self, candidates: CandidatesConfig) -> str | dict[str, Any]:
        """Write ``all`` in short."""
        return candidates.kind if candidates.kind == "all" else candidates.model_dump(mode="json")
