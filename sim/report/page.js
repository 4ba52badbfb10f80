// A button that copies beside each command, and the band of a point while the mouse is on it.
for (const code of document.querySelectorAll("pre code")) {
  const button = document.createElement("button");
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(code.textContent);
    } catch { // a page that is not served over TLS, or an old browser
      getSelection().selectAllChildren(code);
      document.execCommand("copy");
    }
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  code.parentElement.append(button);
}
for (const plot of document.querySelectorAll(".plotly-graph-div")) {
  const drawn = plot.layout?.shapes ?? [];
  if (innerWidth < 700) { // where the legend is long
    plot.parentElement.style.height = plot.style.height = `${plot.layout.height + 160}px`;
    Plotly.relayout(plot, { height: plot.layout.height + 160 });
  }
  plot.on?.("plotly_hover", ({ points: [point] }) => {
    const band = point.customdata;
    if (!band) return;
    const line = { color: point.fullData.marker.color, width: 3 };
    const whisker = { type: "line", x0: point.x, x1: point.x, y0: band[0], y1: band[1], line };
    Plotly.relayout(plot, { shapes: [...drawn, whisker] });
  });
  plot.on?.("plotly_unhover", () => Plotly.relayout(plot, { shapes: drawn }));
}
