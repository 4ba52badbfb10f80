// Narrowing down: parallel axes and fields say the same; the front and the table show what is left.
const COUNTS = { gpus: "GPUs", P: "P", M: "M", D: "D", patches: "patches" };
const MOST_LINES = 2500; // of more points, every so many is drawn between the axes: the others would lie on them

function dimensionOf(key) {
  const values = POINTS.columns[key];
  if (key === "strategy") {
    const names = POINTS.strategies.map((s) => s.name);
    return { key, label: "strategy", to: (v) => v, from: (v) => v, values, tickvals: names.map((_, n) => n), ticktext: names };
  }
  if (key in COUNTS) {
    const ticks = [...new Set(values)].sort((a, b) => a - b);
    return { key, label: COUNTS[key], to: Math.log2, from: (v) => 2 ** v, values: values.map(Math.log2),
      tickvals: ticks.map(Math.log2), ticktext: ticks.map(String) };
  }
  if (key === "time") {
    const each = values.map((v) => v * TIME.each);
    const log = each.map(Math.log10), low = Math.min(...finite(log)), high = Math.max(...finite(log)), ticks = [];
    for (let p = Math.floor(low); p <= high; p++) {
      for (const step of high - low > 1.2 ? [1, 2, 5] : [1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8]) {
        const at = Math.log10(step) + p;
        if (at >= low && at <= high) ticks.push(at);
      }
    }
    return { key, label: `${TIME.word} in ${TIME.unit}`, to: Math.log10, from: (v) => 10 ** v, values: log,
      tickvals: ticks, ticktext: ticks.map((v) => number(10 ** v, 3)) };
  }
  const label = key === "memory" ? "memory in GiB" : "bubble in %";
  return { key, label, to: (v) => v, from: (v) => v, values: values.map((v) => v ?? 0) };
}

function finite(values) {
  return values.filter(Number.isFinite);
}

