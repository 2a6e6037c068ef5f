"""The names of a run's artifacts, tags and logged costs."""

BUNDLE = "bundle"
SETTINGS, REPORT = "experiment.yaml", "report.html"

ANSWER = "answer"
FIT_SECONDS = "fit_seconds"
PARAMETERS = "parameters"
PEAK_MEMORY = "peak_memory_mib"

COSTS = {FIT_SECONDS: "fit s", PEAK_MEMORY: "peak MiB", PARAMETERS: "parameters"}
"""The costs that a comparison shows, with the heads of their columns."""

TABLES = {
    "ranks_valid": "valid/",
    "ranks_valid_model_alone": "valid/model_alone_",
    "ranks_test": "test/",
    "ranks_test_model_alone": "test/model_alone_",
    "topk_test": "test/",
    "lists_test": "test/",
    "lists_best_test": "test/best_",
}
"""The tables of a run, which are Parquet files, and the beginning of their metrics' names."""
RUN_FILES = {BUNDLE, SETTINGS, REPORT, *(f"{name}.parquet" for name in TABLES)}
"""Everything that the folder of a run may contain."""
