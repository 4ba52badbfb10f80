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
const TIME = SAMPLED ? { word: "latency", unit: "s", each: 1, decimals: 3 }
  : { word: "iteration", unit: "ms", each: 1000, decimals: 1 }; // as many as in text
const MOST_WORDS = 3000; // of more points, hovering tells where they are and whose
const chosen = { mask: null, marked: null };

const inTime = (i) => POINTS.columns.time[i] * TIME.each;
const timed = (i) => fixed(inTime(i), TIME.decimals);
const height = (i) => (SAMPLED ? inTime(i) : POINTS.columns.speed[i]);
const shownPoint = (i) => !chosen.mask || chosen.mask[i] === 1;

function bandOf(i) {
  const c = POINTS.columns;
  if (c.low[i] === null || c.low[i] === c.high[i]) return "";
  const figures = c.high[i] > 1.2 * c.low[i] ? 2 : 3; // as in text: the wider a band, the fewer
  return [c.low[i], c.high[i]].map((end) => rounded(end * TIME.each, figures)).join(" to ");
}

function words(i) {
  const c = POINTS.columns;
  const band = bandOf(i) && ` (${bandOf(i)})`;
  const least = c.simulated[i] ? "" : "at least ";
  return `<b>${plain(POINTS.strategies[c.strategy[i]].name)}</b>, ${counted(c.gpus[i], "GPU")}<br>${plain(c.how[i])}<br>` +
    `${least}${timed(i)} ${TIME.unit}${band}<br>${least}${number(c.memory[i], 3)} GiB`;
}

function cloud(places, name, marker) {
  return {
    type: GL ? "scattergl" : "scatter", mode: "markers", name: plain(name), marker,
    x: places.map((i) => POINTS.columns.memory[i]), y: places.map(height), customdata: places,
    ...(POINTS.columns.time.length > MOST_WORDS ? { hoverinfo: "x+y+name" } : { text: places.map(words), hoverinfo: "text" }),
  };
}

const SEVERAL = POINTS && POINTS.columns.gpus && new Set(POINTS.columns.gpus).size > 1; // then sizes say how many GPUs
const CROWD = POINTS && POINTS.columns.time && POINTS.columns.time.length > MOST_WORDS ? 0.6 : 1; // smaller marks where points are many
const sizeOf = (i) => CROWD * (SEVERAL ? (4 / 3) * Math.sqrt(18 + 14 * Math.log2(POINTS.columns.gpus[i])) : 9);
const markerOf = (look, places) => ({
  color: Theme.of(look.colour), symbol: look.symbol, size: places.map(sizeOf), opacity: look.pale ? POINTS.legend.faded : 1,
  line: { color: Theme.colour("edge"), width: 0.6 },
});
const bandEnd = (i, of) => {
  const c = POINTS.columns;
  return SAMPLED ? c[of][i] : (c.speed[i] * c.time[i]) / c[of === "low" ? "high" : "low"][i];
};

// The bands of the points of a strategy: vertical lines of its colour, behind all points.

function whiskersOf(look, places) {
  const c = POINTS.columns;
  return {
    type: "scatter", mode: "lines", hoverinfo: "skip", showlegend: false, opacity: 0.4,
    line: { color: Theme.of(look.colour), width: 1.2 },
    x: places.flatMap((i) => [c.memory[i], c.memory[i], null]),
    y: places.flatMap((i) => [bandEnd(i, "low"), bandEnd(i, "high"), null]),
  };
}

// A name in the legend: where the page is narrow, the later words of a long one stand in a second line.

function inLegend(name) {
  const [first, ...others] = name.split(/(?<=.{5}) /);
  return narrow() && name.length > 14 && others.length ? `${plain(first)}<br>${plain(others.join(" "))}` : plain(name);
}

// An entry of the legend that is of no point.

function entry(name, more) {
  return { type: "scatter", mode: "markers", name: inLegend(name), x: [null], y: [null], hoverinfo: "skip", ...more };
}

