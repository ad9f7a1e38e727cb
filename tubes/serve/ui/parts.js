// Parts of views: links, badges, charts, tables, dialogs and messages.

import { useEffect, useRef, useState } from "./preact.js";
import { call, copy, count, html, href, now, Problem, refresh, select, shown, span, store, useStore } from "./lib.js";

export const STATES = ["ready", "taken", "delayed", "buried"];

export const Name = ({ of, most = 80 }) => html`<bdi title=${shown(of, 1000)}>${shown(of, most)}</bdi>`;

export const Link = ({ to, query, children, ...rest }) => html`<a href=${href(to, query)} ...${rest}>${children}</a>`;

export const Badge = ({ kind, children }) => html`<span class="badge ${kind}">${children}</span>`;

export function Time({ at, text }) {
  if (at === null || at === undefined) return "–";
  const date = new Date(at * 1000);
  const moment = Number.isNaN(date.getTime()) ? String(at) : date.toISOString();
  return html`<time datetime=${moment} title=${moment}>${text}</time>`;
}

export const Empty = ({ children }) => html`<p class="empty">${children}</p>`;

// What to show instead of data that is not there yet, or the error that it met.
export function Waiting({ state, children }) {
  const note = state.error && html`<p class="problem" role="alert">${shown(state.error.message, 500)}</p>`;
  if (state.data === undefined) return note || html`<p class="empty" aria-busy="true">Loading…</p>`;
  return html`${note}${children(state.data)}`;
}

export function Card({ label, value, kind, note, to, query }) {
  const inner = html`<dt>${label}</dt><dd class=${kind || ""}>${value}</dd>${note && html`<dd class="note">${note}</dd>`}`;
  return html`<div class="card">${to ? html`<${Link} to=${to} query=${query}><dl>${inner}</dl><//>` : html`<dl>${inner}</dl>`}</div>`;
}

export function CopyButton({ text, label = "Copy" }) {
  const [isDone, setDone] = useState(false);
  const act = () => Promise.resolve(copy(text)).then(() => setDone(true), () => say("It could not be copied.", true));
  useEffect(() => {
    if (!isDone) return;
    const timer = setTimeout(() => setDone(false), 1500);
    return () => clearTimeout(timer);
  }, [isDone]);
  return html`<button type="button" class="small" onClick=${act}>${isDone ? "Copied" : label}</button>`;
}

// -- charts -----------------------------------------------------------------------------------------------------------

function points(values, width, height, most) {
  const step = width / Math.max(values.length - 1, 1);
  return values.map((value, index) => `${(index * step).toFixed(1)},${(height - (value / most) * height).toFixed(1)}`).join(" ");
}

// A small line without axes. `series`: lists of numbers by name.
export function Spark({ series, label }) {
  const most = Math.max(...Object.values(series).flat(), 0);
  const lines = most ? Object.entries(series).filter(([, values]) => values.length > 1) : [];
  return html`<svg class="spark" viewBox="0 -1 100 26" preserveAspectRatio="none" role="img" aria-label=${label}>
    ${lines.map(([name, values]) => html`<polyline class="line ${name}" points=${points(values, 100, 24, most)} />`)}
  </svg>`;
}

// A chart of several series over time, with the values under the pointer.
export function Chart({ title, at, series, format }) {
  const [place, setPlace] = useState(null);
  const names = Object.keys(series);
  const most = Math.max(...names.flatMap((name) => series[name]), 1e-9);
  const index = place === null ? at.length - 1 : Math.min(Math.round(place * (at.length - 1)), at.length - 1);
  const follow = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    setPlace(Math.min(Math.max((event.clientX - box.left) / box.width, 0), 1));
  };
  const values = names.map((name) => `${name} ${format(series[name][index] ?? 0)}`).join(", ");
  const when = at.length ? (place === null ? "now" : `${span(at[at.length - 1] - at[index])} before`) : "";
  return html`<figure class="chart">
    <figcaption>
      <span>${title}</span>
      <span class="legend">${names.map((name) => html`<span class="key ${name}">${name} ${format(series[name][index] ?? 0)}</span>`)}
      <span class="muted">${when}</span></span>
    </figcaption>
    <div class="plot">
      <span class="most">${format(most < 1e-6 ? 0 : most)}</span>
      <svg viewBox="0 -2 600 126" preserveAspectRatio="none" role="img" aria-label=${`${title}: ${values}`}
        onPointerMove=${follow} onPointerLeave=${() => setPlace(null)}>
        <path class="grid" d="M0 0H600M0 61H600M0 122H600" />
        ${names.map((name) => html`<polyline class="line ${name}" points=${points(series[name], 600, 122, most)} />`)}
        ${place !== null && html`<path class="cursor" d=${`M${(index / Math.max(at.length - 1, 1)) * 600} 0V122`} />`}
      </svg>
    </div>
    <div class="ends"><span>${at.length > 1 ? `${span(at[at.length - 1] - at[0])} ago` : "the history begins now"}</span><span>now</span></div>
  </figure>`;
}

