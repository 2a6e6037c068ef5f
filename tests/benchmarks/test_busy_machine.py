"""How long an epoch takes alone, beside a busy loop, and beside another training."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import recsys
from tests.conftest import chains

EPOCHS = 4
SETTINGS: dict[str, dict[str, str]] = {
    "as recsys sets it": {},
    "as libgomp does by itself": {"GOMP_SPINCOUNT": "30000000000"},
    "passive": {"OMP_WAIT_POLICY": "passive"},
}
TRAIN = (
    "import sys, recsys; folder, name, epochs = sys.argv[1:]; "
    "words = [f'name={name}', f'training.max_epochs={epochs}', 'training.precision=float32']; "
    "run = recsys.train('experiment.yaml', folder, overrides=words, fresh=True); "
    "print(run.seconds / int(epochs))"
)
EXPERIMENT = """
model:
  embedding_dim: 64
  num_blocks: 2
  num_heads: 2
  feed_forward_dim: 256
  max_sequence_length: 30
  head: {kind: dot_product}
training: {batch_tokens: 1024, patience: 1000, validate_every: 1000}
"""


@contextmanager
def beside(words: list[str], environment: dict[str, str]) -> Iterator[None]:
    """Run a command meanwhile; none if there are no words."""
    if not words:
        yield
        return
    with subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL) as other:
        try:
            yield
        finally:
            other.kill()


@pytest.mark.benchmark
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("company", ["alone", "a busy loop", "another training"])
def test_seconds_of_an_epoch(
    setting: str, company: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("experiment.yaml").write_text(EXPERIMENT, encoding="utf-8")
    recsys.prepare(chains(2_000, 30, items=12_000), out="data")
    unset = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "OMP_NUM_THREADS")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    environment |= SETTINGS[setting]
    train = [sys.executable, "-c", TRAIN, "data"]
    words = {
        "alone": [],
        "a busy loop": [sys.executable, "-c", "while True: pass"],
        "another training": [*train, "other", "1000"],
    }
    load = os.getloadavg()[0]
    with beside(words[company], environment):
        done = subprocess.run(
            [*train, "mine", str(EPOCHS)],
            env=environment,
            check=True,
            capture_output=True,
            text=True,
        )
    seconds = float(done.stdout.split()[-1])
    print(f"\n{setting}, {company}: {seconds:.2f} s an epoch (load before: {load:.1f})")
