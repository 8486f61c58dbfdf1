"use strict";
/* A timeline to zoom and pan with mouse, touch and keyboard. Needs base.js, timeline_view.js, timeline_step.js. */
(() => {
  const { el, svg, clamp, seconds } = Paceline;
  const HINT = "Drag to pan, Ctrl + wheel or pinch to zoom, or focus the timeline: arrows pan and change the row, + and − zoom, , and . go from operation to operation, c along the critical path, 0 shows all.";
  const CLOSEST = 2000; // largest zoom factor

  const legend = (data) => {
    const seen = new Set(data.events.kind);
    const used = new Set(data.kinds.filter((_, k) => seen.has(k)).map(Paceline.timelineColour));
    const items = Paceline.timelineLegend.filter(([colour]) => used.has(colour)).map(([colour, words]) => {
      const rect = svg("rect", { width: 14, height: 12 });
      rect.style.fill = `var(${colour})`;
      return el("span", {}, svg("svg", { width: 14, height: 12, "aria-hidden": "true" }, rect), ` ${words}  `);
    });
    const line = svg("rect", { y: 4, width: 22, height: 3 });
    line.style.fill = "var(--text)";
    const path = svg("svg", { width: 22, height: 12, "aria-hidden": "true" }, line);
    items.push(el("span", {}, path, " critical path (thin: launch delay)"));
    return el("p", { class: "legend" }, ...items);
  };

  /** The visible part of the time; zooming and panning keep it inside [0, end]. */
  class View {
    constructor(end) {
      [this.end, this.from, this.to] = [end, 0, end];
    }
    set(from, span) {
      const size = clamp(span, this.end / CLOSEST, this.end);
      this.from = clamp(from, 0, this.end - size);
      this.to = this.from + size;
    }
    zoom(factor, around = (this.from + this.to) / 2) {
      const span = clamp((this.to - this.from) / factor, this.end / CLOSEST, this.end);
      const share = (around - this.from) / (this.to - this.from);
      this.set(around - share * span, span);
    }
    pan(share) {
      this.set(this.from + share * (this.to - this.from), this.to - this.from);
    }
    show(start, end) {
      const span = this.to - this.from;
      if (start < this.from || end > this.to) this.set((start + end) / 2 - span / 2, span);
    }
  }

  const describe = (data, i) => {
    const { events, rows, kinds, names } = data;
    const row = rows[events.row[i]];
    const who = row.ideal ? `ideal, stage ${row.pp}` : `dp ${Paceline.replica(Paceline, row.dp)}, stage ${row.pp}`;
    const number = events.microbatch[i] === 65535 ? "" : ` of microbatch ${events.microbatch[i]}`;
    const end = events.start[i] + events.length[i];
    const exposed = data.exposed[`${kinds[events.kind[i]]} ${row.pp} ${events.part[i]}`];
    const path = events.critical[i] ? ["on the critical path"] : [];
    return [
      `${names[events.kind[i]]}${number}`,
      ...(exposed === undefined ? [] : [exposed]),
      who,
      `${seconds(events.length[i])}, from ${seconds(events.start[i])} to ${seconds(end)}`,
      ...path,
    ];
  };

  /** The event at a time in a row. At the same height, computes come before other events.

      `depth` is the position from top to bottom of the row, 0 to 1; -1 for anywhere. */
  const eventAt = (data, row, time, slack, depth = -1) => {
    const { events } = data;
    let found = null;
    for (let i = 0; i < events.n; i++) {
      if (events.row[i] !== row) continue;
      const inside = time >= events.start[i] - slack && time <= events.start[i] + events.length[i] + slack;
      if (!inside) continue;
      const better = (j) => Paceline.timelineCovers(data.kinds[events.kind[j]], depth);
      const nearer = found === null ? 1 : better(i) - better(found);
      if (nearer > 0 || (nearer === 0 && events.kind[i] < events.kind[found])) found = i;
    }
    return found;
  };

  const longest = (data) => {
    const { events } = data;
    const computes = [...events.kind.keys()].filter((i) => events.kind[i] < 2 && !data.rows[events.row[i]].ideal);
    const top = computes.sort((a, b) => events.length[b] - events.length[a]).slice(0, 30);
    return top.map((i) => {
      const row = data.rows[events.row[i]];
      const cells = [data.names[events.kind[i]], Paceline.replica(Paceline, row.dp), row.pp, events.microbatch[i]];
      return [...cells, seconds(events.start[i]), seconds(events.length[i])].map(String);
    });
  };

  const pathRows = (data) =>
    data.path.map((segment) => {
      const cells = [Paceline.segmentName(data, segment), Paceline.replica(Paceline, segment.dp), segment.pp];
      return [...cells, seconds(segment.start), seconds(segment.end - segment.start)].map(String);
    });

  const buttons = (view, repaint) => {
    const make = (text, label, action) => {
      const button = el("button", { type: "button", "aria-label": label, title: label }, text);
      button.addEventListener("click", () => (action(), repaint()));
      return button;
    };
    return el(
      "div",
      { class: "buttons" },
      make("+", "Zoom in", () => view.zoom(2)),
      make("−", "Zoom out", () => view.zoom(0.5)),
      make("◀", "Earlier", () => view.pan(-0.4)),
      make("▶", "Later", () => view.pan(0.4)),
      make("All", "Show the whole step", () => view.set(0, view.end)),
    );
  };

  /** Mouse and touch: one pointer pans, two zoom; calls at(event) for a pointer that hovers. */
  const pointers = (canvas, view, timeAt, repaint, look) => {
    const down = new Map();
    const spread = () => {
      const [a, b] = [...down.values()];
      return [Math.abs(a - b), (a + b) / 2];
    };
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      down.set(event.pointerId, event.clientX);
      look(event);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!down.has(event.pointerId)) return look(event);
      const before = down.size === 2 ? spread() : null;
      const dx = event.clientX - down.get(event.pointerId);
      down.set(event.pointerId, event.clientX);
      if (before) {
        const [apart, middle] = spread();
        if (before[0] > 8) view.zoom(apart / before[0], timeAt(middle));
      } else if (dx) view.pan(-dx / canvas.clientWidth);
      Paceline.hideTip();
      return repaint();
    });
    for (const name of ["pointerup", "pointercancel"])
      canvas.addEventListener(name, (event) => down.delete(event.pointerId));
    canvas.addEventListener("pointerleave", Paceline.hideTip);
    canvas.addEventListener("dblclick", (event) => (view.zoom(3, timeAt(event.clientX)), repaint()));
    const wheel = (event) => {
      if (event.ctrlKey || event.metaKey) view.zoom(Math.exp(-event.deltaY / 300), timeAt(event.clientX));
      else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY))
        view.pan((event.deltaX || event.deltaY) / canvas.clientWidth);
      else return; // the page scrolls
      event.preventDefault();
      repaint();
    };
    canvas.addEventListener("wheel", wheel, { passive: false });
  };

  /** Draws a timeline of a step (see timelineSteps); returns a function that shows another one. */
  Paceline.timeline = (box, step) => {
    let data = step;
    let { events } = data;
    const view = new View(0);
    const canvas = el("canvas", { tabindex: 0, role: "application", "aria-roledescription": "timeline" });
    const readout = Paceline.readout(HINT);
    let [place, selected, row] = [null, null, 0];

    const paint = () => {
      if (!place) return;
      const pen = canvas.getContext("2d");
      const sharp = Math.max(devicePixelRatio || 1, 2); // prints well, too
      if (canvas.width !== Math.round(place.width * sharp) || canvas.height !== Math.round(place.total * sharp)) {
        canvas.width = Math.round(place.width * sharp);
        canvas.height = Math.round(place.total * sharp);
      }
      pen.setTransform(sharp, 0, 0, sharp, 0, 0);
      const colours = Paceline.timelineColours(data.kinds);
      Paceline.paintTimeline(pen, data, place, view, colours);
      Paceline.paintPath(pen, data, place, view, colours);
      Paceline.paintEnds(pen, data, place, view, colours);
      if (selected !== null) {
        const scale = (place.width - place.left) / (view.to - view.from);
        const x = place.left + (events.start[selected] - view.from) * scale;
        pen.strokeStyle = colours.text;
        pen.lineWidth = 2;
        pen.strokeRect(x, place.tops[events.row[selected]] - 1, Math.max(3, events.length[selected] * scale), place.height);
      }
    };
    let waiting = false;
    const repaint = () => {
      if (waiting) return;
      waiting = true;
      requestAnimationFrame(() => {
        waiting = false;
        paint();
      });
    };
    const timeAt = (clientX) => {
      const x = clientX - canvas.getBoundingClientRect().left - place.left;
      return view.from + (x / (place.width - place.left)) * (view.to - view.from);
    };
    const look = (event) => {
      const y = event.clientY - canvas.getBoundingClientRect().top;
      const at = place.tops.findLastIndex((top) => y >= top);
      const slack = (2 * (view.to - view.from)) / place.width;
      const found = at >= 0 && y < place.tops[at] + place.height ? eventAt(data, at, timeAt(event.clientX), slack, (y - place.tops[at]) / place.height) : null;
      if (found === null) return Paceline.hideTip();
      return Paceline.showTip(describe(data, found), event.clientX, event.clientY);
    };
    const say = () => {
      readout.textContent = describe(data, selected).join(" · ");
      view.show(events.start[selected], events.start[selected] + events.length[selected]);
    };
    const neighbour = (direction) => {
      const here = [...events.row.keys()].filter((i) => events.row[i] === row && events.kind[i] !== 255);
      const from = here.indexOf(selected);
      const first = here.findIndex((i) => events.start[i] >= view.from);
      selected = here[from < 0 ? Math.max(first, 0) : clamp(from + direction, 0, here.length - 1)] ?? null;
      if (selected !== null) say();
    };
    /** To the next drawn operation on the path of the part (actual or ideal) one is in. */
    const along = (direction) => {
      const ideal = selected !== null && data.rows[events.row[selected]].ideal;
      const onPath = [...events.row.keys()].filter((i) => events.critical[i] && data.rows[events.row[i]].ideal === ideal);
      onPath.sort((a, b) => events.start[a] + events.length[a] - events.start[b] - events.length[b]);
      const at = onPath.indexOf(selected);
      const now = selected === null ? view.from : events.start[selected];
      const from = at >= 0 ? at + direction : Math.max(onPath.findIndex((i) => events.start[i] >= now), 0);
      selected = onPath[clamp(from, 0, onPath.length - 1)] ?? null;
      if (selected === null) return;
      row = events.row[selected];
      say();
    };
    const changeRow = (direction) => {
      row = clamp(row + direction, 0, data.rows.length - 1);
      const time = selected === null ? (view.from + view.to) / 2 : events.start[selected];
      selected = eventAt(data, row, time, view.end);
      if (selected !== null) say();
    };
    const keys = {
      ArrowLeft: () => view.pan(-0.2),
      ArrowRight: () => view.pan(0.2),
      ArrowUp: () => changeRow(-1),
      ArrowDown: () => changeRow(1),
      "+": () => view.zoom(1.5),
      "=": () => view.zoom(1.5),
      "-": () => view.zoom(1 / 1.5),
      0: () => view.set(0, view.end),
      ".": () => neighbour(1),
      ",": () => neighbour(-1),
      c: () => along(1),
      C: () => along(-1),
    };
    canvas.addEventListener("keydown", (event) => {
      const action = keys[event.key];
      if (!action || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      action();
      repaint();
    });
    pointers(canvas, view, timeAt, repaint, look);
    const head = ["kind", "dp", "stage", "microbatch", "start", "length"];
    const below = el("div"); // parts that change with the step
    box.append(buttons(view, repaint), canvas, below, readout);
    const draw = (width) => {
      place = Paceline.timelineRows(data.rows, width);
      canvas.style.aspectRatio = `${place.width} / ${place.total}`;
      paint();
    };
    const show = (next) => {
      data = next;
      ({ events } = data);
      [selected, row] = [null, 0];
      readout.textContent = HINT;
      view.end = Math.max(data.actual_s, data.ideal_s) * 1.01;
      view.set(0, view.end);
      const took = `actual ${seconds(data.actual_s)}, ideal ${seconds(data.ideal_s)}`;
      canvas.setAttribute("aria-label", `Timeline of step ${data.step}: ${took}`);
      below.replaceChildren(
        legend(data),
        Paceline.tableOf("Table: the critical path of the step", ["operation", "dp", "stage", "start", "length"], () => pathRows(data)),
        Paceline.tableOf("Table: the longest computes of those drawn", head, () => longest(data)),
      );
      if (place) draw(place.width);
    };
    show(data);
    Paceline.drawn(box, draw, { colours: true });
    return show;
  };
})();
