"""The experiment tree: every setting of a run, typed, with its reason. The only reader of YAML."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PositiveFloat,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from recsys.errors import InputError, did_you_mean


class Section(BaseModel):
    """A part of the tree: frozen, and a name it does not know is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Columns(Section):
    """What the log calls its columns."""

    user_id: str = "user_id"
    """Who."""
    item_id: str = "item_id"
    """What."""
    timestamp: str = "timestamp"
    """When: integers, floats, dates, date-times or ISO text; a mere sequence number will do."""
    position: str | None = None
    """Orders rows of one user at the same time; without it their order in the log does."""
    weight: str | None = None
    """A number kept beside each interaction (rating, quantity)."""


class DataConfig(Section):
    """Which log, and how it becomes a prepared dataset."""

    source: str = "shop"
    """A named dataset (`recsys data` lists them) or the path of a log (CSV, TSV, Parquet, JSON
    lines)."""
    mirror: str | None = None
    """Folder or base URL that holds the named datasets; the variable RECSYS_MIRROR if not given."""
    columns: Columns | None = None
    """Column names of the log; None: those of the named dataset, or user_id, item_id, timestamp."""
    duplicates: Literal["keep", "drop_exact", "first", "last"] = "keep"
    """Same user and item again: keep all (repeat purchases are real), drop rows equal in user, item
    and time, or keep only the first or last of each user and item."""
    min_user_interactions: int = Field(1, ge=1)
    """Users with fewer interactions are dropped."""
    min_item_interactions: int = Field(1, ge=1)
    """Items with fewer interactions are dropped."""
    k_core: bool = False
    """Apply the two filters until both hold, instead of once (items first, then users)."""
    split: Literal["leave_last_out"] = "leave_last_out"
    """Last interaction of each user: test target; the one before: validation target."""


class TargetAttention(Section):
    """Each candidate attends over the purchases (`TargetAttentionHead`)."""

    kind: Literal["target_attention"] = "target_attention"
    num_heads: int = Field(2, ge=1)
    """Attention heads; their contributions add up."""
    head_dim: int = Field(32, ge=1)
    """Width of queries, keys and values in each head."""
    memory: Literal["items", "states"] = "items"
    """What keys and values are made of: item embeddings or encoder states."""
    half_life: tuple[PositiveFloat, PositiveFloat] = (2.0, 50.0)
    """Recency decay: purchases after which attention halves, from the first head to the last,
    geometrically between; a single head has the first."""


class DotProduct(Section):
    """Hidden state times candidate embedding: SASRec's head, the ablation of target attention."""

    kind: Literal["dot_product"] = "dot_product"


class ModelConfig(Section):
    """The encoder and its head."""

    embedding_dim: int = Field(64, ge=1)
    num_blocks: int = Field(2, ge=0)
    num_heads: int = Field(2, ge=1)
    """Self-attention heads; must divide embedding_dim."""
    feed_forward_dim: int = Field(256, ge=1)
    max_sequence_length: int = Field(50, ge=1)
    """The newest so many items of a history are read."""
    dropout: float = Field(0.2, ge=0, lt=1)
    norm: Literal["pre", "post"] = "pre"
    """Layer norm before each sub-layer, or after it as in 2017."""
    positions: Literal["learned", "sinusoidal"] = "learned"
    head: Annotated[TargetAttention | DotProduct, Field(discriminator="kind")] = TargetAttention()

    @field_validator("num_heads")
    @classmethod
    def _divides(cls, num_heads: int, info: ValidationInfo) -> int:
        dim = info.data.get("embedding_dim", num_heads)
        if dim % num_heads:
            raise ValueError(f"must divide embedding_dim, {dim}")
        return num_heads


