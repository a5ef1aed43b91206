// The table of points: sort, filter, hide columns with equal values, reuse unchanged rows.

import { bar, byId, duration, h, number } from "./dom.js";
import { FilterError, parseFilter } from "./filter.js";

const LETTERS = { f: "finished", r: "running", q: "queued", t: "restarting", x: "failed", s: "cancelled", u: "blocked", w: "waiting" };
const ORDER = ["x", "r", "t", "q", "u", "s", "f", "w"];
const RUN_STATES = { success: "finished", none: "waiting" };

const OWN = [
  { name: "state", title: "State", cell: (row) => h("span", { class: `state is-${stateOf(row)}` }, stateOf(row)) },
  { name: "stages", title: "Stages", cell: stages, always: true },
];
const MEASURED = [
  { name: "cluster", title: "Cluster" },
  { name: "training", title: "Training" },
  { name: "progress", title: "Iteration", cell: progress, always: true },
  { name: "loss", title: "Loss", unit: "nats per token", right: true, digits: 5 },
  { name: "validation_loss", title: "Validation loss", unit: "nats per token, the lowest", right: true, digits: 5 },
  { name: "tokens_per_s", title: "Tokens/s/GPU", right: true },
  { name: "mfu", title: "MFU", right: true, text: (value) => `${(100 * value).toFixed(1)} %` },
  { name: "step_ms", title: "Step", unit: "milliseconds of an iteration", right: true },
  { name: "step_ratio", title: "Step × reported", unit: "time of an iteration over the reported one", right: true, digits: 3 },
  { name: "memory_gb", title: "Memory", unit: "GB that PyTorch has reserved on the fullest GPU", right: true },
  { name: "memory_ratio", title: "Memory × reported", unit: "memory over the reported one", right: true, digits: 3 },
  { name: "eta_s", title: "Time left", right: true, text: duration },
  { name: "attempts", title: "Attempts", right: true },
  { name: "gpu_hours", title: "GPU-hours", right: true },
  { name: "lost_gpu_hours", title: "Lost", unit: "GPU-hours of attempts that were repeated", right: true },
];
const NAMES = new Set(["point", ...OWN.map((one) => one.name), ...MEASURED.map((one) => one.name), "iteration", "total", "finished_stages"]);

/** Return a row whose parameters have other names than the columns: a sweep may vary `loss` or `state`. */
function withOwnNames(row) {
  const named = ([name, one]) => [NAMES.has(name) ? `params.${name}` : name, one];
  return { ...row, params: Object.fromEntries(Object.entries(row.params).map(named)) };
}

export function stateOf(row) {
  return RUN_STATES[row.state] || row.state;
}

export function value(row, name) {
  if (name === "state") return stateOf(row);
  if (name === "progress") return row.total ? (row.iteration || 0) / row.total : undefined;
  if (name === "finished_stages") return [...row.stages].filter((letter) => letter === "f").length;
  if (name === "stages") return value(row, "finished_stages");
  if (name === "loss" && row.diverged) return NaN; // JSON has none
  return ownValue(Object.hasOwn(row.params, name) ? row.params : row, name);
}

/** Return an entry of an object; undefined for what each object inherits, as a parameter may be named `constructor`. */
export function ownValue(from, name) {
  return Object.hasOwn(from, name) ? from[name] : undefined;
}

/** Return whether a value has no place in an order. */
function missing(one) {
  return one === undefined || one === null || Number.isNaN(one);
}

function stages(row) {
  const counts = {};
  for (const letter of row.stages) counts[letter] = (counts[letter] || 0) + 1;
  const words = ORDER.filter((letter) => counts[letter]).map((letter) => `${counts[letter]} ${LETTERS[letter]}`);
  const parts = ["f", "x", "r", "t", "q", "s", "u", "w"].map((letter) => [letter, counts[letter] || 0]);
  return h("span", { title: words.join(", ") }, bar(parts, words.join(", ")), `${counts.f || 0}/${row.stages.length}`);
}

function progress(row) {
  if (!row.total) return "–";
  const done = row.iteration || 0;
  const label = `iteration ${done} of ${row.total}`;
  return h("span", {}, bar([["r", done], ["w", Math.max(row.total - done, 0)]], label), `${number(done)}/${number(row.total)}`);
}

export class PointTable {
  /** @param actions returns the buttons of a row; @param changed is called when the chosen or shown points change */
  constructor({ open, actions, changed }) {
    this.rows = [];
    this.parameters = [];
    this.sort = { name: null, down: false };
    this.chosen = new Set();
    this.built = new Map();
    this.open = open;
    this.actions = actions;
    this.changed = changed;
    this.test = () => true;
    byId("filter").addEventListener("input", () => this.refilter());
    byId("constants").addEventListener("change", () => this.draw());
  }

  update(rows) {
    this.rows = rows.map(withOwnNames);
    const names = new Set();
    for (const row of this.rows) for (const name of Object.keys(row.params)) names.add(name);
    this.parameters = [...names];
    const known = new Set(rows.map((row) => row.point));
    for (const point of this.chosen) if (!known.has(point)) this.chosen.delete(point);
    this.refilter();
  }

  get names() {
    return new Set([...NAMES, ...this.parameters]);
  }

