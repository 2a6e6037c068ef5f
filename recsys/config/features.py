"""What a model reads beside item tokens: columns of items, of interactions, of users."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from recsys.config.section import Section


class _Column(Section):
    column: str
    """Of the item table, of the log (`DataConfig.keep`) or of the user table."""


class Category(_Column):
    """One of a few values, such as a brand."""

    kind: Literal["category"] = "category"


class Categories(_Column):
    """Several of a few values, such as the genres of a film: a column of lists, or of text."""

    kind: Literal["categories"]
    separator: str = Field("|", min_length=1)
    """Between the values, where the column is text."""


class Number(_Column):
    """A quantity, such as a price: standardised, and one more number says where it is missing."""

    kind: Literal["number"]


class Text(_Column):
    """Words, such as a title: TF-IDF, of which a truncated SVD keeps the main directions."""

    kind: Literal["text"]
    dims: int = Field(32, ge=1)
    """How many directions; fewer than there are words that two rows have."""


def _with_kind(feature: object) -> object:
    """A name is short for a category; ``{column: ...}`` too."""
    if isinstance(feature, str):
        return {"kind": "category", "column": feature}
    return {"kind": "category"} | feature if isinstance(feature, dict) else feature


Feature = Annotated[
    Annotated[Category | Categories | Number | Text, Field(discriminator="kind")],
    BeforeValidator(_with_kind),
]


def _of(noun: str, others: Collection[str]) -> Callable[[Sequence[Feature]], Sequence[Feature]]:
    """A check that each feature is there once, and none is one of the columns of other meaning."""

    def each_once(features: Sequence[Feature]) -> Sequence[Feature]:
        columns = [(feature.kind, feature.column) for feature in features]
        for kind, column in columns:
            if column in others:
                raise ValueError(f"{column} is no feature of {noun}")
            if columns.count((kind, column)) > 1:
                raise ValueError(f"{column} is there twice as {kind}")
        return features

    return each_once


_ITEMS = _of("an item", {"item_id", "count"})  # the second is what bundles call popularity
_INTERACTIONS = _of("an interaction", {"user_id", "item_id"})
_USERS = _of("a user", {"user_id", "item_id"})

ItemFeatures = Annotated[tuple[Feature, ...], AfterValidator(_ITEMS)]
InteractionFeatures = Annotated[tuple[Feature, ...], AfterValidator(_INTERACTIONS)]
UserFeatures = Annotated[tuple[Feature, ...], AfterValidator(_USERS)]
