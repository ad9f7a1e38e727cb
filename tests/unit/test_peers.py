"""The comparison with peers: processing of figures, without installed peers."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

for extra in ("matplotlib", "rich"):
    pytest.importorskip(extra, reason="needs the extra `bench`")

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

from benchmarks.peers import environments, goals, plot, servers, table  # noqa: E402
from benchmarks.peers.__main__ import main  # noqa: E402
from benchmarks.peers.inside.in_process import WAYS  # noqa: E402
from benchmarks.peers.inside.notes import Notes, payload  # noqa: E402
from benchmarks.peers.measure import Stage  # noqa: E402
from benchmarks.peers.processes import Child, PeerFailed  # noqa: E402
from benchmarks.peers.registry import REDIS, SUBJECTS, select_subjects  # noqa: E402
from benchmarks.peers.results import CPU_PUT, CPU_WORK, CYCLE, ONE, WORK, Figures, Results, Turn  # noqa: E402

PEERS = [subject for subject in SUBJECTS if subject.family != "tubes"]


def turn(**ratios: float) -> Turn:
    made = Turn()
    for measure, ratio in ratios.items():
        made.rate(measure, tasks=1000, seconds=1.0, yardstick=ratio / 1000)
    return made


def results(**figures: Figures) -> Results:
    return Results("a machine", "valkey", 1, {key.replace("_", " "): found for key, found in figures.items()})


OURS = {
    f"{name} on valkey": Figures([turn(one=0.6, work=0.3)])
    for name in (goals.CALLS, goals.LOOP, goals.AWAITED, goals.THREADED)
}


def test_every_peer_states_its_limits_and_requirements() -> None:
    for peer in PEERS:
        assert peer.lacks, peer.key
        assert peer.worker or not peer.server, peer.key
        assert peer.packages or not peer.server, peer.key


def test_every_subject_has_a_unique_name_a_module_and_a_server() -> None:
    assert len({subject.key for subject in SUBJECTS}) == len(SUBJECTS)
    for subject in SUBJECTS:
        assert find_spec(f"benchmarks.peers.inside.{subject.module}"), subject.key
        assert subject.server in {"", REDIS, *servers.STARTS}, subject.key
        assert subject.server or subject.way in WAYS, subject.key


def test_name_filter_selects_peers_and_their_tubes_counterparts() -> None:
    names = [subject.key for subject in select_subjects("celery")]
    assert "celery" in names
    assert "tubes, calls on valkey" in names
    assert "tubes, fifo" not in names
    assert "tubes, fifo" in [subject.key for subject in select_subjects("janus")]
    assert select_subjects(None) == SUBJECTS


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-k", "nosuchpeer"], "-k nosuchpeer: matches no name"),
        (["--again", __file__], "must be a file written by --json"),
        (["--json", "nowhere/figures"], "nowhere/figures: the folder nowhere does not exist"),
        (["--plot", "plot.xyz"], "must end with .png"),
    ],
)
def test_bad_arguments_are_reported_before_any_measurement(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks.peers", *words])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert message in capsys.readouterr().err


def test_figures_are_medians_of_ratios_to_the_yardstick_of_each_round() -> None:
    figures = Figures([turn(one=0.5), turn(one=0.1), turn(one=0.4)])
    assert figures.ratio(ONE) == pytest.approx(0.4)
    assert figures.rate(ONE) == 1000
    assert figures.ratio(WORK) is None
    assert Figures([Turn(latencies=[0.001] * 99), Turn(latencies=[0.5])]).latency(50) == 0.001
    assert Figures([Turn()]).latency(50) is None


def test_results_survive_a_json_round_trip() -> None:
    made = results(huey=Figures([turn(one=0.5)], {"huey": "3.5"}), rq=Figures(why="no", failures=2))
    assert Results.from_json(json.loads(json.dumps(made.as_json()))) == made


def test_lead_is_a_ratio_and_marks_missed_goals() -> None:
    made = results(huey=Figures([turn(one=0.4, work=0.05)]), beanstalkd=Figures([turn(one=0.7, work=0.4)]))
    made.figures |= OURS
    leads = {(lead.peer, lead.what): lead for lead in goals.leads(made)}
    assert leads["huey", "put"].times == pytest.approx(1.5)
    assert leads["huey", "put"].met is False
    assert leads["huey", "a loop"].met is True
    assert leads["beanstalkd", "put"].met is None
    assert leads["beanstalkd", "a loop"].met is False


def test_lead_is_the_ratio_to_the_larger_cost() -> None:
    made = results(huey=Figures([Turn(costs={"bytes": 300.0}, latencies=[0.004, 0.004])]))
    made.figures["tubes, calls on valkey"] = Figures([Turn(costs={"bytes": 150.0}, latencies=[0.001, 0.001])])
    made.figures["tubes, Worker, threads on valkey"] = Figures([Turn(latencies=[0.002, 0.002])])
    assert {lead.what: lead.times for lead in goals.leads(made)} == {"bytes": 2.0, "wake-up": 2.0}


def test_asyncio_peer_is_compared_with_asyncio_tubes() -> None:
    made = results(arq=Figures([turn(one=0.1)]))
    made.figures |= OURS
    made.figures["tubes, asyncio on valkey"] = Figures([turn(one=0.3)])
    (lead,) = (lead for lead in goals.leads(made) if lead.what == "put")
    assert lead.times == pytest.approx(3.0)


def test_a_goal_is_missed_where_tubes_itself_failed() -> None:
    made = results(huey=Figures([turn(one=0.4, work=0.05)]))
    made.figures["tubes, calls on valkey"] = Figures([turn(one=0.8)])
    met = {lead.what: lead.met for lead in goals.leads(made) if lead.goal is not None}
    assert met == {"put": True, "a loop": False, "a Worker": False}


def test_a_turn_that_failed_is_shown() -> None:
    made = results(huey=Figures([turn(one=0.4)], {"huey": "3.5"}, why="5 of 10 tasks handled", failures=1))
    assert "huey 3.5; 1 turns failed: 5 of 10 tasks handled" in table.markdown(made)


def test_in_process_goals_are_multiples_of_the_yardstick() -> None:
    made = Results("a machine", "valkey", 1, {"tubes, fifo": Figures([turn(cycle=0.5)])})
    assert list(goals.cycle_goals(made)) == [("tubes, fifo", 2.0, 1.2)]


def test_table_shows_figures_and_reasons_for_missing_ones() -> None:
    made = results(huey=Figures([turn(one=0.4, work=0.05)]), Tarantool_queue=Figures(why="tarantool is not installed"))
    made.figures |= OURS
    page = table.markdown(made)
    assert "| huey | 0.40 · 1,000 |" in page
    assert "| huey | 1.50 < 2 |" in page
    assert "| Tarantool queue | not measured |" in page
    assert "not measured: tarantool is not installed" in page


def test_write_readme_keeps_the_text_around_the_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "README.md"
    page.write_text("before\n<!-- peers -->\nold\n<!-- end of peers -->\nafter\n")
    monkeypatch.setattr(table, "_README", page)
    table.write_readme(results(huey=Figures([turn(one=0.4)])))
    text = page.read_text()
    assert text.startswith("before\n<!-- peers -->\n")
    assert text.endswith("<!-- end of peers -->\nafter\n")
    assert "old" not in text
    assert "huey" in text


def test_readme_contains_the_table_marks() -> None:
    page = (Path(table.__file__).parent / "README.md").read_text()
    assert page.count("<!-- peers -->\n") == page.count("<!-- end of peers -->\n") == 1


@pytest.mark.full
def test_plot_sorts_bars_and_uses_the_server_of_the_peers(tmp_path: Path) -> None:
    made = results(huey=Figures([turn(one=0.4)]), beanstalkd=Figures([turn(one=0.7)]))
    made.figures |= OURS | {"tubes, calls on redis": Figures([turn(one=9.0)])}
    [(_, puts), *_] = plot.panels(made)
    assert [name for name, _, _ in puts][:1] == ["beanstalkd"]
    assert max(length for _, length, _ in puts) < 1
    plot.draw(made, tmp_path / "peers.png")
    assert (tmp_path / "peers.png").read_bytes().startswith(b"\x89PNG")


def test_notes_count_tasks_and_latencies_of_several_processes(tmp_path: Path) -> None:
    one, other = Notes(tmp_path / "notes"), Notes(tmp_path / "notes")
    assert len(payload()) == len(payload(12345)) == 100
    one.add(payload())
    other.add(payload(1))
    assert one.count == other.count == 2
    assert one.seconds > 0
    assert len(one.latencies) == 1
    assert one.latencies[0] > 1


def test_error_of_an_ended_peer_contains_its_last_output(tmp_path: Path) -> None:
    python = environments.python_of(())
    with (
        Child(python, "nobody", "produce", {}, tmp_path / "log") as child,
        pytest.raises(PeerFailed, match=r"No module named .*nobody"),
    ):
        child.ask("one 1")


def test_missing_server_program_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(servers.NotInstalled, match="beanstalkd is not installed"):
        servers.Beanstalkd()
    with pytest.raises(servers.NotInstalled, match="tarantool is not installed"):
        servers.Tarantool()


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_turn_measures_tubes_itself() -> None:
    calls, fifo = (subject for subject in SUBJECTS if subject.key in ("tubes, calls on valkey", "tubes, fifo"))
    with Stage("valkey", share=0.02) as stage:
        on_server, _ = stage.turn(calls)
        in_process, _ = stage.turn(fifo)
    assert set(on_server.rates) == {"one", "batches", "work"}
    assert set(on_server.costs) == {"bytes", "cpu of a put", "cpu of work"}
    assert min(*on_server.ratios.values(), on_server.costs[CPU_PUT], on_server.costs[CPU_WORK]) > 0
    assert set(in_process.ratios) == {CYCLE}
