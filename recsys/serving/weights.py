"""The weights of a bundle: to and from a safetensors file."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from recsys.errors import InputError
from recsys.model.protocols import Model


def save_weights(model: Model, path: Path) -> None:
    """Write the weights of a model."""
    weights = {
        name: weight.detach().cpu().contiguous() for name, weight in model.state_dict().items()
    }
    save_file(weights, path)


def load_weights(model: Model, path: Path) -> None:
    """Give a model the weights of a file.

    Raises:
        InputError: the file cannot be read, or its weights do not fit the model.
    """
    try:
        weights = load_file(path)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path}: cannot be read as safetensors: {error}") from error
    expected = {name: tuple(weight.shape) for name, weight in model.state_dict().items()}
    found = {name: tuple(weight.shape) for name, weight in weights.items()}
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            raise InputError(
                f"{path}: weight {name!r} is {found.get(name, 'missing')}, but the config makes it "
                f"{expected.get(name, 'unknown')}"
            )
        if weights[name].dtype != (made := model.state_dict()[name].dtype):
            raise InputError(f"{path}: weight {name!r} is {weights[name].dtype}, not {made}")
        if weights[name].isnan().any():
            raise InputError(f"{path}: weight {name!r} is not a number")
    model.load_state_dict(weights)
