"use strict";
/* The plots of replayed queues. Needs base.js and chart.js. */
(() => {
  const { replays } = JSON.parse(document.getElementById("data").textContent);
  const digits = (v) => Number(v.toPrecision(3)).toLocaleString("en");
  const name = (i) => `line line-${i % 6}`;

  const draw = (id, options, pointsOf, linesOf) => {
    const series = replays.map((one, i) => ({ label: one.label, name: name(i), points: pointsOf(one), stairs: options.stairs }));
    const stops = series
      .flatMap((one) => one.points.map(([x, y]) => ({ x, y, lines: [one.label, ...linesOf(x, y)] })))
      .sort((a, b) => a.x - b.x);
    Paceline.chart(document.getElementById(id), { ...options, series, stops });
  };
  const shares = (values) => values.map((v, i) => [v, values.length > 1 ? (100 * i) / (values.length - 1) : 100]);
  const hours = (x, y) => [`${digits(x)} h`, `${digits(y)}% of the jobs`];
  draw("fig-jct", { label: "Completion times; arrow keys go along", xLabel: "hours", yLabel: "% of jobs" }, (one) => shares(one.jct_h), hours);
  draw("fig-wait", { label: "Waiting times; arrow keys go along", xLabel: "hours", yLabel: "% of jobs" }, (one) => shares(one.wait_h), hours);
  draw(
    "fig-gpus",
    { label: "GPUs in use; arrow keys go along", xLabel: "hours", yLabel: "GPUs", stairs: true },
    (one) => one.time_h.map((t, i) => [t, one.gpus[i]]),
    (x, y) => [`${digits(x)} h`, `${y.toLocaleString("en")} GPUs`],
  );
  Paceline.startThemes();
  document.documentElement.dataset.ready = "true";
})();
