"""The open inference protocol (version 2 of KServe), which other servers and clients speak.

Tensors are rectangular: histories of different lengths are padded at the end with anything, and
``lengths`` says how many items of each row count.
https://kserve.github.io/website/docs/concepts/architecture/data-plane/v2-protocol
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
from fastapi import APIRouter, HTTPException, Response
from pydantic import ValidationError

from recsys.errors import InputError
from recsys.folders.manifest import library_version
from recsys.server.answers import Recommendations, Scores
from recsys.server.requests import Id, RecommendRequest, ScoreRequest, Time, rule_broken
from recsys.server.service import Service
from recsys.server.tensors import (
    INPUTS,
    InferAnswer,
    InferRequest,
    Live,
    ModelMetadata,
    OutputTensor,
    Ready,
    ServerMetadata,
    TensorMetadata,
)

_LOWEST = float(np.finfo(np.float32).min)
"""The score of an item that is never recommended: JSON has no infinity."""


def open_inference(service: Service, problems: dict[int | str, dict[str, Any]]) -> APIRouter:
    """Return the paths of the protocol; ``problems`` documents errors."""
    router = APIRouter(prefix="/v2", tags=["open inference protocol"])
    missing: dict[int | str, dict[str, Any]] = {
        401: problems[401],
        404: problems[422] | {"description": "No such model."},
    }

    def check_name(name: str) -> None:
        if name != (own := model_name(service)):
            raise HTTPException(404, f"no model of this name: the server has {own!r}")

    @router.get("", responses={401: problems[401]}, summary="What the server is")
    async def server() -> ServerMetadata:
        return ServerMetadata(name="recsys", version=library_version(), extensions=[])

    @router.get("/health/live", summary="Whether the process is alive")
    async def live() -> Live:
        return Live(live=True)

    @router.get(
        "/health/ready", responses={503: problems[503]}, summary="Whether requests are answered"
    )
    async def ready() -> Ready:
        service.thread.check_running()
        return Ready(ready=True)

    @router.get("/models/{name}", responses=missing, summary="What the model takes and gives")
    async def metadata(name: str) -> ModelMetadata:
        check_name(name)
        return _metadata(service)

    @router.get("/models/{name}/ready", responses=missing, summary="Whether the model answers")
    async def model_ready(name: str) -> Ready:
        check_name(name)
        return Ready(ready=True)

    @router.post(
        "/models/{name}/infer",
        response_model=InferAnswer,
        responses=problems | missing,
        summary="Best items, or scores, of several users",
    )
    async def infer(name: str, asked: InferRequest) -> Response:
        check_name(name)
        answer = await _infer(service, asked)
        return Response(answer.model_dump_json(exclude_none=True), media_type="application/json")

    return router


def model_name(service: Service) -> str:
    """Return the name of the model: that of its experiment."""
    return service.model.bundle.experiment.name


def _id_type(service: Service) -> str:
    return "INT64" if service.model.bundle.vocabulary.ids.dtype.is_integer() else "BYTES"


def _metadata(service: Service) -> ModelMetadata:
    ids = _id_type(service)

    def tensors(*named: tuple[str, str, list[int]]) -> list[TensorMetadata]:
        return [TensorMetadata(name=one, datatype=kind, shape=shape) for one, kind, shape in named]

    return ModelMetadata(
        name=model_name(service),
        versions=[_version(service)],
        platform="recsys",
        inputs=tensors(
            ("history", ids, [-1, -1]),
            ("lengths", "INT64", [-1]),
            ("times", "INT64", [-1, -1]),
            ("user_id", "BYTES", [-1]),
            ("candidates", ids, [-1, -1]),
        ),
        outputs=tensors(
            ("item_id", ids, [-1, -1]), ("score", "FP32", [-1, -1]), ("count", "INT64", [-1])
        ),
    )


def _version(service: Service) -> str:
    return service.model.bundle.manifest.digest[:12]


async def _infer(service: Service, asked: InferRequest) -> InferAnswer:
    """Answer each row as a request of its own; the thread of the model joins them again."""
    rows = _rows(asked, service.settings.limits.queue)
    questions = [
        service.score(one) if isinstance(one, ScoreRequest) else service.recommend(one)
        for one in rows
    ]
    found = await asyncio.gather(*questions, return_exceptions=True)
    for answer in found:
        if isinstance(answer, BaseException):
            raise answer
    answers: list[Any] = list(found)
    if isinstance(rows[0], ScoreRequest):
        outputs = [_scores(answers)]
    else:
        outputs = _best(answers, rows[0].k, _id_type(service))
    return InferAnswer(
        model_name=model_name(service),
        model_version=_version(service),
        id=asked.id,
        outputs=outputs,
    )


def _scores(answers: Sequence[Scores]) -> OutputTensor:
    scores: list[Id | float] = [
        _LOWEST if one.score is None else one.score for a in answers for one in a.items
    ]
    width = len(answers[0].items)
    return OutputTensor.model_construct(
        name="score", shape=[len(answers), width], datatype="FP32", data=scores
    )


def _best(answers: Sequence[Recommendations], k: int, id_type: str) -> list[OutputTensor]:
    nothing: Id = 0 if id_type == "INT64" else ""
    ids: list[Id | float] = []
    scores: list[Id | float] = []
    for answer in answers:
        left = k - len(answer.items)
        ids += [*(one.item_id for one in answer.items), *[nothing] * left]
        scores += [*(one.score for one in answer.items), *[0.0] * left]
    shape = [len(answers), k]
    counts: list[Id | float] = [len(answer.items) for answer in answers]
    return [
        OutputTensor.model_construct(name=name, shape=own, datatype=kind, data=data)
        for name, own, kind, data in (
            ("item_id", shape, id_type, ids),
            ("score", shape, "FP32", scores),
            ("count", shape[:1], "INT64", counts),
        )
    ]


def _rows(asked: InferRequest, most: int) -> list[RecommendRequest] | list[ScoreRequest]:
    """Return the request of each row.

    Raises:
        InputError: an input is unknown or occurs twice, its shape is wrong, or a value is.
    """
    given = {tensor.name: tensor for tensor in asked.inputs}
    if unknown := [tensor.name for tensor in asked.inputs if tensor.name not in INPUTS]:
        raise InputError(f"inputs: {unknown[0]!r}: the model takes {', '.join(INPUTS)}")
    if len(given) < len(asked.inputs):
        raise InputError("inputs: a name occurs twice")
    first = given.get("history") or given.get("user_id")
    if first is None or not first.shape or not 1 <= first.shape[0] <= most:
        raise InputError(f"inputs: give the history or the user_id of 1 to {most} users")
    rows = {name: tensor.rows(first.shape[0]) for name, tensor in given.items()}
    scored = "candidates" in rows
    names = ("at",) if scored else ("at", "k", "seen")
    fields = {name: value for name, value in (asked.parameters or {}).items() if name in names}
    if scored:
        fields["strict"] = True  # else scores and candidates would not correspond
    kind = ScoreRequest if scored else RecommendRequest
    try:
        return [  # type: ignore[return-value]
            kind.model_validate(fields | _fields(rows, row)) for row in range(first.shape[0])
        ]
    except ValidationError as error:
        raise InputError(f"inputs: {rule_broken(error.errors())}") from error


def _fields(rows: dict[str, list[list[Id | Time]]], row: int) -> dict[str, Any]:
    """Return the fields of the request of a row.

    Raises:
        InputError: its length is not one of its history.
    """
    fields: dict[str, Any] = {name: found[row] for name, found in rows.items()}
    if "user_id" in fields:
        fields["user_id"] = fields["user_id"][0]
    if "lengths" in fields:
        (length,) = fields.pop("lengths")
        width = len(fields.get("history", ()))
        if not isinstance(length, int) or not 0 <= length <= width:
            raise InputError(f"inputs: lengths: {length!r}: must be from 0 to {width}")
        for name in {"history", "times"} & set(fields):
            fields[name] = fields[name][:length]
    return fields
