"""The model bundle: a folder with everything that scoring needs, and no pickle."""

from __future__ import annotations

import logging
import os
import shutil
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from pydantic import Field
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from recsys.baselines.count_ensemble import CountEnsemble
from recsys.baselines.saved import LARGEST_VALUE, FittedBaseline, load_baseline, save_baseline
from recsys.config import Experiment, Section, dump_experiment, load_experiment
from recsys.data.columns import plain_name
from recsys.data.features.encoders import NO_ENCODERS, Encoders, ItemVectors
from recsys.data.manifest import read_own_table
from recsys.data.prepared import PreparedDataset, TrainedOn
from recsys.data.vocabulary import Vocabulary
from recsys.errors import InputError, checked_path, one_line
from recsys.folders.atomic import new_folder
from recsys.folders.digests import folder_sha256
from recsys.folders.manifest import MANIFEST, FolderManifest
from recsys.inference.catalogue import empty_model
from recsys.inference.model_scorer import ModelScorer, StateCache
from recsys.inference.scorer import Scorer
from recsys.machine import keep_freed_memory
from recsys.model.encoder import TimesRead
from recsys.model.heads import Head
from recsys.model.models import Model
from recsys.serving.histories import OneHistory, RawHistories, UserHistories, one_user_source
from recsys.serving.raw_values import RequestTime, TimeScale

logger = logging.getLogger(__name__)


class ServingProtocol(Section):
    """The rules that the model was trained under and recommends by."""

    split: str
    """The split, as `recsys.config` writes it."""
    seen: Literal["filter", "allow"]
    """Whether items of a user's history are filtered from recommendations."""
    trained_on: TrainedOn
    """The parts of the split that the weights were trained on."""


class EarlierBundle(Section):
    """A bundle that another one was made of."""

    path: str
    """Its folder."""
    digest: str | None
    """The SHA-256 of its manifest."""


class BundleManifest(FolderManifest):
    """The manifest of a model bundle."""

    noun: ClassVar[str] = "a model bundle"
    remedy: ClassVar[str] = "train the model again"
    current_version: ClassVar[int] = 2

    format: Literal["recsys.bundle"] = "recsys.bundle"
    format_version: int = current_version
    dataset_fingerprint: str
    """The fingerprint of the prepared dataset that the model was trained on."""
    num_items: int
    """Size of the catalogue, I."""
    protocol: ServingProtocol
    git_commit: str | None
    """The commit of the code that trained the model; None if unknown."""
    trained_until: int | None = None
    """The time of the newest interaction that the weights were trained on, on the scale of the log;
    None if unknown."""
    usual_gap: int | None = None
    """The median time between two successive interactions of a user, on the scale of the log; None
    if unknown."""
    started_from: EarlierBundle | None = None
    """The bundle whose weights the training started from; None if they were random."""
    extended_from: EarlierBundle | None = None
    """The bundle to whose catalogue items were added without training; None if there is none."""
    temperature: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """What scores are divided by for calibrated probabilities; None if none was fitted."""
    name: str | None = None
    """What the model is, in words, where an automatic run chose it; else None."""


WEIGHTS, CONFIG, ITEMS = "weights.safetensors", "config.yaml", "items.parquet"
COUNT_ENSEMBLE, BASELINE = "count_ensemble.safetensors", "baseline.safetensors"


def write_files(
    folder: Path,
    answer: Model | FittedBaseline,
    experiment: Experiment,
    item_table: pl.DataFrame,
    count_ensemble: CountEnsemble | None,
    encoders: Encoders,
) -> dict[str, str]:
    """Write all files of a bundle but its manifest; return the SHA-256 of each, by name.

    The same arguments give the same bytes. The item table has item_id, the features of the items,
    and count.
    """
    if isinstance(answer, FittedBaseline):
        save_baseline(answer, folder / BASELINE)
    else:
        weights = {name: weight.detach().cpu() for name, weight in answer.state_dict().items()}
        save_file({name: weight.contiguous() for name, weight in weights.items()}, folder / WEIGHTS)
    if count_ensemble is not None:
        count_ensemble.save(folder / COUNT_ENSEMBLE)
    encoders.save(folder)
    (folder / CONFIG).write_text(dump_experiment(experiment), encoding="utf-8")
    item_table.write_parquet(folder / ITEMS)
    return folder_sha256(folder)


