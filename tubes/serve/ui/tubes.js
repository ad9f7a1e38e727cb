// The list of tubes, and the page of one tube.

import { useState } from "./preact.js";
import { ago, call, count, html, now, path, rate, setQuery, shown, span, useLive } from "./lib.js";
import { Badge, Bars, Bulk, Card, Chart, Choice, Empty, Link, Name, Pager, Search, Spark, STATES, Table, Time, Waiting, act, ask, open } from "./parts.js";

const PAGE = 50;
// Samples of a sparkline: ten minutes.
const SPARK = 120;

const COLUMNS = [
  { title: "Tube", sort: "name" },
  { title: "Buried", sort: "buried", kind: "number" },
  { title: "Ready", sort: "ready", kind: "number" },
  { title: "Oldest", sort: "oldest", kind: "number" },
  { title: "Taken", sort: "taken", kind: "number" },
  { title: "Delayed", sort: "delayed", kind: "number" },
  { title: "Waiting callers", sort: "waiting", kind: "number" },
  { title: "Put and done, per second" },
];
const SORTS = COLUMNS.filter((column) => column.sort).map((column) => [column.sort, column.title]);

export function Tubes({ namespace, query, canManage }) {
  const { contains = "", sort = "buried" } = query;
  const offset = Number(query.offset) || 0;
  const values = { contains, sort, limit: PAGE, offset, ages: 1, history: SPARK };
  const state = useLive((signal) => call("GET", path([namespace, "tubes"], values), undefined, { signal }), [namespace, contains, sort, offset]);
  const onSort = (next) => setQuery({ sort: next, offset: "" });
  return html`<div class="head"><h1>Tubes</h1>
      <div class="tools"><${Search} label="Name" value=${contains} placeholder="part of a name" onChange=${(text) => setQuery({ contains: text, offset: "" })} />
      <${Choice} label="Sort by" value=${sort} options=${SORTS} onChange=${onSort} />
      ${canManage && html`<button type="button" onClick=${() => askCreate(namespace)}>Create a tube</button>`}</div></div>
    <${Waiting} state=${state}>${(data) => {
      if (!data.total) return html`<${Empty}>${contains ? "No tube has this in its name." : "There are no tubes yet. A program creates the first one, or you do."}<//>`;
      return html`<div class="cards">${STATES.map((name) => html`<${Card} label=${name} value=${count(data.tasks[name])} kind=${data.tasks[name] ? name : ""} />`)}
        <${Card} label="tubes" value=${count(data.total)} /></div>
      <${Table} caption="Tubes" columns=${COLUMNS} sort=${sort} onSort=${onSort} rows=${data.names.map((name) => html`<${Row} key=${name} namespace=${namespace} name=${name} tube=${data.tubes[name]} />`)} />
      <${Pager} first=${offset} shownCount=${data.names.length} total=${data.total} size=${PAGE} onMove=${(next) => setQuery({ offset: next || "" })} />`;
    }}<//>`;
}

