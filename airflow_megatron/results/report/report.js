// The report's page: the live page's table, curves and map over data that are in the page, and its figures.

import { byId, embed, h } from "./dom.js";
import { Figure } from "./charts.js";
import { Curves } from "./curves.js";
import { Failures } from "./failures.js";
import { RateBatchMap } from "./lr_batch.js";
import { PointTable } from "./table.js";

const data = JSON.parse(byId("results-data").textContent);
const dark = window.matchMedia("(prefers-color-scheme: dark)");

function theme(isDark = dark.matches) {
  document.documentElement.dataset.theme = isDark ? "dark" : "light";
  document.dispatchEvent(new Event("themechange"));
}

/** A curve as the live page's server sends it. */
function curve(track, metric) {
  const { point, stage, parent, restarts } = track;
  const names = ["x", "tokens", "flops", "hours", "rate"];
  track.rate ||= track.learning_rate || track.x.map(() => null);
  if (metric === "validation_loss") {
    const nearest = (iteration) => track.x.reduce((best, x, at) => (Math.abs(x - iteration) < Math.abs(track.x[best] - iteration) ? at : best), 0);
    const places = track.validations.map(([iteration]) => nearest(iteration));
    const found = Object.fromEntries(names.map((name) => [name, places.map((at) => track[name][at])]));
    return { point, stage, parent, restarts: [], ...found, x: track.validations.map(([iteration]) => iteration), y: track.validations.map(([, loss]) => loss) };
  }
  const values = track[metric] || [];
  const kept = values.map((_, at) => at).filter((at) => values[at] !== null);
  const found = Object.fromEntries(names.map((name) => [name, kept.map((at) => track[name][at])]));
  return { point, stage, parent, restarts, ...found, y: kept.map((at) => values[at]) };
}

embed((path, { metric, points }) => {
  if (path.endsWith("/failures")) return { rows: data.failures };
  const wanted = new Set(points);
  return { metric, curves: data.curves.filter((track) => wanted.has(track.point)).map((track) => curve(track, metric)) };
});

const box = (id, text, checked) => h("label", {}, h("input", { type: "checkbox", id, checked }), ` ${text}`);
const choice = (id, values) => h("select", { id }, Object.entries(values).map(([value, text]) => h("option", { value }, text)));

function pointsPart() {
  return h(
    "section",
    { "aria-labelledby": "points-title" },
    h("h2", { id: "points-title" }, "Points"),
    h(
      "div",
      { class: "controls" },
      h("label", {}, "Filter ", h("input", { type: "text", id: "filter", spellcheck: "false", autocomplete: "off", "aria-describedby": "filter-error", placeholder: "state == failed or loss < 2.5" })),
      box("constants", "hide columns with equal values or that correspond to another column", true),
      h("span", { id: "count", class: "quiet", role: "status" }),
      h("span", { id: "filter-error", class: "error", role: "alert" }),
    ),
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of points" }, h("table", { id: "points" }, h("thead", {}), h("tbody", {}))),
  );
}

function curvesPart() {
  return h(
    "section",
    { id: "curves-part", "aria-labelledby": "curves-title", hidden: true },
    h("h2", { id: "curves-title" }, "Curves"),
    h(
      "div",
      { class: "controls" },
      h("label", {}, "Show ", choice("metric", { loss: "loss", validation_loss: "validation loss", learning_rate: "learning rate", grad_norm: "gradient norm", throughput: "TFLOP/s per GPU" })),
      h("label", {}, "over ", choice("along", { x: "iterations", tokens: "tokens", flops: "FLOPs", hours: "hours", rate: "learning rate" })),
      box("log-x", "log x"),
      box("log-y", "log y"),
      h("label", {}, "Smooth ", h("input", { type: "range", id: "smooth", min: "0", max: "99", value: "0" })),
    ),
    h("div", { id: "chart", role: "img", "aria-label": "Curves" }),
    h("p", { id: "hover", class: "quiet" }, "\u00a0"),
    h("ul", { id: "legend", class: "legend", "aria-label": "Curves: press to hide or show" }),
    h("p", { class: "note" }, "The points that are ticked in the table, else its first twelve. A branch begins at its trunk’s checkpoint; a triangle marks a restart."),
  );
}

const part = (id, title, place, kind) => h("section", { id: `${id}-part`, "aria-labelledby": `${id}-title`, hidden: true }, h("h2", { id: `${id}-title` }, title), h("div", { id: place, class: kind }));

function interactive() {
  byId("interactive").append(
    pointsPart(),
    curvesPart(),
    part("map", "Learning rate × batch size", "map", "scroll free"),
    part("failures", "Failures", "failures", "columns"),
  );
  const sweep = { run: true, rows: data.rows };
  const hasCharts = typeof uPlot !== "undefined";
  const parts = [new RateBatchMap(), new Failures("report")];
  if (hasCharts) parts.push(new Curves("report"));
  const table = new PointTable({
    open: (point) => {
      table.chosen.has(point) ? table.chosen.delete(point) : table.chosen.add(point);
      table.built.clear();
      table.draw();
    },
    actions: () => [],
    changed: () => table && parts.forEach((one) => one.chosen(sweep, table)),
  });
  table.update(data.rows);
  parts.forEach((one) => one.update(sweep, table));
}

const UNITS = { k: 1e3, M: 1e6, B: 1e9, T: 1e12 };

function value(text) {
  const clock = text.match(/^(?:(\d+)d )?(?:(\d+):)?(\d+):(\d+)$/);
  if (clock) return ((+(clock[1] || 0) * 24 + +(clock[2] || 0)) * 60 + +clock[3]) * 60 + +clock[4];
  const found = text.replaceAll(",", "").match(/^(-?[\d.]+(?:e[-+]?\d+)?)([kMBT]?)/);
  return found ? +found[1] * (UNITS[found[2]] || 1) : null;
}

function sort(head) {
  const column = head.cellIndex;
  const body = head.closest("table").tBodies[0];
  const way = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
  for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", way === 1 ? "ascending" : "descending");
  const key = (row) => row.children[column].textContent;
  const rows = [...body.rows].sort((a, b) => {
    const [x, y] = [value(key(a)), value(key(b))];
    if (x !== null && y !== null) return (x - y) * way;
    if (x !== null || y !== null) return x !== null ? -1 : 1;
    return key(a).localeCompare(key(b)) * way;
  });
  body.append(...rows);
}

for (const head of document.querySelectorAll("table.results th")) {
  const button = h("button", { type: "button", onclick: () => sort(head) }, head.textContent);
  head.replaceChildren(button);
}
theme();
dark.addEventListener("change", () => theme());
window.addEventListener("beforeprint", () => theme(false));
window.addEventListener("afterprint", () => theme());
if (data.rows.length) interactive();
if (typeof uPlot !== "undefined") {
  const figures = [...document.querySelectorAll("figure")].flatMap((figure, at) => (data.charts[at] ? [new Figure(figure, data.charts[at])] : []));
  document.addEventListener("themechange", () => figures.forEach((figure) => figure.draw()));
}
