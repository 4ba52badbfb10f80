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
// A positive number to so many figures; a leading 1 counts as none.
function rounded(value, figures) {
  const most = figures + (figures < 3 && value.toExponential(6).startsWith("1") ? 1 : 0);
  FORMATS[`~${most}`] ??= new Intl.NumberFormat("en-US", { minimumSignificantDigits: most, maximumSignificantDigits: most });
  return FORMATS[`~${most}`].format(value);
}
function fixed(value, decimals) {
  FORMATS[`.${decimals}`] ??= new Intl.NumberFormat("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
  return FORMATS[`.${decimals}`].format(value);
}
const TOUCHED = window.matchMedia("(pointer: coarse)").matches; // a finger on a picture scrolls the page
const zooming = (words) => (TOUCHED || narrow() ? "" : ` ${words}`); // which takes a pointer
const narrow = () => window.innerWidth <= 640;
const DARKEST = 110; // of 255: colours darker than this are lightened on the dark page, which would hide them

const Theme = {
  modes: ["auto", "dark", "light"],
  mode: "auto",
  system: window.matchMedia("(prefers-color-scheme: dark)"),
  redraw: [],
  dark() { return this.mode === "dark" || (this.mode === "auto" && this.system.matches); },
  colour(name) { return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim(); },
  of(colour) {
    const [red, green, blue] = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
    if (!this.dark() || 0.3 * red + 0.59 * green + 0.11 * blue > DARKEST) return colour;
    return `rgb(${[red, green, blue].map((v) => Math.round(v + 0.45 * (255 - v))).join(", ")})`;
  },
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
    zerolinecolor: Theme.colour("line"), automargin: true, tickformat: ",.6~r", ...more,
  };
}

function layout(more) {
  const ink = Theme.colour("ink");
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", autosize: true,
    font: { family: "system-ui, sans-serif", size: 12, color: ink },
    margin: { l: 60, r: 16, t: 12, b: 46 }, hovermode: "closest", dragmode: narrow() || TOUCHED ? false : "zoom",
    hoverlabel: { bgcolor: Theme.colour("card"), bordercolor: Theme.colour("line"), font: { color: ink } },
    legend: legendBelow(150),
    ...more,
  };
}

// A legend below a picture, in columns so many pixels wide; in so many columns where the page is narrow.

function legendBelow(width, columns = 2) {
  const side = narrow() ? { x: -0.2, entrywidth: 0.98 / columns, entrywidthmode: "fraction" } : { x: 0, entrywidth: width };
  return { orientation: "h", y: -0.2, yanchor: "top", font: { size: narrow() ? 10 : 12 }, itemsizing: "constant", ...side };
}

const CONFIG = { responsive: true, displayModeBar: false, showTips: false };