export function Bars({ title, values, labels }) {
  const most = Math.max(...values, 1);
  return html`<figure class="chart"><figcaption><span>${title}</span></figcaption>
    <ul class="bars">${values.map((value, index) => html`<li>
      <span>${labels[index]}</span><meter min="0" max=${most} value=${value} aria-label=${labels[index]}></meter><span class="number">${count(value)}</span>
    </li>`)}</ul></figure>`;
}

// -- tables -----------------------------------------------------------------------------------------------------------

// `columns`: {name, title, kind: "number" or "", sort, hide: "narrow" or ""}. `sort`: the current one; `onSort`: its change.
export function Table({ caption, columns, rows, sort, onSort }) {
  const head = (column) =>
    column.sort
      ? html`<th scope="col" class=${column.kind} aria-sort=${column.sort === sort ? (sort === "name" ? "ascending" : "descending") : "none"}>
          <button type="button" onClick=${() => onSort(column.sort)}>${column.title}</button></th>`
      : html`<th scope="col" class=${column.kind}>${column.title}</th>`;
  return html`<div class="scroll" role="region" aria-label=${caption} tabindex="0"><table>
    <caption class="hidden">${caption}</caption>
    <thead><tr>${columns.map(head)}</tr></thead>
    <tbody>${rows}</tbody>
  </table></div>`;
}

export function Pager({ first, shownCount, total, onMove, size }) {
  if (total <= size && first === 0) return null;
  return html`<nav class="pager" aria-label="Pages">
    <button type="button" disabled=${first === 0} onClick=${() => onMove(Math.max(first - size, 0))}>Previous</button>
    <span>${count(first + 1)} to ${count(first + shownCount)} of ${count(total)}</span>
    <button type="button" disabled=${first + shownCount >= total} onClick=${() => onMove(first + size)}>Next</button>
  </nav>`;
}

// An input that reports its text when the user pauses.
export function Search({ label, value, onChange, placeholder }) {
  const timer = useRef(0);
  const onInput = (event) => {
    const text = event.target.value;
    clearTimeout(timer.current);
    timer.current = setTimeout(() => onChange(text), 300);
  };
  useEffect(() => () => clearTimeout(timer.current), []);
  return html`<label class="field"><span>${label}</span>
    <input type="search" value=${value || ""} placeholder=${placeholder || ""} onInput=${onInput} spellcheck=${false} /></label>`;
}

export function Choice({ label, value, options, onChange }) {
  return html`<label class="field"><span>${label}</span><select value=${value} onChange=${(event) => onChange(event.target.value)}>
    ${options.map(([word, title]) => html`<option value=${word} selected=${word === value}>${title}</option>`)}</select></label>`;
}

// -- messages ---------------------------------------------------------------------------------------------------------

const message = store(null);

export function say(text, isProblem = false) {
  message.set({ text, isProblem, at: now() });
}

export function Messages() {
  const last = useStore(message);
  useEffect(() => {
    if (!last || last.isProblem) return;
    const timer = setTimeout(() => message.set(null), 6000);
    return () => clearTimeout(timer);
  }, [last]);
  return html`<div class="messages" role=${last?.isProblem ? "alert" : "status"} aria-live="polite">
    ${last && html`<p class=${last.isProblem ? "message problem" : "message"}><span>${shown(last.text, 500)}</span>
      <button type="button" class="small" onClick=${() => message.set(null)}>Close</button></p>`}</div>`;
}

// Change something through the API: say the result, and show the new state.
export async function act(done, method, path, body) {
  try {
    const reply = await call(method, path, body);
    say(done);
    return reply ?? true;
  } catch (error) {
    say(error.message, true);
    return null;
  } finally {
    refresh();
  }
}

