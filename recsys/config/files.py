"""Experiments from and to YAML, with overrides."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from recsys.config.experiment import Experiment
from recsys.config.presets import find_config, no_config
from recsys.config.section import Section, complaints_of
from recsys.config.yaml_text import MAX_CHARACTERS, DocumentError, parse_yaml
from recsys.errors import InputError, one_line

_MAX_LENGTH = 300

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
        for path, complaint in complaints_of(error, kind):
            cause = next((o for o in overrides[::-1] if _concerns(o, path)), None)
            source = origin if cause is None else f"--set {one_line(cause, _MAX_LENGTH)}"
            complaints.setdefault(source, []).append(complaint)
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
