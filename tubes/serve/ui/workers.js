// Workers, schedules, and the audit of changes.

import { ago, call, count, html, path, setQuery, shown, span, now, useLive } from "./lib.js";
import { Badge, Empty, Link, Table, Time, Waiting } from "./parts.js";

const WORKERS = [
  { title: "Worker" },
  { title: "Runs since" },
  { title: "Handlers" },
  { title: "In hand", kind: "number" },
  { title: "Acked", kind: "number" },
  { title: "Released", kind: "number" },
  { title: "Buried", kind: "number" },
  { title: "Lost", kind: "number" },
  { title: "Holds" },
];
const MOST_HELD = 5;

export function Workers({ namespace }) {
  const state = useLive((signal) => call("GET", path([namespace, "workers"]), undefined, { signal }), [namespace]);
  return html`<div class="head"><h1>Workers</h1></div><${Waiting} state=${state}>${({ workers }) =>
    workers.length
      ? html`<${Table} caption="Workers" columns=${WORKERS} rows=${workers.map((worker) => html`<${Worker} key=${worker.id} namespace=${namespace} worker=${worker} />`)} />`
      : html`<${Empty}>No worker runs. A worker reports itself when it starts; programs that only call take do not.<//>`}<//>`;
}

function Worker({ namespace, worker }) {
  const slots = worker.handlers.reduce((sum, handler) => sum + handler.concurrency, 0);
  return html`<tr><th scope="row"><bdi>${shown(worker.host, 60)}</bdi> <span class="muted">process ${worker.pid}</span> ${worker.stopping && html`<${Badge} kind="warn">stopping<//>`}</th>
    <td><${Time} at=${worker.started} text=${ago(worker.started)} /></td>
    <td>${worker.handlers.map((handler) => html`<div><bdi>${shown(handler.name, 60)}</bdi> <span class="muted">${handler.tubes.map((name, index) => html`${index ? ", " : "takes "}<${Link} to=${[namespace, "tubes", name]}><bdi>${shown(name, 60)}</bdi><//>`)}</span></div>`)}</td>
    <td class="number">${count(worker.in_hand)} of ${count(slots)}</td><td class="number">${count(worker.acked)}</td><td class="number">${count(worker.released)}</td>
    <td class="number">${count(worker.buried)}</td><td class="number">${count(worker.lost)}</td>
    <td>${worker.tasks.slice(0, MOST_HELD).map((held) => html`<div><${Link} to=${[namespace, "tubes", held.tube, "tasks", String(held.id)]}><bdi>${shown(held.tube, 40)}</bdi> ${held.id}<//> for ${span(Math.max(now() - held.since, 0))}
      ${held.progress !== null && held.progress !== undefined && html` <progress max="1" value=${held.progress} aria-label="progress"></progress>`} <span class="muted"><bdi>${shown(held.note ?? "", 80)}</bdi></span></div>`)}
      ${worker.in_hand > MOST_HELD && html`<span class="muted">and ${count(worker.in_hand - MOST_HELD)} more</span>`}</td></tr>`;
}

const SCHEDULES = [{ title: "Function" }, { title: "Tube" }, { title: "Schedule" }, { title: "Next run" }, { title: "Last run" }, { title: "Last result" }, { title: "Workers", kind: "number" }];
const RESULTS = { acked: "ready", released: "taken", buried: "buried", lost: "buried" };

export function Schedules({ namespace }) {
  const state = useLive((signal) => call("GET", path([namespace, "schedules"]), undefined, { signal }), [namespace]);
  return html`<div class="head"><h1>Schedules</h1></div><${Waiting} state=${state}>${({ schedules }) =>
    schedules.length
      ? html`<${Table} caption="Schedules" columns=${SCHEDULES} rows=${schedules.map((each) => html`<tr key=${each.tube + " " + each.name}>
          <th scope="row"><bdi>${shown(each.name, 80)}</bdi></th><td><${Link} to=${[namespace, "tubes", each.tube]}><bdi>${shown(each.tube, 60)}</bdi><//></td>
          <td><code>${shown(each.schedule, 80)}</code></td><td><${Time} at=${each.next} text=${ago(each.next)} /></td><td><${Time} at=${each.last} text=${ago(each.last)} /></td>
          <td>${each.last_result ? html`<${Badge} kind=${RESULTS[each.last_result] || ""}>${each.last_result}<//>` : "–"}</td><td class="number">${count(each.workers)}</td></tr>`)} />`
      : html`<${Empty}>No running worker has a schedule.<//>`}<//>`;
}

const CHANGES = [{ title: "When" }, { title: "Who" }, { title: "What" }, { title: "Where" }, { title: "How" }, { title: "Tasks", kind: "number" }];
const PAGE = 100;

export function Audit({ namespace, query }) {
  const before = query.before || "";
  const state = useLive((signal) => call("GET", path([namespace, "audit"], { limit: PAGE, before }), undefined, { signal }), [namespace, before]);
  return html`<div class="head"><h1>Audit</h1><p class="muted">Changes through this service, newest first.</p></div>
    <${Waiting} state=${state}>${({ changes }) =>
      changes.length
        ? html`<${Table} caption="Changes" columns=${CHANGES} rows=${changes.map((change) => html`<tr key=${change.id}>
            <td><${Time} at=${change.at} text=${ago(change.at)} /></td>
            <td><bdi>${change.token ? shown(change.description || change.token, 80) : "everybody"}</bdi> ${change.token && change.description && html`<span class="muted">${shown(change.token, 40)}</span>`}</td>
            <td>${shown(change.action.replaceAll("_", " "), 60)}</td>
            <td>${change.tube && html`<${Link} to=${[namespace, "tubes", change.tube]}><bdi>${shown(change.tube, 60)}</bdi><//>`}
              ${change.task !== null && change.task !== undefined && html` task ${change.task}`}${change.lane && html` lane <bdi>${shown(change.lane, 60)}</bdi>`}</td>
            <td class="data"><code><bdi>${change.arguments && Object.keys(change.arguments).length ? shown(JSON.stringify(change.arguments), 200) : ""}</bdi></code></td>
            <td class="number">${change.count === null || change.count === undefined ? "" : count(change.count)}</td></tr>`)} />
          <nav class="pager" aria-label="Pages"><button type="button" disabled=${!before} onClick=${() => setQuery({ before: "" })}>Newest</button>
          <button type="button" disabled=${changes.length < PAGE} onClick=${() => setQuery({ before: changes[changes.length - 1].id })}>Older</button></nav>`
        : html`<${Empty}>${before ? "There are no older changes." : "Nobody has changed anything through this service yet."}<//>`}<//>`;
}
