"""The experiment tree: every setting of a run, typed, with its reason."""

from recsys.config.data import Columns, DataConfig, LeaveLastBasketOut, LeaveLastOut, Split
from recsys.config.experiment import (
    EvaluationConfig,
    Experiment,
    TrackingConfig,
    TrainingConfig,
)
from recsys.config.files import dump_experiment, flatten, load_experiment, parse_experiment
from recsys.config.model import (
    DotProduct,
    FactorisationMachineConfig,
    MaskedItemConfig,
    ModelConfig,
    NextItemConfig,
    SequenceToSequenceConfig,
    TargetAttention,
    TransformerConfig,
)
from recsys.config.search import Choices, Range, Search, load_search
from recsys.config.section import Section
from recsys.config.suite import Suite, SuiteEntry, load_suite

__all__ = [
    "Choices",
    "Columns",
    "DataConfig",
    "DotProduct",
    "EvaluationConfig",
    "Experiment",
    "FactorisationMachineConfig",
    "LeaveLastBasketOut",
    "LeaveLastOut",
    "MaskedItemConfig",
    "ModelConfig",
    "NextItemConfig",
    "Range",
    "Search",
    "Section",
    "SequenceToSequenceConfig",
    "Split",
    "Suite",
    "SuiteEntry",
    "TargetAttention",
    "TrackingConfig",
    "TrainingConfig",
    "TransformerConfig",
    "dump_experiment",
    "flatten",
    "load_experiment",
    "load_search",
    "load_suite",
    "parse_experiment",
]
