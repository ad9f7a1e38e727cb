// The tasks of a tube, one task, and the dead letters of a tube by reason.

import { useState } from "./preact.js";
import { ago, call, count, href, html, iso, now, path, setQuery, shown, useLive } from "./lib.js";
import { ACTIONS, Badge, Bulk, Choice, CopyButton, Empty, Link, Search, Table, Time, Waiting, act, ask, open } from "./parts.js";
import { askPut, withData } from "./tubes.js";

const PAGE = 50;
// Characters of the data in a list, and on the page of a task.
const EXCERPT = 120;
const MOST = 100_000;

const STATE_CHOICES = [["", "any but done"], ["ready", "ready"], ["taken", "taken"], ["delayed", "delayed"], ["buried", "buried"], ["done", "done"]];
const COLUMNS = [
  { title: "Id", kind: "number" },
  { title: "State" },
  { title: "Data" },
  { title: "Why" },
  { title: "Lane" },
  { title: "Pri", kind: "number" },
  { title: "Attempts", kind: "number" },
  { title: "Put" },
  { title: "Due" },
];
const TEXT_FILTERS = [
  ["contains", "Data contains"],
  ["reason", "Reason"],
  ["lane", "Lane"],
  ["key", "Key"],
  ["older_than", "Older than, s"],
  ["attempts", "Attempts, at least"],
];

const excerpt = (task) => (task.preview === undefined ? `${count(task.size)} bytes that are not text` : shown(task.preview, EXCERPT));

const isNumber = (name) => name === "older_than" || name === "attempts";

// The filters in an address, for the API.
function filtersOf(query) {
  const filters = {};
  for (const name of ["state", ...TEXT_FILTERS.map(([each]) => each)]) {
    if (query[name]) filters[name] = isNumber(name) ? Number(query[name]) : query[name];
  }
  return filters;
}

export function Tasks({ namespace, name, tube, query }) {
  const [picked, setPicked] = useState(new Set());
  const place = [namespace, "tubes", name];
  const filters = filtersOf(query);
  const newest = query.newest_first === "true";
  const pages = query.pages ? query.pages.split(",") : [];
  const after = pages[pages.length - 1] ?? "";
  const values = { ...filters, newest_first: newest || "", after, limit: PAGE, preview: EXCERPT };
  // A search may read the whole tube: it runs once, and again when the user asks.
  const isSearch = ["contains", "reason", "older_than", "attempts", "lane"].some((each) => each in filters);
  const state = useLive((signal) => call("GET", path([...place, "tasks"], values), undefined, { signal }), [place, values], !isSearch);
  const change = (changes) => {
    setPicked(new Set());
    setQuery({ pages: "", ...changes });
  };
  const canManage = tube.rights.includes("manage");
  const hasLanes = tube.lanes !== null;
  const shownFilters = TEXT_FILTERS.filter(([each]) => each !== "lane" || hasLanes);
  const columns = canManage ? [{ title: "" }, ...COLUMNS] : COLUMNS;
  return html`<div class="filters"><${Choice} label="State" value=${query.state || ""} options=${STATE_CHOICES} onChange=${(text) => change({ state: text })} />
      <${Choice} label="Order" value=${String(newest)} options=${[["false", "first to last"], ["true", "newest first"]]} onChange=${(text) => change({ newest_first: text === "true" ? text : "" })} />
      ${shownFilters.map(([each, label]) => html`<${Search} key=${each} label=${label} value=${query[each]} onChange=${(text) => change({ [each]: text })} />`)}</div>
    ${canManage && html`<${Actions} namespace=${namespace} name=${name} filters=${filters} picked=${picked} clear=${() => setPicked(new Set())} />`}
    <${Waiting} state=${state}>${({ tasks }) => {
      if (!tasks.length) return html`<${Empty}>${pages.length ? "These were the last tasks." : Object.keys(filters).length ? "No task passes all filters." : "The tube has no tasks."}<//>`;
      const ids = tasks.map((task) => task.id);
      const isAll = ids.every((id) => picked.has(id));
      const toggle = (changed, isOn) => setPicked((old) => new Set(isOn ? [...old, ...changed] : [...old].filter((id) => !changed.includes(id))));
      const all = canManage && html`<label class="flag"><input type="checkbox" checked=${isAll} onChange=${(event) => toggle(ids, event.target.checked)} /> all ${count(ids.length)} on this page</label>`;
      return html`${all}<${Table} caption="Tasks" columns=${columns} rows=${tasks.map((task) => html`<tr key=${task.id}>
        ${canManage && html`<td><input type="checkbox" aria-label=${`Select task ${task.id}`} checked=${picked.has(task.id)} onChange=${(event) => toggle([task.id], event.target.checked)} /></td>`}
        <td class="number"><${Link} to=${[...place, "tasks", String(task.id)]}>${task.id}<//></td>
        <td><${Badge} kind=${task.state}>${task.state}<//> ${task.progress !== undefined && html`<progress max="1" value=${task.progress} aria-label="progress"></progress>`}</td>
        <td class="data"><code><bdi>${excerpt(task)}</bdi></code></td>
        <td class="data"><bdi>${shown(task.reason || task.note || "", 120)}</bdi></td>
        <td><bdi>${shown(task.utube ?? "", 60)}</bdi></td>
        <td class="number">${task.pri}</td>
        <td class="number">${task.attempts}${task.max_attempts ? ` of ${task.max_attempts}` : ""}</td>
        <td><${Time} at=${task.created} text=${ago(task.created)} /></td>
        <td><${Time} at=${task.ended ?? task.due} text=${ago(task.ended ?? task.due)} /></td></tr>`)} />
      <nav class="pager" aria-label="Pages"><button type="button" disabled=${!pages.length} onClick=${() => change({ pages: pages.slice(0, -1).join() })}>Back</button>
      <button type="button" disabled=${tasks.length < PAGE} onClick=${() => change({ pages: [...pages, ids[ids.length - 1]].join() })}>More</button></nav>`;
    }}<//>`;
}

