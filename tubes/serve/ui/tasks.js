// The tasks of a tube, one task, and the dead letters of a tube by reason.

import { useState } from "./preact.js";
import { changes, count, href, html, iso, now, path, printable, refresh, setQuery, ticks, useGet } from "./lib.js";
import {
  ACTIONS, Badge, Button, Choice, CopyButton, Empty, Link, Loaded, Pager, Progress, Search, Table, Text, Time,
  callAndNotify, openBulk, openForm, reasonForm,
} from "./parts.js";
import { fieldsOf, openPut, withData } from "./tubes.js";

const PAGE = 50;
// Bytes of the data in a list, on the page of a task, and in a hex dump.
const EXCERPT = 120;
const PREVIEW = 100_000;
const HEX = 4096;
const STATES = [["", "all except done"], ...["ready", "taken", "delayed", "buried", "done"].map((state) => [state, state])];
const ORDERS = [["", "first to last"], ["true", "newest first"]];
const COLUMNS = [
  ["Id", "number"], ["State"], ["Data"], ["Reason or note"], ["Lane"], ["Pri", "number"], ["Attempts", "number"],
  ["Put"], ["Due or ended"],
];
// The filters with an input, and their labels.
const FILTERS = [
  ["contains", "Data contains"], ["function", "Function"], ["reason", "Reason"], ["lane", "Lane"], ["key", "Key"],
  ["older_than", "Older than (s)"], ["attempts", "Attempts, at least"],
];
const NUMBERS = ["older_than", "attempts"];

// The filters in an address, for the API.
function filtersOf(query) {
  const names = ["state", ...FILTERS.map(([name]) => name)].filter((name) => query[name]);
  return Object.fromEntries(names.map((name) => [name, NUMBERS.includes(name) ? Number(query[name]) : query[name]]));
}

