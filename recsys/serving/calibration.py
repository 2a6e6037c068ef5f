"""Calibrated probabilities: scores divided by a temperature that is fitted on validation.

Guo et al. 2017, "On calibration of modern neural networks" (temperature scaling).
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from recsys.data.histories import PAD
from recsys.data.prepared import Part, PreparedDataset
from recsys.data.splits import Holdout
from recsys.errors import InputError
from recsys.evaluation.held_out import find_holdout
from recsys.folders.atomic import new_folder
from recsys.inference.scorer import Scorer, user_batches
from recsys.serving.bundle import ModelBundle
from recsys.serving.histories import UserHistories

logger = logging.getLogger(__name__)


def for_evaluation(bundle: ModelBundle, dataset: PreparedDataset, part: Part) -> PreparedDataset:
    """Return a dataset with the item tokens and the features of a model.

    The dataset may be of another log than the model was trained on, such as a later one: items are
    matched by their ids. Those outside the model's catalogue cannot be targets and are skipped in
    histories; a warning counts such targets. Another warning says if targets may have been seen in
    training.

    Args:
        bundle: the model.
        dataset: where the targets are.
        part: which of them are ranked.

    Raises:
        InputError: the model was trained on the targets; or the dataset lacks a feature that the
            model reads.
    """
    if dataset.fingerprint == bundle.manifest.dataset_fingerprint:
        if part == "valid" and "valid" in bundle.manifest.protocol.trained_on:
            raise InputError(
                f"{bundle.path}: the model was trained on the validation targets too (a refit)"
            )
        return bundle.encoders.read(dataset)
    ours = np.concatenate([[PAD], bundle.vocabulary.encode(dataset.vocabulary.ids)])
    items = ours.astype(np.int32)[dataset.items]
    targets = dataset.target_positions(part).targets
    outside = int((items[targets] == PAD).sum())
    if outside:
        logger.warning(
            "%s: %d of %d %s targets are not in the model's catalogue and are left out",
            *(dataset.path, outside, len(targets), part),
        )
    until = bundle.manifest.trained_until
    times = bundle.time_scale.of_dataset(dataset.timestamps, dataset.path)
    if until is None or (len(targets) and times[targets].min() <= until):
        logger.warning(
            "%s: not the dataset that the model was trained on, and not all of its targets are "
            "later than what it was trained on: it may have seen some of them",
            dataset.path,
        )
    mapped = replace(dataset, items=items, timestamps=times, item_table=bundle.item_table)
    return bundle.encoders.read(mapped)


MOST_HISTORIES = 10_000
"""Held-out histories that are scored, drawn at random if there are more."""
BINS = 15
_STEPS = 30
_PRECISION = 1e-4
_FARTHEST = 4.0
"""The largest factor by which a step changes the temperature."""
_LARGEST = 1e6
"""The largest temperature, and the inverse of the smallest, of scores that order all targets."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """How well probabilities hold on held-out targets."""

    part: Part
    targets: int
    temperature: float
    log_loss: float
    """The mean negative logarithm of the target's probability."""
    calibration_error: float
    """That of the most probable item: see `expected_calibration_error`."""


def fit_temperature(bundle: ModelBundle, dataset: PreparedDataset, seed: int = 0) -> float:
    """Return the temperature with the least log loss on validation targets: see `temperature_of`.

    Args:
        bundle: the model, or the baseline.
        dataset: its dataset, or a later one: see `for_evaluation`.
        seed: of the draw of the histories.

    Raises:
        InputError: the model was trained on the validation targets, or there are none.
    """
    return temperature_of(bundle.scorer, _holdout(bundle, dataset, "valid", seed)) or 1.0


def temperature_of(scorer: Scorer, holdout: Holdout) -> float | None:
    """Return the temperature with the least log loss on targets; None if there are no targets.

    The probability of an item after a history is the softmax of score / temperature over all items
    of the catalogue. The log loss is convex in 1 / temperature: Newton's method finds its minimum.
    """
    if not len(holdout.targets):
        return None
    inverse = 1.0
    for _ in range(_STEPS):
        slope = curvature = 0.0
        for scores, target_scores in _scores(scorer, holdout):
            probabilities = (scores * inverse).softmax(dim=1)
            known = scores.masked_fill(scores == -torch.inf, 0.0)
            mean = (probabilities * known).sum(dim=1)
            slope += float((mean - target_scores).sum())
            curvature += float((probabilities * (known - mean[:, None]) ** 2).sum())
        if curvature <= 0:  # all scores are equal, or the target of each history stands out
            break
        lowest = max(inverse / _FARTHEST, 1 / _LARGEST)
        highest = min(inverse * _FARTHEST, _LARGEST)
        before, inverse = inverse, min(max(inverse - slope / curvature, lowest), highest)
        if abs(inverse / before - 1) < _PRECISION:
            break
    return 1 / inverse


