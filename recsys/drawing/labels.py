"""Labels that do not overlap."""

from __future__ import annotations

from collections.abc import Sequence


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Move positions as little as needed so that neighbours are a gap apart, between two ends.

    They keep their order. If there is no room for all, the gap shrinks.

    >>> spread([10.0, 10.0, 50.0], 12, 0, 100)
    [4.0, 16.0, 50.0]
    """
    count = len(wanted)
    if count > 1:
        gap = min(gap, (high - low) / (count - 1))
    order = sorted(range(count), key=lambda index: wanted[index])
    # Without the gaps the task is to keep the order: neighbours out of order meet in their mean.
    blocks: list[tuple[float, int]] = []
    for place, index in enumerate(order):
        mean, size = wanted[index] - place * gap, 1
        while blocks and blocks[-1][0] > mean:
            earlier, number = blocks.pop()
            mean = (earlier * number + mean * size) / (number + size)
            size += number
        blocks.append((mean, size))
    flat = [mean for mean, size in blocks for _ in range(size)]
    top = high - (count - 1) * gap
    moved = [0.0] * count
    for place, index in enumerate(order):
        moved[index] = min(max(flat[place], low), top) + place * gap
    return moved
