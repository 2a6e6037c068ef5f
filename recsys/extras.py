"""The optional dependencies: scoring needs none of them, training and comparing do."""

from __future__ import annotations

import shlex

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

    The hint names the packages of the extra. The extra of recsys itself could only be installed
    from the clone or the wheel that recsys was installed from, and that place is not known.

    >>> install_hint(ModuleNotFoundError("No module named 'faiss'", name="faiss"))
    "needs faiss, of the extra ann: pip install 'faiss-cpu<2,>=1.12'"
    """
    module = (error.name or "").partition(".")[0]
    if module not in EXTRA_OF:
        return None
    extra = EXTRA_OF[module]
    packages = " ".join(map(shlex.quote, packages_of(extra)))
    how = f"pip install {packages}" if packages else f"install recsys again with [{extra}]"
    return f"needs {module}, of the extra {extra}: {how}"


def packages_of(extra: str) -> list[str]:
    """Return the requirements of an extra; none if the installed recsys does not list them."""
    from importlib import metadata  # noqa: PLC0415 - slow to import, and needed for an error only

    try:
        requirements = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:  # run from a folder without being installed
        return []
    split = (requirement.partition(";") for requirement in requirements)
    return [
        package.strip()
        for package, _, marker in split
        if marker.replace('"', "'").strip() == f"extra == '{extra}'"
    ]