function Row({ namespace, name, tube }) {
  const place = [namespace, "tubes", name];
  const { tasks, history = {} } = tube;
  const series = { put: history.put || [], done: history.done || [], failed: history.failed || [] };
  const last = (values) => values[values.length - 1] || 0;
  const speed = `${rate(last(series.put))} put, ${rate(last(series.done))} done`;
  return html`<tr>
    <th scope="row"><${Link} to=${place}><${Name} of=${name} /><//> <span class="muted">${shown(tube.driver, 40)}</span>
      ${tube.paused && html` <${Badge} kind="warn">paused<//>`}</th>
    <td class="number">${tasks.buried ? html`<${Link} to=${[...place, "dead"]} class="buried">${count(tasks.buried)}<//>` : "0"}</td>
    <td class="number"><${Link} to=${[...place, "tasks"]} query=${{ state: "ready" }}>${count(tasks.ready)}<//></td>
    <td class="number">${tube.oldest_ready_age === null || tube.oldest_ready_age === undefined ? "–" : span(tube.oldest_ready_age)}</td>
    <td class="number"><${Link} to=${[...place, "tasks"]} query=${{ state: "taken" }}>${count(tasks.taken)}<//></td>
    <td class="number"><${Link} to=${[...place, "tasks"]} query=${{ state: "delayed" }}>${count(tasks.delayed)}<//></td>
    <td class="number">${count(tube.waiting)}</td>
    <td class="rates"><${Spark} series=${series} label=${`The last ten minutes; now ${speed} per second`} /><span class="muted">${speed}</span></td>
  </tr>`;
}

function askCreate(namespace) {
  ask({
    title: "Create a tube",
    button: "Create",
    done: "The tube exists.",
    fields: [
      { name: "name", label: "Name", type: "text", isRequired: true },
      { name: "driver", label: "Driver", type: "choice", value: "fifottl", options: ["fifo", "fifottl", "utube", "utubettl"], help: "utube and utubettl have lanes; the ttl drivers have delays, priorities and times." },
      { name: "options", label: "Options, as JSON", type: "text", help: 'For example {"ttr": 60, "max_attempts": 3}' },
    ],
    request: ({ name, driver, options }) => ["PUT", path([namespace, "tubes", name]), { driver, options: options ? JSON.parse(options) : {} }],
  });
}

// -- one tube ---------------------------------------------------------------------------------------------------------

// What falls due within these seconds from now.
const EDGES = [1, 10, 60, 600, 3600, 86400];

export function Tube({ namespace, name, tube }) {
  const place = [namespace, "tubes", name];
  const state = useLive((signal) => call("GET", path([...place, "history"]), undefined, { signal }), place);
  // Counting what is due may read many tasks: once a minute is enough.
  const minute = Math.floor(now() / 60);
  const due = useLive((signal) => call("GET", path([...place, "due"], { edges: EDGES.join() }), undefined, { signal }), [place, minute], false);
  const { tasks, calls, options } = tube;
  const to = (section, values) => ({ to: [...place, section], query: values });
  return html`<div class="cards">
      ${STATES.map((each) => html`<${Card} label=${each} value=${count(tasks[each])} kind=${tasks[each] ? each : ""} ...${each === "buried" ? to("dead") : to("tasks", { state: each })} />`)}
      <${Card} label="done" value=${count(tasks.done)} note=${tube.kept ? `${count(tube.kept)} kept` : ""} ...${tube.kept ? to("tasks", { state: "done" }) : {}} />
      <${Card} label="oldest ready" value=${span(tube.oldest_ready_age)} />
      <${Card} label="waiting callers" value=${count(tube.waiting)} note=${`${count(tube.sessions)} sessions`} />
    </div>
    <${Waiting} state=${state}>${(history) => html`<div class="charts">
      <${Chart} title="Tasks per second" at=${history.at} format=${rate} series=${{ put: history.put, done: history.done, failed: history.failed }} />
      <${Chart} title="Tasks in the tube" at=${history.at} format=${count} series=${{ ready: history.ready, taken: history.taken, delayed: history.delayed, buried: history.buried }} />
      ${due.data && html`<${Bars} title="Delays and times that end" values=${due.data.counts} labels=${[...EDGES.map((edge) => `within ${span(edge)}`), "later"]} />`}
    </div>`}<//>
    <div class="charts"><section><h2>Options</h2>
      <dl class="facts"><dt>driver</dt><dd>${shown(tube.driver, 60)}</dd>
      ${Object.entries(options || {}).map(([option, value]) => html`<dt>${option}</dt><dd>${shown(JSON.stringify(value), 200)}</dd>`)}</dl></section>
    <section><h2>Calls since the tube was created</h2>
      <dl class="facts">${Object.entries(calls).map(([each, number]) => html`<dt>${each}</dt><dd>${count(number)}</dd>`)}</dl></section></div>`;
}

// The name of a tube, its state and what can be done with it, above each of its views.
export function TubeHead({ namespace, name, section, tube }) {
  const place = [namespace, "tubes", name];
  const may = (right) => tube.rights.includes(right);
  const sections = [["", "Overview"], ["tasks", "Tasks"], ["dead", `Dead letters${tube.tasks.buried ? ` (${count(tube.tasks.buried)})` : ""}`]];
  if (tube.lanes !== null) sections.push(["lanes", `Lanes (${count(tube.lanes)})`]);
  return html`<div class="head"><h1><${Name} of=${name} most=${120} /> ${tube.paused && html`<${Badge} kind="warn">paused${tube.paused_until ? html`, ends ${ago(tube.paused_until)}` : ""}<//>`}</h1>
      <div class="tools">${may("put") && html`<button type="button" onClick=${() => askPut(place, tube)}>Put a task</button>`}
      ${may("manage") && html`<${Manage} namespace=${namespace} name=${name} tube=${tube} />`}</div></div>
    <nav class="tabs" aria-label="Views of the tube">${sections.map(([to, title]) => html`<${Link} to=${to ? [...place, to] : place} aria-current=${to === section ? "page" : undefined}>${title}<//>`)}</nav>`;
}

function Manage({ namespace, name, tube }) {
  const place = [namespace, "tubes", name];
  const at = (...rest) => path([...place, ...rest]);
  const total = tube.tasks.total;
  const askPause = () =>
    ask({
      title: "Pause the tube",
      text: "Nobody takes tasks during a pause; puts continue.",
      button: "Pause",
      done: "The tube is paused.",
      fields: [{ name: "seconds", label: "Seconds", type: "number", help: "Empty: until you resume it." }],
      request: (values) => ["POST", at("pause"), values],
    });
  const askOptions = () =>
    ask({
      title: "Change the options",
      text: "Tasks that are put afterwards get the new options. null restores a default.",
      button: "Change",
      done: "The options are changed.",
      fields: [{ name: "options", label: "Options, as JSON", type: "area", value: JSON.stringify(tube.options, null, 2), isRequired: true }],
      request: ({ options }) => {
        const wanted = JSON.parse(options);
        const missing = Object.keys(tube.options).filter((option) => !(option in wanted));
        const changed = Object.entries(wanted).filter(([option, value]) => JSON.stringify(value) !== JSON.stringify(tube.options[option]));
        return ["PATCH", at(), { options: Object.fromEntries([...changed, ...missing.map((option) => [option, null])]) }];
      },
    });
  const askTruncate = () =>
    ask({
      title: "Truncate the tube",
      text: `All ${count(total)} tasks are deleted. This cannot be undone.`,
      button: "Delete all tasks",
      isDanger: true,
      confirmed: name,
      done: "The tube is empty.",
      request: () => ["POST", at("truncate"), {}],
    });
  const askDrop = () =>
    ask({
      title: "Drop the tube",
      text: `The tube and its ${count(total)} tasks are deleted${tube.tasks.taken ? `, although ${count(tube.tasks.taken)} of them are taken` : ""}. This cannot be undone.`,
      button: "Drop the tube",
      isDanger: true,
      confirmed: name,
      done: "The tube is dropped.",
      request: () => ["DELETE", path(place, { force: 1 })],
    });
  const bulk = (action, filters) => open(Bulk, { namespace, tube: name, action, filters });
  return html`${tube.paused
      ? html`<button type="button" onClick=${() => act("The tube is resumed.", "POST", at("resume"), {})}>Resume</button>`
      : html`<button type="button" onClick=${askPause}>Pause</button>`}
    <button type="button" onClick=${askOptions}>Options</button>
    <${Menu} label="More">
      <button type="button" onClick=${() => bulk("kick", { state: "buried" })}>Kick buried tasks</button>
      <button type="button" onClick=${() => bulk("kick", { state: "delayed" })}>Kick delayed tasks</button>
      <button type="button" onClick=${() => bulk("release", { state: "taken" })}>Release taken tasks</button>
      <button type="button" class="danger" onClick=${askTruncate}>Truncate</button>
      <button type="button" class="danger" onClick=${askDrop}>Drop</button>
    <//>`;
}

