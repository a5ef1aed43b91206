// Create elements, and fetch data. Text from jobs is only used in text nodes and attributes, never as HTML.

export const root = document.documentElement.dataset.root || "./";

export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export const byId = (id) => document.getElementById(id);

export function airflowLink(path, ...text) {
  return h("a", { href: `${root}../${path}`, "data-airflow": true }, ...text);
}

let embedded = null;

/** Answer requests with data in the page itself, for a report in one file, which has no server. */
export function embed(answers) {
  embedded = answers;
}

/** Fetch JSON; the browser sends the ETag of its copy, so that unchanged data are not sent again. */
export async function ask(path, parameters = {}) {
  if (embedded) return { tag: JSON.stringify([path, parameters]), data: embedded(path, parameters) };
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    for (const one of Array.isArray(value) ? value : [value]) if (one !== null && one !== undefined) query.append(name, one);
  }
  const text = query.toString();
  const answer = await fetch(`${root}api/${path}${text ? `?${text}` : ""}`, { cache: "no-cache", credentials: "same-origin" });
  if (!answer.ok) throw new Error(await reason(answer));
  return { tag: answer.headers.get("ETag"), data: await answer.json() };
}

export async function reason(answer) {
  if (answer.status === 401) return "you are logged out: reload the page";
  let detail = "";
  try {
    detail = (await answer.json()).detail;
  } catch {
    detail = answer.statusText;
  }
  return `${typeof detail === "string" ? detail : JSON.stringify(detail)} (${answer.status})`;
}

/** Seconds after which a reader is told that the server, or the network to it, does not answer. */
const SILENCE = 30;

/** Call `look` periodically; not while the page is hidden, and less often while the server does not answer. */
export function repeat(look, seconds) {
  let pause = seconds;
  let timer = 0;
  async function turn() {
    clearTimeout(timer);
    if (!document.hidden) {
      const late = setTimeout(() => report(`Not up to date: the server has not answered for ${SILENCE} s`), SILENCE * 1000);
      try {
        await look();
        pause = seconds;
        report("");
      } catch (error) {
        pause = Math.min(pause * 2, 120);
        report(`Not up to date: ${error.message}`);
      } finally {
        clearTimeout(late);
      }
    }
    clearTimeout(timer); // another turn may have ended meanwhile
    timer = setTimeout(turn, pause * 1000);
  }
  document.addEventListener("visibilitychange", () => !document.hidden && turn());
  turn();
  return turn;
}

export function report(text) {
  const place = byId("trouble");
  if (place && place.textContent !== text) place.textContent = text;
}

export function number(value, digits = 4) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value) && Math.abs(value) < 1e15) return value.toLocaleString("en");
  const size = Math.abs(value);
  const rounded = Number(value.toPrecision(digits));
  if (size !== 0 && (size < 1e-2 || size >= 1e6)) return rounded.toExponential();
  return size >= 1000 ? rounded.toLocaleString("en") : String(rounded);
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const minutes = Math.round(seconds / 60);
  if (seconds < 100) return `${Math.round(seconds)} s`;
  if (minutes < 100) return `${minutes} min`;
  const hours = Math.round(minutes / 60);
  return hours < 48 ? `${Math.floor(minutes / 60)} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

export function moment(seconds) {
  if (!seconds) return "–";
  return `${new Date(seconds * 1000).toISOString().slice(0, 16).replace("T", " ")} UTC`;
}

export function bar(parts, label) {
  const whole = parts.reduce((sum, [, size]) => sum + size, 0) || 1;
  const shown = h("span", { class: "bar", role: "img", "aria-label": label });
  for (const [kind, size] of parts) {
    if (!size || kind === "w") continue;
    const piece = h("span", { class: kind });
    piece.style.width = `${(100 * size) / whole}%`;
    shown.append(piece);
  }
  return shown;
}
