"""Several web servers on this machine that show Python's own documentation, and note what is asked of them.

    python examples/pydoc_hosts.py --hosts 4        # prints their URLs as JSON, ends with its standard input

The pages are pydoc's: one for every module of the standard library and one for every class in it. Each page
lives on one of the hosts, and the pages of all hosts link to each other. A page takes some milliseconds.
Some fail with 503 a few times, a few always do, and for some the host asks to be left alone for a second: 429 with
Retry-After. `/-/records` shows what a host noted; it is not noted itself.
"""

import argparse
import importlib
import inspect
import json
import pkgutil
import pydoc
import random
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from types import ModuleType
from typing import Any
from zlib import crc32

#: Not imported: some of these print something or open a window, the others are of no interest.
UNWANTED = {
    *("antigravity", "this", "idlelib", "tkinter", "turtle", "turtledemo"),
    *("distutils", "ensurepip", "lib2to3", "readline", "test"),
}
UNWANTED_PARTS = {"__main__", "test", "tests"}


def import_library(name: str) -> None:
    """Import a module and what is in it, as far as this machine has it."""
    try:
        module = importlib.import_module(name)
    except Exception:  # Made for another system; what such a module raises is not always an ImportError.
        return
    for info in pkgutil.iter_modules(getattr(module, "__path__", ())):
        if info.name not in UNWANTED_PARTS:
            import_library(f"{name}.{info.name}")


def catalogue(most: int = 0) -> dict[str, object]:
    """The modules of the standard library, as far as this machine has them, and their classes, by name.

    `most`: only the first ones. The module of a class comes before it, so that all can be reached from their modules.
    """
    for name in sorted(sys.stdlib_module_names - UNWANTED):
        if not name.startswith("_"):
            import_library(name)
    pages: dict[str, object] = {}
    for module in list(sys.modules.values()):
        name = getattr(module, "__name__", "__main__")
        if name.partition(".")[0] in sys.stdlib_module_names and name != "__main__":
            pages[name] = module
            for key, value in vars(module).items():
                if inspect.isclass(value) and (value.__module__, value.__name__) == (name, key):
                    pages[f"{name}.{key}"] = value
    return dict(sorted(pages.items(), key=lambda page: (page[0].startswith("_"), page[0]))[:most]) if most else pages


class Docs(pydoc.HTMLDoc):
    """pydoc's pages, with links that lead to the host of each page."""

    def __init__(self, pages: dict[str, object], urls: list[str]) -> None:
        self.pages, self.urls = pages, urls

    def home(self, name: str) -> str:
        """The host that has a page."""
        return self.urls[crc32(name.encode()) % len(self.urls)]

    def link(self, name: str, text: str) -> str:
        """A link to a page, or only its text if there is no such page."""
        return f'<a href="{self.home(name)}{name}.html">{text}</a>' if name in self.pages else text

    def classlink(self, object: object, modname: str) -> str:
        """A class has a page of its own here; pydoc's own link leads into the page of its module."""
        kind: Any = object
        return self.link(f"{kind.__module__}.{kind.__name__}", pydoc.classname(kind, modname))

    def modulelink(self, object: object) -> str:
        """See `pydoc.HTMLDoc`."""
        name = object.__name__ if isinstance(object, ModuleType) else ""
        return self.link(name, name)

    def modpkglink(self, modpkginfo: tuple[str, str, bool, bool]) -> str:
        """See `pydoc.HTMLDoc`."""
        name, package, _, _ = modpkginfo
        return self.link(f"{package}.{name}" if package else name, name)

    def render(self, name: str) -> str:
        """The page of a module or class."""
        module, _, last = name.rpartition(".")
        return self.page(name, self.document(self.pages[name], last, module))

    def front(self, url: str) -> str:
        """The first page of a host: its modules."""
        modules = (name for name, page in self.pages.items() if isinstance(page, ModuleType))
        mine = sorted(name for name in modules if self.home(name) == url)
        return self.page("modules", self.multicolumn(mine, lambda name: self.link(name, name)))


