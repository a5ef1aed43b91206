// Curves of the chosen points: hover, toggle, smoothing, log axes, several x axes; branches are joined to their trunks.

import { TICK_WIDTH, labels, logTicks, padded } from "./axes.js";
import { ask, byId, h, number } from "./dom.js";

const PALETTE = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#7f3fbf", "#8c564b", "#5f9e2f", "#e0437b"];
const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3]];
const DEFAULT_POINTS = 12;
const X_NAMES = { x: "iterations", tokens: "tokens", flops: "FLOPs", hours: "hours of training", rate: "learning rate" };
const Y_NAMES = {
  loss: "loss, nats per token",
  validation_loss: "validation loss, nats per token",
  learning_rate: "learning rate",
  grad_norm: "gradient norm",
  throughput: "TFLOP/s per GPU",
};

/** Return the colour of a curve by its number from 0; `results/plots/charts.py` has the same colours. */
function colourOf(number) {
  return PALETTE[number] || `hsl(${((number * 137.508) % 360).toFixed(1)} 60% ${[36, 52, 28][number % 3]}%)`;
}

/** Return the exponential moving average with bias correction; the last `span` values have half of the weight. */
function smoothed(values, strength) {
  if (!strength) return values;
  let sum = 0;
  let weight = 0;
  return values.map((value) => {
    sum = strength * sum + (1 - strength) * value;
    weight = strength * weight + (1 - strength);
    return sum / weight;
  });
}

/** Return a sample of a curve's line for the legend. */
function lineSample(colour, dash) {
  const picture = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
  for (const [name, value] of [["class", "sample"], ["viewBox", "0 0 28 4"], ["aria-hidden", "true"]]) picture.setAttribute(name, value);
  for (const [name, value] of [["x2", 28], ["y1", 2], ["y2", 2], ["stroke", colour], ["stroke-width", 3]]) line.setAttribute(name, value);
  if (dash.length) line.setAttribute("stroke-dasharray", dash.join(" "));
  picture.append(line);
  return picture;
}

export class Curves {
  constructor(sweep) {
    this.sweep = sweep;
    this.hidden = new Set();
    this.zoom = null; // part of the x axis that a reader has selected
    this.colours = new Map(); // a point keeps its colour when the table is sorted
    this.content = [];
    this.requested = "";
    byId("metric").addEventListener("change", () => this.load(true));
    byId("along").addEventListener("change", () => {
      if (byId("along").value === "rate") byId("log-x").checked = true; // learning-rate searches raise the rate exponentially
      this.load(false);
      this.draw();
    });
    for (const id of ["log-x", "log-y", "smooth"]) byId(id).addEventListener("input", () => this.draw());
    document.addEventListener("themechange", () => this.draw());
    new ResizeObserver(() => this.chart && this.chart.setSize({ width: this.width(), height: this.height() })).observe(byId("chart"));
  }

  points() {
    const chosen = this.table.shown.filter((row) => this.table.chosen.has(row.point));
    return (chosen.length ? chosen : this.table.shown.slice(0, DEFAULT_POINTS)).map((row) => row.point);
  }

  update(data, table) {
    [this.data, this.table] = [data, table];
    return this.load(true);
  }

