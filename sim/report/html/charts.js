// The pictures: each has a function that draws it again from what is kept.
const GL = (() => {
  try {
    return Boolean(document.createElement("canvas").getContext("webgl"));
  } catch {
    return false;
  }
})();
const POINTS = VALUES.points;
const SAMPLED = POINTS && POINTS.task === "sample";
const TIME = SAMPLED ? { word: "latency", unit: "s", each: 1 } : { word: "iteration", unit: "ms", each: 1000 };
const MOST_WORDS = 3000; // of more points, hovering tells where they are and whose
const chosen = { mask: null, marked: null };

const inTime = (i) => POINTS.columns.time[i] * TIME.each;
const height = (i) => (SAMPLED ? inTime(i) : POINTS.columns.speed[i]);
const shownPoint = (i) => !chosen.mask || chosen.mask[i] === 1;

function words(i) {
  const c = POINTS.columns;
  const band = c.low[i] === null ? "" : ` (${number(c.low[i] * TIME.each)} to ${number(c.high[i] * TIME.each)})`;
  const least = c.simulated[i] ? "" : "at least ";
  return `<b>${plain(POINTS.strategies[c.strategy[i]].name)}</b>, ${counted(c.gpus[i], "GPU")}<br>${plain(c.how[i])}<br>` +
    `${least}${number(inTime(i))} ${TIME.unit}${band}<br>${least}${number(c.memory[i], 3)} GiB`;
}

function cloud(places, name, marker) {
  return {
    type: GL ? "scattergl" : "scatter", mode: "markers", name: plain(name), marker,
    x: places.map((i) => POINTS.columns.memory[i]), y: places.map(height), customdata: places,
    ...(POINTS.columns.time.length > MOST_WORDS ? { hoverinfo: "x+y+name" } : { text: places.map(words), hoverinfo: "text" }),
  };
}

function frontTraces() {
  const c = POINTS.columns, groups = POINTS.strategies.map(() => []), bounded = [];
  for (let i = 0; i < c.time.length; i++) {
    if (!shownPoint(i)) continue;
    if (c.simulated[i]) groups[c.strategy[i]].push(i);
    else bounded.push(i);
  }
  const traces = [];
  if (bounded.length) {
    const faint = { color: Theme.colour("muted"), size: 4, opacity: 0.35, symbol: "circle-open" };
    traces.push({ ...cloud(bounded, "bounded: no better than", faint), visible: "legendonly" });
  }
  const whiskers = POINTS.whiskers.filter(shownPoint);
  const end = (i, of) => (SAMPLED ? c[of][i] : c.speed[i] * c.time[i] / c[of === "low" ? "high" : "low"][i]);
  traces.push({
    type: "scatter", mode: "markers", marker: { size: 0.1, opacity: 0 }, hoverinfo: "skip", showlegend: false,
    x: whiskers.map((i) => c.memory[i]), y: whiskers.map(height),
    error_y: {
      type: "data", symmetric: false, thickness: 1, width: 3, color: Theme.colour("muted"),
      array: whiskers.map((i) => Math.max(0, end(i, "high") - height(i))),
      arrayminus: whiskers.map((i) => Math.max(0, height(i) - end(i, "low"))),
    },
  });
  const front = POINTS.front.filter(shownPoint);
  traces.push({
    type: "scatter", mode: "lines", name: "front", hoverinfo: "skip", x: front.map((i) => c.memory[i]),
    y: front.map(height), line: { color: Theme.colour("muted"), width: 1.5, shape: "hv" },
  });
  groups.forEach((places, s) => {
    const look = POINTS.strategies[s];
    if (places.length) traces.push(cloud(places, look.name, { color: Theme.of(look.colour), symbol: look.symbol, size: 9 }));
  });
  const ring = chosen.marked ?? POINTS.best;
  if (ring !== null && shownPoint(ring)) {
    traces.push({
      type: "scatter", mode: "markers", name: chosen.marked === null ? "recommended" : "marked", hoverinfo: "skip",
      x: [c.memory[ring]], y: [height(ring)],
      marker: { size: 19, symbol: "circle-open", color: Theme.colour("accent"), line: { width: 2.5 } },
    });
  }
  return traces;
}

