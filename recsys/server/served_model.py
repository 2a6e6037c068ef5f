"""The model that a server answers with: opened once, never changed, replaced as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray
from torch import Tensor

from recsys.config import Columns
from recsys.data.histories import PAD, Features, Histories
from recsys.data.prepared import PreparedDataset
from recsys.errors import InputError
from recsys.folders.manifest import MANIFEST
from recsys.inference.ranking import top_k
from recsys.inference.scorer import Scorer, Seen
from recsys.inference.state_cache import StateCache
from recsys.server.ids import ItemIds, UserRows, shown
from recsys.server.requests import Cell, Id, Time, User
from recsys.server.settings import ServerSettings
from recsys.serving.bundle import ModelBundle
from recsys.serving.bundle_index import BundleIndex
from recsys.serving.fallback import Stages
from recsys.serving.inputs import UserHistories
from recsys.serving.similar import item_directions
from recsys.serving.time_scale import TimeScale

_SOMEONE = pl.Series("user_id", ["user"])
_INT64 = np.iinfo(np.int64)


@dataclass(frozen=True, eq=False)
class ServedModel:
    """A bundle, and the dataset in which users are looked up.

    Everything that does not depend on the request is made once.
    """

    bundle: ModelBundle
    dataset: PreparedDataset | None = None
    """The dataset, with the features that the model reads."""
    retrieve: int | None = None
    """How many items per user target attention ranks; all if None."""
    states: StateCache | None = None
    """Keeps encoded histories between requests; none are kept if None."""
    index: BundleIndex | None = None
    """Finds the best items; all are scored if None."""
    state: Sequence[object] = ()
    """The `folder_state` before the folders were read."""

    @classmethod
    def load(cls, bundle: Path, settings: ServerSettings) -> ServedModel:
        """Open the folders, and answer once, so that the first request is no slower than others.

        Args:
            bundle: the folder of the model.
            settings: what else the server serves, and how.

        Raises:
            InputError: a folder cannot be opened, the model cannot retrieve, or the index is of
                another model.
        """
        state = folder_state(bundle, settings)  # they may be replaced while they are read
        opened, data = ModelBundle.open(bundle), settings.data
        if settings.gpu:
            opened.move_to_gpu()
        dataset = None if data is None else opened.encoders.read(PreparedDataset.open(data))
        states = StateCache(settings.cache_bytes) if settings.cache_bytes else None
        index = None if settings.index is None else BundleIndex.open(settings.index, opened)
        model = cls(opened, dataset, settings.retrieve, states, index, state)
        if opened.times == "none" and not opened.encoders.reads_inputs:
            someone = _known(np.array([1], dtype=np.int32), None).histories
            top_k(model.scorer("allow"), someone, 1, "allow")
            model.exact.score(someone, np.array([[1]], dtype=np.int32))
        _ = model.items, model.exact
        if states is not None:
            states.hits = states.misses = 0  # nobody asked yet
        return model

    @cached_property
    def items(self) -> ItemIds:
        """The ids and tokens of the items."""
        return ItemIds(self.bundle.vocabulary)

    @cached_property
    def _stages(self) -> Stages:
        """The scorers of the bundle, which represent its catalogue once for all requests."""
        return Stages.of(self.bundle, self.retrieve, self.states, self.index)

    def scorer(self, seen: Seen, allowed: NDArray[np.bool_] | None = None) -> Scorer:
        """The scorer that recommends, with popularity for empty histories.

        Args:
            seen: for two stages: with "filter", no item of the history is retrieved.
            allowed: whether each item token may be recommended [I + 1]; if None, all may.
        """
        return self._stages.scorer(seen, allowed)

    @cached_property
    def exact(self) -> Scorer:
        """The scorer of given candidates."""
        return self._stages.candidates

    @cached_property
    def directions(self) -> Tensor:
        """The directions of the embeddings of items [I, D]: see `item_directions`."""
        return item_directions(self.bundle)

    def history(self, user: User) -> UserHistories:
        """Read the history of the user of a request: of one user, B = 1.

        Raises:
            InputError: the fields contradict each other; the user is unknown; a time is no time, or
                is missing; see `UserHistories.from_raw` for the rows of a log.
        """
        items, times = user.history or [], None
        if user.times is not None:
            if len(user.times) != len(items):
                raise InputError(
                    f"times: one for each of the {len(items)} items, not {len(user.times)}"
                )
            scale = self.bundle.time_scale
            times = np.array([_time("times", time, scale) for time in user.times], dtype=np.int64)
        if user.log is not None:
            if user.history is not None or user.user_id is not None:
                raise InputError("log: give no history and no user_id with it")
            found = self._of_log(user.log)
        elif user.user_id is not None:
            found = self._of_dataset(user.user_id, items, times)
        elif user.history is not None:
            self._check_reads(items, timed=times is not None)
            found = _known(self.items.tokens(items), times)
            if times is None and self._gap is not None:  # as `ModelBundle.read_histories`
                found = found.with_usual_times(self._gap)
        else:
            raise InputError("give the history, the log or the user_id of a user")
        at = None if user.at is None else _time("at", user.at, self.bundle.time_scale)
        return found.with_request_time(self.bundle.times, at)  # on the scale of the log already

    @property
    def _gap(self) -> int | None:
        """See `ModelBundle.usual_gap`."""
        return self.bundle.usual_gap

    def _check_reads(self, items: list[Id], *, timed: bool) -> None:
        """Refuse items without what the model reads of each interaction.

        Raises:
            InputError: the model reads features; or it reads times, there are none, and the usual
                time between two interactions cannot stand for them.
        """
        encoders = self.bundle.encoders
        if items and encoders.reads_inputs:
            raise InputError(
                f"history: the model reads {', '.join(encoders.input_columns)} too: give the "
                "user's rows of the log, with these columns, as log"
            )
        if items and not timed and self.bundle.times != "none" and self._gap is None:
            raise InputError("history: the model reads the times of interactions: give times")

    def _of_log(self, rows: list[dict[str, Cell]]) -> UserHistories:
        """The history of the rows of a raw log, by the rules of the training data."""
        if not rows:
            return _known(np.empty(0, dtype=np.int32), None)
        trained = self.bundle.experiment.data.columns or Columns()
        try:
            log = pl.DataFrame(rows, infer_schema_length=None)
        except (pl.exceptions.PolarsError, TypeError, ValueError, OverflowError) as error:
            raise InputError("log: the values of a column are not of one kind") from error
        user = trained.user_id if trained.item_id in log.columns else "user_id"
        return self.bundle.read_histories(log.with_columns(pl.lit("user").alias(user)))

    def _of_dataset(
        self, user: Id, new_items: list[Id], new_times: NDArray[np.int64] | None
    ) -> UserHistories:
        """The full history of a user of the dataset, and the interactions that came after it."""
        data = self.dataset
        if data is None:
            raise InputError(
                "user_id: users are looked up in a prepared dataset, and the server has none: "
                "recsys serve BUNDLE --data DATA"
            )
        row = self._user_rows.find(user)
        if row is None:
            raise InputError(f"user_id {shown(user)} is not in the dataset")
        self._check_reads(new_items, timed=new_times is not None)
        span = slice(int(data.offsets[row]), int(data.offsets[row + 1]))
        tokens, times = self._ours[data.items[span]], np.asarray(data.timestamps[span])
        times = self.bundle.time_scale.of_dataset(times, data.path)
        if new_items:
            tokens = np.concatenate([tokens, self.items.tokens(new_items)])
            if new_times is not None:
                return _known(tokens, np.append(times, new_times))
            # Without times the new interactions are the newest, in their order.
            if self._gap is None:
                return _known(tokens, None)
            later = times[-1:].sum() + np.arange(1, len(new_items) + 1) * np.int64(self._gap)
            return replace(_known(tokens, np.append(times, later)), assumed_gap=self._gap)
        features, user_features = data.interaction_features, data.user_features
        return _known(
            tokens,
            times,
            None if features is None else features[span],
            None if user_features is None else user_features[row : row + 1],
        )

    @cached_property
    def _user_rows(self) -> UserRows:
        """The rows of the dataset's users."""
        assert self.dataset is not None  # noqa: S101 - the caller checked
        return UserRows(self.dataset.user_ids)

    @cached_property
    def _ours(self) -> NDArray[np.int32]:
        """The model's token of each item token of the dataset."""
        assert self.dataset is not None  # noqa: S101 - the caller checked
        tokens = self.bundle.vocabulary.encode(self.dataset.vocabulary.ids)
        return np.concatenate([[PAD], tokens]).astype(np.int32)