const Filters = {
  ranges: {}, // by column: ranges that are kept, in the units of its axis
  bounded: false,
  dimensions: [],
  lines: [],
  order: VALUES.scaling ? ["speed", -1] : ["time", 1],
  rows: 15,

  start() {
    const c = POINTS.columns;
    this.bounded = !c.simulated.some(Boolean);
    this.dimensions = POINTS.shown.map(dimensionOf);
    const all = c.time.map((_, i) => i).filter((i) => c.simulated[i] || this.bounded);
    const every = Math.ceil(all.length / MOST_LINES);
    this.lines = all.filter((i, n) => n % every === 0 || POINTS.whiskers.includes(i)).reverse(); // the best above the others
    this.addFields();
    this.addHeads();
    byId("reset").addEventListener("click", () => { this.ranges = {}; this.changed(true); });
    byId("more").addEventListener("click", () => { this.rows *= 4; this.drawRows(); });
    this.changed(false);
  },

  // What is left.

  kept(i) {
    const c = POINTS.columns;
    if (!c.simulated[i] && !this.bounded) return false;
    return this.dimensions.every((of) => {
      const ranges = this.ranges[of.key];
      return !ranges || ranges.some(([low, high]) => of.values[i] >= low - 1e-9 && of.values[i] <= high + 1e-9);
    });
  },

  changed(axes) {
    const c = POINTS.columns, free = !Object.keys(this.ranges).length;
    const mask = new Uint8Array(c.time.length);
    let left = 0, all = 0;
    for (let i = 0; i < mask.length; i++) {
      const kept = this.kept(i);
      mask[i] = kept || (free && !c.simulated[i]) ? 1 : 0;
      left += kept;
      all += c.simulated[i] || this.bounded ? 1 : 0;
    }
    chosen.mask = mask;
    byId("count").textContent = `${left.toLocaleString("en-US")} of ${counted(all, "point")}`;
    document.body.dataset.left = left;
    this.drawRows();
    this.sayFields();
    if (document.body.dataset.ready) drawFront();
    if (axes && GL) {
      const update = {};
      this.dimensions.forEach((of, n) => { update[`dimensions[${n}].constraintrange`] = [this.ranges[of.key] ?? null]; });
      this.silent = true;
      Plotly.restyle("parallel", update).then(() => { this.silent = false; });
    }
  },

  // The axes.

  draw() {
    if (!GL) {
      byId("parallel").textContent = "This browser draws no parallel axes (it lacks WebGL); the fields below do the same.";
      return Promise.resolve();
    }
    const ink = Theme.colour("ink"), of = (values) => this.lines.map((i) => values[i]);
    const time = this.dimensions.find((d) => d.key === "time").values, sorted = of(time).sort((a, b) => a - b);
    const places = new Map(sorted.map((v, n) => [v, n]));
    return Plotly.react("parallel", [{
      type: "parcoords", labelfont: { color: ink, size: 12 }, tickfont: { color: ink, size: 11 }, rangefont: { color: "rgba(0,0,0,0)" },
      line: { color: of(time).map((v) => places.get(v)), colorscale: [[0, Theme.colour("fast")], [0.35, Theme.colour("middling")], [1, Theme.colour("slow")]] },
      unselected: { line: { color: Theme.colour("muted"), opacity: 0.04 } },
      dimensions: this.dimensions.map((d) => ({
        label: d.label, values: of(d.values), constraintrange: this.ranges[d.key], ...this.ticks(d, of(d.values)),
      })),
    }], layout({ paper_bgcolor: Theme.colour("card"), margin: { l: 110, r: 40, t: 46, b: 18 } }), CONFIG);
  },

  // Ticks of an axis: of points that are not drawn they would lie beyond its ends.

  ticks(d, drawn) {
    if (!d.tickvals) return {};
    const low = Math.min(...finite(drawn)), high = Math.max(...finite(drawn));
    const kept = d.tickvals.map((v, n) => n).filter((n) => d.tickvals[n] >= low && d.tickvals[n] <= high);
    return { tickvals: kept.map((n) => d.tickvals[n]), ticktext: kept.map((n) => plain(d.ticktext[n])) };
  },

  listen() {
    if (!GL) return;
    byId("parallel").on("plotly_restyle", () => {
      if (this.silent) return;
      this.ranges = {};
      byId("parallel").data[0].dimensions.forEach((d, n) => {
        const range = d.constraintrange;
        if (range && range.length) this.ranges[this.dimensions[n].key] = Array.isArray(range[0]) ? range : [range];
      });
      cancelAnimationFrame(this.frame);
      this.frame = requestAnimationFrame(() => this.changed(false));
    });
  },

  // The fields.

  addFields() {
    const form = byId("filters");
    form.addEventListener("submit", (event) => event.preventDefault());
    for (const of of this.dimensions) {
      const set = document.createElement("fieldset"), legend = document.createElement("legend");
      legend.textContent = of.label;
      set.append(legend);
      if (of.key === "strategy") of.ticktext.forEach((name, n) => set.append(this.field("checkbox", name, of, n)));
      else ["from", "to"].forEach((word, n) => set.append(this.field("number", word, of, n)));
      form.append(set);
    }
  },

  field(type, word, of, n) {
    const label = document.createElement("label"), input = document.createElement("input");
    input.type = type;
    if (type === "number") Object.assign(input, { step: "any", min: 0, placeholder: "any" });
    input.id = `${of.key}-${type === "checkbox" ? n : word}`;
    label.append(...(type === "checkbox" ? [input, ` ${word}`] : [`${word} `, input]));
    input.addEventListener("change", () => { this.read(of); this.changed(true); });
    return label;
  },

  read(of) {
    delete this.ranges[of.key];
    if (of.key === "strategy") {
      const kept = of.tickvals.filter((n) => byId(`strategy-${n}`).checked);
      if (kept.length && kept.length < of.tickvals.length) this.ranges.strategy = kept.map((n) => [n - 0.4, n + 0.4]);
      return;
    }
    const [low, high] = ["from", "to"].map((word) => byId(`${of.key}-${word}`).value);
    if (low === "" && high === "") return;
    const all = finite(of.values), ends = [Math.min(...all), Math.max(...all)];
    this.ranges[of.key] = [[low === "" ? ends[0] : of.to(Math.max(1e-9, +low)), high === "" ? ends[1] : of.to(Math.max(1e-9, +high))]];
  },

  sayFields() {
    for (const of of this.dimensions) {
      const ranges = this.ranges[of.key];
      if (of.key === "strategy") {
        of.tickvals.forEach((n) => { byId(`strategy-${n}`).checked = !ranges || ranges.some(([a, b]) => a <= n && n <= b); });
        continue;
      }
      const ends = ranges ? [Math.min(...ranges.flat()), Math.max(...ranges.flat())] : ["", ""];
      ["from", "to"].forEach((word, n) => {
        const input = byId(`${of.key}-${word}`);
        if (document.activeElement !== input) input.value = ranges ? Number(of.from(ends[n]).toPrecision(4)) : "";
      });
    }
  },

  // The table.

  heads() {
    const several = POINTS.shown.includes("gpus");
    return [
      ["strategy", "strategy", "words"], ...(several ? [["gpus", "GPUs", ""]] : []),
      ["time", `${TIME.word} in ${TIME.unit}`, ""], ["low", "8 of 10 within", ""], ["speed", `${POINTS.unit} per s`, ""],
      ["memory", "memory in GiB", ""], ["bubble", "bubble", ""], ["how", "how", "words fold"],
    ];
  },

  addHeads() {
    const row = byId("rows").tHead.insertRow();
    row.append(document.createElement("th"));
    for (const [key, label, look] of this.heads()) {
      const head = document.createElement("th"), button = document.createElement("button");
      head.className = look;
      head.scope = "col";
      head.dataset.key = key;
      button.type = "button";
      button.textContent = label;
      button.addEventListener("click", () => {
        this.order = this.order[0] === key ? [key, -this.order[1]] : [key, key === "speed" ? -1 : 1];
        this.drawRows();
      });
      head.append(button);
      row.append(head);
    }
  },

  drawRows() {
    const c = POINTS.columns, [key, sign] = this.order, value = c[key], heads = this.heads();
    const left = [];
    for (let i = 0; i < value.length; i++) if (chosen.mask[i] && (c.simulated[i] || this.bounded)) left.push(i);
    const least = (i) => (value[i] === null ? Infinity : value[i]);
    left.sort((a, b) => c.recommended[b] - c.recommended[a] || sign * (least(a) < least(b) ? -1 : least(a) > least(b) ? 1 : 0) || a - b);
    byId("rows").tHead.querySelectorAll("th[data-key]").forEach((head) => {
      if (head.dataset.key === key) head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
      else head.removeAttribute("aria-sort");
    });
    const body = document.createElement("tbody"), ties = new Set(POINTS.ties);
    left.slice(0, this.rows).forEach((i) => body.append(this.row(i, heads, ties)));
    byId("rows").tBodies[0].replaceWith(body);
    byId("more").hidden = left.length <= this.rows;
  },

  row(i, heads, ties) {
    const c = POINTS.columns, row = document.createElement("tr"), mark = document.createElement("button");
    row.className = [i === POINTS.best ? "best" : "", i === chosen.marked ? "chosen" : ""].join(" ").trim();
    mark.type = "button";
    mark.textContent = "show";
    mark.setAttribute("aria-label", "Mark this point in the picture of speed and memory");
    mark.addEventListener("click", () => {
      chosen.marked = chosen.marked === i ? null : i;
      this.drawRows();
      drawFront();
    });
    row.insertCell().append(mark);
    const said = {
      strategy: POINTS.strategies[c.strategy[i]].label, gpus: String(c.gpus[i]), how: c.how[i],
      time: timed(i), low: bandOf(i),
      speed: number(c.speed[i]), memory: c.memory[i].toFixed(1), bubble: c.bubble[i] === null ? "" : `${c.bubble[i].toFixed(1)} %`,
    };
    for (const [key, , look] of heads) {
      const cell = row.insertCell();
      cell.className = look;
      cell.textContent = said[key];
      if (key === "strategy" && (ties.has(i) || i === POINTS.best)) {
        const tie = document.createElement("span");
        tie.className = "tie";
        tie.textContent = i === POINTS.best ? " best" : " tie";
        cell.append(tie);
      }
    }
    return row;
  },
};