function drawFront() {
  const limit = POINTS.capacity;
  const shapes = limit === null ? [] : [{
    type: "line", x0: limit, x1: limit, yref: "paper", y0: 0, y1: 1, line: { color: Theme.colour("limit"), dash: "dash", width: 1.5 },
  }];
  const most = Math.max(...POINTS.columns.memory.filter((_, i) => POINTS.columns.simulated[i]), 1);
  return Plotly.react("front", frontTraces(), layout({
    uirevision: "front", shapes,
    xaxis: axis("peak memory of a GPU in GiB", { range: [0, 1.06 * Math.max(most, most > 0.6 * (limit ?? 0) ? limit ?? 0 : 0)] }),
    yaxis: axis(SAMPLED ? "latency in s" : "samples per second", SAMPLED
      ? { type: "log", dtick: "D2", exponentformat: "none", tickformat: "~r" } : { rangemode: "tozero" }),
  }), CONFIG);
}

function drawScaling() {
  const s = VALUES.scaling, first = s.speed[0] / s.gpus[0], names = s.strategy.map(plain), side = !narrow();
  const colour = Theme.colour("accent"), ticks = { type: "log", tickvals: s.gpus, ticktext: s.gpus.map(String) };
  const knee = s.knee === null ? [] : ["x", "x2"].map((x) => ({
    type: "line", xref: x, x0: s.knee, x1: s.knee, yref: x === "x" ? "y domain" : "y2 domain", y0: 0, y1: 1,
    line: { color: Theme.colour("limit"), dash: "dot", width: 1.5 },
  }));
  return Plotly.react("scaling", [
    { type: "scatter", mode: "lines", name: "in proportion", x: s.gpus, y: s.gpus.map((n) => n * first), hoverinfo: "skip",
      line: { color: Theme.colour("muted"), dash: "dash", width: 1 } },
    { type: "scatter", mode: "lines+markers", name: "best strategy", x: s.gpus, y: s.speed, text: names,
      hovertemplate: "GPUs %{x}: %{y:,.4~r} per s, %{text}<extra></extra>", line: { color: colour }, marker: { size: 9 },
      error_y: { type: "data", symmetric: false, array: s.high.map((h, i) => h - s.speed[i]),
        arrayminus: s.low.map((l, i) => s.speed[i] - l), thickness: 1, width: 3, color: Theme.colour("muted") } },
    { type: "scatter", mode: "lines+markers", name: "efficiency", xaxis: "x2", yaxis: "y2", x: s.gpus, y: s.efficiency, text: names,
      hovertemplate: "GPUs %{x}: %{y:.1f} %, %{text}<extra></extra>", line: { color: "#009E73" }, marker: { size: 9 } },
  ], layout({
    shapes: knee, showlegend: false,
    xaxis: axis("GPUs", { ...ticks, domain: side ? [0, 0.44] : [0, 1] }),
    yaxis: axis(`${s.unit} per second`, { type: "log", dtick: "D2", exponentformat: "none", tickformat: "~r", domain: side ? [0, 1] : [0.6, 1] }),
    xaxis2: axis("GPUs", { ...ticks, anchor: "y2", domain: side ? [0.56, 1] : [0, 1] }),
    yaxis2: axis("efficiency in %", { rangemode: "tozero", anchor: "x2", domain: side ? [0, 1] : [0, 0.4] }),
  }), CONFIG);
}