export function Tasks({ namespace, name, tube, query }) {
  const [picked, setPicked] = useState(new Set());
  const [isEvery, setEvery] = useState("");
  const filters = filtersOf(query);
  const pages = query.pages ? query.pages.split(",") : [];
  const after = pages[pages.length - 1];
  const parameters = { ...filters, newest_first: query.newest_first, after, limit: PAGE, preview: EXCERPT };
  // A search may read the whole tube, so it is not repeated at each sample.
  const isSearch = FILTERS.some(([each]) => each !== "key" && each in filters);
  const state = useGet([namespace, "tubes", name, "tasks"], parameters, isSearch ? changes : ticks);
  const clear = () => {
    setPicked(new Set());
    setEvery("");
  };
  const change = (changes) => {
    clear();
    setQuery({ pages: "", ...changes });
  };
  const filter = ([each, label]) => html`<${Search} key=${each} label=${label} value=${query[each]}
    type=${NUMBERS.includes(each) ? "number" : "search"} onChange=${(text) => change({ [each]: text })} />`;
  const canManage = tube.rights.includes("manage");
  const list = ({ tasks }) => {
    const ids = tasks.map((task) => task.id);
    const pick = (changed, isOn) => {
      setEvery("");
      setPicked((old) => new Set(isOn ? [...old, ...changed] : [...old].filter((id) => !changed.includes(id))));
    };
    const isAll = ids.every((id) => picked.has(id));
    const rows = tasks.map((task) => html`<${Row} key=${task.id} namespace=${namespace} task=${task} query=${query}
      isPicked=${picked.has(task.id)} pick=${canManage && pick} />`);
    const nothing = pages.length ? "These were the last tasks." : "No task passes the filters.";
    return html`${canManage && tasks.length > 0 && html`<label class="flag"><input type="checkbox" checked=${isAll}
        onChange=${(event) => pick(ids, event.target.checked)} /> all ${count(ids.length)} on this page</label>`}
      ${tasks.length ? html`<${Table} caption="Tasks" columns=${canManage ? [[""], ...COLUMNS] : COLUMNS} rows=${rows} />`
        : html`<${Empty}>${nothing}<//>`}
      <${Pager} labels=${["Back", "More"]} back=${pages.length ? () => change({ pages: pages.slice(0, -1).join() }) : null}
        more=${tasks.length < PAGE ? null : () => change({ pages: [...pages, ids[ids.length - 1]].join() })} />`;
  };
  return html`<div class="filters">
      <${Choice} label="State" value=${query.state || ""} options=${STATES} onChange=${(text) => change({ state: text })} />
      <${Choice} label="Order" value=${query.newest_first || ""} options=${ORDERS}
        onChange=${(text) => change({ newest_first: text })} />
      ${FILTERS.filter(([each]) => each !== "lane" || tube.lanes !== null).map(filter)}</div>
    ${canManage && html`<${Actions} namespace=${namespace} name=${name} filters=${filters} picked=${picked}
      isEvery=${isEvery} setEvery=${setEvery} clear=${clear} />`}
    ${isSearch && html`<p class="muted">A search is not refreshed automatically.
      <${Button} kind="small" onClick=${refresh}>Search again<//></p>`}
    <${Loaded} state=${state}>${list}<//>`;
}

// The task function in the start of the data, which names it first.
function functionOf(preview = "") {
  const [, name] = /^\s*{\s*"task"\s*:\s*("(?:[^"\\]|\\.)+")/.exec(preview) ?? [];
  return name && isJson(name) ? JSON.parse(name) : null;
}

const FunctionLink = ({ segments, query, name }) => html`<${Link} to=${[...segments, "tasks"]}
  query=${{ ...query, function: name, pages: "" }}><${Text} of=${name} limit=${60} /><//>`;

function Row({ namespace, task, query, isPicked, pick }) {
  const called = functionOf(task.preview);
  const data = task.preview === undefined ? `${count(task.size)} bytes that are not text` : task.preview;
  return html`<tr>${pick && html`<td><input type="checkbox" aria-label=${`Select task ${task.id}`} checked=${isPicked}
      onChange=${(event) => pick([task.id], event.target.checked)} /></td>`}
    <td class="number"><${Link} to=${[namespace, "tubes", task.tube, "tasks", String(task.id)]}>${task.id}<//></td>
    <td><${Badge} kind=${task.state}>${task.state}<//><${Progress} of=${task.progress} /></td>
    <td class="data">${called && html`<${FunctionLink} segments=${[namespace, "tubes", task.tube]} query=${query}
      name=${called} /> `}<code><${Text} of=${data} limit=${EXCERPT} /></code></td>
    <td class="data"><${Text} of=${task.reason ?? task.note} limit=${120} /></td>
    <td class="data"><${Text} of=${task.utube} limit=${60} /></td>
    <td class="number">${task.pri}</td><td class="number">${attemptsOf(task)}</td>
    <td><${Time} at=${task.created} /></td><td><${Time} at=${task.ended ?? task.due} /></td></tr>`;
}

const attemptsOf = (task) => `${task.attempts}${task.max_attempts ? ` of ${task.max_attempts}` : ""}`;

// Buttons that change the selected tasks, or all that pass the filters.
function Actions({ namespace, name, filters, picked, isEvery, setEvery, clear }) {
  const choices = [["", `selected tasks (${count(picked.size)})`], ["every", "everything that matches"]];
  const run = (action) => openBulk(namespace, name, action, isEvery ? filters : { ids: [...picked] }, clear);
  const button = ([action, [title, , , , isDanger, idle]]) => html`<${Button} kind=${isDanger ? "danger" : ""}
    isDisabled=${(!isEvery && !picked.size) || idle.includes(filters.state)} onClick=${() => run(action)}>${title}<//>`;
  return html`<div class="actions" role="group" aria-label="Actions">
    <${Choice} label="Change" value=${isEvery} onChange=${setEvery} options=${choices} />
    ${Object.entries(ACTIONS).map(button)}</div>`;
}

// -- one task ---------------------------------------------------------------------------------------------------------

export function Task({ namespace, name, tube, id }) {
  const [isAll, setAll] = useState(false);
  const segments = [namespace, "tubes", name];
  const state = useGet([...segments, "tasks", id], { preview: isAll ? 1e9 : PREVIEW }, isAll ? changes : ticks);
  const isTaken = state.data?.state === "taken";
  const workers = useGet(isTaken ? [namespace, "workers"] : null, {}, changes);
  const holds = (worker) => worker.tasks.some((held) => held.tube === name && String(held.id) === id);
  const holder = isTaken ? workers.data?.workers.find(holds) : undefined;
  // Values come as text, since JavaScript would round large numbers. `kind`: the prefix of the members of a value.
  const value = (task, title, kind) => {
    const [text, base64, size] = ["preview", "preview_base64", "size"].map((name) => task[kind + name]);
    return size !== undefined && html`<${Data} title=${title} text=${text} base64=${base64} size=${size}
      onAll=${!isAll && size > PREVIEW && (() => setAll(true))} />`;
  };
  return html`<${Loaded} state=${state}>${(task) => html`
    <div class="head"><h2>Task ${task.id} <${Badge} kind=${task.state}>${task.state}<//></h2>
      <div class="tools"><${TaskActions} segments=${segments} task=${task} tube=${tube}
        isWhole=${isAll || task.size <= PREVIEW} /></div></div>
    <div class="charts"><section><h3>Facts</h3><${Facts} task=${task} holder=${holder} /></section>
      <section><h3>Times</h3><${Timeline} task=${task}
        taken=${holder?.tasks.find((held) => held.tube === name && String(held.id) === id)?.since} /></section></div>
    ${task.failures && html`<${Failures} task=${task} />`}
    ${value(task, "Data", "")}${value(task, "Result", "result_")}${value(task, "Saved for the next attempt", "saved_")}`}<//>`;
}

function Facts({ task, holder }) {
  const facts = {
    priority: task.pri,
    attempts: attemptsOf(task),
    lane: task.utube,
    key: task.key,
    reason: task.reason,
    progress: task.progress == null ? null : `${Math.round(task.progress * 100)} %`,
    note: task.note,
    "held by": holder && `${holder.host}, process ${holder.pid}`,
    size: `${count(task.size)} bytes`,
  };
  const context = Object.entries(task.context).map(([term, fact]) => [`context: ${term}`, fact]);
  const known = [...Object.entries(facts).filter(([, fact]) => fact != null), ...context];
  return html`<dl class="facts">${known.map(([term, fact]) => html`<dt>${printable(term, 60)}</dt>
    <dd><${Text} of=${fact} limit=${1000} /></dd>`)}</dl>`;
}

const FAILED = [["Time"], ["Attempt", "number"], ["Worker"], ["Error"]];

// The last failures of a task, and the traceback of the last one.
function Failures({ task }) {
  const rows = task.failures.map((one) => html`<tr><td><${Time} at=${one.time} /></td><td class="number">${one.attempt}</td>
    <td><${Text} of=${one.worker} limit=${100} /></td><td class="data"><${Text} of=${one.error} limit=${300} /></td></tr>`);
  return html`<section class="content"><h3>Failures</h3><${Table} caption="Failures" columns=${FAILED} rows=${rows} />
    ${task.traceback && html`<pre tabindex="0"><${Text} of=${task.traceback} limit=${5000} /></pre>`}</section>`;
}

// The known moments of a task, in order.
function Timeline({ task, taken }) {
  const due = { delayed: "becomes ready", taken: "its take ends" }[task.state] ?? "is due";
  const end = { ack: "was acked", delete: "was deleted", ttl: "expired", cancelled: "was cancelled" }[task.why];
  const moments = [[task.created, "was put"], [taken, "was taken"], [task.buried_at, "was buried"], [task.due, due], [task.expires, "expires"], [task.ended, end]]
    .filter(([at]) => at != null)
    .concat(task.ended == null ? [[now(), `is ${task.state}`]] : [])
    .sort(([first], [second]) => first - second);
  return html`<ol class="timeline">${moments.map(([at, what]) => html`<li>${what} <${Time} at=${at} />
    <span class="muted"> ${iso(at)}</span></li>`)}</ol>`;
}

function isJson(text) {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

// JSON with line breaks. It is not encoded again, since JavaScript would round large numbers and drop duplicate keys.
function pretty(text) {
  if (!isJson(text)) return text;
  let depth = 0;
  const line = () => "\n" + "  ".repeat(Math.min(depth, 40));
  return text.replace(/"(?:[^"\\]|\\.)*"|\{\s*\}|\[\s*\]|[{}[\],:]|\s+/g, (part) => {
    if ("{[".includes(part)) depth += 1;
    if ("}]".includes(part)) depth -= 1;
    if ("{[,".includes(part)) return part + line();
    if ("}]".includes(part)) return line() + part;
    return part === ":" ? ": " : /^\s/.test(part) ? "" : part;
  });
}

