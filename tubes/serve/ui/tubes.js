// The list of tubes, and the page of one tube.

import { ago, call, count, href, html, minutes, path, printable, rate, setQuery, span, useGet } from "./lib.js";
import {
  Badge, Bars, Button, Card, Chart, Choice, Empty, Link, Loaded, Menu, OffsetPager, STATES, Search, Spark, Table, Text,
  callAndNotify, openBulk, openForm, rates,
} from "./parts.js";

const PAGE = 50;
// Seconds after which a due change is shown as overdue: probably no program uses the tube.
const OVERDUE = 10;
// The maximum number of samples in a small chart.
const SPARK = 60;
const COLUMNS = [
  ["Tube", "", "name"],
  ["Buried", "number", "buried"],
  ["Ready", "number", "ready"],
  ["Oldest", "number", "oldest"],
  ["Taken", "number", "taken"],
  ["Delayed", "number", "delayed"],
  ["Waiting callers", "number", "waiting"],
  ["Put, done and failed, per second"],
];
const SORTS = COLUMNS.filter(([, , sort]) => sort).map(([title, , sort]) => [sort, title]);

export function Tubes({ namespace, query, canManage }) {
  const { contains = "", sort = "buried" } = query;
  const offset = Number(query.offset) || 0;
  const state = useGet([namespace, "tubes"], { contains, sort, limit: PAGE, offset, ages: 1, history: SPARK });
  const onSort = (next) => setQuery({ sort: next, offset: "" });
  const onSearch = (text) => setQuery({ contains: text, offset: "" });
  const nothing = contains
    ? "No tube name contains this text."
    : "There are no tubes yet.";
  const table = ({ tubes, names, tasks, total }) => html`<div class="cards">
      ${STATES.map((name) => html`<${Card} label=${name} value=${count(tasks[name])} kind=${tasks[name] ? name : ""} />`)}
      <${Card} label="tubes" value=${count(total)} /></div>
    <${Table} caption="Tubes" columns=${COLUMNS} sort=${sort} onSort=${onSort}
      rows=${names.map((name) => html`<${Row} key=${name} namespace=${namespace} name=${name} tube=${tubes[name]} />`)} />
    <${OffsetPager} offset=${offset} size=${PAGE} shown=${names.length} total=${total}
      onMove=${(next) => setQuery({ offset: next || "" })} />`;
  return html`<div class="head"><h1>Tubes</h1><div class="tools">
      <${Search} label="Name" value=${contains} placeholder="part of a name" onChange=${onSearch} />
      <${Choice} label="Sort by" value=${sort} options=${SORTS} onChange=${onSort} />
      ${canManage && html`<${Button} onClick=${() => openCreate(namespace)}>Create a tube<//>`}</div></div>
    <${Loaded} state=${state}>${(data) => (data.total ? table(data) : html`<${Empty}>${nothing}<//>`)}<//>`;
}

