"""Fixtures of all tests; a dataset and bundles small enough to check by hand."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import HealthCheck, settings
from matplotlib.image import imread

from recsys.config.experiment import Experiment
from recsys.config.model import DotProduct, NextItemConfig, TargetAttention
from recsys.data.prepared import PreparedDataset, prepare
from recsys.serving.bundle import ModelBundle
from recsys.serving.recommender import Recommender
from recsys.tracking.store import write_tables
from recsys.training.device import NO_CUBLAS_CONTEXT
from tests.helpers.logs import log_of_columns, log_of_histories
from tests.helpers.random_models import random_bundle

# How long an example takes says how busy the machine is, not whether the code is right.
settings.register_profile(
    "recsys", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("recsys")


@pytest.fixture(scope="session")
def mirror() -> Path:
    """The folder of real logs; tests that ask for it are marked ``realdata``."""
    beside = Path(__file__).parents[2] / "shared" / "data"
    folder = Path(os.environ.get("RECSYS_MIRROR") or beside)
    if not folder.is_dir():
        pytest.skip(f"no real logs: RECSYS_MIRROR names no folder and {beside} does not exist")
    os.environ["RECSYS_MIRROR"] = str(folder.resolve())  # where named datasets look
    return folder.resolve()


@pytest.fixture(scope="session")
def spark_environment() -> dict[str, str]:
    """The environment in which Spark's workers find Python and this library."""
    pytest.importorskip("pyspark.sql", reason="pyspark is not installed: the extra spark")
    if "JAVA_HOME" not in os.environ and shutil.which("java") is None:
        pytest.skip("no Java runtime")
    paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


@pytest.fixture(scope="module")
def spark(spark_environment: dict[str, str]) -> Iterator[Any]:
    """A small session of Spark on this machine; tests that ask for it are marked ``spark``."""
    sql = import_module("pyspark.sql")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in spark_environment.items():
            patch.setenv(name, value)
        builder = sql.SparkSession.builder.master("local[2]")
        for name, value in SPARK_SETTINGS.items():
            builder = builder.config(name, value)
        session = builder.getOrCreate()
        try:
            yield session
        finally:
            session.stop()


SPARK_SETTINGS = {
    # A session of minutes is over before its code is compiled well: compile it quickly.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.log.level": "OFF",
    "spark.sql.session.timeZone": "America/Lima",  # that of the session must not matter
    "spark.sql.shuffle.partitions": "4",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


@pytest.fixture(scope="session", autouse=True)
def _nothing_is_timed(pytestconfig: pytest.Config) -> Iterator[None]:
    """Settle ``training.precision: auto`` as float32; benchmarks measure it as users do."""
    with pytest.MonkeyPatch.context() as patch:
        if "benchmark" not in str(pytestconfig.getoption("-m")):
            patch.setattr("recsys.training.device.bf16_share", lambda *_: 1.0)
        yield


@pytest.fixture(scope="session", autouse=True)
def _tables_are_made_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Copy the empty MLflow store, whose migrations take seconds, wherever one is made anew."""
    store = tmp_path_factory.mktemp("store") / "mlflow.db"

    def copy_tables(file: Path) -> None:
        if not store.exists():
            write_tables(store)
        shutil.copyfile(store, file)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("recsys.tracking.store.write_tables", copy_tables)
        yield


@contextmanager
def no_gpu() -> Iterator[None]:
    """Hide every GPU from this process and from those that it starts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: False)
        patch.setattr(torch.cuda, "device_count", lambda: 0)  # which Lightning asks
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        yield


