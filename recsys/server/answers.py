"""The bodies of answers.

An answer has up to thousands of items: they are plain dataclasses, made in a tenth of the time of a
model of pydantic, which writes and describes them all the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict

from recsys.server.requests import Id

Source = Literal["model", "popularity"]


_DOCUMENTED = ConfigDict(use_attribute_docstrings=True)


class Answer(BaseModel):
    """A body that is sent; its fields are documented by their docstrings."""

    model_config = _DOCUMENTED


@dataclass(slots=True)
class RecommendedItem:
    """One of the best items."""

    __pydantic_config__ = _DOCUMENTED

    item_id: Id
    score: float
    rank: int
    """From 1, the best."""


class Recommendations(Answer):
    """The best items of a user, best first."""

    items: list[RecommendedItem]
    source: Source
    """popularity: no item of the history is known, so the most popular items are the answer, and
    scores are counts of interactions."""
    skipped: int
    """How many items of the history are not in the catalogue."""
    assumed_gap: int | None
    """The time between two interactions, on the scale of the training log, that was assumed because
    the history has no times and the model reads them; null if none was. An answer to given times is
    better."""


@dataclass(slots=True)
class ScoredItem:
    """A candidate and its score."""

    __pydantic_config__ = _DOCUMENTED

    item_id: Id
    score: float | None
    """None: the item is never recommended to this user."""


class Scores(Answer):
    """The scores of the known candidates, in the order of the request."""

    items: list[ScoredItem]
    source: Source
    """See `Recommendations`."""
    skipped: int
    """How many items of the history are not in the catalogue."""
    assumed_gap: int | None
    """See `Recommendations`."""
    unknown: list[Id]
    """The candidates that are not in the catalogue."""


@dataclass(slots=True)
class SimilarItem:
    """An item, and the cosine of its embedding with that of the item asked about."""

    __pydantic_config__ = _DOCUMENTED

    item_id: Id
    similarity: float
    rank: int
    """From 1, the most similar."""


class SimilarItems(Answer):
    """The items with the most similar embeddings, most similar first."""

    items: list[SimilarItem]


@dataclass(slots=True)
class Contribution:
    """What one purchase adds to a score."""

    __pydantic_config__ = _DOCUMENTED

    position: int
    """Its index, from 0, in the history."""
    item_id: Id
    contribution: float
    """Signed."""
    share: float
    """The contribution over the sum of all absolute ones."""


class Explanation(Answer):
    """The parts of a score, the largest contribution first."""

    item_id: Id
    score: float
    """The sum of all contributions and the rest."""
    rest: float
    """The part of the score that belongs to no single purchase, such as the dot product."""
    purchases: list[Contribution]
    skipped: int
    """How many items of the history are not in the catalogue."""
    assumed_gap: int | None
    """See `Recommendations`."""


class Problem(Answer):
    """Why there is no answer, in one line."""

    error: str


class Health(Answer):
    """Whether the server is up."""

    status: Literal["ok"]
