"""The trainings of an experiment: what each starts from, and those of a mean in turn."""

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from recsys.config.data import LeaveLastBasketOut, LeaveLastOut
from recsys.config.experiment import Experiment, StartConfig
from recsys.config.files import flatten
from recsys.config.model import AveragedConfig
from recsys.data.histories import PAD
from recsys.data.prepared import Part, PreparedDataset, TrainedOn
from recsys.data.splits import Holdout
from recsys.errors import InputError
from recsys.evaluation.tables import evaluate
from recsys.inference.catalogue import Catalogue
from recsys.inference.model_scorer import ModelScorer
from recsys.model.models import AveragedModel
from recsys.serving.bundle import ModelBundle
from recsys.serving.raw_values import check_unit
from recsys.tracking import artifacts
from recsys.tracking.tracker import decisive_facts
from recsys.training.checkpoints import CheckpointFile, TrainingState
from recsys.training.epochs import MONITOR, Curve, Report
from recsys.training.loop import Fitted, WarmStart, train_and_refit, with_enough_epochs

logger = logging.getLogger(__name__)

_MAY_CHANGE = {"model.dropout", "model.mask_probability"}
"""Settings of a model that its weights do not depend on."""


class Start(NamedTuple):
    """The beginning of a training."""

    experiment: Experiment
    """The settings, with the digest of the model to start from."""
    catalogue: Catalogue
    warm: WarmStart | None = None
    """None if the weights are random."""


def plan_start(experiment: Experiment, dataset: PreparedDataset, out: Path) -> Start:
    """Read the model that an experiment starts from, and match its items by their ids.

    Without such a model, the epochs are those that suit the log.

    Raises:
        InputError: the model cannot be opened, is that of ``out``, the folder of the run, has other
            settings than the experiment, no item of the dataset or a feature that it lacks, or was
            trained on the validation targets.
    """
    start = experiment.start
    if start is None:
        experiment = with_enough_epochs(experiment, dataset)
        return Start(experiment, Catalogue.of(experiment.model, dataset))
    bundle = ModelBundle.open(start.bundle)
    _refuse_other_models(experiment, start, bundle, dataset)
    if bundle.path.resolve() in ((out / artifacts.BUNDLE).resolve(), out.resolve()):
        raise InputError(f"{out}: the training would replace the model that it starts from")
    manifest = bundle.manifest
    check_unit(dataset.timestamps, manifest.trained_until, str(dataset.path))
    recorded = start.model_copy(update={"digest": manifest.digest})
    experiment = experiment.model_copy(update={"start": recorded}).with_training(teachers=())
    tokens = bundle.vocabulary.tokens_of(dataset.vocabulary)
    counts = np.concatenate([[0], bundle.item_table["count"].to_numpy()])
    known = int((tokens != PAD).sum())
    if not known:
        raise InputError(f"{start.bundle}: has no item in common with {dataset.path}")
    flattered = _knows_targets(bundle, dataset, "valid")
    _knows_targets(bundle, dataset, "test")
    warm = WarmStart(
        weights=bundle.model.state_dict(),
        tokens=tokens,
        untrained=(tokens != PAD) & (counts[tokens] == 0),
        until=manifest.trained_until,
        replay=start.replay,
        may_win=not flattered,
    )
    new = dataset.num_items - known
    logger.info("starting from %s: %d of its items and %d new ones", start.bundle, known, new)
    catalogue = Catalogue.read(dataset.num_items, bundle.encoders, dataset.item_table)
    return Start(experiment, catalogue, warm)


def _refuse_other_models(
    experiment: Experiment, start: StartConfig, bundle: ModelBundle, dataset: PreparedDataset
) -> None:
    manifest = bundle.manifest
    if bundle.trained is None:
        raise InputError(f"{bundle.path}: holds a baseline, which has no weights to start from")
    if start.digest not in (None, manifest.digest):
        raise InputError(
            f"start.digest={start.digest}: {start.bundle} holds another model, {manifest.digest}"
        )
    wanted, known = flatten(experiment), flatten(bundle.experiment)
    for name in sorted(wanted.keys() | known.keys(), key=lambda name: (name != "model.kind", name)):
        decides = name.startswith("model.") and name not in _MAY_CHANGE
        if decides and wanted.get(name) != known.get(name):
            raise InputError(
                f"{name}={wanted.get(name)}: {start.bundle} was trained with {known.get(name)}"
            )
    same = dataset.fingerprint == manifest.dataset_fingerprint
    if same and "valid" in manifest.trained_on:
        raise InputError(
            f"{start.bundle}: was trained on the validation targets of {dataset.path} too (a "
            "refit), which then cannot choose an epoch"
        )


