"""The kernels compile for GPUs that are not there, fit on them, and run in Triton's interpreter."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed: torch's CUDA builds bring it")

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from recsys.kernels import decayed_attention, softmax
from tests.unit.own_process import passed_in_own_process

SHARED_KIB = {80: 163, 90: 227}
"""The shared memory that a program may use, by architecture: A100 and H100."""
SPILLED = {torch.bfloat16: 0, torch.float32: 2500}
"""The bytes a thread may keep outside its registers. Float32 is for GPUs without bf16."""
POINTERS = {torch.bfloat16: "*bf16", torch.float32: "*fp32"}


@pytest.mark.slow
def test_the_kernels_are_right_in_the_interpreter() -> None:
    assert passed_in_own_process("tests/unit/test_kernels.py", TRITON_INTERPRET="1")


@pytest.fixture(autouse=True)
def _compile_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


@pytest.mark.parametrize("architecture", SHARED_KIB)
@pytest.mark.parametrize(
    ("dtype", "length", "dim"),
    [
        (torch.bfloat16, 1, 1),  # sizes of 1 are constants to Triton
        (torch.bfloat16, 200, 64),
        (torch.bfloat16, 50, 128),
        pytest.param(torch.float32, 50, 128, marks=pytest.mark.slow),  # the largest of all
    ],
    ids=str,
)
def test_attention_fits_on_a_gpu(
    architecture: int, dtype: torch.dtype, length: int, dim: int
) -> None:
    sides = ("keys", "values", "queries", "value_queries", "attended")
    gradients = ("gradient", "logit_gradient", "value_score_gradient")
    sizes = ("batch", "length", "candidates", "dim")
    types = dict.fromkeys((*sides, *gradients), POINTERS[dtype]) | dict.fromkeys(sizes, "i32")
    for average in (True, False):
        totals = POINTERS[dtype] if average else "*fp32"
        for kernel in (decayed_attention._forward_kernel, decayed_attention._backward_kernel):
            constants = decayed_attention.block_sizes(length, dim, dtype)
            constants |= dict.fromkeys(sizes, 1) if length == 1 else {}
            shared, spilled = compile_for(
                architecture,
                kernel,
                types | {"decay": "*fp32", "totals": totals},
                {"average": average, **constants},
                decayed_attention.LAUNCH,
            )
            assert shared <= SHARED_KIB[architecture] << 10
            assert spilled <= SPILLED[dtype]


@pytest.mark.parametrize("architecture", SHARED_KIB)
@pytest.mark.parametrize("dtype", POINTERS, ids=str)
@pytest.mark.parametrize("smoothing", [True, False])
@pytest.mark.parametrize(
    ("by_position", "shape", "block_rows"),
    [(True, (5000, 100), 32), (True, (100, 5000), 1), (False, (5000, 100), 64)],
    ids=["items together", "one position", "positions together"],
)
def test_softmax_fits_on_a_gpu(
    architecture: int,
    dtype: torch.dtype,
    by_position: bool,
    shape: tuple[int, int],
    block_rows: int,
    smoothing: bool,
) -> None:
    rows = torch.empty(shape) if by_position else torch.empty(shape[::-1]).T
    assert softmax.tile_shape(rows)["block_rows"] == block_rows
    tensors = ("log_sums", "logit_sums", "counts", "spread")
    sizes = ("num_rows", "num_columns", "width", "row_stride", "column_stride", "tiles_per_part")
    types = dict.fromkeys(tensors, "*fp32") | dict.fromkeys(sizes, "i32")
    types |= {"logits": POINTERS[dtype], "targets": "*i64", "label_smoothing": "fp32"}
    constants = {"column_stride" if by_position else "row_stride": 1, "smoothing": smoothing}
    for kernel in (softmax._sums_kernel, softmax._gradient_kernel):
        shared, spilled = compile_for(
            architecture, kernel, types, constants | softmax.tile_shape(rows), softmax.LAUNCH
        )
        assert shared <= SHARED_KIB[architecture] << 10
        assert spilled == 0


def compile_for(
    architecture: int,
    kernel: Any,
    types: dict[str, str],
    constants: dict[str, Any],
    options: dict[str, int],
) -> tuple[int, int]:
    """Return the bytes of shared memory, and the bytes that a thread keeps outside registers."""
    names = kernel.arg_names
    pointers = [name for name in names if types.get(name, "").startswith("*")]
    source = ASTSource(
        fn=kernel,
        signature={name: "constexpr" if name in constants else types[name] for name in names},
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in pointers},
    )
    found = triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=options)
    return int(found.metadata.shared), stack_bytes(found.asm["cubin"])


def stack_bytes(binary: bytes) -> int:
    """The size of the stack of a thread, by a tool that comes with triton."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with NamedTemporaryFile() as file:
        file.write(binary)
        file.flush()
        words = [str(tool), "--dump-resource-usage", file.name]
        usage = subprocess.run(words, capture_output=True, check=True, text=True).stdout
    found = re.search(r"STACK:(\d+)", usage)
    assert found is not None, usage
    return int(found[1])
