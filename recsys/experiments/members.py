"""The trainings of an experiment: one, or one after the other those of the members of a mean."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from rich.progress import Progress

from recsys.config import AveragedConfig, AveragedMember, Experiment, flatten
from recsys.data.holdout import Holdout
from recsys.data.prepared import PreparedDataset
from recsys.evaluation.tables import evaluate
from recsys.experiments.start import Start
from recsys.inference.catalogue import Catalogue
from recsys.inference.model_scorer import ModelScorer
from recsys.model.averaged import AveragedModel
from recsys.tracking.tracker import decisive_facts
from recsys.training.checkpoints import Checkpoint, CheckpointFile, TrainingState
from recsys.training.curve import MONITOR, Curve
from recsys.training.epochs import Report
from recsys.training.refit import Fitted, train_and_refit

SaveTraining = Callable[[int, TrainingState, Curve | None], None]
"""Saves the state of a training, by its place; see `recsys.training.refit.Save`."""


def checkpoint_files(
    out: Path, experiment: Experiment, dataset: PreparedDataset
) -> list[CheckpointFile]:
    """Return the checkpoint file of each training, beside the folder of the run."""
    store = {
        "tracking.uri": experiment.tracking.absolute_uri,
        "tracking.experiment": experiment.tracking.experiment,
    }
    facts = decisive_facts(dataset, experiment.family, flatten(experiment)) | store
    if not isinstance(experiment.model, AveragedConfig):
        return [CheckpointFile(out.with_name(f"{out.name}.checkpoint"), facts)]
    return [
        CheckpointFile(out.with_name(f"{out.name}.checkpoint.{number}"), facts | {"member": number})
        for number in range(1, len(experiment.model.members) + 1)
    ]


def train_all(
    start: Start,
    dataset: PreparedDataset,
    valid: Holdout,
    found: Sequence[Checkpoint | None],
    report: Report,
    save: SaveTraining,
    progress: Progress | None,
) -> Fitted:
    """Train the model of an experiment, or the members of its mean one after the other.

    The checkpoint of a member is kept until all are trained: a run that resumes trains none twice.

    Args:
        start: the experiment, the items, and the model to start from, if any.
        dataset: the prepared dataset.
        valid: the validation targets.
        found: the checkpoint of each training; None where there is none.
        report: called with each epoch; those of a member are numbered on from the one before, and
            the mean is validated last, as an epoch without training.
        save: called with the state of a training from time to time.
        progress: the progress display. If None, a new one is shown.

    Raises:
        KeyboardInterrupt: Ctrl-C before the training of the last member; see `train_and_refit`.
        Terminated: SIGTERM.
    """
    experiment, catalogue = start.experiment, start.catalogue
    model = experiment.model
    if not isinstance(model, AveragedConfig):
        only = partial(save, 0)
        return train_and_refit(
            experiment, dataset, catalogue, valid, found[0], report, only, progress, start.warm
        )
    trained: list[Fitted] = []
    for place, member in enumerate(model.members):
        before = sum(len(one.curve.epochs) for one in trained)
        fitted = train_and_refit(
            member_experiment(experiment, member, place),
            dataset,
            catalogue,
            valid,
            found[place],
            partial(_report_later, report, before),
            partial(save, place),
            progress,
        )
        if fitted.interrupted and place < len(model.members) - 1:
            raise KeyboardInterrupt  # there is no mean yet: the run resumes from its checkpoints
        trained.append(fitted)
    mean = mean_of(experiment, dataset, catalogue, valid, trained)
    report(len(mean.curve.epochs), mean.curve.epochs[-1])
    return mean


def member_experiment(experiment: Experiment, member: AveragedMember, place: int) -> Experiment:
    """Return the experiment that trains a member of a mean.

    Its seed is that of the mean plus its place, so that members of one kind differ.
    """
    changes = member.model_dump(exclude={"model"}, exclude_none=True)
    return experiment.model_copy(
        update={
            "name": f"{experiment.name}: {member.model.family}, model {place + 1}",
            "seed": experiment.seed + place,
            "model": member.model,
            "training": experiment.training.model_copy(update=changes),
        }
    )


def mean_of(
    experiment: Experiment,
    dataset: PreparedDataset,
    catalogue: Catalogue,
    valid: Holdout,
    members: Sequence[Fitted],
) -> Fitted:
    """Return the mean of trained models, validated.

    Its curve has the epochs of all members, and then the validation of the mean of the best
    weights of each. It was trained on the validation part if any member was.

    Args:
        experiment: the experiment of the mean.
        dataset: the prepared dataset.
        catalogue: its items.
        valid: the validation targets.
        members: the trained models, in the order of the experiment.
    """
    model = AveragedModel([one.model for one in members]).eval()
    weights = {
        f"members.{place}.{name}": weight
        for place, one in enumerate(members)
        for name, weight in one.curve.best_weights.items()
    }
    validated = catalogue.restored_model(experiment.model, dataset.histories("valid"), weights)
    started = time.perf_counter()
    scorer = ModelScorer(
        validated.to(model.items.weight.device), experiment.model.max_sequence_length, trained=True
    )
    ranks = evaluate(scorer, valid, "valid", experiment.evaluation.seen)
    epochs = [epoch for one in members for epoch in one.curve.epochs]
    epochs.append(
        {
            MONITOR: float(ranks.values("ndcg_at_10").mean()),
            "epoch/valid_recall_at_10": float(ranks.values("recall_at_10").mean()),
            "epoch/valid_seconds": time.perf_counter() - started,
        }
    )
    precisions = {one.curve.precision for one in members}
    interrupted = any(one.interrupted for one in members)
    curve = Curve(
        epochs,
        best_epoch=len(epochs),
        best_weights=weights,
        best_ranks=ranks,
        precision=precisions.pop() if len(precisions) == 1 else None,
        interrupted=interrupted,
    )
    refitted = any("valid" in one.trained_on for one in members)
    return Fitted(
        model, ("train", "valid") if refitted else ("train",), curve, interrupted, catalogue
    )


def _report_later(
    report: Report, before: int, epoch: int, metrics: dict[str, float]
) -> bool | None:
    """Report an epoch of a member, numbered on from the epochs of the members before it."""
    return report(before + epoch, metrics)
