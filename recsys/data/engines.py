"""What prepares a log: the memory of this process, its disk, or Spark."""

from __future__ import annotations

from typing import Literal

from recsys.config import DataConfig
from recsys.data.log import InteractionLog
from recsys.data.on_disk.preparation import exceeds_memory
from recsys.data.on_spark.session import is_spark_frame
from recsys.data.sources import find_named_dataset
from recsys.data.tables import TableSource
from recsys.errors import InputError

Engine = Literal["memory", "disk", "spark"]


def choose_engine(
    source: TableSource | InteractionLog, config: DataConfig, engine: Engine | None, memory: int
) -> Engine:
    """Return what prepares a log; Spark for its frames, else memory where the log fits, else disk.

    Args:
        source: the log.
        config: how to read it.
        engine: what was asked for, if anything.
        memory: the bytes that the rows may take.

    Raises:
        InputError: the engine cannot prepare such a source, or the source cannot be read.
    """
    if engine not in (None, "memory", "disk", "spark"):
        raise InputError(f"engine: must be memory, disk or spark, not {engine!r}")
    if is_spark_frame(source):
        if engine in ("memory", "disk"):
            raise InputError(f"engine={engine!r}: a frame of Spark is prepared by Spark")
        return "spark"
    if engine == "disk" and not _has_parts(source):
        raise InputError("engine='disk': a named dataset, or a log that was read, is in memory")
    if engine is not None:
        return engine
    if isinstance(source, InteractionLog) or not exceeds_memory(source, config, memory):
        return "memory"
    return "disk"


def _has_parts(source: TableSource | InteractionLog) -> bool:
    """Return whether a log can be read part by part."""
    if isinstance(source, InteractionLog):
        return False
    return not isinstance(source, str) or find_named_dataset(source) is None