def _knows_targets(bundle: ModelBundle, dataset: PreparedDataset, part: Part) -> bool:
    """Warn if the model may have been trained on targets of the dataset, and return whether.

    It was not if all targets are later; nor if the same number of last interactions of each user
    was left out of its training, because that number moves with the log.
    """
    manifest, split = bundle.manifest, dataset.config.split
    left_out = isinstance(split, LeaveLastOut | LeaveLastBasketOut)
    trained_on: tuple[str, ...] = manifest.trained_on
    if left_out and str(bundle.experiment.data.split) == str(split) and part not in trained_on:
        return False
    times = dataset.timestamps[dataset.target_positions(part)[1]]
    until = manifest.trained_until
    early = len(times) if until is None else int((times <= until).sum())
    if early:
        effect = "the start is no candidate for the best epoch" if part == "valid" else ""
        logger.warning(
            "%s may have been trained on %d of the %d %s targets, which flatters it%s",
            *(bundle.path, early, len(times), part, f": {effect}" if effect else ""),
        )
    return bool(early)


def members_of(experiment: Experiment) -> list[Experiment]:
    """Return the experiments that train the members of a mean, or the teachers of a model.

    The seed of one is that of the experiment plus its place, so that those of one kind differ.
    """
    members: list[Experiment] = []
    for index, member in enumerate(experiment.members):
        own = member.model_dump(exclude={"model"}, exclude_none=True) | {"teachers": ()}
        update = {
            "name": f"{experiment.name}: {member.model.family}, model {index + 1}",
            "seed": experiment.seed + index,
            "model": member.model,
            "training": experiment.training.model_copy(update=own),
        }
        members.append(experiment.model_copy(update=update))
    return members


def checkpoint_files(
    out: Path, experiment: Experiment, dataset: PreparedDataset
) -> list[CheckpointFile]:
    """Return the checkpoint file of each training, beside the folder of the run."""
    facts = decisive_facts(dataset, experiment.family, flatten(experiment))
    facts["tracking.uri"] = experiment.tracking.absolute_uri
    facts["tracking.experiment"] = experiment.tracking.experiment
    members = range(1, len(experiment.members) + 1)
    names = [(f"{out.name}.checkpoint.{n}", facts | {"member": n}) for n in members]
    if not isinstance(experiment.model, AveragedConfig):
        names.append((f"{out.name}.checkpoint", facts))
    return [CheckpointFile(out.with_name(name), known) for name, known in names]


def train_all(
    start: Start,
    dataset: PreparedDataset,
    valid: Holdout,
    found: Sequence[TrainingState | None],
    report: Report,
    save: Callable[[int, TrainingState], None],
) -> Fitted:
    """Train the model of an experiment, or the members of its mean one after the other.

    ``found`` has the checkpoint of each training, and ``save`` gets the number of the training. The
    epochs of a member are reported with numbers that go on from the one before, and the mean is
    validated last, as an epoch without training. A model with teachers is trained after their mean.

    Raises:
        KeyboardInterrupt: Ctrl-C before the last training; see `train_and_refit`.
    """
    members, trained, before = members_of(start.experiment), list[Fitted](), 0

    def train(
        index: int, experiment: Experiment, warm: WarmStart | None, teacher: Fitted | None = None
    ) -> Fitted:
        def later(epoch: int, metrics: dict[str, float]) -> bool | None:
            return report(before + epoch, metrics)

        words = experiment, dataset, start.catalogue, valid, found[index], later
        return train_and_refit(*words, partial(save, index), warm, teacher)

    for index, member in enumerate(members):
        warm = None if start.warm is None else start.warm.of_member(index)
        fitted = train(index, member, warm)
        if fitted.interrupted and index < len(found) - 1:
            raise KeyboardInterrupt  # there is no model yet: the run resumes from its checkpoints
        trained.append(fitted)
        before += len(fitted.curve.epochs)
    if not members:
        return train(0, start.experiment, start.warm)
    mean, before = mean_of(start.experiment, valid, trained), before + 1
    report(before, mean.curve.epochs[-1])
    if isinstance(start.experiment.model, AveragedConfig):
        return mean
    return train(len(members), start.experiment, None, mean)


def mean_of(experiment: Experiment, valid: Holdout, members: Sequence[Fitted]) -> Fitted:
    """Return the mean of trained models; its curve ends with the validation of their best weights.

    It was trained on the validation part if any member was.
    """
    model = AveragedModel([member.model for member in members]).eval()
    validated = AveragedModel([member.validated for member in members]).eval()
    started = time.perf_counter()
    scorer = ModelScorer(validated, experiment.model.max_sequence_length)
    ranks = evaluate(scorer, valid, "valid", experiment.evaluation.seen)
    mean = {
        MONITOR: float(ranks.values("ndcg_at_10").mean()),
        "epoch/valid_recall_at_10": float(ranks.values("recall_at_10").mean()),
        "epoch/valid_seconds": time.perf_counter() - started,
    }
    epochs = [*(epoch for member in members for epoch in member.curve.epochs), mean]
    precisions = {member.curve.precision for member in members}
    precision = precisions.pop() if len(precisions) == 1 else None
    interrupted = any(member.interrupted for member in members)
    curve = Curve(
        *(epochs, None, len(epochs), {}, ranks.frame["rank"].to_torch()),
        precision=precision,
        interrupted=interrupted,
    )
    refitted = any("valid" in member.trained_on for member in members)
    trained_on: TrainedOn = ("train", "valid") if refitted else ("train",)
    return Fitted(model, validated, trained_on, curve, interrupted, members[0].catalogue)
