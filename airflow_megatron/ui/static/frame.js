// Common to all pages: Airflow's light or dark theme, and links that open in Airflow's own page.

function outerRoot() {
  try {
    return window.parent === window ? null : window.parent.document.documentElement;
  } catch {
    return null; // the parent page belongs to another site
  }
}

const outer = outerRoot();
const system = window.matchMedia("(prefers-color-scheme: dark)");

function applyTheme() {
  const named = outer && (outer.dataset.theme || ["dark", "light"].find((name) => outer.classList.contains(name)));
  const own = outer ? null : new Set(["dark", "light"]).has(localStorage.getItem("theme")) && localStorage.getItem("theme");
  const theme = named || own || (system.matches ? "dark" : "light");
  if (document.documentElement.dataset.theme !== theme) {
    document.documentElement.dataset.theme = theme;
    document.dispatchEvent(new Event("themechange"));
  }
}

applyTheme();
system.addEventListener("change", applyTheme);
if (outer) new MutationObserver(applyTheme).observe(outer, { attributes: true, attributeFilter: ["class", "data-theme"] });

// Airflow shows this page in a frame, which may not open pages of Airflow: let the parent page follow such links
document.addEventListener("click", (event) => {
  const link = event.target.closest && event.target.closest("a[data-airflow]");
  if (!link || window.parent === window || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  const copy = window.parent.document.createElement("a");
  copy.href = link.href;
  copy.click();
});
