"""What a hyperparameter search tries."""

from __future__ import annotations

import os
from typing import Annotated

from pydantic import Field, model_validator

from recsys.config.files import load_section
from recsys.config.section import Section

Number = int | float
Value = bool | int | float | str | None


class Range(Section):
    """Numbers from low to high, both included; whole ones if both are."""

    low: Number
    high: Number
    log: bool = False
    """Try as many between 1 and 10 as between 10 and 100."""

    @model_validator(mode="after")
    def _ascends(self) -> Range:
        if not self.low < self.high:
            raise ValueError(f"low must be below high, {self.high}")
        if self.log and self.low <= 0:
            raise ValueError("low must be above 0 where log is true")
        return self


class Choices(Section):
    """One of several values."""

    choices: tuple[Value, ...] = Field(min_length=1)


class Search(Section):
    """The fields of an experiment that are searched, and for how long."""

    space: dict[str, Range | Choices] = Field(min_length=1)
    """By dotted name, e.g. ``model.dropout``; of the sections model and training."""
    trials: Annotated[int, Field(ge=1)] | None = 50
    """Trials of the study, those of earlier calls too; None: until the time is up."""
    minutes: float | None = Field(None, gt=0)
    """No trial is begun after so many minutes of this call; None: until all trials are done."""

    @model_validator(mode="after")
    def _ends(self) -> Search:
        if self.trials is None and self.minutes is None:
            raise ValueError("give trials, minutes or both: a search has to end")
        return self


def load_search(path: str | os.PathLike[str]) -> Search:
    """Read a search from YAML.

    Raises:
        InputError: the file cannot be read, or fields are unknown or wrong.
    """
    return load_section(path, Search)
