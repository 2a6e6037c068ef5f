"""YAML text to plain values, numbers as YAML 1.2 writes them."""

from __future__ import annotations

import re
from typing import Any

import yaml


class _Loader(yaml.SafeLoader):
    """SafeLoader that reads 1e-3 as a number, as YAML 1.2 does, and not as text."""


_Loader.yaml_implicit_resolvers = {
    letter: list(resolvers) for letter, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:\d+\.?\d*|\.\d+)[eE][-+]?\d+$"),
    list("-+.0123456789"),
)


def parse_yaml(text: str) -> Any:
    """Return the content of YAML text, without any Python object of its choice.

    Raises:
        yaml.YAMLError: the text is not YAML.
    """
    return yaml.load(text, Loader=_Loader)  # noqa: S506 - it is a SafeLoader
