// The dashboard: the frame around its views. `lib.js` has the API and the formats, `parts.js` the parts of views, and
// the other files have the views. The page stores only the token: the state of a view is in the address.

import { render, useEffect, useErrorBoundary, useState } from "./preact.js";
import {
  access, changes, connection, follow, hasToken, href, html, own, printable, readAddress, refresh, setToken, span,
  useGet, useStore,
} from "./lib.js";
import { Button, Dialogs, Link, Loaded, Messages, Text } from "./parts.js";
import { Tube, TubeHead, Tubes } from "./tubes.js";
import { DeadLetters, Task, Tasks } from "./tasks.js";
import { Lanes } from "./lanes.js";
import { Audit, Schedules, Workers } from "./workers.js";

const VIEWS = [["tubes", "Tubes"], ["workers", "Workers"], ["schedules", "Schedules"], ["audit", "Audit"]];

// A new token begins a new session, which reads everything again.
function App() {
  const { isRefused, turn } = useStore(access);
  return isRefused ? html`<${Frame}><${SignIn} /><//>` : html`<${Session} key=${turn} />`;
}

function Session() {
  const [address, setAddress] = useState(readAddress());
  useEffect(() => {
    const onChange = () => setAddress(readAddress());
    addEventListener("hashchange", onChange);
    return () => removeEventListener("hashchange", onChange);
  }, []);
  const state = useGet([], {}, changes); // A change may add a namespace.
  if (!state.data) return html`<${Frame}><${Loaded} state=${state} /><${Retry} /><//>`;
  return html`<${Views} service=${state.data} address=${address} />`;
}

// Try again while the service cannot be reached.
function Retry() {
  useEffect(() => {
    const timer = setInterval(refresh, 3000);
    return () => clearInterval(timer);
  }, []);
}

function Views({ service, address }) {
  const { segments, query } = address;
  const [namespace = service.namespaces[0] ?? "_", view = "tubes", name, section = "", id] = segments;
  useEffect(() => follow(namespace), [namespace]);
  const title = name === undefined ? own(Object.fromEntries(VIEWS), view) ?? "Not found" : printable(name, 60);
  useEffect(() => {
    document.title = `${title} – tubes`;
  }, [title]);
  const props = { namespace, name, section, id, query };
  const canManage = own(service.rights, namespace)?.includes("manage") ?? !service.token;
  const views = {
    tubes: () => (name === undefined ? html`<${Tubes} ...${props} canManage=${canManage} />` : html`<${TubePage} key=${name} ...${props} />`),
    workers: () => html`<${Workers} ...${props} />`,
    schedules: () => html`<${Schedules} ...${props} />`,
    audit: () => html`<${Audit} ...${props} />`,
  };
  return html`<${Frame} service=${service} namespace=${namespace} view=${view}>
    <${ErrorBoundary} key=${segments.join(" ")}>${(own(views, view) ?? NotFound)()}<//><//>`;
}

function TubePage(props) {
  const state = useGet([props.namespace, "tubes", props.name], { ages: 1 });
  const views = {
    "": Tube,
    tasks: props.id === undefined ? Tasks : Task,
    dead: DeadLetters,
    lanes: Lanes,
  };
  const View = own(views, props.section) ?? NotFound;
  return html`<${Loaded} state=${state}>${(tube) => html`
    <${TubeHead} ...${props} tube=${tube} /><${View} ...${props} tube=${tube} />`}<//>`;
}

const NotFound = () => html`<p class="empty">There is no such page. <a href="#/">Show all tubes.</a></p>`;

// Show the error of a view that fails, and keep the frame usable.
function ErrorBoundary({ children }) {
  const [error, reset] = useErrorBoundary();
  if (!error) return children;
  return html`<p class="problem" role="alert">This view failed: ${printable(error.message, 300)}
    <${Button} onClick=${reset}>Try again<//></p>`;
}

function Frame({ service, namespace, view, children }) {
  const toMain = (event) => {
    event.preventDefault(); // Keep the fragment: it is the address of the view.
    document.getElementById("main").focus();
  };
  const link = ([word, title]) => html`<${Link} to=${[namespace, word]}
    aria-current=${word === view ? "page" : undefined}>${title}<//>`;
  const names = service ? [...new Set([...service.namespaces, namespace])] : [];
  const option = (name) => html`<option value=${name} selected=${name === namespace}>
    ${name === "_" ? "none" : printable(name, 40)}</option>`;
  const onNamespace = (event) => (location.hash = href([event.target.value, view]));
  return html`<a class="skip" href="#main" onClick=${toMain}>Skip to the content</a>
    <header class="top"><a class="brand" href="#/">tubes</a>
      ${service && html`<nav aria-label="Views">${VIEWS.map(link)}</nav>
      ${names.length > 1 && html`<label class="namespace"><span>Namespace</span>
        <select value=${namespace} onChange=${onNamespace}>${names.map(option)}</select></label>`}
      <${Connection} />${hasToken() && html`<${Button} kind="small" onClick=${() => setToken(null)}>Sign out<//>`}`}</header>
    <main id="main" tabindex="-1" data-view=${location.hash}>${children}</main><${Messages} /><${Dialogs} />
    ${service && html`<footer class="muted">tubes ${service.version}${service.token &&
      html`, signed in as <${Text} of=${service.token.description || service.token.id} limit=${60} />`}</footer>`}`;
}

function Connection() {
  const state = useStore(connection);
  const [, setTurn] = useState(0);
  const isLost = typeof state === "number";
  useEffect(() => {
    if (!isLost) return;
    const timer = setInterval(() => setTurn((turn) => turn + 1), 1000);
    return () => clearInterval(timer);
  }, [isLost]);
  const left = isLost ? Math.max(Math.ceil((state - Date.now()) / 1000), 0) : 0;
  const text = isLost
    ? `The connection is lost${left ? `, next try in ${span(left)}` : ", trying again"}`
    : { live: "live", connecting: "connecting", hidden: "paused", forbidden: "not permitted" }[state];
  return html`<span class="connection ${isLost ? "lost" : state}" role="status">${text}</span>`;
}

function SignIn() {
  const onSubmit = (event) => {
    event.preventDefault();
    setToken(new FormData(event.target).get("token").trim());
  };
  return html`<form class="sign-in" onSubmit=${onSubmit}><h1>Sign in</h1>
    <p>${hasToken() ? "The service refuses this token." : "This service requires a token."} The command <code>tubes token create</code>${" "}
      creates one, and <code>tubes dashboard</code> prints its own. The right <code>look</code> is enough to view tubes.</p>
    <label class="field"><span>Token</span><input type="password" name="token" required autocomplete="off" /></label>
    <button type="submit" class="primary">Sign in</button></form>`;
}

const root = document.getElementById("app");
root.replaceChildren(); // Remove the note that is shown while this file loads.
render(html`<${App} />`, root);
