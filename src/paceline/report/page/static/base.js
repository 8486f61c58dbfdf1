"use strict";
/* Numbers, elements, the tooltip and the theme: what all figures use. */
const Paceline = {};

/** The text after "dp": the number of a data-parallel rank, and of its peer if peers are apart. */
Paceline.replica = (data, number) => data?.replicas?.[number] ?? String(number);

/** The same in short, for axes: "3", or "3.1" of dp 3 and peer 1. */
Paceline.replicaName = (data) => (number) => Paceline.replica(data, number).replace(", peer ", ".");
(() => {
  const SVG = "http://www.w3.org/2000/svg";

  /** An element with attributes and children; strings become text, never markup. */
  Paceline.el = (tag, attributes = {}, ...children) => {
    const node = document.createElement(tag);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.append(...children);
    return node;
  };

  Paceline.svg = (tag, attributes = {}, ...children) => {
    const node = document.createElementNS(SVG, tag);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.append(...children);
    return node;
  };

  const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer;
  Paceline.floats = (text) => new Float32Array(bytes(text));
  Paceline.ints = (text) => new Int32Array(bytes(text));
  Paceline.shorts = (text) => new Uint16Array(bytes(text));
  Paceline.octets = (text) => new Uint8Array(bytes(text));

  const MISSING = 65535;
  /** Slowdowns packed as 16-bit numbers; NaN for a missing one. */
  Paceline.slowdowns = (packed) =>
    Float32Array.from(Paceline.shorts(packed.u16), (v) => (v === MISSING ? NaN : v * packed.unit));

  Paceline.clamp = (x, low, high) => Math.min(Math.max(x, low), high);

  Paceline.seconds = (s) => {
    const size = Math.abs(s);
    if (size >= 1000) return s.toFixed(0) + " s";
    if (size >= 0.9995) return s.toPrecision(4) + " s";
    if (size >= 0.9995e-3) return (s * 1e3).toPrecision(3) + " ms";
    return size < 1e-9 ? "0 s" : (s * 1e6).toPrecision(3) + " µs";
  };

  Paceline.ratio = (v) => (Number.isFinite(v) ? v.toFixed(3) : "no value");

  /** Round values that divide [low, high] into about n parts. */
  Paceline.ticks = (low, high, n) => {
    const raw = (high - low) / Math.max(n, 1) || 1;
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((m) => m * power).find((m) => m >= raw * 0.999);
    const found = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) found.push(k * step);
    return { step, values: found, digits: Paceline.clamp(-Math.floor(Math.log10(step) + 1e-9), 0, 9) };
  };

  const tip = () => document.getElementById("tip");

  /** Shows lines of text beside a place in the window. */
  Paceline.showTip = (lines, x, y) => {
    const box = tip();
    box.replaceChildren(...lines.map((line, i) => Paceline.el(i ? "div" : "b", {}, line)));
    box.hidden = false;
    const { width, height } = box.getBoundingClientRect();
    const left = x + 14 + width > innerWidth ? x - width - 14 : x + 14;
    box.style.left = Math.max(4, left) + "px";
    box.style.top = Paceline.clamp(y + 14, 4, Math.max(4, innerHeight - height - 4)) + "px";
  };
  Paceline.hideTip = () => (tip().hidden = true);

  /** A table for readers who cannot see the figure; it is filled when first opened. */
  Paceline.tableOf = (title, head, rows) => {
    const details = Paceline.el("details", {}, Paceline.el("summary", {}, title));
    const fill = () => {
      const line = (cells, tag) =>
        Paceline.el("tr", {}, ...cells.map((c, i) => Paceline.el(i ? tag : "th", { class: "num" }, c)));
      const table = Paceline.el("table", {}, line(head, "th"), ...rows().map((r) => line(r, "td")));
      details.append(Paceline.el("div", { class: "scroll", tabindex: "0" }, table));
    };
    details.addEventListener("toggle", fill, { once: true });
    return details;
  };

  /** A line under a figure about the item under the pointer; screen readers read it aloud. */
  Paceline.readout = (hint = "") => Paceline.el("p", { class: "readout", "aria-live": "polite" }, hint);

  const redraws = [];
  /** Calls draw(width) now, and whenever the width or (if asked) the colours change. */
  Paceline.drawn = (box, draw, { colours = false } = {}) => {
    let width = 0;
    const again = () => {
      width = box.clientWidth;
      if (width > 0) draw(width);
    };
    if (colours) redraws.push(again);
    again();
    new ResizeObserver(() => box.clientWidth !== width && again()).observe(box);
  };
  const redraw = () => redraws.forEach((draw) => draw());

  /** The colour that a CSS variable stands for in the present theme. */
  Paceline.colour = (name) => {
    const probe = tip();
    probe.style.setProperty("color", `var(${name})`);
    const colour = getComputedStyle(probe).color;
    probe.style.removeProperty("color");
    return colour;
  };

  const THEMES = ["auto", "light", "dark"];
  const stored = () => {
    try {
      return localStorage.getItem("paceline-theme");
    } catch {
      return null; // files opened from disk may have no storage
    }
  };
  let theme = THEMES.includes(stored()) ? stored() : "auto";
  const apply = (name) => {
    document.documentElement.dataset.theme = name;
    redraw();
  };
  Paceline.startThemes = () => {
    const button = document.getElementById("theme");
    const show = () => {
      button.textContent = `Theme: ${theme}`;
      apply(theme);
    };
    button.hidden = false;
    button.addEventListener("click", () => {
      theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
      try {
        localStorage.setItem("paceline-theme", theme);
      } catch {
        /* then the choice is lost with the page */
      }
      show();
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
    addEventListener("beforeprint", () => apply("light"));
    addEventListener("afterprint", () => apply(theme));
    show();
  };
})();
