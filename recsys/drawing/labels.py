"""Labels that do not overlap, and short ones that can still be told apart."""

from __future__ import annotations

import re
from collections.abc import Sequence

from recsys.drawing.svg import fitted, text_width


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


def short_labels(labels: Sequence[str], room: float, sizes: Sequence[float]) -> list[str]:
    """Cut the labels that are wider than so many pixels, at first by what all of them begin with.

    ``sizes`` are the heights of their letters.

    >>> short_labels(["shop", "shop-markov-average", "shop-markov"], 90, [12] * 3)
    ['shop', '…markov-av…', 'shop-markov']
    """
    first, last = (min(labels), max(labels)) if len(labels) > 1 else ("", "")
    same = (first[:end] for end in range(len(first), 0, -1) if first[:end] == last[:end])
    shared = next(same, "")
    if any(re.match(r"\w", label[len(shared) :]) for label in labels):
        shared = shared[: max(map(shared.rfind, "-_ .,")) + 1]
    rest = [re.sub(r"^\W+", "", label[len(shared) :]) for label in labels]
    return [
        label
        if text_width(label, size) <= room
        else fitted(f"…{end}" if shared and end else label, room, size)
        for label, end, size in zip(labels, rest, sizes, strict=True)
    ]
