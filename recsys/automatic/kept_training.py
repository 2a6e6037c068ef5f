"""The trained model of an automatic run, which its journal keeps until the model is tested."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from recsys.automatic.averaging import Averaging
from recsys.automatic.finish import Finished
from recsys.config import Experiment
from recsys.data.features.encoders import Encoders
from recsys.data.prepared import PreparedDataset, TrainedOn
from recsys.inference.catalogue import Catalogue
from recsys.training.checkpoints import Checkpoint, TrainingState
from recsys.training.device import training_device
from recsys.training.refit import Fitted


@dataclass(frozen=True, slots=True)
class KeptTraining:
    """What a journal says of a training that has ended; its weights are in a checkpoint."""

    experiment: Experiment
    trained_on: TrainedOn
    averaging: Averaging | None
    """What came of a mean with another kind of model; None if it was not to be tried."""

    @classmethod
    def of(cls, finished: Finished, averaging: Averaging | None) -> KeptTraining:
        """Return what is to be said of a training."""
        return cls(finished.experiment, finished.fitted.trained_on, averaging)

    def plain(self) -> dict[str, Any]:
        """Return it as a journal writes it; see `parse`."""
        plain: dict[str, Any] = _ADAPTER.dump_python(self, mode="json")
        return plain

    @classmethod
    def parse(cls, fields: object) -> KeptTraining:
        """Return what `plain` wrote.

        Raises:
            ValueError: another version wrote it.
        """
        return _ADAPTER.validate_python(fields)

    def finished(
        self, checkpoint: Checkpoint, dataset: PreparedDataset, encoders: Encoders
    ) -> Finished:
        """Return the training again, with the model.

        Args:
            checkpoint: see `checkpoint_of`.
            dataset: that of the training, with the features that the model reads.
            encoders: those of the features.
        """
        if checkpoint.chosen is None:
            raise ValueError("the checkpoint has no curve")
        catalogue = Catalogue.read(dataset.num_items, encoders, dataset.item_table)
        histories = dataset.histories("test" if "valid" in self.trained_on else "valid")
        model = catalogue.restored_model(
            self.experiment.model, histories, checkpoint.state.checkpoint
        ).to(training_device())
        fitted = Fitted(model, self.trained_on, checkpoint.chosen, False, catalogue)
        return Finished(self.experiment, fitted)


def checkpoint_of(fitted: Fitted) -> Checkpoint:
    """Return the weights of a trained model, and the curve that chose the epoch."""
    return Checkpoint("", 0.0, TrainingState(fitted.model.state_dict()), fitted.curve)


_ADAPTER = TypeAdapter(KeptTraining)
