// Map of learning rate × batch size: the lowest loss of each pair; the best one is marked, failed ones are hatched.

import { byId, h, number } from "./dom.js";
import { ownValue, stateOf } from "./table.js";

const RATE = /^(lr|learning_rate)$/i;
const BATCH = /^(global_batch_size|batch_size|gbs|batch)$/i;

function shade(loss, lowest, highest) {
  const share = highest > lowest ? (loss - lowest) / (highest - lowest) : 0;
  return `color-mix(in srgb, var(--run) ${Math.round(40 - 36 * share)}%, transparent)`;
}

/** Return whether a point has failed before the end of its training; its loss is not a result of the pair. */
function hasFailed(row) {
  return stateOf(row) === "failed" && !(row.total && row.iteration >= row.total);
}

export class RateBatchMap {
  update(data) {
    const names = [...new Set(data.rows.flatMap((row) => Object.keys(row.params)))];
    const [rate, batch] = [names.find((name) => RATE.test(name)), names.find((name) => BATCH.test(name))];
    const place = byId("map-part");
    place.hidden = !(rate && batch);
    if (place.hidden) return;
    const loss = (row) => row.validation_loss ?? row.loss;
    const others = names.filter((name) => name !== rate && name !== batch);
    const rest = others.filter((name) => new Set(data.rows.map((row) => ownValue(row.params, name))).size > 1);
    const groups = new Map();
    for (const row of data.rows) {
      const key = rest.map((name) => `${name} = ${number(ownValue(row.params, name))}`).join(", ");
      if (!groups.has(key)) groups.set(key, []);
      groups.get(key).push(row);
    }
    byId("map").replaceChildren(...[...groups].map(([title, rows]) => this.map(title, rows, rate, batch, loss)));
  }

  chosen() {}

  map(title, rows, rate, batch, loss) {
    const values = (name) => [...new Set(rows.map((row) => ownValue(row.params, name)))].sort((a, b) => a - b);
    const known = rows.filter((row) => !hasFailed(row)).map(loss).filter((one) => one !== undefined);
    const [lowest, highest] = [Math.min(...known), Math.max(...known)];
    // a failed point is only shown where no other one has a loss
    const rank = (row) => (loss(row) === undefined ? Infinity : hasFailed(row) ? Number.MAX_VALUE : loss(row));
    const cell = (one, other) => {
      const here = rows.filter((row) => ownValue(row.params, rate) === one && ownValue(row.params, batch) === other);
      const row = here.reduce((low, next) => (low && rank(low) <= rank(next) ? low : next), null);
      if (!row) return h("td", { class: "quiet" }, "–");
      const value = loss(row);
      const failed = hasFailed(row);
      const best = !failed && value !== undefined && value === lowest;
      const shown = h("td", { class: failed ? "failed" : best ? "best" : null, title: row.point }, value === undefined ? stateOf(row) : number(value, 4), failed && value !== undefined ? " failed" : "", best ? h("span", { class: "hidden-text" }, " the lowest") : "");
      if (value !== undefined && !failed) shown.style.background = shade(value, lowest, highest);
      return shown;
    };
    return h(
      "table",
      { class: "map" },
      h("caption", { class: "quiet" }, title || `${rate} (across) × ${batch} (down)`),
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, `${batch} \\ ${rate}`), values(rate).map((one) => h("th", { scope: "col", class: "number" }, number(one))))),
      h("tbody", {}, values(batch).map((other) => h("tr", {}, h("th", { scope: "row" }, number(other)), values(rate).map((one) => cell(one, other))))),
    );
  }
}
