// Parts of views: texts, links, charts, tables, messages and dialogs.

import { useEffect, useLayoutEffect, useRef, useState } from "./preact.js";
import { access, ago, call, copy, count, html, href, printable, refresh, select, store, useStore } from "./lib.js";

export const STATES = ["ready", "taken", "delayed", "buried"];

// Text from a client, which may be written from right to left.
export const Text = ({ of, limit }) => html`<bdi>${printable(of, limit)}</bdi>`;

export const Link = ({ to, query, children, ...rest }) => html`<a href=${href(to, query)} ...${rest}>${children}</a>`;

export const TubeLink = ({ namespace, name }) =>
  html`<${Link} to=${[namespace, "tubes", name]}><${Text} of=${name} limit=${60} /><//>`;

export const Badge = ({ kind = "", children }) => html`<span class="badge ${kind}">${children}</span>`;

export const Progress = ({ of }) => of != null && html` <progress max="1" value=${of} aria-label="progress"></progress>`;

export function Time({ at, text }) {
  if (at == null) return "–";
  const date = new Date(at * 1000);
  const moment = Number.isNaN(date.getTime()) ? String(at) : date.toISOString();
  return html`<time datetime=${moment} title=${moment}>${text ?? ago(at)}</time>`;
}

export const Empty = ({ children }) => html`<p class="empty">${children}</p>`;

export const Problem = ({ error }) => html`<p class="problem" role="alert">${printable(error.message, 500)}</p>`;

// Show the data of `useGet`, a note while they load, and after a failure the error above the last data.
export function Loaded({ state, children }) {
  const problem = state.error && html`<${Problem} error=${state.error} />`;
  if (state.data === undefined) return problem || html`<p class="empty" aria-busy="true">Loading…</p>`;
  return html`${problem}${children(state.data)}`;
}

export function Card({ label, value, kind = "", note, to, query }) {
  const facts = html`<dl><dt>${label}</dt><dd class=${kind}>${value}</dd>
    ${note && html`<dd class="note">${note}</dd>`}</dl>`;
  return html`<div class="card">${to ? html`<${Link} to=${to} query=${query}>${facts}<//>` : facts}</div>`;
}

export function CopyButton({ text }) {
  const [isCopied, setCopied] = useState(false);
  const onClick = () =>
    Promise.resolve(copy(text)).then(() => setCopied(true), () => notify("The text could not be copied.", true));
  useEffect(() => {
    const timer = setTimeout(() => setCopied(false), 1500);
    return () => clearTimeout(timer);
  }, [isCopied]);
  return html`<button type="button" class="small" onClick=${onClick}>${isCopied ? "Copied" : "Copy"}</button>`;
}

// -- charts -----------------------------------------------------------------------------------------------------------

// `at`: the times of the values; without them the values are equally spaced. An unknown value (null), or more than
// `longest` between two times, is a gap in the line.
function Line({ name, values, at = [...values.keys()], width, height, largest, longest = Infinity }) {
  const length = at[at.length - 1] - at[0] || 1;
  const x = (index) => ((at[index] - at[0]) / length) * width;
  const isJoined = (index) => values[index - 1] != null && at[index] - at[index - 1] <= longest;
  const point = (value, index) =>
    value == null ? "" : `${isJoined(index) ? "L" : "M"}${x(index)} ${height - (value / largest) * height}`;
  return html`<path class="line ${name}" d=${values.map(point).join("")} />`;
}

// Rates are changes since the sample before, so the first one is unknown.
export const rates = (values) => values.map((value, index) => (index ? value : null));

// A small chart without axes. `series`: lists of numbers by name.
export function Spark({ series, label }) {
  const largest = Math.max(...Object.values(series).flat(), 0);
  const names = largest ? Object.keys(series) : [];
  return html`<svg class="spark" viewBox="0 -1 100 26" preserveAspectRatio="none" role="img" aria-label=${label}>
    ${names.map((name) => html`<${Line} name=${name} values=${series[name]} width=${100} height=${24} largest=${largest} />`)}
  </svg>`;
}