def read_items(path: Path, num_items: int) -> pl.DataFrame:
    """Read the item table of a bundle.

    Raises:
        InputError: it cannot be read, or has not so many items with an id of their own and a count.
    """
    table = read_own_table(path, ("item_id", "count"))
    ids, counts = table["item_id"], table["count"]
    if not len(table) == num_items > 0:
        raise InputError(f"{path}: {len(table)} items, not the {num_items} of the manifest")
    if ids.dtype not in (pl.Int64, pl.String) or ids.null_count() or not ids.is_unique().all():
        raise InputError(f"{path}: item_id must be unique integers or text, and none missing")
    if not counts.dtype.is_integer() or counts.null_count() or counts.min() < 0:  # type: ignore[operator]
        raise InputError(f"{path}: count must be whole numbers from 0, and none missing")
    return table


def load_weights(model: Model, path: Path) -> None:
    """Give a model the weights of a file.

    Raises:
        InputError: the file cannot be read, or its weights do not fit the model.
    """
    try:
        weights = load_file(path)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path}: cannot be read as safetensors: {error}") from error
    made = model.state_dict()
    expected = {name: tuple(weight.shape) for name, weight in made.items()}
    constants = {
        f"{place}.{name}"
        for place, module in model.named_modules()
        for name, _ in module.named_buffers(recurse=False)
    }
    found = {name: tuple(weight.shape) for name, weight in weights.items()}
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            raise InputError(
                f"{path}: weight {name!r} is {found.get(name, 'missing')}, but the config makes it "
                f"{expected.get(name, 'unknown')}"
            )
        weight, own = weights[name], made[name]
        if weight.dtype != own.dtype:
            raise InputError(f"{path}: weight {name!r} is {weight.dtype}, not {own.dtype}")
        if name in constants and not torch.allclose(weight, own):
            raise InputError(
                f"{path}: {name!r} is {weight.tolist()}, but the config makes it {own.tolist()}"
            )
        lowest, highest = weight.aminmax() if weight.numel() else (0, 0)
        if not (lowest > -LARGEST_VALUE and highest < LARGEST_VALUE):  # NaN too
            raise InputError(
                f"{path}: weight {name!r} must be finite and below {LARGEST_VALUE:g}, not from "
                f"{lowest:g} to {highest:g}"
            )
    model.load_state_dict(weights)


_NAMES = (
    *("itemname", "itemtitle", "productname", "producttitle", "prodname", "articlename"),
    *("movietitle", "moviename", "booktitle", "bookname", "songname", "trackname", "description"),
)
"""Names of such columns, without case, blanks and marks."""
_LONGEST = 80
"""Letters of a name, on average."""


def name_columns(item_table: pl.DataFrame) -> list[str]:
    """Return the columns name, title or both; else one such as product_name, if there is one.

    >>> name_columns(pl.DataFrame({"item_id": [7], "product_name": ["Tea"], "description": ["x"]}))
    ['product_name']
    """
    columns = {plain_name(name): name for name in item_table.columns}
    exact = [columns[name] for name in ("name", "title") if name in columns]
    others = [columns[name] for name in _NAMES if name in columns]
    return exact or [name for name in others if _is_short_text(item_table[name])][:1]


def _is_short_text(column: pl.Series) -> bool:
    """Return whether a column may name items: no lists, and no texts of several sentences."""
    if column.dtype != pl.String:
        return False
    letters = column.str.len_chars().drop_nulls().to_numpy()
    return len(letters) > 0 and float(letters.mean()) <= _LONGEST


def model_scorer(
    model: Model,
    experiment: Experiment,
    count_ensemble: CountEnsemble | None = None,
    head: Head | None = None,
    states: StateCache | None = None,
) -> Scorer:
    """Return the scorer of a trained model, with another head or a count ensemble if given."""
    keep_freed_memory()
    longest = experiment.model.max_sequence_length
    scorer = ModelScorer(model, longest, head, trained=True, states=states)
    return scorer if count_ensemble is None else count_ensemble.added_to(scorer)


