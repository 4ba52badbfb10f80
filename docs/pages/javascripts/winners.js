// Who wins where: a table of models by clusters from the answers of docs/winners.py.
async function winners(place) {
  const cells = await (await fetch(new URL(place.dataset.winners, location.href))).json();
  place.replaceChildren();
  const found = new Map(cells.map(([question, answer]) => [question.join(" "), answer]));
  const values = (at) => [...new Set(cells.map(([question]) => question[at]))];
  const names = { train: "training", sample: "sampling" };
  const add = (parent, name, text = "", attributes = {}) => {
    const made = parent.appendChild(document.createElement(name));
    made.textContent = text;
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  };
  const form = add(place, "p");
  const choice = (label, options, shown) => {
    const select = add(add(form, "label", `${label} `), "select");
    for (const option of options) add(select, "option", shown(option), { value: option });
    select.style.cssText = "border:1px solid;padding:0.2em;margin-right:1.5em;background:inherit;color:inherit";
    select.addEventListener("change", draw);
    return select;
  };
  const task = choice("question", values(0), (name) => names[name]);
  const gpus = choice("GPUs", values(3), String);
  gpus.value = "8";
  const wide = add(place, "div", "", { style: "overflow-x:auto" });
  const told = add(place, "div", "", { "aria-live": "polite" });

  function draw() {
    wide.replaceChildren();
    told.replaceChildren();
    const table = add(wide, "table", "", { style: "font-size:0.62rem;border-collapse:collapse" });
    const clusters = values(2).filter((cluster) =>
      values(1).some((model) => found.has([task.value, model, cluster, gpus.value].join(" "))));
    const head = add(add(table, "thead"), "tr");
    add(head, "th", "");
    for (const cluster of clusters) add(head, "th", cluster, { style: "min-width:0;padding:0.3em" });
    const body = add(table, "tbody");
    for (const model of values(1)) {
      const row = add(body, "tr");
      add(row, "th", model, { style: "text-align:left;white-space:nowrap;min-width:0;padding:0.3em" });
      for (const cluster of clusters) fill(add(row, "td"), model, cluster);
    }
  }

  function fill(cell, model, cluster) {
    const answer = found.get([task.value, model, cluster, gpus.value].join(" "));
    cell.style.cssText = "cursor:pointer;padding:0.3em;min-width:0";
    cell.tabIndex = 0;
    if (answer.none) {
      cell.textContent = "-";
      cell.style.opacity = 0.5;
    } else {
      add(cell, "strong", answer.strategy);
      if (answer.runs === "") add(cell, "div", "research");
      if (answer.plain > 1) add(cell, "div", `+${Math.round(answer.plain)} %`);
      const shade = Math.min(0.6, Math.max(0, (answer.plain || 0) / 150));
      cell.style.background = `rgba(0, 158, 115, ${shade})`;
    }
    const tell = () => {
      told.replaceChildren();
      const seconds = answer.none ? answer.none :
        `${answer.strategy} on ${answer.on} GPU${answer.on > 1 ? "s" : ""}: ${answer.s} s ` +
        `(${answer.band.join(" to ")}), batch ${answer.batch}, ${answer.GiB} GiB a GPU; ` +
        (answer.runs ? `runs in ${answer.runs}` : "no framework runs this today");
      add(told, "p", `${model} on ${cluster}: ${seconds}`);
      const command = `sim sweep --model ${model} --cluster ${cluster} --gpus ${gpus.value} --task ${task.value}`;
      add(add(told, "pre"), "code", command);
    };
    cell.addEventListener("click", tell);
    cell.addEventListener("keydown", (event) => event.key === "Enter" && tell());
  }

  draw();
}

document.querySelectorAll("[data-winners]").forEach(winners);
