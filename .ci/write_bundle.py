"""Write a small untrained bundle, a log and pairs to score, and a log to train on, to a folder."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import polars as pl
import torch

from recsys.config.experiment import Experiment
from recsys.config.model import NextItemConfig
from recsys.data.prepared import prepare
from recsys.inference.catalogue import Catalogue
from recsys.serving.bundle import ModelBundle

folder = Path(sys.argv[1])
items = ["boots", "gloves", "hat", "jacket", "socks"]
log = pl.DataFrame(
    {
        "user_id": [f"u{user}" for user in range(20) for _ in range(5)],
        "item_id": [items[(user + step) % 5] for user in range(20) for step in range(5)],
        "timestamp": [step for _ in range(20) for step in range(5)],
    }
)
dataset = prepare(log, out=folder / "data")
experiment = Experiment(model=NextItemConfig(embedding_dim=8, max_sequence_length=5))
torch.manual_seed(0)
interactions = np.bincount(dataset.histories("valid").items, minlength=dataset.num_items + 1)
model = Catalogue.of(experiment.model, dataset).new_model(experiment.model, interactions)
ModelBundle.write(folder / "bundle", model, experiment, dataset, ("train",))
log.head(10).filter(pl.col("timestamp") < 3).write_csv(folder / "log.csv")
pl.DataFrame({"user_id": ["u0", "u1"], "item_id": ["hat", "socks"]}).write_csv(folder / "pairs.csv")

rng = np.random.default_rng(0)
places = (rng.integers(50, size=300)[:, None] + np.arange(8)) % 50
seconds = pl.Series(np.sort(rng.integers(1_600_000_000, 1_700_000_000, size=places.size)))
pl.DataFrame(
    {
        "customer_id": [f"C{number}" for number in np.repeat(np.arange(300), 8)],
        "sku": [f"P{place:02}" for place in places.ravel()],
        "bought_at": pl.from_epoch(seconds).dt.to_string("%Y-%m-%dT%H:%M:%S"),
    }
).write_csv(folder / "purchases.csv")
