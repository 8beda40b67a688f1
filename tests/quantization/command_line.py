"""Commands as a user gives them."""

from __future__ import annotations

from click.testing import CliRunner, Result

from tilewright.cli.app import commands


def call(*arguments: object) -> Result:
    return CliRunner().invoke(commands, list(map(str, arguments)))