def pytest_configure(config: pytest.Config) -> None:
    """Ignore the warning on a GPU that trainings ignore; all others are errors (pyproject.toml)."""
    config.addinivalue_line("filterwarnings", f"ignore:{NO_CUBLAS_CONTEXT}:UserWarning")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Hide the GPU from tests that are not marked: what they expect was computed on a CPU."""
    if item.get_closest_marker("gpu") or item.get_closest_marker("benchmark"):
        return (yield)
    with no_gpu():
        return (yield)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark notebooks as slow; skip benchmarks and soaks unless their mark is asked for."""
    for item in items:
        if item.path.suffix == ".ipynb":
            item.add_marker("slow")
    for mark, what in (("benchmark", "a benchmark"), ("soak", "takes hours")):
        if mark in config.getoption("markexpr"):
            continue
        skip = pytest.mark.skip(reason=f"{what}: ask for it with make {mark}")
        for item in items:
            if item.get_closest_marker(mark):
                item.add_marker(skip)


PURCHASES = {
    "ann": ["boots", "gloves", "hat", "jacket"],
    "bob": ["boots", "hat", "boots", "socks"],
    "cat": ["gloves", "boots", "jacket"],
    "dan": ["socks", "jacket"],
    "eve": ["hat", "gloves", "scarf"],  # the scarf is only ever a test target: not in the catalogue
    "fay": ["jacket", "boots", "hat"],
}


@pytest.fixture(scope="session")
def tiny_log() -> pl.DataFrame:
    return log_of_histories(PURCHASES)


@pytest.fixture(scope="session")
def tiny_dataset(
    tiny_log: pl.DataFrame, tmp_path_factory: pytest.TempPathFactory
) -> PreparedDataset:
    names = pl.DataFrame({"item_id": ["boots", "hat"], "name": ["Snow boots", "Top hat"]})
    return prepare(tiny_log, out=tmp_path_factory.mktemp("data") / "tiny", items=names)


def chains(
    users: int, length: int, *, items: int = 40, seed: int = 0, noise: float = 0.1
) -> pl.DataFrame:
    """Histories in which item i is followed by i + 1, with some random items."""
    rng = np.random.default_rng(seed)
    tokens = (rng.integers(items, size=users)[:, None] + np.arange(length)) % items
    others = rng.random(tokens.shape) < noise
    tokens = np.where(others, rng.integers(items, size=tokens.shape), tokens)
    times = np.cumsum(rng.integers(1, 90_000, size=tokens.shape), axis=1)
    return log_of_columns(np.repeat(np.arange(users), length), tokens.ravel(), times.ravel())


def tiny_experiment(head: TargetAttention | DotProduct) -> Experiment:
    return Experiment(
        model=NextItemConfig(
            embedding_dim=8,
            num_blocks=1,
            feed_forward_dim=16,
            max_sequence_length=3,
            head=head,
        )
    )


def write_tiny_bundle(
    path: Path, dataset: PreparedDataset, head: TargetAttention | DotProduct
) -> ModelBundle:
    return random_bundle(path, tiny_experiment(head), dataset, git_commit="c0ffee")


@pytest.fixture(scope="session")
def tiny_bundle(
    tiny_dataset: PreparedDataset, tmp_path_factory: pytest.TempPathFactory
) -> ModelBundle:
    """With target attention; treat its folder as read-only."""
    head = TargetAttention(num_heads=2, head_dim=4)
    return write_tiny_bundle(tmp_path_factory.mktemp("bundle") / "ta", tiny_dataset, head)


@pytest.fixture(scope="session")
def tiny_dot_bundle(
    tiny_dataset: PreparedDataset, tmp_path_factory: pytest.TempPathFactory
) -> ModelBundle:
    """With the dot-product head; treat its folder as read-only."""
    return write_tiny_bundle(tmp_path_factory.mktemp("bundle") / "dot", tiny_dataset, DotProduct())


@pytest.fixture(scope="session")
def recommender(tiny_bundle: ModelBundle, tiny_dataset: PreparedDataset) -> Recommender:
    return Recommender.load(tiny_bundle.path, tiny_dataset.path)


# --- Pages in a real browser ---------------------------------------------------------------------

