"""How the command ends: with a code that says what happened, and one line where something went wrong."""

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
    """What the exit code of the command says."""

    DONE = 0
    #: There was nothing to do it with: no task was ready or done in time, nothing was buried, the tube is full.
    NOTHING = 1
    #: The command line makes no sense, the data is not what the codec takes, or there is no such worker.
    USAGE = 2
    #: There is no such tube, task, session or driver.
    NOT_FOUND = 3
    #: No server answers, or it lets nobody in.
    UNREACHABLE = 4
    #: The queue does not do that now: the tube is busy or there already, the task is somebody else's, the server full.
    REFUSED = 5
    #: A worker was told to end, and its grace was over before its handlers: their tasks were released.
    CUT_OFF = 6
    #: A worker was told to end at once.
    AT_ONCE = 7
    #: `tubes check` has found damage, or `tubes repair` cannot repair it, or tasks are lost or uncertain.
    DAMAGED = 8
    #: The processes of `tubes worker --processes` died again and again before they began to work.
    CRASHED = 9
    #: A bug, of tubes or of the program that has the worker; with TUBES_DEBUG=1 there is a traceback.
    INTERNAL = 70
    #: Ctrl-C.
    INTERRUPTED = 130
    #: Whoever read the output has gone.
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
    """Ends the command with a line and a code."""

    def __init__(self, why: str, code: Exit) -> None:
        super().__init__(why)
        self.code = code


# A login, with what stands before it; and a URL. One may stand where none belongs: as the name of a tube, say.
_SCHEMES = r"(?:rediss?|redis\+\w+|unix|memory):"
_LOGIN = re.compile(rf"{_SCHEMES}(?!//\*\*\*[@']).*@\S*|\S*:(?!//\*\*\*@)\S*@\S*", re.IGNORECASE)
_URL = re.compile(rf"{_SCHEMES}(?!//(?:[\s'\",)]|$))[^\s'\")]*[^\s'\",).:]", re.IGNORECASE)


def _without_passwords(words: str) -> str:
    return _URL.sub(lambda found: redact_url(found[0]), _LOGIN.sub("***", words))


def say(words: str) -> None:
    """One line for whoever looks on, without passwords; what is for programs goes to stdout."""
    with suppress(OSError, ValueError):  # Nobody may be there to hear it.
        sys.stderr.write(f"tubes: {printable(_without_passwords(' '.join(words.split())))}\n")
        sys.stderr.flush()


class Group(TyperGroup):
    """The commands: whatever ends one of them ends it with a code, and a line instead of a traceback."""

    @override
    def main(self, *args: Any, **extra: Any) -> NoReturn:
        """Run a command and exit."""
        extra |= {"prog_name": "tubes", "standalone_mode": False}
        try:
            prepare()
            answer: object = super().main(*args, **extra)
            sys.stdout.flush()
            code = answer if isinstance(answer, int) else Exit.DONE
            if code == Exit.INTERRUPTED:  # Typer has caught it.
                say("interrupted")
        except BaseException as error:
            code = _end(error)
        sys.exit(int(code))


def in_words_of_the_command(error: BaseException) -> str:
    """What an error says, without the names that only Python knows."""
    if isinstance(error, tubes.TubeNotFound):
        name = error.facts["name"]
        return f"there is no tube {name!r}: `tubes tubes` lists those that are there, `tubes create {name}` makes it"
    if isinstance(error, tubes.TubeExists):
        name = error.facts["name"]
        return str(error).replace(WAYS_TO_USE_IT, f"--if-not-exists uses it, `tubes alter {name}` changes its options")
    return str(error)


def code_of(error: tubes.TubesError) -> Exit:
    """What the code says of an error of the queue."""
    return next(code for kinds, code in _KINDS if isinstance(error, kinds))


def _end(error: BaseException) -> int:
    """Say what went wrong; answers the code."""
    if os.environ.get("TUBES_DEBUG") == "1":
        raise error
    # Typer ends by itself where a pipe breaks, with a code of its own.
    if isinstance(error, BrokenPipeError) or isinstance(error.__context__, BrokenPipeError):
        # Else the interpreter complains when it flushes at its end.
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
        say(in_words_of_the_command(error))
        return code_of(error)
    # An error of the command line: typer brings click along under names of its own.
    shown: Any = getattr(error, "format_message", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        sys.stderr.write(f"{shown()}\n")
        return Exit.USAGE
    if shown is not None:
        context: Any = getattr(error, "ctx", None)
        command = "tubes" if context is None else context.command_path
        say(f"{shown()} ({command} --help)")
        return Exit.USAGE
    if isinstance(error, OSError):
        say(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}")
        return Exit.USAGE
    say(f"this is a bug in tubes: {type(error).__name__}: {error} ({SHOWS_WHERE})")
    return Exit.INTERNAL
