"""One step from a log to a trained model: seconds, and the peak of memory.

    python our_preparation.py sort|prepare|audit|train LOG.parquet OUT

prints one line of JSON. ``sort`` is what any preparation does at least: DuckDB reads the file once
and writes it in the order of users and times. MEMORY (4GiB) is the limit of the first two.
``train`` is an epoch of SASRec with sampled softmax, from opening the dataset on.
"""

from __future__ import annotations

import json
import os
import sys

import duckdb
from measured import measured

from recsys.config.experiment import Experiment, SampledSoftmax, TrainingConfig
from recsys.config.model import DotProduct, NextItemConfig
from recsys.data.audit import audit
from recsys.data.prepared import PreparedDataset, prepare
from recsys.inference.catalogue import Catalogue
from recsys.training import loop

MEMORY = os.environ.get("MEMORY", "4GiB")


def step(name: str, log: str, out: str) -> dict[str, float]:
    """Do one step in this process."""
    if name == "sort":
        connection = duckdb.connect()
        connection.execute(f"set memory_limit = '{MEMORY}'; set temp_directory = '{out}.duckdb'")
        rows = connection.read_parquet(log, file_row_number=True)
        ordered = rows.order("user_id, timestamp, file_row_number")
        return measured(lambda: ordered.write_parquet(f"{out}.parquet"))
    if name == "prepare":
        return measured(lambda: prepare(log, out=out, memory=MEMORY))
    if name == "train":
        return measured(lambda: train(PreparedDataset.open(out)))
    dataset = PreparedDataset.open(out)
    return measured(lambda: audit(dataset))


def train(dataset: PreparedDataset) -> None:
    """Train for an epoch, without validation."""
    experiment = Experiment(
        model=NextItemConfig(embedding_dim=64, max_sequence_length=50, head=DotProduct()),
        training=TrainingConfig(loss=SampledSoftmax(kind="sampled_softmax", num_negatives=1024)),
    )
    catalogue = Catalogue.of(experiment.model, dataset)
    loop.train(experiment, catalogue, dataset.histories("valid"), None, 1, lambda *_: None)


if __name__ == "__main__":
    print(json.dumps(step(*sys.argv[1:])))
