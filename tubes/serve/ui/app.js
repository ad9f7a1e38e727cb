// The dashboard: the frame around its views. `lib.js` has the API and the formats, `parts.js` the parts of views, and
// the other files the views. The page keeps no state but its address, the token, and the data that it shows.

import { render, useEffect, useErrorBoundary, useState } from "./preact.js";
import { access, call, connection, follow, hasToken, href, html, path, readAddress, refresh, shown, span, useLive, useStore, setToken } from "./lib.js";
import { Dialogs, Link, Messages, Waiting } from "./parts.js";
import { Tube, TubeHead, Tubes } from "./tubes.js";
import { DeadLetters, Task, Tasks } from "./tasks.js";
import { Lanes } from "./lanes.js";
import { Audit, Schedules, Workers } from "./workers.js";

const VIEWS = [["tubes", "Tubes"], ["workers", "Workers"], ["schedules", "Schedules"], ["audit", "Audit"]];

function App() {
  const [address, setAddress] = useState(readAddress());
  const { isRefused } = useStore(access);
  useEffect(() => {
    const onChange = () => setAddress(readAddress());
    addEventListener("hashchange", onChange);
    return () => removeEventListener("hashchange", onChange);
  }, []);
  const state = useLive((signal) => call("GET", "", undefined, { signal }), [isRefused], false);
  if (isRefused) return html`<${Frame}><${SignIn} /><//>`;
  return html`<${Waiting} state=${state}>${(service) => html`<${Signed} service=${service} address=${address} />`}<//>`;
}

function Signed({ service, address }) {
  const { segments, query } = address;
  const namespace = segments[0] ?? service.namespaces[0] ?? "_";
  const [view = "tubes", name, section = "", id] = segments.slice(1);
  useEffect(() => follow(namespace), [namespace]);
  const title = { tubes: name ? shown(name, 60) : "Tubes" }[view] || (VIEWS.find(([word]) => word === view) || ["", "Not found"])[1];
  useEffect(() => {
    document.title = `${title} – tubes`;
  }, [title]);
  const canManage = !service.token || service.token.grants.some((grant) => /^\S*\bmanage\b/.test(grant));
  const bodies = {
    tubes: () => (name === undefined ? html`<${Tubes} namespace=${namespace} query=${query} canManage=${canManage} />` : html`<${TubePage} key=${namespace + " " + name} namespace=${namespace} name=${name} section=${section} id=${id} query=${query} />`),
    workers: () => html`<${Workers} namespace=${namespace} />`,
    schedules: () => html`<${Schedules} namespace=${namespace} />`,
    audit: () => html`<${Audit} namespace=${namespace} query=${query} />`,
  };
  return html`<${Frame} service=${service} namespace=${namespace} view=${view}><${Guard} key=${location.hash.split("?")[0]}>${bodies[view]?.() ?? html`<${NotFound} />`}<//><//>`;
}

function TubePage({ namespace, name, section, id, query }) {
  const state = useLive((signal) => call("GET", path([namespace, "tubes", name], { ages: 1 }), undefined, { signal }), [namespace, name]);
  return html`<${Waiting} state=${state}>${(tube) => {
    const props = { namespace, name, tube, query };
    const bodies = {
      "": () => html`<${Tube} ...${props} />`,
      tasks: () => (id === undefined ? html`<${Tasks} ...${props} />` : html`<${Task} ...${props} id=${id} />`),
      dead: () => html`<${DeadLetters} ...${props} />`,
      lanes: () => html`<${Lanes} ...${props} />`,
    };
    return html`<${TubeHead} ...${props} section=${section} />${bodies[section]?.() ?? html`<${NotFound} />`}`;
  }}<//>`;
}

const NotFound = () => html`<p class="empty">There is no such page. <a href="#/">Show all tubes.</a></p>`;

// One view that fails must not take the page with it.
function Guard({ children }) {
  const [error, reset] = useErrorBoundary();
  if (!error) return children;
  return html`<p class="problem" role="alert">This view failed: ${shown(error.message, 300)} <button type="button" onClick=${reset}>Try again</button></p>`;
}

function Frame({ service, namespace, view, children }) {
  const toMain = (event) => {
    event.preventDefault(); // The fragment is the address of the view.
    document.getElementById("main").focus();
  };
  const onNamespace = (event) => {
    location.hash = href([event.target.value, view]);
  };
  const names = service ? [...new Set([...service.namespaces, namespace])] : [];
  return html`<a class="skip" href="#main" onClick=${toMain}>Skip to the content</a>
    <header class="top"><a class="brand" href="#/">tubes</a>
      ${service && html`<nav aria-label="Views">${VIEWS.map(([word, title]) => html`<${Link} to=${[namespace, word]} aria-current=${word === view ? "page" : undefined}>${title}<//>`)}</nav>
      ${names.length > 1 && html`<label class="namespace"><span>Namespace</span> <select value=${namespace} onChange=${onNamespace}>${names.map((name) => html`<option value=${name} selected=${name === namespace}>${name === "_" ? "none" : shown(name, 40)}</option>`)}</select></label>`}
      <${Connection} />${hasToken() && html`<button type="button" class="small" onClick=${() => setToken(null)}>Sign out</button>`}`}
    </header>
    <main id="main" tabindex="-1">${children}</main><${Messages} /><${Dialogs} />
    ${service && html`<footer class="muted">tubes ${service.version}${service.token ? html`, signed in as <bdi>${shown(service.token.description || service.token.id, 60)}</bdi>` : ""}</footer>`}`;
}

function Connection() {
  const state = useStore(connection);
  const [, setTurn] = useState(0);
  useEffect(() => {
    if (typeof state !== "number") return;
    const timer = setInterval(() => setTurn((turn) => turn + 1), 1000);
    return () => clearInterval(timer);
  }, [state]);
  if (typeof state !== "number") return html`<span class="connection ${state}" role="status">${{ live: "live", connecting: "connecting", hidden: "paused" }[state]}</span>`;
  const left = Math.max(Math.ceil((state - Date.now()) / 1000), 0);
  return html`<span class="connection lost" role="status">The connection is lost${left ? `, next try in ${span(left)}` : ", trying again"}</span>`;
}

function SignIn() {
  const onSubmit = (event) => {
    event.preventDefault();
    setToken(new FormData(event.target).get("token").trim());
    refresh();
  };
  return html`<form class="sign-in" onSubmit=${onSubmit}><h1>Sign in</h1><p>${hasToken() ? "The service refuses this token." : "This service asks for a token."} <code>tubes token create</code> makes one; the right to look is enough to watch.</p>
    <label class="field"><span>Token</span><input type="password" name="token" required autocomplete="off" /></label><button type="submit" class="primary">Sign in</button></form>`;
}

const root = document.getElementById("app");
root.replaceChildren(); // What was shown while this file was loaded.
render(html`<${App} />`, root);
