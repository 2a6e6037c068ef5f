"""Faults of a page that a validator or a screen reader would stumble over."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser

_VOID = {"meta", "link", "br", "img", "input", "hr"}


class _Checker(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.faults: list[str] = []
        self.counts: dict[str, int] = {}
        self.ids: set[str] = set()
        self.open: list[str] = []
        self.level = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found, name = dict(attrs), f"<{tag}> in line {self.getpos()[0]}"
        self.counts[tag] = self.counts.get(tag, 0) + 1
        if (id_ := found.get("id")) is not None:
            if id_ in self.ids:
                self.faults.append(f"{name}: the id {id_} is taken")
            self.ids.add(id_)
        self._check_place(tag, name)
        self._check_names(tag, name, found)
        if tag not in _VOID:
            self.open.append(tag)

    def _check_place(self, tag: str, name: str) -> None:
        if tag in {"h1", "h2", "h3", "h4"}:
            if int(tag[1]) > self.level + 1:
                self.faults.append(f"{name}: follows a heading of level {self.level}")
            self.level = int(tag[1])

    def _check_names(self, tag: str, name: str, found: dict[str, str | None]) -> None:
        named = found.get("role") == "img" and found.get("aria-label")
        if tag == "svg" and found.get("aria-hidden") != "true" and not named:
            self.faults.append(f"{name}: has no name")
        if tag == "th" and found.get("scope") not in {"row", "col"}:
            self.faults.append(f"{name}: has no scope")
        if found.get("tabindex") and not found.get("aria-label"):
            self.faults.append(f"{name}: can be focused and has no name")
        if tag == "script" or any(key == "style" or key.startswith("on") for key in found):
            self.faults.append(f"{name}: a strict policy forbids scripts and styles of elements")
        for key in ("src", "href", "xlink:href"):
            if not (found.get(key) or "#").startswith(("#", "data:")):
                self.faults.append(f"{name}: loads {found[key]}")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.faults.append(f"</{tag}> in line {self.getpos()[0]}: closes nothing")


def html_faults(page: str) -> list[str]:
    checker = _Checker()
    checker.feed(page)
    once = [
        f"{checker.counts.get(tag, 0)} <{tag}>"
        for tag in ("html", "main", "h1")
        if checker.counts.get(tag, 0) != 1
    ]
    return checker.faults + once + [f"<{tag}> is not closed" for tag in checker.open]


def text_of(page: str) -> str:
    """The words of a page, without its style and its charts."""
    page = re.sub(r"<(style|svg).*?</\1>", " ", page, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())
