"""The race of the candidates: what was tried, and how it went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from recsys.comparison.formats import decimals
from recsys.drawing.axes import value_axis
from recsys.drawing.lines import Line, draw_lines
from recsys.drawing.marks import Style, styles_by_merit
from recsys.drawing.picture import FULL, Picture, draw
from recsys.drawing.values import Values


class RacePoint(NamedTuple):
    """One measurement of a candidate."""

    seconds: float
    """Since the start of the race."""
    epochs: int
    """The epochs it had trained by then; 0 for counts."""
    ndcg: float
    """NDCG@10 on the validation targets."""

    @property
    def when(self) -> str:
        """When it was measured, in words."""
        return f"{self.seconds:,.0f} s" + (f", epoch {self.epochs:g}" if self.epochs else "")


@dataclass(frozen=True, slots=True)
class Heat:
    """One candidate of the race."""

    candidate: str
    """Its name."""
    description: str
    """What it is, in words or settings."""
    points: tuple[RacePoint, ...]
    """Its measurements in the order of time; none if it could not be trained."""
    outcome: str
    """What became of it: won, dropped after 4 epochs, stopped early …"""
    won: bool = False

    @property
    def best(self) -> float | None:
        """Its best NDCG@10 on validation; None if it was never measured."""
        return max((point.ndcg for point in self.points), default=None)


@dataclass(frozen=True, slots=True)
class TunedBaseline:
    """A baseline that the candidates are measured against."""

    name: str
    settings: str
    """Those that were chosen, in words; empty if it has none."""
    ndcg: float
    """NDCG@10 on the validation targets."""
    seconds: float
    """What choosing them took."""


class RankedHeat(NamedTuple):
    """A candidate at its place, with its style."""

    heat: Heat
    style: Style


def ranked_heats(heats: Sequence[Heat]) -> list[RankedHeat]:
    """Return the winners, then the others, each by their best NDCG@10."""
    ordered = sorted(heats, key=lambda heat: (not heat.won, -(heat.best or 0.0)))
    styles = styles_by_merit(len(ordered))
    return [RankedHeat(heat, style) for heat, style in zip(ordered, styles, strict=True)]


def draw_race(heats: Sequence[Heat], baseline: TunedBaseline | None = None) -> Picture | None:
    """Draw NDCG@10 on validation over seconds, one line per candidate; None without measurements.

    The line of a candidate that did not win ends with a cross.

    Args:
        heats: the candidates, in any order.
        baseline: a dashed line shows what it reaches.
    """
    lines = [
        Line(
            label=heat.candidate,
            xs=[point.seconds for point in heat.points],
            ys=[point.ndcg for point in heat.points],
            places=[point.when for point in heat.points],
            values=[decimals(point.ndcg) for point in heat.points],
            style=style,
            strong=heat.won,
            cross=not heat.won,
        )
        for heat, style in ranked_heats(heats)
        if heat.points
    ]
    if not lines:
        return None
    seconds = max(line.xs[-1] for line in lines)
    caption = (
        "NDCG@10 on the validation targets, over time. A line that ends with a cross was followed "
        "no further. The colours are those of the table below. "
    )
    if baseline is not None:
        lines.append(_level(baseline, seconds))
        caption += "The dashed grey line is the best baseline. "
    heights = [y for line in lines for y in line.ys]
    minutes = seconds > 180
    if minutes:
        lines = [replace(line, xs=[x / 60 for x in line.xs]) for line in lines]
    x = value_axis(
        "minutes since the start" if minutes else "seconds since the start",
        0,
        seconds / 60 if minutes else seconds,
        8,
    )
    y = value_axis("NDCG@10 on validation", min(heights), max(heights))
    return draw(
        "race",
        "The race",
        caption + "The test targets had no part in it.",
        FULL,
        lambda width: draw_lines(lines, width, x, y, "The race of the candidates", height=380),
        Values(
            ("candidate", "measured at", "NDCG@10 on validation"),
            tuple(
                (heat.candidate, point.when, decimals(point.ndcg))
                for heat, _ in ranked_heats(heats)
                for point in heat.points
            ),
        ),
    )


def _level(baseline: TunedBaseline, seconds: float) -> Line:
    return Line(baseline.name, [0, seconds], [baseline.ndcg] * 2, dashed=True)