// -- dialogs ----------------------------------------------------------------------------------------------------------

const dialog = store(null);

export const open = (component, props) => dialog.set({ component, props });

export function Dialogs() {
  const current = useStore(dialog);
  if (!current) return null;
  return html`<${current.component} ...${current.props} close=${() => dialog.set(null)} />`;
}

function Modal({ title, close, children }) {
  const box = useRef(null);
  const isOver = useRef(false);
  useEffect(() => {
    const element = box.current;
    const opener = document.activeElement;
    element.showModal();
    return () => {
      isOver.current = true;
      element.close(); // Nothing outside of an open dialog can have the focus.
      if (opener?.isConnected) opener.focus();
    };
  }, []);
  return html`<dialog ref=${box} aria-labelledby="dialog-title" onClose=${() => isOver.current || close()}>
    <h2 id="dialog-title">${title}</h2>${children}</dialog>`;
}

// `field`: {name, label, type, value, help, options, isRequired}. Types: text, number, flag, choice, json, area.
function Field({ field, value, onChange }) {
  const id = `field-${field.name}`;
  const help = field.help && html`<small id=${id + "-help"}>${field.help}</small>`;
  const rest = { id, required: field.isRequired, "aria-describedby": field.help ? id + "-help" : undefined };
  const onInput = (event) => onChange(event.target.value);
  if (field.type === "flag") {
    const toggle = (event) => onChange(event.target.checked);
    return html`<label class="flag"><input type="checkbox" ...${rest} checked=${value} onChange=${toggle} /> ${field.label}</label>${help}`;
  }
  const input =
    field.type === "choice"
      ? html`<select ...${rest} value=${value} onChange=${onInput}>${field.options.map((word) => html`<option selected=${word === value}>${word}</option>`)}</select>`
      : field.type === "area"
        ? html`<textarea ...${rest} rows="12" spellcheck=${false} value=${value} onInput=${onInput}></textarea>`
        : html`<input ...${rest} type=${field.type === "number" ? "number" : "text"} step="any" autocomplete="off" spellcheck=${false} value=${value} onInput=${onInput} />`;
  return html`<label class="field" for=${id}><span>${field.label}</span>${input}</label>${help}`;
}

// The values of a form: numbers as numbers, without empty fields.
function read(fields, values) {
  const found = {};
  for (const { name, type, isKept } of fields) {
    const value = values[name];
    if (value === "" || value === undefined || (value === false && !isKept)) continue;
    found[name] = type === "number" ? Number(value) : value;
  }
  return found;
}

// Ask for values and act. `submit(values)` returns a promise; an error stays in the dialog. `confirmed`: a name that the
// user has to type first.
export function Form({ title, text, fields = [], button, isDanger, confirmed, submit, close }) {
  const [values, setValues] = useState(() => Object.fromEntries(fields.map((field) => [field.name, field.value ?? ""])));
  const [typed, setTyped] = useState("");
  const [state, setState] = useState({});
  const onSubmit = async (event) => {
    event.preventDefault();
    setState({ isBusy: true });
    try {
      await submit(read(fields, values));
      close();
    } catch (error) {
      setState({ error });
    }
  };
  const isLocked = state.isBusy || (confirmed !== undefined && typed !== confirmed);
  return html`<${Modal} title=${title} close=${close}><form onSubmit=${onSubmit}>
    ${text && html`<p>${text}</p>`}
    ${fields.map((field) => html`<${Field} key=${field.name} field=${field} value=${values[field.name]}
      onChange=${(value) => setValues((old) => ({ ...old, [field.name]: value }))} />`)}
    ${confirmed !== undefined && html`<label class="field"><span>Type <b><${Name} of=${confirmed} most=${200} /></b> to confirm</span>
      <input type="text" autocomplete="off" spellcheck=${false} value=${typed} onInput=${(event) => setTyped(event.target.value)} /></label>`}
    ${state.error && html`<p class="problem" role="alert">${shown(state.error.message, 500)}</p>`}
    <div class="buttons"><button type="button" onClick=${close}>Cancel</button>
    <button type="submit" class=${isDanger ? "danger" : "primary"} disabled=${isLocked}>${button}</button></div>
  </form><//>`;
}