// What can be done with the selected tasks, or with every task that passes the filters.
function Actions({ namespace, name, filters, picked, clear }) {
  const [isEvery, setEvery] = useState(false);
  const isLocked = !isEvery && !picked.size;
  const run = (action) => {
    open(Bulk, { namespace, tube: name, action, filters: isEvery ? filters : { ids: [...picked] } });
    clear();
  };
  return html`<div class="actions" role="group" aria-label="Actions">
    <${Choice} label="Change" value=${String(isEvery)} onChange=${(text) => setEvery(text === "true")}
      options=${[["false", `selected tasks (${count(picked.size)})`], ["true", "everything that matches"]]} />
    ${Object.entries(ACTIONS).map(([action, { title, isDanger }]) => html`<button type="button" class=${isDanger ? "danger" : ""} disabled=${isLocked} onClick=${() => run(action)}>${title}</button>`)}</div>`;
}

// -- one task ---------------------------------------------------------------------------------------------------------

export function Task({ namespace, name, tube, id }) {
  const [most, setMost] = useState(MOST);
  const place = [namespace, "tubes", name];
  const state = useLive((signal) => call("GET", path([...place, "tasks", id], { preview: most }), undefined, { signal }), [place, id, most]);
  const isTaken = state.data?.state === "taken";
  const workers = useLive(async (signal) => (isTaken ? call("GET", path([namespace, "workers"]), undefined, { signal }) : null), [namespace, id, isTaken], false);
  const holds = (worker) => worker.tasks.some((held) => held.tube === name && String(held.id) === id);
  const holder = isTaken ? workers.data?.workers.find(holds) : undefined;
  return html`<${Waiting} state=${state}>${(task) => html`<div class="head"><h2>Task ${task.id} <${Badge} kind=${task.state}>${task.state}<//></h2>
      <div class="tools"><${TaskActions} place=${place} task=${task} tube=${tube} /></div></div>
    <div class="charts"><section><h3>Facts</h3><dl class="facts"><${Facts} task=${task} holder=${holder} /></dl></section>
    <section><h3>Times</h3><${Timeline} task=${task} /></section></div>
    <${Data} title="Data" text=${task.preview} base64=${task.preview_base64} size=${task.size} onAll=${() => setMost(1e9)} />
    ${task.state === "done" && ("result" in task || "result_base64" in task) && html`<${Data} title="Result" text=${JSON.stringify(task.result ?? task.result_base64)} />`}
    ${task.saved !== undefined && html`<${Data} title="Saved for the next attempt" text=${JSON.stringify(task.saved)} />`}`}<//>`;
}

