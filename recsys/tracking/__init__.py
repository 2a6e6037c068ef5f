"""MLflow: runs are written and read, and models registered, here alone."""

import os

# No bar for each file, and a server that is not there is reported in seconds rather than minutes.
for _name, _value in {
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
}.items():
    os.environ.setdefault(_name, _value)
