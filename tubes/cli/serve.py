"""`tubes serve` and `tubes token`: the service over HTTP, and who may use it."""

from __future__ import annotations

import asyncio
import atexit
import sys
import time
import tomllib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

import tubes
from tubes.backend.url import read, redact_url, url_of_environment
from tubes.cli.columns import Column, Grid
from tubes.cli.common import AsJson, Url, pairs
from tubes.cli.exits import Exit, Stop, say
from tubes.cli.logs import show_logs
from tubes.cli.show import as_json, console, line
from tubes.cli.show import text as cell

if TYPE_CHECKING:
    from tubes.serve import Tokens

#: The folder that is served where nothing else is named, if it is there.
_FOLDER: Final = "tubes-data"
#: Seconds for which lines of the access log are collected.
_MOMENT: Final = 0.1
#: Seconds for which the session of a service outlives all its processes: longer than a restart takes.
_SESSION_TTL: Final = 600.0


def _configured(context: typer.Context, path: Path | None) -> Path | None:
    """The options of a file are the defaults of the command's."""
    if path is not None:
        try:
            given = tomllib.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise typer.BadParameter(f"{path}: {error}") from None
        known = {str(option.name): option for option in context.command.params}
        chosen = {name.replace("-", "_"): value for name, value in given.get("serve", given).items()}
        strange = sorted(chosen.keys() - known.keys())
        if strange:
            raise typer.BadParameter(f"{path}: {strange[0]!r} is no option of tubes serve")
        context.default_map = {**(context.default_map or {}), **chosen}
    return path


TokenFile = Annotated[
    Path,
    typer.Option("--tokens", metavar="FILE", help="The file of tokens.", envvar="TUBES_TOKENS", show_default=False),
]


