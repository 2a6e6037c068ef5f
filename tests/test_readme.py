"""What the README tells a newcomer to type exists."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import pytest
import typer.main

import recsys
from recsys.cli import app

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^recsys (.+)$", README, flags=re.MULTILINE)


def test_the_readme_has_commands_and_python() -> None:
    assert len(COMMANDS) >= 7
    assert "```python" in README


@pytest.mark.parametrize("line", COMMANDS)
def test_each_command_and_option_exists(line: str) -> None:
    words = shlex.split(line)
    if words == ["--help"]:
        return
    command = typer.main.get_command(app).commands[words[0]]  # type: ignore[attr-defined]
    options = {name for parameter in command.params for name in parameter.opts}
    assert {word for word in words[1:] if word.startswith("-")} <= options
    for config in (word for word in words if word.startswith("configs/")):
        assert (ROOT / config).is_file()


def test_each_name_of_the_package_in_the_python_exists() -> None:
    (code,) = re.findall(r"```python\n(.+?)```", README, flags=re.DOTALL)
    used = {
        node.attr
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "recsys"
    }
    assert used
    assert all(hasattr(recsys, name) for name in used)


def test_each_file_of_the_tree_and_each_link_exists() -> None:
    for target in re.findall(r"\]\(([^)]+)\)", README):
        assert (ROOT / target).exists(), target
    named = {path.name for path in (ROOT / "recsys").rglob("*.py")}
    (tree,) = re.findall(r"```\nrecsys/\n(.+?)```", README, flags=re.DOTALL)
    for name in re.findall(r"\w+\.py", tree.replace("shop*.py", "")):
        assert name in named, name


@pytest.mark.parametrize("target", ["demo", "test"])
def test_make_has_the_target(target: str) -> None:
    assert f"\n{target}:" in (ROOT / "Makefile").read_text(encoding="utf-8")
    assert f"make {target}" in README
