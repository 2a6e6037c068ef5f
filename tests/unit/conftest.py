"""A dataset and bundles small enough to check by hand."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from matplotlib.image import imread
from torch import nn

from recsys.config import DotProduct, Experiment, NextItemConfig, TargetAttention
from recsys.data.prepared import PreparedDataset, prepare
from recsys.model.build import build_model
from recsys.model.models import NextItemModel
from recsys.serving.bundle import ModelBundle

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
    rows = [
        (user, item, time) for user, items in PURCHASES.items() for time, item in enumerate(items)
    ]
    return pl.DataFrame(rows, schema=["user_id", "item_id", "timestamp"], orient="row")


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
    return pl.DataFrame(
        {
            "user_id": np.repeat(np.arange(users), length),
            "item_id": tokens.ravel(),
            "timestamp": times.ravel(),
        }
    )


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


def tiny_model(experiment: Experiment, num_items: int) -> NextItemModel:
    torch.manual_seed(3)
    assert isinstance(experiment.model, NextItemConfig)
    model = build_model(experiment.model, num_items)
    for weight in model.parameters():  # past the zeros that target attention starts from
        nn.init.normal_(weight, std=0.5)
    with torch.no_grad():
        model.items.weight[0] = 0
    return model


def write_tiny_bundle(
    path: Path, dataset: PreparedDataset, head: TargetAttention | DotProduct
) -> ModelBundle:
    experiment = tiny_experiment(head)
    model = tiny_model(experiment, dataset.num_items)
    return ModelBundle.write(path, model, experiment, dataset, ("train",), git_commit="c0ffee")


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
    """What a browser saw of a page."""

    width: int
    """The width of the page's window in pixels."""
    needed: int
    """The width that the page needs; it scrolls sideways if that is more."""
    dark: bool
    crossing: list[str]
    """Pairs of words of one picture that overlap."""
    outside: list[str]
    """Words that stick out of their picture."""
    links: int
    """The number of elements that load something."""
    console: list[str]
    """What the console says."""
    pixels: np.ndarray
    """The page as a picture [height, width, 3], 0 to 1."""


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
        words += ["--disable-background-networking", "--disable-component-update"]
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
