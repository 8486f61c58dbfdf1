"use strict";
/* Keeps the page up to date: when the server says that something happened, the page is fetched
   again and the parts marked data-live that differ are replaced. Needs figures.js. */
(() => {
  const PAUSE_MS = 1500; // between two fetches, however much happens
  const source = new Map(); // id -> the part as the server sent it, before figures were drawn
  const parts = (page) => [...page.querySelectorAll("[data-live]")];
  const remember = (part) => source.set(part.id, part.outerHTML);

  const replace = (part) => {
    const old = document.getElementById(part.id);
    if (!old || source.get(part.id) === part.outerHTML) return;
    remember(part);
    const fresh = document.importNode(part, true);
    const focused = old.contains(document.activeElement) && document.activeElement.id;
    const open = [...old.querySelectorAll("details[open][id]")].map((details) => details.id);
    old.replaceWith(fresh);
    for (const id of open) document.getElementById(id)?.setAttribute("open", "");
    PacelineFigures.draw(fresh);
    if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
  };

  const say = (text, name) => {
    const sign = document.getElementById("live");
    if (!sign || sign.dataset.state === name) return;
    sign.dataset.state = name;
    sign.textContent = text;
    sign.hidden = false;
  };

  let busy = false;
  let again = false;
  const refresh = async () => {
    again = busy;
    if (busy || document.hidden) return;
    busy = true;
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
      if (answer.ok) {
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        parts(page).forEach(replace);
      }
    } catch {
      /* the server is away; the stream says when it is back */
    }
    setTimeout(() => {
      busy = false;
      if (again) refresh();
    }, PAUSE_MS);
  };

  let stream = null;
  let lost = false;
  const listen = () => {
    const job = document.querySelector("[data-job]")?.dataset.job;
    stream = new EventSource(document.body.dataset.events);
    stream.addEventListener("open", () => {
      say("Live", "live");
      if (lost) refresh();
      lost = false;
    });
    stream.addEventListener("error", () => {
      lost = true;
      say("Connecting …", "lost");
    });
    for (const kind of ["job", "session", "event", "alert", "steps"])
      stream.addEventListener(kind, (event) => {
        const told = JSON.parse(event.data);
        if (!job || !told.job || told.job === job) refresh();
      });
  };

  parts(document).forEach(remember);
  PacelineFigures.start();
  if (document.body.dataset.events) {
    listen();
    document.addEventListener("visibilitychange", () => {
      stream.close();
      if (document.hidden) return;
      refresh();
      listen();
    });
    addEventListener("pagehide", () => stream.close());
  }
  document.documentElement.dataset.ready = "true";
})();