_PROBE = """<script>
addEventListener("load", () => {
  const crossing = [], outside = [];
  for (const svg of document.querySelectorAll("svg")) {
    const frame = svg.getBoundingClientRect();
    if (!frame.width) continue;
    const texts = [...svg.querySelectorAll("text")].map(
      (text) => [text.textContent, text.getBoundingClientRect()]);
    texts.forEach(([words, box], number) => {
      if (box.left < frame.left - 1 || box.right > frame.right + 1) outside.push(words);
      for (const [other, its] of texts.slice(number + 1)) {
        const wide = Math.min(box.right, its.right) - Math.max(box.left, its.left);
        const tall = Math.min(box.bottom, its.bottom) - Math.max(box.top, its.top);
        if (wide > 2 && tall > 4) crossing.push(words + " / " + other);
      }
    });
  }
  parent.postMessage(JSON.stringify({
    width: innerWidth,
    needed: document.documentElement.scrollWidth,
    dark: matchMedia("(prefers-color-scheme: dark)").matches,
    crossing, outside,
    links: [...document.querySelectorAll("[src],link[rel=stylesheet],script[src]")].length,
  }), "*");
});
</script>"""
_FRAME = """<!doctype html><body style="margin:0">
<iframe src="page.html" style="width:{width}px;height:{height}px;border:0;display:block"></iframe>
<pre id="seen"></pre>
<script>addEventListener("message", (e) => {{
  document.getElementById("seen").textContent = e.data;
}})</script>"""
_HEIGHT = 4_000


@dataclass(frozen=True)
class Sight:
    width: int  # of the page's window, in pixels
    needed: int  # the page scrolls sideways if that is more
    dark: bool
    crossing: list[str]  # pairs of words of one picture that overlap
    outside: list[str]  # words that stick out of their picture
    links: int  # elements that load something
    console: list[str]
    pixels: np.ndarray  # [height, width, 3], 0 to 1

    def check(self, width: int, dark: bool) -> None:
        """Check that the page fits, has its colours, loads nothing, and that charts are legible."""
        assert self.needed <= self.width == width  # tables scroll in their own box
        assert self.dark == dark == (self.pixels[:30].mean() < 0.3)
        assert np.ptp(self.pixels[1000:]) > 0.5  # pictures were drawn, not left empty
        assert self.crossing == self.outside == self.console == []
        assert self.links == 0


Look = Callable[[Path, int, bool], Sight]


@pytest.fixture
def look(tmp_path: Path) -> Look:
    """Show a page at a width, light or dark, in the Chromium of this machine."""
    names = ("chromium", "google-chrome", "chromium-browser")
    browser = next(filter(None, map(shutil.which, names)), None)
    if browser is None:
        pytest.skip("no Chromium or Chrome on this machine")

    def look(page: Path, width: int, dark: bool) -> Sight:
        # A window is never narrower than 500 pixels, a frame is: media queries go by the frame.
        folder = tmp_path / f"look-{width}-{dark}"
        folder.mkdir()
        (folder / "page.html").write_text(
            # Before the page's policy, which forbids scripts.
            page.read_text(encoding="utf-8").replace("<head>", f"<head>{_PROBE}", 1),
            encoding="utf-8",
        )
        frame, picture = folder / "frame.html", folder / "page.png"
        frame.write_text(_FRAME.format(width=width, height=_HEIGHT), encoding="utf-8")
        words = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"]
        words += ["--hide-scrollbars", "--enable-logging=stderr", "--virtual-time-budget=3000"]
        words += [f"--blink-settings=preferredColorScheme={0 if dark else 1}"]
        words += [f"--user-data-dir={folder / 'profile'}"]
        words += [f"--window-size={max(width, 500)},{_HEIGHT}", f"--screenshot={picture}"]
        words += ["--dump-dom", frame.as_uri()]
        done = subprocess.run(words, check=True, capture_output=True, text=True, timeout=120)
        seen = re.search(r'<pre id="seen">(.+?)</pre>', done.stdout, re.DOTALL)
        assert seen is not None, done.stderr
        console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
        facts = json.loads(html.unescape(seen[1]))
        return Sight(**facts, console=console, pixels=imread(picture)[:, :width, :3])

    return look