// Bytes in rows of 16, as numbers and as characters.
function hexDump(text) {
  const bytes = [...atob(text.slice(0, 5464))].slice(0, HEX).map((character) => character.charCodeAt(0));
  const rows = Array.from({ length: Math.ceil(bytes.length / 16) }, (_, row) => bytes.slice(row * 16, row * 16 + 16));
  const hex = (number, length) => number.toString(16).padStart(length, "0");
  const character = (byte) => (byte > 31 && byte < 127 ? String.fromCharCode(byte) : ".");
  const line = (row, index) =>
    `${hex(index * 16, 6)}  ${row.map((byte) => hex(byte, 2)).join(" ").padEnd(47)}  ${row.map(character).join("")}`;
  return rows.map(line).join("\n");
}

function Data({ title, text, base64, size, onAll }) {
  const full = base64 === undefined ? pretty(text) : hexDump(base64);
  const load = onAll && base64 === undefined && html`<${Button} onClick=${onAll}>Load all<//>`;
  return html`<section class="content">
    <div class="head"><h3>${title}</h3><div class="tools"><${CopyButton} text=${text ?? full} /></div></div>
    <pre tabindex="0"><${Text} of=${full} limit=${1_000_000} /></pre>
    ${(load || size > HEX) && onAll && html`<p class="muted">This is the start of ${count(size)} bytes. ${load}</p>`}</section>`;
}