class Host(ThreadingHTTPServer):
    """One of the hosts: what it answers, and its own record of what it was asked."""

    daemon_threads = True
    request_queue_size = 512
    docs: Docs

    def __init__(self, seed: int, flaky: float, hopeless: float, busy: float) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}/"
        self.seed, self.flaky, self.hopeless, self.busy = seed, flaky, hopeless, busy
        self.lock = threading.Lock()
        self.in_flight = self.most_in_flight = 0
        self.tries: Counter[str] = Counter()
        #: Of every request: the path, the status, when it arrived, when it was answered, its Retry-After.
        self.fetches: list[tuple[str, int, float, float, int]] = []

    def server_bind(self) -> None:
        """Bind, and no more: `HTTPServer` asks the DNS for its own name, which can take seconds."""
        TCPServer.server_bind(self)

    def arrive(self, path: str) -> tuple[float, int]:
        """Count a request in; answers when that was, and how many there were for this path."""
        with self.lock:
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
            self.tries[path] += 1
            return time.monotonic(), self.tries[path]

    def respond(self, path: str, tries: int) -> tuple[int, str]:
        """The status and the text of an answer: of a redirect its goal, of 429 for how many seconds to keep away."""
        dice = random.Random(f"{self.seed} {path}")  # The same page has the same fate in every run.
        time.sleep(dice.uniform(0.005, 0.015))
        if path == "/":  # Never fails: all else is reached from here.
            return 200, self.docs.front(self.url)
        fate = dice.random()
        if fate < self.hopeless or (fate < self.hopeless + self.flaky and tries <= dice.randint(1, 3)):
            return 503, "come back later"
        if fate > 1 - self.busy and tries == 1:
            return 429, "1"
        name = path.removeprefix("/").removesuffix(".html")
        if name not in self.docs.pages:
            return 404, "no such page"
        if self.docs.home(name) != self.url:  # pydoc writes some links as if there were one host only.
            return 301, f"{self.docs.home(name)}{name}.html"
        return 200, self.docs.render(name)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that hang up."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        """Answer, and note it."""
        host = self.server
        assert isinstance(host, Host)
        if self.path == "/-/records":
            with host.lock:
                records = json.dumps({"most_in_flight": host.most_in_flight, "fetches": host.fetches})
            self.wfile.write(self.begin(200, records, "application/json"))
            return
        arrived, tries = host.arrive(self.path)
        status, retry_after, last = 0, 0, b""
        try:
            try:
                status, text = host.respond(self.path, tries)
            except Exception as error:
                status, text = 500, repr(error)
            retry_after = int(text) if status == 429 else 0
            last = self.begin(status, text)
        finally:
            # The last byte and the count go in one step: who has the whole answer is no longer counted, who
            # has not still is. In two steps a quick client could be back before it was counted out.
            with host.lock:
                host.fetches.append((self.path, status, arrived, time.monotonic(), retry_after))
                try:
                    self.wfile.write(last)
                finally:
                    host.in_flight -= 1

    def begin(self, status: int, text: str, kind: str = "text/html; charset=utf-8") -> bytes:
        """Send an answer but for its last byte, which is returned."""
        body = text.encode(errors="replace")
        self.send_response(status)
        if status == 301:
            self.send_header("Location", text)
        if status == 429:
            self.send_header("Retry-After", text)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[:-1])
        return body[-1:]

    def log_message(self, format: str, *args: Any) -> None:
        """Keep quiet: the records say it all."""


@contextmanager
def running(
    hosts: int, seed: int = 0, flaky: float = 0.04, hopeless: float = 0.01, busy: float = 0.01, pages: int = 0
) -> Generator[list[str], None, None]:
    """The URLs of so many hosts, in a process of their own: clients and servers should not share a GIL.

    `pages`: how many they have together, besides the front page of each; 0: all.
    """
    arguments = [f"--{name}={value}" for name, value in locals().items()]
    with subprocess.Popen(
        [sys.executable, __file__, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C does not reach it: what it noted is wanted afterwards.
    ) as process:
        assert process.stdin
        assert process.stdout
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.stdin.close()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Serve Python's documentation on several local hosts.")
    parser.add_argument("--hosts", type=int, default=4, help="how many (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="decides which pages fail (%(default)s)")
    parser.add_argument("--flaky", type=float, default=0.04, help="share that fails at first (%(default)s)")
    parser.add_argument("--hopeless", type=float, default=0.01, help="share that always fails (%(default)s)")
    parser.add_argument("--busy", type=float, default=0.01, help="share that is put off (%(default)s)")
    parser.add_argument("--pages", type=int, default=0, help="how many they have together; 0: all (%(default)s)")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # Old modules say on import that they are old.
    inspect.getcomments = lambda object: None  # pydoc parses whole files for them: 3 times slower.
    servers = [Host(options.seed, options.flaky, options.hopeless, options.busy) for _ in range(options.hosts)]
    Host.docs = Docs(catalogue(options.pages), [server.url for server in servers])
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    print(json.dumps([server.url for server in servers]), flush=True)
    with suppress(KeyboardInterrupt):
        sys.stdin.read()


if __name__ == "__main__":
    main()
