"""The configuration reference, generated from the fields of its sections."""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from recsys.config.experiment import Experiment
from recsys.config.section import Section
from recsys.experiments.suite import Suite
from recsys.experiments.tune import Search

ROOTS = {
    "The experiment": Experiment,
    "Suites (recsys suite)": Suite,
    "Searches (recsys tune)": Search,
}
"""The sections that have a YAML file of their own, by the title of their part of the page."""


def documented_sections() -> list[type[Section]]:
    """Every section that the reference describes."""
    return [section for _, sections in _parts() for section in sections]


def _parts() -> list[tuple[str, list[type[Section]]]]:
    """Titles and sections: each root, and under it the sections that its fields hold.

    Sections that several fields hold stand under the names of all of them, once.
    """
    parts: list[tuple[str, list[type[Section]]]] = []
    placed: dict[type[Section], int] = {}

    def place(title: str, sections: list[type[Section]]) -> None:
        if sections and sections[0] in placed:
            number = placed[sections[0]]
            known, others = parts[number]
            if title.rpartition(".")[2] not in known:
                parts[number] = f"{known}, {title}", others
            return
        placed.update(dict.fromkeys(sections, len(parts)))
        parts.append((title, sections))
        for section in sections:
            for name, field in section.model_fields.items():
                if held := list(dict.fromkeys(_held(field.annotation))):
                    path = _path(title, name)
                    place(path, held)

    for title, root in ROOTS.items():
        place(title, [root])
    return parts


def _path(title: str, name: str) -> str:
    """A field's name below a title; the fields of an experiment need none before them."""
    if title not in ROOTS:
        return f"{title}.{name}"
    return name if ROOTS[title] is Experiment else f"{title}: {name}"


def _held(annotation: object) -> Iterator[type[Section]]:
    """The sections that a field of this type may hold."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation
    for part in get_args(annotation):
        yield from _held(part)


def configuration_reference() -> str:
    """The reference as Markdown: one heading for each place, one table for each section."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    for place, sections in _parts():
        yield f"## {place}\n"
        for number, section in enumerate(sections):
            if _kind(section) or number:
                yield f"### {_kind(section) or section.__name__}\n"
            yield (inspect.getdoc(section) or "").replace("``", "`") + "\n"
            yield from _table(section)
            yield ""


def _table(section: type[Section]) -> Iterator[str]:
    if not section.model_fields:
        return
    yield "| field | type | default | |"
    yield "| --- | --- | --- | --- |"
    for name, field in section.model_fields.items():
        cells = (f"`{name}`", _type(field), _default(field), field.description or "")
        yield "| " + " | ".join(_cell(cell) for cell in cells) + " |"


def _cell(text: str) -> str:
    """Text as one cell of a table."""
    return " ".join(text.replace("``", "`").split()).replace("|", "\\|")


def _kind(section: type[Section]) -> str:
    """What a section of several kinds calls itself; "" if it stands alone."""
    kind = section.model_fields.get("kind")
    return str(get_args(kind.annotation)[0]) if kind else ""


def _type(field: FieldInfo) -> str:
    bounds = [_bound(rule) for rule in field.metadata]
    return ", ".join([f"`{_name(field.annotation)}`", *(f"`{b}`" for b in bounds if b)])


def _bound(rule: object) -> str:
    """A constraint such as ``≥ 1``; "" for what is none."""
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    found = [f"{sign} {getattr(rule, key):g}" for key, sign in signs.items() if hasattr(rule, key)]
    return " and ".join(found)


def _name(kind: Any) -> str:
    """A type as people read it."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is not None:
        return _generic_name(origin, parts)
    if issubclass(kind, Section):
        return _kind(kind) or kind.__name__
    names = {type(None): "none", str: "text", bool: "true | false"}
    return names.get(kind, kind.__name__)


def _generic_name(origin: Any, parts: tuple[Any, ...]) -> str:
    """The name of a type with parameters."""
    if origin is Annotated:
        return _name(parts[0])
    if origin is Literal:
        return " | ".join(str(part) for part in parts)
    if origin in (Union, types.UnionType):
        return " | ".join(dict.fromkeys(_name(part) for part in parts))
    if origin is tuple:
        return f"list of {_name(parts[0])}" if parts[-1] is ... else f"{len(parts)} numbers"
    return "mapping"


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return "required"
    if isinstance(value, Section):
        kind = getattr(value, "kind", None)
        return f"`{kind}`" if kind else "its defaults"
    if value is None:
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return "`[" + ", ".join(str(part) for part in value) + "]`"
    return f"`{value}`" if value != {} else "`{}`"
