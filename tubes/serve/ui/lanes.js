// The lanes of a tube: their tasks, states, limits and blocks.

import { count, html, now, path, printable, setQuery, span, useGet } from "./lib.js";
import {
  Badge, Button, Card, Empty, Link, Loaded, OffsetPager, Search, Table, Text, Time, callAndNotify, openForm,
} from "./parts.js";

const PAGE = 50;
const ORDERS = [
  ["ready", "Most tasks"], ["waiting_since", "Longest wait"], ["blocked", "Blocked"], ["next_start", "Cooling down"],
  ["taken", "In flight"], ["name", "Name"],
];
const COLUMNS = [
  ["Lane"], ["State"], ["Ready", "number"], ["In flight", "number"], ["Next task waits for", "number"],
  ["Next start", "number"], ["Limits"], ["Empty in about", "number"],
];

export function Lanes({ namespace, name, tube, query }) {
  const segments = [namespace, "tubes", name];
  const { contains = "", sort = "ready" } = query;
  const offset = Number(query.offset) || 0;
  const state = useGet([...segments, "lanes"], { contains, sort, limit: PAGE, offset });
  const canManage = tube.rights.includes("manage");
  const order = ([word, title]) => html`<button type="button" aria-pressed=${word === sort}
    onClick=${() => setQuery({ sort: word, offset: "" })}>${title}</button>`;
  const nothing = contains ? "No lane name contains this text." : "A lane exists while it has tasks, limits or a cooldown.";
  const table = ({ lanes, total, complete }) => {
    const largest = Math.max(...lanes.map((lane) => lane.ready), 1);
    const rows = lanes.map((lane) => html`<${Row} key=${lane.name} segments=${segments} lane=${lane} largest=${largest}
      canManage=${canManage} />`);
    return html`${!complete && html`<p class="problem">The service could not read all lanes in time: this list is
        incomplete.</p>`}
      <${Table} caption="Lanes" columns=${canManage ? [...COLUMNS, [""]] : COLUMNS} rows=${rows} />
      <${OffsetPager} offset=${offset} size=${PAGE} shown=${lanes.length} total=${total}
        onMove=${(next) => setQuery({ offset: next || "" })} />`;
  };
  return html`<div class="filters"><div class="choices" role="group" aria-label="Order">${ORDERS.map(order)}</div>
      <${Search} label="Name" value=${contains} placeholder="part of a name"
        onChange=${(text) => setQuery({ contains: text, offset: "" })} /></div>
    <div class="cards"><${Card} label="lanes" value=${count(tube.lanes)} />
      <${Card} label="cooling down or blocked" value=${count(tube.throttled_lanes)} kind=${tube.throttled_lanes && "taken"} />
      <${Card} label="ready" value=${count(tube.tasks.ready)} kind="ready" />
      <${Card} label="in flight" value=${count(tube.tasks.taken)} kind="taken" /></div>
    <${Loaded} state=${state}>${(data) => (data.total ? table(data) : html`<${Empty}>${nothing}<//>`)}<//>`;
}

const isAhead = (moment) => moment != null && moment > now();

// Some programs block a lane for a moment after each task, without a reason: show that as a cooldown.
const isBlocked = (lane) => isAhead(lane.blocked_until) && (lane.blocked_reason || isAhead(lane.blocked_until - 10));

// Return the kind of the badge of a lane, and its text.
function stateOf(lane) {
  if (isBlocked(lane)) return ["buried", "blocked"];
  if (lane.taken >= lane.max_in_flight) return ["taken", "busy"];
  if (isAhead(lane.next_start)) return ["delayed", "cooling down"];
  return lane.ready ? ["ready", "can start"] : lane.taken ? ["taken", "working"] : ["", "idle"];
}

function limitsOf({ max_in_flight, interval, burst, capacity }) {
  const pace = burst > 1 ? `burst of ${count(burst)}, then every ${span(interval)}` : `every ${span(interval)}`;
  const limits = [`${count(max_in_flight)} in flight`, interval && pace, capacity && `at most ${count(capacity)} tasks`];
  return limits.filter(Boolean).join(", ");
}

