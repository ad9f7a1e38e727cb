"""Tubes of a queue: creating, finding and dropping them; drivers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.bench import Bench, eventually, needs
from tubes import (
    Backoff,
    Driver,
    DriverExists,
    DriverNotFound,
    InvalidOption,
    OptionNotSupported,
    SessionNotFound,
    Task,
    TubeBusy,
    TubeExists,
    TubeNotFound,
)


class Queues(Bench):
    """Tubes."""

    def test_a_tube_is_found_by_its_name(self) -> None:
        task = self.put()
        found = self.queue.tube("contract")
        assert (found.name, found.driver) == ("contract", self.knobs)
        assert found.peek(task.id) == task

    def test_a_tube_is_seen_by_every_session(self) -> None:
        self.create("second")
        assert self.add_worker().queue.tubes() == ["contract", "second"]

    def test_tubes_are_independent_of_each_other(self) -> None:
        other = self.create("other")
        task = self.put()
        assert other.take(timeout=0) is None
        other.truncate()
        other.drop()
        assert self.state(task) == "ready"

    def test_missing_tube_is_not_found(self) -> None:
        with self.expect_error(TubeNotFound):
            self.queue.tube("nowhere")
        with self.expect_error(TubeNotFound):
            self.queue.statistics("nowhere")

    def test_duplicate_tube_name_is_refused_with_a_hint(self) -> None:
        self.put()
        ways = r'if_exists="update" .*, "keep" .*, tube.alter\(\)'
        with self.expect_error(TubeExists, match=f"tube 'contract' exists already: {ways}"):
            self.create("contract")

    def test_if_not_exists_returns_a_matching_tube(self) -> None:
        task = self.put()
        again = self.create("contract", if_not_exists=True)
        assert again.peek(task.id) == task

    def test_if_not_exists_creates_a_missing_tube(self) -> None:
        assert self.create("fresh", if_not_exists=True).take(timeout=0) is None

    def test_if_not_exists_refuses_another_driver(self) -> None:
        other = Driver("another", order="-id") if self.knobs.name == "fifo" else "fifo"
        with self.expect_error(TubeExists):
            self.queue.create_tube("contract", other, if_not_exists=True)

    @needs("ttl")
    def test_if_not_exists_refuses_other_options(self) -> None:
        self.create("short", ttl=5)
        for options, difference in (({}, "None"), ({"ttl": 6}, "6.0")):
            with pytest.raises(TubeExists, match=f"tube 'short' exists already: with ttl=5.0, not {difference}"):
                self.create("short", if_not_exists=True, **options)
        assert self.create("short", if_not_exists=True, ttl=5.0).name == "short"

    @needs("delay")
    def test_backoff_list_equals_the_same_backoff_object(self) -> None:
        self.create("resting", backoff=[60])
        assert self.create("resting", if_not_exists=True, backoff=Backoff(60, factor=1)).name == "resting"
        with pytest.raises(
            TubeExists, match=r"with backoff=\[60.0\], not \[1.0, 2.0, 4.0, 5.0\] with jitter=0.5, seed=3"
        ):
            self.create("resting", if_not_exists=True, backoff=Backoff(1, cap=5, jitter=0.5, seed=3))

    def test_temporary_tube_accepts_puts_and_takes(self) -> None:
        tube = self.create("passing", temporary=True)
        assert tube.put(1).id == self.take(tube).id

    def test_bad_tube_names_are_refused(self) -> None:
        for call in (self.create, self.queue.tube):
            assert self.refuses(call, "", "x" * 256, "a b", "{a}", "a*", "a?", "[a", "a\\b", "ä", "a\n", 7, None)
        assert self.queue.tubes() == ["contract"]

    def test_names_of_the_librarys_own_tubes_are_reserved(self) -> None:
        self.queue.admin.workers()
        reserved = ("tubes.workers", "tubes.mine", "reply." + "0" * 26)
        for call in (
            self.create,
            self.queue.tube,
            self.queue.statistics,
            self.queue.admin.check,
            self.queue.admin.repair,
        ):
            assert self.refuses(call, *reserved)
        assert self.refuses(lambda name: self.create(name, if_exists="keep"), *reserved)
        assert self.refuses(lambda name: self.create(name, if_exists="update"), *reserved)
        assert self.queue.tubes() == ["contract"]
        assert self.queue.admin.workers() == []
        for name in ("tubes", "tubes-workers", "reply.x", "reply.mail", "reply"):
            assert self.create(name).name == name

    def test_letters_digits_and_some_signs_are_valid_in_names(self) -> None:
        for name in ("a", "x" * 255, "Crawl_2.jobs-new", "0", "mails:high", "a+b/c;d$(e)", ":", "done"):
            assert self.create(name).name == name

    def test_tube_names_do_not_collide_with_parts_of_other_tubes(self) -> None:
        self.tube.drop()
        # Suffixes of the keys and channels of a tube on a server, and names of other keys there.
        ends = ("ready", "tasks", "taken", "lanes", "keys", "events", "marker", "due", "tasks:ready", ":", "")
        names = ["a", *(f"a:{end}" for end in ends), "names", "tubes:names", "session:1", "tubes:a", "a/b", "a(b)"]
        tubes = {name: self.create(name) for name in names}
        tasks = {name: self.put(name, tube=tube, key="same", key_ttl=60) for name, tube in tubes.items()}
        assert self.queue.tubes() == sorted(names)
        for name, tube in tubes.items():
            assert self.take(tube).data == name
            assert tube.take(timeout=0) is None
        assert all(not self.queue.admin.check(name) and not self.queue.admin.repair(name) for name in names)
        counts = {name: seen.statistics.tasks["taken"] for name, seen in self.queue.admin.overview().items()}
        assert counts == dict.fromkeys(names, 1)
        events: list[tuple[str, str]] = []

        def callback(task: Task, event: str) -> None:
            events.append((task.tube, event))

        for tube in tubes.values():
            tube.on_task_change(callback)
        for name, tube in tubes.items():
            tube.release(tasks[name].id)
        assert eventually(lambda: sorted(events) == sorted((name, "release") for name in names))
        while names:
            tubes.pop(names[0]).drop()
            assert self.queue.tubes() == sorted(names[1:])
            del names[0]
            assert all(tube.peek(tasks[name].id).state == "ready" for name, tube in tubes.items())

    def open_namespace(self, namespace: str) -> Any:
        """Open the queue of a namespace."""
        queue = self.queue.namespace(namespace)
        self._queues.append(queue)
        return queue

    def test_a_namespace_has_its_own_tubes_statistics_and_events(self) -> None:
        # Names that would collide if they were joined without a separator, or with a character of names as separator.
        places = [(space, name) for space in ("", "a", "a:b", "tubes", "names") for name in ("contract", "b:a", "a")]
        queues = {space: self.open_namespace(space) for space, _ in places}
        self.tube.drop()
        tubes = {place: queues[place[0]].create_tube(place[1], self.driver, **self.options) for place in places}
        events: list[tuple[tuple[str, str], str]] = []

        def callback(task: Task, event: str) -> None:
            events.append(((task.data, task.tube), event))

        for place, tube in tubes.items():
            tube.on_task_change(callback)
            self.put(place[0], tube=tube, key="same")
            assert [task.data for task in tube.select()] == [place[0]]
        assert eventually(lambda: len(events) == len(places))
        assert sorted(events) == sorted((place, "put") for place in places)
        assert self.queue.admin.namespaces() == queues["a"].admin.namespaces() == ["a", "a:b", "names", "tubes"]
        for space, queue in queues.items():
            assert queue.tubes() == list(queue.admin.overview()) == list(queue.statistics()) == ["a", "b:a", "contract"]
            assert (self.take(queue.tube("a")).data, queue.tube("a").take(timeout=0)) == (space, None)
            queue.tube("b:a").truncate()
            assert queue.admin.check("contract") == []
        for (_, name), tube in tubes.items():
            assert tube.statistics().tasks["total"] == (name != "b:a")
        for space in ("a", "names"):
            for name in queues[space].tubes():
                queues[space].tube(name).drop(force=True)
        assert self.queue.admin.namespaces() == ["a:b", "tubes"]
        assert queues["a"].tubes() == []
        assert queues[""].tubes() == ["a", "b:a", "contract"]

    def test_namespaces_share_drivers_but_not_sessions(self) -> None:
        fresh = Driver("fresh", order="-id")
        self.queue.admin.register_driver(fresh)
        team = self.open_namespace("team")
        assert team.create_tube("mail", "fresh").driver == fresh
        assert self.queue.admin.namespaces() == ["team"]
        with pytest.raises(SessionNotFound):
            team.admin.identify(self.queue.admin.identify())
        with self.expect_error(InvalidOption):
            self.queue.take_any([team.tube("mail")], timeout=0)
        other = self.open_namespace("team").namespace("other")
        self._queues.append(other)
        assert other.tubes() == []
        assert other.admin.namespaces() == ["team"]

    def test_namespaces_follow_the_rules_for_tube_names(self) -> None:
        assert self.refuses(self.queue.namespace, "x" * 256, "a b", "a@b", "{a}", "a*", "ä", "a\n", 7, None)
        for name in ("x" * 255, "a+b/c;d$(e)", ""):
            assert self.open_namespace(name).admin.namespaces() == []

    def test_create_tube_refuses_non_boolean_flags(self) -> None:
        assert self.refuses(lambda option: self.create("other", **{option: 1}), "if_not_exists", "temporary")

    def test_an_unknown_driver_is_not_found(self) -> None:
        with self.expect_error(DriverNotFound):
            self.queue.create_tube("other", "no-such-driver")
        assert self.queue.tubes() == ["contract"]

    def test_second_driver_of_the_same_name_is_refused(self) -> None:
        impostor = Driver(self.knobs.name, options={"other"}, lane="other", order="-id")
        with self.expect_error(DriverExists):
            self.queue.admin.register_driver(impostor)
        with self.expect_error(DriverExists):
            self.queue.create_tube("other", impostor)
        assert self.queue.tubes() == ["contract"]

    def test_refused_tube_does_not_register_its_driver(self) -> None:
        fresh = Driver("fresh", order="-id")
        with self.expect_error(OptionNotSupported):
            self.queue.create_tube("other", fresh, colour="red")
        with self.expect_error(TubeExists):
            self.queue.create_tube("contract", fresh)
        with self.expect_error(DriverNotFound):
            self.queue.create_tube("other", "fresh")

    def test_registering_the_same_driver_twice_is_allowed(self) -> None:
        self.queue.admin.register_driver(self.knobs)
        assert self.queue.create_tube("other", self.knobs.name).driver == self.knobs

    def test_value_that_is_not_a_driver_is_refused(self) -> None:
        assert self.refuses(lambda driver: self.queue.create_tube("other", driver), 7, None)

    def test_dropped_tube_raises_tube_not_found(self) -> None:
        task = self.put()
        worker = self.add_worker()
        self.tube.drop()
        assert self.queue.tubes() == []
        for tube in (self.tube, worker.tube):
            for call in (tube.statistics, tube.select().count, tube.drop, lambda tube=tube: tube.take(0)):
                with pytest.raises(TubeNotFound):
                    call()
        with pytest.raises(TubeNotFound):
            self.tube.peek(task.id)
        with pytest.raises(TubeNotFound):
            self.queue.tube("contract")

    def test_recreated_tube_has_nothing_of_the_dropped_one(self) -> None:
        self.put_and_bury()
        self.put()
        self.tube.drop()
        self.tube = self.create("contract")
        assert self.tube.take(timeout=0) is None
        assert (self.count("total"), self.count("put"), self.tube.select("buried", limit=9).kick()) == (0, 0, 0)

    def test_a_tube_with_taken_tasks_is_busy(self) -> None:
        task = self.put_and_take()
        with self.expect_error(TubeBusy):
            self.add_worker().tube.drop()
        self.tube.release(task)
        self.tube.drop()

    def test_a_busy_tube_can_be_dropped_by_force(self) -> None:
        task, worker = self.put_and_take(), self.add_worker()
        worker.tube.drop(force=True)
        with pytest.raises(TubeNotFound):
            self.tube.ack(task)
        assert self.queue.tubes() == []

    def test_tube_without_taken_tasks_can_be_dropped(self) -> None:
        self.tube.ack(self.put_and_take())
        self.put_and_bury()
        self.put()
        self.tube.drop()

    def test_session_end_ignores_a_dropped_tube(self) -> None:
        worker = self.add_worker()
        self.put()
        self.take(worker.tube)
        self.tube.drop(force=True)
        self.tube = self.create("contract")
        task = self.put()
        worker.queue.close()
        assert (self.state(task), self.count("release")) == ("ready", 0)