// A chart of several series over time, with the values under the pointer.
export function Chart({ title, at, series, format }) {
  const [pointer, setPointer] = useState(null); // From 0, the left, to 1.
  const names = Object.keys(series);
  const largest = Math.max(...names.flatMap((name) => series[name]), 0);
  const last = at.length - 1;
  const steps = at.slice(1).map((moment, index) => moment - at[index]).sort((first, second) => first - second);
  const longest = 3 * (steps[steps.length >> 1] ?? 0);
  const distance = (moment) => Math.abs(moment - at[0] - pointer * (at[last] - at[0]));
  const nearest = (best, moment, each) => (distance(moment) < distance(at[best]) ? each : best);
  const index = pointer === null ? last : at.reduce(nearest, 0);
  const follow = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    setPointer(Math.min(Math.max((event.clientX - box.left) / box.width, 0), 1));
  };
  const values = names.map((name) => [name, `${name} ${format(series[name][index])}`]);
  const label = `${title}: ${values.map(([, text]) => text).join(", ")}`;
  const line = (name) => html`<${Line} name=${name} values=${series[name]} at=${at} width=${600} height=${122}
    largest=${largest || 1} longest=${longest} />`;
  return html`<figure class="chart">
    <figcaption><span>${title}</span><span class="legend">
      ${values.map(([name, text]) => html`<span class="key ${name}">${text}</span>`)}
      <span class="muted">${ago(at[index])}</span></span></figcaption>
    <div class="plot"><span class="largest">${format(largest)}</span>
      <svg viewBox="0 -2 600 126" preserveAspectRatio="none" role="img" aria-label=${label}
        onPointerMove=${follow} onPointerLeave=${() => setPointer(null)}>
        <path class="grid" d="M0 0H600M0 61H600M0 122H600" />${names.map(line)}
        ${pointer !== null && html`<path class="cursor" d=${`M${pointer * 600} 0V122`} />`}
      </svg></div>
    <div class="ends"><span>${last > 0 ? ago(at[0]) : "the history begins now"}</span><span>now</span></div>
  </figure>`;
}

export function Bars({ title, values, labels }) {
  const largest = Math.max(...values, 1);
  const bar = (value, index) => html`<li><span>${labels[index]}</span>
    <meter min="0" max=${largest} value=${value} aria-label=${labels[index]}></meter>
    <span class="number">${count(value)}</span></li>`;
  return html`<figure class="chart"><figcaption><span>${title}</span></figcaption>
    <ul class="bars">${values.map(bar)}</ul></figure>`;
}

// -- tables -----------------------------------------------------------------------------------------------------------

// `columns`: [title, kind, sort]. The kind "number" is aligned right. `sort`: the current one.
export function Table({ caption, columns, rows, sort, onSort }) {
  const head = ([title, kind = "", word]) => {
    if (!word) return html`<th scope="col" class=${kind}>${title}</th>`;
    const order = word !== sort ? "none" : word === "name" ? "ascending" : "descending";
    return html`<th scope="col" class=${kind} aria-sort=${order}>
      <button type="button" onClick=${() => onSort(word)}>${title}</button></th>`;
  };
  const box = useRef(null);
  useLayoutEffect(() => {
    // A narrow page shows each row as a card, with the titles beside the values.
    for (const row of box.current.querySelectorAll("tbody tr")) {
      [...row.cells].forEach((cell, index) => (cell.dataset.title = columns[index][0]));
    }
  });
  return html`<div class="scroll" role="region" aria-label=${caption} tabindex="0" ref=${box}><table>
    <caption class="hidden">${caption}</caption>
    <thead><tr>${columns.map(head)}</tr></thead><tbody>${rows}</tbody></table></div>`;
}

// Buttons to other pages of a list. `back`, `more`: functions, or null at the end of the list.
export function Pager({ back, more, children, labels = ["Previous", "Next"] }) {
  if (!back && !more) return null;
  return html`<nav class="pager" aria-label="Pages">
    <button type="button" disabled=${!back} onClick=${back}>${labels[0]}</button><span>${children}</span>
    <button type="button" disabled=${!more} onClick=${more}>${labels[1]}</button></nav>`;
}