// Open a form that makes one call and says `done`.
export function ask({ done, request, ...form }) {
  const submit = async (values) => {
    const [method, path, body] = request(values);
    await call(method, path, body);
    say(done);
    refresh();
  };
  open(Form, { ...form, submit });
}

// -- actions on many tasks --------------------------------------------------------------------------------------------

const ATTEMPTS = { name: "attempts", label: "More attempts", type: "number", help: "Attempts that each task gets; empty: as its tube says." };
const REASON = { name: "reason", label: "Reason", type: "text", help: "Shown with the tasks; may be empty." };
export const ACTIONS = {
  kick: { title: "Kick", done: "kicked", fields: [ATTEMPTS], help: "Buried and delayed tasks become ready; kept done tasks are put again." },
  release: { title: "Release", done: "released", fields: [], help: "Taken tasks become ready, although somebody still works on them.", isDanger: true },
  bury: { title: "Bury", done: "buried", fields: [REASON], help: "Nobody takes the tasks until they are kicked." },
  cancel: { title: "Cancel tasks", done: "cancelled", fields: [REASON], help: "Waiting tasks end; whoever works on one is told to stop.", isDanger: true },
  move: { title: "Move", done: "moved", fields: [{ name: "to", label: "To the tube", type: "text", isRequired: true }], help: "The tasks get new ids in the other tube." },
  delete: { title: "Delete", done: "deleted", fields: [], help: "The tasks are removed. This cannot be undone.", isDanger: true },
};

// Preview, change and follow many tasks. `filters`: those of a selection, or {ids}.
export function Bulk({ namespace, tube, action, filters, close }) {
  const { title, done, fields, help, isDanger } = ACTIONS[action];
  const [found, setFound] = useState(null);
  const [values, setValues] = useState({});
  const [state, setState] = useState({});
  const controller = useRef(new AbortController());

  useEffect(() => {
    const signal = controller.current.signal;
    const preview = filters.ids
      ? Promise.resolve(filters.ids.length)
      : select(namespace, tube, { ...filters, action: "count" }, setFound, signal);
    preview.then(setFound, (error) => !signal.aborted && setState({ error }));
    return () => controller.current.abort();
  }, []);

  const onSubmit = async (event) => {
    event.preventDefault();
    setState({ isBusy: true, changed: 0 });
    const body = { ...filters, action, with: read(fields, values) };
    try {
      const changed = await select(namespace, tube, body, (number) => setState({ isBusy: true, changed: number }), controller.current.signal);
      say(`${count(changed)} ${changed === 1 ? "task" : "tasks"} ${done}.`);
      close();
    } catch (error) {
      if (error.name === "AbortError") say("Stopped. The tasks of the parts that were done stay changed.", true);
      else setState({ error });
    } finally {
      refresh();
    }
  };
  const words = Object.entries(filters).filter(([name]) => name !== "ids").map(([name, value]) => `${name} ${shown(value, 60)}`);
  return html`<${Modal} title=${`${title}: ${found === null ? "…" : count(found)} ${found === 1 ? "task" : "tasks"}`} close=${close}><form onSubmit=${onSubmit}>
    <p>${help}</p>
    <p class="muted">${filters.ids ? `The selected tasks of ${shown(tube, 60)}.` : words.length ? `Tasks of ${shown(tube, 60)} with ${words.join(", ")}.` : `All tasks of ${shown(tube, 60)} that are not done.`}</p>
    ${!state.isBusy && fields.map((field) => html`<${Field} key=${field.name} field=${field} value=${values[field.name] ?? ""}
      onChange=${(value) => setValues((old) => ({ ...old, [field.name]: value }))} />`)}
    ${state.isBusy && html`<label class="field"><span>${count(state.changed)} of ${count(found)}</span><progress max=${Math.max(found ?? 1, state.changed, 1)} value=${state.changed}></progress></label>`}
    ${state.error && html`<p class="problem" role="alert">${shown(state.error.message, 500)}</p>`}
    <div class="buttons"><button type="button" onClick=${close}>${state.isBusy ? "Stop" : "Cancel"}</button>
    <button type="submit" class=${isDanger ? "danger" : "primary"} disabled=${state.isBusy || found === null || found === 0}>${title}</button></div>
  </form><//>`;
}
export { Problem };
