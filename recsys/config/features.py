"""Features that a model reads in addition to item tokens: of items, interactions and users."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from recsys.config.section import MAX_WIDTH, Section


class _Column(Section):
    column: str
    """Column of the item table, of the log (`DataConfig.keep`) or of the user table."""


class CategoryFeature(_Column):
    """One of a small set of values, such as a brand."""

    kind: Literal["category"] = "category"


class CategoriesFeature(_Column):
    """Several of a small set of values, such as the genres of a film: lists or text."""

    kind: Literal["categories"]
    separator: str = Field("|", min_length=1)
    """Separator of the values in a column of text."""


class NumberFeature(_Column):
    """A quantity, such as a price. It is standardised; a second number is 1 if it is missing."""

    kind: Literal["number"]


class TextFeature(_Column):
    """Words, such as a title, as TF-IDF vectors reduced by a truncated SVD."""

    kind: Literal["text"]
    dims: int = Field(32, ge=1, le=MAX_WIDTH)
    """Dimensions of the reduced vectors; fewer than the words that at least two rows share."""


class VectorFeature(_Column):
    """A vector from elsewhere, such as a text or image embedding: a list of numbers per item.

    Vectors are scaled to length 1, stored in half precision, and projected to ``embedding_dim`` by
    a linear layer. An item without a vector, or with zeros only, has nothing added.
    """

    kind: Literal["vector"]
    tuned: bool = False
    """Whether training changes the vectors of the items that it meets. If not, it learns only the
    projection, and vectors of new items are read as those of known ones."""


def _with_kind(feature: object) -> object:
    """Expand a column name, and ``{column: ...}`` without a kind, to a category."""
    if isinstance(feature, str):
        return {"kind": "category", "column": feature}
    return {"kind": "category"} | feature if isinstance(feature, dict) else feature


Feature = Annotated[
    Annotated[
        CategoryFeature | CategoriesFeature | NumberFeature | TextFeature | VectorFeature,
        Field(discriminator="kind"),
    ],
    BeforeValidator(_with_kind),
]


_ITEM = "an item"


def _features_of(
    noun: str, reserved: Collection[str]
) -> Callable[[Sequence[Feature]], Sequence[Feature]]:
    """Return a validator: each feature is listed once, and none is a reserved column."""

    def validate(features: Sequence[Feature]) -> Sequence[Feature]:
        columns = [(feature.kind, feature.column) for feature in features]
        for kind, column in columns:
            if kind == "vector" and noun != _ITEM:
                raise ValueError(f"{column}: {noun} has no vectors, only an item has")
            if column in reserved:
                raise ValueError(f"{column} cannot be a feature of {noun}")
            if columns.count((kind, column)) > 1:
                raise ValueError(f"{column} is listed twice as {kind}")
        return features

    return validate


_ITEMS = _features_of(_ITEM, {"item_id", "count"})  # bundles store popularity as count
_INTERACTIONS = _features_of("an interaction", {"user_id", "item_id"})
_USERS = _features_of("a user", {"user_id", "item_id"})

ItemFeatures = Annotated[tuple[Feature, ...], AfterValidator(_ITEMS)]
InteractionFeatures = Annotated[tuple[Feature, ...], AfterValidator(_INTERACTIONS)]
UserFeatures = Annotated[tuple[Feature, ...], AfterValidator(_USERS)]
