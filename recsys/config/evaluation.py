"""The protocol that figures are taken under."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_serializer

from recsys.config.section import Section


class AllItems(Section):
    """Every target is ranked among the whole catalogue."""

    kind: Literal["all"] = "all"


class SampledItems(Section):
    """Every target is ranked among a few random items: to repeat published figures, no more.

    Such figures do not order models as the whole catalogue does (Krichene and Rendle 2020).
    """

    kind: Literal["sampled"] = "sampled"
    num: int = Field(100, ge=1)
    """Items drawn per user, without replacement, beside the user's targets; never those of the
    user's history where ``evaluation.seen`` filters them."""
    seed: int = Field(0, ge=0)
    """Of the draws: every model meets the same items."""
    by: Literal["uniform", "popularity"] = "uniform"
    """popularity: in proportion to the interactions before the targets."""


class GivenItems(Section):
    """Every target is ranked among the candidates that a table names for its user."""

    kind: Literal["given"] = "given"
    file: Path
    """A table with the columns user_id and item_id: for every user with targets, all of the user's
    targets among them."""


def _with_kind(section: object) -> object:
    """``sampled`` is short for ``{kind: sampled}``."""
    return {"kind": section} if isinstance(section, str) else section


CandidatesConfig = Annotated[
    AllItems | SampledItems | GivenItems,
    Field(discriminator="kind"),
    BeforeValidator(_with_kind),
]


RequestTime = Literal["unknown", "known"]
"""Whether scorers are told when the targets were had."""


class EvaluationConfig(Section):
    """The protocol the figures are taken under."""

    seen: Literal["filter", "allow"] = "filter"
    """filter: items of the user's full history are not ranked (nor, inside the window, trained as
    wrong answers); allow: repeat purchases count."""
    cutoffs: tuple[Annotated[int, Field(ge=1)], ...] = (1, 5, 10, 20, 50, 100)
    """The k of recall@k and NDCG@k."""
    request_time: RequestTime = "unknown"
    """known: a model may read when each recommendation is asked for, which is when its target was
    had. Few of them do (``model.times: request``), and figures move for that alone: they are of
    another protocol."""
    candidates: CandidatesConfig = AllItems()
    """What the test targets are ranked among. The epoch is chosen on validation targets that are
    ranked among all items, whatever stands here."""

    @field_serializer("candidates")
    def _in_short(self, candidates: CandidatesConfig) -> str | dict[str, Any]:
        """``all`` where it is all."""
        return candidates.kind if candidates.kind == "all" else candidates.model_dump(mode="json")
