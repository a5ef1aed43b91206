// Chart of evaluations over checkpoints: one metric at a time, with the score of random guessing if it is known.

import { Figure } from "./charts.js";
import { ask, byId, h } from "./dom.js";

export class Evaluations {
  constructor(sweep) {
    this.sweep = sweep;
    byId("measure").addEventListener("change", () => this.load());
    document.addEventListener("themechange", () => this.figure && this.figure.draw());
  }

  async update(data) {
    this.run = data.run;
    if (this.run) await this.load();
  }

  chosen() {}

  async load() {
    const select = byId("measure");
    const { tag, data } = await ask(`sweeps/${encodeURIComponent(this.sweep)}/evaluations`, { name: select.value });
    if (tag === this.tag) return;
    this.tag = tag;
    byId("evaluations-part").hidden = !data.chart;
    if (!data.chart) return;
    select.replaceChildren(...data.names.map((name) => h("option", { value: name }, name)));
    select.value = data.name;
    byId("evaluations-note").textContent = data.left_out ? `${data.left_out} more trainings are not shown.` : "";
    if (typeof uPlot === "undefined") return;
    const before = this.name === data.name ? this.figure : null;
    this.name = data.name;
    byId("evaluations").replaceChildren();
    this.figure = new Figure(byId("evaluations"), data.chart, before);
  }
}
