"use strict";
/* The plot of a search for plans. Needs base.js and chart.js. */
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const box = document.getElementById("fig-front");
  const order = [...data.x.keys()].sort((a, b) => data.x[a] - data.x[b]);
  const digits = (v) => Number(v.toPrecision(4)).toLocaleString("en");
  const linesOf = (i) => [
    data.name[i],
    `${data.gpus[i].toLocaleString("en")} GPUs`,
    `${digits(data.step_s[i])} s a step`,
    `${digits(data.x[i])} ${data.x_label}`,
    `${digits(data.y[i])} ${data.y_label}`,
  ];
  const dots = order.map((i) => ({ x: data.x[i], y: data.y[i], name: data.pareto[i] ? "dot front" : "dot faint", r: data.pareto[i] ? 4 : 2.4 }));
  dots.sort((a, b) => a.r - b.r); // the front lies above the other points
  const stops = order.map((i) => ({ x: data.x[i], y: data.y[i], lines: linesOf(i) }));
  const points = order.filter((i) => data.pareto[i]).map((i) => [data.x[i], data.y[i]]);
  const series = [{ label: data.front_label, name: "c-front", points, stairs: true }];
  const keys = [{ label: `front: ${data.front_label}`, name: "dot front", r: 4, line: "c-front" }, { label: "another plan", name: "dot faint", r: 2.4 }];
  if (data.x.length < data.all)
    box.append(Paceline.el("p", {}, `${data.x.length.toLocaleString("en")} of ${data.all.toLocaleString("en")} plans are drawn, the nearest to the line.`));
  Paceline.chart(box, {
    label: `Plans by ${data.x_label} and ${data.y_label}; arrow keys go from plan to plan`,
    xLabel: data.x_label,
    yLabel: data.y_label,
    dots,
    keys,
    series,
    stops,
  });
  Paceline.startThemes();
  document.documentElement.dataset.ready = "true";
})();