export function Menu({ label, children }) {
  const [isOpen, setOpen] = useState(false);
  const onKeyDown = (event) => event.key === "Escape" && setOpen(false);
  const onFocusOut = (event) => !event.currentTarget.contains(event.relatedTarget) && setOpen(false);
  return html`<div class="menu" onKeyDown=${onKeyDown} onFocusOut=${onFocusOut}>
    <button type="button" aria-expanded=${isOpen} onClick=${() => setOpen(!isOpen)}>${label} ▾</button>
    ${isOpen && html`<div class="items" onClick=${() => setOpen(false)}>${children}</div>`}</div>`;
}

// A body with data and options. JSON is sent as it was typed, since JavaScript rounds large numbers.
export function withData(data, isJson, options) {
  if (!isJson) return { ...options, data_base64: btoa(String.fromCharCode(...new TextEncoder().encode(data))) };
  JSON.parse(data);
  const rest = JSON.stringify(options).slice(1);
  return `{"data":${data}${rest === "}" ? "" : ","}${rest}`;
}

export function askPut(place, tube, { data = "", lane = "", pri = "", isText = false, title = "Put a task" } = {}) {
  const hasLanes = tube.lanes !== null;
  ask({
    title,
    button: "Put",
    done: "The task is put.",
    fields: [
      { name: "data", label: isText ? "Data, as text" : "Data, as JSON", type: "area", value: data, isRequired: true },
      ...(hasLanes ? [{ name: "utube", label: "Lane", type: "text", value: lane }] : []),
      { name: "pri", label: "Priority", type: "number", value: pri, help: "Lower numbers are taken first." },
      { name: "delay", label: "Delay in seconds", type: "number" },
      { name: "key", label: "Key", type: "text", help: "Only one task with this key exists." },
    ],
    request: ({ data: text, ...options }) => ["POST", path([...place, "tasks"]), withData(text, !isText, options)],
  });
}

export const since = (moment) => html`<${Time} at=${moment} text=${moment === null || moment === undefined ? "–" : span(now() - moment)} />`;
