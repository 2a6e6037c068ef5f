"""The faults that `make mutants` puts into the code: one each, where something is computed."""

from __future__ import annotations

import ast
import difflib
from pathlib import Path

import pytest

from tests.mutants import CORE, ROOT, mutants, named_tests


@pytest.mark.parametrize("name", CORE)
def test_the_core_is_where_it_is_said_to_be_and_has_tests(name: str) -> None:
    file = ROOT / "recsys" / name
    assert len(named_tests(file)) >= 2
    assert len(list(mutants(file))) > 10


def test_each_mutant_is_the_code_with_one_line_changed() -> None:
    file = ROOT / "recsys" / "data" / "splits.py"
    source = file.read_text()
    found = [mutant.content for mutant in mutants(file)]
    assert len(found) == len(set(found))
    for content in found:
        changes = difflib.ndiff(source.splitlines(), content.splitlines())
        assert [line[0] for line in changes if line[0] in "+-"] == ["-", "+"]
        assert ast.dump(ast.parse(content)) != ast.dump(ast.parse(source))


def test_what_is_changed_and_what_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "code.py"
    file.write_text(
        '"""1 < 2."""\n\n\n@cache(size=3)\ndef f(a: int | None, *, b: bool = True) -> float:\n'
        "    return g(*a).T * 0.5 if a < 2 and not b else -1  # or 0\n"
    )
    monkeypatch.setattr("tests.mutants.ROOT", tmp_path)
    lines = [mutant.content.splitlines() for mutant in mutants(file)]
    assert {line[4] for line in lines} - {file.read_text().splitlines()[4]} == {
        "def f(a: int | None, *, b: bool = False) -> float:"
    }
    changed = {line[5].removeprefix("    return ").removesuffix("  # or 0") for line in lines}
    assert changed - {"g(*a).T * 0.5 if a < 2 and not b else -1"} == {
        "g(*a) * 0.5 if a < 2 and not b else -1",
        "g(*a).T / 0.5 if a < 2 and not b else -1",
        "g(*a).T * 1.0 if a < 2 and not b else -1",
        "g(*a).T * 0.5 if a <= 2 and not b else -1",
        "g(*a).T * 0.5 if a < 3 and not b else -1",
        "g(*a).T * 0.5 if a < 1 and not b else -1",
        "g(*a).T * 0.5 if a < 2 or not b else -1",
        "g(*a).T * 0.5 if a < 2 and  b else -1",
        "g(*a).T * 0.5 if a < 2 and not b else +1",
        "g(*a).T * 0.5 if a < 2 and not b else -2",
        "g(*a).T * 0.5 if a < 2 and not b else -0",
    }