def serve(
    url: Url = None,
    http: Annotated[str, typer.Option("--http", metavar="HOST:PORT", help="Where clients connect.")] = "127.0.0.1:7777",
    admin: Annotated[
        str | None, typer.Option("--admin", metavar="HOST:PORT", help="Where administrators connect.")
    ] = None,
    tokens: Annotated[
        Path | None,
        typer.Option(
            "--tokens", metavar="FILE", help="Who may do what: see `tubes token create`.", envvar="TUBES_TOKENS"
        ),
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option("--tls-cert", metavar="FILE", help="The certificate.")] = None,
    tls_key: Annotated[Path | None, typer.Option("--tls-key", metavar="FILE", help="Its key.")] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Listen for other machines without TLS, or without tokens.")
    ] = False,
    reuse_port: Annotated[
        bool, typer.Option("--reuse-port", help="Share the address with other processes of the service.")
    ] = False,
    max_body: Annotated[int, typer.Option("--max-body", metavar="BYTES", min=1, help="The longest body.")] = 2**20,
    headers_within: Annotated[
        float, typer.Option("--headers-within", metavar="SECONDS", min=0.1, help="When the headers must be there.")
    ] = 5.0,
    body_within: Annotated[
        float, typer.Option("--body-within", metavar="SECONDS", min=0.1, help="When the whole request must be there.")
    ] = 30.0,
    read_within: Annotated[
        float,
        typer.Option("--read-within", metavar="SECONDS", min=0.1, help="When clients that do not read are cut off."),
    ] = 30.0,
    grace: Annotated[
        float, typer.Option("--grace", min=1, help="Seconds that requests have to end after a signal.")
    ] = 10.0,
    access_log: Annotated[
        bool, typer.Option("--access-log/--no-access-log", help="Print a line of JSON for each request.")
    ] = True,
    callback: Annotated[
        list[str] | None,
        typer.Option(
            "--callback",
            metavar="PREFIX",
            help="Have the API of later, and call callbacks that begin so: https://a.example/.",
        ),
    ] = None,
    callback_network: Annotated[
        list[str] | None,
        typer.Option(
            "--callback-network",
            metavar="ADDRESSES",
            help="Callbacks may also go to these: 10.1.0.0/16. Default: none.",
        ),
    ] = None,
    callback_secret: Annotated[
        list[str] | None,
        typer.Option(
            "--callback-secret",
            metavar="SECRET",
            help="Sign callbacks as Standard Webhooks says: whsec_...",
            envvar="TUBES_CALLBACK_SECRET",
            show_envvar=True,
        ),
    ] = None,
    callback_per_host: Annotated[
        int, typer.Option("--callback-per-host", min=1, help="How many callbacks go to one host at a time.")
    ] = 10,
    push: Annotated[
        list[str] | None,
        typer.Option("--push", metavar="'[NAMESPACE ]TUBE=URL'", help="Post the tasks of a tube to this URL."),
    ] = None,
    push_network: Annotated[
        list[str] | None,
        typer.Option(
            "--push-network", metavar="ADDRESSES", help="Tasks may also be posted to these: 10.1.0.0/16. Default: none."
        ),
    ] = None,
    push_secret: Annotated[
        list[str] | None,
        typer.Option(
            "--push-secret",
            metavar="SECRET",
            help="Sign what is posted as Standard Webhooks says: whsec_...",
            envvar="TUBES_PUSH_SECRET",
            show_envvar=True,
        ),
    ] = None,
    push_concurrency: Annotated[
        int, typer.Option("--push-concurrency", min=1, help="How many tasks of each tube are posted at a time.")
    ] = 1,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE",
            help="A TOML file with these options, in a table [serve].",
            is_eager=True,
            callback=_configured,
        ),
    ] = None,
) -> None:
    """Serve tubes over HTTP until SIGTERM or Ctrl-C.

    Without --url and TUBES_URL it serves the folder tubes-data, if there is one here, and else tubes in memory. Several
    processes may serve one Redis or Valkey, behind one address with --reuse-port.
    """
    from tubes.serve import Limits, create_app
    from tubes.serve.server import Listen, run
    from tubes.serve.server import serve as serving

    if (tls_cert is None) != (tls_key is None):
        raise Stop("--tls-cert and --tls-key belong together", Exit.USAGE)
    others: dict[str, Any] = {"cert": tls_cert and str(tls_cert), "key": tls_key and str(tls_key)}
    listen = Listen.read(http, shared=reuse_port, **others)
    admin_listen = None if admin is None else Listen.read(admin, shared=reuse_port, **others)
    known = None if tokens is None else _tokens(tokens)
    is_missing = known is not None and not known.path.exists()
    if is_missing and admin is None:
        raise Stop(f"there is no {tokens}: tubes token create --tokens {tokens} makes it", Exit.USAGE)
    for place in (listen, admin_listen):
        if place is not None:
            place.check(has_tokens=known is not None, insecure=insecure)
    if known is not None and is_missing:
        known.begin()  # Tokens can be created over the administration API.
    show_logs(is_one_of_many=False)
    place_of_tubes, why = _place(url)
    settings = read(place_of_tubes).settings
    pushes = None
    codec: Any = None if "codec" in settings or not place_of_tubes.startswith("memory:") else "json"
    if push:
        from tubes.serve.pushes import AnyJson, Push, Pushes

        each = tuple(map(Push.read, push))
        pushes = Pushes(each, tuple(push_network or ()), tuple(push_secret or ()), push_concurrency, grace=grace / 2)
        codec = None if "codec" in settings else AnyJson()
    session_ttl = None if "session_ttl" in settings else _SESSION_TTL
    queue = tubes.aio.connect(place_of_tubes, codec=codec, session_ttl=session_ttl)
    write = _Lines().write if access_log else None
    callbacks = None
    if callback:
        from tubes.serve.later import Callbacks

        networks, secrets = tuple(callback_network or ()), tuple(callback_secret or ())
        callbacks = Callbacks(tuple(callback), networks, secrets, per_host=callback_per_host)
    limits = Limits(body=max_body, headers_within=headers_within, body_within=body_within, read_within=read_within)
    app = create_app(queue, tokens=known, limits=limits, access_log=write, callbacks=callbacks, pushes=pushes)

    def started(urls: list[str]) -> None:
        say(f"serves {redact_url(place_of_tubes)}{why} at {' and '.join(urls)}")
        if known is None:
            say("there are no tokens: everybody who gets here may do everything")

    local_only = known is None and listen.is_local
    run(serving(app, listen, admin_listen, local_only=local_only, grace=grace, started=started))


