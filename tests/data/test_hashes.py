"""The hashes that continuous integration checks belong to the versions of constraints.txt."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
REQUIREMENTS = ROOT / ".ci" / "requirements.txt"


def versions(path: Path) -> dict[str, str]:
    pinned = re.findall(r"^([\w.-]+)==([^ \n]+)", path.read_text(), flags=re.MULTILINE)
    return {canonicalize_name(name): version for name, version in pinned}


def test_the_hashes_are_those_of_the_constraints() -> None:
    hashed, pinned = versions(REQUIREMENTS), versions(ROOT / "constraints.txt")
    different = {name for name in hashed if hashed[name] != pinned.get(name)}
    assert not different, "run make lock"
    assert set(pinned) - set(hashed) == {"torch"}


def test_every_package_has_hashes() -> None:
    for requirement in re.split(r"\n(?=\w)", REQUIREMENTS.read_text())[1:]:
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", requirement), requirement


@pytest.mark.parametrize("brought", ["nvidia-", "triton", "cuda-"])
def test_what_torch_brings_is_left_to_torch(brought: str) -> None:
    assert not [name for name in versions(REQUIREMENTS) if name.startswith(brought)]
