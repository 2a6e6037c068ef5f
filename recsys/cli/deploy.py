"""Commands that bring a model into service: serve, index, register, export."""

import os
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from recsys.cli.options import Bundle, BundleData, Data, Index, Retrieve, Uri, command, store_of
from recsys.console import show_rows
from recsys.data.prepared import PreparedDataset
from recsys.errors import InputError
from recsys.loading import open_bundle
from recsys.progress import stage


@command("serve", "Deploy", prints_rows=False)
def serve_bundle(
    bundle: Bundle,
    data: Data = None,
    host: str = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535)] = 8000,
    workers: Annotated[int, Option(min=1)] = 1,
    threads: Annotated[int | None, Option(min=1)] = None,
    gather_ms: Annotated[float, Option(min=0, max=1000)] = 4.0,
    retrieve: Retrieve = None,
    index: Index = None,
    gpu: bool = False,
    cache: Annotated[int, Option(min=0)] = 256 << 20,
) -> None:
    """Answer requests over HTTP: recommend, score, similar, explain.

    Ask it from another terminal:

        curl localhost:8000/v1/recommend --json '{"history": ["P0007", "P0012"], "k": 5}'

    http://localhost:8000/docs lists all paths, with examples. With --data, a request may name a
    user_id of the dataset, and give only what is new as history.

    The server loads what replaces the folder of the bundle within seconds, or at once on SIGHUP,
    and what models:/NAME@ALIAS names when the alias moves; no request is lost. SIGTERM ends it
    after the requests that it has. Requests must bring the key that the environment variable
    RECSYS_API_KEY sets, as Authorization: Bearer KEY or X-API-Key. Logs are lines of JSON.

    Options:
        host: Address to listen on; 0.0.0.0 for every network.
        port: Port to listen on; 0 for any free one.
        workers: Processes that answer at the port, each with a model of its own.
        threads: Threads of the model of each worker. Default: all cores but one, or all divided by
            the workers.
        gather_ms: Milliseconds that requests wait at most to share a pass of the model; a request
            that comes alone never waits.
        gpu: Answer on the GPU, which holds a model for each worker.
        cache: Bytes of encoded histories that each worker keeps; 0 keeps none.
    """
    import torch

    from recsys.server.app import serve
    from recsys.server.service import ServerSettings

    if gpu and not torch.cuda.is_available():
        raise InputError("--gpu: torch finds no GPU here that it can use")
    settings = ServerSettings(
        bundle,
        data,
        gather_ms=gather_ms,
        retrieve=retrieve,
        index=index,
        gpu=gpu,
        cache_bytes=cache,
        api_key=os.environ.get("RECSYS_API_KEY") or None,
    )
    serve(settings, host, port, threads, workers)


@command("index", "Deploy")
def make_index(
    bundle: Bundle,
    data: BundleData,
    out: Path,
    recall: Annotated[float, Option(min=0.0, max=1.0)] = 0.98,
    k: Annotated[int | None, Option("-k", min=1)] = None,
) -> None:
    """Make an approximate index of a model's items, for recommend --index and serve --index.

    It finds the items with the largest dot products without scoring all, and misses some. It is
    searched on the CPU. Needs the extra ann.

    Options:
        out: Folder to write; an earlier index is replaced.
        recall: Share of the k best items to find, after histories of the dataset: as few items are
            searched as reach it.
        k: Items per user to find; for target attention and counts as many as --retrieve will find.
            Default: 10, for those 200.
    """
    from recsys.serving.index import make_index as make

    opened = open_bundle(bundle)
    with stage("indexing"):
        facts = make(opened, PreparedDataset.open(data), out, recall=recall, k=k)
    show_rows([facts])


@command("register", "Deploy")
def register_model(
    model: Annotated[str, Argument(help="A run: its id or name; or a folder: runs/NAME.")],
    name: Annotated[str, Argument(help="The name of the model, such as shop.")],
    alias: Annotated[str | None, Option(help="An alias of this version, such as champion.")] = None,
    uri: Uri = None,
) -> None:
    """Register a trained model in the MLflow store, as the next version of its name.

    Commands that take a bundle then take models:/NAME@ALIAS and models:/NAME/VERSION.
    """
    from recsys.experiments.results import register

    registered = register(model, name, alias=alias, tracking=store_of(uri))
    show_rows([{"model": registered.uri, "version": registered.version}])


@command("export", "Deploy")
def export_bundle(
    bundle: Bundle, out: Path, int8: bool = False, model_alone: bool = False, data: Data = None
) -> None:
    """Export a model to ONNX, for programs without torch: encoder and head, and the items' ids.

    The graphs are checked against torch; with --data, NDCG@10 on its test targets is measured.

    Options:
        out: Folder to write; an earlier export is replaced.
        int8: Round the weights to 8 bits; with --data, see the loss.
        model_alone: Leave out the counts of a model that has some: they have no graph.
    """
    from recsys.export.onnx import export_onnx

    opened = open_bundle(bundle)
    dataset = None if data is None else PreparedDataset.open(data)
    with stage("exporting"):
        made = export_onnx(opened, out, int8=int8, model_alone=model_alone, dataset=dataset)
    measured = {f"ndcg_at_10 {name}": value for name, value in made.ndcg_at_10.items()}
    show_rows([{"folder": str(out), "difference": made.largest_difference} | measured])
