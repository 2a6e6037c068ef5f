"""One step of our preparation: seconds, and the peak of memory.

    python our_preparation.py sort|prepare|audit LOG.parquet OUT

prints one line of JSON. ``sort`` is what any preparation does at least: DuckDB reads the file once
and writes it in the order of users and times. MEMORY (4GiB) is the limit of the first two.
"""

from __future__ import annotations

import json
import os
import sys

import duckdb
from measured import measured

from recsys.data.audit import audit
from recsys.data.prepared import PreparedDataset, prepare

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
    dataset = PreparedDataset.open(out)
    return measured(lambda: audit(dataset))


if __name__ == "__main__":
    print(json.dumps(step(*sys.argv[1:])))
