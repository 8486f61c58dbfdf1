"use strict";
/* How a timeline is painted: rows, kinds, the time axis. Needs base.js; handles no input. */
(() => {
  const { clamp, ticks } = Paceline;
  const AXIS = 24;
  const GAP = 8; // between replicas

  /* Looks of kinds: CSS variable, part of the row (top, height), whether labelled. */
  const BAND = [0, 0.66];
  const LOOKS = {
    "forward-compute": { colour: "--k-forward", part: BAND, letter: "F" },
    "backward-compute": { colour: "--k-backward", part: BAND, letter: "B" },
    "forward-send": { colour: "--k-forward-comm", part: [0.7, 0.14] },
    "forward-recv": { colour: "--k-forward-comm", part: [0.7, 0.14] },
    "backward-send": { colour: "--k-backward-comm", part: [0.86, 0.14] },
    "backward-recv": { colour: "--k-backward-comm", part: [0.86, 0.14] },
    gc: { colour: "--k-gc", part: BAND },
    optimizer: { colour: "--k-optimizer", part: BAND },
    "weight-compute": { colour: "--k-weight", part: BAND },
  };
  const OTHER = { colour: "--k-collective", part: [0.1, 0.46] };
  /** Whether collectives run beside computes: then they get their own part of the row. */
  Paceline.timelineBeside = (beside) => {
    OTHER.part = beside ? [0.7, 0.3] : [0.1, 0.46];
  };
  const lookOf = (kind) => LOOKS[kind] ?? OTHER;

  /** Whether a kind is painted at a depth of its row, 0 to 1; -1 is no depth. */
  Paceline.timelineCovers = (kind, depth) => {
    const [top, height] = lookOf(kind).part;
    return depth >= top && depth <= top + height;
  };

  /** The CSS variable of a kind's colour. */
  Paceline.timelineColour = (kind) => lookOf(kind).colour;

  /** Legend of the colours: [CSS variable, text]. */
  Paceline.timelineLegend = [
    ["--k-forward", "forward compute (F)"],
    ["--k-backward", "backward compute (B)"],
    ["--k-forward-comm", "forward transfer, waiting included"],
    ["--k-backward-comm", "backward transfer, waiting included"],
    ["--k-collective", "collectives"],
    ["--k-optimizer", "optimizer"],
    ["--k-weight", "gradient of the weights (W)"],
    ["--k-gc", "garbage collection"],
  ];

  /** Positions of rows: heads (a line of text above each replica) and the top of each row. */
  Paceline.timelineRows = (rows, width) => {
    const height = rows.length > 24 ? 15 : rows.length > 12 ? 19 : 24;
    const left = width < 560 ? 30 : 52;
    const tops = [];
    const heads = [];
    let y = AXIS;
    let last = null;
    for (const row of rows) {
      const group = row.ideal ? "ideal" : row.dp;
      if (group !== last) {
        heads.push({ y: y + 12, text: headOf(row) });
        y += 18;
        last = group;
      }
      tops.push(y);
      y += height;
      const next = rows[tops.length];
      if (next && (next.ideal ? "ideal" : next.dp) !== group) y += GAP;
    }
    return { height, left, tops, heads, width, total: y + 4 };
  };

  const headOf = (row) => {
    if (row.ideal) return "Ideal: the same step without stragglers";
    return `Actual: dp ${Paceline.replica(Paceline, row.dp)}${row.what ? ` (${row.what})` : ""}`;
  };

  const brightOf = (colour) => {
    const [r, g, b] = (colour.match(/[\d.]+/g) ?? [0, 0, 0]).map(Number);
    return 0.299 * r + 0.587 * g + 0.114 * b;
  };

  /** The colours of the present theme. */
  Paceline.timelineColours = (kinds) => ({
    fill: kinds.map((kind) => Paceline.colour(lookOf(kind).colour)),
    ink: kinds.map((kind) => (brightOf(Paceline.colour(lookOf(kind).colour)) > 140 ? "#000" : "#fff")),
    text: Paceline.colour("--text"),
    dim: Paceline.colour("--dim"),
    line: Paceline.colour("--line"),
    bad: Paceline.colour("--bad"),
  });

  const axis = (pen, place, view, colours) => {
    const span = view.to - view.from;
    const inner = place.width - place.left;
    const marks = ticks(view.from, view.to, Math.max(2, inner / 90));
    pen.font = "11px system-ui, sans-serif";
    pen.textAlign = "center";
    for (const t of marks.values) {
      const x = place.left + ((t - view.from) / span) * inner;
      pen.fillStyle = colours.line;
      pen.fillRect(x, AXIS - 6, 1, place.total - AXIS);
      pen.fillStyle = colours.dim;
      const text = marks.step < 0.01 ? `${(t * 1e3).toFixed(Math.max(0, marks.digits - 3))} ms` : `${t.toFixed(marks.digits)} s`;
      pen.fillText(text, clamp(x, place.left + 16, place.width - 18), 11);
    }
  };

  const rowNames = (pen, rows, place, colours) => {
    pen.fillStyle = colours.text;
    pen.font = "600 12px system-ui, sans-serif";
    pen.textAlign = "left";
    for (const head of place.heads) pen.fillText(head.text, 0, head.y);
    pen.font = "11px system-ui, sans-serif";
    pen.fillStyle = colours.dim;
    rows.forEach((row, i) => {
      const name = place.left > 40 ? `stage ${row.pp}` : `${row.pp}`;
      pen.fillText(name, 0, place.tops[i] + place.height * 0.5 + 3);
    });
  };

  /** Paints everything but the selection; view is {from, to} in seconds. */
  Paceline.paintTimeline = (pen, data, place, view, colours) => {
    const { rows, events } = data;
    pen.clearRect(0, 0, place.width, place.total);
    axis(pen, place, view, colours);
    rowNames(pen, rows, place, colours);
    pen.save();
    pen.beginPath();
    pen.rect(place.left, 0, place.width - place.left, place.total);
    pen.clip();
    const scale = (place.width - place.left) / (view.to - view.from);
    const [labels, full] = [[], place.height - 2];
    for (let i = 0; i < events.n; i++) {
      const x = place.left + (events.start[i] - view.from) * scale;
      const w = events.length[i] * scale;
      if (x + w < place.left || x > place.width) continue;
      const look = lookOf(data.kinds[events.kind[i]]);
      const y = place.tops[events.row[i]] + look.part[0] * full;
      pen.fillStyle = colours.fill[events.kind[i]];
      pen.fillRect(x, y, Math.max(w - (w > 4 ? 0.8 : 0), 0.6), Math.max(1.5, look.part[1] * full));
      if (look.letter && w > 19) labels.push([i, x, w, y, look]);
    }
    pen.font = `${place.height > 20 ? 11 : 9}px system-ui, sans-serif`;
    pen.textAlign = "center";
    for (const [i, x, w, y, look] of labels) {
      const text = look.letter + (events.microbatch[i] === 65535 ? "" : events.microbatch[i]);
      const from = Math.max(x, place.left);
      const to = Math.min(x + w, place.width);
      if (to - from < 8 * text.length) continue;
      pen.fillStyle = colours.ink[events.kind[i]];
      pen.fillText(text, (from + to) / 2, y + (look.part[1] * full) / 2 + 3.5);
    }
    pen.restore();
  };

  /** The critical paths: a line along each segment, thin in launch delays, and where it changes rows. */
  Paceline.paintPath = (pen, data, place, view, colours) => {
    const scale = (place.width - place.left) / (view.to - view.from);
    const at = (time) => place.left + (time - view.from) * scale;
    const top = (row) => place.tops[row] - 1;
    pen.save();
    pen.beginPath();
    pen.rect(place.left, 0, place.width - place.left, place.total);
    pen.clip();
    pen.fillStyle = colours.text;
    for (const path of [data.path, data.idealPath]) {
      let before = null;
      for (const segment of path) {
        const { row, start, end } = segment;
        if (row !== null && end >= view.from && start <= view.to) {
          const thick = Paceline.isIdle(segment) ? 1 : 3;
          pen.fillRect(at(start), top(row) - thick / 2, Math.max(at(end) - at(start), 0.5), thick);
          if (before !== null && before !== row) {
            const [high, low] = [top(Math.min(before, row)), top(Math.max(before, row))];
            pen.fillRect(at(start) - 0.5, high, 1, low - high);
          }
        }
        before = row;
      }
    }
    pen.restore();
  };

  /** Lines at the ends of the two steps. */
  Paceline.paintEnds = (pen, data, place, view, colours) => {
    const scale = (place.width - place.left) / (view.to - view.from);
    for (const end of [data.actual_s, data.ideal_s]) {
      const x = place.left + (end - view.from) * scale;
      if (x < place.left || x > place.width) continue;
      pen.fillStyle = colours.bad;
      for (let y = AXIS; y < place.total; y += 7) pen.fillRect(x, y, 1.2, 4);
    }
  };
})();
