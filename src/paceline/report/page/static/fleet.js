"use strict";
/* The figures of a fleet. Needs base.js and chart.js. */
(() => {
  const specs = JSON.parse(document.getElementById("data").textContent);
  for (const [name, spec] of Object.entries(specs)) Paceline.chartOf(document.getElementById(`fig-${name}`), spec);
  Paceline.startThemes();
  document.documentElement.dataset.ready = "true";
})();