function Facts({ task, holder }) {
  const facts = {
    "priority": task.pri,
    "attempts": `${task.attempts}${task.max_attempts ? ` of ${task.max_attempts}` : ""}`,
    "lane": task.utube,
    "key": task.key,
    "reason": task.reason,
    "progress": task.progress === undefined ? null : `${Math.round(task.progress * 100)} %`,
    "note": task.note,
    "held by": holder && `${holder.host}, process ${holder.pid}`,
    "size": `${count(task.size)} bytes`,
    ...task.context,
  };
  return Object.entries(facts).filter(([, value]) => value !== null && value !== undefined).map(([name, value]) => html`<dt>${shown(name, 60)}</dt><dd><bdi>${shown(value, 1000)}</bdi></dd>`);
}

// The known moments of a task, in order.
function Timeline({ task }) {
  const due = { delayed: "becomes ready", taken: "its take ends", ready: "is due", buried: "is due" }[task.state];
  const moments = [
    [task.created, "was put"],
    [task.due, due],
    [task.expires, "expires"],
    [task.ended, { ack: "was acked", delete: "was deleted", ttl: "expired", cancelled: "was cancelled" }[task.why]],
  ].filter(([at, what]) => at !== null && at !== undefined && what);
  moments.push([now(), `is ${task.state}`]);
  moments.sort(([first], [second]) => first - second);
  return html`<ol class="timeline">${moments.map(([at, what]) => html`<li><span>${what}</span> <${Time} at=${at} text=${ago(at)} /> <span class="muted">${iso(at)}</span></li>`)}</ol>`;
}

const isJson = (text) => {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
};

// JSON with line breaks. Numbers that JavaScript would round stay as they are: then the text is not changed.
function pretty(text) {
  if (!isJson(text) || /\d{16}|[eE.]\d{16}/.test(text)) return text;
  return JSON.stringify(JSON.parse(text), null, 2);
}

// Bytes in rows of 16, as numbers and as characters.
function hexDump(text) {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0)).slice(0, 4096);
  const rows = [];
  for (let start = 0; start < bytes.length; start += 16) {
    const row = [...bytes.slice(start, start + 16)];
    const numbers = row.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
    rows.push(`${start.toString(16).padStart(6, "0")}  ${numbers.padEnd(47)}  ${row.map((byte) => (byte > 31 && byte < 127 ? String.fromCharCode(byte) : ".")).join("")}`);
  }
  return rows.join("\n");
}

function Data({ title, text, base64, size, onAll }) {
  const full = base64 === undefined ? pretty(text) : hexDump(base64);
  const isCut = onAll && size > MOST && (text ?? base64).length <= 1.4 * MOST;
  return html`<section class="content"><div class="head"><h3>${title}</h3><div class="tools"><${CopyButton} text=${text ?? full} /></div></div>
    <pre tabindex="0"><bdi>${shown(full, 1_000_000)}</bdi></pre>
    ${isCut && html`<p class="muted">The start of ${count(size)} bytes. <button type="button" onClick=${onAll}>Load all</button></p>`}</section>`;
}

