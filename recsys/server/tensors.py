"""The bodies of the open inference protocol: named tensors in and out."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictInt

from recsys.errors import InputError
from recsys.server.requests import HISTORY, Id, Several, Time

INPUTS = ("history", "lengths", "times", "user_id", "candidates")
_EXAMPLE: dict[str, Any] = {
    "inputs": [{"name": "history", "shape": [1, 2], "datatype": "BYTES", "data": HISTORY}],
    "parameters": {"k": 5},
}


class Tensor(BaseModel):
    """A named array; its data is one list, or nested as its shape says."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    name: Annotated[str, Field(max_length=100)]
    shape: Annotated[Several[Annotated[StrictInt, Field(ge=0, le=1 << 31)]], Field(max_length=2)]
    """[B], or [B, L]."""
    datatype: Literal["BYTES", "INT64", "FP64", "FP32"]
    parameters: dict[str, Any] | None = None
    data: Several[Id | Time | Several[Id | Time]]

    def rows(self, count: int) -> list[list[Id | Time]]:
        """Return the data row by row [B, L].

        Raises:
            InputError: it has not the shape that it says, or not the expected number of rows.
        """
        flat = [
            value
            for part in self.data
            for value in (part if isinstance(part, list) else [part])  # of rows, or of values
        ]
        width = self.shape[1] if len(self.shape) == 2 else 1
        if not self.shape or self.shape[0] != count or len(flat) != count * width:
            raise InputError(
                f"inputs: {self.name!r} has shape {self.shape} and {len(flat)} values: the first "
                f"dimension is {count}, the users, and there are as many values as it says"
            )
        return [flat[row * width : (row + 1) * width] for row in range(count)]


class OutputWish(BaseModel):
    """The name of a wanted output; all are sent anyway."""

    name: str
    parameters: dict[str, Any] | None = None


class InferRequest(BaseModel):
    """Histories [B, L] of B users; with candidates [B, C], these are scored.

    Parameters: `k`, `seen` and `at`, as in `/v1/recommend`.
    """

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [_EXAMPLE]})

    id: Annotated[str, Field(max_length=1_000)] | None = None
    parameters: dict[str, Any] | None = None
    inputs: Annotated[Several[Tensor], Field(min_length=1, max_length=len(INPUTS))]
    outputs: Several[OutputWish] | None = None


class OutputTensor(BaseModel):
    """A named array, as one list."""

    name: str
    shape: list[int]
    datatype: str
    data: list[Id | float]


class InferAnswer(BaseModel):
    """With candidates: `score` [B, C]; else `item_id`, `score` [B, k] and `count` [B].

    Where a user has fewer than k items, `count`, the rest of the row is padding: 0, or empty text.
    """

    model_name: str
    model_version: str
    id: str | None = None
    outputs: list[OutputTensor]


class TensorMetadata(BaseModel):
    """The name and type of an input or output; -1 is a dimension of any size."""

    name: str
    datatype: str
    shape: list[int]


class ModelMetadata(BaseModel):
    """What the model takes and gives."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class ServerMetadata(BaseModel):
    """What the server is."""

    name: str
    version: str
    extensions: list[str]


class Live(BaseModel):
    """Whether the server is alive."""

    live: bool


class Ready(BaseModel):
    """Whether the server, or the model, answers requests."""

    ready: bool
