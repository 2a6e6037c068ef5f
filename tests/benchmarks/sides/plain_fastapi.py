"""What one writes in ten minutes: a FastAPI around a `Recommender`, without batches."""

from __future__ import annotations

import json
import socket
import sys
from typing import Any

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

import recsys

app = FastAPI()
model = recsys.load(sys.argv[1])


class Asked(BaseModel):
    history: list[int | str]
    k: int = 10
    seen: str | None = None
    candidates: list[int | str] = []


@app.post("/v1/recommend")
def recommend(asked: Asked) -> dict[str, Any]:
    best = model.recommend([asked.history], k=asked.k, seen=asked.seen)  # type: ignore[arg-type]
    return {"items": best.select("item_id", "score", "rank").to_dicts()}


@app.post("/v1/score")
def score(asked: Asked) -> dict[str, Any]:
    found = model.score([asked.history], asked.candidates)
    return {"items": found.select("item_id", "score").to_dicts()}


if __name__ == "__main__":
    place = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    place.bind(("127.0.0.1", int(sys.argv[3])))  # plain_fastapi.py BUNDLE --port PORT
    place.listen(2048)
    print(json.dumps({"port": place.getsockname()[1]}), file=sys.stderr, flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[place])
