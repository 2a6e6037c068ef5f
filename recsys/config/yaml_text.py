"""YAML to plain values: bounded in size, depth and aliases, without duplicate keys."""

from __future__ import annotations

import re
from typing import Any, Protocol

import yaml

MAX_CHARACTERS = 1 << 18
_MAX_DEPTH = 50
_MAX_NODES = 100_000
"""Of a document with its aliases expanded: each of ten aliases of ten aliases counts."""
_CONSTRUCTION_ERRORS = (ValueError, TypeError, LookupError, AttributeError, OverflowError)
"""What PyYAML raises for a value that does not fit its tag, e.g. ``!!int abc``."""


class _Mark(Protocol):
    """A place in a text; PyYAML has two classes for it."""

    line: int


class DocumentError(ValueError):
    """The text is not a document that a config can be; the message is one line."""


def parse_yaml(text: str) -> Any:
    """Return the value of a YAML document; None if it is empty.

    Raises:
        DocumentError: it is not valid, too long, too deep, or has a key twice.
    """
    if len(text) > MAX_CHARACTERS:
        raise DocumentError(f"longer than {MAX_CHARACTERS:,} characters")
    try:
        _check_depth(text)
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _Expansion().add(node)
        return loader.construct_document(node)
    except yaml.YAMLError as error:
        raise DocumentError(_one_line(error)) from error
    except _CONSTRUCTION_ERRORS as error:
        if isinstance(error, DocumentError):
            raise
        raise DocumentError(f"a value does not fit its type: {error}") from error


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


def _check_depth(text: str) -> None:
    """Refuse a document that is nested too deeply, before anything follows it recursively."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > _MAX_DEPTH:
            raise DocumentError(f"{_place(event.start_mark)}nested deeper than {_MAX_DEPTH} levels")


class _Expansion:
    """The sizes of the nodes of a document, with their aliases expanded."""

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}

    def add(self, node: yaml.Node) -> int:
        """Return the size of a node, and check it.

        Raises:
            DocumentError: it is too large or contains itself, or a mapping has a key twice.
        """
        if id(node) in self._sizes:
            size = self._sizes[id(node)]
            if not size:
                raise DocumentError(f"{_place(node.start_mark)}an alias contains itself")
            return size
        self._sizes[id(node)] = 0
        children: list[yaml.Node] = []
        if isinstance(node, yaml.SequenceNode):
            children = node.value
        elif isinstance(node, yaml.MappingNode):
            _refuse_duplicates(node)
            children = [part for pair in node.value for part in pair]
        size = 1 + sum(self.add(child) for child in children)
        if size > _MAX_NODES:
            raise DocumentError(f"{_place(node.start_mark)}more than {_MAX_NODES:,} values")
        self._sizes[id(node)] = size
        return size


def _refuse_duplicates(node: yaml.MappingNode) -> None:
    seen = set()
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode):
            name = key.tag, key.value
            if name in seen:
                raise DocumentError(f"{_place(key.start_mark)}{key.value!r} is given twice")
            seen.add(name)


def _place(mark: _Mark | None) -> str:
    return "" if mark is None else f"line {mark.line + 1}: "


def _one_line(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError):
        words = error.problem or error.context or "cannot be read"
        return f"{_place(error.problem_mark or error.context_mark)}{words}"
    return str(error)
