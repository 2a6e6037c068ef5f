"""The search space and the budget of a hyperparameter search."""

from __future__ import annotations

import os
from typing import Annotated

from pydantic import Field, model_validator

from recsys.config.files import load_section
from recsys.config.section import MAX_COUNT, Section

Number = int | float
Value = bool | int | float | str | None


class Range(Section):
    """Numbers from low to high, inclusive; integers if both are."""

    low: Number
    """Smallest value."""
    high: Number
    """Largest value."""
    log: bool = False
    """Whether to sample on a logarithmic scale."""

    @model_validator(mode="after")
    def _ascends(self) -> Range:
        if not self.low < self.high:
            raise ValueError(f"low must be below high, {self.high}")
        if self.log and self.low <= 0:
            raise ValueError("low must be above 0 if log is true")
        return self


class Choices(Section):
    """One of several values."""

    choices: tuple[Value, ...] = Field(min_length=1)
    """The values."""


class Search(Section):
    """The fields of an experiment to search, and the budget."""

    space: dict[str, Range | Choices] = Field(min_length=1)
    """Fields of the sections model and training by dotted name, e.g. ``model.dropout``."""
    trials: Annotated[int, Field(ge=1, le=MAX_COUNT)] | None = 50
    """Number of trials of the study, including earlier calls. If None, only the time is limited."""
    minutes: float | None = Field(None, gt=0, le=10**8)
    """Number of minutes after which this call starts no more trials. If None, no time limit."""

    @model_validator(mode="after")
    def _ends(self) -> Search:
        if self.trials is None and self.minutes is None:
            raise ValueError("give trials, minutes or both: a search needs a limit")
        return self


def load_search(path: str | os.PathLike[str]) -> Search:
    """Read a search from YAML.

    Raises:
        InputError: the file cannot be read, or fields are unknown or wrong.
    """
    return load_section(path, Search)
