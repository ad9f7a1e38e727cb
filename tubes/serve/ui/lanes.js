// The lanes of a tube: who is busy, who waits, who is blocked, and what to do about it.

import { ago, call, count, html, now, path, setQuery, shown, span, useLive } from "./lib.js";
import { Badge, Card, Empty, Link, Pager, Search, Table, Time, Waiting, act, ask } from "./parts.js";

const PAGE = 50;
const ORDERS = [
  ["ready", "Most tasks"],
  ["waiting_since", "Longest wait"],
  ["blocked", "Blocked"],
  ["next_start", "Cooling down"],
  ["taken", "In flight"],
  ["name", "Name"],
];
const COLUMNS = [
  { title: "Lane" },
  { title: "State" },
  { title: "Ready", kind: "number" },
  { title: "In flight", kind: "number" },
  { title: "Next task waits for", kind: "number" },
  { title: "Next start", kind: "number" },
  { title: "Limits" },
  { title: "Empty in about", kind: "number" },
];

export function Lanes({ namespace, name, tube, query }) {
  const place = [namespace, "tubes", name];
  const { contains = "", sort = "ready" } = query;
  const offset = Number(query.offset) || 0;
  const values = { contains, sort, limit: PAGE, offset };
  const state = useLive((signal) => call("GET", path([...place, "lanes"], values), undefined, { signal }), [place, values]);
  const canManage = tube.rights.includes("manage");
  const columns = canManage ? [...COLUMNS, { title: "" }] : COLUMNS;
  return html`<div class="filters"><div class="choices" role="group" aria-label="Order">
      ${ORDERS.map(([word, title]) => html`<button type="button" aria-pressed=${word === sort} onClick=${() => setQuery({ sort: word, offset: "" })}>${title}</button>`)}</div>
      <${Search} label="Name" value=${contains} placeholder="part of a name" onChange=${(text) => setQuery({ contains: text, offset: "" })} /></div>
    <div class="cards"><${Card} label="lanes" value=${count(tube.lanes)} />
      <${Card} label="cooling down or blocked" value=${count(tube.throttled_lanes)} kind=${tube.throttled_lanes ? "taken" : ""} />
      <${Card} label="ready" value=${count(tube.tasks.ready)} kind="ready" /><${Card} label="in flight" value=${count(tube.tasks.taken)} kind="taken" /></div>
    <${Waiting} state=${state}>${({ lanes, total, complete }) => {
      if (!lanes.length) return html`<${Empty}>${contains ? "No lane has this in its name." : "The tube has no lanes at the moment: a lane exists while it has tasks, limits or a cooldown."}<//>`;
      const most = Math.max(...lanes.map((lane) => lane.ready), 1);
      return html`${!complete && html`<p class="problem">The tube has more lanes than the service sorts: only some of them are compared.</p>`}
      <${Table} caption="Lanes" columns=${columns} rows=${lanes.map((lane) => html`<${Row} key=${lane.name} place=${place} lane=${lane} most=${most} canManage=${canManage} />`)} />
      <${Pager} first=${offset} shownCount=${lanes.length} total=${total} size=${PAGE} onMove=${(next) => setQuery({ offset: next || "" })} />`;
    }}<//>`;
}

// The kind of badge for a lane, and what it does now.
function stateOf(lane) {
  const isAhead = (moment) => moment && moment > now();
  if (isAhead(lane.blocked_until)) return ["buried", "blocked"];
  if (lane.taken >= lane.max_in_flight) return ["taken", "busy"];
  if (isAhead(lane.next_start)) return ["delayed", "cooling down"];
  return lane.ready ? ["ready", "can start"] : lane.taken ? ["taken", "working"] : ["", "idle"];
}