class TrainingConfig(Section):
    """How the weights are found."""

    max_epochs: int = Field(40, ge=1)
    validate_every: int = Field(1, ge=1)
    """Epochs between validations (the last is always validated)."""
    patience: int = Field(10, ge=1)
    """Epochs without a better validation NDCG@10 before stopping."""
    learning_rate: float = Field(1e-3, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    warmup_steps: int = Field(100, ge=0)
    """Steps over which the learning rate rises to its full value."""
    decay_fraction: float = Field(0.3, ge=0, le=1)
    """Share of the epochs, at the end, over which the learning rate falls to a hundredth."""
    gradient_clip: float = Field(5.0, gt=0)
    """Largest norm of the gradient."""
    batch_tokens: int = Field(12_800, ge=1)
    """Tokens per batch, padding included."""
    precision: Literal["auto", "bf16", "float32"] = "auto"
    """auto: bf16 where the processor multiplies it fast, float32 elsewhere."""
    refit: bool = False
    """After the best epoch is found on validation, train again from the start on all but the test
    targets, for as many epochs (the learning rate falls at the end of those)."""


class EvaluationConfig(Section):
    """The protocol the figures are taken under."""

    seen: Literal["filter", "allow"] = "filter"
    """filter: items of the user's full history are not ranked (nor, inside the window, trained as
    wrong answers); allow: repeat purchases count."""
    cutoffs: tuple[Annotated[int, Field(ge=1)], ...] = (1, 5, 10, 20, 50, 100)
    """The k of recall@k and NDCG@k."""


class TrackingConfig(Section):
    """Where MLflow keeps the runs."""

    uri: str = "sqlite:///mlflow.db"
    """A database URL, or the address of an MLflow server."""
    experiment: str = "recsys"

    @property
    def database(self) -> Path | None:
        """File of a SQLite store, absolute; None if the store is another."""
        prefix = "sqlite:///"
        return (
            Path(self.uri.removeprefix(prefix)).absolute() if self.uri.startswith(prefix) else None
        )

    @property
    def absolute_uri(self) -> str:
        """The URI that MLflow is given.

        It keeps connections by URI: a relative path in it would go on meaning the process's first
        working directory.
        """
        return self.uri if self.database is None else f"sqlite:///{self.database}"


class Experiment(Section):
    """One experiment: all that decides its result but the data itself."""

    name: str = Field("experiment", pattern=r"^\w[\w.-]*$")
    """Name of the MLflow run and of the folder of its outputs; letters, digits, _ . and -."""
    seed: int = Field(0, ge=0)
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    training: TrainingConfig = TrainingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    tracking: TrackingConfig = TrackingConfig()


def load_experiment(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Experiment:
    """Read an experiment from YAML, with ``a.b=value`` overrides (values are YAML too).

    Raises:
        InputError: the file cannot be read, or fields are unknown or wrong: all are named at once.
    """
    try:
        tree = _parse_yaml(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot read the config: {error}") from error
    except yaml.YAMLError as error:
        raise InputError(f"{path}: not valid YAML: {error}") from error
    if not isinstance(tree, dict | None):
        raise InputError(f"{path}: a config is a mapping of sections, not {type(tree).__name__}")
    return parse_experiment(tree or {}, overrides, origin=str(path))


def parse_experiment(
    tree: dict[str, Any], overrides: Sequence[str] = (), origin: str = "config"
) -> Experiment:
    """Check a nested dict, with ``a.b=value`` overrides applied, and freeze it."""
    for override in overrides:
        key, sign, value = override.partition("=")
        if not sign or not key:
            raise InputError(f"--set {override}: write it as key=value, e.g. model.dropout=0.1")
        *parents, leaf = key.split(".")
        section: Any = tree
        for depth, parent in enumerate(parents):
            section = section.setdefault(parent, {})
            if not isinstance(section, dict):
                raise InputError(
                    f"--set {override}: {'.'.join(parents[: depth + 1])} has no fields"
                )
        section[leaf] = _parse_yaml(value)
    try:
        return Experiment.model_validate(tree)
    except ValidationError as error:
        raise InputError(f"{origin}: " + "; ".join(_complaints(error))) from error


def dump_experiment(experiment: Experiment) -> str:
    """The experiment as YAML, every field written out."""
    return yaml.safe_dump(experiment.model_dump(mode="json"), sort_keys=False)


def flatten(experiment: Experiment) -> dict[str, Any]:
    """Dotted names to values, as MLflow parameters want them."""

    def walk(prefix: str, tree: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        for key, value in tree.items():
            if isinstance(value, dict):
                yield from walk(f"{prefix}{key}.", value)
            else:
                yield f"{prefix}{key}", value

    return dict(walk("", experiment.model_dump(mode="json")))


def _parse_yaml(text: str) -> Any:
    return yaml.load(text, Loader=_Loader)  # noqa: S506 - it is a SafeLoader


class _Loader(yaml.SafeLoader):
    """SafeLoader that reads 1e-3 as a number (YAML 1.2), not as text (PyYAML's 1.1)."""


_Loader.yaml_implicit_resolvers = {
    letter: list(resolvers) for letter, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:\d+\.?\d*|\.\d+)[eE][-+]?\d+$"),
    list("-+.0123456789"),
)


def _complaints(error: ValidationError) -> Iterator[str]:
    """One line per wrong field: its full path, the rule, the value, and the nearest known name."""
    for problem in error.errors():
        location = [str(part) for part in problem["loc"]]
        path = ".".join(location)
        if problem["type"] == "extra_forbidden":
            known = _fields_at(location[:-1])
            hint = did_you_mean(location[-1], known) or f"; known here: {', '.join(known)}"
            yield f"{path}: unknown key{hint}"
        else:
            yield f"{path or 'config'}: {problem['msg'].lower()}, not {problem['input']!r}"


def _fields_at(location: Sequence[str]) -> list[str]:
    """The field names of the section at a path (a union's path holds the chosen kind)."""
    section: Any = Experiment
    for part in location:
        kinds = {"target_attention": TargetAttention, "dot_product": DotProduct}
        if part in kinds:
            section = kinds[part]
            continue
        annotation = section.model_fields[part].annotation if section else None
        options = [annotation, *getattr(annotation, "__args__", ())]
        section = next((o for o in options if isinstance(o, type) and issubclass(o, Section)), None)
    return list(section.model_fields) if section else []
