"use strict";
/* Draws the figures of the monitor with the report's own code (base.js, heatmap.js, chart.js). Each
   <figure data-figure="..."> holds its numbers as JSON. */
const PacelineFigures = {};
(() => {
  const { el, seconds, ratio } = Paceline;

  /** A table under a figure; its name lets live.js find it again, to open it as it was. */
  const addTable = (box, title, head, rows) => {
    const table = Paceline.tableOf(title, head, rows);
    table.id = `${box.id}-table`;
    box.append(table);
  };

  const top = (values) => values.reduce((a, b) => (b > a ? b : a), 1);

  const describer = (data, what) => (row, col, value) => {
    const host = data.hosts?.[row * data.n_dp + col];
    return [`dp ${Paceline.replica(data, col)}, stage ${row}: S ${ratio(value)}`, ...(host ? [host] : []), ...what()];
  };

  const ranking = (data, values) => () =>
    [...values.keys()]
      .sort((a, b) => values[b] - values[a])
      .slice(0, 100)
      .map((i) => {
        const place = [Paceline.replica(data, i % data.n_dp), String(Math.floor(i / data.n_dp)), ratio(values[i])];
        return data.hosts ? [...place, data.hosts[i]] : place;
      });

  const workers = (box, data) => {
    const values = Paceline.slowdowns(data.workers);
    const shape = { rows: data.n_pp, cols: data.n_dp, nameOf: Paceline.replicaName(data) };
    const label = `Slowdown of ${values.length} workers, ${data.n_pp} stages by ${data.n_dp} data-parallel ranks. Arrow keys move, Home goes to the slowest.`;
    const options = { ...shape, values, top: data.top ?? top(values), label };
    Paceline.heatmap(box, { ...options, describe: describer(data, () => []) });
    const title = values.length > 100 ? "Table: the 100 slowest workers" : "Table of the workers";
    const head = ["dp", "stage", "S", ...(data.hosts ? ["host"] : [])];
    addTable(box, title, head, ranking(data, values));
  };

  /** A step's number and S, and its slowest worker. */
  const slowestOf = (data, k, values) => {
    const step = data.workers_by_step.index[k];
    const worst = values.reduce((best, value, i) => (values[best] >= value ? best : i), 0);
    const place = [Paceline.replica(data, worst % data.n_dp), String(Math.floor(worst / data.n_dp))];
    const told = [String(data.steps[step]), ratio(data.by_step[step]), ...place, ratio(values[worst])];
    return data.hosts ? [...told, data.hosts[worst]] : told;
  };

  const workersByStep = (box, data) => {
    const all = Paceline.slowdowns(data.workers_by_step);
    const shown = data.workers_by_step.index;
    const many = data.n_pp * data.n_dp;
    const valuesOf = (k) => all.subarray(k * many, (k + 1) * many);
    const nameOf = (k) => `step ${data.steps[shown[k]]}: S ${ratio(data.by_step[shown[k]])}, ${seconds(data.traced_s[shown[k]])}`;
    let at = shown.reduce((best, i, k) => (data.by_step[i] > data.by_step[shown[best]] ? k : best), 0);
    const slider = el("input", { type: "range", min: 0, max: shown.length - 1, step: 1, id: "step" });
    slider.value = at;
    const said = el("output", { for: "step" });
    const part = shown.length < data.steps.length ? ` (${shown.length} of ${data.steps.length} steps: the worst, and others evenly)` : "";
    const label = "Slowdown of every worker in one step; the slider below chooses the step";
    const describe = describer(data, () => [`step ${data.steps[shown[at]]}`]);
    const options = { rows: data.n_pp, cols: data.n_dp, nameOf: Paceline.replicaName(data), values: valuesOf(at), top: top(all), label, describe };
    const update = Paceline.heatmap(box, options);
    box.append(el("p", { class: "slider" }, el("label", { for: "step" }, `Step${part} `), slider, said));
    const tell = () => {
      said.textContent = nameOf(at);
      slider.setAttribute("aria-valuetext", nameOf(at));
    };
    slider.addEventListener("input", () => {
      at = Number(slider.value);
      tell();
      update(valuesOf(at));
    });
    tell();
    const slowest = [...shown.keys()].sort((a, b) => data.by_step[shown[b]] - data.by_step[shown[a]]);
    const title = `Table: the slowest worker of each step${shown.length > 100 ? ", the 100 slowest steps" : ""}`;
    const head = ["step", "S", "dp", "stage", "S of this worker", ...(data.hosts ? ["host"] : [])];
    const rows = () => slowest.slice(0, 100).map((k) => slowestOf(data, k, valuesOf(k)));
    addTable(box, title, head, rows);
  };

  const whole = (v) => v.toLocaleString("en-US");

  /** Rows of ranks, columns of steps; what a cell says is a ratio to the step's median. */
  const ranks = (box, data) => {
    const values = Paceline.slowdowns(data.values);
    const { rows, cols } = data;
    const stepsOf = (c) => (data.first[c] === data.last[c] ? `step ${whole(data.first[c])}` : `steps ${whole(data.first[c])} to ${whole(data.last[c])}`);
    const slowest = (r, c) => (data.slowest ? data.slowest[r][c] : data.ranks[r]);
    const describe = (r, c, value) => {
      if (!Number.isFinite(value)) return [`${stepsOf(c)}: no step time`, data.names[r]];
      const which = data.slowest ? `, rank ${whole(slowest(r, c))}` : "";
      return [`${stepsOf(c)}: ${ratio(value)}${which}`, data.names[r], ...(data.restarts.includes(c) ? ["restart of the job"] : [])];
    };
    const pick = (r, c) => {
      const there = new URL(location.href);
      if (slowest(r, c) < 0) return;
      there.searchParams.set("rank", slowest(r, c));
      there.hash = "ranks";
      location.assign(there);
    };
    const nameWidth = 14 + 6.5 * Math.max(...data.first.map((step) => whole(step).length));
    const label = `Step time of ${rows} rows of ranks over the step's median, in ${cols} parts of the steps. Arrow keys move, Home goes to the slowest, Enter shows the rank.`;
    const axes = { nameOf: (c) => whole(data.first[c]), nameWidth, rowOf: (r) => whole(data.ranks[r]), rowLabel: "rank", marks: data.restarts };
    Paceline.heatmap(box, { rows, cols, values, top: data.top, label, describe, pick, ...axes });
    const worst = (r) => [...Array(cols).keys()].reduce((best, c) => (values[r * cols + c] > values[r * cols + best] || !Number.isFinite(values[r * cols + best]) ? c : best), 0);
    const lines = () =>
      [...Array(rows).keys()]
        .map((r) => [r, worst(r)])
        .sort(([a, p], [b, q]) => values[b * cols + q] - values[a * cols + p])
        .map(([r, c]) => [data.names[r], ratio(values[r * cols + c]), stepsOf(c)]);
    addTable(box, "Table: where each row was slowest", ["ranks", "of the median", "when"], lines);
  };

  const drawers = { chart: Paceline.chartOf, workers, "workers-by-step": workersByStep, ranks };

  /** Draws all figures in a part of the page. */
  PacelineFigures.draw = (part) => {
    const figures = [...part.querySelectorAll("figure[data-figure]")];
    if (part.matches?.("figure[data-figure]")) figures.push(part);
    for (const box of figures)
      drawers[box.dataset.figure](box, JSON.parse(box.querySelector("script[type='application/json']").textContent));
  };

  PacelineFigures.start = () => {
    Paceline.startThemes();
    PacelineFigures.draw(document);
  };
})();
