"""The experiment tree: every setting of a run, typed, with its reason."""

from recsys.config.data import Columns, DataConfig, DropRows
from recsys.config.evaluation import (
    AllItems,
    CandidatesConfig,
    EvaluationConfig,
    GivenItems,
    RequestTime,
    SampledItems,
)
from recsys.config.experiment import EvidenceConfig, Experiment, TrackingConfig, TrainingConfig
from recsys.config.files import dump_experiment, flatten, load_experiment, parse_experiment
from recsys.config.loss import (
    BinaryCrossEntropy,
    CrossEntropy,
    GeneralisedBinaryCrossEntropy,
    LossConfig,
    SampledLossConfig,
    SampledSoftmax,
)
from recsys.config.model import (
    DotProduct,
    FactorisationMachineConfig,
    HSTUConfig,
    MaskedItemConfig,
    ModelConfig,
    NextItemConfig,
    SequenceToSequenceConfig,
    TargetAttention,
    TransformerConfig,
)
from recsys.config.search import Choices, Range, Search, load_search
from recsys.config.section import Section
from recsys.config.split import (
    Backtest,
    ChosenTargets,
    GlobalTime,
    KnownHistory,
    LeaveLastBasketOut,
    LeaveLastOut,
    Split,
    UserHoldout,
    time_value,
)
from recsys.config.suite import Suite, SuiteEntry, load_suite

__all__ = [
    "AllItems",
    "Backtest",
    "BinaryCrossEntropy",
    "CandidatesConfig",
    "Choices",
    "ChosenTargets",
    "Columns",
    "CrossEntropy",
    "DataConfig",
    "DotProduct",
    "DropRows",
    "EvaluationConfig",
    "EvidenceConfig",
    "Experiment",
    "FactorisationMachineConfig",
    "GeneralisedBinaryCrossEntropy",
    "GivenItems",
    "GlobalTime",
    "HSTUConfig",
    "KnownHistory",
    "LeaveLastBasketOut",
    "LeaveLastOut",
    "LossConfig",
    "MaskedItemConfig",
    "ModelConfig",
    "NextItemConfig",
    "Range",
    "RequestTime",
    "SampledItems",
    "SampledLossConfig",
    "SampledSoftmax",
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
    "UserHoldout",
    "dump_experiment",
    "flatten",
    "load_experiment",
    "load_search",
    "load_suite",
    "parse_experiment",
    "time_value",
]
