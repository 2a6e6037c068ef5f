"""Formulas as MathML, which every current browser draws itself: no script, no network."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from latex2mathml.converter import convert


def setup(app: Any) -> dict[str, bool]:
    """Offer the renderer that conf.py names as ``html_math_renderer``."""
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def visit_inline(writer: Any, node: nodes.math) -> None:
    """Write a formula inside a line."""
    writer.body.append(convert(node.astext()))
    raise nodes.SkipNode


def visit_block(writer: Any, node: nodes.math_block) -> None:
    """Write a formula on a line of its own."""
    formula = convert(node.astext(), display="block")
    writer.body.append(writer.starttag(node, "div", CLASS="math-block") + formula + "</div>\n")
    raise nodes.SkipNode