function Row({ segments, lane, largest, canManage }) {
  const [kind, word] = stateOf(lane);
  // A path has no lone surrogates, and browsers resolve "." and "..".
  const hasPath = !/^\.{0,2}$|\p{Cs}/u.test(lane.name);
  const at = (...rest) => path([...segments, "lanes", lane.name, ...rest]);
  const unblock = () => callAndNotify("The lane is unblocked.", "DELETE", at("block"));
  return html`<tr>
    <th scope="row" class="data"><${Link} to=${[...segments, "tasks"]} query=${{ lane: lane.name }}>
      <${Text} of=${lane.name || "(empty name)"} limit=${80} /><//></th>
    <td><${Badge} kind=${kind}>${word}<//>
      ${lane.blocked_reason && html`<div class="muted"><${Text} of=${lane.blocked_reason} limit=${120} /></div>`}</td>
    <td class="number">${count(lane.ready)} <meter min="0" max=${largest} value=${lane.ready} aria-hidden="true"></meter></td>
    <td class="number">${count(lane.taken)} of ${count(lane.max_in_flight)}</td>
    <td class="number"><${Time} at=${lane.waiting_since} text=${span(Math.max(now() - lane.waiting_since, 0))} /></td>
    <td class="number">${isAhead(lane.next_start) ? html`<${Time} at=${lane.next_start} />` : lane.ready ? "now" : "–"}</td>
    <td>${limitsOf(lane)}</td>
    <td class="number">${lane.interval && lane.ready ? span(lane.ready * lane.interval) : "–"}</td>
    ${canManage && html`<td class="buttons">${hasPath && html`
      <${Button} kind="small" onClick=${isBlocked(lane) ? unblock : () => openBlock(at("block"), lane)}>
        ${isBlocked(lane) ? "Unblock" : "Block"}<//>
      <${Button} kind="small" onClick=${() => openLimits(at(), lane)}>Limits<//>`}</td>`}</tr>`;
}

const openBlock = (at, lane) =>
  openForm({
    title: `Block ${printable(lane.name, 60)}`,
    text: `The ${count(lane.ready)} ready tasks of this lane wait. Running tasks continue.`,
    button: "Block",
    message: (_, { seconds }) => (seconds === 0 ? "0 seconds block nothing." : "The lane is blocked."),
    fields: [
      { name: "seconds", label: "Seconds", type: "number", value: 60, isRequired: true },
      { name: "reason", label: "Reason", type: "text", help: "Shown here, for example 429." },
      { name: "extend", label: "Never shorten an earlier block", type: "flag", value: true },
    ],
    request: (values) => ["POST", at, values],
  });

const openLimits = (at, lane) =>
  openForm({
    title: `Limits of ${printable(lane.name, 60)}`,
    text: "Limits of this lane in place of the tube's. Empty: unchanged.",
    button: "Change",
    message: "The limits are changed.",
    fields: [
      { name: "max_in_flight", label: "Tasks in flight", type: "number", help: `Now ${count(lane.max_in_flight)}.` },
      { name: "rate", label: "Rate", type: "text", help: "For example 30/min; in place of an interval." },
      { name: "interval", label: "Interval in seconds", type: "number", help: `Now ${span(lane.interval)}.` },
      { name: "burst", label: "Burst", type: "number", help: "Takes that may start at once after an idle time." },
      { name: "capacity", label: "Capacity", type: "number", help: "Maximum number of tasks; 0: unlimited." },
      { name: "reset", label: "Use the limits of the tube again", type: "flag", value: false },
    ],
    request: ({ reset, ...limits }) => {
      const none = { max_in_flight: null, interval: null, interval_from: null, burst: null, capacity: null };
      if (!reset && !Object.keys(limits).length) throw new Error("There are no changes.");
      return ["PATCH", at, reset ? none : limits];
    },
  });