function TaskActions({ segments, task, tube, isWhole }) {
  const may = (right) => tube.rights.includes(right);
  const at = (...rest) => path([...segments, "tasks", String(task.id), ...rest]);
  const text = task.preview;
  const isText = text !== undefined && isWhole;
  const format = isText && (isJson(text) ? "JSON" : text.includes("\r") ? "a JSON string" : "text");
  const editable = format === "a JSON string" ? JSON.stringify(text) : format && pretty(text);
  const isOver = task.state === "done";
  const edit = () =>
    openForm({
      title: `Change task ${task.id}`,
      button: "Change",
      message: "The task is changed.",
      fields: fieldsOf(tube, [
        { name: "data", label: `Data, as ${format}`, type: "area", value: editable },
        { name: "pri", label: "Priority", type: "number", value: task.pri },
        { name: "delay", label: "Delay from now, in seconds", type: "number", help: "Empty: unchanged." },
        { name: "ttl", label: "Time to live from now, in seconds", type: "number", help: "Empty: unchanged." },
      ]),
      request: ({ data, pri, ...rest }) => {
        const changes = { ...rest, ...((pri ?? task.pri) === task.pri ? {} : { pri }) };
        const isSame = !data || data === editable;
        if (isSame && !Object.keys(changes).length) throw new Error("There are no changes.");
        return ["PATCH", at(), isSame ? changes : withData(data, format, changes)];
      },
    });
  const remove = () =>
    openForm({
      title: `Delete task ${task.id}`,
      text: "This cannot be undone.",
      button: "Delete",
      isDanger: true,
      message: "The task is deleted.",
      next: href([...segments, "tasks"]),
      request: () => ["DELETE", at()],
    });
  const again = () => openPut(segments, tube, { ...task, text: editable, format });
  const kick = () => callAndNotify(isOver ? "The task is put again." : "The task is kicked.", "POST", at("kick"), {});
  const bury = () => reasonForm(`Bury task ${task.id}`, "Bury", "The task is buried.", at("bury"));
  const cancel = () =>
    reasonForm(`Cancel task ${task.id}`, "Cancel the task", "The task is cancelled.", at("cancel"), true);
  const actions = [
    ["Put again", isOver ? kick : again, isOver ? may("manage") : may("put") && isText],
    ["Kick", kick, may("manage") && ["buried", "delayed"].includes(task.state), "primary"],
    ["Edit", edit, may("manage") && !isOver && isText],
    ["Bury", bury, may("manage") && !isOver && task.state !== "buried"],
    ["Cancel", cancel, may("manage") && !isOver],
    ["Delete", remove, may("manage") && !isOver, "danger"],
  ];
  return actions.map(([title, onClick, isShown, kind]) => isShown && html`<${Button} kind=${kind} onClick=${onClick}>${title}<//>`);
}