_TASKS = Path("/proc/self/task")
_threads = {"at the fork": False, "lost": False}
"""Whether polars had threads when this process was forked, in the parent and in the child."""


def refuse_lost_threads() -> None:
    """Refuse to work in a process that would wait for ever.

    Raises:
        InputError: it was forked from one in which polars had begun to work.
    """
    if _threads["lost"]:
        raise InputError(
            "this process was forked from one that had used a model or a dataset, whose threads a "
            "fork does not copy: start processes by multiprocessing.get_context('spawn')"
        )


def _look() -> None:
    # Without /proc, nobody knows; forking beside threads is not supported there anyway.
    tasks = list(_TASKS.iterdir()) if _TASKS.exists() else []
    _threads["at the fork"] = not tasks or any(_name(task) == "polars-0" for task in tasks)


def _name(task: Path) -> str:
    try:
        return (task / "comm").read_text().strip()
    except OSError:  # the thread has ended
        return ""


def _lose() -> None:
    _threads["lost"] |= _threads["at the fork"]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_look, after_in_child=_lose)


_IMPOSSIBLE = (LookupError, RecursionError, TypeError, ValueError, pl.exceptions.PolarsError)
"""What opening raises of a bundle with right digests and a content that nobody foresaw."""
USUAL_K = 10
"""Items that are recommended where nobody says how many."""


