"""The rule that turns facts about a log into the settings to race against each other.

Sizes follow from the facts alone; the kind of model is decided by the race. The rule was made from
logs of several kinds (docs/results.md has the measurements) and never reads a held-out purchase.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from recsys.automatic.facts import LONGEST, LogFacts
from recsys.config import DataConfig, Experiment, TrackingConfig, parse_experiment
from recsys.reports.run_page import Choice

Preset = Literal["fast", "balanced", "best"]

REPEATS = 0.05
"""From this share of repeated items on, seen items are recommended."""
_LENGTHS = (10, 20, 30, 50, 75, 100, 150, LONGEST)
_MOST = 0.5
"""If the newest items of the histories are fewer than this share, the older ones are trained on."""
_MANY_INTERACTIONS, _FEW_INTERACTIONS = 400_000, 30_000
_SPARSE, _DENSE = 40, 100
"""Interactions per item below which embeddings overfit soon, and above which they hardly do."""
_FULL_SOFTMAX_ITEMS = 60_000
"""The largest catalogue whose full softmax is worth its cost on a CPU."""
_STEPS_PER_PASS = 128
_DENSE_ORDER = (
    "hstu",
    "target-attention-average",
    "gated-rotary",
    "target-attention",
    "gated-target-attention",
    "dot-product",
)
_SPARSE_ORDER = (
    "dot-product",
    "target-attention",
    "hstu",
    "gated-rotary",
    "target-attention-average",
    "gated-target-attention",
)
"""The kinds of model, those first that won on logs with many, or few, interactions per item."""
_FIELDS = {"fast": 2, "balanced": 4, "best": 6}
"""The number of kinds of model that a preset races."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What an automatic run is told; all else follows from the log."""

    name: str
    """Of the MLflow run; those of the baselines are called NAME-BASELINE."""
    preset: Preset = "balanced"
    """How many kinds of model are raced."""
    seed: int = 0
    """Of the weights, the batches and the samples."""
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    """The MLflow store."""
    fresh: bool = False
    """Whether to forget the race of a run that was interrupted."""

    @property
    def averages(self) -> bool:
        """Whether the winner may be averaged with another kind of model."""
        return self.preset != "fast"

    @property
    def out(self) -> Path:
        """The folder of the results."""
        return Path("runs") / self.name


@dataclass(frozen=True, slots=True)
class Candidate:
    """Settings that take part in the race."""

    name: str
    description: str
    cost: float
    """Time of a step, in steps of the dot product, about: it decides how many can be raced."""
    experiment: Experiment


def choose_seen(facts: LogFacts) -> Choice:
    """Decide whether items of the history are recommended: only where users repeat items."""
    share = f"{facts.repeat_share:.1%} of the later interactions repeat an item of the user"
    if facts.repeat_share >= REPEATS:
        return Choice("evaluation.seen", "allow", f"{share}: repeats are recommended and counted")
    return Choice("evaluation.seen", "filter", f"{share}: items of the history are left out")


def choose_sizes(facts: LogFacts) -> list[Choice]:
    """Choose what all candidates share: sizes and training."""
    length = next((n for n in _LENGTHS if n >= facts.long_length), _LENGTHS[-1])
    dim, why = 64, f"{facts.interactions:,} interactions"
    if facts.interactions >= _MANY_INTERACTIONS and facts.interactions_per_item >= _SPARSE:
        dim = 128
    elif facts.interactions < _FEW_INTERACTIONS:
        dim = 48
    density = facts.interactions_per_item
    dropout = 0.5 if density < _SPARSE else 0.35 if density < _DENSE else 0.25
    tokens = 2 ** round(math.log2(max(facts.interactions, 1) / _STEPS_PER_PASS))
    tokens = max(512, min(8192, tokens))
    choices = [
        Choice(
            "model.max_sequence_length",
            str(length),
            f"98% of the users have at most {facts.long_length:.0f} interactions",
        ),
        Choice("model.embedding_dim", str(dim), why),
        Choice(
            "model.dropout",
            str(dropout),
            f"{density:.0f} interactions per item: fewer want more",
        ),
        Choice(
            "training.batch_tokens",
            str(tokens),
            f"about {_STEPS_PER_PASS} steps per pass over the log where possible",
        ),
        Choice("training.learning_rate", "0.004", "constant: weights are averaged"),
    ]
    if facts.newest_share < _MOST:
        choices.append(
            Choice(
                "training.windows",
                "all",
                f"the newest {LONGEST} interactions of each user are {facts.newest_share:.0%} of "
                "all: the older ones are trained on, too",
            )
        )
    if facts.items > _FULL_SOFTMAX_ITEMS:
        choices.append(
            Choice(
                "training.loss",
                "{kind: sampled_softmax, num_negatives: 2048}",
                f"{facts.items:,} items: the softmax over all of them costs too much",
            )
        )
    return choices


