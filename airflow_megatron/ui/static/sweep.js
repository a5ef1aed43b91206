// The page of one sweep.

import { cancelRun, confirmed, retryRun } from "./actions.js";
import { Curves } from "./curves.js";
import { ask, byId, duration, h, moment, number, repeat } from "./dom.js";
import { Evaluations } from "./evaluations.js";
import { Failures } from "./failures.js";
import { RateBatchMap } from "./lr_batch.js";
import { openPoint } from "./point.js";
import { PointTable, stateOf } from "./table.js";

const sweep = document.documentElement.dataset.sweep;
const path = `sweeps/${encodeURIComponent(sweep)}`;
const parts = [new Curves(sweep), new RateBatchMap(), new Evaluations(sweep), new Failures(sweep)];
let chosenRun = new URLSearchParams(location.search).get("run");
let shown = "";
let data = null;

const table = new PointTable({
  open: (point) => openPoint(sweep, data.run, point),
  actions: (row) => pointActions(row),
  changed: () => data && parts.forEach((part) => part.chosen(data, table)),
});

function pointActions(row) {
  if (!data.may.change_points || !row.run) return [];
  const dag = `${sweep}.point`;
  if (row.state === "failed") {
    const ask = () =>
      confirmed({
        title: `Retry ${row.point}?`,
        text: "Airflow clears the failed tasks of this point. Finished jobs are skipped; a training continues from its newest checkpoint.",
        label: "Retry",
        act: () => retryRun(dag, row.run),
        done: again,
      });
    return h("button", { type: "button", "aria-label": `Retry ${row.point}`, onclick: ask }, "Retry");
  }
  if (row.state === "running" || row.state === "queued") {
    const ask = () =>
      confirmed({
        title: `Cancel ${row.point}?`,
        text: "Airflow marks the point’s run failed, and its Slurm jobs are cancelled. The other points continue.",
        label: "Cancel the point",
        danger: true,
        act: () => cancelRun(dag, row.run),
        done: again,
      });
    return h("button", { type: "button", class: "danger", "aria-label": `Cancel ${row.point}`, onclick: ask }, "Cancel");
  }
  return [];
}

byId("cancel").addEventListener("click", () => {
  const { run } = data; // a newer run may start while the dialog is open
  confirmed({
    title: `Cancel the run ${run}?`,
    text: "Airflow marks the sweep’s run failed: its waiting and running points are stopped, and their Slurm jobs are cancelled.",
    label: "Cancel the sweep",
    danger: true,
    act: () => cancelRun(sweep, run),
    done: again,
  });
});

byId("run").addEventListener("change", (event) => {
  chosenRun = event.target.value;
  history.replaceState(null, "", `?run=${encodeURIComponent(chosenRun)}`);
  shown = "";
  again();
});

function head() {
  const select = byId("run");
  const key = JSON.stringify(data.runs);
  if (select.dataset.key !== key) {
    select.dataset.key = key;
    select.replaceChildren(...data.runs.map((one) => h("option", { value: one.run }, `${moment(one.started)} · ${one.state === "success" ? "finished" : one.state}`)));
  }
  select.value = data.run || "";
  select.parentElement.hidden = data.runs.length < 2;
  if (data.has_report) byId("no-report")?.replaceWith(h("a", { href: `${encodeURIComponent(sweep)}?view=report` }, "Report"));
  byId("cancel").hidden = !(data.may.cancel_sweep && ["running", "queued"].includes(data.state));
}

function summary() {
  const counts = {};
  for (const row of data.rows) counts[stateOf(row)] = (counts[stateOf(row)] || 0) + 1;
  const sum = (name) => data.rows.reduce((all, row) => all + (row[name] || 0), 0);
  const losses = data.rows.filter((row) => row.validation_loss !== undefined);
  const best = losses.reduce((low, row) => (low && low.validation_loss <= row.validation_loss ? low : row), null);
  const left = Math.max(...data.rows.map((row) => row.eta_s || 0), 0);
  const items = [["Run", data.state === "success" ? "finished" : data.state || "not started"]];
  items.push(["Points", Object.entries(counts).map(([state, count]) => `${count} ${state}`).join(", ") || "–"]);
  if (best) items.push([`Lowest validation loss, ${best.point}`, number(best.validation_loss, 5)]);
  if (left) items.push(["Time left of running trainings", duration(left)]);
  if (sum("gpu_hours")) {
    const lost = sum("lost_gpu_hours");
    items.push(["GPU-hours, useful", number(sum("gpu_hours") - lost)], ["GPU-hours, lost", number(lost)]);
  }
  byId("summary").replaceChildren(...items.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

function empty() {
  const place = byId("empty");
  place.hidden = data.rows.length > 0;
  if (!data.run) place.textContent = "This sweep has not been started: trigger its DAG.";
  else if (data.state === "failed") place.textContent = "This run failed before it had a plan: see the log of the task plan.";
  else place.textContent = "This run has no plan yet: the task plan creates it.";
  byId("points-part").hidden = data.rows.length === 0;
}

function paused() {
  const place = byId("paused");
  place.hidden = !data.paused.length;
  place.textContent = `Paused in Airflow: ${data.paused.join(", ")}. Slurm jobs go on, but no further task starts.`;
}

const again = repeat(async () => {
  const wanted = chosenRun;
  const answer = await ask(path, { run: wanted });
  if (wanted !== chosenRun) return; // the next request asks for the other run
  if (answer.tag !== shown) {
    shown = answer.tag;
    const first = data === null;
    data = answer.data;
    head();
    summary();
    empty();
    paused();
    table.update(data.rows);
    const named = first && data.rows.find((row) => `#${encodeURIComponent(row.point)}` === location.hash);
    if (named) openPoint(sweep, data.run, named.point);
  }
  await Promise.all(parts.map((part) => part.update(data, table)));
}, 10);
