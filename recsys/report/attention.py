"""Attention maps as pictures and as one self-contained page."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import pandas as pd
from jinja2 import Environment, StrictUndefined
from numpy.typing import NDArray

from recsys.data.files import file_sha256, new_folder
from recsys.data.manifest import FolderManifest
from recsys.report.heat_map import COLOURS, EXPONENT, decimals, draw_heat_map
from recsys.serving.attention_maps import AttentionMap, Kind

PAGE = "attention.html"
_TEMPLATE = "attention.html"


class _Words(NamedTuple):
    """The words that describe a kind of map."""

    title: str
    rows: str
    columns: str
    caption: str


_WORDS: dict[Kind, _Words] = {
    "encoder": _Words(
        "Encoder, block {block}",
        "purchase that is encoded",
        "purchases it attends to",
        "The model encodes the purchase of a row by attending to the purchases of the columns.",
    ),
    "decoder": _Words(
        "Decoder, block {block}, over its own output",
        "purchase that is generated",
        "purchases generated before",
        "While the model generates the purchase of a row (+1 is the first), it attends to the "
        "purchases generated before; “begin” marks the start.",
    ),
    "cross": _Words(
        "Decoder, block {block}, over the history",
        "purchase that is generated",
        "purchases of the history",
        "While the model generates the purchase of a row (+1 is the first), it attends to the "
        "purchases of the history in the columns.",
    ),
    "target": _Words(
        "Target attention",
        "candidate item",
        "purchases it attends to",
        "To be scored, a candidate item (a row) attends to the purchases of the columns. A weight "
        "halves with each half-life of age. Weights show where a candidate attends; “recsys "
        "explain” shows how much a purchase adds to its score or takes from it.",
    ),
}


class AttentionReportManifest(FolderManifest):
    """The manifest of a folder of attention maps."""

    noun: ClassVar[str] = "a folder of attention maps"
    remedy: ClassVar[str] = "inspect the model again"
    current_version: ClassVar[int] = 2

    format: Literal["recsys.attention"] = "recsys.attention"
    format_version: int = current_version


def write_attention_report(
    path: str | os.PathLike[str], maps: Sequence[AttentionMap], about: Mapping[str, str]
) -> Path:
    """Write a folder atomically: a PNG of each head, and `PAGE`.

    An existing folder of maps is replaced. The same arguments give the same bytes.

    Args:
        path: the folder.
        maps: the maps to show.
        about: the facts at the top of the page, by name.

    Returns:
        The page.

    Raises:
        InputError: the path holds something else, or cannot be written.
    """
    path = Path(path)
    AttentionReportManifest.previous(path)
    with new_folder(path) as folder:
        for attention in maps:
            _draw(attention, folder)
        (folder / PAGE).write_text(attention_page(maps, about), encoding="utf-8")
        checksums = {file.name: file_sha256(file) for file in sorted(folder.iterdir())}
        AttentionReportManifest(files=checksums).write(folder)
    return path / PAGE


def attention_page(maps: Sequence[AttentionMap], about: Mapping[str, str]) -> str:
    """Return the page as HTML; see `write_attention_report`."""
    template = files("recsys.report").joinpath(_TEMPLATE).read_text(encoding="utf-8")
    legend = np.array([[0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 1]])
    return (
        Environment(autoescape=True, undefined=StrictUndefined)
        .from_string(template)
        .render(
            title="Where the model attends",
            about=about,
            legend=_table("legend", legend, ["weight"], [str(weight) for weight in legend[0]]),
            sections=[
                {
                    "name": attention.name,
                    "title": _title(attention),
                    "caption": _caption(attention),
                    "heads": [
                        (label, _table(f"{attention.name}-{head}", weights, *_labels(attention)))
                        for head, (label, weights) in enumerate(_heads(attention), 1)
                    ],
                }
                for attention in maps
            ],
        )
    )


def _draw(attention: AttentionMap, folder: Path) -> None:
    """Write a picture of each head."""
    words = _WORDS[attention.kind]
    for head, (label, weights) in enumerate(_heads(attention), 1):
        figure = draw_heat_map(
            weights,
            *_labels(attention),
            title=f"{_title(attention)}\n{label}",
            row_axis=words.rows,
            column_axis=words.columns,
        )
        with warnings.catch_warnings():
            # The font lacks some scripts: the picture shows boxes there, the page the text.
            warnings.filterwarnings("ignore", message="Glyph .* missing from font")
            figure.savefig(
                folder / f"{attention.name}-head-{head}.png", dpi=120, bbox_inches="tight"
            )


def _table(name: str, weights: NDArray[np.floating], rows: list[str], columns: list[str]) -> str:
    """Return an HTML table in the colours of the heat map; labels are escaped."""
    # White text on colours below a quarter of white's luminance, black text on the rest.
    styler = (
        pd.DataFrame(weights, index=rows, columns=columns)
        .map(decimals)
        .style.set_uuid(name)
        .background_gradient(
            COLOURS, axis=None, gmap=weights**EXPONENT, vmin=0, vmax=1, text_color_threshold=0.25
        )
        .format_index(escape="html", axis=0)
        .format_index(escape="html", axis=1)
    )
    return styler.to_html()


def _heads(attention: AttentionMap) -> list[tuple[str, NDArray[np.float32]]]:
    return list(zip(attention.heads, attention.weights, strict=True))


def _labels(attention: AttentionMap) -> tuple[list[str], list[str]]:
    return attention.rows, attention.columns


def _title(attention: AttentionMap) -> str:
    return _WORDS[attention.kind].title.format(block=attention.block)


def _caption(attention: AttentionMap) -> str:
    caption = _WORDS[attention.kind].caption
    if attention.causal:
        caption += " It does not attend to later purchases: the upper right is empty."
    elif attention.kind == "encoder":
        caption += " It also attends to later purchases."
    return caption
