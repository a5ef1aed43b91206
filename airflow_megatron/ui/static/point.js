// The dialog of one point: its jobs, their attempts with verdict and decisive log line, and links to logs.

import { airflowLink, ask, duration, h, moment, number } from "./dom.js";

const LETTERS = { f: "finished", r: "running", q: "queued", t: "restarting", x: "failed", s: "cancelled", u: "blocked", w: "waiting" };

function jobs(sweep, content) {
  const { row } = content;
  const lines = content.jobs.map((job, at) => {
    const state = LETTERS[row.stages[at]] || "waiting";
    const task = `dags/${sweep}.point/runs/${encodeURIComponent(row.run)}/tasks/${encodeURIComponent(`${job.stage}.watch`)}`;
    return h(
      "tr",
      {},
      h("th", { scope: "row" }, job.stage),
      h("td", {}, job.kind),
      h("td", {}, h("span", { class: `state is-${state}` }, state)),
      h("td", {}, row.run ? airflowLink(task, "task and log") : "–"),
      h("td", { class: "long" }, h("code", {}, job.run_dir)),
    );
  });
  const heads = ["Stage", "Kind", "State", "Airflow", "Run directory on the cluster"];
  return h("table", {}, h("thead", {}, h("tr", {}, heads.map((text) => h("th", { scope: "col" }, text)))), h("tbody", {}, lines));
}

function attempts(rows) {
  if (!rows.length) return h("p", { class: "quiet" }, "No attempt has ended yet, or none has been recorded.");
  const heads = ["Stage", "Attempt", "Slurm job", "Verdict", "Why", "Nodes", "Ended", "Ran", "GPU-hours"];
  const lines = rows.map((one) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, one.stage),
      h("td", { class: "number" }, number(one.attempt)),
      h("td", {}, one.job_id || "–"),
      h("td", {}, one.outcome || "–"),
      h("td", { class: "long" }, one.reason || "", one.line ? [h("br"), h("code", {}, one.line)] : []),
      h("td", { class: "long" }, one.node_list || "–"),
      h("td", {}, moment(one.ended)),
      h("td", { class: "number" }, duration(one.elapsed)),
      h("td", { class: "number" }, number(one.gpu_hours)),
    ),
  );
  return h("table", {}, h("thead", {}, h("tr", {}, heads.map((text) => h("th", { scope: "col" }, text)))), h("tbody", {}, lines));
}

export async function openPoint(sweep, run, point) {
  const close = h("button", { type: "button" }, "Close");
  const body = h("div", {}, h("p", { class: "quiet" }, "Loading…"));
  const dialog = h("dialog", { "aria-labelledby": "point-title" }, h("h2", { id: "point-title" }, point), body, h("div", { class: "buttons" }, close));
  close.addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => {
    dialog.remove();
    history.replaceState(null, "", location.pathname + location.search);
  });
  document.body.append(dialog);
  dialog.showModal();
  history.replaceState(null, "", `#${encodeURIComponent(point)}`);
  try {
    const { data } = await ask(`sweeps/${encodeURIComponent(sweep)}/point`, { run, point });
    const { row } = data;
    const parameters = Object.entries(row.params).map(([name, value]) => `${name} = ${number(value)}`);
    const folders = [...new Set(data.jobs.filter((job) => job.trains).map((job) => job.run_dir))];
    body.replaceChildren(
      h("p", {}, parameters.join(", ") || "no swept parameters"),
      row.run ? h("p", {}, airflowLink(`dags/${sweep}.point/runs/${encodeURIComponent(row.run)}`, "The point’s run in Airflow")) : "",
      h("h3", {}, "Jobs"),
      h("div", { class: "scroll free", tabindex: "0", role: "region", "aria-label": "Jobs" }, jobs(sweep, data)),
      h("h3", {}, "Attempts that have ended"),
      h("div", { class: "scroll free", tabindex: "0", role: "region", "aria-label": "Attempts" }, attempts(data.attempts)),
      folders.length ? h("p", { class: "quiet" }, "TensorBoard, on the cluster: ", folders.map((folder) => [h("code", {}, `tensorboard --logdir ${folder}/tensorboard`), h("br")])) : "",
    );
  } catch (error) {
    body.replaceChildren(h("p", { class: "error", role: "alert" }, error.message));
  }
}
