"""The weights of a bundle: to and from a safetensors file."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from recsys.baselines.saved import LARGEST_VALUE
from recsys.errors import InputError
from recsys.model.models import Model


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
    made = model.state_dict()
    expected = {name: tuple(weight.shape) for name, weight in made.items()}
    constants = {
        f"{place}.{name}"
        for place, module in model.named_modules()
        for name, _ in module.named_buffers(recurse=False)
    }
    found = {name: tuple(weight.shape) for name, weight in weights.items()}
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            raise InputError(
                f"{path}: weight {name!r} is {found.get(name, 'missing')}, but the config makes it "
                f"{expected.get(name, 'unknown')}"
            )
        weight, own = weights[name], made[name]
        if weight.dtype != own.dtype:
            raise InputError(f"{path}: weight {name!r} is {weight.dtype}, not {own.dtype}")
        if name in constants and not torch.allclose(weight, own):
            raise InputError(
                f"{path}: {name!r} is {weight.tolist()}, but the config makes it {own.tolist()}"
            )
        lowest, highest = weight.aminmax() if weight.numel() else (0, 0)
        if not (lowest > -LARGEST_VALUE and highest < LARGEST_VALUE):  # NaN too
            raise InputError(
                f"{path}: weight {name!r} must be finite and below {LARGEST_VALUE:g}, not from "
                f"{lowest:g} to {highest:g}"
            )
    model.load_state_dict(weights)
