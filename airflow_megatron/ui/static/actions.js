// Retry and cancel, as requests to Airflow's own API: its auth manager decides, and its audit log names who did it.

import { byId, h, reason, root } from "./dom.js";

async function request(method, path, body) {
  const answer = await fetch(`${root}../api/v2/${path}`, {
    method,
    credentials: "same-origin",
    headers: { "Content-Type": "application/json", Accept: "application/json" }, // no form of another site can send it
    body: JSON.stringify(body),
  });
  if (!answer.ok) throw new Error(await reason(answer));
}

const runPath = (dag, run) => `dags/${encodeURIComponent(dag)}/dagRuns/${encodeURIComponent(run)}`;

/** Mark a run failed: a sweep's run stops its points, a point's run its jobs. */
export const cancelRun = (dag, run) => request("PATCH", runPath(dag, run), { state: "failed" });

/** Clear the failed tasks of a run. */
export const retryRun = (dag, run) => request("POST", `${runPath(dag, run)}/clear`, { dry_run: false, only_failed: true });

/** Ask, then act; the dialog stays open with the message when Airflow refuses. */
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
      byId("notice").textContent = `${label}: Airflow has been asked.`;
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
