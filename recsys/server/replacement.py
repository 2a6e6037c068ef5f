"""Loads a model again once its folder was replaced, while the old one goes on answering."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from pathlib import Path

from recsys.data.manifest import MANIFEST
from recsys.errors import InputError
from recsys.server.logs import FACTS
from recsys.server.served_model import ServedModel
from recsys.server.service import Service

logger = logging.getLogger(__name__)

_State = list[tuple[int, int, int] | None]


class Replacement:
    """Watches the folders of a bundle and of a dataset.

    A folder that cannot be loaded is reported once; the model before it goes on answering, and
    loading is tried again until it works.

    Args:
        service: gets the new model.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._settings = service.settings
        self._loaded = self._state()
        self._failure: str | None = None
        self._asked = asyncio.Event()

    def ask(self) -> None:
        """Load again now, whether or not a folder was replaced."""
        self._asked.set()

    async def watch(self) -> None:
        """Look at the folders from time to time, until cancelled."""
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._asked.wait(), self._settings.reload_seconds)
            asked = self._asked.is_set()
            self._asked.clear()
            state = await asyncio.to_thread(self._state)
            if asked or state != self._loaded:
                await self._load(state, asked)

    async def _load(self, state: _State, asked: bool) -> None:
        settings = self._settings
        try:
            model = await asyncio.to_thread(
                ServedModel.load, settings.bundle, settings.data, settings.retrieve
            )
        except (InputError, OSError) as error:
            if asked or str(error) != self._failure:
                self._service.metrics.reloads.labels("failed").inc()
                facts = {FACTS: {"reason": str(error)}}
                logger.error("the new model cannot be loaded; the old one answers", extra=facts)
            self._failure = str(error)
            return
        self._service.serve(model)
        self._loaded, self._failure = state, None
        self._service.metrics.reloads.labels("loaded").inc()
        facts = {FACTS: {"weights": model.bundle.manifest.digest}}
        logger.info("a new model answers", extra=facts)

    def _state(self) -> _State:
        """What changes when a folder is replaced: inode, size and time of its manifest."""
        bundle, data = self._settings.bundle, self._settings.data
        folders = [bundle, bundle / "bundle", *([] if data is None else [data])]
        return [_stamp(folder / MANIFEST) for folder in folders]


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
