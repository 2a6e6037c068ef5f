"""Experiments from and to YAML, with overrides."""

from __future__ import annotations

import os
import reprlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import ValidationError

from recsys.config.experiment import Experiment
from recsys.config.presets import find_config, no_config
from recsys.config.section import Section
from recsys.config.yaml_text import MAX_CHARACTERS, DocumentError, parse_yaml
from recsys.errors import InputError, did_you_mean, one_line

_MAX_COMPLAINTS, _MAX_LENGTH = 10, 300
_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxlong = _REPR.maxother = 80

AnySection = TypeVar("AnySection", bound=Section)


def load_experiment(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Experiment:
    """Read an experiment from YAML, with ``a.b=value`` overrides (values are YAML too).

    Args:
        path: the YAML file, or the name of a preset.
        overrides: the fields to change.

    Raises:
        InputError: the file cannot be read, or fields are unknown or wrong; the message names all
            of them.
    """
    return parse_experiment(_read_tree(path), overrides, origin=str(path))


def load_section(path: str | os.PathLike[str], kind: type[AnySection]) -> AnySection:
    """Read a section from a YAML file, or a preset, of its own.

    Raises:
        InputError: as `load_experiment`.
    """
    return _check(_read_tree(path), kind, str(path))


def _read_tree(path: str | os.PathLike[str]) -> dict[str, Any]:
    file = find_config(path) or Path(path)
    if not file.is_file():
        raise no_config(path)
    try:
        with file.open(encoding="utf-8") as opened:
            tree = parse_yaml(opened.read(MAX_CHARACTERS + 1))
    except DocumentError as error:
        raise InputError(f"{path}: not valid YAML: {one_line(error, _MAX_LENGTH)}") from error
    except (OSError, ValueError) as error:  # a path with a zero byte is a ValueError
        raise InputError(f"{path}: cannot read the config: {error}") from error
    if not isinstance(tree, dict | None):
        raise InputError(f"{path}: a config is a mapping of sections, not {type(tree).__name__}")
    return tree or {}


def parse_experiment(
    tree: dict[str, Any], overrides: Sequence[str] = (), origin: str = "config"
) -> Experiment:
    """Validate a nested dict with ``a.b=value`` overrides.

    Raises:
        InputError: fields are unknown or wrong; the message names all of them.
    """
    for override in overrides:
        key, sign, value = override.partition("=")
        if not sign or not key:
            raise InputError(f"--set {override}: write it as key=value, e.g. model.dropout=0.1")
        *parents, leaf = key.split(".")
        section: Any = tree
        for depth, parent in enumerate(parents):
            if parent in {"split", "candidates", "loss"} and isinstance(section.get(parent), str):
                section[parent] = {"kind": section[parent]}  # the short form
            section = section.setdefault(parent, {})
            if not isinstance(section, dict):
                raise InputError(
                    f"--set {override}: {'.'.join(parents[: depth + 1])} has no fields"
                )
        try:
            section[leaf] = parse_yaml(value)
        except DocumentError as error:
            text = one_line(f"--set {override}: not valid YAML: {error}", _MAX_LENGTH)
            raise InputError(text) from error
    return _check(tree, Experiment, origin, overrides)


def with_changes(section: AnySection, changes: dict[str, Any], origin: str) -> AnySection:
    """Return a section with some fields changed and all checked.

    Raises:
        InputError: fields are unknown or wrong; the message names all of them.
    """
    given = section.model_dump(exclude_unset=True)
    return _check(given | changes, type(section), origin)


def _check(
    tree: dict[str, Any], kind: type[AnySection], origin: str, overrides: Sequence[str] = ()
) -> AnySection:
    """Validate a tree; each complaint names the override that caused it, or else the origin."""
    try:
        return kind.model_validate(tree)
    except ValidationError as error:
        complaints: dict[str, list[str]] = {}
        for number, (path, complaint) in enumerate(found := [*_complaints(error, kind)]):
            cause = next((o for o in overrides[::-1] if _concerns(o, path)), None)
            source = origin if cause is None else f"--set {one_line(cause, _MAX_LENGTH)}"
            line = one_line(f"{path or 'config'}: {complaint}", _MAX_LENGTH)
            if number == _MAX_COMPLAINTS:
                line = f"and {len(found) - number} more"
            complaints.setdefault(source, []).append(line)
            if number == _MAX_COMPLAINTS:
                break
        raise InputError(
            "; ".join(f"{source}: {'; '.join(found)}" for source, found in complaints.items())
        ) from error


def _concerns(override: str, path: str) -> bool:
    """Did an override set the field of a path, a section that has it, or a field below it?"""
    key = override.partition("=")[0]
    return f"{path}.".startswith(f"{key}.") or f"{key}.".startswith(f"{path}.")


def continued(
    earlier: Experiment, bundle: str, changes: Experiment | None, overrides: Sequence[str]
) -> Experiment:
    """Return the experiment of a training that starts from a trained model.

    Its settings are those of the model, except those of the data, unless they are changed. So are
    those of the start, if the model started from another one itself.

    Args:
        earlier: the settings of the model.
        bundle: the folder of the model.
        changes: an experiment; the fields that it sets win. A section of another kind replaces that
            of the model.
        overrides: fields to change, as key=value; they win over all.

    Raises:
        InputError: as `parse_experiment`.
    """
    tree = earlier.model_dump(mode="json", exclude={"data": True, "start": {"digest"}})
    stem, _, number = earlier.name.rpartition("-")
    again = bool(stem) and number.isdecimal()
    tree["name"] = f"{stem}-{int(number) + 1}" if again else f"{earlier.name}-2"
    if changes is not None:
        tree = _merged(tree, changes.model_dump(mode="json", exclude_unset=True))
    tree["start"] = {**(tree.get("start") or {}), "bundle": bundle}
    return parse_experiment(tree, overrides, f"{bundle}, continued")


def _merged(tree: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return a tree with other values, section by section."""
    merged = dict(tree)
    for name, value in changes.items():
        old = tree.get(name)
        merged[name] = value
        if isinstance(old, dict) and isinstance(value, dict):
            same_kind = value.get("kind", old.get("kind")) == old.get("kind")
            merged[name] = _merged(old, value) if same_kind else value
    return merged


def dump_experiment(experiment: Experiment) -> str:
    """Return the experiment as YAML; a split, loss or candidates with defaults is only its kind."""
    return yaml.safe_dump(experiment.model_dump(mode="json"), sort_keys=False)


def flatten(experiment: Experiment) -> dict[str, Any]:
    """Return the settings by dotted name, as MLflow parameters need them."""

    def walk(prefix: str, tree: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        for key, value in tree.items():
            if isinstance(value, dict):
                yield from walk(f"{prefix}{key}.", value)
            else:
                yield f"{prefix}{key}", value

    return dict(walk("", experiment.model_dump(mode="json")))


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
            rule = problem["msg"].lower().removeprefix("value error, ")
            yield path, f"{rule}, not {_shown(problem['input'])}"


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
