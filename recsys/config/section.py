"""The base class of all sections of the experiment tree."""

from __future__ import annotations

import reprlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from recsys.errors import InputError, did_you_mean, one_line

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)  # its name is not public

MAX_SEED = 2**63 - 1
"""The largest seed that torch and numpy both take."""
MAX_WIDTH = 65_536
"""The largest width of a layer."""
MAX_COUNT = 10_000_000
"""The largest number of steps, items or epochs that a setting may ask for."""

_MAX_COMPLAINTS, _MAX_LENGTH = 10, 300
_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxlong = _REPR.maxother = 80


class _OneLineErrors(ModelMetaclass):
    """Turns the errors of a section that is made in Python into one line.

    Sections inside another one, and those read from a file, are not made by a call: their errors
    keep their paths.
    """

    def __call__(self, *args: Any, **fields: Any) -> Any:
        try:
            return super().__call__(*args, **fields)
        except ValidationError as error:
            complaints = [
                complaint for _, complaint in complaints_of(error, cast(type[Section], self))
            ]
            raise InputError(f"{self.__name__}: {'; '.join(complaints)}") from error


class Section(BaseModel, metaclass=_OneLineErrors):
    """A section of the tree: frozen; an unknown key or an infinite number is an error.

    Raises:
        InputError: fields are unknown or wrong; the message names them.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False
    )


def complaints_of(error: ValidationError, root: type[Section]) -> list[tuple[str, str]]:
    """Return the dotted path of each wrong field, and a line on it; of many, the first ten."""
    found = list(_complaints(error, root))
    lines = [
        (path, one_line(f"{path or 'config'}: {text}", _MAX_LENGTH))
        for path, text in found[:_MAX_COMPLAINTS]
    ]
    if len(found) > len(lines):
        lines.append((found[len(lines)][0], f"and {len(found) - len(lines)} more"))
    return lines


def _complaints(error: ValidationError, root: type[Section]) -> Iterator[tuple[str, str]]:
    """Yield the full path of each wrong field; and the rule, the value, and the nearest name."""
    for problem in error.errors():
        path, section = _locate([str(part) for part in problem["loc"]], root)
        if problem["type"] == "extra_forbidden":
            known = list(section.model_fields) if section else []
            wrong = path.rpartition(".")[2]
            hint = did_you_mean(wrong, known) or f"; known here: {', '.join(known)}"
            yield path, f"unknown key{hint}"
        elif problem["type"] == "union_tag_invalid":
            context = problem["ctx"]
            yield path, f"the kind must be {context['expected_tags']}, not {_shown(context['tag'])}"
        elif problem["type"] == "union_tag_not_found":
            kinds = ", ".join(map(repr, _kinds_of(path, section)))
            yield path, f"needs a kind, one of {kinds}; not {_shown(problem['input'])}"
        else:
            rule = problem["msg"].removeprefix("Value error, ")
            yield path, f"{rule[:1].lower()}{rule[1:]}, not {_shown(problem['input'])}"


def _shown(value: object) -> str:
    """Return a value as a message shows it: a long one is cut."""
    try:
        return _REPR.repr(value)
    except ValueError:  # Python shows no integer of many thousand digits
        return f"a value of type {type(value).__name__}"


def _kinds_of(path: str, section: type[Section] | None) -> Iterator[str]:
    """Yield the kinds of section that a field of a section may contain."""
    field = section.model_fields.get(path.rpartition(".")[2]) if section else None
    for option in _sections(field.annotation) if field else ():
        yield from _kinds(option)


def _locate(location: Sequence[str], root: type[Section]) -> tuple[str, type[Section] | None]:
    """Return the dotted path of a field as a config has it, and the section that contains it.

    pydantic puts the chosen kind of a union into its path, which selects a section but is no key.
    """
    path: list[str] = []
    section: type[Section] | None = root
    below: list[type[Section]] = [root]
    for part in location:
        if part.isdecimal():  # index in a list
            path.append(part)
            continue
        if chosen := [option for option in below if part in _kinds(option)]:
            below = chosen
            continue
        path.append(part)
        section = below[0] if below else None
        field = section.model_fields.get(part) if section else None
        below = list(_sections(field.annotation)) if field else []
    return ".".join(path), section


def _kinds(section: type[Section]) -> tuple[str, ...]:
    """Return the kinds of a section of a union; none for another section."""
    kind = section.model_fields.get("kind")
    return get_args(kind.annotation) if kind else ()


def _sections(annotation: object) -> Iterator[type[Section]]:
    """Yield the sections that a field may contain."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation
    for part in get_args(annotation):
        yield from _sections(part)
