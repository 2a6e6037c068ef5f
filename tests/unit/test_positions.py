"""Positions: the published formulas, their rotations, the learned table, counting from the end."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from recsys.model.embeddings import LearnedPositions, SinusoidalPositions, positions_from_end


def test_sinusoidal_positions_by_hand() -> None:
    """D = 4: wavelengths 2π and 2π · 10000^(2/4) = 200π."""
    found = SinusoidalPositions(5, 4)(torch.arange(5))
    for position in range(5):
        near, far = float(position), position / 100
        expected = [math.sin(near), math.cos(near), math.sin(far), math.cos(far)]
        assert found[position].tolist() == pytest.approx(expected, abs=1e-6)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 199), st.integers(1, 33), st.data())
def test_both_published_formulas(position: int, dim: int, data: st.DataObject) -> None:
    """PE(p, 2i) = sin(p / 10000^(2i/D)), PE(p, 2i + 1) = cos(p / 10000^(2i/D)), D odd or even."""
    feature = data.draw(st.integers(0, dim - 1))
    angle = position / 10_000 ** (2 * (feature // 2) / dim)
    found = SinusoidalPositions(200, dim)(torch.tensor([position]))[0, feature]
    assert found.item() == pytest.approx([math.sin, math.cos][feature % 2](angle), abs=1e-6)


def rotation(positions: SinusoidalPositions, shift: int) -> Tensor:
    """M_k: blocks [[cos, sin], [-sin, cos]] of the angles by which PE(k) differs from PE(0)."""
    pairs = positions(torch.tensor(shift)).double().unflatten(0, (-1, 2))
    blocks = [torch.tensor([[cos, sin], [-sin, cos]]) for sin, cos in pairs.tolist()]
    matrix: Tensor = torch.block_diag(*blocks).double()
    return matrix


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 12), st.integers(0, 150))
def test_a_shift_is_one_rotation_wherever_it_starts(half: int, shift: int) -> None:
    """PE(p + k) = M_k PE(p) for all p at once, with M_k orthogonal and a function of k only."""
    positions = SinusoidalPositions(300, 2 * half)
    matrix = rotation(positions, shift)
    start = torch.arange(150)
    found, moved = positions(start).double(), positions(start + shift).double()
    assert torch.allclose(moved, found @ matrix.T, rtol=0, atol=1e-6)
    assert torch.allclose(matrix @ matrix.T, torch.eye(2 * half).double(), rtol=0, atol=1e-6)


def test_similarity_of_positions_depends_on_distance_only() -> None:
    """A consequence of the rotations: PE(p) · PE(p + k) is the same for every p."""
    table = SinusoidalPositions(60, 16)(torch.arange(60)).double()
    products = table @ table.T
    for distance in range(60):
        diagonal = products.diagonal(distance)
        assert torch.allclose(diagonal, diagonal[:1], rtol=0, atol=1e-5)
    assert products[0, 0] > products[0, 1:].max()


def test_sinusoids_are_computed_not_trained_and_not_stored() -> None:
    positions = SinusoidalPositions(7, 6)
    assert not list(positions.parameters())
    assert not positions.state_dict()
    grid = torch.tensor([[0, 3], [6, 3]])
    assert positions(grid).shape == (2, 2, 6)
    assert torch.equal(positions(grid)[0, 1], positions(grid)[1, 1])


def test_learned_positions_are_rows_of_a_table() -> None:
    positions = LearnedPositions(5, 3)
    (table,) = positions.parameters()
    assert table.shape == (5, 3)
    grid = torch.tensor([[4, 0], [4, 2]])
    assert torch.equal(positions(grid), table[grid])
    positions(grid).sum().backward()
    assert table.grad is not None
    assert table.grad[:, 0].tolist() == [1, 0, 1, 0, 2]
    with pytest.raises(IndexError):
        positions(torch.tensor([5]))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=4), st.integers(0, 3))
def test_positions_count_from_the_last_item(lengths: list[int], extra: int) -> None:
    width = max(lengths) + extra
    found = positions_from_end(torch.tensor(lengths), width)
    assert found.shape == (len(lengths), width)
    for row, length in zip(found.tolist(), lengths, strict=True):
        assert row == [*reversed(range(length)), *([0] * (width - length))]
