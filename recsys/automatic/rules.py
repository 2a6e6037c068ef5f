"""The rule that turns facts about a log into the settings that are raced against each other.

Sizes follow from the facts; the race decides on the kind of model. The rule was made from logs of
several kinds (docs/results.md has the measurements) and never reads a held-out purchase.
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

TIME_LIMITS: dict[Preset, float] = {"fast": 300.0, "balanced": 900.0, "best": 3600.0}
"""Seconds of each preset if no limit is given."""
_NUM_KINDS = {"fast": 2, "balanced": 4, "best": 5}
_REPEATS = 0.05
"""From this share of repeated items on, seen items are recommended."""
_LENGTHS = (10, 20, 30, 50, 75, 100, 150, LONGEST)
_MOST_OF_THE_LOG = 0.5
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
    "dot-product",
)
_SPARSE_ORDER = (
    "dot-product",
    "target-attention",
    "hstu",
    "gated-rotary",
    "target-attention-average",
)
_REPEAT_ORDER = (
    "target-attention-average",
    "hstu",
    "gated-rotary",
    "target-attention",
    "dot-product",
)
"""The kinds of model, those first that won on logs with many, or few, interactions per item, and on
logs with repeats: a short race is run by the first alone."""


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
    """Whether to forget a run of that name that was interrupted."""

    @property
    def out(self) -> Path:
        """The folder of the results."""
        return Path("runs") / self.name


class Kind(NamedTuple):
    """A kind of model with the settings that it is raced with."""

    name: str
    description: str
    cost: float
    """Time of a step, in steps of the dot product, about: it decides how many can be raced."""
    experiment: Experiment

    def again(self, number: int) -> Kind:
        """Return the same kind with another seed."""
        experiment = self.experiment.model_copy(update={"seed": self.experiment.seed + number})
        description = f"{self.description}, seed {experiment.seed}"
        return Kind(f"{self.name}-{number + 1}", description, self.cost, experiment)


def choose_settings(facts: LogFacts) -> list[Choice]:
    """Choose what all kinds share: the protocol, sizes and training; name the features."""
    seen, counted = "filter", "items of the history are left out"
    if facts.repeat_share >= _REPEATS:
        seen, counted = "allow", "repeats are recommended and counted"
    repeats = f"{facts.repeat_share:.1%} of the later interactions repeat an item of the user"
    length = next((n for n in _LENGTHS if n >= facts.long_length), _LENGTHS[-1])
    longest = f"98% of the users have at most {facts.long_length:.0f} interactions"
    density, dim = facts.interactions_per_item, 64
    if facts.interactions >= _MANY_INTERACTIONS and density >= _SPARSE:
        dim = 128
    elif facts.interactions < _FEW_INTERACTIONS:
        dim = 48
    dropout = 0.5 if density < _SPARSE else 0.35 if density < _DENSE else 0.25
    tokens = 2 ** round(math.log2(max(facts.interactions, 1) / _STEPS_PER_PASS))
    tokens = max(512, min(8192, tokens))
    steps = f"about {_STEPS_PER_PASS} steps per pass over the log where possible"
    choices = [
        Choice("evaluation.seen", seen, f"{repeats}: {counted}"),
        Choice("model.max_sequence_length", str(length), longest),
        Choice("model.embedding_dim", str(dim), f"{facts.interactions:,} interactions"),
        Choice("model.dropout", str(dropout), f"{density:.0f} interactions per item"),
        Choice("training.batch_tokens", str(tokens), steps),
        Choice("training.learning_rate", "0.004", "constant: weights are averaged"),
    ]
    if facts.newest_share < _MOST_OF_THE_LOG:
        newest = f"the newest {LONGEST} interactions of each user are {facts.newest_share:.0%} of"
        older = f"{newest} all: the older ones are trained on, too"
        choices.append(Choice("training.windows", "all", older))
    if facts.items > _FULL_SOFTMAX_ITEMS:
        loss = "{kind: sampled_softmax, num_negatives: 2048}"
        costly = f"{facts.items:,} items: the softmax over all of them costs too much"
        choices.append(Choice("training.loss", loss, costly))
    if facts.kept:
        read = [f"{name} as {feature.kind}" for name, feature, _ in facts.kept if feature]
        left_out = [f"{name} is left out: {fault}" for name, _, fault in facts.kept if fault]
        reason = "; ".join(["kept columns describe past interactions", *left_out])
        choices.append(Choice(_FEATURES, ", ".join(read) or "none", reason))
    return choices


_FEATURES = "model.interaction_features"


def propose(
    facts: LogFacts, settings: Sequence[Choice], data: DataConfig, plan: Plan
) -> list[Kind]:
    """Return the kinds of model of a race with their settings, the most likely to win first."""
    overrides = [f"{choice.setting}={choice.value}" for choice in settings]
    overrides = [override for override in overrides if not override.startswith(_FEATURES)]
    order = _DENSE_ORDER if facts.interactions_per_item >= _SPARSE else _SPARSE_ORDER
    if facts.repeat_share >= _REPEATS:
        order = _REPEAT_ORDER
    models = _models(facts)
    features = [feature.model_dump() for feature in facts.features]
    kinds = []
    for name in order[: _NUM_KINDS[plan.preset]]:
        description, cost, model = models[name]
        # Seen items kept in the loss: better for a filtered dot product, worse for the others.
        exclude_seen = False if name == "dot-product" and model.get("filter") else None
        tree = {
            "name": plan.name,
            "seed": plan.seed,
            "data": data,
            "model": {**model, "interaction_features": features},
            "training": {
                "refit": True,
                "exclude_seen": exclude_seen,
                "decay_fraction": 0.0,  # a training may pause and end after any epoch
                "average_weights": True,
            },
            "count_ensemble": {},
            "tracking": plan.tracking,
        }
        kinds.append(Kind(name, description, cost, parse_experiment(tree, overrides, name)))
    return kinds


def _models(facts: LogFacts) -> dict[str, tuple[str, float, dict[str, Any]]]:
    """Return description, cost and model section (without sizes) of each kind, by its name."""
    blocks: dict[str, Any] = {"num_blocks": 2, "num_heads": 2}
    transformer = {**blocks, "feed_forward_dim": 256}
    gated = {**transformer, "norm": "gated", "activation": "swiglu", "positions": "rotary"}
    half_life = 50 if facts.repeat_share >= _REPEATS else 3
    sparse = facts.interactions_per_item < _SPARSE
    filtered = ", with a filter beside attention," * sparse
    plain = {**transformer, "norm": "post", "filter": True} if sparse else transformer
    dot, attention = {"kind": "dot_product"}, {"kind": "target_attention", "head_dim": 32}
    summed = {**attention, "num_heads": 1, "pooling": "sum", "half_life": half_life}
    averaged = {**attention, "num_heads": 2, "half_life": (2, 20)}
    return {
        "hstu": (
            "HSTU blocks" + (" that read the times between interactions" * facts.has_times),
            1.1,
            {**blocks, "kind": "hstu", "times": "past" if facts.has_times else "none", "head": dot},
        ),
        "target-attention": (
            f"SASRec's encoder{filtered} with target attention, summed over the history",
            2.3,
            {**transformer, "filter": sparse, "head": summed},
        ),
        "gated-rotary": (
            "gated blocks with rotary positions, dot product",
            1.2,
            {**gated, "head": dot},
        ),
        "target-attention-average": (
            "SASRec's encoder with target attention, averaged over the history",
            3.5,
            {**transformer, "head": averaged},
        ),
        "dot-product": (
            f"SASRec: encoder{filtered} and dot product",
            1.0,
            {**plain, "head": dot},
        ),
    }