// -- dead letters -----------------------------------------------------------------------------------------------------

const GROUPS = [["Reason"], ["Functions"], ["Tasks", "number"], ["First put"], ["Last put"], [""]];

export function DeadLetters({ namespace, name, tube }) {
  const segments = [namespace, "tubes", name];
  const state = useGet([...segments, "reasons"], { samples: 1 });
  const canManage = tube.rights.includes("manage");
  const bulk = (action, reason) => () => openBulk(namespace, name, action, { state: "buried", ...(reason && { reason }) });
  const row = ([reason, number], largest, sample) => {
    const task = sample && path([...segments, "tasks", String(sample.id), "kick"]);
    // The kind "none" has the tasks without a reason, and those whose reason is "none" or begins with a colon.
    const title = reason === "none" ? "none, or without a reason" : reason;
    return html`<tr key=${reason}>
      <th scope="row" class="data"><${Link} to=${[...segments, "tasks"]} query=${{ state: "buried", reason }}>
        <${Text} of=${title} /><//></th>
      <td class="data">${(sample ? sample.functions : []).map((name) => html`<${FunctionLink} segments=${segments}
        query=${{ state: "buried", reason }} name=${name} /> `)}</td>
      <td class="number">${count(number)} <meter min="0" max=${largest} value=${number} aria-hidden="true"></meter></td>
      <td><${Time} at=${sample?.first} /></td><td><${Time} at=${sample?.last} /></td>
      <td class="buttons">${sample && html`<${Link} to=${[...segments, "tasks", String(sample.id)]}>Sample<//>`}
      ${canManage && html`${sample && html`<${Button} kind="small"
          onClick=${() => callAndNotify("One task is kicked.", "POST", task, {})}>Kick one<//>`}
        <${Button} kind="small" onClick=${bulk("kick", reason)}>Kick<//>
        <${Button} kind="small danger" onClick=${bulk("delete", reason)}>Delete<//>`}</td></tr>`;
  };
  return html`<${Loaded} state=${state}>${({ reasons, samples }) => {
    const groups = Object.entries(reasons).sort(([, first], [, second]) => second - first);
    if (!groups.length) return html`<${Empty}>No task is buried.<//>`;
    return html`${canManage && html`<div class="actions"><${Button} onClick=${bulk("kick")}>Kick all<//>
        <${Button} kind="danger" onClick=${bulk("delete")}>Delete all<//></div>`}
      <${Table} caption="Dead letters by reason" columns=${GROUPS}
        rows=${groups.map((group) => row(group, groups[0][1], Object.hasOwn(samples, group[0]) && samples[group[0]]))} />`;
  }}<//>`;
}
