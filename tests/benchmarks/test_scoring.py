"""Recommending and evaluating beside RecTools and RePlay, with models of random weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from contest import Answer, Contest, Side, chosen, from_environment, medians, ndcg_of_lists
from problems import config_path, large, large_settings, problem_of, settings_of

LOG = "ml-1m"
OURS = Side("ours dot-product", "ours")
TARGET_ATTENTION = Side(
    "ours target-attention", "ours", {"config": config_path(LOG, "target attention")}
)
PEERS = [Side("rectools", "rectools"), Side("replay", "replay")]


def show(title: str, found: dict[str, list[Answer]], count: int, what: str = "users") -> None:
    """A line for each side: medians, or why there are none."""
    print(f"\n{title}")
    for name, answers in found.items():
        failures = [answer["failed"] for answer in answers if "failed" in answer]
        if failures:
            print(f"{name}: {failures[0]}")
            continue
        figures = medians(answers)
        print(
            f"{name}: {figures['seconds']:.2f} s, {count / figures['seconds']:,.0f} {what}/s, "
            f"peak {figures['peak_mib']:,.0f} MiB"
        )


@pytest.mark.benchmark
@pytest.mark.parametrize("task", ["recommend", "evaluation"])
def test_all_users_of_movielens(
    task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The ten best unseen items of all users; NDCG@10 of them. Medians of BENCH_ROUNDS in turn."""
    problem = problem_of(LOG, tmp_path)
    contest = Contest(tmp_path, problem, settings_of(LOG))
    with capsys.disabled():
        found = contest.in_turn(chosen([OURS, TARGET_ATTENTION, *PEERS]), task)
        show(f"{LOG}, {task}, {contest.settings}", found, len(problem.targets))
    for answers in found.values():
        for answer in answers:
            check_lists(answer, contest)


@pytest.mark.benchmark
def test_a_million_items(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The ten best of a million items for 20,000 users with histories of 50; d 64.

    Within BENCH_BUDGET seconds and BENCH_MEMORY_GIB. BENCH_SIDES may name ours target-attention.
    BENCH_USERS asks for fewer users, BENCH_ITEMS for fewer items.
    """
    users, items = round(from_environment("USERS", 20_000)), round(from_environment("ITEMS", 1e6))
    settings = large_settings(users)
    contest = Contest(tmp_path, large(items // 50, items), settings)
    with capsys.disabled():
        found = contest.in_turn(chosen([OURS, *PEERS]), "recommend")
        show(f"{items:,} items, {settings}", found, users)
    for answers in found.values():
        for answer in answers:
            check_lists(answer, contest)


@pytest.mark.benchmark
@pytest.mark.parametrize("items", [0, 1_000_000], ids=["ml-1m", "million"])
def test_ten_million_candidates(
    items: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ten million pairs: the same candidates for all users of MovieLens-1M, or for 20,000 users of
    a million items; ranked by score, all of them. As `test_a_million_items` else.
    """
    if items:
        problem = large(20_000, items)
        settings = replace(large_settings(20_000), candidates=500)
    else:
        problem = problem_of(LOG, tmp_path)
        memory, candidates = from_environment("MEMORY_GIB", 16), 10_000_000 // len(problem.targets)
        settings = replace(settings_of(LOG), memory_gib=memory, candidates=candidates)
    contest = Contest(tmp_path, problem, settings)
    users = settings.users or len(problem.targets)
    with capsys.disabled():
        found = contest.in_turn(chosen([OURS, TARGET_ATTENTION, *PEERS]), "candidates")
        show(f"{users:,} users, {settings}", found, users * settings.candidates, "pairs")
    expected = np.arange(1, settings.candidates + 1)
    for name, answers in found.items():
        for answer in answers:
            if "lists" in answer:
                lists = np.sort(np.load(answer["lists"]), axis=1)
                assert lists.shape == (users, settings.candidates)
                # RecTools does not know items without interactions: 0 stands for them.
                assert ((lists == expected) | (name == "rectools")).all()


def check_lists(answer: Answer, contest: Contest) -> None:
    """Ten distinct items of the catalogue that the user has not had; NDCG@10 as we define it."""
    if "lists" not in answer:
        return
    lists = np.load(answer["lists"])
    problem = contest.problem.first(contest.settings.users or len(contest.problem.targets))
    assert lists.shape == (len(problem.targets), 10)
    assert lists.min() >= 1
    assert lists.max() <= problem.num_items
    assert all(len(set(row)) == 10 for row in lists)
    pairs = problem.users * (problem.num_items + 1) + problem.items
    rows = np.arange(len(lists))[:, None] * (problem.num_items + 1)
    assert not np.isin(rows + lists, pairs).any()
    if "ndcg" in answer:
        assert answer["ndcg"] == pytest.approx(ndcg_of_lists(lists, problem.targets), abs=1e-6)
