"""The base class of all sections of the experiment tree."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

MAX_SEED = 2**63 - 1
"""The largest seed that torch and numpy both take."""
MAX_WIDTH = 65_536
"""The largest width of a layer."""
MAX_COUNT = 10_000_000
"""The largest number of steps, items or epochs that a setting may ask for."""


class Section(BaseModel):
    """A section of the tree: frozen; an unknown key or an infinite number is an error."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False
    )