def measure_calibration(
    bundle: ModelBundle, dataset: PreparedDataset, part: Part, temperature: float, seed: int = 0
) -> Calibration:
    """Measure the probabilities of a temperature on held-out targets: see `fit_temperature`.

    Raises:
        InputError: as `fit_temperature`.
    """
    holdout = _holdout(bundle, dataset, part, seed)
    losses, confidences, hits = [], [], []
    for scores, target_scores in _scores(bundle.scorer, holdout):
        total = (scores / temperature).logsumexp(dim=1)
        losses.append(total - target_scores / temperature)
        best = scores.amax(dim=1)
        confidences.append((best / temperature - total).exp())
        # An item that scores as high as the target may be the one that is chosen.
        level = (scores == best[:, None]).sum(dim=1)
        hits.append((target_scores == best) / level)
    confidence, hit = (torch.cat(parts).numpy() for parts in (confidences, hits))
    return Calibration(
        part,
        len(confidence),
        temperature,
        float(torch.cat(losses).mean()),
        expected_calibration_error(confidence, hit),
    )


def expected_calibration_error(
    confidence: NDArray[np.float64], hit: NDArray[np.float64], bins: int = BINS
) -> float:
    """Return the mean distance of confidence and accuracy, over bins of equally many predictions.

    Σ_b n_b / n · |accuracy_b - mean confidence_b|. Most confidences in a large catalogue are small:
    bins of equal width would hold nearly all of them in the first one (Nguyen & O'Connor 2015).

    Args:
        confidence: the probability of each predicted item [N].
        hit: whether it was the target [N].
        bins: the number of bins.

    >>> expected_calibration_error(np.array([0.2, 0.2, 0.8, 0.8]), np.array([0, 0, 1, 1]), bins=2)
    0.2
    """
    order = np.argsort(confidence, kind="stable")
    error = 0.0
    for part in np.array_split(order, min(bins, len(order))):
        error += len(part) * abs(float(hit[part].mean() - confidence[part].mean()))
    return round(error / len(order), 12)


def save_temperature(bundle: ModelBundle, temperature: float) -> ModelBundle:
    """Keep a temperature in the folder of a bundle, atomically, and open it again.

    Raises:
        InputError: the bundle cannot be written.
    """
    manifest = bundle.manifest.model_copy(update={"temperature": temperature})
    with new_folder(bundle.path) as folder:
        for name in manifest.files:
            shutil.copyfile(bundle.path / name, folder / name)
        manifest.write(folder)
    return ModelBundle.open(bundle.path)


def with_probabilities(
    bundle: ModelBundle, queries: UserHistories, answer: pl.DataFrame
) -> pl.DataFrame:
    """Add the column probability to an answer; null where the scores are counts of interactions.

    Args:
        bundle: the model, with a temperature.
        queries: the histories, with the times that the model reads.
        answer: user_id, score and source.

    Raises:
        InputError: the bundle has no temperature.
    """
    temperature = bundle.manifest.temperature
    if temperature is None:
        remedy = f"recsys calibrate {bundle.path} --data DATASET"
        if "valid" in bundle.manifest.protocol.trained_on:
            remedy = "none can be fitted, since it was fitted on the validation targets too"
        raise InputError(f"{bundle.path}: has no temperature, which probabilities need: {remedy}")
    rows = np.flatnonzero(queries.histories.lengths)
    totals = np.full(len(queries.user_ids), np.nan)
    with torch.inference_mode():
        for batch in user_batches(len(rows), bundle.num_items):
            chosen = rows[batch]
            scores = bundle.scorer.score(queries.histories.take(chosen))
            totals[chosen] = (scores / temperature).logsumexp(dim=1).cpu().numpy()
    users = pl.DataFrame({"user_id": queries.user_ids, "__total": totals})
    joined = answer.join(users, on="user_id", how="left", maintain_order="left")
    probability = (pl.col("score") / temperature - pl.col("__total")).exp().fill_nan(None)
    return joined.with_columns(probability=probability.cast(pl.Float32)).drop("__total")


def _holdout(bundle: ModelBundle, dataset: PreparedDataset, part: Part, seed: int) -> Holdout:
    """Return the targets of at most `MOST_HISTORIES` held-out histories."""
    mapped = for_evaluation(bundle, dataset, part)
    holdout = find_holdout(mapped, part, bundle.experiment.evaluation.request_time)
    return holdout.sample(MOST_HISTORIES, seed)


@torch.inference_mode()
def _scores(scorer: Scorer, holdout: Holdout) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the scores of all items [B, I] and of the targets [B]; without targets of -inf."""
    for batch in user_batches(len(holdout.histories), scorer.num_items):
        _, own = holdout.slice_after(batch)
        scores = scorer.score(own.histories).double().cpu()[torch.from_numpy(own.history_rows)]
        targets = scores.gather(1, torch.from_numpy(own.targets.astype(np.int64))[:, None])[:, 0]
        possible = targets > -torch.inf
        yield scores[possible, 1:], targets[possible]
