"""The files of a model bundle."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from recsys.baselines.count_ensemble import CountEnsemble
from recsys.baselines.saved import FittedBaseline, save_baseline
from recsys.config import Experiment, dump_experiment
from recsys.data.features.encoders import Encoders
from recsys.data.manifest import read_own_table
from recsys.errors import InputError
from recsys.folders.digests import folder_sha256
from recsys.model.models import Model
from recsys.serving.weights import save_weights

WEIGHTS, CONFIG, ITEMS = "weights.safetensors", "config.yaml", "items.parquet"
COUNT_ENSEMBLE, BASELINE = "count_ensemble.safetensors", "baseline.safetensors"


def write_files(
    folder: Path,
    answer: Model | FittedBaseline,
    experiment: Experiment,
    item_table: pl.DataFrame,
    count_ensemble: CountEnsemble | None,
    encoders: Encoders,
) -> dict[str, str]:
    """Write all files of a bundle but its manifest; the same arguments give the same bytes.

    Args:
        folder: a new folder.
        answer: the trained model, or the baseline.
        experiment: all settings.
        item_table: item_id, the features of the items, and count.
        count_ensemble: the counts whose scores are added, if any.
        encoders: the encoders of the features that the model reads.

    Returns:
        The SHA-256 of each file, by name.
    """
    if isinstance(answer, FittedBaseline):
        save_baseline(answer, folder / BASELINE)
    else:
        save_weights(answer, folder / WEIGHTS)
    if count_ensemble is not None:
        count_ensemble.save(folder / COUNT_ENSEMBLE)
    encoders.save(folder)
    (folder / CONFIG).write_text(dump_experiment(experiment), encoding="utf-8")
    item_table.write_parquet(folder / ITEMS)
    return folder_sha256(folder)


def read_items(path: Path, num_items: int) -> pl.DataFrame:
    """Read the item table of a bundle.

    Raises:
        InputError: it cannot be read, or has not so many items with an id of their own and a count.
    """
    table = read_own_table(path, ("item_id", "count"))
    ids, counts = table["item_id"], table["count"]
    if not len(table) == num_items > 0:
        raise InputError(f"{path}: {len(table)} items, not the {num_items} of the manifest")
    if ids.dtype not in (pl.Int64, pl.String) or ids.null_count() or not ids.is_unique().all():
        raise InputError(f"{path}: item_id must be unique integers or text, and none missing")
    if not counts.dtype.is_integer() or counts.null_count() or counts.min() < 0:  # type: ignore[operator]
        raise InputError(f"{path}: count must be whole numbers from 0, and none missing")
    return table