def _place(url: str | None) -> tuple[str, str]:
    """The URL that is served, and why it is this one."""
    place = url or url_of_environment()
    if place:
        return place, ""
    if Path(_FOLDER).is_dir():
        return f"file:{_FOLDER}", " (which is here, and no --url is given)"
    return "memory://", f" (no --url is given: tasks are lost at the end; --url file:{_FOLDER} keeps them)"


class _Lines:
    """Lines for stdout, some at a time: a call for each would cost as much as the request that it is about."""

    def __init__(self) -> None:
        self._waiting: Final[list[str]] = []

    def write(self, words: str) -> None:
        """Print a line, a moment later."""
        if not self._waiting:
            asyncio.get_running_loop().call_later(_MOMENT, self._print)
            atexit.register(self._print)
        self._waiting.append(words)

    def _print(self) -> None:
        atexit.unregister(self._print)
        some = "".join(f"{words}\n" for words in self._waiting)
        self._waiting.clear()
        with suppress(OSError, ValueError):  # Nobody may be there to read it.
            sys.stdout.write(some)
            sys.stdout.flush()


# -- tokens ------------------------------------------------------------------------------------------------------------

token = typer.Typer(name="token", no_args_is_help=True, help="Create, list and revoke the tokens of a service.")


def _tokens(path: Path) -> Tokens:
    from tubes.serve import Tokens

    return Tokens(path)


@token.command("create")
def create_token(
    tokens: TokenFile,
    grant: Annotated[
        list[str],
        typer.Option("--grant", "-g", metavar="'RIGHTS [NAMESPACE [TUBE]]'", help="For example 'put,take shop mail*'."),
    ],
    description: Annotated[str, typer.Option("--description", "-d", help="Whose it is.")] = "",
    rate: Annotated[
        list[str] | None,
        typer.Option("--rate", metavar="RIGHT=CALLS/SECONDS", help="How often, for example put=100/60."),
    ] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option("--limit", metavar="NAME=NUMBER", help="How much: body, tasks, requests or sessions."),
    ] = None,
    days: Annotated[float | None, typer.Option("--days", min=0, help="When it expires. Default: never.")] = None,
) -> None:
    """Create a token and print it. Nobody can read it again.

    RIGHTS are some of put,take,look,manage,admin. A service that runs knows the token within a second.
    """
    from tubes.serve import Grant, Rate

    rates = {right: Rate.read(text) for right, text in pairs(rate or [], "--rate").items()}
    limits: dict[str, int] = {}
    for name, number in pairs(limit or [], "--limit").items():
        if not number.isdigit() or not number.isascii():
            raise Stop(f"--limit {name}={number}: must be a whole number, at least 0", Exit.USAGE)
        limits[name] = int(number)
    ttl = None if days is None else days * 86_400
    grants = [Grant.read(each) for each in grant]
    _, text = _tokens(tokens).create(grants, description, ttl, rates=rates, limits=limits)
    line(text)


@token.command("list")
def list_tokens(tokens: TokenFile, as_json_: AsJson = False) -> None:
    """List tokens: their ids, grants, limits and when they expire."""
    table = Grid(
        (Column("TOKEN"), Column("EXPIRES"), Column("GRANTS"), Column("LIMITS"), Column("DESCRIPTION", least=8))
    )
    for each in _tokens(tokens).all():
        grants = [str(grant) for grant in each.grants]
        if as_json_:
            facts = {"created": each.created, "expires": each.expires, "description": each.description}
            rates = {right: str(rate) for right, rate in each.rates.items()}
            as_json({"id": each.id, "grants": grants, "rates": rates, "limits": dict(each.limits), **facts})
            continue
        ends = "never" if each.expires is None else time.strftime("%Y-%m-%d", time.gmtime(each.expires))
        limits = " ".join(f"{name}={value}" for name, value in {**each.rates, **each.limits}.items())
        table.add_row(*map(cell, (each.id, ends, "; ".join(grants), limits, each.description)))
    if not as_json_:
        console().print(table)


@token.command("revoke")
def revoke_token(
    tokens: TokenFile,
    id: Annotated[str, typer.Argument(metavar="ID", help="The id, as `tubes token list` shows it.")],
) -> None:
    """Revoke a token: within a second no service accepts it."""
    if not _tokens(tokens).revoke(id):
        raise Stop(f"there is no token {id!r}", Exit.NOT_FOUND)


COMMANDS: tuple[Callable[..., None], ...] = (serve,)
