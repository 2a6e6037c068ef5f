"""The learning curve as a plot."""

from __future__ import annotations

import math
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from recsys.training.curve import MONITOR, Curve


def draw_learning_curve(curve: Curve, title: str, path: Path) -> None:
    """Plot training loss and validation NDCG@10 by epoch, with the best epoch marked, as PNG.

    An epoch of a mean of models has no training loss: only its validation is marked.
    """
    epochs = range(1, len(curve.epochs) + 1)
    figure = Figure(figsize=(7, 4), layout="constrained")
    loss = figure.subplots()
    loss.plot(epochs, [e.get("train/loss", math.nan) for e in curve.epochs], color="tab:gray")
    loss.set(title=title, xlabel="epoch", ylabel="training loss (gray)")
    loss.xaxis.set_major_locator(MaxNLocator(integer=True))
    ndcg = loss.twinx()
    validated = [epoch for epoch in epochs if MONITOR in curve.epochs[epoch - 1]]
    values = [curve.epochs[epoch - 1][MONITOR] for epoch in validated]
    if curve.start:
        validated, values = [0, *validated], [curve.start[MONITOR], *values]
    ndcg.plot(validated, values, color="tab:blue", marker=".")
    ndcg.set_ylabel("validation NDCG@10 (blue)")
    if curve.best_epoch is not None:
        ndcg.annotate(
            f"best {curve.best:.4f}",
            (curve.best_epoch, curve.best),
            textcoords="offset points",
            xytext=(0, -22),
            ha="right",
            arrowprops={"arrowstyle": "->"},
        )
    figure.savefig(path, dpi=120)
