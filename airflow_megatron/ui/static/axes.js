// Ranges, ticks and labels of the axes of charts.

import { number } from "./dom.js";

/** Width in pixels for the label of a tick on the x axis. */
export const TICK_WIDTH = 80;

/** Return the range of an axis: the values, or also their intervals while all values are visible, with a margin. */
export function padded(low, high, ends, log) {
  if (low === null || high === null) return log ? [1, 10] : [0, 1];
  const [least, most] = [Math.min(low, ...ends), Math.max(high, ...ends)];
  if (log) return least === most ? [least / 1.5, most * 1.5] : [least / (most / least) ** 0.06, most * (most / least) ** 0.06];
  const room = (most - least || Math.abs(most) || 1) * 0.06;
  return [least - room, most + room];
}

/** Return the ticks of a logarithmic axis: powers of ten, and more values between them on short axes. */
export function logTicks(low, high) {
  if (!(low > 0)) return []; // such a range has infinitely many powers of ten
  const firsts = high / low > 3e3 ? [1] : high / low > 8 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9];
  const found = [];
  const add = (list) => {
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) for (const first of list) found.push(Number(`${first}e${power}`));
  };
  add(firsts);
  const inside = found.filter((value) => value >= low && value <= high);
  if (inside.length > 2) return inside;
  // less than a factor of two: steps of a linear axis
  const rough = (high - low) / 4;
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = unit * ([1, 2, 5].find((one) => one * unit >= rough) || 10);
  const steps = [];
  for (let at = Math.ceil(low / step); at * step <= high; at++) steps.push(Number((at * step).toPrecision(12)));
  return steps;
}

/** Return the labels of ticks, with as many digits as distinguish neighbours; on a linear axis all have one notation. */
export function labels(values, log = false) {
  const shown = values.filter((value) => value !== null);
  const most = Math.max(...shown.map(Math.abs));
  const gaps = shown.slice(1).map((value, at) => Math.abs(value - shown[at])).filter((gap) => gap > 0);
  const digits = gaps.length ? Math.min(Math.max(Math.ceil(Math.log10(most / Math.min(...gaps)) - 1e-9) + 1, 1), 15) : 3;
  return values.map((value) => {
    if (value === null) return "";
    const rounded = Number(value.toPrecision(digits));
    const size = log ? Math.abs(value) : most;
    if (rounded !== 0 && (size >= 1e6 || size < 1e-2)) return rounded.toExponential().replace("e+", "e");
    return number(rounded, 15);
  });
}
