"""The configs that ship with the package, by name."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recsys.config.yaml_text import parse_yaml
from recsys.errors import InputError, checked_path, did_you_mean

_PACKAGE = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Preset:
    """A shipped config: an experiment, a suite or a search."""

    name: str
    """The name of the file without its extension."""
    path: Path
    """The YAML file."""

    @property
    def text(self) -> str:
        """The YAML."""
        return self.path.read_text(encoding="utf-8")

    @property
    def description(self) -> str:
        """The comment in the first line of the YAML."""
        return self.text.partition("\n")[0].removeprefix("#").strip()

    @property
    def tree(self) -> dict[str, Any]:
        """The content of the YAML."""
        tree: dict[str, Any] = parse_yaml(self.text)
        return tree

    @property
    def dataset(self) -> str:
        """The datasets that it names, separated by commas; empty if it names none."""
        entries = [self.tree, *self.tree.get("datasets", [])]
        sources = [entry.get("data", {}).get("source") for entry in entries]
        return ", ".join(source for source in sources if source)


def presets() -> list[Preset]:
    """Return all shipped configs, by name.

    The wheel has them in ``recsys/presets``, a checkout in ``configs`` beside the package.
    """
    in_wheel, in_checkout = _PACKAGE / "presets", _PACKAGE.parent / "configs"
    folder = in_wheel if in_wheel.is_dir() else in_checkout
    shipped = {path.stem: path for path in folder.glob("*.yaml")}
    return [Preset(name, shipped[name]) for name in sorted(shipped)]


def find_config(name: str | os.PathLike[str]) -> Path | None:
    """Return the file of a config; None if it is neither a YAML file nor the name of a preset.

    A file wins over a preset of the same name.
    """
    path = checked_path(name)
    if path.is_file() and path.suffix in ("", ".yaml", ".yml"):
        return path
    return next((preset.path for preset in presets() if preset.name == str(name)), None)


def preset_by_part(part: str) -> Preset:
    """Return the preset of a name, or the only one whose name has these words.

    Raises:
        InputError: no preset, or more than one, fits.
    """
    known = {preset.name: preset for preset in presets()}
    if part in known:
        return known[part]
    fitting = [name for name in known if f"-{part}-" in f"-{name}-"]
    if len(fitting) == 1:
        return known[fitting[0]]
    if fitting:
        raise InputError(f"preset {part!r}: several have it in their name: {', '.join(fitting)}")
    raise InputError(f"preset {part!r}: no preset has this name{_hint(part)}")


def no_config(name: str | os.PathLike[str]) -> InputError:
    """Return the error for a name that is neither a file nor a preset."""
    path = Path(name)
    if path.is_dir():
        return InputError(f"{name}: is a folder: a config is a YAML file or a preset's name")
    return InputError(f"{name}: neither a config file nor a preset{_hint(path.stem)}")


def _hint(name: str) -> str:
    names = [preset.name for preset in presets()]
    return did_you_mean(name, names) or "; recsys configs lists the presets"
