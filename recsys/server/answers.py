"""The bodies of answers."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from recsys.server.requests import Id

Source = Literal["model", "popularity"]


class Answer(BaseModel):
    """A body that is sent; its fields are documented by their docstrings."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class RecommendedItem(Answer):
    """One of the best items."""

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


class ScoredItem(Answer):
    """A candidate and its score."""

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
    unknown: list[Id]
    """The candidates that are not in the catalogue."""


class SimilarItem(Answer):
    """An item, and the cosine of its embedding with that of the item asked about."""

    item_id: Id
    similarity: float
    rank: int
    """From 1, the most similar."""


class SimilarItems(Answer):
    """The items with the most similar embeddings, most similar first."""

    items: list[SimilarItem]


class Contribution(Answer):
    """What one purchase adds to a score."""

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


class Problem(Answer):
    """Why there is no answer, in one line."""

    error: str


class Health(Answer):
    """Whether the server is up."""

    status: Literal["ok"]
