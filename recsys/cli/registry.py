"""The command that registers a model by name."""

from __future__ import annotations

from typing import Annotated

import typer

from recsys.cli.options import Json, Uri, app
from recsys.config import TrackingConfig
from recsys.console import show_rows


@app.command("register")
def register_model(
    model: Annotated[
        str, typer.Argument(help="A run: its id or name; or a folder: runs/NAME, or a bundle.")
    ],
    name: Annotated[str, typer.Argument(help="The name of the model, such as shop.")],
    alias: Annotated[
        str | None,
        typer.Option(help="An alias that then names this version, such as champion."),
    ] = None,
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Register a trained model in the MLflow store, as the next version of its name.

    Commands that take a bundle then take models:/NAME@ALIAS and models:/NAME/VERSION.
    """
    from recsys.experiments.registration import register

    tracking = TrackingConfig() if uri is None else TrackingConfig(uri=uri)
    found = register(model, name, alias=alias, tracking=tracking)
    show_rows([{"model": found.uri, "version": found.version}], as_json)
