"""Commands that check what a bundle says of its scores: explanations and probabilities."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from recsys.cli.answers import At, open_recommender, request_time
from recsys.cli.options import Bundle, BundleData, Json, app
from recsys.console import show_rows
from recsys.data.prepared import PreparedDataset
from recsys.progress import stage

PARTS: Final[tuple[Literal["valid", "test"], ...]] = ("valid", "test")


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
    recommender.bundle.use_gpu()
    with stage("explaining"):
        found = measure_faithfulness(recommender, sample=users, seed=seed, at=request_time(at))
    facts = {"histories": found.histories, "seed": found.seed}
    show_rows([{**row, **facts} for row in found.rows()], as_json)


@app.command("calibrate")
def calibrate_bundle(
    bundle: Annotated[
        Path,
        typer.Argument(help="Folder of a trained model, runs/NAME, which keeps the temperature."),
    ],
    data: BundleData,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the sample of histories.")] = 0,
    as_json: Json = False,
) -> None:
    """Fit the temperature that makes probabilities of scores, and keep it in the bundle.

    It is fitted on the validation targets. A model that was refitted on them keeps the temperature
    that its training fitted before. Shows log loss and expected calibration error on the targets
    that the model was not trained on, without and with the temperature.
    """
    from recsys.serving.bundle import ModelBundle
    from recsys.serving.calibration import fit_temperature, measure_calibration, save_temperature

    opened, dataset = ModelBundle.open(bundle), PreparedDataset.open(data)
    opened.use_gpu()
    parts, fitted = PARTS, opened.manifest.temperature
    refitted = "valid" in opened.manifest.protocol.trained_on
    with stage("calibrating"):
        if refitted and fitted is not None:
            parts = PARTS[1:]
        else:
            fitted = fit_temperature(opened, dataset, seed)
        found = [
            measure_calibration(opened, dataset, part, temperature, seed)
            for part in parts
            for temperature in (1.0, fitted)
        ]
    if not refitted:
        save_temperature(opened, fitted)
    show_rows([asdict(row) for row in found], as_json)
