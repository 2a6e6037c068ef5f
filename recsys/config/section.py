"""The base class of all sections of the experiment tree, and readable errors."""

import reprlib
from collections.abc import Iterator, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from recsys.errors import InputError, did_you_mean

MAX_SEED, MAX_WIDTH, MAX_COUNT = 2**63 - 1, 65_536, 10_000_000
"""The largest seed that torch and numpy both take, width of a layer, and number of steps, items or
epochs that a setting may ask for."""

_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxlong = _REPR.maxother = 80


class Section(BaseModel):
    """A section of the tree: frozen; an unknown key or an infinite number is an error.

    Raises:
        InputError: fields are unknown or wrong; the message names them.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False
    )

    def __init__(self, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as error:
            complaints = "; ".join(complaints_of(error, type(self)))
            raise InputError(f"{type(self).__name__}: {complaints}") from error

    # pydantic then checks sections in others without a call of their own: errors keep their paths.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]


def with_kind(section: object, default: str | None = None) -> object:
    """Expand ``bce`` to ``{kind: bce}``, and give a section without a kind the default one."""
    if isinstance(section, str):
        return {"kind": section}
    return {"kind": default, **section} if default and isinstance(section, dict) else section


def complaints_of(error: ValidationError, root: type[Section]) -> Iterator[str]:
    """Yield a line for each wrong field: its dotted path, the rule, the value or nearest name."""
    for problem in error.errors():
        path, section = _locate([str(key) for key in problem["loc"]], root)
        rule = problem["msg"].removeprefix("Value error, ")
        complaint = f"{rule[:1].lower()}{rule[1:]}, not {_REPR.repr(problem['input'])}"
        if problem["type"] == "extra_forbidden":
            known = section.model_fields if section else {}
            complaint = f"unknown key{did_you_mean(path.rpartition('.')[2], known)}"
        elif problem["type"] == "union_tag_invalid":
            tags, tag = problem["ctx"]["expected_tags"], problem["ctx"]["tag"]
            complaint = f"the kind must be {tags}, not {_REPR.repr(tag)}"
        elif problem["type"] == "union_tag_not_found":
            complaint = f"needs a kind, not {_REPR.repr(problem['input'])}"
        yield f"{path or 'config'}: {complaint}"


def _locate(location: Sequence[str], root: type[Section]) -> tuple[str, type[Section] | None]:
    """Return the dotted path of a field as a config has it, and the section that contains it.

    pydantic puts the chosen kind of a union into its path, which selects a section but is no key.
    """
    path: list[str] = []
    section: type[Section] | None = root
    below = [root]
    for key in location:
        if chosen := [option for option in below if key in _kinds(option)]:
            below = chosen
            continue
        path.append(key)
        if not key.isdecimal():  # else an index in a list
            section = below[0] if below else None
            field = section.model_fields.get(key) if section else None
            below = list(_sections_in(field.annotation)) if field else []
    return ".".join(path), section


def _kinds(section: type[Section]) -> tuple[str, ...]:
    kind = section.model_fields.get("kind")
    return get_args(kind.annotation) if kind else ()


def _sections_in(annotation: object) -> Iterator[type[Section]]:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation
    for argument in get_args(annotation):
        yield from _sections_in(argument)