function limitsOf(lane) {
  const words = [`${count(lane.max_in_flight)} in flight`];
  if (lane.interval) words.push(lane.burst > 1 ? `burst of ${count(lane.burst)}, then every ${span(lane.interval)}` : `every ${span(lane.interval)}`);
  if (lane.capacity) words.push(`at most ${count(lane.capacity)} tasks`);
  return words.join(", ");
}

function Row({ place, lane, most, canManage }) {
  const [kind, word] = stateOf(lane);
  const query = { lane: lane.name };
  return html`<tr>
    <th scope="row" class="data"><${Link} to=${[...place, "tasks"]} query=${query}><bdi>${lane.name === "" ? "the empty name" : shown(lane.name, 80)}</bdi><//></th>
    <td><${Badge} kind=${kind}>${word}<//>
      ${lane.blocked_reason && html`<div class="muted"><bdi>${shown(lane.blocked_reason, 120)}</bdi></div>`}</td>
    <td class="number">${count(lane.ready)} <meter min="0" max=${most} value=${lane.ready} aria-hidden="true"></meter></td>
    <td class="number">${count(lane.taken)} of ${count(lane.max_in_flight)}</td>
    <td class="number">${lane.waiting_since ? html`<${Time} at=${lane.waiting_since} text=${span(Math.max(now() - lane.waiting_since, 0))} />` : "–"}</td>
    <td class="number">${lane.next_start && lane.next_start > now() ? html`<${Time} at=${lane.next_start} text=${ago(lane.next_start)} />` : lane.ready ? "now" : "–"}</td>
    <td>${limitsOf(lane)}</td>
    <td class="number">${lane.interval && lane.ready ? span(lane.ready * lane.interval) : "–"}</td>
    ${canManage && html`<td class="buttons">${lane.blocked_until && lane.blocked_until > now()
      ? html`<button type="button" class="small" onClick=${() => act("The lane is unblocked.", "DELETE", path([...place, "lanes", lane.name, "block"]))}>Unblock</button>`
      : html`<button type="button" class="small" onClick=${() => askBlock(place, lane)}>Block</button>`}
      <button type="button" class="small" onClick=${() => askLimits(place, lane)}>Limits</button></td>`}
  </tr>`;
}

function askBlock(place, lane) {
  ask({
    title: `Block ${shown(lane.name, 60)}`,
    text: `Nobody takes the ${count(lane.ready)} ready tasks of this lane meanwhile. Running tasks continue.`,
    button: "Block",
    done: "The lane is blocked.",
    fields: [
      { name: "seconds", label: "Seconds", type: "number", value: 60, isRequired: true },
      { name: "reason", label: "Reason", type: "text", help: "Shown here, for example 429." },
      { name: "extend", label: "Never shorten an earlier block", type: "flag", value: true },
    ],
    request: (values) => ["POST", path([...place, "lanes", lane.name, "block"]), values],
  });
}

function askLimits(place, lane) {
  ask({
    title: `Limits of ${shown(lane.name, 60)}`,
    text: "Limits of this lane in place of the tube's. Empty: unchanged.",
    button: "Change",
    done: "The limits are changed.",
    fields: [
      { name: "max_in_flight", label: "Tasks in flight", type: "number", help: `Now ${count(lane.max_in_flight)}.` },
      { name: "rate", label: "Rate", type: "text", help: "For example 30/min; in place of an interval." },
      { name: "interval", label: "Interval in seconds", type: "number", help: `Now ${lane.interval ? span(lane.interval) : "none"}.` },
      { name: "burst", label: "Burst", type: "number", help: "Takes that may start at once after an idle time." },
      { name: "capacity", label: "Capacity", type: "number", help: "The most tasks of the lane; 0: unlimited." },
      { name: "reset", label: "Use the limits of the tube again", type: "flag", value: false },
    ],
    request: ({ reset, ...limits }) => {
      const none = { max_in_flight: null, interval: null, burst: null, capacity: null };
      return ["PATCH", path([...place, "lanes", lane.name]), reset ? none : limits];
    },
  });
}
