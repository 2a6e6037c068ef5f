"""The command that checks explanations."""

from __future__ import annotations

from typing import Annotated

import typer

from recsys.cli.answers import At, open_recommender, request_time
from recsys.cli.options import Bundle, BundleData, Json, app
from recsys.console import show_rows
from recsys.progress import stage


@app.command("faithfulness")
def show_faithfulness(
    bundle: Bundle,
    data: BundleData,
    users: Annotated[
        int, typer.Option(min=1, help="Users of the dataset to draw at random.")
    ] = 1_000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all draws.")] = 0,
    at: At = None,
    as_json: Json = False,
) -> None:
    """Check explanations: does the score fall without the purchase that explains it most?

    For each user's best recommendation, the drop of its score and rank without the purchase of the
    largest contribution, and without another one drawn at random; and the share of users for whom
    the first lowers the score more. With 95% intervals.
    """
    from recsys.serving.faithfulness import measure_faithfulness

    recommender, _ = open_recommender(bundle, data, None)
    with stage("explaining"):
        found = measure_faithfulness(recommender, sample=users, seed=seed, at=request_time(at))
    facts = {"histories": found.histories, "seed": found.seed}
    show_rows([{**row, **facts} for row in found.rows()], as_json)