  refilter() {
    const place = byId("filter-error");
    try {
      this.test = parseFilter(byId("filter").value, this.names, value);
      place.textContent = "";
      byId("filter").removeAttribute("aria-invalid");
    } catch (error) {
      if (!(error instanceof FilterError)) throw error;
      place.textContent = error.message;
      byId("filter").setAttribute("aria-invalid", "true");
    }
    this.draw();
  }

  columns() {
    const differs = (name) => new Set(this.rows.map((row) => JSON.stringify(value(row, name) ?? null))).size > 1;
    const holds = (name) => this.rows.some((row) => value(row, name) !== undefined && value(row, name) !== null);
    const hide = byId("constants").checked && this.rows.length > 1;
    const kept = [];
    for (const name of this.parameters) if (!hide || (differs(name) && !kept.some((other) => this.follows(name, other)))) kept.push(name);
    const parameters = kept
      .map((name) => ({ name, title: name, right: this.rows.every((row) => typeof (ownValue(row.params, name) ?? 0) === "number") }));
    const measured = MEASURED.filter((one) => (one.always ? holds("total") : holds(one.name)) && (one.name !== "training" || !hide || differs(one.name)));
    return [...OWN, ...parameters, ...measured];
  }

  /** Return whether the values of two parameters correspond one to one, such as `num_layers` and `size`. */
  follows(name, other) {
    const pairs = this.rows.map((row) => [name, other].map((one) => JSON.stringify(ownValue(row.params, one) ?? null)));
    const count = (keys) => new Set(keys).size;
    const both = count(pairs.map((pair) => pair.join("\n")));
    return both === count(pairs.map(([one]) => one)) && both === count(pairs.map(([, two]) => two)) && both < this.rows.length;
  }

  visible() {
    const rows = this.rows.filter(this.test);
    const { name, down } = this.sort;
    if (name === null) return rows;
    const side = down ? -1 : 1;
    return rows.sort((a, b) => {
      const [x, y] = [value(a, name), value(b, name)];
      if (missing(x) || missing(y)) return missing(x) - missing(y);
      const by = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y), "en", { numeric: true });
      return side * by;
    });
  }

  draw() {
    const columns = this.columns();
    const layout = columns.map((one) => one.name).join("\n");
    if (layout !== this.layout) this.built.clear();
    this.layout = layout;
    const shown = this.visible();
    const body = shown.map((row) => this.line(row, columns));
    const table = byId("points");
    const heads = [{ name: "point", title: "Point" }, ...columns];
    const key = JSON.stringify([layout, this.sort]);
    if (table.dataset.key !== key) {
      const focused = document.activeElement?.dataset?.column;
      table.dataset.key = key;
      table.tHead.replaceChildren(h("tr", {}, heads.map((one) => this.head(one)), h("th", { scope: "col" }, h("span", { class: "hidden-text" }, "Actions"))));
      if (focused) table.tHead.querySelector(`[data-column="${CSS.escape(focused)}"]`)?.focus();
    }
    const old = table.tBodies[0];
    if (old.children.length !== body.length || body.some((line, at) => old.children[at] !== line)) {
      const focus = document.activeElement;
      old.replaceChildren(...body);
      if (focus && old.contains(focus)) focus.focus();
    }
    byId("count").textContent = shown.length === this.rows.length ? `${shown.length} ${shown.length === 1 ? "point" : "points"}` : `${shown.length} of ${this.rows.length} points`;
    this.shown = shown;
    this.changed();
  }

  head({ name, title, unit, right }) {
    const sorted = this.sort.name === name ? (this.sort.down ? "descending" : "ascending") : "none";
    const turn = () => {
      if (this.sort.name !== name) this.sort = { name, down: false };
      else if (!this.sort.down) this.sort = { name, down: true };
      else this.sort = { name: null, down: false };
      this.draw();
    };
    const kind = name === "point" ? "name" : right ? "number" : null;
    const button = h("button", { type: "button", "data-column": name, title: unit, onclick: turn }, title);
    return h("th", { scope: "col", class: kind, "aria-sort": sorted }, button);
  }

  line(row, columns) {
    const key = JSON.stringify(row);
    const kept = this.built.get(row.point);
    if (kept && kept.key === key) return kept.line;
    const cells = columns.map((one) => {
      const cell = one.cell ? one.cell(row) : this.text(row, one);
      return h("td", { class: one.right ? "number" : null, title: typeof cell === "string" && cell.length > 30 ? cell : null }, cell);
    });
    const choice = h("input", { type: "checkbox", "aria-label": `Show the curves of ${row.point}` });
    choice.checked = this.chosen.has(row.point);
    choice.addEventListener("change", () => {
      if (choice.checked) this.chosen.add(row.point);
      else this.chosen.delete(row.point);
      this.changed();
    });
    const name = h("button", { type: "button", class: "link", onclick: () => this.open(row.point) }, row.point);
    const line = h("tr", {}, h("th", { scope: "row", class: "name", title: row.point }, choice, " ", name), cells, h("td", {}, this.actions(row)));
    this.built.set(row.point, { key, line });
    return line;
  }

  text(row, { name, text, digits }) {
    const cell = value(row, name);
    if (cell === undefined || cell === null) return "–";
    return text ? text(cell) : number(cell, digits);
  }
}
