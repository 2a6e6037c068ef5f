"""The bodies of requests, with their rules and examples, and what answers hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
)

_INTEGER = Annotated[StrictInt, Field(ge=-(1 << 63), lt=1 << 63)]
_NUMBER = Annotated[StrictFloat, Field(allow_inf_nan=False)]
_TEXT = Annotated[StrictStr, Field(max_length=1_000)]
_MOST = 10_000
"""Items of a history, rows of a log, candidates, or items to return, of one request."""

Id = _INTEGER | _TEXT
"""The id of an item or a user, as in the training log."""
Time = _INTEGER | _NUMBER | _TEXT
"""A number on the scale of the training log, or a date in ISO 8601."""


def _check_columns(row: Any) -> Any:
    if isinstance(row, dict) and len(row) > 1_000:
        raise ValueError("a row has at most 1000 columns")
    return row


_CELL = _INTEGER | _NUMBER | StrictBool | _TEXT | None
Row = Annotated[dict[str, _CELL], BeforeValidator(_check_columns)]
"""A row of a log."""
Count = Annotated[StrictInt, Field(ge=1, le=_MOST)]

T = TypeVar("T")
Several = Annotated[list[T], Field(fail_fast=True, max_length=_MOST)]
"""A list of which the first wrong value is named: errors of 10,000 cost more than an answer."""

_BY_HISTORY: dict[str, Any] = {"history": ["P0007", "P0012"]}
_BY_ID: dict[str, Any] = {"user_id": "C00042", "history": ["P0007"], "times": ["2024-05-01"]}


def _with_examples(*examples: dict[str, Any]) -> ConfigDict:
    return ConfigDict(
        extra="forbid",
        use_attribute_docstrings=True,
        json_schema_extra={"examples": [*examples]},
    )


class User(BaseModel):
    """A user: by history, by rows of a log, or by id; with an id, the history is what is new."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    history: Several[Id] | None = None
    """Ids of items, oldest first; no rule of the dataset is applied to them. With a user's id: the
    interactions that came after those of the dataset."""
    times: Several[Time] | None = None
    """The time of each item of the history, which is sorted by it; for models that read times."""
    log: Several[Row] | None = None
    """Rows of the raw log of one user, with its columns but that of users: the rules of the
    training data apply. For models that read features of interactions or users."""
    user_id: Id | None = None
    """The id of a user of the dataset that the server was given."""
    at: Time | None = None
    """The time of the request; only models with `times: request` read it."""


class RecommendRequest(User):
    """Which items are best for a user?"""

    model_config = _with_examples(_BY_HISTORY | {"k": 5}, _BY_ID)

    k: Count | None = None
    """The number of items; fewer if filtering leaves fewer. By default 10, or all of a smaller
    catalogue."""
    seen: Literal["filter", "allow"] | None = None
    """Whether items of the history are left out; by default as in training."""
    allow: Annotated[Several[Id], Field(min_length=1)] | None = None
    """The only items to recommend."""
    deny: Several[Id] | None = None
    """Items that are not recommended."""
    where: _TEXT | None = None
    """A condition in SQL over the columns of the item table that recommended items meet."""
    diversity: Annotated[float, Field(ge=0, le=1)] | None = None
    """The weight of dissimilarity."""
    at_most: dict[_TEXT, StrictInt] | None = None
    """How many items may have the same value in a column of the item table."""
    probabilities: StrictBool = False
    """Add the probability of each item, by the calibration of the bundle."""


class ScoreRequest(User):
    """How good are these items for a user?"""

    model_config = _with_examples(_BY_HISTORY | {"candidates": ["P0003", "P0005"]})

    candidates: Annotated[Several[Id], Field(min_length=1)]
    """The items to score, and no others."""
    strict: StrictBool = False
    """Refuse an unknown candidate; else it is left out and named in the answer."""
    probabilities: StrictBool = False
    """See `RecommendRequest`."""


class ExplainRequest(User):
    """What did each purchase of a user add to the score of an item?"""

    model_config = _with_examples(_BY_HISTORY | {"item_id": "P0003"})

    item_id: Id
    """An item of the catalogue."""


class SimilarRequest(BaseModel):
    """Which items are most similar to this one?"""

    model_config = _with_examples({"item_id": "P0007", "k": 5})

    item_id: Id
    """An item of the catalogue."""
    k: Count = 10
    """The number of items."""


def rule_broken(errors: Sequence[Mapping[str, Any]]) -> str:
    """Return the field of the first error of pydantic, and its rule; its value may be private.

    A value of several types has an error for each of them, which become one.

    >>> type_error = {"loc": ("body", "k", "int"), "msg": "Input should be a valid integer"}
    >>> rule_broken([type_error, type_error | {"msg": "Input should be a valid string"}])
    'k: input should be a valid integer or a valid string'
    """
    path = _field_path(errors[0]["loc"])
    rules = [
        str(error["msg"]).removeprefix("Input should be ").removeprefix("Value error, ")
        for error in takewhile(lambda error: _field_path(error["loc"]) == path, errors)
    ]
    should = "input should be " if str(errors[0]["msg"]).startswith("Input should be ") else ""
    return f"{path}: {should}{' or '.join(dict.fromkeys(rules))}".lower()


def _field_path(path: Sequence[str | int]) -> str:
    """Return the path of a field, without the types that pydantic adds to it."""
    kinds = (RecommendRequest, ScoreRequest, ExplainRequest, SimilarRequest)
    fields = {name for kind in kinds for name in kind.model_fields}
    names = [str(name) for name in path if isinstance(name, int) or name in fields]
    return ".".join(names) or ".".join(str(name) for name in path[-1:])


# --- Answers: these classes describe them; they are made as dicts, which is quicker --------------


class Answer(BaseModel):
    """What is sent."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class OfHistory(Answer):
    """What every answer says of the history that it was made of."""

    skipped: int
    """How many items of the history are not in the catalogue."""
    assumed_gap: int | None
    """The time between two interactions, on the scale of the training log, that was assumed because
    the history has no times and the model reads them; null if none was. An answer to given times is
    better."""


class Item(Answer):
    """A recommended or scored item."""

    item_id: Id
    score: float | None
    """Null: the item is never recommended to this user."""
    rank: int | None = None
    """Of recommended items: from 1, the best."""
    probability: float | None = None
    """Only if it was asked for; null where the source is popularity."""


class Items(OfHistory):
    """The best items of a user, best first; or known candidates, in the order of the request."""

    items: list[Item]
    source: Literal["model", "popularity"]
    """popularity: no item of the history is known, so the most popular items are the answer, and
    scores are counts of interactions."""
    unknown: list[Id] = []
    """Of scored items: the candidates that are not in the catalogue."""


class Contribution(Answer):
    """What the purchase at a position of the history, from 0, adds to a score."""

    position: int
    item_id: Id
    contribution: float
    share: float
    """The contribution over the sum of all absolute ones."""


class Explanation(OfHistory):
    """The parts of a score, the largest contribution first; their sum and the rest is the score."""

    item_id: Id
    score: float
    rest: float
    """The part of the score that belongs to no single purchase, such as the dot product."""
    purchases: list[Contribution]


class SimilarItem(Answer):
    """An item, and the cosine of its embedding with that of the item asked about."""

    item_id: Id
    similarity: float
    rank: int


class SimilarItems(Answer):
    """The items with the most similar embeddings, most similar first."""

    items: list[SimilarItem]


class Problem(Answer):
    """Why there is no answer, in one line."""

    error: str