  chosen(data, table) {
    [this.data, this.table] = [data, table];
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.load(false).catch(() => {}), 150);
  }

  async load(again) {
    if (!this.data || !this.data.run || !this.data.rows.length) return;
    const wanted = { metric: byId("metric").value, points: this.points(), rate: byId("along").value === "rate" ? true : null };
    const key = JSON.stringify(wanted);
    if (!again && key === this.requested) return;
    this.requested = key;
    const { tag, data } = await ask(`sweeps/${encodeURIComponent(this.sweep)}/curves`, wanted);
    if (key !== this.requested || (tag === this.tag && key === this.drawn)) return;
    [this.tag, this.drawn] = [tag, key];
    this.content = data.curves.filter((curve) => curve.y.length);
    if (byId("curves-note")) byId("curves-note").textContent = data.curves.length >= data.most ? `At most ${data.most} curves are shown: check fewer points.` : "";
    this.any = this.any || this.content.length > 0;
    byId("curves-part").hidden = !this.any;
    this.draw();
  }

  width() {
    return Math.max(byId("chart").clientWidth - 18, 260);
  }

  height() {
    return Math.max(280, Math.min(460, Math.round(this.width() * 0.45)));
  }

  draw() {
    if (!this.any || typeof uPlot === "undefined") return;
    const along = byId("along").value;
    const logX = byId("log-x").checked;
    const logY = byId("log-y").checked;
    const strength = Number(byId("smooth").value) / 100;
    const styles = getComputedStyle(document.documentElement);
    const [text, line] = [styles.getPropertyValue("--text").trim(), styles.getPropertyValue("--line").trim()];
    // trunks first, so that the shared part of the line belongs to them
    const stages = [...new Set([...this.content].sort((a, b) => Boolean(a.parent) - Boolean(b.parent)).map((curve) => curve.stage))];
    const series = [{ label: X_NAMES[along], value: (_, value) => number(value) }];
    const tables = [];
    const marks = [];
    for (const curve of this.content) {
      const at = curve[along] || [];
      const y = smoothed(curve.y, strength);
      const keep = curve.y.map((_, index) => index).filter((index) => at[index] !== null && at[index] !== undefined && (!logX || at[index] > 0) && (!logY || y[index] > 0));
      // a joined axis needs unique x values
      const seen = new Map(keep.map((index) => [at[index], y[index]]));
      const xs = [...seen.keys()].sort((a, b) => a - b);
      if (!this.colours.has(curve.point)) this.colours.set(curve.point, colourOf(this.colours.size));
      const colour = this.colours.get(curve.point);
      const name = `${curve.point} ${curve.stage}`;
      tables.push([xs, xs.map((x) => seen.get(x))]);
      series.push({
        label: name,
        show: !this.hidden.has(name),
        stroke: colour,
        width: 1.5,
        dash: DASHES[stages.indexOf(curve.stage) % DASHES.length],
        spanGaps: true,
        points: { show: xs.length < 3 },
        value: (_, value) => number(value, 5),
      });
      for (const begun of curve.restarts) {
        const index = curve.x.findIndex((x) => x >= begun);
        if (index >= 0 && at[index] !== null && at[index] !== undefined) marks.push({ x: at[index], y: y[index], colour, series: series.length - 1 });
      }
    }
    this.legend(series);
    if (this.chart) this.chart.destroy();
    this.chart = this.focused = null;
    byId("hover").textContent = "\u00a0";
    if (!tables.some(([xs]) => xs.length)) {
      const reason = tables.length ? "There are no values that can be drawn on these axes." : "These points have no recorded values yet.";
      byId("chart").replaceChildren(h("p", { class: "quiet" }, reason));
      byId("chart").setAttribute("aria-label", reason);
      return;
    }
    byId("chart").replaceChildren();
    const axis = { stroke: text, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 } };
    const splits = (log) => (log ? { splits: (chart, at, low, high) => logTicks(low, high) } : {});
    const range = (chart, low, high) => padded(low, high, [], true);
    if (this.zoom && (this.zoom.along !== along || (logX && this.zoom.min <= 0))) this.zoom = null;
    this.chart = new uPlot(
      {
        width: this.width(),
        height: this.height(),
        cursor: { focus: { prox: -1 } }, // hover() chooses the curve
        focus: { alpha: 0.25 },
        legend: { show: false },
        scales: { x: { time: false, distr: logX ? 3 : 1, ...(logX ? { range } : {}) }, y: { distr: logY ? 3 : 1, ...(logY ? { range } : {}) } },
        axes: [
          { ...axis, label: X_NAMES[along], space: TICK_WIDTH, values: (_, values) => labels(values, logX), ...splits(logX) },
          { ...axis, label: Y_NAMES[byId("metric").value], size: 70, values: (_, values) => labels(values, logY), ...splits(logY) },
        ],
        series,
        hooks: { setCursor: [(chart) => this.hover(chart)], setSelect: [(chart) => this.selected(chart, along)], draw: [(chart) => this.marks(chart, marks)] },
      },
      uPlot.join(tables),
      byId("chart"),
    );
    this.chart.over.addEventListener("dblclick", () => (this.zoom = null));
    if (this.zoom) this.chart.setScale("x", this.zoom);
    const last = this.content.map((curve) => `${curve.point} ${curve.stage}: ${number(curve.y.at(-1), 5)} at iteration ${curve.x.at(-1)}`);
    byId("chart").setAttribute("aria-label", `${Y_NAMES[byId("metric").value]} over ${X_NAMES[along]}. Last values: ${last.join("; ")}`);
  }

  /** Draw a triangle where an attempt began: after a restart, or after a rollback to an earlier checkpoint. */
  marks(chart, marks) {
    const { ctx } = chart;
    ctx.save();
    ctx.beginPath();
    ctx.rect(chart.bbox.left, chart.bbox.top, chart.bbox.width, chart.bbox.height);
    ctx.clip();
    for (const mark of marks) {
      if (!chart.series[mark.series].show) continue;
      const [x, y] = [chart.valToPos(mark.x, "x", true), chart.valToPos(mark.y, "y", true)];
      ctx.beginPath();
      ctx.moveTo(x, y - 7 * devicePixelRatio);
      ctx.lineTo(x - 5 * devicePixelRatio, y + 4 * devicePixelRatio);
      ctx.lineTo(x + 5 * devicePixelRatio, y + 4 * devicePixelRatio);
      ctx.closePath();
      ctx.fillStyle = mark.colour;
      ctx.fill();
    }
    ctx.restore();
  }

  /** Remember the part of the x axis to which a reader has zoomed: new values must not reset it. */
  selected(chart, along) {
    const { left, width } = chart.select;
    if (width > 0) this.zoom = { along, min: chart.posToVal(left, "x"), max: chart.posToVal(left + width, "x") };
  }

  /** Name and highlight the curve that is nearest to the cursor. */
  hover(chart) {
    const { left, top } = chart.cursor;
    let nearest = null;
    for (let at = 1; left >= 0 && at < chart.series.length; at++) {
      if (!chart.series[at].show) continue;
      chart.data[at].forEach((value, index) => {
        if (value === null || value === undefined) return;
        const away = Math.hypot(chart.valToPos(chart.data[0][index], "x") - left, chart.valToPos(value, "y") - top);
        if (!nearest || away < nearest.away) nearest = { away, at, index, value };
      });
    }
    const near = nearest && nearest.away < 40 ? nearest : null;
    if (this.focused !== (near && near.at)) {
      this.focused = near && near.at;
      chart.setSeries(this.focused, { focus: true });
    }
    byId("hover").textContent = near ? `${chart.series[near.at].label}: ${number(near.value, 5)} at ${number(chart.data[0][near.index])} ${chart.series[0].label}` : "\u00a0";
  }

  legend(series) {
    byId("legend").replaceChildren(
      ...series.slice(1).map((one, index) => {
        const button = h("button", { type: "button", "aria-pressed": String(one.show) }, lineSample(one.stroke, one.dash), one.label);
        button.addEventListener("click", () => {
          if (this.hidden.has(one.label)) this.hidden.delete(one.label);
          else this.hidden.add(one.label);
          button.setAttribute("aria-pressed", String(!this.hidden.has(one.label)));
          this.chart.setSeries(index + 1, { show: !this.hidden.has(one.label) });
        });
        return h("li", {}, button);
      }),
    );
  }
}
