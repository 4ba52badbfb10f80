// The page: words first, then one picture after the other, so that what is above can be read meanwhile.
const BEST = ["best", "at the knee", "strategy"]; // lines that the others are about

function addLines(list, lines) {
  for (const [name, says] of lines) {
    const head = document.createElement("dt"), text = document.createElement("dd");
    head.textContent = name;
    if (BEST.includes(name)) head.className = text.className = "best";
    const shares = (VALUES.bars ?? {})[name];
    if (shares && list.id === "lines") {
      const bar = document.createElement("span");
      bar.className = "bar";
      shares.forEach((share) => {
        const part = document.createElement("i");
        part.style.width = `${100 * Math.max(0, Math.min(1, share))}%`;
        bar.append(part);
      });
      text.append(bar, says.replace(/^[█▓▒░]+ /, ""));
    } else if (name === "again") {
      const code = document.createElement("code");
      code.textContent = says;
      text.append(code);
    } else {
      says.split("`").forEach((part, n) => { // what stands between is code
        const piece = document.createElement(n % 2 ? "code" : "span");
        piece.textContent = part;
        text.append(piece);
      });
    }
    list.append(head, text);
  }
}

function say(id, text) {
  byId(`${id}-note`).textContent = text;
  byId(id).setAttribute("aria-label", text);
  byId(`${id}-section`).hidden = false;
}

function sayAll() {
  addLines(byId("lines"), VALUES.lines);
  addLines(byId("provenance"), VALUES.provenance);
  byId("again").textContent = VALUES.again;
  byId("again-section").hidden = !VALUES.again;
  if (POINTS) {
    const c = POINTS.columns, done = c.simulated.filter(Boolean).length;
    say("front", `${counted(done, "point")} simulated, ${(c.time.length - done).toLocaleString("en-US")} bounded,` +
      ` ${POINTS.infeasible.toLocaleString("en-US")} infeasible. ${SAMPLED ? "Lower" : "Higher"} and to the left is better.` +
      `${nearLimit() ? " The dashed line is a GPU's memory." : ""}${zooming("Drag to zoom, double click for all.")}`);
    byId("narrow-section").hidden = false;
    byId("parallel").setAttribute("aria-label", "Parallel axes of the points; the fields below do the same.");
  }
  if (VALUES.scaling) {
    say("scaling", VALUES.scaling.knee === null ? "Nothing recommended fits." :
      `Up to ${counted(VALUES.scaling.knee, "GPU")} (dotted), those that are added bring half of what they might, or more.` +
      " The dashed line grows in proportion to the GPUs; whiskers hold 8 of 10 measured runs.");
  }
  if (VALUES.timeline) {
    const t = VALUES.timeline, m = VALUES.memory;
    say("timeline", `${t.devices === 1 ? "One GPU, as all others" : `${counted(t.devices, "GPU")} of one group`}, ${number(t.end_ms)} ms` +
      `${t.merged ? "; neighbours of a kind drawn as one" : ""}.${zooming("Drag to zoom, double click for all.")}`);
    say("memory", `GPU ${m.device}, the fullest: ${m.peaks[m.device].toFixed(1)} GiB at its peak` +
      `${m.capacity === null ? "" : ` of ${m.capacity.toFixed(1)}`}.`);
  }
}

function copyButtons() {
  document.querySelectorAll("[data-copy]").forEach((button) => button.addEventListener("click", () => {
    const code = byId(button.dataset.copy), range = document.createRange();
    range.selectNodeContents(code);
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    const done = () => { button.textContent = "Copied"; };
    if (navigator.clipboard) navigator.clipboard.writeText(code.textContent).then(done, () => {});
    else if (document.execCommand("copy")) done();
  }));
}

async function start() {
  Theme.start();
  sayAll();
  copyButtons();
  const drawings = [];
  if (POINTS && POINTS.columns.time) {
    Filters.start();
    drawings.push(drawFront, () => Filters.draw());
  }
  if (VALUES.scaling && VALUES.scaling.gpus.length) drawings.push(drawScaling);
  if (VALUES.timeline) drawings.push(drawTimeline, drawMemory);
  for (const draw of drawings) {
    await draw();
    await new Promise((resolve) => setTimeout(resolve));
  }
  if (VALUES.timeline) linkTimes();
  if (POINTS && POINTS.columns.time) Filters.listen();
  Theme.redraw.push(...drawings);
  document.body.dataset.ready = "1";
}

start();
