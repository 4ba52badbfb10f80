// The playground of schedules: draws what the simulator found when the site was built (hooks.py).
const COLOURS = { forward: "#0072B2", backward: "#56B4E9", frozen: "#E69F00" };
const ROW = 34, LEFT = 64, SPEED = 6; // pixels of a device and of its name; seconds of an animation

async function playground(place) {
  const { axes, runs } = await (await fetch(new URL(place.dataset.runs, location.href))).json();
  place.replaceChildren();
  const chosen = Object.fromEntries(Object.entries(axes).map(([name, axis]) => [name, axis.first]));
  const form = place.appendChild(document.createElement("form"));
  const says = place.appendChild(document.createElement("p"));
  const picture = place.appendChild(document.createElementNS("http://www.w3.org/2000/svg", "svg"));
  says.setAttribute("aria-live", "polite");
  picture.setAttribute("width", "100%");
  let frame = 0;

  for (const [name, axis] of Object.entries(axes)) {
    const label = form.appendChild(document.createElement("label"));
    const input = document.createElement("input");
    const value = document.createElement("output");
    Object.assign(input, { type: "range", min: 0, max: axis.values.length - 1, value: axis.first });
    value.textContent = axis.values[axis.first];
    label.append(axis.title, input, value);
    label.style.cssText = "display:grid;grid-template-columns:minmax(0,12em) minmax(3em,1fr) 7em;gap:0.6em;align-items:center";
    input.addEventListener("input", () => {
      chosen[name] = Number(input.value);
      value.textContent = axis.values[chosen[name]];
      draw();
    });
  }
  const button = form.appendChild(document.createElement("button"));
  button.type = "button";
  button.className = "md-button";
  button.textContent = "Play";
  button.addEventListener("click", play);

  const element = (name, attributes, text) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text) made.textContent = text;
    return made;
  };

  function draw() {
    cancelAnimationFrame(frame);
    const shown = runs[Object.values(chosen).join(" ")];
    const others = axes.strategy.values.map((name, number) => {
      const run = runs[Object.values({ ...chosen, strategy: number }).join(" ")];
      return `${name} ${run.end} ms, idle ${run.idle} %`;
    });
    const longest = Math.max(...axes.strategy.values.map((_, number) =>
      runs[Object.values({ ...chosen, strategy: number }).join(" ")].end));
    const width = Math.max(320, picture.clientWidth || place.clientWidth), scale = (width - LEFT) / longest;
    picture.setAttribute("viewBox", `0 0 ${width} ${ROW * shown.bars.length + 22}`);
    picture.replaceChildren();
    shown.bars.forEach((bars, device) => {
      const y = ROW * device;
      picture.append(element("text", { x: 0, y: y + 20, "font-size": 13, fill: "currentColor" }, `GPU ${device}`));
      picture.append(element("rect", {
        x: LEFT, y: y + 2, width: scale * shown.end, height: ROW - 6, fill: "currentColor", opacity: 0.08 }));
      for (const [start, took, kind, what] of bars) {
        const bar = element("rect", {
          x: LEFT + scale * start, y: y + 2, width: Math.max(0.5, scale * took - 0.5), height: ROW - 6,
          fill: COLOURS[kind], "data-start": start, "data-took": took, "data-full": scale * took - 0.5 });
        bar.append(element("title", {}, `${kind} ${what}: ${start} to ${Math.round(start + took)} ms`));
        picture.append(bar);
      }
    });
    Object.entries(COLOURS).forEach(([kind, colour], number) => {
      const x = LEFT + 110 * number, y = ROW * shown.bars.length + 4;
      picture.append(element("rect", { x, y, width: 14, height: 14, fill: colour }));
      picture.append(element("text", { x: x + 20, y: y + 12, "font-size": 13, fill: "currentColor" }, kind));
    });
    says.textContent = others.join("; ");
  }

  function play() {
    draw();
    const bars = [...picture.querySelectorAll("[data-start]")], begun = performance.now();
    const end = runs[Object.values(chosen).join(" ")].end;
    const step = (now) => {
      const time = (end * (now - begun)) / (1000 * SPEED);
      for (const bar of bars) {
        const share = Math.min(1, Math.max(0, (time - bar.dataset.start) / bar.dataset.took));
        bar.setAttribute("width", Math.max(0, share * bar.dataset.full));
      }
      if (time < end) frame = requestAnimationFrame(step);
    };
    frame = requestAnimationFrame(step);
  }

  addEventListener("resize", draw);
  draw();
}

document.querySelectorAll("[data-runs]").forEach(playground);
