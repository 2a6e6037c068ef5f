"""Fixtures of all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def mirror() -> Path:
    """The folder of real logs; tests that ask for it are marked ``realdata``."""
    beside = Path(__file__).parents[2] / "shared" / "data"
    folder = Path(os.environ.get("RECSYS_MIRROR") or beside)
    if not folder.is_dir():
        pytest.skip(f"no real logs: RECSYS_MIRROR names no folder and {beside} does not exist")
    return folder.resolve()
