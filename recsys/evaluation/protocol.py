"""The protocol that a run is evaluated under, as facts and as one number."""

from __future__ import annotations

import hashlib
import json

from recsys.config import EvaluationConfig
from recsys.data.prepared import Part, PreparedDataset
from recsys.evaluation.candidates import CATALOGUE, Candidates


def protocol_tags(
    dataset: PreparedDataset,
    evaluation: EvaluationConfig,
    candidates: Candidates | None = None,
    part: Part = "test",
) -> dict[str, str]:
    """What must be equal for the figures of two runs to be compared, by the names of the tags.

    ``protocol.fingerprint`` is the SHA-256 of all the others, of the dataset's fingerprint and of
    the part: equal for two runs if and only if they can stand in one table.

    Args:
        dataset: evaluated on; its split is part of the protocol.
        evaluation: the seen policy, and whether the times of the targets are told.
        candidates: what targets are ranked among; None: the whole catalogue.
        part: whose targets.
    """
    fields = {
        "split": str(dataset.config.split),
        "seen": evaluation.seen,
        "candidates": CATALOGUE if candidates is None else candidates.name,
        "ties": "against_target",
        "request_time": evaluation.request_time,
    }
    whole = json.dumps({**fields, "dataset": dataset.fingerprint, "part": part}, sort_keys=True)
    fields["fingerprint"] = hashlib.sha256(whole.encode()).hexdigest()
    return {f"protocol.{name}": value for name, value in fields.items()}
