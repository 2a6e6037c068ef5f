"""How to look at runs in MLflow's pages."""

from __future__ import annotations

import json
import re

from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from recsys.config import TrackingConfig

_SHARED_VIEW = "mlflow.sharedViewState.recsys"
EXPERIMENT_TAGS = {
    "mlflow.experimentKind": "custom_model_development",
    _SHARED_VIEW: json.dumps(
        {
            "selectedColumns": (
                *("metrics.`headline/ndcg_at_10`", "metrics.`headline/recall_at_10`"),
                *("metrics.`headline/mrr`", "tags.`model`", "tags.`answer`"),
            )
        }
    ),
}
"""The tags by which MLflow 3 shows an experiment's runs instead of its traces, and, in a view that
is shared by the name ``recsys``, columns of metrics, of which it shows none by itself."""


def mlflow_link(
    tracking: TrackingConfig, run_id: str | None = None, program: str = "mlflow"
) -> str:
    """Return how to open the runs of an experiment, or one run: a command, if needed, and a link.

    A user and password in the address of the store are left out.

    Args:
        tracking: the store.
        run_id: the run; all runs of the experiment if None.
        program: what to type to start MLflow.
    """
    is_server = tracking.uri.startswith(("http://", "https://"))
    server = tracking.uri.rstrip("/") if is_server else "http://127.0.0.1:5000"
    try:
        client = MlflowClient(tracking.absolute_uri)
        experiment = client.get_experiment_by_name(tracking.experiment)
    except MlflowException:  # the run was lost with its store
        experiment = None
    page = "" if experiment is None else f"/{experiment.experiment_id}/runs"
    page += f"/{run_id}" if page and run_id else ""
    # MLflow 3.17's pages ignore the tag and open any experiment as one of traces, without this.
    link = f"{server}/#/experiments{page}?workflowType=machine_learning"
    if experiment is not None and not run_id and _SHARED_VIEW in experiment.tags:
        link += "&viewStateShareKey=recsys"
    command = "" if is_server else f"{program} ui --backend-store-uri {tracking.uri}\n"
    return without_password(command + link)


def without_password(text: str) -> str:
    """Return a text without the users and passwords in its addresses.

    >>> without_password("recsys run log.csv --uri postgresql://me:secret@host/runs")
    'recsys run log.csv --uri postgresql://***@host/runs'
    """
    return re.sub(r"//[^@/\s]+@", "//***@", text)
