// Shared by all views: the REST API, the stream of samples, the address of a view, and formats.

import { html, useEffect, useRef, useState } from "./preact.js";

export { html };

// -- stores: values that components follow ----------------------------------------------------------------------------

export function store(value) {
  const listeners = new Set();
  return {
    get: () => value,
    set(next) {
      value = next;
      for (const listener of [...listeners]) listener(next);
    },
    subscribe(listener) {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
  };
}

export function useStore(followed) {
  const [value, setValue] = useState(followed.get());
  useEffect(() => {
    setValue(followed.get());
    return followed.subscribe(setValue);
  }, [followed]);
  return value;
}

// -- the API ----------------------------------------------------------------------------------------------------------

const ROOT = new URL("../v1", document.baseURI.split("#")[0]).href;
const TOKEN = "tubes-token";

// `turn` grows when the token changes.
export const access = store({ isRefused: false, turn: 0 });

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

// The token is in the fragment of the address only until the page has read it, so that no history or log contains it.
function readToken() {
  const match = /^#token=(.+)$/.exec(location.hash);
  if (!match) return;
  history.replaceState(null, "", location.pathname);
  setToken(decoded(match[1]));
}

// Use this token from now on; null: none.
export function setToken(text) {
  if (text === null) sessionStorage.removeItem(TOKEN);
  else sessionStorage.setItem(TOKEN, text);
  access.set({ isRefused: false, turn: access.get().turn + 1 });
}

readToken();
addEventListener("hashchange", readToken);

export const hasToken = () => sessionStorage.getItem(TOKEN) !== null;

export class Problem extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

// Call the API. `body`: a value, or JSON as text. Returns the value of the reply, or with `raw` the reply itself.
export async function call(method, path, body, { signal, raw = false } = {}) {
  const headers = {};
  const token = sessionStorage.getItem(TOKEN);
  // Tokens contain only these characters, and headers accept no others.
  if (token !== null) headers.authorization = `Bearer ${token.replace(/[^!-~]/g, "?")}`;
  if (body !== undefined) headers["content-type"] = "application/json";
  const text = body === undefined || typeof body === "string" ? body : JSON.stringify(body);
  let reply;
  try {
    reply = await fetch(ROOT + path, { method, headers, body: text, signal, cache: "no-store", redirect: "error" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, "The service cannot be reached.");
  }
  setClock(reply.headers.get("date"));
  if (reply.ok) return raw ? reply : reply.status === 204 ? null : reply.json();
  const problem = await reply.json().catch(() => ({}));
  const isCurrent = token === sessionStorage.getItem(TOKEN);
  if (reply.status === 401 && isCurrent) access.set({ ...access.get(), isRefused: true });
  throw new Problem(reply.status, problem.detail || problem.title || `The service replied ${reply.status}.`);
}

// The own value of a name that may come from an address: each object also has names like "constructor".
export const own = (values, name) => (Object.hasOwn(values, name) ? values[name] : undefined);

const encoded = (segments) => segments.map((segment) => "/" + encodeURIComponent(segment)).join("");

function query(values) {
  const words = new URLSearchParams();
  for (const [name, value] of Object.entries(values || {})) {
    if (value != null && value !== "" && value !== false) words.set(name, value);
  }
  const text = words.toString();
  return text && "?" + text;
}

export const path = (segments, values) => encoded(segments) + query(values);

// Change tasks of a tube, or count them. `report` gets the number of tasks done so far. Returns the last number.
export async function select(namespace, tube, body, report, signal) {
  const reply = await call("POST", path([namespace, "tubes", tube, "select"]), body, { signal, raw: true });
  let done = 0;
  let isFinished = false;
  await readParts(reply, "\n", (line) => {
    if (!line.trim()) return;
    const progress = JSON.parse(line);
    if (progress.done === undefined) throw new Problem(progress.status, progress.detail || progress.title);
    done = progress.done;
    isFinished = Boolean(progress.finished);
    report?.(done);
  });
  if (!isFinished) throw new Problem(0, `The work stopped after ${count(done)} or more tasks.`);
  return done;
}

async function readParts(reply, separator, handle) {
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      const parts = (text + (done ? separator : value)).split(separator);
      text = parts.pop();
      parts.forEach(handle);
      if (done) return;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

// -- the stream of samples --------------------------------------------------------------------------------------------

// "live", "connecting", "hidden" (the page is in the background), "forbidden", or the time of the next try in milliseconds.
export const connection = store("connecting");
// Counters: a view gets its data again when the counter that it follows grows. All grow when this page changes
// something, `ticks` also with the samples, and `minutes` once a minute.
export const ticks = store(0);
export const minutes = store(0);
export const changes = store(0);
const grow = (counter) => counter.set(counter.get() + 1);
export const refresh = () => [changes, minutes, ticks].forEach(grow);

// Milliseconds between two refreshes. The service may read all tubes less often than that.
const INTERVAL = 5000;
const MINUTE = 60_000;
// Milliseconds after which a request without a reply is aborted.
const TIMEOUT = 30_000;

const LONGEST_SILENCE = 40_000;
const LONGEST_PAUSE = 15_000;

// Follow the samples of a namespace until the returned function is called. A page in the background has no stream.
export function follow(namespace) {
  let isOver = false;
  let controller = new AbortController();
  let wake = () => {};
  let pause = 1000;
  let refreshed = 0;

  function refreshLive() {
    if (connection.get() !== "live") return;
    refreshed = Date.now();
    grow(ticks);
  }

  async function listen() {
    controller = new AbortController();
    const watch = () => setTimeout(() => controller.abort(), LONGEST_SILENCE);
    let watchdog = watch();
    try {
      const reply = await call("GET", path([namespace, "samples"]), undefined, { signal: controller.signal, raw: true });
      await readParts(reply, "\n\n", (event) => {
        clearTimeout(watchdog);
        watchdog = watch();
        if (isOver || !event.startsWith("event: sample")) return;
        pause = 1000;
        connection.set("live");
        if (Date.now() - refreshed > INTERVAL / 2) refreshLive();
      });
    } finally {
      clearTimeout(watchdog);
    }
  }

  async function run() {
    while (!isOver) {
      if (document.hidden) {
        connection.set("hidden");
        await new Promise((resolve) => (wake = resolve));
        continue;
      }
      const { status } = await listen().catch((error) => error) ?? {};
      if (isOver || document.hidden) continue;
      if (status === 403) pause = LONGEST_PAUSE;
      connection.set(status === 403 ? "forbidden" : Date.now() + pause);
      const timer = setTimeout(() => wake(), pause);
      await new Promise((resolve) => (wake = resolve));
      clearTimeout(timer);
      pause = Math.min(2 * pause, LONGEST_PAUSE);
    }
  }

  function onVisibility() {
    if (document.hidden) controller.abort();
    else wake();
  }

  const timers = [
    setInterval(refreshLive, INTERVAL),
    setInterval(() => connection.get() === "live" && grow(minutes), MINUTE),
  ];
  document.addEventListener("visibilitychange", onVisibility);
  connection.set("connecting");
  run();
  return () => {
    isOver = true;
    timers.forEach(clearInterval);
    document.removeEventListener("visibilitychange", onVisibility);
    controller.abort();
    wake();
  };
}

// Get a resource, and get it again whenever `counter` grows, with one request at a time.
// Returns {data, error}; new arguments clear the data.
export function useGet(segments, parameters = {}, counter = ticks) {
  const [state, setState] = useState({});
  const turns = new Map([changes, minutes, ticks].map((each) => [each, useStore(each)]));
  const turn = turns.get(counter);
  const running = useRef(null);
  const last = useRef({ address: null, turn: null });
  const address = segments === null ? null : path(segments, parameters);

  useEffect(() => {
    return () => {
      running.current?.abort();
      running.current = null;
    };
  }, []);
  useEffect(() => {
    const isNew = address !== last.current.address;
    if (address === null || (!isNew && (turn === last.current.turn || running.current))) return;
    last.current = { address, turn };
    running.current?.abort();
    const controller = (running.current = new AbortController());
    if (isNew) setState({});
    const timer = setTimeout(() => controller.abort(), TIMEOUT);
    const settle = (next) => {
      clearTimeout(timer);
      if (running.current !== controller) return;
      running.current = null;
      setState(next);
    };
    call("GET", address, undefined, { signal: controller.signal }).then(
      (data) => settle({ data }),
      (error) => settle((old) => ({ ...(error.status === 404 ? {} : old), error })),
    );
  });
  return state;
}

// -- addresses of views -----------------------------------------------------------------------------------------------

// Texts with lone surrogates have no address: the result is undefined.
export const href = (segments, values = {}) =>
  /\p{Cs}/u.test([...segments, ...Object.values(values)]) ? undefined : "#" + encoded(segments) + query(values);

export function readAddress() {
  const [place, words] = location.hash.slice(1).split("?");
  const segments = place.split("/").slice(1).map(decoded).filter(Boolean);
  return { segments, query: Object.fromEntries(new URLSearchParams(words)) };
}

// Change parts of the query of the current address, without a new entry in the history.
export function setQuery(changes) {
  const { segments, query: values } = readAddress();
  history.replaceState(null, "", href(segments, { ...values, ...changes }));
  dispatchEvent(new HashChangeEvent("hashchange"));
}

// -- formats ----------------------------------------------------------------------------------------------------------

const NUMBERS = new Intl.NumberFormat("en");
export const count = (number) => (number == null ? "–" : NUMBERS.format(number));

export function rate(number) {
  if (number == null) return "–";
  if (!number) return "0";
  return number >= 100 ? count(Math.round(number)) : number >= 10 ? number.toFixed(1) : number.toFixed(2);
}

const UNITS = [
  [86400, "d"],
  [3600, "h"],
  [60, "min"],
];

// A duration in seconds as text: "2.5 s", "3 min", "4 h 10 min".
export function span(seconds) {
  if (seconds == null) return "–";
  if (!Number.isFinite(seconds)) return "forever";
  const size = Math.abs(seconds);
  if (size < 0.0005) return "0 s";
  if (size < 1) return `${Math.round(seconds * 1000)} ms`;
  if (size < 60) return `${Number(seconds.toFixed(size < 10 ? 1 : 0))} s`;
  for (const [index, [length, unit]] of UNITS.entries()) {
    if (size < length) continue;
    const whole = Math.trunc(seconds / length);
    const [nextLength, nextUnit] = UNITS[index + 1] || [1, "s"];
    const rest = Math.trunc((size % length) / nextLength);
    return `${count(whole)} ${unit}` + (rest && Math.abs(whole) < 10 ? ` ${rest} ${nextUnit}` : "");
  }
}

// Seconds by which the clock of the service is ahead of the clock of this browser.
let ahead = 0;

function setClock(date) {
  const difference = date === null ? 0 : (Date.parse(date) - Date.now()) / 1000;
  ahead = Math.abs(difference) > 3 ? difference : 0; // The header has whole seconds.
}

export const now = () => Date.now() / 1000 + ahead;

export function ago(moment) {
  if (moment == null) return "–";
  const seconds = now() - moment;
  if (seconds >= 0 && seconds < 1) return "now";
  return seconds > 0 ? `${span(seconds)} ago` : `in ${span(-seconds)}`;
}

export function iso(moment) {
  const date = new Date(moment * 1000);
  return Number.isNaN(date.getTime()) ? String(moment) : date.toISOString().replace("T", " ").replace("Z", " UTC");
}

// Control characters, invisible characters and lone surrogates, which are shown as escapes.
const UNSAFE = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\p{Cs}]/gu;
const escaped = (character) => "\\u" + character.charCodeAt(0).toString(16).padStart(4, "0");

// Text from a client, with unsafe characters escaped, and shortened.
export function printable(text, limit = 200) {
  const whole = String(text ?? "");
  return whole.slice(0, limit).replace(UNSAFE, escaped) + (whole.length > limit ? "…" : "");
}

export async function copy(text) {
  if (navigator.clipboard && isSecureContext) return navigator.clipboard.writeText(text);
  const area = document.createElement("textarea"); // Without HTTPS browsers have no clipboard API.
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}
