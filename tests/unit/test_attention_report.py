"""The report of attention maps: pictures, and a self-contained page."""

from __future__ import annotations

import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from matplotlib import colormaps
from matplotlib.colors import to_hex

from recsys.cli import main
from recsys.data.prepared import PreparedDataset
from recsys.errors import InputError
from recsys.report.attention import attention_page, write_attention_report
from recsys.report.heat_map import COLOURS, draw_heat_map
from recsys.serving.attention_maps import AttentionMap
from recsys.serving.bundle import ModelBundle

EVIL = '<script>alert("&")</script>'


def make_map(rows: list[str], columns: list[str]) -> AttentionMap:
    weights = np.zeros((1, len(rows), len(columns)), dtype=np.float32)
    weights[..., 0] = 0.75
    weights[..., -1] += 0.25
    return AttentionMap("target", weights, rows, columns, ["head 1"])


class Page(HTMLParser):
    """What a browser would find in the tables, and the tags and attributes of it all."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: dict[str, set[str]] = {}
        self.cells: list[str] = []
        self._inside: str | None = None
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            self.attributes.setdefault(name, set()).add(value or "")
        self._inside = tag
        if tag in {"td", "th"}:
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = None

    def handle_data(self, data: str) -> None:
        if self._inside in {"td", "th"}:
            self.cells[-1] += data


def test_the_page_holds_the_weights_and_is_self_contained() -> None:
    attention = make_map(["1 jacket"], ["1 boots", "2 hat", "3 gloves"])
    html = attention_page([attention], {"user": "ann", "recsys": "1.2.3"})
    page = Page(html)
    table = " ".join(page.cells)
    assert "1 boots 2 hat 3 gloves 1 jacket .75  .25" in table
    for column, weight in enumerate([0.75, 0, 0.25]):  # in the colours of the pictures
        rule = re.search(rf"#T_target-1_row0_col{column} \{{\s*background-color: (\S+);", html)
        assert rule
        assert rule[1] == to_hex(colormaps[COLOURS](weight**0.5))
    assert ">ann<" in html
    assert ">1.2.3<" in html
    assert all(link == "#target" for link in page.attributes["href"])
    assert 'id="target"' in html
    assert "src" not in page.attributes
    assert not page.tags & {"script", "link", "img", "iframe", "object"}
    for outside in ("http:", "https:", "//", "@import", "url("):
        assert outside not in html


def test_names_of_users_are_escaped(tmp_path: Path) -> None:
    names = [EVIL, "$x_$ \\frac{", "雪靴 👢", "x" * 500]
    page = write_attention_report(tmp_path / "maps", [make_map(names, names)], {"user": EVIL})
    html = page.read_text(encoding="utf-8")
    assert "script" not in Page(html).tags
    assert html.count("&lt;script&gt;alert(") == 3, "row, column and user"
    assert {EVIL, "雪靴 👢", "$x_$ \\frac{"} <= set(Page(html).cells)
    assert (tmp_path / "maps" / "target-head-1.png").stat().st_size > 5_000


def test_a_heat_map_shows_each_weight_in_its_cell() -> None:
    figure = draw_heat_map(
        np.array([[0.25, 0.75, 0], [1, 0, 0]]), ["a", "b"], ["c", "d", "e"], title="t"
    )
    axes, scale = figure.axes
    numbers = {text.get_position(): text.get_text() for text in axes.texts if text.get_text()}
    assert numbers == {(0, 0): ".25", (1, 0): ".75", (0, 1): "1"}
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["c", "d", "e"]
    image = axes.images[0]
    assert image.get_clim() == (0, 1), "one scale for all maps"
    assert scale.get_ylabel() == "weight"


def test_only_a_folder_of_maps_is_replaced(tmp_path: Path) -> None:
    maps = [make_map(["1 a"], ["1 b", "2 c"]), make_map(["1 a"], ["1 b"])]
    out = tmp_path / "maps"
    write_attention_report(out, maps[:1], {})
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    assert set(before) == {"attention.html", "manifest.json", "target-head-1.png"}
    write_attention_report(out, maps[:1], {})
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before
    (out / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="mine.txt is not part of a folder of attention maps"):
        write_attention_report(out, maps[1:], {})
    other = tmp_path / "other"
    other.mkdir()
    (other / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="exists and is left alone"):
        write_attention_report(other, maps, {})
    assert sorted(tmp_path.iterdir()) == [out, other]


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["recsys", "inspect", *words])
    with pytest.raises(SystemExit) as end:
        main()
    return int(end.value.code or 0)


def test_the_command_writes_maps_of_every_head(
    tiny_bundle: ModelBundle,
    tiny_dataset: PreparedDataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = ["--data", str(tiny_dataset.path), "--out", str(tmp_path / "maps")]
    words = [str(tiny_bundle.path), "--user", "ann", *place, "--latest", "2", "--json"]
    assert run(monkeypatch, *words, "--item", "hat", "--item", "socks") == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row == {"page": str(tmp_path / "maps/attention.html"), "pictures": 4}
    assert {file.name for file in (tmp_path / "maps").iterdir()} == {
        "attention.html",
        "manifest.json",
        "encoder-block-1-head-1.png",
        "encoder-block-1-head-2.png",
        "target-head-1.png",
        "target-head-2.png",
    }
    html = Path(row["page"]).read_text(encoding="utf-8")
    assert (
        "4 purchases, the latest 3 read, 2 shown (the first column sums the earlier ones)" in html
    )
    assert {"the 1 before", "3 Top hat", "4 jacket", "2 socks"} <= set(Page(html).cells)
    for fact in (str(tiny_bundle.path), "next_item with target_attention", "ann"):
        assert f"<dd>{fact}</dd>" in html


def test_the_command_names_unknown_users_and_items(
    tiny_bundle: ModelBundle,
    tiny_dataset: PreparedDataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = ["--data", str(tiny_dataset.path), "--out", str(tmp_path / "maps")]
    assert run(monkeypatch, str(tiny_bundle.path), "--user", "anne", *place) == 2
    assert "error: user 'anne' is not in the dataset" in capsys.readouterr().err
    assert run(monkeypatch, str(tiny_bundle.path), "--user", "ann", *place, "-n", "2") == 2
    assert "has no decoder that could generate n=2 purchases" in capsys.readouterr().err
    assert not (tmp_path / "maps").exists()
