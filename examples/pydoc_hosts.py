"""Local web servers that serve Python's own documentation and record all requests.

    python examples/pydoc_hosts.py --hosts 4        # print the URLs as JSON; end with the standard input

The pages come from pydoc, one per module of the standard library and one per class. Each page belongs to one of
the hosts, and the pages of all hosts link to each other. A page takes a few milliseconds. Some pages fail with 503 a
few times, a few always fail, and for some the host demands a pause of one second: 429 with Retry-After. `/-/records`
returns the record of a host; requests for it are not recorded.
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

#: Modules that are not imported: some print text or open a window, the others are not interesting.
UNWANTED = {
    *("antigravity", "this", "idlelib", "tkinter", "turtle", "turtledemo"),
    *("distutils", "ensurepip", "lib2to3", "readline", "test"),
}
UNWANTED_PARTS = {"__main__", "test", "tests"}


def import_library(name: str) -> None:
    """Import a module and its submodules, as far as they are available on this machine."""
    try:
        module = importlib.import_module(name)
    except Exception:  # A module for another system may raise other errors than ImportError.
        return
    for info in pkgutil.iter_modules(getattr(module, "__path__", ())):
        if info.name not in UNWANTED_PARTS:
            import_library(f"{name}.{info.name}")


def catalogue(most: int = 0) -> dict[str, object]:
    """Return the available modules of the standard library and their classes, by name.

    `most`: the maximum number. The module of a class precedes it, so that all classes are reachable from their modules.
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
    """The pages of pydoc, with links to the host of each page."""

    def __init__(self, pages: dict[str, object], urls: list[str]) -> None:
        self.pages, self.urls = pages, urls

    def home(self, name: str) -> str:
        """Return the host of a page."""
        return self.urls[crc32(name.encode()) % len(self.urls)]

    def link(self, name: str, text: str) -> str:
        """Return a link to a page, or only the text if the page does not exist."""
        return f'<a href="{self.home(name)}{name}.html">{text}</a>' if name in self.pages else text

    def classlink(self, object: object, modname: str) -> str:
        """Link to the page of a class; pydoc would link into the page of its module."""
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
        """Return the page of a module or class."""
        module, _, last = name.rpartition(".")
        return self.page(name, self.document(self.pages[name], last, module))

    def front(self, url: str) -> str:
        """Return the first page of a host, which lists its modules."""
        modules = (name for name, page in self.pages.items() if isinstance(page, ModuleType))
        mine = sorted(name for name in modules if self.home(name) == url)
        return self.page("modules", self.multicolumn(mine, lambda name: self.link(name, name)))


class Host(ThreadingHTTPServer):
    """One of the hosts, with its responses and its record of requests."""

    daemon_threads = True
    request_queue_size = 512
    docs: Docs

    def __init__(self, seed: int, flaky: float, hopeless: float, busy: float) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}/"
        self.seed, self.flaky, self.hopeless, self.busy = seed, flaky, hopeless, busy
        self.lock = threading.Lock()
        self.in_flight = self.most_in_flight = 0
        self.attempts: Counter[str] = Counter()
        #: All requests: path, status, times of arrival and response, Retry-After.
        self.fetches: list[tuple[str, int, float, float, int]] = []

    def server_bind(self) -> None:
        """Only bind: `HTTPServer` also asks the DNS for its own name, which can take seconds."""
        TCPServer.server_bind(self)

    def arrive(self, path: str) -> tuple[float, int]:
        """Count a request; return its time and the number of requests for this path."""
        with self.lock:
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
            self.attempts[path] += 1
            return time.monotonic(), self.attempts[path]

    def respond(self, path: str, attempts: int) -> tuple[int, str]:
        """Return the status and text of a response. The text is the target of a redirect, or Retry-After for 429."""
        rng = random.Random(f"{self.seed} {path}")  # Each page behaves the same in every run.
        time.sleep(rng.uniform(0.005, 0.015))
        if path == "/":  # The first page never fails, because it links to all others.
            return 200, self.docs.front(self.url)
        fate = rng.random()
        if fate < self.hopeless or (fate < self.hopeless + self.flaky and attempts <= rng.randint(1, 3)):
            return 503, "come back later"
        if fate > 1 - self.busy and attempts == 1:
            return 429, "1"
        name = path.removeprefix("/").removesuffix(".html")
        if name not in self.docs.pages:
            return 404, "no such page"
        if self.docs.home(name) != self.url:  # pydoc writes some links for a single host.
            return 301, f"{self.docs.home(name)}{name}.html"
        return 200, self.docs.render(name)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        """Send the response and record it."""
        host = self.server
        assert isinstance(host, Host)
        if self.path == "/-/records":
            with host.lock:
                records = json.dumps({"most_in_flight": host.most_in_flight, "fetches": host.fetches})
            self.wfile.write(self.begin(200, records, "application/json"))
            return
        arrived, attempts = host.arrive(self.path)
        status, retry_after, last = 0, 0, b""
        try:
            try:
                status, text = host.respond(self.path, attempts)
            except Exception as error:
                status, text = 500, repr(error)
            retry_after = int(text) if status == 429 else 0
            last = self.begin(status, text)
        finally:
            # Send the last byte and update the count in one step, so that a client is counted until it has the
            # whole response. In two steps, a quick client could send its next request before the update.
            with host.lock:
                host.fetches.append((self.path, status, arrived, time.monotonic(), retry_after))
                try:
                    self.wfile.write(last)
                finally:
                    host.in_flight -= 1

    def begin(self, status: int, text: str, kind: str = "text/html; charset=utf-8") -> bytes:
        """Send a response except for its last byte, and return this byte."""
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
        """Log nothing: the records contain everything."""


@contextmanager
def running(
    hosts: int, seed: int = 0, flaky: float = 0.04, hopeless: float = 0.01, busy: float = 0.01, pages: int = 0
) -> Generator[list[str], None, None]:
    """Run hosts in a separate process, so that clients and servers do not share a GIL; yield their URLs.

    `pages`: the total number of pages, in addition to the front page of each host; 0: all.
    """
    arguments = [f"--{name}={value}" for name, value in locals().items()]
    with subprocess.Popen(
        [sys.executable, __file__, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C must not end the process: its records are needed afterwards.
    ) as process:
        assert process.stdin
        assert process.stdout
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.stdin.close()


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Serve Python's documentation on several local hosts.")
    parser.add_argument("--hosts", type=int, default=4, help="how many (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="selects the pages that fail (%(default)s)")
    parser.add_argument("--flaky", type=float, default=0.04, help="the share of pages that fail at first (%(default)s)")
    parser.add_argument(
        "--hopeless", type=float, default=0.01, help="the share of pages that always fail (%(default)s)"
    )
    parser.add_argument("--busy", type=float, default=0.01, help="the share of pages with Retry-After (%(default)s)")
    parser.add_argument("--pages", type=int, default=0, help="the total number of pages; 0: all (%(default)s)")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # Deprecated modules warn on import.
    inspect.getcomments = lambda object: None  # pydoc parses whole files for comments, which is 3 times slower.
    servers = [Host(options.seed, options.flaky, options.hopeless, options.busy) for _ in range(options.hosts)]
    Host.docs = Docs(catalogue(options.pages), [server.url for server in servers])
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    print(json.dumps([server.url for server in servers]), flush=True)
    with suppress(KeyboardInterrupt):
        sys.stdin.read()


if __name__ == "__main__":
    main()
