"use strict";
/* The chosen theme, before anything is painted; the button itself is report/page/static/base.js. */
try {
  document.documentElement.dataset.theme = localStorage.getItem("paceline-theme") ?? "auto";
} catch {
  /* no storage: the system's theme */
}
