"""The command that serves a model over HTTP."""

from __future__ import annotations

import os
from functools import partial
from typing import Annotated

import typer

from recsys.cli.options import Bundle, Data, Index, app, check_gpu

KEY = "RECSYS_API_KEY"
"""The environment variable with the key that requests must bring."""


@app.command("serve")
def serve_bundle(
    bundle: Bundle,
    data: Data = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 for every network.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for any free one.")
    ] = 8000,
    workers: Annotated[
        int,
        typer.Option(
            help="Processes that answer at the port, each with a model of its own in memory."
        ),
    ] = 1,
    threads: Annotated[
        int | None,
        typer.Option(
            help="Threads of the model, of each worker. Default: the cores, divided by the workers."
        ),
    ] = None,
    gather_ms: Annotated[
        float,
        typer.Option(
            min=0,
            max=1000,
            help="Milliseconds that requests wait at most to share a pass of the model. A "
            "request that comes alone never waits.",
        ),
    ] = 4.0,
    batch: Annotated[
        int, typer.Option(min=1, max=4096, help="Requests that share a pass at most.")
    ] = 64,
    retrieve: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Rank only so many items by target attention, the best by the dot product: for "
            "large catalogues. Default: all.",
        ),
    ] = None,
    index: Index = None,
    gpu: Annotated[
        bool,
        typer.Option(
            "--gpu", help="Answer on the GPU. Each worker has a model in its memory. Default: CPU."
        ),
    ] = False,
    cache: Annotated[
        int,
        typer.Option(
            min=0,
            help="Bytes of encoded histories that are kept, of each worker: a request with a known "
            "history skips the encoder. 0 keeps none.",
        ),
    ] = 256 << 20,
    alias_seconds: Annotated[
        float,
        typer.Option(
            min=0.1,
            help="For models:/NAME@ALIAS: seconds after which the registry is asked again whether "
            "the alias names another model.",
        ),
    ] = 30.0,
    max_history: Annotated[
        int, typer.Option(min=1, help="Items of a history that one request may give (422).")
    ] = 10_000,
    max_candidates: Annotated[
        int, typer.Option(min=1, help="Candidates, or k, of one request (422).")
    ] = 10_000,
    max_body: Annotated[int, typer.Option(min=1, help="Bytes of the body of a request (413).")] = 1
    << 20,
    max_queue: Annotated[
        int, typer.Option(min=1, help="Requests that may wait for the model (429).")
    ] = 1024,
) -> None:
    """Answer requests over HTTP: recommend, score, similar, explain.

    Ask it from another terminal:

        curl localhost:8000/v1/recommend --json '{"history": ["P0007", "P0012"], "k": 5}'

    http://localhost:8000/docs lists all paths, with examples. With --data, a request may name a
    user_id of the dataset, and give only what is new as history.

    Replace the folder of the bundle (train again, or copy a new one into its place) and the server
    loads it within seconds, or at once on SIGHUP; no request is lost. A model named by
    models:/NAME@ALIAS is replaced when the alias moves. SIGTERM ends it after the
    requests that it has. The environment variable RECSYS_API_KEY sets a key that requests must
    bring, as Authorization: Bearer KEY or X-API-Key. Logs are lines of JSON, without histories.
    """
    from recsys.loading import bundle_folder, is_model_name, model_place
    from recsys.processors import usable_processors
    from recsys.server.settings import Limits, NamedModel, ServerSettings, threads_of

    if gpu:
        check_gpu()
    named = None
    if is_model_name(bundle):
        find, folder = partial(model_place, bundle), partial(bundle_folder, bundle)
        named = NamedModel(find(), find, folder, alias_seconds)
    settings = ServerSettings(
        bundle_folder(bundle),
        data,
        cache_bytes=cache,
        named=named,
        gather_ms=gather_ms,
        batch=batch,
        retrieve=retrieve,
        index=index,
        gpu=gpu,
        api_key=os.environ.get(KEY) or None,
        limits=Limits(max_history, max_candidates, max_body, queue=max_queue),
    )
    from recsys.server.process import serve

    serve(settings, host, port, threads_of(threads, usable_processors(), workers), workers)
