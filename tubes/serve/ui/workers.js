// Workers, schedules, and the audit of changes.

import { call, count, html, now, own, path, printable, setQuery, span, useGet } from "./lib.js";
import { Badge, Button, callAndNotify, Empty, Link, Loaded, Pager, Progress, Table, Text, Time, TubeLink } from "./parts.js";

// Show a table of the rows, or a text if there are none.
const list = (state, member, caption, columns, row, nothing) => html`<${Loaded} state=${state}>${(data) =>
  data[member].length
    ? html`<${Table} caption=${caption} columns=${columns} rows=${data[member].map(row)} />`
    : html`<${Empty}>${nothing}<//>`}<//>`;

const WORKERS = [
  ["Worker"], ["Started"], ["Handlers"], ["In hand", "number"], ["Acked", "number"], ["Released", "number"],
  ["Buried", "number"], ["Lost", "number"], ["Holds"],
];
const MAX_HELD = 5;

export function Workers({ namespace }) {
  const state = useGet([namespace, "workers"]);
  const row = (worker) => html`<${Worker} key=${worker.id} namespace=${namespace} worker=${worker} />`;
  const nothing = "No worker is running. Only workers appear here, not programs that call take.";
  const unknown = state.data?.unknown ?? [];
  return html`<div class="head"><h1>Workers</h1></div>
    ${unknown.map(({ tube, name }) => html`<p><${Badge} kind="warn">unknown<//> No running worker has the function
      ${" "}<strong><${Text} of=${name} limit=${80} /></strong>, which tasks of ${" "}<${TubeLink} namespace=${namespace} name=${tube} />${" "}
      call.</p>`)}
    ${list(state, "workers", "Workers", WORKERS, row, nothing)}`;
}

function Worker({ namespace, worker }) {
  const numbers = (isShared) => worker.handlers.filter((one) => one.is_shared === isShared).map((one) => one.concurrency);
  const slots = numbers(false).reduce((sum, number) => sum + number, 0) + Math.max(0, ...numbers(true));
  const handler = ({ name, tubes, functions }) => html`<div>
    <${Text} of=${functions.length ? functions.join(", ") : name} limit=${200} /><span class="muted"> takes
    ${tubes.map((tube, index) => html`${index ? ", " : " "}<${TubeLink} namespace=${namespace} name=${tube} />`)}</span></div>`;
  const held = ({ tube, id, since, progress, note, function: called }) => html`<div>
    <${Link} to=${[namespace, "tubes", tube, "tasks", String(id)]}><${Text} of=${tube} limit=${40} /> ${id}<//>${" "}
    ${called != null && html`<${Text} of=${called} limit=${60} />${" "}`}for ${span(Math.max(now() - since, 0))}<${Progress} of=${progress} />
    <span class="muted"> <${Text} of=${note} limit=${80} /></span></div>`;
  const listed = worker.tasks.slice(0, MAX_HELD);
  const more = worker.in_hand - listed.length;
  return html`<tr><th scope="row"><${Text} of=${worker.host} limit=${60} /> <span class="muted">process ${worker.pid}</span>
      ${worker.stopping && html`<${Badge} kind="warn">stopping<//>`}</th>
    <td><${Time} at=${worker.started} /></td><td>${worker.handlers.map(handler)}</td>
    <td class="number">${count(worker.in_hand)} of ${count(slots)}</td>
    ${["acked", "released", "buried", "lost"].map((name) => html`<td class="number">${count(worker[name])}</td>`)}
    <td>${listed.map(held)}${more > 0 && html`<span class="muted">and ${count(more)} more</span>`}</td></tr>`;
}

const SCHEDULES = [
  ["Function"], ["Tube"], ["Schedule"], ["Next run"], ["Last run"], ["Last result"], ["Workers", "number"], [""],
];
const RESULTS = { acked: "done", released: "taken", buried: "buried", lost: "buried", cancelled: "taken" };

// Call the function of a schedule at once. In a tube with lanes its calls have a lane of their own.
async function runNow(namespace, { tube, name }) {
  const at = [namespace, "tubes", tube];
  const { task_options } = await call("GET", path(at)).catch(() => ({})); // The next call reports the error.
  const lane = task_options?.includes("utube") ? { utube: name } : {};
  await callAndNotify(`A call of ${printable(name, 80)} is put.`, "POST", path([...at, "tasks"]), { data: { task: name }, ...lane });
}

export function Schedules({ namespace }) {
  const state = useGet([namespace, "schedules"]);
  const row = (each) => html`<tr key=${`${each.tube} ${each.name}`}>
    <th scope="row"><${Text} of=${each.name} limit=${80} /></th><td><${TubeLink} namespace=${namespace} name=${each.tube} /></td>
    <td><code>${printable(each.schedule, 80)}</code></td>
    <td><${Time} at=${each.next} text=${each.next <= now() ? "now" : undefined} /></td><td><${Time} at=${each.last} /></td>
    <td>${each.last_result && html`<${Badge} kind=${own(RESULTS, each.last_result)}>${printable(each.last_result, 20)}<//>`}</td>
    <td class="number">${count(each.workers)}</td>
    <td><${Button} onClick=${() => runNow(namespace, each)}>Run now<//></td></tr>`;
  return html`<div class="head"><h1>Schedules</h1></div>
    ${list(state, "schedules", "Schedules", SCHEDULES, row, "No running worker has a schedule.")}`;
}

const CHANGES = [["When"], ["Who"], ["What"], ["Where"], ["How"], ["Tasks", "number"]];
const PAGE = 100;

export function Audit({ namespace, query }) {
  const before = query.before || "";
  const state = useGet([namespace, "audit"], { limit: PAGE, before });
  const changes = state.data?.changes ?? [];
  const row = (change) => html`<tr key=${change.id}><td><${Time} at=${change.at} /></td>
    <td><${Text} of=${change.token ? change.description || change.token : "no token"} limit=${80} /></td>
    <td>${printable(change.action.replaceAll("_", " "), 60)}
      ${change.outcome && html`<${Badge} kind="warn">${printable(change.outcome, 20)}<//>`}</td>
    <td>${change.tube && html`<${TubeLink} namespace=${namespace} name=${change.tube} />`}
      ${change.task != null && ` task ${change.task}`}
      ${change.lane != null && html` lane <${Text} of=${change.lane} limit=${60} />`}</td>
    <td class="data"><code><${Text} of=${change.arguments && JSON.stringify(change.arguments)} /></code></td>
    <td class="number">${change.count == null ? "" : count(change.count)}</td></tr>`;
  const nothing = before ? "There are no older changes." : "There are no changes through this service yet.";
  return html`<div class="head"><h1>Audit</h1><p class="muted">Changes through this service, newest first.</p></div>
    ${list(state, "changes", "Changes", CHANGES, row, nothing)}
    <${Pager} labels=${["Newest", "Older"]} back=${before ? () => setQuery({ before: "" }) : null}
      more=${changes.length < PAGE ? null : () => setQuery({ before: changes[changes.length - 1].id })} />`;
}
