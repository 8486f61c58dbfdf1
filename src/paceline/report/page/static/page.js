"use strict";
/* Puts the figures of the report into the page. */
(() => {
  const { el, seconds, ratio } = Paceline;
  const data = JSON.parse(document.getElementById("data").textContent) ?? {}; // a healthy job has no data
  Paceline.replicas = data.replicas; // timelines name them, too
  const box = (name) => document.getElementById(`fig-${name}`);

  const describer = (what) => (row, col, value) => {
    const host = data.hosts?.[row * data.n_dp + col];
    return [`dp ${Paceline.replica(data, col)}, stage ${row}: S ${ratio(value)}`, ...(host ? [host] : []), ...what()];
  };

  const ranking = (values) => () =>
    [...values.keys()]
      .sort((a, b) => values[b] - values[a])
      .slice(0, 100)
      .map((i) => {
        const place = [Paceline.replica(data, i % data.n_dp), String(Math.floor(i / data.n_dp)), ratio(values[i])];
        return data.hosts ? [...place, data.hosts[i]] : place;
      });
  const head = ["dp", "stage", "S", ...(data.hosts ? ["host"] : [])];

  const shape = { rows: data.n_pp, cols: data.n_dp, nameOf: Paceline.replicaName(data) };
  const many = data.n_pp * data.n_dp;

  const workers = () => {
    const values = Paceline.slowdowns(data.workers);
    const label = `Slowdown of ${many} workers, ${data.n_pp} stages by ${data.n_dp} data-parallel ranks. Arrow keys move, Home goes to the slowest.`;
    const top = values.reduce((a, b) => (b > a ? b : a), 1);
    Paceline.heatmap(box("workers"), { ...shape, values, top, label, describe: describer(() => []) });
    const title = many > 100 ? "Table: the 100 slowest workers" : "Table of the workers";
    box("workers").append(Paceline.tableOf(title, head, ranking(values)));
  };

  const workersByStep = () => {
    const all = Paceline.slowdowns(data.workers_by_step);
    const shown = data.workers_by_step.index;
    const top = all.reduce((a, b) => (b > a ? b : a), 1);
    const valuesOf = (k) => all.subarray(k * many, (k + 1) * many);
    const nameOf = (k) => {
      const i = shown[k];
      return `step ${data.steps[i]}: S ${ratio(data.by_step[i])}, ${seconds(data.traced_s[i])}`;
    };
    let at = shown.reduce((best, i, k) => (data.by_step[i] > data.by_step[shown[best]] ? k : best), 0);
    const slider = el("input", { type: "range", min: 0, max: shown.length - 1, step: 1, id: "step" });
    slider.value = at;
    const said = el("output", { for: "step" }, nameOf(at));
    const part = shown.length < data.steps.length ? ` (${shown.length} of ${data.steps.length} steps: the worst, and others evenly)` : "";
    const label = `Slowdown of every worker in one step; the slider below chooses the step`;
    const describe = describer(() => [`step ${data.steps[shown[at]]}`]);
    const update = Paceline.heatmap(box("workers-by-step"), { ...shape, values: valuesOf(at), top, label, describe });
    box("workers-by-step").append(el("p", { class: "slider" }, el("label", { for: "step" }, `Step${part} `), slider, said));
    slider.addEventListener("input", () => {
      at = Number(slider.value);
      said.textContent = nameOf(at);
      slider.setAttribute("aria-valuetext", nameOf(at));
      update(valuesOf(at));
    });
    slider.setAttribute("aria-valuetext", nameOf(at));
  };

  const steps = () => {
    const times = [
      ["actual", "c-actual", data.traced_s],
      ["without launch delays", "c-simulated", data.simulated_s],
      ["ideal", "c-ideal", data.ideal_s],
    ];
    // Steps lie side by side; the curve is broken where steps between them were not traced.
    const apart = data.steps.slice(1).map((step, i) => step - data.steps[i]);
    const usual = [...apart].sort((a, b) => a - b)[Math.floor(apart.length / 2)] ?? 1;
    const breaks = new Set(apart.flatMap((size, i) => (size > 3 * usual ? [i + 1] : [])));
    const series = times.map(([label, name, values]) => ({
      label,
      name,
      breaks,
      points: values.map((value, i) => [i, value]),
    }));
    const stops = data.steps.map((step, i) => ({
      x: i,
      y: data.traced_s[i],
      lines: [`step ${step}: S ${ratio(data.by_step[i])}`, ...times.map(([label, , v]) => `${label} ${seconds(v[i])}`)],
    }));
    const labels = { xLabel: "step", yLabel: "seconds", label: "Step times; arrow keys go from step to step" };
    Paceline.chart(box("steps"), { ...labels, xName: (i) => data.steps[i], series, stops });
    const rows = () =>
      data.steps.map((step, i) => [String(step), ...times.map(([, , v]) => seconds(v[i])), ratio(data.by_step[i])]);
    box("steps").append(Paceline.tableOf("Table of the steps", ["step", ...times.map((t) => t[0]), "S"], rows));
  };

  const cdf = () => {
    const order = data.steps.map((step, i) => [data.by_step[i] / data.slowdown, step]).sort((a, b) => a[0] - b[0]);
    const n = order.length;
    const points = [[order[0][0], 0], ...order.map(([x], i) => [x, (i + 1) / n])];
    const stops = order.map(([x, step], i) => ({
      x,
      y: (i + 1) / n,
      lines: [`step ${step}: ${ratio(x)} of the job's S`, `${i + 1} of ${n} steps are at most that`],
    }));
    const spread = Math.max(0.02, ...order.map(([x]) => Math.abs(x - 1) * 1.1));
    Paceline.chart(box("cdf"), {
      label: "Share of steps against their slowdown over the job's; arrow keys go from step to step",
      xLabel: "slowdown of the step / slowdown of the job",
      yLabel: "share of steps",
      xRange: [1 - spread, 1 + spread],
      yRange: [0, 1.03],
      ref: { x: 1, label: "the job" },
      series: [{ label: "steps", name: "c-actual", points, stairs: true }],
      stops,
    });
    const rows = () => order.map(([x, step], i) => [String(step), ratio(x), ((i + 1) / n).toFixed(3)]);
    box("cdf").append(Paceline.tableOf("Table of the distribution", ["step", "S / S of the job", "share of steps"], rows));
  };

  const timeline = () => {
    const { steps, n_steps, n_dp, first } = data.timeline;
    const stepAt = Paceline.timelineSteps(data.timeline);
    const textOf = ({ step, actual_s, ideal_s, replicas }) => {
      const which = replicas.length > 1 ? "the slowest and a typical one" : "the slowest";
      const part = replicas.length < n_dp ? ` Of ${n_dp} replicas ${which} are drawn.` : "";
      return `Step ${step} took ${seconds(actual_s)} and would take ${seconds(ideal_s)} (dashed lines).${part}`;
    };
    const said = el("p", { "aria-live": "polite" }, textOf(steps[first]));
    box("timeline").append(said);
    if (steps.length > 1) {
      const nameOf = (k) => `step ${steps[k].step}${k === first ? " (the slowest)" : ""}: ${seconds(steps[k].actual_s)}`;
      const slider = el("input", { type: "range", min: 0, max: steps.length - 1, step: 1, id: "timeline-step" });
      slider.value = first;
      const output = el("output", { for: "timeline-step" }, nameOf(first));
      const part = steps.length < n_steps ? ` (${steps.length} of ${n_steps}: the slowest, a typical one, the fastest, and others evenly)` : "";
      box("timeline").append(el("p", { class: "slider" }, el("label", { for: "timeline-step" }, `Step${part} `), slider, output));
      slider.setAttribute("aria-valuetext", nameOf(first));
      slider.addEventListener("input", () => {
        const k = Number(slider.value);
        [said.textContent, output.textContent] = [textOf(steps[k]), nameOf(k)];
        slider.setAttribute("aria-valuetext", nameOf(k));
        show(stepAt(k));
      });
    }
    const show = Paceline.timeline(box("timeline"), stepAt(first));
  };

  const scatter = () => {
    const { stage, n_all: all } = data.scatter;
    const [x, y] = [Paceline.floats(data.scatter.x), Paceline.floats(data.scatter.y)];
    const [microbatch, step, dp] = ["microbatch", "step", "dp"].map((name) => Paceline.ints(data.scatter[name]));
    const nameOf = (i) => (data.blamed.some(([d, p]) => d === dp[i] && p === stage) ? "dot blamed" : "dot");
    const dots = [...x.keys()].sort((a, b) => x[a] - x[b]).map((i) => ({ i, x: x[i] * 1e3, y: y[i] * 1e3, name: nameOf(i) }));
    const blamed = x.length && dots.some((dot) => dot.name !== "dot");
    const linesOf = (i) => [`dp ${Paceline.replica(data, dp[i])}, step ${step[i]}, microbatch ${microbatch[i]}`, `forward ${seconds(x[i])}`, `backward ${seconds(y[i])}`];
    const stops = dots.map((dot) => ({ ...dot, lines: linesOf(dot.i) }));
    const sample = x.length < all ? `, a sample of ${x.length.toLocaleString("en")} of ${all.toLocaleString("en")}` : "";
    const text = `One point per microbatch on stage ${stage}${sample}. A long, narrow, rising cloud means that the microbatches differ in work (sequence lengths). A round cloud means that they do not. A second cloud up and to the right is a slow worker.${blamed ? " Ringed points belong to workers that a finding names." : ""}`;
    box("scatter").append(el("p", {}, text));
    const label = "Forward against backward time of microbatches; arrow keys go from point to point";
    Paceline.chart(box("scatter"), { label, xLabel: "forward (ms)", yLabel: "backward (ms)", dots, stops });
    const rows = () =>
      stops.slice(-100).reverse().map(({ i }) => [Paceline.replica(data, dp[i]), String(step[i]), String(microbatch[i]), seconds(x[i]), seconds(y[i])]);
    const columns = ["dp", "step", "microbatch", "forward", "backward"];
    box("scatter").append(Paceline.tableOf("Table: the 100 longest forwards drawn", columns, rows));
  };

  Paceline.startThemes();
  if (data.steps) for (const draw of [workers, workersByStep, steps, cdf, timeline, scatter]) draw();
  document.documentElement.dataset.ready = "true";
})();
