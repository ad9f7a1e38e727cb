"""Selections of tasks, and their changes."""

from __future__ import annotations

import random
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.contract.bench import Bench, lacks, needs
from tests.contract.faces import SyncFace
from tubes import InvalidOption, OptionNotSupported, Task, TaskNotTaken, task_data
from tubes.backend.selecting import Scan

if TYPE_CHECKING:
    from collections.abc import Iterable


def ids(tasks: Iterable[Task]) -> list[int]:
    """Return the ids of tasks."""
    return [task.id for task in tasks]


def stop(done: int, seen: list[int] | None = None) -> bool:
    """Stop a change after its first part. `seen`: receives the progress."""
    if seen is not None:
        seen.append(done)
    return False


class Selections(Bench):
    """select."""

    def selected(self, *arguments: object, **filters: object) -> list[int]:
        """Return the ids of a selection, and check the other ways to read it."""
        selection = self.tube.select(*arguments, **filters)
        found = ids(selection)
        assert ids(selection) == found
        assert selection.count() == len(found)
        assert ids(self.tube.select(*arguments, **filters, limit=1)) == found[:1]
        if (*arguments, filters.get("state"))[0] != "done":
            assert ids(self.tube.select(*arguments, **filters, newest_first=True)) == found[::-1]
        return found

    def seen(self, **filters: object) -> object:
        """Return the `Seen` tuples that a change of a selection reads first."""
        chosen = self.tube.select(**filters)._filters
        return self.call("select", chosen, Scan(chosen), 250, False)

    def test_selection_of_a_state_has_its_order(self) -> None:
        pri = {"pri": 1} if self.knows("pri") else {}
        tasks = [self.put(number, **(pri if number % 3 else {})) for number in range(12)]
        held = [self.take(), self.take(self.add_worker().tube), self.take()]
        self.tube.release(held.pop(0))
        for task in tasks[8:2:-2]:
            if task.id not in ids(held):
                self.tube.bury(task.id)
        left = list(self.tube.select())
        assert ids(left) == ids(tasks)
        assert self.selected() == ids(tasks)
        ready, buried = ([task for task in left if task.state == state] for state in ("ready", "buried"))
        assert self.selected("ready") == ids(ready if self.knobs.lane else self.sort_as_taken(ready))
        assert self.selected("buried") == ids(self.sort_as_taken(buried))
        assert self.selected("taken") == sorted(ids(held))
        assert self.selected("delayed") == self.selected("done") == []

    @needs("delay")
    def test_selection_of_delayed_tasks_is_in_due_order(self) -> None:
        tasks = [self.put(number, delay=delay) for number, delay in enumerate([5, 0.001, 3600, 5, 5, 1])]
        if self.knows("ttl"):
            self.put(ttl=4)
        assert self.selected("delayed") == ids(sorted(tasks, key=lambda task: (task.due, task.id)))
        assert self.tube.select("delayed").kick() == 6
        assert self.selected("delayed") == []

    def test_selection_filters_by_reason_and_its_kind(self) -> None:
        reasons = ["ValueError: a", "ValueError: b", "late", "x" * 70, "x" * 61 + ": y", "max_attempts: ttr", None]
        buried = [self.tube.bury(self.put().id, reason) for reason in reasons]
        kinds = self.tube.admin.reasons()
        for kind, count in kinds.items():
            found = list(self.tube.select(reason=kind))
            assert len(found) == count
            assert len(self.selected("buried", reason=kind)) == count
        assert self.selected(reason="ValueError: b") == [buried[1].id]
        assert self.selected(reason="none") == [buried[6].id]
        assert self.selected(reason="Value") == []

    def test_kinds_of_odd_reasons_are_the_same_everywhere(self) -> None:
        # The kinds that Python's `partition` and `strip` find, whichever backend stores the reasons.
        expected = {
            "Erreur\u00a0: x": "Erreur",
            "\x1c\x1f\x85\u2003Late \u3000:": "Late",
            "\u05d0\u200f: \u05d1": "\u05d0\u200f",
            "a\x00b\nc: d": "a\x00b\nc",
            "\ud800\x85: lone": "\ud800",
            "ü" * 59 + " \u00a0: y": "ü" * 59,
            "\U0001f600" * 61: "\U0001f600" * 60,
            "max_attempts: \u00a0odd\x85one": "max_attempts: odd",
            "max_attempts: " + "n" * 100: "max_attempts: " + "n" * 46,
            " " * 3000: "none",
            " :": "none",
            "00fake": "00fake",
        }
        alphabet, chance = "a: \t\x1c\x1f\x85\u00a0\u2028\u05d0\u200fü", random.Random(28)
        for _ in range(60):
            reason = "".join(chance.choices(alphabet, k=chance.randrange(1, 9)))
            expected[reason] = reason.split(":")[0].strip() or "none"
        found: dict[str, list[int]] = {}
        for number, (reason, kind) in enumerate(expected.items()):
            if number % 3 == 0:
                task = self.tube.bury(self.put().id, reason)
            elif number % 3 == 1:
                task = self.put(key=str(number))
                assert self.tube.select(key=str(number)).bury(reason) == 1
            else:
                self.put(max_attempts=1)
                task = self.tube.release(self.take(), reason=reason)
            found.setdefault(kind, []).append(task.id)
        assert self.tube.admin.reasons() == {kind: len(tasks) for kind, tasks in found.items()}
        for kind, tasks in found.items():
            assert sorted(self.selected(reason=kind)) == tasks
        assert self.selected(reason=" " * 3000) == [found["none"][0]]
        assert self.tube.peek(found["00fake"][0]).reason == "00fake"
        huge = "Huge: " + "\t" * 1_000_000
        task = self.tube.bury(self.put().id, huge)
        assert self.selected(reason="Huge") == self.selected(reason=huge) == [task.id]

    def test_selection_filters_by_data(self) -> None:
        tasks = [self.put({"to": to}) for to in ("ann@x", "bob@x", "Zoë@y")]
        assert self.selected(contains="ann@x") == [tasks[0].id]
        assert self.selected(contains=b"@x") == ids(tasks[:2])
        assert self.selected(contains="ë") == [tasks[2].id]
        assert self.selected("buried", contains="ann") == []
        assert self.selected(contains="a.n") == []

    def test_selection_filters_by_function(self) -> None:
        names = ("resize", "resize", "resized", 'größe "😀"\\')
        tasks = [self.put(task_data(name, number)) for number, name in enumerate(names)]
        for data in ("resize", ["task", "resize"], {"args": [{"task": "resize"}]}, {"task": ["resize"]}, None, 5):
            self.put(data)
        self.put({"task": "mail", "args": ["resize", {"task": "resize"}]})
        assert self.selected(function="resize") == ids(tasks[:2])
        assert self.selected(function="resized") == [tasks[2].id]
        assert self.selected(function=names[3]) == [tasks[3].id]
        assert self.selected(function="task") == self.selected("buried", function="resize") == []
        assert self.tube.select(function="resize", limit=1).bury() == 1
        assert self.tube.select(function="resize").kick() == 1
        assert self.tube.select(function="resize").move_to(self.create("other")) == 2
        assert self.tube.select(function="mail").cancel() == self.tube.select(function="resized").delete() == 1
        assert self.tube.select().count() == 7

    def test_selection_filters_done_and_taken_tasks_by_function(self) -> None:
        task = self.put(task_data("resize"), keep_done=10, key="key")
        assert self.selected(function="resize", key="key") == [task.id]
        taken = self.take()
        assert self.selected("taken", function="resize") == [task.id]
        taken.ack()
        assert (self.selected("done", function="resize"), self.selected("done", function="size")) == ([task.id], [])

    def test_selection_filters_by_age_attempts_and_key(self) -> None:
        old = self.put("old", key="old")
        self.pass_time(10)
        new = self.put("new", key="new")
        assert self.selected(older_than=10) == self.selected(older_than=timedelta(seconds=5)) == [old.id]
        assert self.selected(older_than=10.001) == []
        taken = self.take()
        assert self.selected(attempts=1) == [taken.id]
        assert self.selected(attempts=2) == []
        assert self.selected(attempts=0) == [old.id, new.id]
        assert (self.selected(key="new"), self.selected("taken", key=taken.key)) == ([new.id], [taken.id])
        assert self.selected(key="none") == self.selected("buried", key="new") == []

    @needs("lane")
    def test_selection_filters_by_lane(self) -> None:
        tasks = [self.put(number, **self.lane("ab"[number % 2])) for number in range(6)]
        self.tube.put("in none")
        self.tube.bury(tasks[0].id)
        assert self.selected(lane="a") == ids(tasks[::2])
        assert self.selected("buried", lane="a") == [tasks[0].id]
        assert self.selected("ready", lane="b") == ids(tasks[1::2])
        assert len(self.selected(lane="nil")) == 1
        assert self.tube.select(lane="a").delete() == 3

    @lacks("lane")
    def test_selection_by_lane_is_refused_without_lanes(self) -> None:
        with self.expect_error(OptionNotSupported):
            self.tube.select(lane="a")

    @lacks("capacity")
    def test_selection_has_more_tasks_than_one_part(self) -> None:
        tasks = self.tube.put_many([{"n": number} for number in range(1300)])
        self.tube.delete_many(tasks[:100])
        assert ids(self.tube.select()) == ids(tasks[100:])
        assert ids(self.tube.select(newest_first=True)) == ids(reversed(tasks[100:]))
        numbers: list[int] = []
        assert self.tube.select(limit=600).bury("many", on_progress=numbers.append) == 600
        assert (numbers[-1], numbers) == (600, sorted(set(numbers)))
        order = ids(self.sort_as_taken(tasks[100:700]))
        assert self.selected("buried") == order
        assert self.selected(contains='"n":5') == [task.id for task in tasks[100:] if str(task.data["n"])[0] == "5"]
        assert self.tube.select("buried", limit=300, newest_first=True).delete() == 300
        assert self.selected("buried") == order[:300]
        assert (self.tube.select(reason="many").kick(), self.count("kick")) == (300, 300)

    def test_changes_apply_to_their_states(self) -> None:
        taken, buried, ready = self.put_and_take(), self.put_and_bury(data="b"), self.put("r")
        assert self.tube.select().kick() == 1
        assert self.state(buried) == "ready"
        assert self.tube.select().release() == 1
        assert (self.state(taken), self.count("release")) == ("ready", 1)
        with self.expect_error(TaskNotTaken):
            self.tube.ack(taken)
        held = self.take()
        assert self.tube.select().bury("all") == 3
        assert self.tube.select("ready").kick() == self.tube.select("done").bury() == 0
        assert {task.reason for task in self.tube.select("buried")} == {"all"}
        assert self.tube.peek(held.id).calls["bury"] >= 1
        assert self.tube.select(limit=1).delete() == 1
        assert self.tube.select(limit=0).delete() == 0
        assert self.tube.select().delete() == 2
        assert self.selected() == [] != [ready.id]

    def test_selection_can_be_cancelled(self) -> None:
        taken, buried, ready = self.put_and_take(keep_done=5), self.put_and_bury(data="b"), self.put({"to": "ann"})
        assert self.tube.select(contains="ann").cancel("no such user") == 1
        assert self.tube.select().cancel("all") == 2
        assert (self.selected(), self.state(ready), self.state(buried)) == ([], "done", "done")
        ended = self.tube.peek(taken.id)
        assert (ended.why, ended.reason, ended.cancelled) == ("cancelled", "all", True)
        with self.expect_error(TaskNotTaken):
            self.tube.ack(taken)
        assert self.tube.select("done").cancel() == 0

    def test_kick_of_a_selection_gives_attempts(self) -> None:
        task = self.put(max_attempts=1)
        self.take().release()
        assert self.tube.select(reason="max_attempts: release").kick(attempts=3) == 1
        assert self.tube.peek(task.id).max_attempts == 4

    @lacks("ttl")
    def test_kick_of_a_selection_refuses_a_ttl_without_one(self) -> None:
        self.put_and_bury()
        with self.expect_error(OptionNotSupported):
            self.tube.select().kick(ttl=5)

    def test_selection_of_done_tasks_can_be_deleted(self) -> None:
        for number in range(3):
            self.put({"n": number}, keep_done=10 + number)
            self.take().ack(result=number)
        assert self.selected("done") == [2, 1, 0]
        assert self.selected("done", contains='"n":1') == [1]
        assert self.tube.select("done", contains='"n":1').delete() == 1
        assert (self.selected("done"), self.tube.statistics().kept) == ([2, 0], 2)

    def test_changed_task_is_left_alone(self) -> None:
        tasks = [self.put(number) for number in range(4)]
        seen = self.seen()
        taken = self.take()
        self.tube.delete(next(task.id for task in tasks if task.id != taken.id))
        assert self.call("change_seen", "bury", seen, ("why",)).count(True) == 2
        assert self.call("change_seen", "bury", seen, ("why",)).count(True) == 0
        held = self.seen(state="taken")
        taken.release()
        again = self.take()
        assert again.id == taken.id
        assert self.call("change_seen", "release", held, ()) == [False]
        again.release()
        assert self.call("change_seen", "delete", self.seen(state="ready"), ()) == [True]

    def test_change_ends_although_its_tasks_return(self) -> None:
        if not isinstance(self.face, SyncFace):
            pytest.skip("the callback calls the tube")
        for _ in range(3):
            self.put_and_bury()
        parts: list[int] = []

        def bury_again(done: int) -> None:
            parts.append(done)
            for task in list(self.tube.select("ready")):
                task.bury()
            self.put_and_bury()

        assert self.tube.select("buried").kick(on_progress=bury_again) == 3
        assert (parts[-1], self.count("kick")) == (3, 3)

    @needs("delay")
    def test_selection_returns_a_task_once_although_it_moves(self) -> None:
        tasks = [self.put(delay=delay) for delay in (1, 2)]
        chosen = self.tube.select("delayed")._filters
        scan = Scan(chosen)
        found = [one[0] for one in self.call("select", chosen, scan, 1, False)]
        self.tube.update(tasks[0].id, delay=60)
        self.put(delay=30)
        while not scan.ended:
            found += [one[0] for one in self.call("select", chosen, scan, 1, False)]
        assert found == ids(tasks)

    def test_progress_callback_stops_a_change(self) -> None:
        for _ in range(3):
            self.put()

        def fail(done: int) -> None:
            raise ZeroDivisionError(done)

        assert self.tube.select().bury(on_progress=stop) == 3
        with pytest.raises(ZeroDivisionError):
            self.tube.select().kick(on_progress=fail)
        assert self.count("kick") == 3

    @lacks("capacity")
    def test_stopped_change_leaves_the_other_tasks(self) -> None:
        self.tube.put_many(range(600))
        changed = self.tube.select().bury(on_progress=stop)
        assert 0 < changed <= 250
        assert self.count("buried") == changed
        for act in (self.tube.select(contains="none").delete, self.tube.select(contains="none").cancel):
            seen: list[int] = []
            assert act(on_progress=partial(stop, seen=seen)) == 0
            assert seen == [0]

    def test_change_of_a_selection_notifies_listeners(self) -> None:
        task = self.put_and_bury()
        events = self.listen()
        self.tube.select(reason="none").kick()
        self.tube.select().delete()
        assert self.has_received(events, [("kick", task.id, "ready"), ("delete", task.id, "done")])

    def test_kick_of_a_selection_wakes_a_waiting_take(self) -> None:
        task = self.put_and_bury()
        call = self.begin(timeout=60)
        assert self.has_waiters(1)
        assert self.tube.select("buried").kick() == 1
        assert self.result_of(call).id == task.id

    def test_selection_moves_to_another_tube(self) -> None:
        other = self.create("other")
        dead = [self.put_and_bury(data={"n": number}, key=f"key-{number}") for number in range(3)]
        taken = self.put_and_take()
        assert self.tube.select(contains='"n":1').move_to(other) == 1
        numbers: list[int] = []
        assert self.tube.select().move_to(other, on_progress=numbers.append) == 2
        assert (numbers[-1], sorted(task.data["n"] for task in other.select())) == (2, [0, 1, 2])
        assert self.selected() == [taken.id] != ids(dead)

    @lacks("capacity")
    def test_move_of_a_selection_moves_up_to_its_limit(self) -> None:
        other = self.create("other")
        self.tube.put_many(range(600))
        assert self.tube.select(limit=599).move_to(other) == 599
        assert other.select().count() == 599

    @pytest.mark.parametrize(
        "filters",
        [
            *({"state": "gone"}, {"state": 7}, {"state": ""}, {"reason": ""}, {"reason": 1}, {"contains": ""}),
            *({"contains": 5}, {"key": ""}, {"older_than": -1}, {"attempts": -1}, {"attempts": 1.5}, {"limit": -1}),
            *({"newest_first": 1}, {"reason": "late", "state": "ready"}),
        ],
    )
    def test_select_refuses_bad_arguments(self, filters: dict[str, object]) -> None:
        with self.expect_error(InvalidOption):
            self.tube.select(**filters)

    def test_select_suggests_a_state(self) -> None:
        with self.expect_error(InvalidOption, match="did you mean 'buried'"):
            self.tube.select("burried")

    def test_changes_refuse_bad_callbacks(self) -> None:
        async def wait(done: int) -> None: ...

        self.put()
        for callback in (5, wait):
            with self.expect_error(InvalidOption):
                self.tube.select().delete(on_progress=callback)

    def test_selection_reads_again(self) -> None:
        selection = self.tube.select("ready")
        assert list(selection) == []
        task: Task = self.put()
        assert ids(selection) == [task.id]
