"""A live table of a crawl, based only on events of the tube."""

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass, fields

from crawler import host_of
from rich import box
from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text
from yarl import URL

import tubes

DOTS = 12


@dataclass
class Row:
    """The tasks of one host."""

    in_flight: int = 0
    done: int = 0
    waiting: int = 0
    retried: int = 0
    buried: int = 0


class Board:
    """Counters of the tasks of a tube by host."""

    def __init__(self, title: str, hosts: Iterable[str], limit: int) -> None:
        self.title, self.limit = title, limit
        self.rows = {host: Row() for host in hosts}
        #: The end of the pause of each host.
        self.pauses: dict[str, float] = {}
        self.began = time.monotonic()

    def update(self, task: tubes.AsyncTask, event: str) -> None:
        """Update the counters; a callback for `on_task_change`."""
        row = self.rows[host_of(URL(task.data))]
        match event:
            case "put":
                row.waiting += 1
            case "take":
                row.waiting -= 1
                row.in_flight += 1
            case "delete":
                row.in_flight -= 1
                row.done += 1
            case "release":
                row.in_flight -= 1
                row.waiting += 1
                row.retried += 1
            case "bury":
                row.in_flight -= 1
                row.buried += 1
            case _:
                pass

    def total(self) -> Row:
        """Return the sums over all hosts."""
        return Row(*(sum(getattr(row, field.name) for row in self.rows.values()) for field in fields(Row)))

    def line(self) -> str:
        """Return the current state in one line."""
        row, seconds = self.total(), time.monotonic() - self.began
        return (
            f"{seconds:5.1f} s  {row.done:5} done  {row.done / seconds:4.0f}/s  {row.in_flight:3} in flight"
            f"  {row.waiting:5} waiting  {row.retried:4} retried  {row.buried:3} buried"
        )

    def table(self) -> Table:
        """Return the current state by host."""
        total, seconds = self.total(), time.monotonic() - self.began
        table = Table(
            title=f"{self.title}, {seconds:.1f} s",
            title_style="bold",
            title_justify="left",
            box=box.SIMPLE_HEAD,
            show_footer=True,
            expand=True,
        )
        progress = ProgressBar(total=self.limit, completed=total.done + total.buried)
        table.add_column("host", "total", no_wrap=True)
        table.add_column("in flight", f"{total.in_flight}", width=DOTS + 3, no_wrap=True)
        table.add_column("done", f"{total.done}", justify="right", width=5)
        table.add_column("", progress, ratio=1)
        table.add_column("per s", f"{total.done / seconds:.0f}", justify="right", width=5)
        table.add_column("waiting", f"{total.waiting}", justify="right")
        table.add_column("retried", f"{total.retried}", justify="right")
        table.add_column("buried", f"{total.buried}", justify="right")
        for host, row in self.rows.items():
            dots = Text("●" * min(row.in_flight, DOTS), "red" if row.in_flight > 1 else "green")
            if row.in_flight > 1:
                dots.append(f" {row.in_flight}", "bold red")
            rest = self.pauses.get(host, 0) - time.time()
            if not row.in_flight and rest > 0:
                dots = Text(f"in cooldown for {rest:.1f} s", "yellow")
            known = row.in_flight + row.done + row.waiting + row.buried
            share = ProgressBar(total=known, completed=row.done + row.buried, complete_style="cyan")
            cells = (f"{row.done / seconds:.1f}", str(row.waiting), str(row.retried), str(row.buried))
            table.add_row(host, dots, str(row.done), share, *cells)
        return table

    async def show(self, console: Console, pages: tubes.AsyncTube) -> None:
        """Update the table on the terminal until cancelled. Print lines if there is no terminal."""
        if not console.is_terminal:
            console.print(self.title)
            while True:
                await asyncio.sleep(2)
                console.print(self.line())
        with Live(console=console, auto_refresh=False) as live:
            try:
                while True:
                    if pages.driver.lane:
                        self.pauses = {lane.name: lane.next_start or 0 for lane in await pages.lanes()}
                    live.update(self.table(), refresh=True)
                    await asyncio.sleep(0.1)
            finally:
                live.update(self.table(), refresh=True)
