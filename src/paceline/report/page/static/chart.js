"use strict";
/* Curves and points on two axes. Needs base.js. Colours and dashes are classes of page.css. */
(() => {
  const { el, svg, clamp, ticks } = Paceline;
  const HEIGHT = 250;
  const MARGIN = { left: 58, right: 14, top: 12, bottom: 40 };

  /** [low, high] of some numbers, widened a little; never empty. */
  const range = (numbers) => {
    let low = Infinity;
    let high = -Infinity;
    for (const v of numbers)
      if (Number.isFinite(v)) {
        low = Math.min(low, v);
        high = Math.max(high, v);
      }
    if (low > high) return [0, 1];
    const room = (high - low) * 0.05 || Math.abs(high) * 0.05 || 1;
    return [low - room, high + room];
  };

  /** Whole numbers from low to high, about n, evenly apart. */
  const wholeTicks = (low, high, n) => {
    const [first, last] = [Math.ceil(low), Math.floor(high)];
    const step = Math.max(1, Math.ceil((last - first) / n));
    const values = [];
    for (let v = first; v <= last; v += step) values.push(v);
    return { values, digits: 0 };
  };

  const scales = (options, width) => {
    const [x0, x1] = options.xRange ?? range(options.xs);
    const [y0, y1] = options.yRange ?? range(options.ys);
    const inner = { w: width - MARGIN.left - MARGIN.right, h: HEIGHT - MARGIN.top - MARGIN.bottom };
    return {
      x: (v) => MARGIN.left + ((v - x0) / (x1 - x0)) * inner.w,
      y: (v) => MARGIN.top + inner.h - ((v - y0) / (y1 - y0)) * inner.h,
      xTicks: options.xName
        ? wholeTicks(x0, x1, Math.max(2, Math.floor(inner.w / 90)))
        : ticks(x0, x1, Math.max(2, inner.w / 90)),
      yTicks: ticks(y0, y1, 6),
      ...inner,
    };
  };

  const label = (x, y, text, anchor, name = "tick") =>
    svg("text", { x, y, "text-anchor": anchor, class: name }, text);

  const axes = (options, scale, width) => {
    const bottom = HEIGHT - MARGIN.bottom;
    const nodes = [];
    for (const v of scale.yTicks.values) {
      const y = scale.y(v);
      nodes.push(svg("line", { x1: MARGIN.left, x2: width - MARGIN.right, y1: y, y2: y, class: "grid" }));
      nodes.push(label(MARGIN.left - 6, y + 4, v.toFixed(scale.yTicks.digits), "end"));
    }
    for (const v of scale.xTicks.values) {
      const name = options.xName ? options.xName(v) : v.toFixed(scale.xTicks.digits);
      if (name === undefined) continue;
      nodes.push(label(scale.x(v), bottom + 16, name, "middle"));
    }
    nodes.push(label(MARGIN.left + scale.w / 2, HEIGHT - 5, options.xLabel, "middle", "axis"));
    const turned = label(0, 0, options.yLabel, "middle", "axis");
    turned.setAttribute("transform", `translate(12 ${MARGIN.top + scale.h / 2}) rotate(-90)`);
    return [...nodes, turned];
  };

  const pathOf = (series, scale) => {
    let path = "";
    series.points.forEach(([x, y], i) => {
      const [px, py] = [scale.x(x).toFixed(1), scale.y(y).toFixed(1)];
      if (!i || series.breaks?.has(i)) path += `M${px} ${py}h0.01`; // the tiny line shows a point that stands alone
      else path += series.stairs ? `H${px}V${py}` : `L${px} ${py}`;
    });
    return path;
  };

  const reference = (ref, scale) => {
    if (!ref) return [];
    const x = scale.x(ref.x);
    const line = svg("line", { x1: x, x2: x, y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom, class: "reference" });
    return [line, label(x + 5, HEIGHT - MARGIN.bottom - 8, ref.label, "start")];
  };

  const key = (series) =>
    el(
      "p",
      { class: "legend" },
      ...series.map((one) => {
        const line = svg("path", { d: "M0 6H30", class: one.name });
        const shape = svg("svg", { width: 30, height: 12, "aria-hidden": "true" }, line);
        return el("span", {}, shape, ` ${one.label}  `);
      }),
    );

  const dotKey = (keys) =>
    el(
      "p",
      { class: "legend" },
      ...keys.map((one) => {
        const line = one.line ? [svg("path", { d: "M0 6H30", class: one.line })] : [];
        const dot = svg("circle", { cx: 15, cy: 6, r: one.r, class: one.name });
        const shape = svg("svg", { width: 30, height: 12, "aria-hidden": "true" }, ...line, dot);
        return el("span", {}, shape, ` ${one.label}  `);
      }),
    );

  /**
   * Draws into box.
   * options: label, xLabel, yLabel, xRange, yRange, ref {x, label}; xName(i): the name of the whole
 * number i on the x axis (then nothing else is marked there);
   * series [{label, name (class), points [[x, y]...], stairs, breaks}] as curves, broken before the points in breaks;
   * keys [{label, name, r, line (class)}]: the legend of the dots;
   * dots [{x, y, name, r}] as points; stops [{x, y, lines}]: the points that pointer and arrow keys can reach.
   */
  Paceline.chart = (box, options) => {
    const { series = [], dots = [], keys, stops } = options;
    const points = [...series.flatMap((one) => one.points), ...dots.map((dot) => [dot.x, dot.y])];
    const given = { ...options, xs: points.map((p) => p[0]), ys: points.map((p) => p[1]) };
    let at = null;
    let scale = null;
    let picture = null;
    const cursor = svg("circle", { r: 6, class: "cursor", visibility: "hidden" });
    const holder = el("div");
    const readout = Paceline.readout();
    box.append(holder, ...(keys ? [dotKey(keys)] : series.length > 1 ? [key(series)] : []), readout);

    const show = (x, y) => {
      const stop = stops[at];
      cursor.setAttribute("cx", scale.x(stop.x));
      cursor.setAttribute("cy", scale.y(stop.y));
      cursor.setAttribute("visibility", "visible");
      readout.textContent = stop.lines.join(" · ");
      const place = cursor.getBoundingClientRect();
      Paceline.showTip(stop.lines, x ?? place.right, y ?? place.bottom);
    };
    const nearest = (event) => {
      const view = picture.getBoundingClientRect();
      const [mx, my] = [event.clientX - view.left, event.clientY - view.top];
      let best = Infinity;
      stops.forEach((stop, i) => {
        const dx = scale.x(stop.x) - mx;
        const dy = (scale.y(stop.y) - my) * (options.dots ? 1 : 0.2); // along a curve x decides
        const far = dx * dx + dy * dy;
        if (far < best) [best, at] = [far, i];
      });
      if (at !== null) show(event.clientX, event.clientY);
    };
    const press = (event) => {
      if (event.key === "Escape") return Paceline.hideTip();
      const last = stops.length - 1;
      const current = at ?? -1;
      const to = { ArrowRight: current + 1, ArrowLeft: current - 1, Home: 0, End: last }[event.key];
      if (to === undefined || last < 0) return undefined;
      event.preventDefault();
      at = clamp(to, 0, last);
      return show();
    };

    Paceline.drawn(box, (width) => {
      scale = scales(given, width);
      const access = { tabindex: 0, role: "application", "aria-roledescription": "chart" };
      picture = svg(
        "svg",
        { viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, class: "drawing", ...access, "aria-label": options.label },
        ...axes(given, scale, width),
        ...reference(options.ref, scale),
        ...series.map((one) => svg("path", { d: pathOf(one, scale), class: one.name })),
        ...dots.map((dot) => svg("circle", { cx: scale.x(dot.x), cy: scale.y(dot.y), r: dot.r ?? 2.4, class: dot.name })),
        cursor,
      );
      picture.addEventListener("pointermove", nearest);
      picture.addEventListener("pointerdown", nearest);
      picture.addEventListener("pointerleave", Paceline.hideTip);
      picture.addEventListener("keydown", press);
      picture.addEventListener("blur", Paceline.hideTip);
      holder.replaceChildren(picture);
      cursor.setAttribute("visibility", "hidden");
    });
  };

  /** A chart as report/page/distributions.py describes it, with its table. */
  Paceline.chartOf = (box, spec) => {
    const series = (spec.series ?? []).map((one) => ({ ...one, breaks: new Set(one.breaks ?? []) }));
    const xName = spec.x_names && ((i) => spec.x_names[i]);
    Paceline.chart(box, { ...spec, series, stops: spec.stops ?? [], ...(xName ? { xName } : {}) });
    if (!spec.table) return;
    const table = Paceline.tableOf(spec.table.title, spec.table.head, () => spec.table.rows);
    table.id = `${box.id}-table`;
    box.append(table);
  };
})();
