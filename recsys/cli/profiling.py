"""The command that profiles training steps."""

from __future__ import annotations

from typing import Annotated

import typer

from recsys.cli.options import Config, Data, Json, Set, app, find_dataset, read_experiment
from recsys.console import show_rows


@app.command("profile")
def profile_training(
    config: Config,
    data: Data = None,
    steps: Annotated[
        int, typer.Option(min=1, help="Steps to measure, after two warm-up steps.")
    ] = 10,
    overrides: Set = None,
    as_json: Json = False,
) -> None:
    """Train a few steps; show time by phase, tokens per second, padding and peak memory."""
    from recsys.experiments.profile import profile
    from recsys.inference.catalogue import Catalogue

    experiment = read_experiment(config, overrides, None)
    dataset = find_dataset(experiment, data)
    catalogue = Catalogue.of(experiment.model, dataset)
    histories = catalogue.encoders.read(dataset).histories("valid")
    found = profile(experiment, catalogue, histories, steps)
    if as_json:
        seconds = {f"{phase}_seconds": value for phase, value in found.seconds.items()}
        show_rows([seconds | found.summary()], as_json)
        return
    total = sum(found.seconds.values())
    show_rows(
        [
            {"phase": phase, "ms per step": 1000 * value, "share": value / total}
            for phase, value in found.seconds.items()
        ],
        as_json,
    )
    show_rows([found.summary()], as_json)
