"""The table of a comparison as pages show it, the best run first."""

from __future__ import annotations

import math
from collections.abc import Mapping

from recsys.comparison.effect import Effect
from recsys.comparison.formats import TESTS, decimals, heading, in_brackets
from recsys.comparison.merit import RankedRun, by_merit
from recsys.comparison.significance import ALPHA
from recsys.comparison.table import ComparedRun, Comparison
from recsys.drawing.marks import key
from recsys.drawing.svg import markup
from recsys.tracking.artifacts import FIT_SECONDS, PARAMETERS, PEAK_MEMORY

_COSTS = {FIT_SECONDS: "seconds to fit", PEAK_MEMORY: "peak MiB", PARAMETERS: "parameters"}


def page_table(comparison: Comparison) -> Mapping[str, object]:
    """Return what the template ``comparison/table.html`` shows."""
    costs = [cost for cost in _COSTS if any(cost in row.costs for row in comparison.rows)]
    return {
        "metrics": [heading(metric) for metric in comparison.metrics],
        "costs": [_COSTS[cost] for cost in costs],
        "rows": [_row(comparison, run, costs) for run in by_merit(comparison)],
        "reference": comparison.rows[0].name if len(comparison.rows) > 1 else None,
        "pooled_lists": any(set(row.metrics) - set(row.intervals) for row in comparison.rows),
        "test": TESTS[comparison.method],
    }


def is_best(comparison: Comparison, row: ComparedRun, metric: str) -> bool:
    """Is it the best of several? More coverage or novelty is not better by itself: none is best."""
    best = max(other.metrics[metric] for other in comparison.rows)
    several = len(comparison.rows) > 1
    return several and metric in row.intervals and row.metrics[metric] == best


def mark(row: ComparedRun, metric: str) -> str:
    """Return * if significantly better than the first run, † if worse."""
    found = row.differences.get(metric)
    if found is None or found.p_value >= ALPHA:
        return ""
    return "*" if found.difference > 0 else "†"


def _row(comparison: Comparison, run: RankedRun, costs: list[str]) -> Mapping[str, object]:
    row = run.row
    return {
        "name": run.label,
        "run_id": row.run_id,
        "model": row.model,
        "fitted_on": row.fitted_on,
        "key": markup(key(run.style)),
        "is_reference": run.is_reference,
        "cells": [_cell(comparison, row, metric) for metric in comparison.metrics],
        "costs": [_amount(row.costs.get(cost)) for cost in costs],
    }


def _cell(comparison: Comparison, row: ComparedRun, metric: str) -> Mapping[str, object]:
    interval, found = row.intervals.get(metric), row.differences.get(metric)
    return {
        "mean": decimals(row.metrics[metric]),
        "best": is_best(comparison, row, metric),
        "interval": interval and in_brackets(interval.low, interval.high),
        "effect": _effect(row.effects.get(metric)),
        "spread": row.spreads.get(metric) and decimals(row.spreads[metric]),
        "mark": mark(row, metric),
        "difference": found
        and f"{decimals(found.difference, '+')} {in_brackets(found.low, found.high, '+')}, "
        f"p = {decimals(found.p_value)}",
    }


def _effect(effect: Effect | None) -> str:
    """Describe the effect; empty if there is no difference to detect."""
    if effect is None or not math.isfinite(effect.users_needed):
        return ""
    return f"d = {effect.d_z:+.3f}, needs {effect.users_needed:,.0f} users"


def _amount(cost: float | None) -> str:
    if cost is None:
        return ""
    if 0 < cost < 0.005:
        return "<0.01"
    return f"{cost:,.0f}" if cost >= 10 else f"{cost:.2f}"
