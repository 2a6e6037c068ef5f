"""A training that diverges ends in one line, and leaves no checkpoint that diverges again."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from recsys.config.experiment import Experiment
from recsys.config.files import parse_experiment
from recsys.data.batches import SequenceBatch
from recsys.data.prepared import PreparedDataset
from recsys.errors import InputError
from recsys.experiments.fit import fit
from recsys.training.checkpoints import CheckpointFile
from recsys.training.module import TrainingModule


def experiment(folder: Path, *settings: str) -> Experiment:
    tree = {
        "model": {"embedding_dim": 8, "num_blocks": 1, "feed_forward_dim": 8},
        "training": {"max_epochs": 3, "batch_tokens": 4, "warmup_steps": 0, "precision": "float32"},
        "evaluation": {"cutoffs": [5]},
        "tracking": {"uri": f"sqlite:///{folder}/mlflow.db"},
    }
    return parse_experiment(tree, settings)


def test_an_absurd_learning_rate_ends_in_one_line(
    tiny_dataset: PreparedDataset, tmp_path: Path
) -> None:
    settings = "training.learning_rate=1e30", "training.checkpoint_minutes=0"
    with pytest.raises(InputError) as caught:
        fit(experiment(tmp_path, *settings), tiny_dataset, tmp_path / "out")
    message = str(caught.value)
    assert message.startswith("training diverged in epoch 1: ")
    assert message.endswith(
        "with training.learning_rate=1e+30: choose a lower one, and start over with --fresh"
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_no_checkpoint_is_written_after_the_loss_was_not_finite(
    tiny_dataset: PreparedDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within an epoch neither; the second run starts where the loss was finite, and succeeds."""
    train = TrainingModule.training_step

    def broken(self: TrainingModule, batch: SequenceBatch, batch_idx: int) -> torch.Tensor:
        loss = train(self, batch, batch_idx)
        if self.current_epoch == 1 and batch_idx == 0:
            assert not self.trainer.is_last_batch
            self.sums += torch.nan
        return loss

    settings = "training.checkpoint_minutes=0", "training.batch_tokens=1", "name=broken"
    given = experiment(tmp_path, *settings)
    with monkeypatch.context() as patch:
        patch.setattr(TrainingModule, "training_step", broken)
        with pytest.raises(InputError, match=r"diverged in epoch \d: the loss is nan"):
            fit(given, tiny_dataset, tmp_path / "out")
    assert (tmp_path / "out.checkpoint").exists()
    run = fit(given, tiny_dataset, tmp_path / "out")
    assert run.test["ndcg_at_5"].mean >= 0
    assert CheckpointFile(tmp_path / "out.checkpoint", {}).read() is None
