"""The evaluation protocol of a run as MLflow tags, with a fingerprint."""

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
    """Return the facts that two runs must share to be compared, by the names of their tags.

    ``protocol.fingerprint`` is the SHA-256 of all the others, the dataset's fingerprint and the
    part: it is equal for two runs if and only if they can be compared.

    Args:
        dataset: the dataset; its split is part of the protocol.
        evaluation: the policy for seen items and for request times.
        candidates: the items that targets are ranked among. If None, the full catalogue.
        part: the part of the split.
    """
    fields = {
        "split": str(dataset.config.split),
        "seen": evaluation.seen,
        "candidates": CATALOGUE if candidates is None else candidates.name,
        "ties": "against_target",
        "request_time": evaluation.request_time,
    }
    content = json.dumps({**fields, "dataset": dataset.fingerprint, "part": part}, sort_keys=True)
    fields["fingerprint"] = hashlib.sha256(content.encode()).hexdigest()
    return {f"protocol.{name}": value for name, value in fields.items()}
