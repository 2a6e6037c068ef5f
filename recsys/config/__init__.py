"""The typed settings of an experiment, with their documentation."""

from recsys.config.data import (
    ROW_ORDER,
    TIME_IS_NUMBER,
    Backtest,
    ChosenTargets,
    Columns,
    DataConfig,
    GlobalTime,
    KnownHistory,
    LeaveLastBasketOut,
    LeaveLastOut,
    Split,
    UserHoldout,
    time_value,
)
from recsys.config.experiment import (
    WITH_COUNTS,
    AllItems,
    CountEnsembleConfig,
    EvaluationConfig,
    Experiment,
    GivenItems,
    RequestTime,
    SampledItems,
    TrackingConfig,
)
from recsys.config.files import (
    Preset,
    continued,
    dump_experiment,
    find_config,
    flatten,
    load_experiment,
    parse_experiment,
    preset_by_part,
    presets,
    with_changes,
)
from recsys.config.model import (
    AveragedConfig,
    AveragedMember,
    CategoriesFeature,
    CategoryFeature,
    DotProduct,
    FactorisationMachineConfig,
    Feature,
    FeatureReaderConfig,
    HSTUConfig,
    MaskedItemConfig,
    ModelConfig,
    NextItemConfig,
    NumberFeature,
    SequenceToSequenceConfig,
    TargetAttention,
    TextFeature,
    TransformerConfig,
    VectorFeature,
)
from recsys.config.section import Section
from recsys.config.suite import Choices, Range, Search, Suite, SuiteEntry, load_search, load_suite
from recsys.config.training import (
    BinaryCrossEntropy,
    CrossEntropy,
    GeneralisedBinaryCrossEntropy,
    SampledLossConfig,
    SampledSoftmax,
    StartConfig,
    TrainingConfig,
)
