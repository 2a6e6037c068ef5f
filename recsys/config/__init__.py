"""The experiment tree: every setting of a run, typed, with its reason."""

from recsys.config.data import Columns, DataConfig, DropRows
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
    ModelConfig,
    NextItemConfig,
    SequenceToSequenceConfig,
    TargetAttention,
    TransformerConfig,
)
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

__all__ = [
    "Backtest",
    "ChosenTargets",
    "Columns",
    "DataConfig",
    "DotProduct",
    "DropRows",
    "EvaluationConfig",
    "Experiment",
    "FactorisationMachineConfig",
    "GlobalTime",
    "KnownHistory",
    "LeaveLastBasketOut",
    "LeaveLastOut",
    "ModelConfig",
    "NextItemConfig",
    "Section",
    "SequenceToSequenceConfig",
    "Split",
    "TargetAttention",
    "TrackingConfig",
    "TrainingConfig",
    "TransformerConfig",
    "UserHoldout",
    "dump_experiment",
    "flatten",
    "load_experiment",
    "parse_experiment",
    "time_value",
]
