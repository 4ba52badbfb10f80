"use strict";
// The page's values, its colours, and words that Plotly must not take for markup.
const VALUES = JSON.parse(document.getElementById("values").textContent);
const byId = (id) => document.getElementById(id);
const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
const FORMATS = {};
const counted = (count, thing) => `${count.toLocaleString("en-US")} ${thing}${count === 1 ? "" : "s"}`;
function number(value, digits = 4) {
  const most = Math.max(digits, Math.ceil(Math.log10(Math.abs(value) + 1)));
  FORMATS[most] ??= new Intl.NumberFormat("en-US", { maximumSignificantDigits: most });
  return FORMATS[most].format(value);
}
const TOUCHED = window.matchMedia("(pointer: coarse)").matches; // a finger on a picture scrolls the page
const narrow = () => window.innerWidth <= 640;
const INK = "#222222"; // the colour of a strategy that the dark page would hide

const Theme = {
  modes: ["auto", "dark", "light"],
  mode: "auto",
  system: window.matchMedia("(prefers-color-scheme: dark)"),
  redraw: [],
  dark() { return this.mode === "dark" || (this.mode === "auto" && this.system.matches); },
  colour(name) { return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim(); },
  of(colour) { return colour === INK ? this.colour("ink") : colour; },
  apply() {
    document.documentElement.dataset.theme = this.dark() ? "dark" : "light";
    byId("theme").textContent = `Theme: ${this.mode}`;
    this.redraw.forEach((draw) => draw());
  },
  start() {
    this.apply();
    this.system.addEventListener("change", () => this.apply());
    byId("theme").addEventListener("click", () => {
      this.mode = this.modes[(this.modes.indexOf(this.mode) + 1) % this.modes.length];
      this.apply();
    });
  },
};

function axis(title, more = {}) {
  return {
    title: { text: title, standoff: 8 }, gridcolor: Theme.colour("grid"), linecolor: Theme.colour("line"),
    zerolinecolor: Theme.colour("line"), automargin: true, ...more,
  };
}

function layout(more) {
  const ink = Theme.colour("ink");
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", autosize: true,
    font: { family: "system-ui, sans-serif", size: 12, color: ink },
    margin: { l: 60, r: 16, t: 12, b: 46 }, hovermode: "closest", dragmode: narrow() || TOUCHED ? false : "zoom",
    hoverlabel: { bgcolor: Theme.colour("card"), bordercolor: Theme.colour("line"), font: { color: ink } },
    legend: { orientation: "h", y: -0.2, yanchor: "top", x: 0, font: { size: 12 } },
    ...more,
  };
}

const CONFIG = { responsive: true, displayModeBar: false, showTips: false };
