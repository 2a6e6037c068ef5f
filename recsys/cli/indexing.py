"""The command that makes an index of a model's items, and measures whether it helps."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from recsys.cli.options import Bundle, BundleData, HeldOutPart, Json, app, check_gpu
from recsys.console import show_rows
from recsys.data.prepared import PreparedDataset
from recsys.progress import stage


@app.command("index")
def make_index(
    bundle: Bundle,
    data: BundleData,
    out: Annotated[Path, typer.Option(help="Folder to write; an earlier index is replaced.")],
    recall: Annotated[
        float,
        typer.Option(
            min=0.0,
            max=1.0,
            help="Share of the k best items to find: as few items are searched as reach it.",
        ),
    ] = 0.98,
    k: Annotated[
        int | None,
        typer.Option(
            "-k",
            min=1,
            help="Items per user that the measurement finds; for target attention those that "
            "--retrieve will find. Default: 10, for target attention 200.",
        ),
    ] = None,
    part: HeldOutPart = "test",
    gpu: Annotated[
        bool,
        typer.Option(
            "--gpu",
            help="Time the model on the GPU, as serve --gpu uses it, and recommend where there is "
            "one. Default: CPU.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Make an approximate index of a model's items, and measure whether it is worth using.

    For recommend --index and serve --index. It finds the items with the largest dot products
    without scoring all, and misses some. Both searches are timed on this machine after histories
    of the dataset, and the last line says which one to use. The index itself is always searched on
    the CPU. Needs the extra ann.
    """
    from recsys.loading import bundle_folder
    from recsys.serving.bundle import ModelBundle
    from recsys.serving.make_index import make_index as make

    if gpu:
        check_gpu()
    opened = ModelBundle.open(bundle_folder(bundle))
    if gpu:
        opened.move_to_gpu()
    with stage("indexing"):
        made = make(opened, PreparedDataset.open(data), out, wanted=recall, k=k, part=part)
    show_rows([asdict(row) | made.facts for row in made.times], as_json, hidden=[*made.facts])
    if not as_json:
        print(made.advice)
