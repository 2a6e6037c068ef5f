"""Directions: their values, and their gradient against that of torch."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from recsys.model.directions import directions


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_gradient_is_that_of_torch(dtype: torch.dtype) -> None:
    """Also of a vector of zeros, such as padding, and of one that is shorter than is divided by."""
    x = torch.randn(2, 5, 7, dtype=torch.float64)
    x[0, 0], x[1, 2] = 0, 1e-20
    x = x.to(dtype).requires_grad_()
    wide = torch.promote_types(dtype, torch.float32)
    expected = F.normalize(x.to(wide), dim=-1)
    found = directions(x)
    assert found.dtype == wide
    torch.testing.assert_close(found, expected)
    upstream = torch.randn_like(found)
    ours, theirs = (torch.autograd.grad(one, x, upstream)[0] for one in (found, expected))
    torch.testing.assert_close(ours, theirs)
    with torch.no_grad():
        torch.testing.assert_close(directions(x), expected)
