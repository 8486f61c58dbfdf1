"use strict";
/* Keeps the page up to date: when the server says that something happened, the page is fetched
   again and the parts marked data-live that differ are replaced. Needs figures.js. */
(() => {
  const PAUSE_MS = 1500; // least pause between two fetches
  const SHARE = 5; // a fetch is followed by a pause of this multiple of its time
  const MINUTE_MS = 60_000; // refetch interval without news: "seen 2 min ago" becomes outdated
  const AGAIN_MS = 5000; // retry interval of a stream that the server refused
  const source = new Map(); // id -> the part as the server sent it, before figures were drawn
  const parts = (page) => [...page.querySelectorAll("[data-live]")];
  const remember = (part) => source.set(part.id, part.outerHTML);

  const reachable = (part) => [...part.querySelectorAll("a[href], button, input, select, summary, [tabindex]")];

  /** Finds the focused element of a part again in the part that replaces it. */
  const focusOf = (part) => {
    const has = document.activeElement;
    if (!part.contains(has)) return () => undefined;
    const place = reachable(part).indexOf(has);
    const same = (other) => (has.id ? other.id === has.id : has.href !== undefined && other.href === has.href);
    return (fresh) => {
      const all = reachable(fresh);
      (all.find(same) ?? all[place])?.focus({ preventScroll: true });
    };
  };

  const replace = (part) => {
    const old = document.getElementById(part.id);
    if (!old || source.get(part.id) === part.outerHTML) return;
    remember(part);
    const fresh = document.importNode(part, true);
    const focusAgain = focusOf(old);
    const open = [...old.querySelectorAll("details[open][id]")].map((details) => details.id);
    const typed = [...old.querySelectorAll("input[type=number][id]")].filter((input) => input.value !== input.defaultValue);
    old.replaceWith(fresh);
    for (const { id, value } of typed) if (fresh.querySelector(`#${id}`)) fresh.querySelector(`#${id}`).value = value;
    Paceline.hideTip();
    PacelineFigures.draw(fresh);
    for (const id of open) document.getElementById(id)?.setAttribute("open", ""); // includes the figures' tables
    focusAgain(fresh);
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
    const began = performance.now();
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
      if (answer.redirected) return location.reload(); // to the login: the token is no longer valid
      if (answer.ok) parts(new DOMParser().parseFromString(await answer.text(), "text/html")).forEach(replace);
    } catch {
      /* the server is away; the stream says when it is back */
    }
    const pause = Math.max(PAUSE_MS, SHARE * (performance.now() - began));
    setTimeout(() => {
      busy = false;
      if (again) refresh();
    }, pause);
  };

  let stream = null;
  let lost = false;
  const listen = () => {
    const job = document.querySelector("[data-job]")?.dataset.job;
    const mine = new EventSource(document.body.dataset.events);
    stream = mine;
    stream.addEventListener("open", () => {
      say("Live", "live");
      if (lost) refresh();
      lost = false;
    });
    stream.addEventListener("error", () => {
      lost = true;
      say("Connecting …", "lost");
      if (mine.readyState !== EventSource.CLOSED) return; // the browser reconnects itself
      refresh();
      setTimeout(() => stream === mine && !document.hidden && listen(), AGAIN_MS);
    });
    for (const kind of document.body.dataset.news.split(" "))
      stream.addEventListener(kind, (event) => {
        const told = JSON.parse(event.data);
        if (!job || !told.job || told.job === job) refresh();
      });
  };

  parts(document).forEach(remember);
  PacelineFigures.start();
  if (document.body.dataset.events) {
    listen();
    setInterval(refresh, MINUTE_MS);
    document.addEventListener("visibilitychange", () => {
      stream.close();
      if (document.hidden) return;
      refresh();
      listen();
    });
    addEventListener("pagehide", () => stream.close());
    addEventListener("pageshow", (event) => event.persisted && location.reload());
  }
  document.documentElement.dataset.ready = "true";
})();
