// Failures by kind and by node, with the lost GPU-hours.

import { ask, byId, h, number } from "./dom.js";

function counted(rows, names) {
  const found = new Map();
  for (const row of rows) {
    for (const name of names(row)) {
      const one = found.get(name) || { count: 0, lost: 0, points: new Set() };
      one.count += 1;
      one.lost += row.lost || 0;
      one.points.add(row.point);
      found.set(name, one);
    }
  }
  return [...found].sort(([, a], [, b]) => b.count - a.count).slice(0, 30);
}

function table(title, rows) {
  return h(
    "div",
    { class: "scroll free", tabindex: "0", role: "region", "aria-label": `Failures by ${title.toLowerCase()}` },
    h(
      "table",
      {},
      h("thead", {}, h("tr", {}, [title, "Attempts", "Points", "GPU-hours lost"].map((text, at) => h("th", { scope: "col", class: at ? "number" : null }, text)))),
      h("tbody", {}, rows.map(([name, one]) => h("tr", {}, h("th", { scope: "row" }, name), [one.count, one.points.size, one.lost].map((cell) => h("td", { class: "number" }, number(cell)))))),
    ),
  );
}

/** Return the nodes that are known to have failed; otherwise the node of an attempt on a single node. */
function nodes(row) {
  if (row.failed_nodes) return row.failed_nodes.split(",");
  return row.node_list && !/[[,]/.test(row.node_list) ? [row.node_list] : [];
}

export class Failures {
  constructor(sweep) {
    this.sweep = sweep;
  }

  async update(data) {
    if (!data.run) return;
    const { tag, data: found } = await ask(`sweeps/${encodeURIComponent(this.sweep)}/failures`);
    if (tag === this.tag) return;
    this.tag = tag;
    byId("failures-part").hidden = !found.rows.length;
    if (found.left_out) byId("failures-note").textContent = `The newest ${number(found.rows.length)} of ${number(found.rows.length + found.left_out)} failed attempts are counted.`;
    const kinds = counted(found.rows, (row) => [row.signature || row.outcome || "unknown"]);
    const places = counted(found.rows, nodes);
    byId("failures").replaceChildren(table("Kind", kinds), ...(places.length ? [table("Node", places)] : []));
  }

  chosen() {}
}
