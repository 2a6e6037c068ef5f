"""The command that exports a bundle to ONNX."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from recsys.cli.options import Bundle, Data, Json, app
from recsys.console import show_rows
from recsys.data.prepared import PreparedDataset
from recsys.progress import stage


@app.command("export")
def export_bundle(
    bundle: Bundle,
    out: Annotated[Path, typer.Option(help="Folder to write; an earlier export is replaced.")],
    int8: Annotated[
        bool, typer.Option("--int8", help="Round the weights to 8 bits; with --data, see the loss.")
    ] = False,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Export a model to ONNX, for programs without torch: encoder and head, and the items' ids.

    The graphs are checked against torch; with --data, NDCG@10 on its test targets is measured.
    """
    from recsys.export.onnx import export_onnx
    from recsys.loading import bundle_folder
    from recsys.serving.bundle import ModelBundle

    opened = ModelBundle.open(bundle_folder(bundle))
    dataset = None if data is None else PreparedDataset.open(data)
    with stage("exporting"):
        made = export_onnx(opened, out, int8=int8, dataset=dataset)
    measured = {f"ndcg_at_10 {name}": value for name, value in made.ndcg_at_10.items()}
    show_rows([{"folder": str(out), "difference": made.largest_difference} | measured], as_json)
