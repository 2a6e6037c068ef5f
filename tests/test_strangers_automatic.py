"""What strangers met in automatic runs: minutes that train nothing, crashes, answers misnamed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html import unescape
from pathlib import Path

import pytest

import recsys
from tests.conftest import chains

THREADS = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "OMP_NUM_THREADS")
SHOW = f"import os, recsys; print(*(os.environ.get(name) for name in {THREADS}))"


def python(code: str, settings: dict[str, str]) -> tuple[str, str]:
    """Run code in a process of its own; return what it prints, and its errors."""
    others = {name: value for name, value in os.environ.items() if name not in THREADS}
    words, env = [sys.executable, "-c", code], others | settings
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=True)
    return done.stdout.strip(), done.stderr


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def page_of(name: str) -> str:
    return unescape(Path(f"runs/{name}/report.html").read_text(encoding="utf-8"))


def test_threads_do_not_spin_unless_the_user_says_so() -> None:
    for settings, expected in (({}, "1000 None"), ({"OMP_WAIT_POLICY": "active"}, "None active")):
        shown, said = python(SHOW, settings)
        assert " ".join(shown.split()[:2]) == expected
        assert not said


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity on this system")
@pytest.mark.skipif(os.cpu_count() == 1, reason="one processor only")
def test_threads_are_as_many_as_the_process_may_use() -> None:
    bind = f"import os; os.sched_setaffinity(0, {{{min(os.sched_getaffinity(0))}}}); "
    assert python(f"{bind}{SHOW}", {})[0].endswith(" 1")
    assert python(f"{bind}{SHOW}", {"OMP_NUM_THREADS": "3"})[0].endswith(" 3")


@pytest.mark.slow
def test_an_answer_that_owes_the_network_nothing_has_the_name_of_its_counts() -> None:
    """One item tells the next one, which counts know at once."""
    recsys.fit(chains(150, 12, noise=0.1), time_limit=3, preset="fast", name="mine")
    page = page_of("mine")
    assert re.search("<h1>(PCTM|markov|sequential rules)(, a baseline,)? is the answer", page)
    assert "model alone" in page
    assert "A random order of the items reaches" in page


@pytest.mark.slow
def test_no_model_is_recommended_for_a_log_of_chance() -> None:
    recsys.fit(chains(200, 8, items=300, noise=1.0), time_limit=3, preset="fast", name="chance")
    page = page_of("chance")
    assert "Nothing here orders the items better than chance" in page