// A pager of a list with an offset.
export function OffsetPager({ offset, size, shown, total, onMove }) {
  const back = offset > 0 ? () => onMove(Math.max(Math.min(offset, total) - size, 0)) : null;
  const more = offset + shown < total ? () => onMove(offset + size) : null;
  return html`<${Pager} back=${back} more=${more}>${shown ? `${count(offset + 1)} to ${count(offset + shown)}` : "none"} of ${count(total)}<//>`;
}

// An input that reports its text when the user pauses or leaves it. Until then it ignores changes of `value`.
export function Search({ label, value = "", onChange, placeholder = "", type = "search" }) {
  const [typed, setTyped] = useState(null);
  const timer = useRef(0);
  const report = (text) => {
    clearTimeout(timer.current);
    onChange(text);
    setTyped(null);
  };
  const onInput = ({ target }) => {
    setTyped(target.value);
    clearTimeout(timer.current);
    timer.current = setTimeout(report, 400, target.value);
  };
  const flush = () => typed !== null && report(typed);
  useEffect(() => () => clearTimeout(timer.current), []);
  return html`<label class="field"><span>${label}</span><input type=${type} value=${typed ?? value}
    placeholder=${placeholder} onInput=${onInput} onChange=${flush} onBlur=${flush} spellcheck=${false} /></label>`;
}

export function Choice({ label, value, options, onChange }) {
  const option = ([word, title]) => html`<option value=${word} selected=${word === value}>${title}</option>`;
  return html`<label class="field"><span>${label}</span>
    <select value=${value} onChange=${(event) => onChange(event.target.value)}>${options.map(option)}</select></label>`;
}

export const Button = ({ onClick, kind = "", isDisabled = false, children }) =>
  html`<button type="button" class=${kind} disabled=${isDisabled} onClick=${onClick}>${children}</button>`;

export function Menu({ label, children }) {
  const [isOpen, setOpen] = useState(false);
  const onKeyDown = (event) => event.key === "Escape" && setOpen(false);
  const onFocusOut = (event) => event.currentTarget.contains(event.relatedTarget) || setOpen(false);
  return html`<div class="menu" onKeyDown=${onKeyDown} onFocusOut=${onFocusOut}>
    <button type="button" aria-expanded=${isOpen} onClick=${() => setOpen(!isOpen)}>${label}…</button>
    ${isOpen && html`<div class="items" onClick=${() => setOpen(false)}>${children}</div>`}</div>`;
}

// -- messages ---------------------------------------------------------------------------------------------------------

const message = store(null);

const notify = (text, isProblem = false) => message.set({ text, isProblem });

function notifyOf(text, reply, values) {
  const shown = typeof text === "function" ? text(reply, values) : text;
  if (shown) notify(shown);
}

export function Messages() {
  const last = useStore(message);
  useEffect(() => {
    if (!last || last.isProblem) return;
    const timer = setTimeout(() => message.set(null), 6000);
    return () => clearTimeout(timer);
  }, [last]);
  return html`<div class="messages" role=${last?.isProblem ? "alert" : "status"} aria-live="polite">
    ${last && html`<p class="message ${last.isProblem ? "problem" : ""}"><span>${printable(last.text, 500)}</span>
      <button type="button" class="small" onClick=${() => message.set(null)}>Close</button></p>`}</div>`;
}

// Call the API, show a message or the error, and refresh the views. `text`: the message, or a function of the reply
// that may return one.
export async function callAndNotify(text, method, address, body) {
  try {
    notifyOf(text, await call(method, address, body));
  } catch (error) {
    notify(error.message, true);
  } finally {
    refresh();
  }
}

// -- dialogs ----------------------------------------------------------------------------------------------------------

const dialog = store(null);
const closeDialog = () => dialog.set(null);
// A dialog belongs to the view and to the token with which it was opened.
addEventListener("hashchange", closeDialog);
access.subscribe(closeDialog);

export function Dialogs() {
  const form = useStore(dialog);
  return form && html`<${Form} ...${form} close=${closeDialog} />`;
}

