"""Each action of the page has its effect in the tube."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable

from playwright.sync_api import Page, Route, expect

from tests.contract.bench import eventually
from tests.dashboard.conftest import Dashboard
from tests.support.served import Served, add_stray_key
from tubes.testing import LocalServer


def submit(page: Page, button: str, **fields: str) -> None:
    """Fill in the open dialog, send it, and wait until it is closed."""
    dialog = page.get_by_role("dialog")
    for label, text in fields.items():
        dialog.get_by_label(label.replace("_", " "), exact=False).fill(text)
    dialog.get_by_role("button", name=button, exact=True).click()
    expect(dialog).to_have_count(0)


def test_tube_is_created_paused_resumed_and_altered(dashboard: Dashboard) -> None:
    page = dashboard.open("tubes")
    page.get_by_role("button", name="Create a tube").click()
    submit(page, "Create", Name="jobs", Options='{"ttr": 9}')
    page.get_by_role("link", name="jobs").click()
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("heading", name="Pause jobs")).to_be_visible()
    submit(page, "Pause", Seconds="600")
    expect(page.locator("h1")).to_contain_text("paused")
    page.get_by_role("button", name="Resume").click()
    expect(page.locator("h1")).not_to_contain_text("paused")
    page.get_by_role("button", name="Options").click()
    submit(page, "Change", Options='{"max_attempts": 4}')
    assert eventually(lambda: dashboard.api("GET", "/tubes/jobs")["options"] == {"max_attempts": 4})


def test_damaged_tube_is_repaired_after_a_check(
    make_dashboard: Callable[..., Dashboard], valkey_service: Served, valkey: LocalServer
) -> None:
    dashboard = make_dashboard(valkey_service.url)
    dashboard.tube("mail", tasks=1)
    page = dashboard.open("tubes", "mail")

    def check() -> None:
        page.get_by_role("button", name="More").click()
        page.get_by_role("button", name="Check").click()

    check()
    expect(page.get_by_role("status").filter(has_text="no problems")).to_be_visible()
    add_stray_key(valkey, dashboard.namespace)
    check()
    expect(page.get_by_role("dialog")).to_contain_text("do not refer to their tasks: nobody; a repair corrects them")
    submit(page, "Repair")
    expect(page.get_by_role("status").filter(has_text="is repaired")).to_be_visible()
    assert dashboard.api("GET", "/tubes/mail/problems") == {"problems": []}


def test_task_is_put_edited_buried_kicked_and_deleted(dashboard: Dashboard) -> None:
    path = dashboard.tube("mail")
    page = dashboard.open("tubes", "mail")
    page.get_by_role("button", name="Put a task").click()
    submit(page, "Put", Data='{"id": 12345678901234567890}', Priority="2")
    assert dashboard.http.get(f"{path}/tasks/0").text.count("12345678901234567890") == 1
    page = dashboard.open("tubes", "mail", "tasks", 0)
    page.get_by_role("button", name="Edit").click()
    submit(page, "Change", Data='{"to": "bob"}', Priority="5")
    expect(page.locator("pre")).to_contain_text("bob")
    assert (dashboard.api("GET", f"{path}/tasks/0")["pri"], dashboard.api("GET", f"{path}/tasks/0")["data"]) == (
        5,
        {"to": "bob"},
    )
    page.get_by_role("button", name="Bury").click()
    submit(page, "Bury", Reason="by hand")
    expect(page.locator("dl.facts")).to_contain_text("by hand")
    page.get_by_role("button", name="Kick").click()
    expect(page.locator("h2")).to_contain_text("ready")
    page.get_by_role("button", name="Put again").click()
    submit(page, "Put")
    assert dashboard.counts()["ready"] == 2
    page.get_by_role("button", name="Cancel").click()
    submit(page, "Cancel the task", Reason="not needed")
    expect(page.get_by_role("alert")).to_contain_text("there is no task 0")
    page = dashboard.open("tubes", "mail", "tasks", 1)
    page.get_by_role("button", name="Delete").click()
    submit(page, "Delete")
    expect(page.get_by_text("No task passes the filters.")).to_be_visible()
    assert dashboard.counts()["total"] == 0


def test_numbers_in_data_survive_an_edit(dashboard: Dashboard) -> None:
    path = dashboard.tube("mail")
    dashboard.http.post(f"{path}/tasks/raw", content=b'{"a":1.0,"b":12345678901234567890,"c":2}')
    page = dashboard.open("tubes", "mail", "tasks", 0)
    page.get_by_role("button", name="Edit").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Data").fill(dialog.get_by_label("Data").input_value().replace('"c": 2', '"c": 3'))
    submit(page, "Change")
    expect(page.locator("pre")).to_contain_text('"c": 3')
    assert '"a":1.0,"b":12345678901234567890,"c":3' in dashboard.http.get(f"{path}/tasks/0").text


def test_tube_that_exists_keeps_its_options(dashboard: Dashboard) -> None:
    dashboard.tube("mail", max_attempts=3)
    page = dashboard.open("tubes")
    page.get_by_role("button", name="Create a tube").click()
    page.get_by_role("dialog").get_by_label("Name").fill("mail")
    page.get_by_role("dialog").get_by_role("button", name="Create").click()
    expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("A tube with this name already exists.")
    assert dashboard.api("GET", "/tubes/mail")["options"]["max_attempts"] == 3


def test_invalid_name_of_a_tube_shows_the_rule(dashboard: Dashboard) -> None:
    page = dashboard.open("tubes")
    page.get_by_role("button", name="Create a tube").click()
    page.get_by_role("dialog").get_by_label("Name").fill("my tube")
    page.get_by_role("dialog").get_by_role("button", name="Create").click()
    expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("must be 1 to 255 characters")


def test_options_that_are_not_an_object_change_nothing(dashboard: Dashboard) -> None:
    dashboard.tube("mail", max_attempts=3)
    page = dashboard.open("tubes", "mail")
    page.get_by_role("button", name="Options").click()
    dialog = page.get_by_role("dialog")
    for text in ("null", "5", "[]", ""):
        dialog.get_by_label("Options").fill(text)
        dialog.get_by_role("button", name="Change").click()
        expect(dialog.get_by_role("alert")).to_contain_text("must be an object")
    dialog.get_by_label("Options").fill('{"ttr": 120, "max_attempts": 3}')
    dialog.get_by_role("button", name="Change").click()
    expect(dialog.get_by_role("alert")).to_contain_text("There are no changes.")
    assert dashboard.api("GET", "/tubes/mail")["options"] == {"ttr": 120, "max_attempts": 3}


def test_changed_filter_ends_the_choice_of_everything(dashboard: Dashboard) -> None:
    dashboard.tube("mail", tasks=3)
    page = dashboard.open("tubes", "mail", "tasks")
    choice = page.get_by_label("Change")
    choice.select_option("everything that matches")
    page.get_by_label("State").select_option("ready")
    expect(choice).to_have_value("")
    choice.select_option("everything that matches")
    page.get_by_label("Select task 1").check()
    expect(choice).to_have_value("")


def test_actions_without_an_effect_on_a_state_are_disabled(dashboard: Dashboard) -> None:
    path = dashboard.tube("mail", tasks=1)
    dashboard.api("POST", f"{path}/tasks/0/bury", {})
    page = dashboard.open("tubes", "mail", "tasks", query="?state=buried")
    page.get_by_label("Select task 0").check()
    buttons = page.get_by_role("group", name="Actions").get_by_role("button")
    enabled = [each.inner_text() for each in buttons.all() if each.is_enabled()]
    assert enabled == ["Kick", "Cancel tasks", "Move", "Delete"]


def test_text_that_is_not_json_is_edited_as_text(dashboard: Dashboard) -> None:
    path = dashboard.tube("mail")
    dashboard.http.post(f"{path}/tasks/raw", content="grüß".encode())
    page = dashboard.open("tubes", "mail", "tasks", 0)
    page.get_by_role("button", name="Edit").click()
    submit(page, "Change", Data="grün")
    expect(page.locator("pre")).to_contain_text("grün")


def test_carriage_returns_survive_an_edit(dashboard: Dashboard) -> None:
    path = dashboard.tube("mail")
    dashboard.http.post(f"{path}/tasks/raw", content=b"one\r\ntwo\rthree\n")
    page = dashboard.open("tubes", "mail", "tasks", 0)
    page.get_by_role("button", name="Edit").click()
    data = page.get_by_role("dialog").get_by_label("Data, as a JSON string")
    data.fill(data.input_value().replace("two", "2"))
    submit(page, "Change")
    expect(page.locator("pre")).to_contain_text("2")
    task = dashboard.api("GET", f"{path}/tasks/0")
    assert b64decode(task["data_base64"]) == b"one\r\n2\rthree\n"


def test_only_selected_tasks_are_changed(dashboard: Dashboard) -> None:
    dashboard.tube("mail", tasks=4)
    page = dashboard.open("tubes", "mail", "tasks")
    for id in (1, 2):
        page.get_by_label(f"Select task {id}").check()
    page.get_by_role("group", name="Actions").get_by_role("button", name="Bury").click()
    expect(page.get_by_role("dialog")).to_contain_text("Bury: 2 tasks")
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    page.get_by_role("group", name="Actions").get_by_role("button", name="Bury").click()
    submit(page, "Bury", Reason="bad")
    expect(page.get_by_role("status").get_by_text("2 tasks buried.")).to_be_visible()
    expect(page.get_by_label("Select task 1")).not_to_be_checked()
    assert [task["state"] for task in dashboard.api("GET", "/tubes/mail/tasks")["tasks"]] == [
        "ready",
        "buried",
        "buried",
        "ready",
    ]


def test_selected_task_that_is_deleted_meanwhile_is_not_counted(dashboard: Dashboard) -> None:
    path = dashboard.tube("mail", tasks=2)
    page = dashboard.open("tubes", "mail", "tasks")
    page.get_by_label("all 2 on this page").check()
    dashboard.api("DELETE", f"{path}/tasks/0")
    page.get_by_role("group", name="Actions").get_by_role("button", name="Kick").click()
    expect(page.get_by_role("heading", name="Kick: 1 task")).to_be_visible()


def test_forms_have_only_the_options_of_the_driver(dashboard: Dashboard) -> None:
    for name, driver, labels in (
        ("plain", "fifo", ["Data, as JSON", "Key"]),
        ("lanes", "utube", ["Data, as JSON", "Lane", "Key"]),
    ):
        dashboard.tube(name, driver, tasks=1)
        page = dashboard.open("tubes", name)
        page.get_by_role("button", name="Put a task").click()
        expect(page.get_by_role("dialog").locator("label")).to_have_text([re.compile(label) for label in labels])
        page.keyboard.press("Escape")
        page = dashboard.open("tubes", name, "tasks", 0)
        page.get_by_role("button", name="Edit").click()
        expect(page.get_by_role("dialog").locator("label")).to_have_text(re.compile("Data, as JSON"))
        page.keyboard.press("Escape")


def test_filter_counts_as_soon_as_its_input_is_left(dashboard: Dashboard) -> None:
    dashboard.tube("mail", tasks=12)
    page = dashboard.open("tubes", "mail", "tasks")
    # The page never sees a pause of the user.
    page.evaluate("""() => {
        const wait = window.setTimeout;
        window.setTimeout = (run, pause, ...rest) => pause === 400 ? 0 : wait(run, pause, ...rest);
    }""")
    page.get_by_label("Change").select_option("everything that matches")
    page.get_by_label("Data contains").fill('"n":1')
    bury = page.get_by_role("group", name="Actions").get_by_role("button", name="Bury")
    bury.click()
    expect(bury).to_be_disabled()  # The new filter ends the choice of everything.
    expect(page.locator("tbody tr")).to_have_count(3)
    page.get_by_label("Data contains").fill('"n":11')
    page.get_by_label("Change").focus()
    page.get_by_label("Change").select_option("everything that matches")
    bury.click()
    expect(page.get_by_role("heading", name="Bury: 1 task")).to_be_visible()


def test_everything_that_matches_is_changed_with_a_preview(dashboard: Dashboard) -> None:
    dashboard.tube("dead")
    dashboard.tube("mail", tasks=600)
    page = dashboard.open("tubes", "mail", "tasks", query="?contains=%22n%22%3A1")
    page.get_by_label("Change").select_option("everything that matches")
    page.get_by_role("group", name="Actions").get_by_role("button", name="Move").click()
    expect(page.get_by_role("heading", name="Move: 111 tasks")).to_be_visible()
    submit(page, "Move", To_the_tube="dead")
    assert (dashboard.counts()["ready"], dashboard.counts("dead")["ready"]) == (489, 111)


def test_error_of_an_action_stays_in_its_dialog(dashboard: Dashboard) -> None:
    dashboard.tube("mail", tasks=2)
    page = dashboard.open("tubes", "mail", "tasks")
    page.get_by_label("Select task 0").check()
    page.get_by_role("group", name="Actions").get_by_role("button", name="Move").click()
    page.get_by_role("dialog").get_by_label("To the tube").fill("mail")
    page.get_by_role("dialog").get_by_role("button", name="Move").click()
    expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("must be another tube")


def test_long_work_shows_its_progress(dashboard: Dashboard) -> None:
    path = dashboard.tube("mail")
    for _ in range(20):
        dashboard.api("POST", f"{path}/tasks/batch", {"items": [{"data": 1, "delay": 600}] * 1000})
    page = dashboard.open("tubes", "mail")
    page.get_by_role("button", name="More…").click()
    page.get_by_role("button", name="Kick delayed tasks").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Kick: 20,000 tasks")
    dialog.get_by_role("button", name="Kick").click()
    expect(page.get_by_text("20,000 tasks kicked.")).to_be_visible()
    assert dashboard.counts()["ready"] == 20_000


def test_running_work_can_be_stopped(dashboard: Dashboard) -> None:
    dashboard.tube("mail", tasks=2)
    page = dashboard.open("tubes", "mail", "tasks")
    page.get_by_label("Change").select_option("everything that matches")
    page.get_by_role("group", name="Actions").get_by_role("button", name="Delete").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Delete: 2 tasks")
    expect(dialog.get_by_role("button", name="Delete")).to_be_disabled()
    dialog.get_by_label("to confirm").fill("mail")
    page.route("**/select", lambda route: None)  # The service does not reply yet.
    dialog.get_by_role("button", name="Delete").click()
    expect(dialog.get_by_role("progressbar")).to_be_visible()
    dialog.get_by_role("button", name="Stop").click()
    expect(dialog).to_have_count(0)
    expect(page.get_by_role("status").last).to_contain_text("Stopped: a change may have been made.")


def test_late_reply_to_a_stopped_change_touches_nothing(dashboard: Dashboard) -> None:
    dashboard.tube("mail")
    page = dashboard.open("tubes")
    page.get_by_role("link", name="mail").click()
    waiting: list[Route] = []
    page.route(re.compile("force=1"), lambda route: waiting.append(route))
    page.get_by_role("button", name="More…").click()
    page.get_by_role("button", name="Drop", exact=True).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("to confirm").fill("mail")
    dialog.get_by_role("button", name="Drop the tube").click()
    dialog.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("status").last).to_contain_text("a change may have been made")
    page.get_by_role("button", name="Put a task").click()
    dialog.get_by_label("Data").fill("[1")
    waiting[0].fulfill(status=204)
    page.wait_for_timeout(300)
    expect(dialog.get_by_label("Data")).to_have_value("[1")
    assert page.url.endswith("/tubes/mail")
    page.go_back()
    expect(page.get_by_role("heading", name="Tubes")).to_be_visible()
    expect(dialog).to_have_count(0)


def test_truncate_and_drop_need_the_name_of_the_tube(dashboard: Dashboard) -> None:
    path = dashboard.tube("mail", tasks=3, keep_done=60)
    dashboard.api("DELETE", f"{path}/tasks/2")
    assert dashboard.counts()["total"] == 2
    page = dashboard.open("tubes", "mail")
    for word, button in (("Truncate", "Delete all tasks"), ("Drop", "Drop the tube")):
        page.get_by_role("button", name="More…").click()
        page.get_by_role("button", name=word, exact=True).click()
        dialog = page.get_by_role("dialog")
        expect(dialog.get_by_role("button", name=button)).to_be_disabled()
        dialog.get_by_label("to confirm").fill("mai")
        expect(dialog.get_by_role("button", name=button)).to_be_disabled()
        dialog.get_by_label("to confirm").fill("mail")
        if word == "Truncate":
            expect(dialog).to_contain_text("All 3 tasks")
        dialog.get_by_role("button", name=button).click()
        expect(dialog).to_have_count(0)
        if word == "Truncate":
            assert eventually(lambda: dashboard.counts()["total"] == 0)
    expect(page.get_by_role("heading", name="Tubes")).to_be_visible()
    assert dashboard.http.get("/tubes/mail").status_code == 404


def test_dead_letters_of_one_reason_are_kicked(dashboard: Dashboard) -> None:
    path = dashboard.tube("mail", tasks=4)
    for id, reason in enumerate(("full", "full", "bad")):
        dashboard.api("POST", f"{path}/tasks/{id}/bury", {"reason": reason})
    page = dashboard.open("tubes", "mail", "dead")
    full = page.locator("tbody tr", has_text="full")
    full.get_by_role("button", name="Kick one").click()
    assert eventually(lambda: dashboard.counts()["buried"] == 2)
    full.get_by_role("button", name="Kick", exact=True).click()
    submit(page, "Kick")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.locator("tbody tr", has_text="bad").get_by_role("button", name="Delete").click()
    submit(page, "Delete")
    expect(page.get_by_text("No task is buried.")).to_be_visible()
    assert dashboard.counts()["ready"] == 3


def test_dead_letters_without_a_reason_are_kicked(dashboard: Dashboard) -> None:
    path = dashboard.tube("mail", tasks=4)
    for id, body in enumerate(({}, {"reason": "none"}, {"reason": ": y"}, {"reason": "bad"})):
        dashboard.api("POST", f"{path}/tasks/{id}/bury", body)
    page = dashboard.open("tubes", "mail", "dead")
    page.get_by_role("link", name="without a reason").click()
    expect(page.locator("tbody tr")).to_have_count(3)
    page = dashboard.open("tubes", "mail", "dead")
    none = page.locator("tbody tr", has_text="without a reason")
    expect(none.locator("td.number")).to_contain_text("3")
    none.get_by_role("button", name="Kick", exact=True).click()
    expect(page.get_by_role("dialog")).to_contain_text("Kick: 3 tasks")
    submit(page, "Kick")
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.locator("tbody tr")).to_contain_text("bad")


def test_lane_is_blocked_unblocked_and_limited(dashboard: Dashboard) -> None:
    path = dashboard.tube("crawl", "utubettl")
    dashboard.api("POST", f"{path}/tasks", {"data": "/", "utube": "a/b c"})
    page = dashboard.open("tubes", "crawl", "lanes")
    row = page.locator("tbody tr", has_text="a/b c")
    row.get_by_role("button", name="Block").click()
    submit(page, "Block", Seconds="60", Reason="429")
    expect(row).to_contain_text("blocked")
    expect(row).to_contain_text("429")
    row.get_by_role("button", name="Unblock").click()
    expect(row).to_contain_text("can start")
    row.get_by_role("button", name="Limits").click()
    submit(page, "Change", Tasks_in_flight="3", Rate="30/min")
    expect(row).to_contain_text("3 in flight, every 2 s")
    row.get_by_role("button", name="Limits").click()
    page.get_by_label("Use the limits of the tube again").check()
    submit(page, "Change")
    expect(row).not_to_contain_text("in flight, every")


def test_actions_without_an_effect_say_so(dashboard: Dashboard) -> None:
    path = dashboard.tube("crawl", "utubettl")
    dashboard.api("POST", f"{path}/tasks", {"data": 1, "utube": "a", "key": "k", "pri": 5})
    page = dashboard.open("tubes", "crawl")
    page.get_by_role("button", name="Put a task").click()
    submit(page, "Put", Data="2", Key="k")
    expect(page.get_by_role("status").filter(has_text="a task has this key")).to_be_visible()
    page.get_by_role("button", name="Pause").click()
    submit(page, "Pause", Seconds="0")
    expect(page.get_by_role("status").filter(has_text="the pause has 0 seconds")).to_be_visible()
    page = dashboard.open("tubes", "crawl", "lanes")
    page.get_by_role("button", name="Block", exact=True).click()
    submit(page, "Block", Seconds="0")
    expect(page.get_by_role("status").filter(has_text="0 seconds block nothing")).to_be_visible()
    page.get_by_role("button", name="Limits").click()
    page.get_by_role("dialog").get_by_role("button", name="Change").click()
    expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("There are no changes.")
    page.keyboard.press("Escape")
    page = dashboard.open("tubes", "crawl", "tasks", 0)
    page.get_by_role("button", name="Edit").click()
    page.get_by_role("dialog").get_by_label("Priority").fill("")
    page.get_by_role("dialog").get_by_role("button", name="Change").click()
    expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("There are no changes.")


def test_audit_names_the_changes_newest_first(dashboard: Dashboard) -> None:
    dashboard.tube("mail", tasks=2)
    dashboard.api("POST", "/tubes/mail/select", {"action": "bury", "with": {"reason": "bad"}})
    page = dashboard.open("audit")
    rows = page.locator("tbody tr")
    expect(rows.first).to_contain_text("select")
    expect(rows.first.locator("td").last).to_have_text("2")
    expect(rows.last).to_contain_text("put tube")
