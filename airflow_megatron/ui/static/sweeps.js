// The list of sweeps.

import { airflowLink, ask, bar, byId, duration, h, moment, number, repeat } from "./dom.js";

const GROUPS = [
  ["running", "Running"],
  ["failed before launch", "Failed before launch"],
  ["failed", "Failed"],
  ["finished", "Finished"],
  ["not started", "Not started"],
  ["report", "No longer in Airflow, with a report"],
];
let shown = "";

function progress(points) {
  const done = points.success || 0;
  const total = Object.values(points).reduce((sum, one) => sum + one, 0);
  if (!total) return ["–"];
  const parts = [["f", done], ["x", points.failed || 0], ["r", points.running || 0], ["q", points.queued || 0]];
  const words = Object.entries(points).map(([state, count]) => `${count} ${state === "success" ? "finished" : state}`);
  return [bar(parts, words.join(", ")), `${done} of ${total}`];
}

function row(sweep) {
  const goesOn = sweep.started && !sweep.ended && sweep.state === "running";
  return h(
    "tr",
    {},
    h("th", { scope: "row", class: "name" }, h("a", { href: `sweeps/${encodeURIComponent(sweep.sweep)}` }, sweep.sweep)),
    h("td", {}, progress(sweep.points)),
    h("td", { class: "number" }, sweep.best_loss === null || sweep.best_loss === undefined ? "–" : sweep.best_loss.toFixed(4)),
    h("td", {}, sweep.best || "–"),
    h("td", { class: "number" }, number(sweep.gpu_hours)),
    h("td", { class: "number" }, duration(sweep.eta_s)),
    h("td", {}, moment(sweep.started)),
    h("td", { class: "number", "data-began": goesOn ? sweep.started : null }, sweep.started && sweep.ended ? duration(sweep.ended - sweep.started) : "–"),
    h("td", {}, moment(sweep.report)),
    h(
      "td",
      {},
      sweep.state === "report"
        ? "–"
        : [airflowLink(`dags/${sweep.sweep}`, "sweep"), airflowLink(`dags/${sweep.sweep}.point`, "points")],
    ),
  );
}

const HEADS = [
  ["Sweep", "name"],
  ["Points finished"],
  ["Lowest validation loss", "number"],
  ["Reached by"],
  ["GPU-hours", "number", "gpu_hours"],
  ["Time left", "number", "eta_s"],
  ["Started"],
  ["Duration", "number"],
  ["Report"],
  ["DAGs"],
];

/** Return one table for all groups, so that their columns align; columns without values are left out. */
function table(groups) {
  const rows = groups.flatMap(([, sweeps]) => sweeps);
  const shown = HEADS.map(([, , needs]) => !needs || rows.some((sweep) => sweep[needs] !== undefined));
  const cells = (line) => {
    [...line.children].forEach((cell, at) => shown[at] || cell.remove());
    return line;
  };
  const head = h("tr", {}, HEADS.map(([text, kind]) => h("th", { scope: "col", class: kind }, text)));
  const bodies = groups.map(([title, sweeps]) =>
    h(
      "tbody",
      {},
      h("tr", {}, h("th", { scope: "rowgroup", colspan: String(shown.filter(Boolean).length), class: "group" }, title, h("span", { class: "quiet" }, ` ${sweeps.length}`))),
      sweeps.map((sweep) => cells(row(sweep))),
    ),
  );
  return h(
    "div",
    { class: "scroll free", tabindex: "0", role: "region", "aria-label": "Sweeps" },
    h("table", {}, h("thead", {}, cells(head)), bodies),
  );
}

/** Show how long the running sweeps have taken until now. */
function count() {
  for (const cell of document.querySelectorAll("[data-began]")) cell.textContent = duration(Math.max(Date.now() / 1000 - Number(cell.dataset.began), 0));
}

async function look() {
  const { tag, data } = await ask("sweeps");
  if (tag === shown) return count();
  shown = tag;
  const groups = GROUPS.map(([state, title]) => [title, data.rows.filter((sweep) => sweep.state === state), state]).filter(([, rows]) => rows.length);
  if (!groups.length) return;
  const idle = groups.filter(([, rows, state]) => state === "not started" && rows.length > 5);
  const others = groups.filter((group) => !idle.includes(group));
  byId("sweeps").replaceChildren(
    others.length ? table(others) : "",
    ...idle.map(([title, rows]) => h("details", { open: !others.length }, h("summary", {}, `${title} (${rows.length})`), table([[title, rows]]))),
    h("p", { class: "note" }, "Losses are in nats per token, from the newest report of each sweep."),
  );
  count();
}

repeat(look, 10);
