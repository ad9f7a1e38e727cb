"""`tubes serve`, `tubes dashboard` and `tubes token`: the HTTP service, its dashboard, and its access tokens."""

from __future__ import annotations

import asyncio
import atexit
import signal
import sys
import time
import tomllib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

import tubes
from tubes.backend.url import read, redact_url, url_of_environment
from tubes.cli.columns import Column, Grid
from tubes.cli.common import CONNECT_TIMEOUT, AsJson, Url, pairs, path_of, shared_place_of, with_options
from tubes.cli.exits import Exit, Stop, say
from tubes.cli.logs import show_logs
from tubes.cli.show import console, print_json, print_line
from tubes.cli.show import text as cell
from tubes.errors import StoreFailed

if TYPE_CHECKING:
    from tubes.serve import Tokens
    from tubes.serve.later import Callbacks
    from tubes.serve.pushes import Pushes

#: The folder that is served by default, if it exists.
_FOLDER: Final = "tubes-data"
#: Seconds for which lines of the access log are buffered.
_FLUSH_INTERVAL: Final = 0.1
#: Seconds for which the session of a service outlives all its processes. It must be longer than a restart.
_SESSION_TTL: Final = 600.0


def _load_config(context: typer.Context, path: Path | None) -> Path | None:
    """Use the options of a TOML file as defaults of the command's options."""
    if path is not None:
        try:
            content = tomllib.loads(path.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise typer.BadParameter(f"{path}: {error}") from None
        known = {str(option.name): option for option in context.command.params}
        values = {name.replace("-", "_"): value for name, value in content.get("serve", content).items()}
        unknown = sorted(values.keys() - known.keys())
        if unknown:
            raise typer.BadParameter(f"{path}: {unknown[0]!r} is not an option of tubes serve")
        context.default_map = {**(context.default_map or {}), **values}
    return path


def _file(option: str, words: str, **more: Any) -> Any:
    return typer.Option(option, parser=path_of, metavar="FILE", help=words, **more)


TokenFile = Annotated[Path, _file("--tokens", "The file of tokens.", envvar="TUBES_TOKENS", show_default=False)]


def _networks(option: str, what: str) -> Any:
    words = f"Allow {what} to these private addresses: 10.1.0.0/16. Default: none."
    return typer.Option(option, metavar="ADDRESSES", help=words)


def _secrets(option: str, what: str) -> Any:
    variable = f"TUBES_{option[2:].replace('-', '_').upper()}"
    words = f"Sign {what} according to Standard Webhooks: whsec_..."
    return typer.Option(option, metavar="SECRET", help=words, envvar=variable, show_envvar=True)


@dataclass(frozen=True)
class ServeOptions:
    """The options of `tubes serve`."""

    http: Annotated[str, typer.Option("--http", metavar="HOST:PORT", help="The address for clients.")] = (
        "127.0.0.1:7777"
    )
    admin: Annotated[
        str | None,
        typer.Option("--admin", metavar="HOST:PORT", help="The address of the administration API. Default: disabled."),
    ] = None
    tokens: Annotated[
        Path | None, _file("--tokens", "The file of tokens; see `tubes token create`.", envvar="TUBES_TOKENS")
    ] = None
    tls_cert: Annotated[Path | None, _file("--tls-cert", "The TLS certificate.")] = None
    tls_key: Annotated[Path | None, _file("--tls-key", "The private key of the certificate.")] = None
    insecure: Annotated[bool, typer.Option("--insecure", help="Accept other machines even without TLS or tokens.")] = (
        False
    )
    reuse_port: Annotated[
        bool, typer.Option("--reuse-port", help="Share the port with other processes of the service.")
    ] = False
    max_body: Annotated[
        int, typer.Option("--max-body", metavar="BYTES", min=1, help="The maximum size of a request body.")
    ] = 2**20
    headers_within: Annotated[
        float,
        typer.Option("--headers-within", metavar="SECONDS", min=0.1, help="The timeout for the headers of a request."),
    ] = 5.0
    body_within: Annotated[
        float, typer.Option("--body-within", metavar="SECONDS", min=0.1, help="The timeout for a whole request.")
    ] = 30.0
    read_within: Annotated[
        float,
        typer.Option(
            "--read-within", metavar="SECONDS", min=0.1, help="Disconnect clients that read nothing for this long."
        ),
    ] = 30.0
    grace: Annotated[
        float, typer.Option("--grace", min=1, help="Seconds that running requests have to finish after a signal.")
    ] = 10.0
    access_log: Annotated[
        bool, typer.Option("--access-log/--no-access-log", help="Print a line of JSON for each request.")
    ] = True
    callback: Annotated[
        list[str] | None,
        typer.Option(
            "--callback",
            metavar="PREFIX",
            help="Enable the API of later, with callbacks to URLs that start with this prefix: https://a.example/.",
        ),
    ] = None
    callback_network: Annotated[list[str] | None, _networks("--callback-network", "callbacks")] = None
    callback_secret: Annotated[list[str] | None, _secrets("--callback-secret", "callbacks")] = None
    callback_per_host: Annotated[
        int, typer.Option("--callback-per-host", min=1, help="The maximum number of callbacks to one host at a time.")
    ] = 10
    push: Annotated[
        list[str] | None,
        typer.Option("--push", metavar="'[NAMESPACE ]TUBE=URL'", help="Post the tasks of a tube to this URL."),
    ] = None
    push_network: Annotated[list[str] | None, _networks("--push-network", "posts")] = None
    push_secret: Annotated[list[str] | None, _secrets("--push-secret", "posts")] = None
    push_concurrency: Annotated[
        int,
        typer.Option(
            "--push-concurrency", min=1, help="The maximum number of tasks of a tube that are posted at a time."
        ),
    ] = 1
    ui: Annotated[bool, typer.Option("--ui/--no-ui", help="Serve the dashboard at /ui/.")] = True
    history: Annotated[
        bool, typer.Option("--history", help="Always sample the counts of all tubes, not only for open dashboards.")
    ] = False


@with_options(ServeOptions)
def serve(
    url: Url = None,
    *,
    options: ServeOptions,
    config: Annotated[
        Path | None,
        _file(
            "--config",
            "Read these options from the table [serve] of a TOML file.",
            is_eager=True,
            callback=_load_config,
        ),
    ] = None,
) -> None:
    """Serve tubes over HTTP until SIGTERM or Ctrl-C.

    Without --url and TUBES_URL it serves the folder tubes-data if it exists in the current folder, and tubes in memory
    otherwise. Several processes can serve the same Redis or Valkey, and with --reuse-port they can share a port.
    """
    from tubes.serve import Limits, create_app
    from tubes.serve.server import Listen, run
    from tubes.serve.server import serve as serving

    cert, key = options.tls_cert, options.tls_key
    if (cert is None) != (key is None):
        raise Stop("--tls-cert and --tls-key must be used together", Exit.USAGE)
    read_address = partial(Listen.read, shared=options.reuse_port, cert=cert and str(cert), key=key and str(key))
    listen = read_address(options.http)
    admin = None if options.admin is None else read_address(options.admin)
    known = None if options.tokens is None else _tokens(options.tokens)
    is_missing = known is not None and not known.path.exists()
    if is_missing and admin is None:
        path = options.tokens
        raise Stop(f"{path} does not exist: tubes token create --tokens {path} creates it", Exit.USAGE)
    for place in (listen, admin):
        if place is not None:
            place.check(has_tokens=known is not None, insecure=options.insecure)
    if known is not None and is_missing:
        known.begin()  # Tokens can be created over the administration API.
    show_logs(is_one_of_many=False)
    tubes_url, note = _choose_url(url)
    settings = read(tubes_url).settings
    pushes = _pushes_of(options)
    codec: Any = None if "codec" in settings or not tubes_url.startswith("memory:") else "json"
    if pushes is not None:
        from tubes.serve.pushes import AnyJson

        codec = None if "codec" in settings else AnyJson()
    session_ttl = None if "session_ttl" in settings else _SESSION_TTL
    limits = Limits(
        body=options.max_body,
        headers_within=options.headers_within,
        body_within=options.body_within,
        read_within=options.read_within,
    )
    app = create_app(
        tubes.aio.connect(tubes_url, codec=codec, session_ttl=session_ttl),
        tokens=known,
        limits=limits,
        access_log=_LineBuffer().write if options.access_log else None,
        callbacks=_callbacks_of(options),
        pushes=pushes,
        ui=options.ui,
        history=options.history,
    )

    def announce(urls: list[str]) -> None:
        say(f"serving {redact_url(tubes_url)}{note} at {' and '.join(urls)}")
        if known is None:
            say("no tokens are configured: every client may do everything")

    local_only = known is None and listen.is_local
    run(serving(app, listen, admin, local_only=local_only, grace=options.grace, started=announce))


def _pushes_of(options: ServeOptions) -> Pushes | None:
    if not options.push:
        return None
    from tubes.serve.pushes import Push, Pushes

    networks, secrets = tuple(options.push_network or ()), tuple(options.push_secret or ())
    targets = tuple(map(Push.read, options.push))
    return Pushes(targets, networks, secrets, options.push_concurrency, grace=options.grace / 2)


def _callbacks_of(options: ServeOptions) -> Callbacks | None:
    if not options.callback:
        return None
    from tubes.serve.later import Callbacks

    networks, secrets = tuple(options.callback_network or ()), tuple(options.callback_secret or ())
    return Callbacks(tuple(options.callback), networks, secrets, per_host=options.callback_per_host)


def dashboard(
    url: Url = None,
    http: Annotated[
        str, typer.Option("--http", metavar="HOST:PORT", help="The address, on this machine. Port 0: any free port.")
    ] = "127.0.0.1:0",
    read_only: Annotated[bool, typer.Option("--read-only", help="Show everything, but change nothing.")] = False,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Do not open a browser.")] = False,
) -> None:
    """Show the dashboard of a server or folder in a browser, until SIGTERM or Ctrl-C.

    The printed address contains a token, which is valid until the command ends.
    """
    from tubes.durable.database import NAME, NO_STORE
    from tubes.serve.server import Listen, open_browser, run, serve_dashboard

    place, listen = shared_place_of(url), Listen.read(http)
    parsed = read(place)
    if parsed.scheme == "file" and not Path(parsed.path, NAME).exists():
        raise StoreFailed(url=parsed.redacted, why=NO_STORE)  # It may be a typo: create no folder.

    async def main() -> None:
        stopped = asyncio.Event()
        for kind in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(kind, stopped.set)
        async with tubes.aio.connect(place, connect_timeout=CONNECT_TIMEOUT) as queue:
            await queue.tubes()  # Report a server that does not reply.
            async with serve_dashboard(queue, listen, read_only=read_only) as address:
                print_line(address)
                sys.stdout.flush()
                if not no_browser:
                    await asyncio.to_thread(open_browser, address)
                await stopped.wait()

    show_logs(is_one_of_many=False)
    run(main())


def _choose_url(url: str | None) -> tuple[str, str]:
    """Return the URL to serve, and a note on the choice for the user."""
    place = url or url_of_environment()
    if place:
        return place, ""
    if Path(_FOLDER).is_dir():
        return f"file:{_FOLDER}", " (it is in this folder, and no --url is given)"
    return "memory://", f" (no --url is given: tasks are lost at the end; --url file:{_FOLDER} keeps them)"


class _LineBuffer:
    """Prints lines on stdout in groups: printing each line separately would cost as much as the request itself."""

    def __init__(self) -> None:
        self._pending: Final[list[str]] = []

    def write(self, words: str) -> None:
        """Print a line, up to `_FLUSH_INTERVAL` seconds later."""
        if not self._pending:
            asyncio.get_running_loop().call_later(_FLUSH_INTERVAL, self._flush)
            atexit.register(self._flush)
        self._pending.append(words)

    def _flush(self) -> None:
        atexit.unregister(self._flush)
        lines = "".join(f"{words}\n" for words in self._pending)
        self._pending.clear()
        with suppress(OSError, ValueError):  # stdout may be closed.
            sys.stdout.write(lines)
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
        typer.Option(
            "--grant",
            "-g",
            metavar="'RIGHTS [NAMESPACE [TUBE]]'",
            help="Rights to grant, for example 'put,take shop mail*'.",
        ),
    ],
    description: Annotated[
        str, typer.Option("--description", "-d", help="A description, for example of the owner.")
    ] = "",
    rate: Annotated[
        list[str] | None,
        typer.Option("--rate", metavar="RIGHT=CALLS/SECONDS", help="A rate limit, for example put=100/60."),
    ] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option("--limit", metavar="NAME=NUMBER", help="A limit for body, tasks, requests or sessions."),
    ] = None,
    days: Annotated[
        float | None,
        typer.Option("--days", min=0, help="The number of days until the token expires. Default: it does not expire."),
    ] = None,
) -> None:
    """Create a token and print it. It cannot be shown again.

    RIGHTS is a list of put, take, look, manage and admin, separated by commas. A running service accepts the token
    within a second.
    """
    from tubes.serve import Grant, Rate

    rates = {right: Rate.read(text) for right, text in pairs(rate or [], "--rate").items()}
    limits: dict[str, int] = {}
    for name, number in pairs(limit or [], "--limit").items():
        if not number.isdigit() or not number.isascii():
            raise Stop(f"--limit {name}={number}: must be a whole number, at least 0", Exit.USAGE)
        limits[name] = int(number)
    ttl = None if days is None else days * 86_400
    grants = [Grant.read(words) for words in grant]
    _, text = _tokens(tokens).create(grants, description, ttl, rates=rates, limits=limits)
    print_line(text)