function Row({ namespace, name, tube }) {
  const segments = [namespace, "tubes", name];
  const { tasks, history } = tube;
  const [put, done, failed] = [history.put, history.done, history.failed].map(rates);
  const last = (values) => rate(values[values.length - 1]);
  const speed = `${last(put)} put, ${last(done)} done${failed[failed.length - 1] ? `, ${last(failed)} failed` : ""}`;
  const counted = (state, section, query) => html`<td class="number">
    <${Link} to=${[...segments, section]} query=${query} class=${tasks[state] ? state : ""}>${count(tasks[state])}<//></td>`;
  return html`<tr>
    <th scope="row"><${Link} to=${segments}><${Text} of=${name} limit=${80} /><//>
      <span class="muted"> ${printable(tube.driver, 40)}</span> ${tube.paused && html`<${Badge} kind="warn">paused<//>`}
      ${tube.due_lag > OVERDUE && html`<${Badge} kind="warn">overdue by ${span(tube.due_lag)}<//>`}</th>
    ${counted("buried", "dead")}${counted("ready", "tasks", { state: "ready" })}
    <td class="number">${span(tube.oldest_ready_age)}</td>
    ${counted("taken", "tasks", { state: "taken" })}${counted("delayed", "tasks", { state: "delayed" })}
    <td class="number">${count(tube.waiting)}</td>
    <td class="rates"><${Spark} series=${{ put, done, failed }} label=${`Now ${speed} per second`} />
      <span class="muted">${speed}</span></td></tr>`;
}

function openCreate(namespace) {
  const drivers = ["fifo", "fifottl", "utube", "utubettl"];
  const help = "utube and utubettl have lanes; the ttl drivers have delays, priorities, ttl and ttr.";
  openForm({
    title: "Create a tube",
    button: "Create",
    message: "The tube is created.",
    fields: [
      { name: "name", label: "Name", type: "text", isRequired: true },
      { name: "driver", label: "Driver", type: "choice", value: "fifottl", options: drivers, help },
      { name: "options", label: "Options, as JSON", type: "text", help: 'For example {"ttr": 60, "max_attempts": 3}' },
    ],
    request: async ({ name, driver, options = "{}" }) => {
      const at = path([namespace, "tubes", name]);
      const known = await call("GET", at).catch((error) => error);
      if (!(known instanceof Error)) throw new Error("A tube with this name already exists.");
      if (known.status !== 404) throw known;
      return ["PUT", at, { driver, options: JSON.parse(options) }];
    },
  });
}

// -- one tube ---------------------------------------------------------------------------------------------------------

// Upper bounds of the groups of delays and takes by their end, in seconds from now.
const EDGES = [1, 10, 60, 600, 3600, 86400];
const EDGE_LABELS = [...EDGES.map((edge) => `within ${span(edge)}`), "later"];

const QUANTILES = ["wait", "run"].flatMap((kind) => ["p50", "p95", "p99"].map((q) => [kind, q]));
const DURATIONS = [
  ["Function"], ["Attempts", "number"], ...QUANTILES.map(([kind, q]) => [`${kind === "wait" ? "Wait" : "Run"} ${q}`, "number"]),
];

const Duration = (one) => html`<tr key=${one.function}>
  <th scope="row">${one.function === null ? "all" : html`<${Text} of=${one.function} limit=${80} />`}</th>
  <td class="number">${count(one.count)}</td>
  ${QUANTILES.map(([kind, q]) => html`<td class="number">${span(one[`${kind}_${q}`])}</td>`)}</tr>`;

export function Tube({ namespace, name, tube }) {
  const segments = [namespace, "tubes", name];
  const state = useGet([...segments, "history"]);
  // This count may read many tasks.
  const due = useGet([...segments, "due"], { edges: EDGES.join() }, minutes);
  const durations = (useGet([namespace, "durations"], {}, minutes).data?.durations ?? []).filter((one) => one.tube === name);
  const { tasks, calls, options } = tube;
  const link = (section, query) => ({ to: [...segments, section], query });
  const card = (each) => html`<${Card} label=${each} value=${count(tasks[each])} kind=${tasks[each] ? each : ""}
    ...${each === "buried" ? link("dead") : link("tasks", { state: each })} />`;
  const facts = (entries) => entries.map(([term, fact]) => html`<dt>${term}</dt><dd>${printable(fact)}</dd>`);
  const charts = ({ at, put, done, failed, ready, taken, delayed, buried }) => html`
    <${Chart} title="Tasks per second" at=${at} format=${rate} series=${{ put: rates(put), done: rates(done), failed: rates(failed) }} />
    <${Chart} title="Tasks in the tube" at=${at} format=${count} series=${{ ready, taken, delayed, buried }} />`;
  return html`<div class="cards">${STATES.map(card)}
      <${Card} label="done" value=${count(tasks.done)} note=${tube.kept ? `${count(tube.kept)} kept` : ""}
        ...${tube.kept ? link("tasks", { state: "done" }) : {}} />
      <${Card} label="oldest ready" value=${span(tube.oldest_ready_age)} />
      <${Card} label="waiting callers" value=${count(tube.waiting)} note=${`${count(tube.sessions)} ${tube.sessions === 1 ? "session" : "sessions"}`} /></div>
    <div class="charts"><${Loaded} state=${state}>${charts}<//>
      ${due.data && html`<${Bars} title="Delays and takes that end" values=${due.data.counts} labels=${EDGE_LABELS} />`}
      <section><h2>Options</h2><dl class="facts">
        ${facts([["driver", tube.driver], ...Object.entries(options).map(([option, value]) => [option, JSON.stringify(value)])])}
      </dl></section>
    </div>${durations.length > 0 && html`<${Table} caption="Waiting and run times of the last five minutes"
      columns=${DURATIONS} rows=${durations.map(Duration)} />`}
    <p class="muted">Calls since the tube was created: ${
      Object.entries(calls).map(([call, number]) => `${call} ${count(number)}`).join(", ")}</p>`;
}

// The head of each view of a tube: its name, its state, actions and links to the views.
export function TubeHead({ namespace, name, section, tube }) {
  const segments = [namespace, "tubes", name];
  const { buried } = tube.tasks;
  const sections = [["", "Overview"], ["tasks", "Tasks"], ["dead", `Dead letters${buried ? ` (${count(buried)})` : ""}`]];
  if (tube.lanes !== null) sections.push(["lanes", `Lanes (${count(tube.lanes)})`]);
  const tab = ([to, title]) => html`<${Link} to=${to ? [...segments, to] : segments}
    aria-current=${to === section ? "page" : undefined}>${title}<//>`;
  const pause = tube.paused && `paused${tube.paused_until ? `, ends ${ago(tube.paused_until)}` : ""}`;
  return html`<div class="head"><h1><${Text} of=${name} /> ${pause && html`<${Badge} kind="warn">${pause}<//>`}</h1>
      <div class="tools">${tube.rights.includes("put") && html`<${Button} onClick=${() => openPut(segments, tube)}>Put a task<//>`}
      ${tube.rights.includes("manage") && html`<${Manage} namespace=${namespace} name=${name} tube=${tube} />`}</div></div>
    <nav class="tabs" aria-label="Views of the tube">${sections.map(tab)}</nav>`;
}

function Manage({ namespace, name, tube }) {
  const at = (...rest) => path([namespace, "tubes", name, ...rest]);
  const { taken } = tube.tasks;
  const total = tube.tasks.total + tube.kept;
  const resume = () => callAndNotify("The tube is resumed.", "POST", at("resume"), {});
  const pause = () =>
    openForm({
      title: `Pause ${printable(name, 60)}`,
      text: "Takes stop during a pause; puts continue.",
      button: "Pause",
      message: (_, { seconds }) => (seconds === 0 ? "Nothing changed: the pause has 0 seconds." : "The tube is paused."),
      fields: [{ name: "seconds", label: "Seconds", type: "number", help: "Empty: until you resume it." }],
      request: (values) => ["POST", at("pause"), values],
    });
  const alter = () =>
    openForm({
      title: `Change the options of ${printable(name, 60)}`,
      text: "Limits apply at once, defaults of tasks to new tasks. null restores a default.",
      button: "Change",
      message: "The options are changed.",
      fields: [
        { name: "options", label: "Options, as JSON", type: "area", value: JSON.stringify(tube.options, null, 2), isRequired: true },
      ],
      request: ({ options }) => {
        const wanted = JSON.parse(options);
        if (wanted?.constructor !== Object) return ["PATCH", at(), { options: wanted }]; // The service refuses it.
        const isSame = (option) => JSON.stringify(wanted[option]) === JSON.stringify(tube.options[option]);
        const changed = Object.keys({ ...tube.options, ...wanted }).filter((option) => !isSame(option));
        if (!changed.length) throw new Error("There are no changes.");
        return ["PATCH", at(), { options: Object.fromEntries(changed.map((option) => [option, wanted[option] ?? null])) }];
      },
    });
  const destroy = (title, button, text, message, request, next) => () =>
    openForm({ title, button, text, message, isDanger: true, confirmed: name, request: () => request, next });
  const all = `${count(total)} ${total === 1 ? "task" : "tasks"}`;
  const truncate = destroy(
    "Truncate the tube", "Delete all tasks", `All ${all} are deleted. This cannot be undone.`,
    "The tube is empty.", ["POST", at("truncate"), {}],
  );
  const drop = destroy(
    "Drop the tube", "Drop the tube",
    `The tube and its ${all}, of which ${count(taken)} are taken, are deleted. This cannot be undone.`,
    "The tube is dropped.", ["DELETE", path([namespace, "tubes", name], { force: 1 })], href([namespace, "tubes"]),
  );
  const repaired = ({ problems }) =>
    problems.every((each) => each.repaired) ? "The tube is repaired." : "Some problems could not be repaired.";
  const offerRepair = ({ problems }) => {
    if (!problems.length) return "The tube has no problems.";
    const text = problems.map(({ what, remedy }) => printable(`${what}; a repair ${remedy}.`));
    openForm({ title: "Repair the tube", text, button: "Repair", message: repaired, request: () => ["POST", at("repair")] });
  };
  const check = () => callAndNotify(offerRepair, "GET", at("problems"));
  const bulk = (action, state) => () => openBulk(namespace, name, action, { state });
  return html`<${Button} onClick=${tube.paused ? resume : pause}>${tube.paused ? "Resume" : "Pause"}<//>
    <${Button} onClick=${alter}>Options<//>
    <${Menu} label="More">
      <${Button} onClick=${bulk("kick", "buried")}>Kick buried tasks<//>
      <${Button} onClick=${bulk("kick", "delayed")}>Kick delayed tasks<//>
      <${Button} onClick=${bulk("release", "taken")}>Release taken tasks<//>
      <${Button} onClick=${check}>Check<//>
      <${Button} kind="danger" onClick=${truncate}>Truncate<//><${Button} kind="danger" onClick=${drop}>Drop<//>
    <//>`;
}

