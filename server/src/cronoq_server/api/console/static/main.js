// Who looks, which page they see, and how they get to others.

import { html, render, useEffect, useState } from "/console/lib/preact.js";
import { call, session } from "/console/api.js";
import { Overview } from "/console/pages/overview.js";
import { Tasks } from "/console/pages/tasks.js";
import { Task } from "/console/pages/task.js";
import { Schedules } from "/console/pages/schedules.js";
import { Workers } from "/console/pages/workers.js";
import { Resources } from "/console/pages/resources.js";
import { Servers } from "/console/pages/servers.js";

// Letter for "g" + letter, title, page, and who may see it: [path, ...].
const PAGES = [
  { path: "", letter: "o", title: "Overview", page: Overview, roles: ["admin", "metrics"] },
  { path: "tasks", letter: "t", title: "Tasks", page: Tasks, roles: ["admin", "client"] },
  { path: "schedules", letter: "s", title: "Schedules", page: Schedules, roles: ["admin", "metrics"] },
  { path: "workers", letter: "w", title: "Workers", page: Workers, roles: ["admin", "metrics"] },
  { path: "resources", letter: "r", title: "Resources", page: Resources, roles: ["admin", "metrics"] },
  { path: "servers", letter: "h", title: "Servers", page: Servers, roles: ["admin", "metrics", "client", "worker"] },
];

function place() {
  const [path, search = ""] = location.hash.replace(/^#\/?/, "").split("?");
  return { parts: path.split("/").map(decodeURIComponent), values: new URLSearchParams(search) };
}

function Login({ onDone, message }) {
  const [error, setError] = useState(message);
  async function enter(event) {
    event.preventDefault();
    session.token = new FormData(event.target).get("token").trim();
    try {
      onDone(await call("/console-data/server"));
    } catch (problem) {
      session.token = "";
      setError(problem.message);
    }
  }
  return html`<main class="login card">
    <h1>cronoq</h1>
    <form onSubmit=${enter}>
      <p><label for="token">Token</label><input id="token" name="token" type="password" autocomplete="current-password" required autofocus/></p>
      <p class="dim">It stays in this tab and is forgotten when you close it.</p>
      ${error && html`<p class="note bad" role="alert">${error}</p>`}
      <button class="main">Log in</button>
    </form>
  </main>`;
}

function Theme() {
  const dark = () => document.documentElement.dataset.theme
    ? document.documentElement.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  const [on, setOn] = useState(dark());
  function turn() {
    const theme = on ? "light" : "dark";
    document.documentElement.dataset.theme = theme;
    localStorage.setItem("cronoq.theme", theme);
    setOn(!on);
    window.dispatchEvent(new Event("resize"));
  }
  return html`<button onClick=${turn} aria-label=${on ? "Use the light theme" : "Use the dark theme"}>${on ? "☀" : "☾"}</button>`;
}

function Console({ server, onLeave }) {
  const [at, setAt] = useState(place());
  useEffect(() => {
    const moved = () => { setAt(place()); };
    window.addEventListener("hashchange", moved);
    return () => window.removeEventListener("hashchange", moved);
  }, []);
  const pages = PAGES.filter((one) => one.roles.includes(server.who.role));
  const name = at.parts[0] === "task" ? "tasks" : at.parts[0];
  const current = pages.find((one) => one.path === name) ?? pages[0];
  useKeys(pages);
  useEffect(() => { document.title = `${current.title} · cronoq`; }, [current]);
  const Page = at.parts[0] === "task" && current.path === "tasks" ? Task : current.page;
  return html`
    <a class="skip" href="#content" onClick=${(event) => { event.preventDefault(); document.getElementById("content").focus(); }}>To the content</a>
    <header>
      <a class="brand" href="#/"><img src="/console/icon.svg" alt=""/>cronoq</a>
      <nav aria-label="Pages">${pages.map((one) => html`
        <a key=${one.path} href=${`#/${one.path}`} aria-current=${one === current ? "page" : undefined} title=${`g ${one.letter}`}>${one.title}</a>`)}</nav>
      <span class="dim hide-small">${server.shards.find((shard) => shard.own)?.name ?? ""} ${server.version}</span>
      <${Theme}/>
      ${server.who.asked && html`<button onClick=${onLeave}>Log out ${server.who.name}</button>`}
    </header>
    <main id="content" tabindex="-1"><${Page} key=${at.parts.join("/")} server=${server} parts=${at.parts} values=${at.values} may=${server.who.role === "admin" || server.who.role === "client"}/></main>`;
}

// "g" and a letter goes to a page, "/" to the first field.
function useKeys(pages) {
  useEffect(() => {
    let waiting = false;
    function pressed(event) {
      if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea, dialog")) return;
      if (waiting) {
        waiting = false;
        const page = pages.find((one) => one.letter === event.key);
        if (page) location.hash = `#/${page.path}`;
      } else if (event.key === "g") {
        waiting = true;
      } else if (event.key === "/") {
        const field = document.querySelector("main input");
        if (field) { event.preventDefault(); field.focus(); }
      }
    }
    document.addEventListener("keydown", pressed);
    return () => document.removeEventListener("keydown", pressed);
  }, [pages.length]);
}

function App() {
  const [server, setServer] = useState(null);
  const [problem, setProblem] = useState(null);
  const [asked, setAsked] = useState(false);
  async function look() {
    try {
      setServer(await call("/console-data/server"));
      setProblem(null);
    } catch (error) {
      if (error.status === 401) setAsked(true);
      else setProblem(error);
    }
  }
  useEffect(() => {
    look();
    const login = () => { setServer(null); setAsked(true); };
    window.addEventListener("cronoq-login", login);
    return () => window.removeEventListener("cronoq-login", login);
  }, []);
  if (server) return html`<${Console} server=${server} onLeave=${() => { session.token = ""; location.reload(); }}/>`;
  if (asked) return html`<${Login} onDone=${(found) => { setServer(found); setAsked(false); }}/>`;
  if (problem) return html`<main class="login card"><h1>cronoq</h1><p class="note bad" role="alert">${problem.message}</p><button onClick=${look}>Try again</button></main>`;
  return html`<main class="login"><p class="dim">Loading…</p></main>`;
}

render(html`<${App}/>`, document.getElementById("app"));
