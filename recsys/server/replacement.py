"""Loads a model again once its folder was replaced, or its name in a registry moved on to another.

The old one goes on answering meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from pathlib import Path

import torch

from recsys.errors import InputError, first_line
from recsys.server.logs import FACTS
from recsys.server.service import ServedModel, Service, folder_state

logger = logging.getLogger(__name__)


class Replacement:
    """Watches the folders that are served, and the registry if the model has a name.

    A folder that cannot be loaded is reported once; the model before it goes on answering, and
    loading is tried again until it works.

    Args:
        service: gets the new model.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._settings = service.settings
        self._bundle = service.settings.bundle
        named = service.settings.named
        self._place = None if named is None else named.at_first
        self._ask_registry_at = 0.0 if named is None else time.monotonic() + named.seconds
        self._failure: str | None = None
        self._asked = asyncio.Event()

    def ask(self) -> None:
        """Load again now, whether or not a folder was replaced."""
        self._asked.set()

    async def watch(self) -> None:
        """Look for a new model from time to time, until cancelled."""
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._asked.wait(), self._settings.reload_seconds)
            asked = self._asked.is_set()
            self._asked.clear()
            try:
                await self._look(asked)
            except asyncio.CancelledError:
                raise
            except BaseException as error:  # noqa: BLE001 - a panic of Rust is no Exception
                self._report(error, asked)

    async def _look(self, asked: bool) -> None:
        """Load what is new, or anything if asked.

        Raises:
            Exception: whatever went wrong; a bundle and a registry come from others.
        """
        bundle, place = await asyncio.to_thread(self._find, asked)
        state = await asyncio.to_thread(folder_state, bundle, self._settings)
        if asked or bundle != self._bundle or state != self._service.model.state:
            model = await asyncio.to_thread(ServedModel.load, bundle, self._settings)
            self._service.serve(model)
            self._service.metrics.reloads.labels("loaded").inc()
            facts = {FACTS: {"weights": model.bundle.manifest.digest}}
            logger.info("a new model answers", extra=facts)
            self._failure = None
        self._bundle, self._place = bundle, place

    def _find(self, asked: bool) -> tuple[Path, str | None]:
        """Return the folder of the model, and its place in the registry if its name is there."""
        named = self._settings.named
        if named is None or not (asked or time.monotonic() >= self._ask_registry_at):
            return self._bundle, self._place
        self._ask_registry_at = time.monotonic() + named.seconds
        place = named.place()
        if place != self._place:
            return named.folder(), place
        self._failure = None  # the registry can be asked again, if it could not
        return self._bundle, place

    def _report(self, error: BaseException, asked: bool) -> None:
        """Report a failure, but one that lasts only once."""
        reason = _reason(error)
        if asked or reason != self._failure:
            self._service.metrics.reloads.labels("failed").inc()
            facts = {FACTS: {"reason": reason}}
            where = None if isinstance(error, InputError) else error
            line = "the new model cannot be loaded; the old one answers"
            logger.error(line, extra=facts, exc_info=where)
        self._failure = reason


def _reason(error: BaseException) -> str:
    """Return why loading failed, in the same words if it fails again: torch counts free bytes."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        where = "the GPU" if isinstance(error, torch.OutOfMemoryError) else "this machine"
        return f"{where} has too little memory for it beside the old one"
    return first_line(error)
