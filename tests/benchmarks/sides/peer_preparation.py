"""How a peer makes its data of a log, in the peer's environment: seconds, and the peak of memory.

    python peer_preparation.py LIBRARY LOG.parquet

prints one line of JSON.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module

import pandas as pd
from measured import measured


def rectools(log: str) -> object:
    """The dataset of interactions with inner ids."""
    frame = pd.read_parquet(log).rename(columns={"timestamp": "datetime"})
    frame["datetime"] = pd.to_datetime(frame["datetime"], unit="s")
    return import_module("rectools.dataset").Dataset.construct(frame.assign(weight=1.0))


def replay(log: str) -> object:
    """The sequences of encoded items of all users."""
    data = import_module("replay.data")
    nn = import_module("replay.data.nn")
    kind, hint = data.FeatureType, data.FeatureHint
    features = data.FeatureSchema(
        [
            data.FeatureInfo("user_id", kind.CATEGORICAL, hint.QUERY_ID),
            data.FeatureInfo("item_id", kind.CATEGORICAL, hint.ITEM_ID),
            data.FeatureInfo("timestamp", kind.NUMERICAL, hint.TIMESTAMP),
        ]
    )
    source = nn.TensorFeatureSource(data.FeatureSource.INTERACTIONS, "item_id")
    schema = nn.TensorSchema(
        nn.TensorFeatureInfo(
            "item_id",
            kind.CATEGORICAL,
            is_seq=True,
            feature_sources=[source],
            feature_hint=hint.ITEM_ID,
        )
    )
    dataset = data.Dataset(features, pd.read_parquet(log))
    return nn.SequenceTokenizer(schema).fit_transform(dataset)


if __name__ == "__main__":
    library, path = sys.argv[1:]
    print(json.dumps(measured(lambda: {"rectools": rectools, "replay": replay}[library](path))))
