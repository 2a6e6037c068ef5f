"""The bodies of requests, with their rules and examples, and what answers hold."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    model_validator,
)

from recsys.inference.scorer import Seen

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


_COLUMN = Annotated[_TEXT, Field(pattern=r"^[^\x00]*$")]  # Arrow panics at 0
_CELL = _INTEGER | _NUMBER | StrictBool | _TEXT | None
Row = Annotated[dict[_COLUMN, _CELL], BeforeValidator(_check_columns)]
"""A row of a log."""
Count = Annotated[StrictInt, Field(ge=1, le=_MOST)]

T = TypeVar("T")
Several = Annotated[list[T], Field(fail_fast=True, max_length=_MOST)]
"""A list of which the first wrong value is named: errors of 10,000 cost more than an answer."""


class Request(BaseModel, extra="forbid", use_attribute_docstrings=True):
    """The body of a request."""


class User(Request):
    """A user: by history, by rows of a log, or by id; with an id, the history is what is new."""

    history: Several[Id] | None = None
    """Ids of items, oldest first; no rule of the dataset is applied to them."""
    times: Several[Time] | None = None
    """The time of each item of the history, which is sorted by it; for models that read times."""
    log: Several[Row] | None = None
    """Rows of the raw log of one user, with its columns but that of users: the rules of the
    training data apply. For models that read features of interactions or users."""
    user_id: Id | None = None
    """The id of a user of the dataset that the server was given."""
    at: Time | None = None
    """The time of the request; only models with `times: request` read it."""

    @model_validator(mode="after")
    def _is_given_once(self) -> Self:
        is_named = self.history is not None or self.user_id is not None
        if self.log is not None and is_named:
            raise ValueError("log: give no history and no user_id with it")
        if self.log is None and not is_named:
            raise ValueError("give the history, the log or the user_id of a user")
        return self


_HISTORY = {"history": ["P0007", "P0012"]}


class RecommendRequest(User, json_schema_extra={"examples": [_HISTORY | {"k": 5}]}):
    """Which items are best for a user?"""

    k: Count | None = None
    """The number of items; fewer if filtering leaves fewer. By default 10, or all if fewer."""
    seen: Seen | None = None
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


class ScoreRequest(
    User, json_schema_extra={"examples": [_HISTORY | {"candidates": ["P0003", "P0005"]}]}
):
    """How good are these items for a user?"""

    candidates: Annotated[Several[Id], Field(min_length=1)]
    """The items to score, and no others."""
    strict: StrictBool = False
    """Refuse an unknown candidate; else it is left out and named in the answer."""
    probabilities: StrictBool = False
    """See `RecommendRequest`."""


OPTIONS = [name for name in RecommendRequest.model_fields if name not in User.model_fields]
"""The options of `Recommender.recommend` that a request has; the last is also one of `score`."""


class ExplainRequest(User, json_schema_extra={"examples": [_HISTORY | {"item_id": "P0003"}]}):
    """What did each purchase of a user add to the score of an item?"""

    item_id: Id
    """An item of the catalogue."""


class SimilarRequest(Request, json_schema_extra={"examples": [{"item_id": "P0007", "k": 5}]}):
    """Which items are most similar to this one?"""

    item_id: Id
    """An item of the catalogue."""
    k: Count = 10
    """The number of items."""


def rule_broken(errors: Sequence[Mapping[str, Any]]) -> str:
    """Return the field of pydantic's first error, and its rule; its value may be private.

    >>> rule_broken([{"loc": ("body", "history", 3, "int"), "msg": "Input should be an integer"}])
    'history.3: input should be an integer'
    """
    _, *path = errors[0]["loc"]
    inner = [name for name in path[1:2] if isinstance(name, int)]  # others are names of types
    field = ".".join(map(str, [*path[:1], *inner]))
    rule = str(errors[0]["msg"]).removeprefix("Value error, ")
    return f"{field}: {rule.lower()}" if field else rule


# --- Answers: these classes describe them; they are made as dicts, which is quicker --------------


class _OfHistory(BaseModel, use_attribute_docstrings=True):
    skipped: int
    """How many items of the history are not in the catalogue."""
    assumed_gap: int | None
    """The time that was assumed between two interactions without times; null if none was."""


class Item(BaseModel, use_attribute_docstrings=True):
    """A recommended item, with its rank from 1, or a scored one."""

    item_id: Id
    score: float | None
    """Null: the item is never recommended to this user."""
    rank: int | None = None
    probability: float | None = None
    """Only if it was asked for; null where the source is popularity."""


class Items(_OfHistory):
    """The best items of a user, best first; or known candidates, in the order of the request."""

    items: list[Item]
    source: Literal["model", "popularity"]
    """popularity: no item of the history is known, and scores are counts of interactions."""
    unknown: list[Id] = []
    """The candidates that are not in the catalogue."""


class Contribution(BaseModel):
    """What the purchase at a position of the history, from 0, adds to a score."""

    position: int
    item_id: Id
    contribution: float
    share: float


class Explanation(_OfHistory):
    """The parts of a score, the largest contribution first; their sum and the rest is the score."""

    item_id: Id
    score: float
    rest: float
    """The part of the score that belongs to no single purchase, such as the dot product."""
    purchases: list[Contribution]


class SimilarItem(BaseModel):
    """An item, and the cosine of its embedding with that of the item asked about."""

    item_id: Id
    similarity: float
    rank: int


class SimilarItems(BaseModel):
    """The items with the most similar embeddings, most similar first."""

    items: list[SimilarItem]


class Problem(BaseModel):
    """Why there is no answer, in one line."""

    error: str
