"""The experiment tree: every setting of a run, typed, with its reason."""

from recsys.config.data import Columns, DataConfig, LeaveLastBasketOut, LeaveLastOut, Split
from recsys.config.evaluation import (
    AllItems,
    CandidatesConfig,
    EvaluationConfig,
    GivenItems,
    SampledItems,
)
from recsys.config.experiment import Experiment, TrackingConfig, TrainingConfig
from recsys.config.files import dump_experiment, flatten, load_experiment, parse_experiment
from recsys.config.model import (
    DotProduct,
    FactorisationMachineConfig,
    ModelConfig,
    NextItemConfig,
    SequenceToSequenceConfig,
    TargetAttention,
    TransformerConfig,
)
from recsys.config.section import Section

__all__ = [
    "AllItems",
    "CandidatesConfig",
    "Columns",
    "DataConfig",
    "DotProduct",
    "EvaluationConfig",
    "Experiment",
    "FactorisationMachineConfig",
    "GivenItems",
    "LeaveLastBasketOut",
    "LeaveLastOut",
    "ModelConfig",
    "NextItemConfig",
    "SampledItems",
    "Section",
    "SequenceToSequenceConfig",
    "Split",
    "TargetAttention",
    "TrackingConfig",
    "TrainingConfig",
    "TransformerConfig",
    "dump_experiment",
    "flatten",
    "load_experiment",
    "parse_experiment",
]
