"""`metrist train`: metrics that learn."""

from __future__ import annotations

import typer

from metrist.cli.train_export import export
from metrist.cli.train_likelihood import likelihood
from metrist.cli.train_preference import preference
from metrist.cli.train_suite import tables

train = typer.Typer(
    name="train", help="Train a metric of your own.", no_args_is_help=True, pretty_exceptions_enable=False
)
train.command("likelihood")(likelihood)
train.command("preference")(preference)
train.command("tables")(tables)
train.command("export")(export)
