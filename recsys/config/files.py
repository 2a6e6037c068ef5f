"""YAML to experiments and back, with overrides; and the configs that ship with the package."""

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from recsys.config.experiment import Experiment
from recsys.config.section import Section, complaints_of
from recsys.errors import InputError, checked_path, did_you_mean, one_line

_MAX_ALIASES = 20
_YAML_ERRORS = yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError, RecursionError
"""PyYAML raises the others for values that do not fit their tags, and for too deep a nesting."""
_PACKAGE = Path(__file__).parents[1]

AnySection = TypeVar("AnySection", bound=Section)


def load_experiment(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Experiment:
    """Read an experiment from a YAML file or preset, with ``a.b=value`` overrides (YAML too).

    Raises:
        InputError: the file cannot be read, or fields are unknown or wrong; it names all of them.
    """
    return parse_experiment(_read_tree(path), overrides, str(path))


def load_section(path: str | os.PathLike[str], kind: type[AnySection]) -> AnySection:
    """Read a section that has a YAML file, or a preset, of its own; see `load_experiment`."""
    return _check(_read_tree(path), kind, str(path))


def parse_experiment(
    tree: dict[str, Any], overrides: Sequence[str] = (), origin: str = "config"
) -> Experiment:
    """Validate a nested dict with ``a.b=value`` overrides; see `load_experiment`."""
    for override in overrides:
        key, sign, value = override.partition("=")
        if not sign or not key:
            raise InputError(f"--set {override}: write it as key=value, e.g. model.dropout=0.1")
        *parents, leaf = key.split(".")
        section: Any = tree
        for depth, parent in enumerate(parents, 1):
            if parent in {"split", "candidates", "loss"} and isinstance(section.get(parent), str):
                section[parent] = {"kind": section[parent]}  # the short form
            section = section.setdefault(parent, {})
            if not isinstance(section, dict):
                raise InputError(f"--set {override}: {'.'.join(parents[:depth])} has no fields")
        section[leaf] = _parse_yaml(value, f"--set {override}")
    return _check(tree, Experiment, origin)


def _check(tree: dict[str, Any], kind: type[AnySection], origin: str) -> AnySection:
    try:
        return kind.model_validate(tree)
    except ValidationError as error:
        raise InputError(f"{origin}: {'; '.join(complaints_of(error, kind))}") from error


def continued(
    earlier: Experiment, bundle: str, changes: Experiment | None, overrides: Sequence[str]
) -> Experiment:
    """Return the experiment of a training that starts from a trained model, in a folder.

    The ``earlier`` settings of the model stay, except those of the data. The fields that the
    ``changes`` set win over them, a section of another kind as a whole, and overrides over all.
    """
    tree = earlier.model_dump(mode="json", exclude={"data": True, "start": {"digest"}})
    stem, _, number = earlier.name.rpartition("-")
    again = bool(stem) and number.isdecimal()
    tree["name"] = f"{stem}-{int(number) + 1}" if again else f"{earlier.name}-2"
    if changes is not None:
        tree = merged(tree, changes.model_dump(mode="json", exclude_unset=True))
    tree["start"] = {**(tree.get("start") or {}), "bundle": bundle}
    return parse_experiment(tree, overrides, f"{bundle}, continued")


def merged(tree: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return a tree with other values, section by section; another kind replaces its section."""
    result = tree | changes
    for name in tree.keys() & changes.keys():
        old, new = tree[name], changes[name]
        if isinstance(old, dict) and isinstance(new, dict):
            same_kind = "kind" not in old or new.get("kind", old["kind"]) == old["kind"]
            result[name] = merged(old, new) if same_kind else new
    return result


def dump_experiment(experiment: Experiment) -> str:
    """Return the experiment as YAML."""
    return yaml.safe_dump(experiment.model_dump(mode="json"), sort_keys=False)


def flatten(experiment: Experiment) -> dict[str, Any]:
    """Return the settings by dotted name, as MLflow parameters need them."""

    def walk(prefix: str, tree: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        for key, value in tree.items():
            if isinstance(value, dict) and key != "where":  # whose names may hold any character
                yield from walk(f"{prefix}{key}.", value)
            else:
                yield f"{prefix}{key}", value

    return dict(walk("", experiment.model_dump(mode="json")))


# --- Files ---------------------------------------------------------------------------------------


def presets() -> dict[str, Path]:
    """Return the files of the configs that ship with the package, by name."""
    in_wheel, in_checkout = _PACKAGE / "presets", _PACKAGE.parent / "configs"
    folder = in_wheel if in_wheel.is_dir() else in_checkout
    return {path.stem: path for path in sorted(folder.glob("*.yaml"), key=lambda path: path.stem)}


def find_config(name: str | os.PathLike[str]) -> Path | None:
    """Return a YAML file of that name, or else the preset; None if there is neither."""
    path = checked_path(name)
    if path.is_file() and path.suffix in ("", ".yaml", ".yml"):
        return path
    return presets().get(str(name))


def read_config(name: str | os.PathLike[str]) -> str:
    """Return the text of a YAML file or a preset; an `InputError` if it cannot be read."""
    file = find_config(name)
    if file is None:
        hint = did_you_mean(Path(name).stem, presets()) or "; recsys configs lists the presets"
        raise InputError(f"{name}: neither a config file nor a preset{hint}")
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InputError(f"{name}: cannot read the config: {error}") from error


def _read_tree(path: str | os.PathLike[str]) -> dict[str, Any]:
    tree = _parse_yaml(read_config(path), str(path))
    if not isinstance(tree, dict | None):
        raise InputError(f"{path}: a config is a mapping of sections, not {type(tree).__name__}")
    return tree or {}


def _parse_yaml(text: str, origin: str) -> Any:
    try:
        return _Loader(text).get_single_data()
    except _YAML_ERRORS as error:
        problem = str(error).replace(' in "<unicode string>",', " in")
        raise InputError(f"{origin}: not valid YAML: {one_line(problem, 300)}") from error


class _Loader(yaml.SafeLoader):
    """SafeLoader that reads 1e-3 as a number, as YAML 1.2 does, and bounds what it reads."""

    _aliases = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Compose a node and all below it; refuse keys given twice, and too many aliases."""
        event = self.peek_event()  # type: ignore[no-untyped-call]
        self._aliases += isinstance(event, yaml.AliasEvent)
        if self._aliases > _MAX_ALIASES:  # ten levels of ten aliases are ten billion values
            problem = f"more than {_MAX_ALIASES} aliases"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)
        node = super().compose_node(parent, index)
        if isinstance(node, yaml.MappingNode):
            known = set[tuple[str, str]]()
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode) and (key.tag, key.value) in known:
                    problem = f"{key.value!r} is given twice"
                    raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
                known.add((key.tag, str(key.value)))
        return node


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:\d+\.?\d*|\.\d+)[eE][-+]?\d+$"),
    list("-+.0123456789"),
)