def choose_shared(facts: LogFacts) -> list[Choice]:
    """Choose the settings that all candidates share; see `propose`."""
    return [choose_seen(facts), *choose_sizes(facts)]


class _Kind(NamedTuple):
    """A kind of model."""

    cost: float
    """See `Candidate`."""
    description: str
    model: dict[str, Any]
    """The model section, without the sizes that all kinds share."""
    exclude_seen: bool | None = None
    """See `TrainingConfig`."""


def propose(
    facts: LogFacts, shared: Sequence[Choice], data: DataConfig, plan: Plan
) -> list[Candidate]:
    """Return the candidates of a race, those that are most likely to win first.

    Args:
        facts: those of the log.
        shared: the settings that all have; see `choose_shared`.
        data: the settings of the data.
        plan: name, preset, seed and store.
    """
    overrides = [f"{choice.setting}={choice.value}" for choice in shared]
    order = _DENSE_ORDER if facts.interactions_per_item >= _SPARSE else _SPARSE_ORDER
    kinds = _kinds(facts)
    features = [feature.model_dump() for feature in facts.features]
    candidates = []
    for name in order[: _FIELDS[plan.preset]]:
        kind = kinds[name]
        tree = {
            "name": plan.name,
            "seed": plan.seed,
            "data": data,
            "model": {**kind.model, "interaction_features": features},
            "training": {"refit": True, "exclude_seen": kind.exclude_seen},
            "count_ensemble": {},
            "tracking": plan.tracking,
        }
        experiment = parse_experiment(tree, overrides, name)
        candidates.append(Candidate(name, kind.description, kind.cost, experiment))
    return candidates


def _kinds(facts: LogFacts) -> dict[str, _Kind]:
    """Return the kinds of model by name."""
    blocks: dict[str, Any] = {"num_blocks": 2, "num_heads": 2}
    transformer = {**blocks, "feed_forward_dim": 256}
    gated = {**transformer, "norm": "gated", "activation": "swiglu", "positions": "rotary"}
    half_life = 50 if facts.repeat_share >= REPEATS else 3
    dot = {"kind": "dot_product"}
    sparse = facts.interactions_per_item < _SPARSE
    filtered = ", with a filter beside attention," * sparse
    plain = {**transformer, "head": dot}
    attention = {"kind": "target_attention"}
    summed = {**attention, "num_heads": 1, "head_dim": 32, "pooling": "sum", "half_life": half_life}
    averaged = {**attention, "num_heads": 2, "head_dim": 32, "half_life": (2, 20)}
    times = "past" if facts.has_times else "none"
    return {
        "hstu": _Kind(
            1.1,
            "HSTU blocks" + (" that read the times between interactions" * facts.has_times),
            {**blocks, "kind": "hstu", "times": times, "head": dot},
        ),
        "target-attention": _Kind(
            2.3,
            f"SASRec's encoder{filtered} with target attention, summed over the history",
            {**transformer, "filter": sparse, "head": summed},
        ),
        "gated-rotary": _Kind(
            1.2, "gated blocks with rotary positions, dot product", {**gated, "head": dot}
        ),
        "target-attention-average": _Kind(
            3.5,
            "SASRec's encoder with target attention, averaged over the history",
            {**transformer, "head": averaged},
        ),
        "dot-product": _Kind(
            1.0,
            f"SASRec: encoder{filtered} and dot product",
            {**plain, "norm": "post", "filter": True} if sparse else plain,
            exclude_seen=False if sparse else None,
        ),
        "gated-target-attention": _Kind(
            2.5,
            "gated blocks with rotary positions and target attention",
            {**gated, "head": summed},
        ),
    }
