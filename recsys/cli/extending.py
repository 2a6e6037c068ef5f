"""The command that adds new items to a trained bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from recsys.cli.options import Bundle, BundleData, Json, app
from recsys.console import show_rows


@app.command("extend")
def extend_bundle(
    bundle: Bundle,
    data: BundleData,
    out: Annotated[Path, typer.Option(help="Folder of the new bundle to write.")],
    as_json: Json = False,
) -> None:
    """Add the items of a dataset that a trained model lacks, without training.

    A new item is known by its features if the model reads item features, else by the items that
    occur next to it in the histories of the dataset. The other items keep their scores. To learn
    from the new interactions too: recsys train --from BUNDLE --data DATA.
    """
    from recsys.data.prepared import PreparedDataset
    from recsys.loading import bundle_folder
    from recsys.serving.bundle import ModelBundle
    from recsys.serving.extend import extend

    known = ModelBundle.open(bundle_folder(bundle))
    extended = extend(known, PreparedDataset.open(data), out)
    new = extended.num_items - known.num_items
    row = {"bundle": str(out), "items": extended.num_items, "new_items": new}
    show_rows([row], as_json)