function frontTraces() {
  const c = POINTS.columns, groups = POINTS.strategies.map(() => []), bounded = [], muted = Theme.colour("muted");
  for (let i = 0; i < c.time.length; i++) {
    if (!shownPoint(i)) continue;
    if (c.simulated[i]) groups[c.strategy[i]].push(i);
    else bounded.push(i);
  }
  const traces = [];
  if (bounded.length) {
    traces.push({ ...cloud(bounded, "bounded", { color: muted, size: 4, opacity: 0.35, symbol: "circle-open" }), visible: "legendonly" });
  }
  const whiskers = POINTS.whiskers.filter(shownPoint);
  POINTS.strategies.forEach((look, s) => {
    const own = whiskers.filter((i) => c.strategy[i] === s);
    if (own.length) traces.push(whiskersOf(look, own));
  });
  const front = POINTS.front.filter(shownPoint);
  traces.push({
    type: "scatter", mode: "lines", name: "Pareto front", hoverinfo: "skip", x: front.map((i) => c.memory[i]),
    y: front.map(height), line: { color: muted, width: 1.5, shape: "hv" },
  });
  groups.forEach((places, s) => {
    const look = POINTS.strategies[s];
    if (places.length) traces.push({ ...cloud(places, look.name, markerOf(look, places)), name: inLegend(look.label) });
  });
  const ring = chosen.marked ?? POINTS.best;
  if (ring !== null && shownPoint(ring)) {
    traces.push({
      type: "scatter", mode: "markers", name: chosen.marked === null ? POINTS.legend.recommended : "marked", hoverinfo: "skip",
      x: [c.memory[ring]], y: [height(ring)],
      marker: { size: 19, symbol: "circle-open", color: Theme.colour("accent"), line: { width: 2.5 } },
    });
  }
  if (SEVERAL) traces.push(entry(POINTS.legend.gpus, { marker: { color: muted, size: 10 } }));
  if (whiskers.length) traces.push(entry(POINTS.legend.band, { marker: { color: muted, size: 14, symbol: "line-ns-open" } }));
  return traces;
}

// The ends of the axes: those of what was simulated, and of its bands, with a little room.

function endsOf(values, log = false) {
  const all = values.filter((v) => v !== null && (!log || v > 0)).map((v) => (log ? Math.log10(v) : v));
  const low = all.reduce((a, b) => Math.min(a, b), Infinity), high = all.reduce((a, b) => Math.max(a, b), -Infinity);
  const room = 0.06 * (high - low) || 0.05 * Math.abs(high) || 0.1;
  return Number.isFinite(low) ? [low - room, high + room] : undefined;
}

// Whether points come near what a GPU holds, so that a line says it.

function nearLimit() {
  const c = POINTS.columns, limit = POINTS.capacity;
  return limit !== null && c.memory.some((m, i) => c.simulated[i] && m > 0.6 * limit);
}

