// Retry and cancel with requests to Airflow's API, whose auth manager authorizes them and whose audit log records the user.

import { byId, h, reason, root } from "./dom.js";

async function request(method, path, body) {
  const answer = await fetch(`${root}../api/v2/${path}`, {
    method,
    credentials: "same-origin",
    headers: { "Content-Type": "application/json", Accept: "application/json" }, // a form of another site cannot send this type
    body: JSON.stringify(body),
  });
  if (!answer.ok) throw new Error(await reason(answer));
}

const runPath = (dag, run) => `dags/${encodeURIComponent(dag)}/dagRuns/${encodeURIComponent(run)}`;

/** Mark a run failed; Airflow then stops the points of a sweep's run, or cancels the jobs of a point's run. */
export const cancelRun = (dag, run) => request("PATCH", runPath(dag, run), { state: "failed" });

/** Clear the failed tasks of a run. */
export const retryRun = (dag, run) => request("POST", `${runPath(dag, run)}/clear`, { dry_run: false, only_failed: true });

/** Show a confirmation dialog, then act; if Airflow refuses, the dialog stays open and shows the message. */
export function confirmed({ title, text, label, danger, act, done }) {
  const trouble = h("p", { class: "error", role: "alert" });
  const back = h("button", { type: "button" }, "Back");
  const go = h("button", { type: "button", class: danger ? "danger" : null }, label);
  const dialog = h(
    "dialog",
    { "aria-labelledby": "question", "aria-describedby": "question-text" },
    h("h2", { id: "question" }, title),
    h("p", { id: "question-text" }, text),
    trouble,
    h("div", { class: "buttons" }, back, go),
  );
  back.addEventListener("click", () => dialog.close());
  go.addEventListener("click", async () => {
    go.disabled = true;
    try {
      await act();
      dialog.close();
      byId("notice").textContent = `${label}: sent to Airflow.`;
      done();
    } catch (error) {
      trouble.textContent = error.message;
      go.disabled = false;
    }
  });
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  back.focus();
}
