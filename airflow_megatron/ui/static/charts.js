// Draw charts from the data of results/plots/charts.py: hover, toggle, log axes, confidence intervals.

import { TICK_WIDTH, labels, logTicks, padded } from "./axes.js";
import { h, number } from "./dom.js";

const DASHES = [[], [8, 4], [2, 3], [8, 3, 2, 3], [12, 3], [3, 3], [8, 2, 2, 2]];
const HEIGHT = 300;

function colours() {
  const styles = getComputedStyle(document.documentElement);
  return Object.fromEntries(["text", "line", "quiet"].map((name) => [name, styles.getPropertyValue(`--${name}`).trim()]));
}

/** A joined axis needs unique x values in a series: move equal ones apart by less than a pixel. */
function apart(xs) {
  const seen = new Map();
  return xs.map((x) => {
    const count = seen.get(x) || 0;
    seen.set(x, count + 1);
    return x * (1 + 1e-9 * count) + (x === 0 ? 1e-12 * count : 0);
  });
}

class Panel {
  constructor(panel, hidden) {
    this.panel = panel;
    this.hidden = hidden;
    this.place = h("div", {});
    this.words = h("p", { class: "quiet", "aria-hidden": "true" });
    this.element = h("div", { class: "panel" }, panel.title ? h("h3", {}, panel.title) : null, this.place, this.words);
    const first = panel.series.filter((one) => one.y.length).map((one) => `${one.name}: ${number(one.y.at(-1))} at ${number(one.x.at(-1))}`);
    this.place.setAttribute("role", "img");
    this.place.setAttribute("aria-label", `${panel.title} ${panel.y} over ${panel.x}. Last values: ${first.slice(0, 12).join("; ")}`);
  }

  draw(logX, logY) {
    const { text, line, quiet } = colours();
    const fits = (one, at) => (!logX || one.x[at] > 0) && (!logY || one.y[at] > 0);
    this.shown = this.panel.series.map((one) => {
      const order = one.x.map((_, at) => at).filter((at) => fits(one, at)).sort((a, b) => one.x[a] - one.x[b]);
      const pick = (values) => (values.length ? order.map((at) => values[at]) : []);
      return { ...one, x: apart(pick(one.x)), y: pick(one.y), xRanges: pick(one.xRanges), yRanges: pick(one.yRanges), stroke: one.colour || quiet };
    }).filter((one) => one.x.length);
    if (this.chart) this.chart.destroy();
    this.chart = null;
    if (!this.shown.length) {
      this.place.replaceChildren(h("p", { class: "quiet" }, "There are no values that can be drawn on these axes."));
      return;
    }
    this.place.replaceChildren();
    const axis = { stroke: text, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 } };
    const ends = this.shown.flatMap((one) => one.yRanges.flat()).filter((value) => value !== null && (!logY || value > 0));
    const wide = this.shown.flatMap((one) => one.xRanges.flat()).filter((value) => value !== null && (!logX || value > 0));
    const whole = (values, more, log) => {
      const [least, most] = [Math.min(...values), Math.max(...values)];
      return (chart, low, high) => padded(low, high, low <= least && high >= most ? more : [], log);
    };
    this.chart = new uPlot(
      {
        width: Math.max(this.place.clientWidth, 240),
        height: HEIGHT,
        cursor: { drag: { x: true, y: true } },
        legend: { show: false },
        scales: { x: { time: false, distr: logX ? 3 : 1, range: whole(this.shown.flatMap((one) => one.x), wide, logX) }, y: { distr: logY ? 3 : 1, range: whole(this.shown.flatMap((one) => one.y), ends, logY) } },
        axes: [
          { ...axis, label: this.panel.x, space: TICK_WIDTH, values: (_, values) => labels(values, logX), ...(logX ? { splits: (chart, at, low, high) => logTicks(low, high) } : {}) },
          { ...axis, label: this.panel.y, size: 70, values: (_, values) => labels(values, logY), ...(logY ? { splits: (chart, at, low, high) => logTicks(low, high) } : {}) },
        ],
        series: [
          {},
          ...this.shown.map((one) => ({
            label: one.name,
            show: !this.hidden.has(one.name),
            stroke: one.stroke,
            width: one.line ? 1.5 : 0,
            dash: DASHES[one.dash % DASHES.length],
            spanGaps: true,
            paths: one.line ? undefined : () => null,
            points: { show: one.marks, size: one.x.length > 200 ? 4 : 7, fill: one.stroke, stroke: one.stroke },
          })),
        ],
        hooks: { drawClear: [(chart) => this.ranges(chart)], setCursor: [(chart) => this.hover(chart)] },
      },
      uPlot.join(this.shown.map((one) => [one.x, one.y])),
      this.place,
    );
  }

  fit() {
    if (this.chart && this.place.clientWidth) this.chart.setSize({ width: Math.max(this.place.clientWidth, 240), height: HEIGHT });
  }

  /** Draw bands and bars of intervals under the lines. */
  ranges(chart) {
    const { ctx } = chart;
    ctx.save();
    ctx.beginPath();
    ctx.rect(chart.bbox.left, chart.bbox.top, chart.bbox.width, chart.bbox.height);
    ctx.clip();
    for (const one of this.shown) {
      if (this.hidden.has(one.name)) continue;
      const [x, y] = [(value) => chart.valToPos(value, "x", true), (value) => chart.valToPos(value, "y", true)];
      ctx.strokeStyle = ctx.fillStyle = one.stroke;
      if (one.band && one.yRanges.length) {
        ctx.globalAlpha = 0.18;
        ctx.beginPath();
        one.x.forEach((value, at) => ctx.lineTo(x(value), y(one.yRanges[at][0])));
        for (let at = one.x.length - 1; at >= 0; at--) ctx.lineTo(x(one.x[at]), y(one.yRanges[at][1]));
        ctx.fill();
        ctx.globalAlpha = 1;
        continue;
      }
      ctx.lineWidth = devicePixelRatio;
      ctx.beginPath();
      one.yRanges.forEach(([low, high], at) => {
        ctx.moveTo(x(one.x[at]), y(low));
        ctx.lineTo(x(one.x[at]), y(high));
      });
      one.xRanges.forEach(([low, high], at) => {
        ctx.moveTo(x(low), y(one.y[at]));
        ctx.lineTo(x(high), y(one.y[at]));
      });
      ctx.stroke();
    }
    ctx.restore();
  }

  hover(chart) {
    const { left, top } = chart.cursor;
    let nearest = null;
    if (left >= 0) {
      for (const one of this.shown) {
        if (this.hidden.has(one.name)) continue;
        one.x.forEach((value, at) => {
          const away = Math.hypot(chart.valToPos(value, "x") - left, chart.valToPos(one.y[at], "y") - top);
          if (away < 40 && (!nearest || away < nearest.away)) nearest = { away, one, at };
        });
      }
    }
    if (!nearest) return (this.words.textContent = "");
    const { one, at } = nearest;
    const range = (pair) => (pair ? ` [${number(pair[0])}, ${number(pair[1])}]` : "");
    this.words.textContent = `${one.name ? `${one.name}: ` : ""}${number(one.y[at], 5)}${range(one.yRanges[at])} at ${number(one.x[at])}${range(one.xRanges[at])}`;
  }
}

