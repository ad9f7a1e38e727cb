"""Exit codes of the command, and its one-line error messages."""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from enum import IntEnum
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup
from typing_extensions import override

import tubes
from tubes.backend.url import redact_url
from tubes.cli.streams import prepare, printable
from tubes.drivers.tube_options import WAYS_TO_USE_IT


class Exit(IntEnum):
    """Exit codes of the command."""

    DONE = 0
    #: No effect: no task was ready or done in time, no task was buried, or the tube is full.
    NOTHING = 1
    #: Invalid arguments, data that the codec does not accept, or an unknown worker.
    USAGE = 2
    #: Unknown tube, task, session or driver.
    NOT_FOUND = 3
    #: The server does not reply, or rejects the login.
    UNREACHABLE = 4
    #: The queue refused: the tube is in use or exists already, another session holds the task, the server is full.
    REFUSED = 5
    #: A worker was stopped, and its grace ended before its handlers did: their tasks were released.
    CUT_OFF = 6
    #: A worker was stopped without grace.
    AT_ONCE = 7
    #: `tubes check` has found damage, or `tubes repair` cannot repair it, or tasks are lost or uncertain.
    DAMAGED = 8
    #: The processes of `tubes worker --processes` died repeatedly before they began to work.
    CRASHED = 9
    #: A bug in tubes or in the program of the worker; TUBES_DEBUG=1 prints the traceback.
    INTERNAL = 70
    #: Ctrl-C.
    INTERRUPTED = 130
    #: The reader of the output has closed it.
    BROKEN_PIPE = 141


_KINDS: tuple[tuple[tuple[type[BaseException], ...], Exit], ...] = (
    ((tubes.ConnectionLost, tubes.ServerRefused), Exit.UNREACHABLE),
    ((tubes.TubeNotFound, tubes.TaskNotFound, tubes.SessionNotFound, tubes.DriverNotFound), Exit.NOT_FOUND),
    ((tubes.InvalidOption, tubes.OptionNotSupported, tubes.CodecError, tubes.ExtraMissing), Exit.USAGE),
    ((tubes.NothingReady, tubes.CallTimeout), Exit.NOTHING),
    ((tubes.TubesError,), Exit.REFUSED),
)


SHOWS_WHERE = "TUBES_DEBUG=1 shows where"


class Stop(Exception):
    """Ends the command with a one-line message and an exit code."""

    def __init__(self, message: str, code: Exit) -> None:
        super().__init__(message)
        self.code = code


# A login with the text in front of it, and a URL. Either may be an argument by mistake, for example a tube's name.
_SCHEMES = r"(?:rediss?|redis\+\w+|unix|memory):"
_LOGIN = re.compile(rf"{_SCHEMES}(?!//\*\*\*[@']).*@\S*|\S*:(?!//\*\*\*@)\S*@\S*", re.IGNORECASE)
_URL = re.compile(rf"{_SCHEMES}(?!//(?:[\s'\",)]|;\s|$))[^\s'\")]*[^\s'\",).:]", re.IGNORECASE)


def _redact(words: str) -> str:
    return _URL.sub(lambda found: redact_url(found[0]), _LOGIN.sub("***", words))


def say(words: str) -> None:
    """Print a line without passwords on stderr. Output for programs goes to stdout."""
    with suppress(OSError, ValueError):  # stderr may be closed.
        sys.stderr.write(f"tubes: {printable(_redact(' '.join(words.split())))}\n")
        sys.stderr.flush()


#: The commands that other queues have under another name.
_OTHER_NAMES = {
    **dict.fromkeys(("list", "ls", "queues"), "tubes"),
    **dict.fromkeys(("info", "status"), "stats"),
    **dict.fromkeys(("retry", "requeue"), "kick"),
}


class Group(TyperGroup):
    """The group of all commands. It turns exceptions into an exit code and a one-line message."""

    @override
    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in _OTHER_NAMES and args[0] not in self.commands:
            raise Stop(f"there is no command {args[0]!r}: did you mean `tubes {_OTHER_NAMES[args[0]]}`?", Exit.USAGE)
        return super().resolve_command(ctx, args)

    @override
    def main(self, *args: Any, **extra: Any) -> NoReturn:
        extra |= {"prog_name": "tubes", "standalone_mode": False}
        try:
            prepare()
            result: object = super().main(*args, **extra)
            sys.stdout.flush()
            code = result if isinstance(result, int) else Exit.DONE
            if code == Exit.INTERRUPTED:  # Typer has caught the KeyboardInterrupt.
                say("interrupted")
        except BaseException as error:
            code = _handle(error)
        sys.exit(int(code))


def describe_error(error: BaseException) -> str:
    """Return the message of an error, with hints for the command line instead of Python."""
    if isinstance(error, tubes.TubeNotFound):
        name = error.facts["name"]
        hint = error.facts.get("hint", "")
        return f"there is no tube {name!r}{hint}: `tubes tubes` lists all tubes, `tubes create {name}` creates it"
    if isinstance(error, tubes.TubeExists):
        name = error.facts["name"]
        return str(error).replace(WAYS_TO_USE_IT, f"--if-not-exists uses it, `tubes alter {name}` changes its options")
    return str(error)


def code_of(error: tubes.TubesError) -> Exit:
    return next(code for kinds, code in _KINDS if isinstance(error, kinds))


def _handle(error: BaseException) -> int:
    if os.environ.get("TUBES_DEBUG") == "1":
        raise error
    # Typer turns a broken pipe into an exit with its own code.
    if isinstance(error, BrokenPipeError) or isinstance(error.__context__, BrokenPipeError):
        # Otherwise the interpreter prints an error when it flushes stdout at exit.
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.BROKEN_PIPE
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else Exit.DONE
    if isinstance(error, (KeyboardInterrupt, typer.Abort)):
        say("interrupted")
        return Exit.INTERRUPTED
    if isinstance(error, Stop):
        say(str(error))
        return error.code
    if isinstance(error, tubes.TubesError):
        say(describe_error(error))
        return code_of(error)
    # Errors of the command line are recognized by their attributes: Typer may bundle Click under other names.
    format_message: Any = getattr(error, "format_message", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        sys.stderr.write(f"{format_message()}\n")
        return Exit.USAGE
    if format_message is not None:
        context: Any = getattr(error, "ctx", None)
        command = "tubes" if context is None else context.command_path
        say(f"{format_message()} ({command} --help)")
        return Exit.USAGE
    if isinstance(error, OSError):
        say(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}")
        return Exit.USAGE
    say(f"this is a bug in tubes: {type(error).__name__}: {error} ({SHOWS_WHERE})")
    return Exit.INTERNAL