function Modal({ title, close, children }) {
  const box = useRef(null);
  const isOver = useRef(false);
  useLayoutEffect(() => {
    const element = box.current;
    const opener = document.activeElement;
    element.showModal();
    return () => {
      isOver.current = true;
      element.close(); // Nothing outside of an open dialog can have the focus.
      (opener?.isConnected ? opener : document.getElementById("main")).focus();
    };
  }, []);
  // Escape: the browser would hide the dialog before this page knows, and a dialog opened meanwhile would be lost.
  const onCancel = (event) => (event.preventDefault(), close());
  return html`<dialog ref=${box} aria-labelledby="dialog-title" onCancel=${onCancel} onClose=${() => isOver.current || close()}>
    <h2 id="dialog-title">${title}</h2>${children}</dialog>`;
}

// `field`: {name, label, type, value, help, options, isRequired}. Types: text, number, flag, choice, area.
function Field({ field, value, onChange }) {
  const { type, label, help, options } = field;
  const id = `field-${field.name}`;
  const onInput = (event) => onChange(type === "flag" ? event.target.checked : event.target.value);
  const rest = { id, required: field.isRequired, "aria-describedby": help && `${id}-help`, onInput };
  const note = help && html`<small id=${id + "-help"}>${help}</small>`;
  if (type === "flag") {
    return html`<label class="flag"><input type="checkbox" ...${rest} checked=${value} /> ${label}</label>${note}`;
  }
  const option = (word) => html`<option selected=${word === value}>${word}</option>`;
  const input = {
    choice: () => html`<select ...${rest} value=${value}>${options.map(option)}</select>`,
    area: () => html`<textarea ...${rest} rows="12" spellcheck=${false} value=${value}></textarea>`,
    number: () => html`<input ...${rest} type="number" step="any" value=${value} />`,
    text: () => html`<input ...${rest} type="text" autocomplete="off" spellcheck=${false} value=${value} />`,
  }[type];
  return html`<label class="field" for=${id}><span>${label}</span>${input()}</label>${note}`;
}

// Return the values of a form, without empty fields and unset flags. Numbers are converted.
function readFields(fields, values) {
  const filled = fields.filter(({ name }) => values[name] !== "" && values[name] !== false);
  return Object.fromEntries(filled.map(({ name, type }) => [name, type === "number" ? Number(values[name]) : values[name]]));
}

// Ask for values, and submit them. `submit(values, report, signal)`: returns a promise; the dialog shows its error.
// `preview(report, signal)`: returns a promise of the number of tasks to change, which the title shows.
// `confirmed`: a name that the user must type first.
function Form({ title, text, fields = [], button, isDanger, confirmed, preview, submit, close }) {
  const [values, setValues] = useState(() => Object.fromEntries(fields.map(({ name, value = "" }) => [name, value])));
  const [typed, setTyped] = useState("");
  const [found, setFound] = useState(null);
  const [state, setState] = useState({ isBusy: false });
  const controller = useRef(new AbortController());
  const { signal } = controller.current;

  useEffect(() => {
    preview?.(setFound, signal).then(setFound, (error) => signal.aborted || setState({ error }));
    return () => controller.current.abort();
  }, []);
  const done = useRef(0);
  const report = (changed) => {
    done.current = changed;
    setState({ isBusy: true, changed });
  };
  const onSubmit = async (event) => {
    event.preventDefault();
    setState({ isBusy: true });
    try {
      await submit(readFields(fields, values), report, signal);
      close();
    } catch (error) {
      const changed = done.current ? `${count(done.current)} or more tasks are changed` : "a change may have been made";
      if (signal.aborted) notify(`Stopped: ${changed}.`);
      else setState({ error });
    } finally {
      refresh();
    }
  };

  const isLocked = state.isBusy || (preview && !found) || (confirmed !== undefined && typed !== confirmed);
  const field = (each) => html`<${Field} key=${each.name} field=${each} value=${values[each.name]}
    onChange=${(value) => setValues((old) => ({ ...old, [each.name]: value }))} />`;
  const heading = preview ? `${title}: ${found === null ? "…" : count(found)} ${found === 1 ? "task" : "tasks"}` : title;
  return html`<${Modal} title=${heading} close=${close}><form onSubmit=${onSubmit}>
    ${text && [text].flat().map((each) => html`<p>${each}</p>`)}${fields.map(field)}
    ${confirmed !== undefined && html`<label class="field"><span>Type <b><${Text} of=${confirmed} limit=${255} /></b> to confirm</span>
      <input type="text" autocomplete="off" value=${typed} onInput=${(event) => setTyped(event.target.value)} /></label>`}
    ${state.changed !== undefined && html`<label class="field"><span>${count(state.changed)} of ${count(found)}</span>
      <progress max=${Math.max(found, state.changed, 1)} value=${state.changed}></progress></label>`}
    ${state.error && html`<${Problem} error=${state.error} />`}
    <div class="buttons"><${Button} onClick=${close}>${state.isBusy ? "Stop" : "Cancel"}<//>
    <button type="submit" class=${isDanger ? "danger" : "primary"} disabled=${isLocked}>${button}</button></div>
  </form><//>`;
}