/** Draw a chart in an element; an image in the element is replaced. */
export class Figure {
  /** @param before the figure that this one replaces: hidden series and chosen axes are kept */
  constructor(figure, chart, before = null) {
    this.hidden = before ? before.hidden : new Set();
    this.panels = chart.panels.map((panel) => new Panel(panel, this.hidden));
    this.logX = h("input", { type: "checkbox" });
    this.logY = h("input", { type: "checkbox" });
    this.touched = Boolean(before && before.touched);
    this.logX.checked = this.touched ? before.logX.checked : chart.panels[0].logX;
    this.logY.checked = this.touched ? before.logY.checked : chart.panels[0].logY;
    for (const box of [this.logX, this.logY]) {
      box.addEventListener("change", () => {
        this.touched = true;
        this.draw();
      });
    }
    const controls = h("div", { class: "controls" }, h("label", {}, this.logX, " log x"), h("label", {}, this.logY, " log y"));
    this.list = h("ul", { class: "legend", "aria-label": "Series: press to hide or show" });
    this.legend();
    const place = h("div", { class: "panels" }, this.panels.map((panel) => panel.element));
    const picture = figure.querySelector("img");
    if (picture) {
      picture.after(controls, place, this.list);
      picture.hidden = true;
    } else {
      figure.append(controls, place, this.list);
    }
    // draw panels only when they become visible: a hundred canvases at once take seconds
    this.watch = new IntersectionObserver((seen) => seen.some((one) => one.isIntersecting) && this.first(), { rootMargin: "600px" });
    this.watch.observe(place);
    window.addEventListener("beforeprint", () => this.first());
    new ResizeObserver(() => this.panels.forEach((panel) => panel.fit())).observe(place);
  }

  first() {
    if (this.drawn) return;
    this.watch.disconnect();
    this.drawn = true;
    this.draw();
  }

  draw() {
    if (!this.drawn) return;
    for (const one of this.panels) one.draw(this.touched ? this.logX.checked : one.panel.logX, this.touched ? this.logY.checked : one.panel.logY);
  }

  legend() {
    const named = new Map();
    for (const { panel } of this.panels) for (const one of panel.series) if (one.name && one.x.length && !named.has(one.name)) named.set(one.name, one.colour);
    this.list.replaceChildren(
      ...[...named].map(([name, colour]) => {
        const swatch = h("span", { class: "swatch" });
        swatch.style.background = colour || "var(--quiet)";
        const button = h("button", { type: "button", "aria-pressed": String(!this.hidden.has(name)) }, swatch, name);
        button.addEventListener("click", () => {
          if (!this.hidden.delete(name)) this.hidden.add(name);
          button.setAttribute("aria-pressed", String(!this.hidden.has(name)));
          this.draw();
        });
        return h("li", {}, button);
      }),
    );
  }
}
