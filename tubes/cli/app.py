"""The Typer application with all commands of `tubes`."""

from __future__ import annotations

from typing import Annotated

import typer

from tubes import __version__
from tubes.cli import admin, bench, lane, library, look, repair, serve, tasks, top, transfer, work
from tubes.cli.exits import Exit, Group
from tubes.cli.logs import hide_logs

_CODES = "  ".join(f"{code.value} {code.name.lower().replace('_', ' ')}" for code in Exit)

app = typer.Typer(
    name="tubes",
    cls=Group,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    epilog=f"Exit codes: {_CODES}.",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(is_requested: bool) -> None:
    if is_requested:
        typer.echo(f"tubes {__version__}")
        raise typer.Exit


@app.callback()
def tubes(
    version: Annotated[
        bool | None, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = None,
) -> None:
    """Inspect the tubes on a server, put and take tasks, and run workers.

    TUBES_URL, or --url after the command, names the server: redis://host, rediss://, unix://, redis+sentinel:// or
    redis+cluster://. Or it names a folder: file:jobs.
    """
    hide_logs()


for module in (look, tasks, work, admin, repair, library, top, transfer, bench, serve):
    for command in module.COMMANDS:
        app.command(command.__name__.strip("_"))(command)
app.add_typer(lane.lane)
app.add_typer(serve.token)
