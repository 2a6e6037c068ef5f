"""Generated logs that differ from the real ones at hand, for the automatic run."""

from __future__ import annotations

import numpy as np
import polars as pl

DAY = 86_400


def _frame(users: np.ndarray, items: np.ndarray, times: np.ndarray) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "user_id": users.astype(np.int64),
            "item_id": items.astype(np.int64),
            "timestamp": times.astype(np.int64),
        }
    )


def _following(rng: np.random.Generator, items: int, fan: int) -> np.ndarray:
    """For each item, the items that may follow it [I, fan], near ones and popular ones."""
    near = (np.arange(items)[:, None] + rng.integers(1, 60, size=(items, fan))) % items
    popular = (rng.pareto(1.1, size=(items, fan)) * items / 200).astype(int) % items
    return np.where(rng.random((items, fan)) < 0.7, near, popular)


def _walks(
    rng: np.random.Generator, lengths: np.ndarray, items: int, fan: int, stay: float
) -> np.ndarray:
    """Walks over the items: each follows the last one, or with 1 - ``stay`` an earlier one."""
    following = _following(rng, items, fan)
    longest = int(lengths.max())
    walks = np.empty((len(lengths), longest), dtype=np.int64)
    popular = (rng.pareto(1.1, size=len(lengths)) * items / 200).astype(int) % items
    anywhere = rng.random(len(lengths)) < 0.7
    walks[:, 0] = np.where(anywhere, rng.integers(items, size=len(lengths)), popular)
    rows = np.arange(len(lengths))
    for step in range(1, longest):
        back = np.where(
            rng.random(len(rows)) < stay, 1, rng.integers(1, min(step, 8) + 1, len(rows))
        )
        sources = walks[rows, step - back]
        choice = (rng.random(len(rows)) ** 2 * fan).astype(int)
        walks[:, step] = following[sources, choice]
    return walks


def _log(
    rng: np.random.Generator, walks: np.ndarray, lengths: np.ndarray, gaps: np.ndarray, span: int
) -> pl.DataFrame:
    inside = np.arange(walks.shape[1]) < lengths[:, None]
    times = rng.integers(span, size=len(lengths))[:, None] + np.cumsum(gaps, axis=1)
    users = np.repeat(np.arange(len(lengths)), walks.shape[1]).reshape(walks.shape)
    return _frame(users[inside], walks[inside], times[inside])


def sessions(seed: int = 0) -> pl.DataFrame:
    """60,000 anonymous sessions of a few clicks within minutes, with returns to an item."""
    rng = np.random.default_rng(seed)
    lengths = np.minimum(3 + rng.geometric(0.25, size=60_000), 40)
    walks = _walks(rng, lengths, 8_000, 20, 0.7)
    back = rng.random(walks.shape) < 0.1
    back[:, :2] = False
    walks[back] = np.roll(walks, 2, axis=1)[back]
    return _log(rng, walks, lengths, rng.integers(5, 300, size=walks.shape), 30 * DAY)


def groceries(seed: int = 1) -> pl.DataFrame:
    """4,000 households that buy their own staples in weekly baskets, four in five again."""
    rng = np.random.default_rng(seed)
    items, rows = 3_000, []
    popularity = rng.pareto(1.2, size=items) + 0.05
    popularity /= popularity.sum()
    for user in range(4_000):
        staples = rng.choice(items, size=25, replace=False, p=popularity)
        rate = rng.dirichlet(np.full(25, 0.5))
        for week in range(int(rng.integers(5, 16))):
            size = int(rng.integers(3, 10))
            own = rng.choice(staples, size=size, p=rate)
            new = rng.choice(items, size=size, p=popularity)
            basket = np.unique(np.where(rng.random(size) < 0.8, own, new))
            time = (week * 7 + int(rng.integers(3))) * DAY + int(rng.integers(DAY))
            rows.append((np.full(len(basket), user), basket, np.full(len(basket), time)))
    users, bought, times = (np.concatenate(parts) for parts in zip(*rows, strict=True))
    return _frame(users, bought, times)


def large_catalogue(seed: int = 2) -> pl.DataFrame:
    """50,000 users of a catalogue of 200,000 items, about eight interactions each."""
    rng = np.random.default_rng(seed)
    lengths = np.minimum(4 + rng.geometric(0.2, size=50_000), 60)
    walks = _walks(rng, lengths, 200_000, 8, 0.8)
    return _log(rng, walks, lengths, rng.integers(DAY // 4, 10 * DAY, size=walks.shape), 300 * DAY)


def few_users(seed: int = 3) -> pl.DataFrame:
    """500 users and 800 items, about forty interactions each."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(15, 70, size=500)
    walks = _walks(rng, lengths, 800, 6, 0.6)
    return _log(rng, walks, lengths, rng.integers(60, 5 * DAY, size=walks.shape), 100 * DAY)


def one_hour(seed: int = 4) -> pl.DataFrame:
    """12,000 viewers whose entire history is an hour of short videos."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(10, 60, size=12_000)
    walks = _walks(rng, lengths, 2_500, 12, 0.5)
    return _log(rng, walks, lengths, rng.integers(20, 90, size=walks.shape), 7 * DAY)


GENERATED = {
    "sessions": sessions,
    "groceries": groceries,
    "large-catalogue": large_catalogue,
    "few-users": few_users,
    "one-hour": one_hour,
}
