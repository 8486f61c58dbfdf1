"use strict";
/* A map of coloured cells that pointer and keyboard can read. Needs base.js and the classes
   h0..h15 of page.css (colours live there, so that themes and print need no redraw). */
(() => {
  const { el, svg, clamp } = Paceline;
  const LEVELS = 16;
  const MIN_TOP = 1.1; // least end of the scale: noise must not look like a fault
  const MIN_CELL = 6;
  const LEFT = 46;
  const TOP = 22;

  const levelOf = (value, top) =>
    Number.isFinite(value) ? clamp(Math.round(((value - 1) / (top - 1)) * (LEVELS - 1)), 0, LEVELS - 1) : -1;

  /** Layout of cells that fill the width; columns that do not fit continue in a band below. */
  const layout = (width, rows, cols) => {
    const room = Math.max(width - LEFT - 4, MIN_CELL);
    const bands = Math.ceil(cols / Math.floor(room / MIN_CELL));
    const per = Math.ceil(cols / bands);
    const w = clamp(room / per, MIN_CELL, 76);
    const h = clamp(w, rows > 32 ? 10 : 15, 32);
    const band = TOP + rows * h + 6;
    const place = (r, c) => ({ x: LEFT + (c % per) * w, y: Math.floor(c / per) * band + TOP + r * h });
    return { w, h, per, bands, band, place, width: LEFT + w * per + 4, height: bands * band };
  };

  const every = (n, size, needed) => [1, 2, 4, 8, 16, 32, 64, 128, 256, 512].find((k) => k * size >= needed) ?? n;

  const axes = (options, { w, h, per, bands, band, place }) => {
    const { rows, cols, nameOf = String, nameWidth = 26, rowOf = String, rowLabel = "stage", marks = [] } = options;
    const nodes = [];
    const text = (x, y, content, anchor) =>
      nodes.push(svg("text", { x, y, "text-anchor": anchor, class: "tick" }, content));
    const across = every(cols, w, nameWidth);
    for (let c = 0; c < cols; c++) {
      const at = place(0, c);
      if ((c % per) % across === 0) text(at.x + w / 2, at.y - 7, nameOf(c), "middle");
    }
    const down = every(rows, h, 13);
    for (let b = 0; b < bands; b++) {
      for (let r = 0; r < rows; r += down) text(LEFT - 6, place(r, b * per).y + h / 2 + 4, rowOf(r), "end");
      text(0, b * band + TOP - 7, rowLabel, "start");
    }
    for (const c of marks) {
      const [x, y] = [place(0, c).x - 0.5, place(0, c).y];
      nodes.push(svg("line", { x1: x, x2: x, y1: y - 4, y2: y + rows * h, class: "mark" }));
    }
    return nodes;
  };

  const cells = (options, { w, h, place }) => {
    const { rows, cols } = options;
    const gap = w > 9 && h > 9 ? 1.5 : 0.4;
    const made = [];
    for (let r = 0; r < rows; r++)
      for (let c = 0; c < cols; c++) {
        const at = place(r, c);
        const rect = svg("rect", { ...at, width: w - gap, height: h - gap, rx: w > 14 ? 3 : 0 });
        const text =
          w >= 36 && svg("text", { x: at.x + (w - gap) / 2, y: at.y + h / 2 + 4, "text-anchor": "middle" });
        made.push({ rect, text });
      }
    return made;
  };

  const paint = (made, values, top) =>
    made.forEach(({ rect, text }, i) => {
      const level = levelOf(values[i], top);
      rect.setAttribute("class", level < 0 ? "hnone" : `h${level}`);
      if (!text) return;
      text.textContent = Number.isFinite(values[i]) ? values[i].toFixed(2) : "";
      text.setAttribute("class", `value v${level}`);
    });

  const legend = (top) => {
    const swatches = Array.from({ length: LEVELS }, (_, i) => {
      const rect = svg("rect", { x: i * 9, width: 9, height: 12, class: `h${i}` });
      return rect;
    });
    const scale = svg("svg", { width: LEVELS * 9, height: 12, "aria-hidden": "true" }, ...swatches);
    return el("p", { class: "legend" }, "1.00 ", scale, ` ${top.toFixed(2)}`);
  };

  const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

  /**
   * Draws a heatmap into box.
   * options: rows, cols, values (row by row), top (end of the scale), label (for screen readers),
   * describe(row, col, value) -> lines of text; nameOf(col) -> the label above a column, nameWidth
   * wide; rowOf(row) -> the label of a row, rowLabel above them; marks: columns with a line in
   * front; pick(row, col): a cell is double-clicked, or Enter pressed on it.
   * Returns update(values): other values, same scale.
   */
  Paceline.heatmap = (box, options) => {
    const { rows, cols } = options;
    const top = Math.max(MIN_TOP, options.top);
    let values = options.values;
    let made = [];
    let size = null;
    let picture = null;
    let at = null;
    const frame = svg("rect", { class: "cursor", visibility: "hidden" });
    const holder = el("div", { class: "scroll" });
    const readout = Paceline.readout();
    box.append(holder, legend(top), readout);

    const worst = () => values.reduce((best, v, i) => (v > values[best] ? i : best), 0);
    const lines = () => options.describe(Math.floor(at / cols), at % cols, values[at]);
    const mark = () => {
      frame.setAttribute("visibility", at === null ? "hidden" : "visible");
      if (at === null) return;
      const { x, y } = size.place(Math.floor(at / cols), at % cols);
      const shape = { x: x - 1, y: y - 1, width: size.w + 0.5, height: size.h + 0.5 };
      for (const [key, value] of Object.entries(shape)) frame.setAttribute(key, value);
      readout.textContent = lines().join(" · ");
    };
    const tipAt = () => {
      const { left, top: y } = made[at].rect.getBoundingClientRect();
      Paceline.showTip(lines(), left, y + 8);
    };
    const cellUnder = (event) => {
      const view = picture.getBoundingClientRect();
      const scale = size.width / view.width;
      const x = Math.floor(((event.clientX - view.left) * scale - LEFT) / size.w);
      const y = (event.clientY - view.top) * scale;
      const band = Math.floor(y / size.band);
      const [r, c] = [Math.floor((y - band * size.band - TOP) / size.h), band * size.per + x];
      return x >= 0 && x < size.per && r >= 0 && r < rows && c < cols ? r * cols + c : null;
    };
    const point = (event) => {
      const found = cellUnder(event);
      if (found === null) return Paceline.hideTip();
      at = found;
      mark();
      return Paceline.showTip(lines(), event.clientX, event.clientY);
    };
    const key = (event) => {
      if (event.key === "Escape") return Paceline.hideTip();
      if (event.key === "Enter" && at !== null) return options.pick?.(Math.floor(at / cols), at % cols);
      const move = moves[event.key];
      if (event.key === "Home") at = worst();
      else if (move) {
        const row = clamp(Math.floor(at / cols) + move[0], 0, rows - 1);
        at = row * cols + clamp((at % cols) + move[1], 0, cols - 1);
      } else return undefined;
      event.preventDefault();
      made[at].rect.scrollIntoView({ block: "nearest", inline: "nearest" });
      mark();
      return tipAt();
    };
    const focus = () => {
      at ??= worst();
      mark();
      if (picture.matches(":focus-visible")) tipAt();
    };

    Paceline.drawn(box, (width) => {
      size = layout(width, rows, cols);
      made = cells(options, size);
      const { height } = size;
      const attributes = { viewBox: `0 0 ${size.width} ${height}`, width: size.width, height };
      const access = { tabindex: 0, role: "application", "aria-roledescription": "heatmap" };
      picture = svg(
        "svg",
        { ...attributes, ...access, class: "heatmap drawing", "aria-label": options.label },
        ...made.flatMap(({ rect, text }) => (text ? [rect, text] : [rect])),
        ...axes(options, size),
        frame,
      );
      picture.addEventListener("pointermove", point);
      picture.addEventListener("pointerdown", point);
      picture.addEventListener("pointerleave", Paceline.hideTip);
      picture.addEventListener("keydown", key);
      picture.addEventListener("dblclick", () => at !== null && options.pick?.(Math.floor(at / cols), at % cols));
      picture.addEventListener("focus", focus);
      picture.addEventListener("blur", Paceline.hideTip);
      holder.replaceChildren(picture);
      paint(made, values, top);
      mark();
    });
    return (others) => {
      values = others;
      paint(made, values, top);
      mark();
    };
  };
})();
