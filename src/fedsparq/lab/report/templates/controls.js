// What readers press: which methods are shown, what curves run against, zoom, the order of a table, light and dark.
"use strict";
const remember = { // a page opened from a file may not be allowed to remember
  get: (store, key) => { try { return store().getItem(key); } catch { return null; } },
  set: (store, key, text) => { try { store().setItem(key, text); } catch { /* it is only a comfort */ } },
};
const forTab = () => sessionStorage, forGood = () => localStorage;

function swatch(arm) {
  const dash = DASHES[arm.dash];
  return `<svg class="swatch" viewBox="-15 -7 30 14" aria-hidden="true" style="--light:${arm.colour[0]};--dark:${arm.colour[1]}">` +
    `<path d="M-15 0H15" stroke-width="2.2" ${dash && `stroke-dasharray="${dash}"`}/><path class="mark" d="${MARKS[arm.mark]}"/></svg>`;
}
const plotsOf = (number) => plots.filter((plot) => plot.dataset.section === String(number));

sections.forEach((section, number) => {
  const place = document.querySelector(`[data-legend="${number}"]`);
  const key = `${document.title}/${section.slug}`;
  const kept = JSON.parse(remember.get(forTab, key) || "null");
  if (kept) section.arms.forEach((arm) => { arm.on = kept.on.includes(arm.label); });
  section.against = (kept && kept.against) || "round";
  const buttons = section.arms.map((arm) => {
    const button = document.createElement("button");
    button.type = "button";
    button.innerHTML = `${swatch(arm)}<span>${safe(arm.name)}</span>`;
    button.addEventListener("click", () => { arm.on = !arm.on; show(); });
    return button;
  });
  const all = document.createElement("button");
  all.type = "button";
  all.className = "all";
  all.addEventListener("click", () => { const on = section.arms.some((arm) => !arm.on); section.arms.forEach((arm) => { arm.on = on; }); show(); });
  if (section.arms.length > 1) place.append(...buttons, all);
  const switches = [...document.querySelectorAll(`[data-against="${number}"] button`)];
  switches.forEach((button) => button.addEventListener("click", () => { section.against = button.value; show(); }));
  function state() {
    buttons.forEach((button, i) => button.setAttribute("aria-pressed", section.arms[i].on));
    switches.forEach((button) => button.setAttribute("aria-pressed", button.value === section.against));
    all.textContent = section.arms.every((arm) => arm.on) ? "Hide all" : `Show all ${section.arms.length}`;
  }
  function show() {
    state();
    remember.set(forTab, key, JSON.stringify({ on: shown(section).map((arm) => arm.label), against: section.against }));
    redraw(plotsOf(number).filter((plot) => plot.dataset.plot !== "multiple"));
  }
  state();
  document.querySelectorAll(`[data-rows="${number}"] [data-label]`).forEach((place) => {
    const arm = section.arms.find((other) => other.label === place.dataset.label);
    if (arm) place.insertAdjacentHTML("afterbegin", swatch(arm));
  });
});

document.querySelectorAll("[data-tools]").forEach((tools) => {
  const own = plotsOf(tools.dataset.tools);
  const [zoom, reset] = tools.querySelectorAll("button");
  let on = !coarse;
  const state = () => zoom.setAttribute("aria-pressed", on);
  zoom.addEventListener("click", () => { on = !on; own.forEach((plot) => { plot.dataset.zoom = on ? "on" : "off"; }); state(); redraw(own); });
  reset.addEventListener("click", () => own.filter((plot) => plot.dataset.drawn).forEach((plot) => { Plotly.purge(plot); draw(plot); }));
  state();
});

document.querySelectorAll("table.sortable thead button").forEach((button) => button.addEventListener("click", () => {
  const head = button.closest("th"), table = head.closest("table"), column = head.cellIndex;
  const down = head.getAttribute("aria-sort") === "ascending";
  table.querySelectorAll("th[aria-sort]").forEach((other) => other.removeAttribute("aria-sort"));
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  const number = (row) => parseFloat(row.cells[column].dataset.value);
  const compare = (a, b) => {
    if (column === 0) return a.cells[0].textContent.trim().localeCompare(b.cells[0].textContent.trim(), "en", { numeric: true });
    const x = number(a), y = number(b);
    return Number.isNaN(x) - Number.isNaN(y) || (Number.isNaN(x) ? 0 : (x - y));
  };
  const rows = [...table.tBodies[0].rows].sort((a, b) => {
    const order = compare(a, b);
    return down && !(column && (Number.isNaN(number(a)) || Number.isNaN(number(b)))) ? -order : order;
  });
  table.tBodies[0].append(...rows);
}));

const theme = document.getElementById("theme");
function wear(name) {
  if (name) document.documentElement.dataset.theme = name;
  theme.textContent = dark() ? "Light" : "Dark";
}
theme.addEventListener("click", () => {
  wear(dark() ? "light" : "dark");
  remember.set(forGood, "fedsparq-theme", document.documentElement.dataset.theme);
  dispatchEvent(new Event("themechange"));
});
wear(remember.get(forGood, "fedsparq-theme"));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => wear());
