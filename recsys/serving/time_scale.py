"""Times of the caller on the scale of the log that the model was trained on."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.config import TIME_IS_NUMBER, time_value
from recsys.data.time_format import as_iso
from recsys.data.time_units import in_unit, units_in, units_per_second
from recsys.errors import InputError

logger = logging.getLogger(__name__)

RequestTime = float | str | date
"""The time a recommendation is requested for: a number on the scale of the training log, or a date
(text is ISO 8601 or of the log's own form, and UTC if it names no zone)."""


@dataclass(frozen=True, slots=True)
class TimeScale:
    """The scale of the times of a log: a unit of Unix times, or any other numbers."""

    newest: int | None = None
    """The newest time of the log; None if unknown: numbers stay as they are."""
    form: str | None = None
    """The form of the log's dates, if it is another one than ISO 8601."""

    def value(self, given: RequestTime, place: str) -> int:
        """Return a time on the scale of the log.

        Args:
            given: a number, or a date, whatever unit the log has.
            place: what it is in messages.

        Raises:
            InputError: it is neither a number nor a date.

        >>> TimeScale(1_700_000_000_000).value("2024-05-01", "at")
        1714521600000
        """
        try:
            moment = given.isoformat() if isinstance(given, date) else self._dated(given)
            # An integer stays as it is: a float has 53 bits.
            number = moment if isinstance(moment, int) else int(time_value(moment))
        except (TypeError, ValueError, OverflowError) as error:
            raise InputError(f"{place}={given!r}: a number or an ISO 8601 date") from error
        if not -(1 << 63) <= number < 1 << 63:
            return number
        return int(self.numbers(np.array([number]), place, dates=isinstance(moment, str))[0])

    def _dated(self, given: float | str) -> float | str:
        """Return a date of the form of the log as ISO 8601; anything else is unchanged."""
        if self.form in (None, TIME_IS_NUMBER) or isinstance(given, float):
            return given
        iso: Any = as_iso(pl.Series([given]), self.form or "")[0]
        return given if iso == str(given) else iso

    def numbers(
        self, times: NDArray[np.int64], place: str, *, dates: bool = False
    ) -> NDArray[np.int64]:
        """Return numbers [N] on the scale of the log: Unix times of another unit in its unit.

        A warning says what was converted, and what cannot be compared with the times of the log.

        Args:
            times: the numbers.
            place: what they are in messages.
            dates: whether they were dates, and are seconds since 1970 now.
        """
        if self.newest is None or not len(times):
            return times
        own = next(iter(units_in(np.array([self.newest]))), None)
        units = units_in(times)
        if bool(units) == (own is None) and not (dates and own):
            logger.warning(
                "%s: %d is compared as a number with the times of the training log, which go up "
                "to %d: give times of the same unit",
                *(place, times[0], self.newest),
            )
        if own is None:
            return times
        if dates:
            per_second = units_per_second(self.newest)
            return times if per_second == 1 else times * np.int64(per_second)
        for unit in units.keys() - {own}:
            logger.warning(
                "%s: %d is taken for %s, and converted to %s, which the training log has",
                *(place, units[unit], unit, own),
            )
            times = in_unit(times, unit, own)
        return times

    def of_dataset(self, times: NDArray[np.int64], path: Path) -> NDArray[np.int64]:
        """Return times of a dataset, which may be of another log: see `numbers`."""
        return self.numbers(times, str(path)) if len(units_in(times)) == 1 else times


NO_SCALE = TimeScale()
"""Numbers stay as they are, and dates are seconds since 1970."""
