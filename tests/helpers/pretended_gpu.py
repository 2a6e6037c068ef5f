"""A GPU that is none: its tensors are computed on the CPU; operations on both devices raise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

_NAME = "pretended"
_MOVES = {"aten::_to_copy", "aten::copy_"}
_TAKE_INDICES_OF_THE_CPU = {"aten::index", "aten::index_put", "aten::index_put_"}


class _Backend(backend_registration._DummyBackendModule):
    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]


@cache
def pretended_gpu() -> torch.device:
    """Make the device, which torch takes as its accelerator until the process ends."""
    backend_registration._setup_privateuseone_for_python_backend(_NAME, _Backend())
    return torch.device(_NAME, 0)


class OnGpu(Tensor):
    """A tensor on the pretended GPU."""

    on_cpu: Tensor
    """The same tensor on the CPU."""

    @staticmethod
    def __new__(cls, inner: Tensor) -> OnGpu:  # noqa: PYI034 - no subclasses
        made: OnGpu = Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=pretended_gpu(),
            requires_grad=inner.requires_grad,
        )
        made.on_cpu = inner
        return made

    def tolist(self) -> Any:
        """The numbers, which a GPU's tensor gives too."""
        return self.on_cpu.tolist()

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"OnGpu({self.on_cpu!r})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        function: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        return _run(function, args, kwargs or {})


class PretendedGpu(TorchDispatchMode):
    """While it is entered, tensors can be made on the pretended GPU and moved to it."""

    def __torch_dispatch__(
        self,
        function: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        return _run(function, args, kwargs or {})


def _run(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    name = function.name().split(".")[0]
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    there = [tensor for tensor in tensors if isinstance(tensor, OnGpu)]
    if there and name not in _MOVES:
        checked = tensors
        if name in _TAKE_INDICES_OF_THE_CPU and isinstance(args[0], OnGpu):
            checked = [leaf for leaf in tree_leaves(args[2:]) if isinstance(leaf, Tensor)]
        for tensor in checked:
            if not isinstance(tensor, OnGpu) and tensor.dim():
                raise RuntimeError(f"{name}: of tensors on the GPU and one on the CPU")
    kwargs = dict(kwargs)
    if kwargs.get("device") is not None:
        wrapped = torch.device(kwargs["device"]).type == _NAME
        kwargs["device"] = torch.device("cpu")
    else:
        wrapped = isinstance(args[0], OnGpu) if name == "aten::copy_" else bool(there)
    args, kwargs = tree_map(_unwrapped, (args, kwargs))
    known = {id(tensor.on_cpu): tensor for tensor in there}

    def wrap(answer: Any) -> Any:
        if not isinstance(answer, Tensor):
            return answer
        return known.get(id(answer), OnGpu(answer) if wrapped else answer)

    return tree_map(wrap, function(*args, **kwargs))


def _unwrapped(value: Any) -> Any:
    return value.on_cpu if isinstance(value, OnGpu) else value