// A body with data and options. JSON is sent as it was typed, since JavaScript rounds large numbers. `format`: "JSON",
// "text", or "a JSON string" for text whose carriage returns an input would change.
export function withData(data, format, options) {
  const value = format === "text" ? data : JSON.parse(data);
  const rest = JSON.stringify(options).slice(1);
  if (format === "JSON") return `{"data":${data}${rest === "}" ? "" : ","}${rest}`;
  if (typeof value !== "string") throw new Error("The data must be a JSON string.");
  const bytes = [...new TextEncoder().encode(value)].map((byte) => String.fromCharCode(byte)).join("");
  return { ...options, data_base64: btoa(bytes) };
}

// The fields of a form that the driver of a tube has.
export const fieldsOf = ({ task_options: known }, fields) =>
  fields.filter(({ name }) => !known || name === "data" || known.includes(name));

// `task`: {text, format, utube, pri} of a task that is put again.
export function openPut(segments, tube, task) {
  const { text = "", format = "JSON", utube, pri } = task ?? {};
  openForm({
    title: task ? "Put it again" : "Put a task",
    button: "Put",
    message: ({ status }) => (status === 201 ? "The task is put." : "Nothing is put: a task has this key already."),
    fields: fieldsOf(tube, [
      { name: "data", label: `Data, as ${format}`, type: "area", value: text, isRequired: true },
      ...(tube.lanes === null ? [] : [{ name: "utube", label: "Lane", type: "text", value: utube ?? "" }]),
      { name: "pri", label: "Priority", type: "number", value: pri || "", help: "Lower numbers are taken first." },
      { name: "delay", label: "Delay in seconds", type: "number" },
      { name: "key", label: "Key", type: "text", help: "Only one task of the tube can have this key." },
    ]),
    request: ({ data, ...options }) => ["POST", path([...segments, "tasks"]), withData(data, format, options), { raw: true }],
  });
}
