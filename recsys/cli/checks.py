"""The command that makes probabilities of a bundle's scores."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from recsys.cli.options import BundleData, Json, app
from recsys.console import show_rows
from recsys.data.prepared import PreparedDataset
from recsys.progress import stage

PARTS: Final[tuple[Literal["valid", "test"], ...]] = ("valid", "test")


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