@token.command("list")
def list_tokens(tokens: TokenFile, as_json_: AsJson = False) -> None:
    """List the tokens with their ids, grants, limits and expiry."""
    table = Grid(
        (Column("TOKEN"), Column("EXPIRES"), Column("GRANTS"), Column("LIMITS"), Column("DESCRIPTION", min_width=8))
    )
    for entry in _tokens(tokens).all():
        grants = [str(grant) for grant in entry.grants]
        if as_json_:
            facts = {"created": entry.created, "expires": entry.expires, "description": entry.description}
            rates = {right: str(rate) for right, rate in entry.rates.items()}
            print_json({"id": entry.id, "grants": grants, "rates": rates, "limits": dict(entry.limits), **facts})
            continue
        expiry = "never" if entry.expires is None else time.strftime("%Y-%m-%d", time.gmtime(entry.expires))
        limits = " ".join(f"{name}={value}" for name, value in {**entry.rates, **entry.limits}.items())
        table.add_row(*map(cell, (entry.id, expiry, "; ".join(grants), limits, entry.description)))
    if not as_json_:
        console().print(table)


@token.command("revoke")
def revoke_token(
    tokens: TokenFile,
    id: Annotated[str, typer.Argument(metavar="ID", help="The id of the token, see `tubes token list`.")],
) -> None:
    """Revoke a token: services reject it within a second."""
    if not _tokens(tokens).revoke(id):
        raise Stop(f"there is no token {id!r}", Exit.NOT_FOUND)


COMMANDS: tuple[Callable[..., None], ...] = (serve, dashboard)
