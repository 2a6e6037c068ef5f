"""Do the tests see? Small faults are put into the code at random, and its tests are run on each.

    python tests/mutants.py recsys/inference/ranking.py --number 40 --seed 1

A mutant differs from the code in one place: < for <=, + for -, a constant one up or down, a ``not``
or a ``.T`` less; it lives in a copy, in a temporary folder. One that survives is a place that no
test sees, or makes no difference. (mutmut runs the whole suite first; cosmic-ray changes the tree.)
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import tokenize
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
MEMORY = 8 << 30
"""Of one mutant's tests, in bytes."""
CORE = {
    "data/histories.py": "histories",
    "data/splits.py": "splits",
    "data/batches.py": "batches",
    "data/log.py": "log",
    "data/preparation.py": "splits",
    "baselines/count_ensemble.py": "count_ensemble",
    "model/attention.py": "attention",
    "model/sequence_to_sequence.py": "generation",
    "model/heads.py": "heads",
    "training/checkpoints.py": "resume",
    "training/epochs.py": "training",
    "training/followers.py": "followers",
    "training/losses.py": "*losses",
    "training/module.py": "training",
    "inference/model_scorer.py": "model_scorer",
    "inference/ranking.py": "ranking",
    "evaluation/metrics.py": "metrics*",
    "evaluation/tables.py": "[ct]a[bn]*s",  # candidates and tables
    "reports/statistics.py": "statistics",
}
"""Where a fault would make figures wrong and nothing else; and their tests, which are quick."""
PAIRS = [("<", "<="), (">", ">="), ("==", "!="), ("+", "-"), ("*", "/"), ("+=", "-=")]
PAIRS += [("and", "or"), ("True", "False"), ("min", "max"), ("minimum", "maximum")]
SWAPS = {one: other for pair in PAIRS for one, other in (pair, pair[::-1])}
SWAPS |= {"//": "*", "**": "*", "%": "*", "not": "", "~": "", "in": "not in", "is": "is not"}
SWAPS |= {"&": "|", "0": "1", ".T": "", ".mT": ""}


class Mutant(NamedTuple):
    file: Path
    content: str
    words: str
    """Where the fault is, and what."""


def mutants(file: Path) -> Iterator[Mutant]:
    """All of a file that Python can read, in the order of its lines."""
    lines = file.read_text().splitlines(keepends=True)
    with file.open("rb") as source:
        tokens = [(one.string, one.start, one.end) for one in tokenize.tokenize(source.readline)]
    tokens += [
        (one + other, start, end)
        for (one, start, _), (other, _, end) in pairwise(tokens)
        if one == "."
    ]
    for old, (number, start), (_, end) in sorted(tokens, key=lambda token: token[1]):
        others = [SWAPS[old]] if old in SWAPS else []
        if old.isdigit() and old != "0":
            others = [str(int(old) + 1), str(int(old) - 1)]
        elif "." in old and old.replace(".", "").isdigit():
            others = [str(2 * float(old) or 1.0)]
        for new in others:
            line = lines[number - 1]
            if line.lstrip().startswith("@") or line[start : end + 1] == "*,":  # computes nothing
                continue
            after = line[:start] + new + line[end:]
            content = "".join([*lines[: number - 1], after, *lines[number:]])
            try:
                compile(content, file, "exec")
            except SyntaxError:  # such as of f(*many)
                continue
            where = f"{file.relative_to(ROOT)}:{number}"
            yield Mutant(file, content, f"{where}: {line.strip()}  ->  {after.strip()}")


def named_tests(file: Path) -> list[str]:
    """The examples in the docstrings of a module; its tests as in `CORE`, or called after it."""
    name = CORE.get(file.relative_to(ROOT / "recsys").as_posix(), file.stem)
    named = sorted((ROOT / "tests").rglob(f"test_{name}.py"))
    return [str(path.relative_to(ROOT)) for path in (file, *named)] if named else []


def survives(mutant: Mutant, tests: Sequence[str], seconds: float) -> bool:
    """Whether the tests pass on a copy with the mutant in it; to hang is to be caught."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        for part in ("recsys", "tests", "configs"):
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / part, Path(folder) / part, ignore=ignored)
        shutil.copy(ROOT / "pyproject.toml", folder)
        (Path(folder) / mutant.file.relative_to(ROOT)).write_text(mutant.content)
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
        quiet = {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": folder}
        try:
            done = subprocess.run(
                [*command, "-m", "not slow and not realdata", *tests],
                cwd=folder,
                env=os.environ | quiet,
                capture_output=True,
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False
    if done.returncode in {4, 5}:
        raise RuntimeError(done.stdout.decode() + done.stderr.decode())
    return done.returncode == 0


def main() -> None:
    """Test some mutants, and list those that survive."""
    parser = argparse.ArgumentParser(description="Do the tests see faults put into the code?")
    parser.add_argument(
        "files", nargs="*", type=Path, help="of recsys/ (default: some of its core)"
    )
    parser.add_argument("--tests", nargs="+", help="in place of those called after the files")
    parser.add_argument("--number", type=int, default=20, help="of mutants (default: 20)")
    parser.add_argument("--seed", type=int, default=0, help="of the draw (default: 0)")
    parser.add_argument("--jobs", type=int, default=2, help="at a time (default: 2)")
    parser.add_argument("--seconds", type=float, default=120, help="for each (default: 120)")
    options = parser.parse_args()
    files = [file.resolve() for file in options.files] or [ROOT / "recsys" / name for name in CORE]
    tests = {file: options.tests or named_tests(file) for file in files}
    if lacking := [file.name for file in files if not tests[file]]:
        parser.error(f"no tests are called after {', '.join(lacking)}: name them by --tests")
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, most))  # those who loop may fill a list, too
    started = time.monotonic()
    every = [mutant for file in files for mutant in mutants(file)]
    drawn = np.random.default_rng(options.seed).permutation(len(every))[: options.number]
    sound = [Mutant(file, file.read_text(), file.name) for file in files]
    chosen = [every[index] for index in sorted(drawn)]
    survived = 0
    with ThreadPoolExecutor(options.jobs) as pool:

        def alive(mutant: Mutant) -> bool:
            return survives(mutant, tests[mutant.file], options.seconds)

        for one, passed in zip(sound, pool.map(alive, sound), strict=True):
            if not passed:
                sys.exit(f"the tests of {one.words} fail without any mutant, or take too long")
        for one, passed in zip(chosen, pool.map(alive, chosen), strict=True):
            if passed:
                survived += 1
                print(f"survived  {one.words}", flush=True)
    print(
        f"{len(chosen) - survived} of {len(chosen)} mutants were caught, {survived} survived "
        f"(seed {options.seed}, of {len(every)} in {len(files)} files; "
        f"{time.monotonic() - started:.0f} s)"
    )


if __name__ == "__main__":
    main()