function drawTimeline() {
  const t = VALUES.timeline, row = Math.max(12, Math.min(34, 620 / t.devices));
  byId("timeline").style.height = `${Math.round(t.devices * row + 120)}px`;
  const traces = t.kinds.map((kind) => ({
    type: "bar", orientation: "h", name: kind.name, base: kind.start, x: kind.took, y: kind.device, text: kind.words.map(plain),
    width: kind.name === "collective" ? 0.22 : 0.62, offset: kind.name === "collective" ? 0.2 : -0.42, textposition: "none",
    marker: { color: kind.colour, line: { width: kind.start.length > 2500 ? 0 : 0.5, color: Theme.colour("card") } },
    hovertemplate: `<b>${kind.name}</b> %{text}<br>%{base:,.2f} ms, takes %{x:,.3f} ms<extra>GPU %{y}</extra>`,
  }));
  return Plotly.react("timeline", traces, layout({
    uirevision: "timeline", barmode: "overlay", legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 },
    margin: { l: 60, r: 16, t: 30, b: 46 },
    xaxis: axis("time in ms", { range: [0, t.end_ms] }),
    yaxis: axis("", { autorange: "reversed", fixedrange: true, tickprefix: "GPU ", dtick: Math.max(1, Math.ceil(t.devices / 16)) }),
  }), CONFIG);
}

const STACK = ["#0072B2", "#56B4E9", "#009E73", "#CC79A7", "#E69F00", "#D55E00", "#F0E442", "#7A7A7A", "#004C7A", "#8A5A00"];

function drawMemory() {
  const m = VALUES.memory;
  const traces = m.kinds.map((kind, k) => ({
    type: "scatter", mode: "lines", name: plain(kind.name), x: m.times, y: kind.sizes, stackgroup: "all",
    line: { shape: "hv", width: 0.5, color: STACK[k % STACK.length] }, fillcolor: STACK[k % STACK.length],
    hovertemplate: `${plain(kind.name)}: %{y:.2f} GiB<extra></extra>`,
  }));
  const near = m.capacity !== null && Math.max(...m.peaks) > 0.4 * m.capacity;
  const shapes = near ? [{
    type: "line", xref: "paper", x0: 0, x1: 1, y0: m.capacity, y1: m.capacity,
    line: { color: Theme.colour("limit"), dash: "dash", width: 1.5 },
  }] : [];
  return Plotly.react("memory", traces, layout({
    uirevision: "memory", hovermode: "x", shapes, legend: { orientation: "h", y: -0.2, yanchor: "top", x: 0, traceorder: "normal" },
    xaxis: axis("time in ms", { range: [0, VALUES.timeline.end_ms] }), yaxis: axis("memory in GiB", { rangemode: "tozero" }),
  }), CONFIG);
}

function linkTimes() {
  const pair = [byId("timeline"), byId("memory")];
  pair.forEach((own, n) => own.on("plotly_relayout", (event) => {
    const other = pair[1 - n], all = event["xaxis.autorange"];
    const range = event["xaxis.range"] ?? [event["xaxis.range[0]"], event["xaxis.range[1]"]];
    const wanted = all ? [0, VALUES.timeline.end_ms] : range;
    if (wanted[0] === undefined || String(other.layout.xaxis.range) === String(wanted)) return;
    Plotly.relayout(other, { "xaxis.range": [...wanted] });
  }));
  document.querySelectorAll("[data-zoom]").forEach((button) => button.addEventListener("click", () => {
    const [from, to] = pair[0].layout.xaxis.range, span = to - from, end = VALUES.timeline.end_ms;
    const moves = { earlier: [-span / 2, -span / 2], later: [span / 2, span / 2], in: [span / 4, -span / 4], out: [-span / 2, span / 2] };
    const [left, right] = moves[button.dataset.zoom] ?? [-from, end - to];
    const start = Math.max(0, Math.min(from + left, end - Math.min(end, to + right - from - left)));
    Plotly.relayout(pair[0], { "xaxis.range": [start, Math.min(end, start + (to + right) - (from + left))] });
  }));
}