// Open a form that makes the call of `request(values)`, shows `message` like `callAndNotify`, also as a function of the
// reply and the values, and goes to the address `next`.
export function openForm({ message: text, request, next, ...form }) {
  const submit = async (values, report, signal) => {
    const [method, address, body] = await request(values);
    notifyOf(text, await call(method, address, body, { signal }), values);
    if (next !== undefined) location.hash = next;
  };
  if (dialog.get() === null) dialog.set({ submit, ...form }); // A late reply replaces no open dialog.
}

// -- actions on many tasks --------------------------------------------------------------------------------------------

const REASON = { name: "reason", label: "Reason", type: "text", help: "Shown with the tasks; may be empty." };
const ATTEMPTS = { name: "attempts", label: "More attempts", type: "number", help: "Empty: one more if none are left." };
const TARGET = { name: "to", label: "To the tube", type: "text", isRequired: true };
// Action -> its title, the participle in its message, the fields of its form, its help, whether it can do harm, and the
// states in which it has no effect.
export const ACTIONS = {
  kick: ["Kick", "kicked", [ATTEMPTS], "Buried and delayed tasks become ready.", false, ["ready", "taken", "done"]],
  release: ["Release", "released", [], "Taken tasks become ready, even if a client is still working on them.", true, ["ready", "delayed", "buried", "done"]],
  bury: ["Bury", "buried", [REASON], "The tasks stay buried until they are kicked.", false, ["buried", "done"]],
  cancel: ["Cancel tasks", "cancelled", [REASON], "The tasks end; the holder of a taken task is notified.", true, ["done"]],
  move: ["Move", "moved", [TARGET], "The tasks get new ids in the other tube.", false, ["taken", "done"]],
  delete: ["Delete", "deleted", [], "The tasks are removed. This cannot be undone.", true, []],
};

// Open a form that counts tasks, changes them and shows the progress. `filters`: those of a selection, or {ids}.
// `onDone`: called after the change.
export function openBulk(namespace, tube, action, filters, onDone = () => {}) {
  const [title, participle, fields, help, isDanger] = ACTIONS[action];
  const words = Object.entries(filters).map(([name, value]) => `${name} ${printable(value, 60)}`);
  const which = filters.ids ? "The selected tasks" : words.length ? `Tasks with ${words.join(", ")}` : "All tasks except done ones";
  const confirmed = isDanger && !filters.ids && !words.length ? tube : undefined;
  const preview = (report, signal) => select(namespace, tube, { ...filters, action: "count" }, report, signal);
  const submit = async (values, report, signal) => {
    report(0);
    const changed = await select(namespace, tube, { ...filters, action, with: values }, report, signal);
    notify(`${count(changed)} ${changed === 1 ? "task" : "tasks"} ${participle}.`);
    onDone();
  };
  dialog.set({ title, text: `${which}, in ${printable(tube, 60)}. ${help}`, fields, button: title, isDanger, confirmed, preview, submit });
}

// Open a form for an action that needs only a reason.
export const reasonForm = (title, button, message, address, isDanger) =>
  openForm({ title, button, message, isDanger, fields: [REASON], request: (values) => ["POST", address, values] });

