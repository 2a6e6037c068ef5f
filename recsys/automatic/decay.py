"""The decay at the end of an automatic training."""

from __future__ import annotations

from dataclasses import replace

from recsys.automatic.contender import Contender
from recsys.model.protocols import Model
from recsys.training.loop import train
from recsys.training.state import MONITOR, Curve

_LUCK = 0.03
"""The best of many validations at a constant rate is flattered by chance: they vary by about so
much from epoch to epoch, those of a decay hardly."""


def decay(contender: Contender, epochs: int) -> tuple[Model, Curve]:
    """Let the learning rate decay from the best state; return the best model and the curve.

    The best epoch of the decay is taken unless the one that it started from is clearly better. On
    Sports 24 validations at the constant rate after the best one were 4.7% below it on average, and
    those of the decay from there 1.5%; a refit up to the best one of all would have had no decay.

    Args:
        contender: with at least one validation. Ctrl-C ends the decay, and is noted there.
        epochs: those of the decay.
    """
    hold, before = contender.best_epoch, contender.quality
    start = contender.before_decay(contender.best_state, "valid", epochs)
    constant = [dict(epoch) for epoch in start.curve.epochs]
    start.curve.best_epoch = None
    for epoch in start.curve.epochs:  # the decay is compared with itself
        epoch.pop(MONITOR, None)
    model, curve = train(
        contender.decaying(hold, epochs),
        contender.catalogue,
        contender.dataset.histories("valid"),
        contender.validation,
        hold + epochs,
        contender.record,
        contender.progress,
        start,
    )
    contender.interrupted = curve.interrupted
    decayed = curve.best
    curve.epochs[:hold] = constant
    if decayed >= (1 - _LUCK) * before:
        return model, curve
    model, best = contender.best_model()
    return model, replace(best, epochs=curve.epochs, interrupted=curve.interrupted)


def epochs_to_repeat(curve: Curve, hold: int) -> int:
    """Return how many epochs of a decay its refit repeats: all, unless one was clearly better.

    The best one of a decay is flattered by chance too, and a refit that ends before the decay does
    has a high learning rate at its end.

    Args:
        curve: that `decay` returned.
        hold: the epochs before the decay.
    """
    best, _ = curve.validated()
    decayed = [epoch[MONITOR] for epoch in curve.epochs[hold:] if MONITOR in epoch]
    if best <= hold or decayed[-1] < (1 - _LUCK) * max(decayed):
        return max(best - hold, 1)
    return len(curve.epochs) - hold