function drawFront() {
  const c = POINTS.columns, limit = POINTS.capacity, kept = c.time.map((_, i) => i).filter((i) => c.simulated[i]);
  const memory = kept.map((i) => c.memory[i]), near = nearLimit();
  const shapes = !near ? [] : [{
    type: "line", x0: limit, x1: limit, yref: "paper", y0: 0, y1: 1, line: { color: Theme.colour("limit"), dash: "dash", width: 1.5 },
  }];
  const ends = POINTS.whiskers.filter((i) => c.simulated[i]).flatMap((i) => [bandEnd(i, "low"), bandEnd(i, "high")]);
  const heights = endsOf([...kept.map(height), ...ends], SAMPLED);
  return Plotly.react("front", frontTraces(), layout({
    uirevision: "front", shapes, legend: legendBelow(150),
    xaxis: axis("peak memory of a GPU in GiB", { range: endsOf(near ? [...memory, limit] : memory) }),
    yaxis: axis(SAMPLED ? "latency in s" : "samples per second", SAMPLED
      ? { type: "log", dtick: "D2", range: heights } : { range: heights }),
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
    { type: "scatter", mode: "lines+markers", name: "the best of each number", x: s.gpus, y: s.speed, text: names,
      hovertemplate: "GPUs %{x}: %{y:,.4~r} per s, %{text}<extra></extra>", line: { color: colour }, marker: { size: 9 },
      error_y: { type: "data", symmetric: false, array: s.high.map((h, i) => h - s.speed[i]),
        arrayminus: s.low.map((l, i) => s.speed[i] - l), thickness: 1, width: 3, color: Theme.colour("muted") } },
    { type: "scatter", mode: "lines+markers", name: "efficiency", xaxis: "x2", yaxis: "y2", x: s.gpus, y: s.efficiency, text: names,
      hovertemplate: "GPUs %{x}: %{y:.1f} %, %{text}<extra></extra>", line: { color: "#009E73" }, marker: { size: 9 } },
  ], layout({
    shapes: knee, showlegend: false,
    xaxis: axis("GPUs", { ...ticks, domain: side ? [0, 0.44] : [0, 1] }),
    yaxis: axis(`${s.unit} per second`, { type: "log", dtick: "D2", domain: side ? [0, 1] : [0.6, 1] }),
    xaxis2: axis("GPUs", { ...ticks, anchor: "y2", domain: side ? [0.56, 1] : [0, 1] }),
    yaxis2: axis("efficiency in %", { rangemode: "tozero", anchor: "x2", domain: side ? [0, 1] : [0, 0.4] }),
  }), CONFIG);
}

function drawTimeline() {
  const t = VALUES.timeline, row = Math.max(12, Math.min(34, 620 / t.devices));
  const above = narrow() ? 20 + 14 * Math.ceil(t.kinds.filter((kind) => kind.named).length / 2) : 30;
  byId("timeline").style.height = `${Math.round(t.devices * row + 90 + above)}px`;
  const card = Theme.colour("card"), least = t.end_ms / (narrow() ? 150 : 400); // a line between narrower bars would hide them
  const traces = t.kinds.map((kind) => ({
    type: "bar", orientation: "h", name: kind.name, showlegend: kind.named, base: kind.start, x: kind.took, y: kind.device, text: kind.words.map(plain),
    width: kind.name === "collective" ? 0.22 : 0.62, offset: kind.name === "collective" ? 0.2 : -0.42, textposition: "none",
    marker: { color: kind.colour, line: {
      width: kind.took.map((took) => (took > least ? 0.5 : 0.2)), color: kind.took.map((took) => (took > least ? card : kind.colour)) } },
    hovertemplate: `<b>${kind.name}</b> %{text}<br>%{base:,.2f} ms, takes %{x:,.3f} ms<extra>GPU %{y}</extra>`,
  }));
  return Plotly.react("timeline", traces, layout({
    uirevision: "timeline", barmode: "overlay", legend: { ...legendBelow(t.kinds.length > 8 ? 80 : 110), y: 1.02, yanchor: "bottom", traceorder: "normal" },
    margin: { l: 60, r: 16, t: above, b: 46 },
    xaxis: axis("time in ms", { range: [0, t.end_ms] }),
    yaxis: axis("", { autorange: "reversed", fixedrange: true, tickprefix: "GPU ", dtick: Math.max(1, Math.ceil(t.devices / 16)) }),
  }), CONFIG);
}

function drawMemory() {
  const m = VALUES.memory;
  const traces = m.kinds.map((kind) => ({
    type: "scatter", mode: "lines", name: plain(kind.name), x: m.times, y: kind.sizes, stackgroup: "all",
    line: { shape: "hv", width: 0.5, color: kind.colour }, fillcolor: kind.colour,
    hovertemplate: `${plain(kind.name)}: %{y:.2f} GiB<extra></extra>`,
  }));
  const near = m.capacity !== null && Math.max(...m.peaks) > 0.4 * m.capacity;
  const shapes = near ? [{
    type: "line", xref: "paper", x0: 0, x1: 1, y0: m.capacity, y1: m.capacity,
    line: { color: Theme.colour("limit"), dash: "dash", width: 1.5 },
  }] : [];
  return Plotly.react("memory", traces, layout({
    uirevision: "memory", hovermode: "x", shapes, legend: { ...legendBelow(190, 1), traceorder: "normal" },
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
