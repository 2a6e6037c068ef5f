"""The optional dependencies: scoring needs none of them, training and comparing do."""

from __future__ import annotations

DISTRIBUTION = "recsys-target-attention"
"""The name of the distribution, which is on no package index; the import name is recsys."""

EXTRA_OF = {
    "faiss": "ann",
    "fastapi": "serve",
    "httptools": "serve",
    "jinja2": "train",
    "matplotlib": "train",
    "mlflow": "train",
    "onnx": "onnx",
    "onnxruntime": "onnx",
    "onnxscript": "onnx",
    "optuna": "tune",
    "pandas": "train",
    "prometheus_client": "serve",
    "pyspark": "spark",
    "pytorch_lightning": "train",
    "sklearn": "train",
    "uvicorn": "serve",
}
"""The extra that installs each optional module."""


def install_hint(error: ModuleNotFoundError) -> str | None:
    """Return how to install the module that an import lacked; None if it is in no extra.

    >>> install_hint(ModuleNotFoundError("No module named 'faiss'", name="faiss"))
    "needs faiss, of the extra ann: pip install '.[ann]' where recsys was cloned"
    """
    module = (error.name or "").partition(".")[0]
    if module not in EXTRA_OF:
        return None
    extra = EXTRA_OF[module]
    return f"needs {module}, of the extra {extra}: pip install '.[{extra}]' where recsys was cloned"