@dataclass(frozen=True, eq=False)
class ModelBundle:
    """A trained model, or a baseline, over a catalogue of I items, with config and protocol."""

    path: Path
    manifest: BundleManifest
    experiment: Experiment
    trained: Model | None
    """The trained model, on the CPU until `use_gpu`, in evaluation mode; None if there is a
    baseline."""
    item_table: pl.DataFrame
    """I rows, token 1 first: item_id, features but for vectors, count (of its interactions)."""
    count_ensemble: CountEnsemble | None = None
    """The count ensemble whose scores are added to the model's; None if there is none."""
    encoders: Encoders = NO_ENCODERS
    """The encoders of the features that the model reads."""
    vectors: ItemVectors = field(default_factory=dict)
    """The vectors of the items that the model reads, memory-mapped."""
    baseline: Scorer | None = None
    """The baseline, if there is no trained model."""

    @classmethod
    def write(  # noqa: PLR0913, PLR0917 - all that a folder holds
        cls,
        path: str | os.PathLike[str],
        answer: Model | FittedBaseline,
        experiment: Experiment,
        dataset: PreparedDataset,
        trained_on: TrainedOn,
        git_commit: str | None = None,
        count_ensemble: CountEnsemble | None = None,
        encoders: Encoders = NO_ENCODERS,
        temperature: float | None = None,
        name: str | None = None,
    ) -> ModelBundle:
        """Write a bundle folder atomically and open it.

        An existing bundle is replaced. The same arguments give the same bytes.

        Args:
            path: the folder.
            answer: the trained model, which is not changed, or the baseline.
            experiment: all settings.
            dataset: the training data; an item feature named count is overwritten.
            trained_on: the parts of the split that the weights were trained on.
            git_commit: the commit of the code that trained it.
            count_ensemble: counts of the same parts, whose scores are added.
            encoders: the encoders of the features that the model reads.
            temperature: that of calibrated probabilities.
            name: what the model is, in words.

        Raises:
            InputError: the path holds something else, or cannot be written.
        """
        path = Path(path)
        BundleManifest.previous(path)
        log = dataset.histories("test" if "valid" in trained_on else "valid")
        counts = np.bincount(log.items, minlength=dataset.num_items + 1)[1:]
        start, earlier = experiment.start, None
        if start is not None:
            earlier = EarlierBundle(path=start.bundle, digest=start.digest)
        with new_folder(path) as folder:
            items = encoders.save_vectors(folder, dataset.item_table)
            items = items.with_columns(count=pl.Series(counts))
            files = write_files(folder, answer, experiment, items, count_ensemble, encoders)
            BundleManifest(
                dataset_fingerprint=dataset.fingerprint,
                num_items=dataset.num_items,
                protocol=ServingProtocol(
                    split=str(experiment.data.split),
                    seen=experiment.evaluation.seen,
                    trained_on=trained_on,
                ),
                git_commit=git_commit,
                temperature=temperature,
                name=name,
                trained_until=None if log.times is None else int(log.times.max()),
                usual_gap=log.usual_gap,
                started_from=earlier,
                files=files,
            ).write(folder)
        return cls.open(path)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> ModelBundle:
        """Open a folder that `write` wrote, or the folder of a run that contains it.

        Raises:
            InputError: the folder is no bundle or has another format version, a file is not as it
                was written, or the weights do not fit the config.
        """
        refuse_lost_threads()
        path = checked_path(path)
        if not (path / MANIFEST).exists() and (path / "bundle" / MANIFEST).is_file():
            path /= "bundle"  # of a run's folder
        try:
            return BundleManifest.load(path, lambda manifest: cls._load(path, manifest))
        except InputError:
            raise
        except _IMPOSSIBLE as error:
            reason = one_line(error, 300)
            raise InputError(f"{path}: cannot be read as a model bundle: {reason}") from error

    @classmethod
    def _load(cls, path: Path, manifest: BundleManifest) -> ModelBundle:
        """Load the files of a folder that was checked against its manifest."""
        experiment = load_experiment(path / CONFIG) if CONFIG in manifest.files else None
        answer = WEIGHTS if experiment is None or experiment.baseline is None else BASELINE
        if unlisted := {answer, CONFIG, ITEMS} - set(manifest.files):
            raise InputError(f"{path}: the manifest of the bundle does not list {min(unlisted)}")
        assert experiment is not None  # noqa: S101 - it is listed
        item_table = read_items(path / ITEMS, manifest.num_items)
        if experiment.baseline is not None:
            baseline = load_baseline(path / BASELINE, experiment.baseline, manifest.num_items)
            return cls(path, manifest, experiment, None, item_table, baseline=baseline)
        encoders = Encoders.load(path, experiment.model)
        vectors = encoders.open_vectors(path, len(item_table))
        model = empty_model(experiment, item_table, len(item_table), encoders, vectors)
        load_weights(model, path / WEIGHTS)
        count_ensemble = None
        if COUNT_ENSEMBLE in manifest.files:
            count_ensemble = CountEnsemble.load(path / COUNT_ENSEMBLE, manifest.num_items)
        return cls(path, manifest, experiment, model, item_table, count_ensemble, encoders, vectors)

    def use_gpu(self) -> None:
        """Move the model to the GPU, if there is one: worth its start for many histories.

        If it needs more memory than is free there, a warning says so, and it stays on the CPU.
        """
        if torch.cuda.is_available():
            try:
                self.move_to_gpu()
            except InputError as error:
                logger.warning("%s: it stays on the CPU", error)

    def move_to_gpu(self) -> None:
        """Move the model to the GPU, which there must be; a baseline has nothing to move.

        Raises:
            InputError: it needs more memory than is free there; it is on the CPU again.
        """
        if self.trained is None:
            return
        try:
            self.trained.to("cuda")
        except torch.OutOfMemoryError as error:
            self.trained.to("cpu")  # with those weights that were moved
            raise InputError(
                f"{self.path}: the model needs more memory than is free on the GPU"
            ) from error
        for kept in ("scorer", "retriever"):  # they keep the catalogue where the model was
            self.__dict__.pop(kept, None)

    @property
    def model(self) -> Model:
        """The trained model.

        Raises:
            InputError: the bundle holds a baseline.
        """
        if self.trained is None:
            raise InputError(
                f"{self.path}: holds the baseline {self.experiment.baseline}, which recommends and "
                "scores, but has no attention, contributions or decoder"
            )
        return self.trained

    @cached_property
    def scorer(self) -> Scorer:
        """The model plus its count ensemble, on the device of the model; or the baseline.

        It is kept, since what it makes of a large catalogue takes longer than an answer.
        """
        if self.baseline is not None:
            return self.baseline
        return model_scorer(self.model, self.experiment, self.count_ensemble)

    @cached_property
    def retriever(self) -> Scorer:
        """The score without the part of target attention: finds the items worth ranking by it.

        Raises:
            InputError: the model has no target attention.
        """
        if not self.model.head.attends:
            raise InputError(
                f"{self.path}: two stages need target attention, and {self.experiment.family} has "
                "none: a second stage would not change the ranking"
            )
        return model_scorer(
            self.model, self.experiment, self.count_ensemble, self.model.head.dot_product
        )

    @property
    def report(self) -> Path:
        """The page of the automatic run that trained the model, beside the bundle.

        Raises:
            InputError: there is none: the model was trained in another way, or copied; or another
                bundle has replaced this one.
        """
        self._check_not_replaced()
        page = self.path.resolve().with_name("report.html")
        if not page.is_file():
            raise InputError(
                f"{page}: no such page: recsys.fit(log) and recsys run LOG write it beside the "
                "bundle, in runs/NAME; a copy of the bundle has none"
            )
        return page

    def copy_to(self, path: str | os.PathLike[str]) -> None:
        """Copy the files of the bundle to another folder, atomically; a bundle there is replaced.

        Raises:
            InputError: the bundle has items that were added after training, another bundle has
                replaced it since it was opened, the path holds something else, or it cannot be
                written.
        """
        if len(self.item_table) != self.manifest.num_items:
            raise InputError(f"{self.path}: items were added after training: they cannot be saved")
        path = Path(path)
        self._check_not_replaced()
        if path.resolve() == self.path.resolve():
            return
        BundleManifest.previous(path)
        with new_folder(path) as folder:
            for name in (*self.manifest.files, MANIFEST):
                shutil.copyfile(self.path / name, folder / name)

    def _check_not_replaced(self) -> None:
        """Check that the files are those that were opened: another run may have the same name."""
        if BundleManifest.read(self.path).files != self.manifest.files:
            raise InputError(
                f"{self.path}: another model has replaced this one since it was opened: give each "
                "run a name of its own, as in recsys.fit(log, name=...)"
            )

    @property
    def num_items(self) -> int:
        """Size of the catalogue, I."""
        return len(self.item_table)

    @property
    def times(self) -> TimesRead:
        """Which times the model reads."""
        return "none" if self.trained is None else self.trained.times

    @property
    def usual_gap(self) -> int | None:
        """The time between two interactions that stands for missing times; None if none can."""
        return self.manifest.usual_gap if self.times == "past" else None

    @property
    def time_scale(self) -> TimeScale:
        """The scale of the times of the training log."""
        return TimeScale(self.manifest.trained_until, self.experiment.data.time_format)

    def read_histories(self, histories: RawHistories) -> UserHistories:
        """Read histories in raw ids: see `UserHistories.from_raw`.

        A model that reads the times of past interactions takes lists of items too: it is given the
        usual time between two of them, and a warning says so.
        """
        read = UserHistories.from_raw(
            histories, self.experiment.data, self.vocabulary, self.encoders, self.time_scale
        )
        gap = self.usual_gap
        if read.histories.times is not None or gap is None:
            return read
        logger.warning(
            "the histories have no times, which the model reads: it takes %d, the median of the "
            "log, between two interactions; a log with times is ranked better",
            gap,
        )
        return read.with_usual_times(gap)

    def read_history(self, history: OneHistory, at: RequestTime | None) -> UserHistories:
        """Read the history of one user, with the times that the model reads.

        Raises:
            InputError: the history has not exactly one user; see `UserHistories.from_raw` and
                `UserHistories.with_request_time`.
        """
        if not isinstance(history, UserHistories):
            history = self.read_histories(one_user_source(history))
        if len(history.user_ids) != 1:
            raise InputError(f"history: of one user, not of {len(history.user_ids)}")
        return history.with_request_time(self.times, at, self.time_scale)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The mapping between item ids and item tokens."""
        return Vocabulary(self.item_table["item_id"])

    @property
    def usual_k(self) -> int:
        """The items that are recommended where nobody says how many: all of a small catalogue."""
        return min(USUAL_K, self.num_items)

    @cached_property
    def name_columns(self) -> list[str]:
        """The columns of the item table that name an item for people."""
        return name_columns(self.item_table)

    @property
    def popularity(self) -> NDArray[np.float32]:
        """Shape [I]: interactions of each item in training; entry i is item token i + 1."""
        return self.item_table["count"].to_numpy().astype(np.float32)
