"use strict";
/* The numbers that report/page/drawn.py packed, brought into the form of one step. Needs base.js. */
(() => {
  const MISSING = 65535;
  const IDLE = 2; // launch delays among the sorts of segments
  const OCCUPIED = 3;

  const unpackOps = (packed) => ({
    kind: Paceline.octets(packed.kind),
    pp: Paceline.shorts(packed.pp),
    microbatch: Paceline.shorts(packed.microbatch),
    part: packed.part ? Paceline.shorts(packed.part) : null,
  });

  /** The segments of a critical path; each ends where the next one starts. */
  const unpackPath = (packed) => {
    const [op, dp] = [Paceline.ints(packed.op), Paceline.ints(packed.dp)];
    const [sort, start] = [Paceline.octets(packed.sort), Paceline.floats(packed.start)];
    const end = (i) => (i + 1 < start.length ? start[i + 1] : packed.end_s);
    return [...op.keys()].map((i) => ({ op: op[i], dp: dp[i], sort: sort[i], start: start[i], end: end(i) }));
  };

  const rowsOf = (step, n_pp) => {
    const rows = [];
    for (const dp of step.replicas) {
      const what = dp === step.slowest ? "slowest" : dp === step.typical ? "typical" : "";
      for (let pp = 0; pp < n_pp; pp++) rows.push({ dp, pp, what, ideal: false });
    }
    for (let pp = 0; pp < n_pp; pp++) rows.push({ dp: -1, pp, what: "", ideal: true });
    return rows;
  };

  /** Columns of events, by row and start; events without duration are left out. */
  const columns = (found) => {
    found.sort((a, b) => a.row - b.row || a.start - b.start);
    const column = (type, name) => type.from(found, (event) => event[name]);
    return {
      n: found.length,
      row: column(Uint16Array, "row"),
      kind: column(Uint8Array, "kind"),
      microbatch: column(Uint16Array, "microbatch"),
      part: column(Uint16Array, "part"),
      start: column(Float32Array, "start"),
      length: column(Float32Array, "length"),
      critical: column(Uint8Array, "critical"),
    };
  };

  /** Returns the data that a timeline draws for the k-th step. */
  Paceline.timelineSteps = (packed) => {
    const variants = packed.variants.map(unpackOps);
    Paceline.timelineBeside(variants.some((ops) => ops.part !== null));
    const variantOf = Paceline.ints(packed.replica_variant);
    return (k) => {
      const step = packed.steps[k];
      const rows = rowsOf(step, packed.n_pp);
      const found = [];
      const add = (ops, first, times, critical) => {
        ops.kind.forEach((kind, op) => {
          const length = times.length[times.at + op];
          if (!(length > 0)) return;
          const [row, microbatch] = [first + ops.pp[op], ops.microbatch[op]];
          const part = ops.part ? ops.part[op] : MISSING;
          found.push({ row, kind, microbatch, part, start: times.start[times.at + op], length, critical: critical.has(op) ? 1 : 0 });
        });
        times.at += ops.kind.length;
      };
      const path = (segments, firstOf, ops) =>
        segments.map((s) => {
          const { kind, pp, microbatch } = ops(s.dp);
          const first = firstOf(s.dp);
          const what = { kind: kind[s.op], pp: pp[s.op], microbatch: microbatch[s.op] };
          return { ...s, ...what, row: first === null ? null : first + what.pp };
        });
      const runs = (segments, dp) => new Set(segments.filter((s) => s.dp === dp && s.sort < IDLE).map((s) => s.op));
      const opsOf = (dp) => variants[variantOf[dp]];
      const segments = unpackPath(step.path);
      const times = { start: Paceline.floats(step.start), length: Paceline.floats(step.length), at: 0 };
      step.replicas.forEach((dp, i) => add(opsOf(dp), i * packed.n_pp, times, runs(segments, dp)));
      const place = new Map(step.replicas.map((dp, i) => [dp, i * packed.n_pp]));
      const { ideal } = packed;
      const idealSegments = ideal.path ? unpackPath(ideal.path) : [];
      const idealTimes = { start: Paceline.floats(ideal.start), length: Paceline.floats(ideal.length), at: 0 };
      const below = step.replicas.length * packed.n_pp;
      add(variants[ideal.variant], below, idealTimes, runs(idealSegments, ideal.dp));
      return {
        ...step,
        kinds: packed.kinds,
        names: packed.names,
        exposed: packed.exposed ?? {},
        rows,
        events: columns(found),
        path: path(segments, (dp) => place.get(dp) ?? null, opsOf),
        idealPath: path(idealSegments, (dp) => (dp === ideal.dp ? below : null), opsOf),
      };
    };
  };

  /** A segment of the path as text. */
  Paceline.segmentName = (data, segment) => {
    const number = segment.microbatch === MISSING ? "" : ` of microbatch ${segment.microbatch}`;
    const name = `${data.names[segment.kind]}${number}`;
    if (segment.sort === IDLE) return `launch delay before ${name}`;
    return segment.sort === OCCUPIED ? `${name} (worker occupied)` : name;
  };
  Paceline.isIdle = (segment) => segment.sort === IDLE;
})();
