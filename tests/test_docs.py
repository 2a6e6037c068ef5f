"""The code of every documentation page runs, in the order of the page."""

from __future__ import annotations

import inspect
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import util
from pathlib import Path

import pytest
import typer.main

import recsys
from recsys.cli import app, main
from recsys.config import data, experiment, model
from recsys.config.section import Section
from recsys.experiments import suite, tune

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
FIRST = "getting-started"
"""The page that makes the log, the config and the bundle which the other pages use."""

FENCE = re.compile(r"^```(?P<info>[^\n`]+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
CAPTION = re.compile(r"^:caption: (?P<file>\S+)\n\n?", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    info: str
    text: str

    @property
    def language(self) -> str:
        return self.info.split()[0]

    @property
    def runs(self) -> bool:
        return self.language in ("python", "sh") and "no-run" not in self.info

    def commands(self) -> Iterator[list[str]]:
        for line in self.text.replace("\\\n", " ").splitlines():
            if words := shlex.split(line, comments=True):
                yield words


def blocks_of(page: str) -> list[Block]:
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    return [Block(block["info"].strip(), block["text"]) for block in FENCE.finditer(text)]


PAGES = sorted(path.stem for path in DOCS.glob("*.md"))
RUNNABLE = [page for page in PAGES if any(block.runs for block in blocks_of(page))]


def run_page(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    names: dict[str, object] = {"__name__": "__main__"}
    for block in blocks_of(page):
        if caption := CAPTION.search(block.text):
            Path(caption["file"]).write_text(block.text.partition("\n\n")[2], encoding="utf-8")
        elif not block.runs:
            continue
        elif block.language == "python":
            exec(compile(block.text, f"{page}.md", "exec"), names)  # noqa: S102 - it is our own page
        else:
            for words in block.commands():
                run_command(words, monkeypatch)


def run_command(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run one `recsys` command in this process: starting Python again would take seconds."""
    assert words[0] == "recsys", f"only recsys commands run: mark the block no-run: {words}"
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code, shlex.join(words)


@pytest.fixture(scope="session")
def started(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the first page leaves."""
    folder = tmp_path_factory.mktemp("docs") / FIRST
    folder.mkdir()
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(folder)
        run_page(FIRST, monkeypatch)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("page", RUNNABLE)
def test_the_code_of_each_page_runs(
    page: str, started: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if page == FIRST:  # the fixture ran it
        assert (started / "runs" / "mine" / "bundle").is_dir()
        return
    folder = shutil.copytree(started, tmp_path / "work")
    monkeypatch.chdir(folder)
    run_page(page, monkeypatch)


@pytest.mark.parametrize("page", PAGES)
def test_each_command_that_does_not_run_has_a_reason_and_real_options(page: str) -> None:
    for block in blocks_of(page):
        if block.language != "sh" or block.runs:
            continue
        assert re.fullmatch(r"sh no-run: .+", block.info), f"say why: {block.info}"
        for words in block.commands():
            if "recsys" in words:
                check_options(words[words.index("recsys") + 1 :])


def check_options(words: list[str]) -> None:
    """Every option of a command exists, and so does every shipped config it names."""
    if not words or words[0].startswith("-"):
        return
    command = typer.main.get_command(app).commands[words[0]]  # type: ignore[attr-defined]
    options = {name for parameter in command.params for name in parameter.opts}
    assert {word for word in words[1:] if re.match(r"--?[a-z]", word)} <= options
    for name in (word for word in words if word.startswith("configs/")):
        assert (ROOT / name).is_file(), name


def test_each_shipped_config_is_listed_and_most_pages_have_code() -> None:
    listed = (DOCS / "datasets.md").read_text(encoding="utf-8")
    for path in (ROOT / "configs").glob("*.yaml"):
        assert f"`{path.name}`" in listed, path.name
    assert len(RUNNABLE) >= 9


def test_each_public_name_is_in_the_api_reference() -> None:
    reference = (DOCS / "api.md").read_text(encoding="utf-8")
    for name in recsys.__all__:
        assert f"recsys.{name}\n" in reference, name


def test_the_configuration_reference_has_every_section_and_field() -> None:
    spec = util.spec_from_file_location("config_reference", DOCS / "_ext" / "config_reference.py")
    assert spec is not None
    assert spec.loader is not None
    extension = util.module_from_spec(spec)
    spec.loader.exec_module(extension)
    sections = {
        kind
        for module in (data, experiment, model, suite, tune)
        for name, kind in vars(module).items()
        if inspect.isclass(kind) and issubclass(kind, Section) and not name.startswith("_")
    }
    shared = {Section, model.TransformerConfig, model.FeatureReaderConfig}
    assert set(extension.documented_sections()) == sections - shared
    text = extension.configuration_reference()
    for section in sections - shared:
        assert all(f"| `{name}` |" in text for name in section.model_fields), section