function TaskActions({ place, task, tube }) {
  const may = (right) => tube.rights.includes(right);
  const at = (...rest) => path([...place, "tasks", String(task.id), ...rest]);
  const isWhole = task.preview !== undefined && (task.size <= MOST || task.preview.length > MOST);
  const askEdit = () =>
    ask({
      title: `Change task ${task.id}`,
      button: "Change",
      done: "The task is changed.",
      fields: [
        { name: "data", label: isJson(task.preview) ? "Data, as JSON" : "Data, as text", type: "area", value: pretty(task.preview) },
        { name: "pri", label: "Priority", type: "number", value: task.pri },
        { name: "delay", label: "Delay from now, in seconds", type: "number", help: "Only if its tube has delays; empty: unchanged." },
        { name: "ttl", label: "Time to live from now, in seconds", type: "number" },
      ],
      request: ({ data, pri, ...rest }) => {
        const changes = { ...rest, ...(pri === task.pri ? {} : { pri }) };
        if (!data || data === pretty(task.preview)) return ["PATCH", at(), changes];
        return ["PATCH", at(), withData(data, isJson(task.preview), changes)];
      },
    });
  const askReason = (word, title, button) => () =>
    ask({
      title: `${title} task ${task.id}`,
      button,
      isDanger: word === "cancel",
      done: `The task is ${word === "cancel" ? "cancelled" : "buried"}.`,
      fields: [{ name: "reason", label: "Reason", type: "text" }],
      request: (values) => ["POST", at(word), values],
    });
  const askDelete = () =>
    ask({ title: `Delete task ${task.id}`, text: "This cannot be undone.", button: "Delete", isDanger: true, done: "The task is deleted.", request: () => ["DELETE", at()] });
  const again = () => askPut(place, tube, { title: "Put it again", data: pretty(task.preview), isText: !isJson(task.preview), lane: task.utube ?? "", pri: task.pri });
  const isOver = task.state === "done";
  return html`${may("put") && isWhole && html`<button type="button" onClick=${again}>Put again</button>`}
    ${may("manage") && html`
      ${["buried", "delayed", "done"].includes(task.state) && html`<button type="button" class="primary" onClick=${() => act("The task is kicked.", "POST", at("kick"), {})}>Kick</button>`}
      ${!isOver && isWhole && html`<button type="button" onClick=${askEdit}>Edit</button>`}
      ${!isOver && task.state !== "buried" && html`<button type="button" onClick=${askReason("bury", "Bury", "Bury")}>Bury</button>`}
      ${!isOver && html`<button type="button" onClick=${askReason("cancel", "Cancel", "Cancel the task")}>Cancel</button>
      <button type="button" class="danger" onClick=${askDelete}>Delete</button>`}`}`;
}

// -- dead letters -----------------------------------------------------------------------------------------------------

const GROUPS = [{ title: "Reason" }, { title: "Tasks", kind: "number" }, { title: "First put" }, { title: "Last put" }, { title: "" }];

export function DeadLetters({ namespace, name, tube }) {
  const place = [namespace, "tubes", name];
  const state = useLive((signal) => call("GET", path([...place, "reasons"], { samples: 1 }), undefined, { signal }), place);
  const canManage = tube.rights.includes("manage");
  const bulk = (action, reason) => open(Bulk, { namespace, tube: name, action, filters: { state: "buried", ...(reason ? { reason } : {}) } });
  return html`<${Waiting} state=${state}>${({ reasons, samples }) => {
    const groups = Object.entries(reasons).sort(([, first], [, second]) => second - first);
    if (!groups.length) return html`<${Empty}>No task is buried.<//>`;
    const most = groups[0][1];
    return html`${canManage && html`<div class="actions"><button type="button" onClick=${() => bulk("kick")}>Retry all</button> <button type="button" class="danger" onClick=${() => bulk("delete")}>Delete all</button></div>`}
      <${Table} caption="Dead letters by reason" columns=${GROUPS} rows=${groups.map(([reason, number]) => {
        const sample = samples[reason];
        const query = { state: "buried", ...(reason ? { reason } : {}) };
        return html`<tr key=${reason}><th scope="row" class="data"><${Link} to=${[...place, "tasks"]} query=${query}><bdi>${reason ? shown(reason, 200) : "without a reason"}</bdi><//></th>
          <td class="number">${count(number)} <meter min="0" max=${most} value=${number} aria-hidden="true"></meter></td>
          <td>${sample ? html`<${Time} at=${sample.first} text=${ago(sample.first)} />` : "–"}</td><td>${sample ? html`<${Time} at=${sample.last} text=${ago(sample.last)} />` : "–"}</td>
          <td class="buttons">${sample && html`<a href=${href([...place, "tasks", String(sample.id)])}>Sample</a>`}
          ${canManage && html`${sample && html`<button type="button" class="small" onClick=${() => act("One task is kicked.", "POST", path([...place, "tasks", String(sample.id), "kick"]), {})}>Retry one</button>`}
            <button type="button" class="small" disabled=${!reason} onClick=${() => bulk("kick", reason)}>Retry</button>
            <button type="button" class="small danger" disabled=${!reason} onClick=${() => bulk("delete", reason)}>Delete</button>`}</td></tr>`;
      })} />`;
  }}<//>`;
}