def folder_state(bundle: Path, settings: ServerSettings) -> list[tuple[int, int, int] | None]:
    """Return what changes when a folder is replaced: inode, size and time of its manifest."""
    folders = bundle, bundle / "bundle", settings.data, settings.index
    state: list[tuple[int, int, int] | None] = []
    for folder in folders:
        try:
            found = None if folder is None else (folder / MANIFEST).stat()
        except OSError:
            found = None
        state.append(found and (found.st_ino, found.st_size, found.st_mtime_ns))
    return state


def _known(
    tokens: NDArray[np.int32],
    times: NDArray[np.int64] | None,
    features: Features | None = None,
    user_features: Features | None = None,
) -> UserHistories:
    """Return the history of one user without unknown items, sorted by time where times are known.

    Args:
        tokens: item tokens [N], PAD for unknown items.
        times: their times [N].
        features: the features of the interactions [N], if the model reads any.
        user_features: those of the user [1].
    """
    if not len(tokens):  # a model that reads times has none to read
        times = np.empty(0, dtype=np.int64)
    order = np.arange(len(tokens)) if times is None else np.argsort(times, kind="stable")
    positions = np.flatnonzero(tokens[order])
    kept = order[positions]
    histories = Histories(
        tokens[kept],
        np.array([0, len(kept)]),
        None if times is None else times[kept],
        interaction_features=None if features is None else features[kept],
        user_features=user_features,
    )
    return UserHistories(_SOMEONE, histories, np.array([len(tokens) - len(kept)]), positions)


def _time(place: str, given: Time, scale: TimeScale) -> int:
    """Return a time on the scale of the training log.

    Raises:
        InputError: it is no time, or out of range.
    """
    try:
        value = scale.value(given, place)
    except InputError as error:
        raise InputError(f"{place}: {shown(given)}: a number or an ISO 8601 date") from error
    if not _INT64.min <= value <= _INT64.max:
        raise InputError(f"{place}: {shown(given)} is out of range")
    return value
