// The interactive figures. Each section has its data, the set of methods shown, and what the curves run against.
"use strict";
const sections = JSON.parse(document.getElementById("data").textContent);
const MARKS = {
  circle: "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z", square: "M-4-4h8v8h-8z", diamond: "M0-5l5 5-5 5-5-5z",
  "triangle-up": "M0-5l5 9h-10z", "triangle-down": "M0 5l5-9h-10z", "triangle-left": "M-5 0l9-5v10z",
  "triangle-right": "M5 0l-9-5v10z", cross: "M-1.6-5h3.2v3.4h3.4v3.2h-3.4v3.4h-3.2v-3.4h-3.4v-3.2h3.4z",
  x: "M-4.6-2.6l2-2 2.6 2.6 2.6-2.6 2 2-2.6 2.6 2.6 2.6-2 2-2.6-2.6-2.6 2.6-2-2 2.6-2.6z",
  star: "M0-5.6l1.7 3.5 3.8.5-2.8 2.7.7 3.8-3.4-1.8-3.4 1.8.7-3.8-2.8-2.7 3.8-.5z",
  hexagon: "M0-5l4.3 2.5v5l-4.3 2.5-4.3-2.5v-5z", pentagon: "M0-5l4.8 3.5-1.8 5.6h-6l-1.8-5.6z",
};
const DASHES = { solid: "", dash: "6 3", dot: "1.5 2", dashdot: "6 2 1.5 2", longdash: "10 3", longdashdot: "10 2 1.5 2" };
const NAMES = { accuracy: "test accuracy", loss: "test loss", kept: "coordinates sent" };
const coarse = matchMedia("(pointer: coarse)").matches;
const HEIGHT = 300;
let printing = false;

const dark = () => !printing && (document.documentElement.dataset.theme ||
  (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
const colour = (arm) => arm.colour[dark() ? 1 : 0];
const faded = (hex, part) => hex + Math.round(255 * part).toString(16).padStart(2, "0");
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const cut = (text, most) => (text.length <= most ? text : text.slice(0, most - 1) + "…");
const wrapped = (name, most) => { // in two lines where it is longer
  const end = name.length > most ? name.lastIndexOf(" ", most) : -1;
  return (end < 0 ? [name] : [name.slice(0, end), name.slice(end + 1)]).map((line) => safe(cut(line, most))).join("<br>");
};
const safe = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;");

function bytes(count) {
  const power = Math.max(0, [1, 2, 3, 4].filter((p) => count >= 0.9995 * 1000 ** p).length);
  return `${Number((count / 1000 ** power).toPrecision(3))} ${["B", "kB", "MB", "GB", "TB"][power]}`;
}
const against = (arm, section) => `${arm.times < 0.95 ? `${times(1 / arm.times)} more` : `${times(arm.times)} less`} than ${safe(section.plain)}`;
const times = (ratio) => ratio.toLocaleString("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 }) + "x";
function value(measure, mean, std) {
  const digits = measure === "loss" ? 3 : measure === "kept" ? 1 : 2;
  const spread = std ? ` ± ${std.toFixed(digits)}` : "";
  return mean.toFixed(digits) + spread + (measure === "loss" ? "" : " %");
}

function layout(more) {
  const axis = { gridcolor: css("grid"), linecolor: css("muted"), tickcolor: css("muted"), zeroline: false, automargin: true };
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false, hovermode: "closest",
    margin: { l: 48, r: 12, t: 8, b: 42 }, dragmode: "zoom", hoverdistance: 40,
    font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: css("muted") },
    hoverlabel: { bgcolor: css("surface"), bordercolor: css("muted"), font: { color: css("ink"), size: 12.5 }, align: "left", namelength: -1 },
    ...more, xaxis: { ...axis, ...more.xaxis }, yaxis: { ...axis, ...more.yaxis },
  };
}
// Bytes on a log axis over a range of powers of ten; as many of its ticks have their number as there is room for.
function byteAxis(text, range, width) {
  const decade = (width - 70) / (range[1] - range[0]);
  const first = Math.floor(range[0]);
  const powers = Array.from({ length: Math.ceil(range[1]) - first + 1 }, (_, i) => first + i);
  const ticks = powers.flatMap((power) => [1, 2, 5].map((digit) => ({
    at: digit * 10 ** power, named: decade > 170 || (digit === 1 && power % Math.ceil(50 / decade) === 0),
  })));
  return {
    type: "log", range, tickvals: ticks.map((tick) => tick.at), ticktext: ticks.map((tick) => (tick.named ? bytes(tick.at) : "")),
    title: { text, standoff: 6, font: { size: 12 } },
  };
}
const widened = (values, share, least) => {
  const [low, high] = values.length ? [Math.min(...values), Math.max(...values)] : [0, 1];
  const room = share * Math.max(high - low, least);
  return [low - room, high + room];
};
const powersOf = (counts) => counts.filter((count) => count > 0).map(Math.log10);
const shown = (section) => section.arms.filter((arm) => arm.on);

function curves(section, width, { plot: measure }) {
  const against = section.against || "round";
  const data = [];
  const arms = shown(section);
  const together = against === "round" && arms.length <= 8;
  for (const arm of arms) {
    const { mean, std } = arm[measure];
    const x = against === "round" ? mean.map((_, t) => t + 1) : arm.sent;
    if (std) {
      const known = std.map((s, t) => t).filter((t) => std[t] !== null && mean[t] !== null);
      const low = known.map((t) => mean[t] - std[t]);
      const high = known.map((t) => mean[t] + std[t]);
      const along = known.map((t) => x[t]);
      data.push({
        x: [...along, ...along.slice().reverse()], y: [...high, ...low.reverse()], fill: "toself", mode: "lines",
        fillcolor: faded(colour(arm), 0.14), line: { width: 0 }, hoverinfo: "skip", name: arm.name,
      });
    }
    data.push({
      x, y: mean, name: arm.name, mode: "lines+markers", hovertemplate: "%{hovertext}<extra></extra>",
      hovertext: mean.map((m, t) => m === null ? "" : together
        ? `<b>${safe(cut(arm.name, 34))}</b> ${value(measure, m, std && std[t])}, ${bytes(arm.sent[t])}`
        : `<b>${safe(arm.name)}</b><br>round ${t + 1}<br>${NAMES[measure]} ${value(measure, m, std && std[t])}<br>${bytes(arm.sent[t])} sent`),
      line: { color: colour(arm), dash: DASHES[arm.dash].replaceAll(" ", "px,") + (DASHES[arm.dash] && "px"), width: 2 },
      marker: { symbol: arm.mark, size: 7, maxdisplayed: 7, color: colour(arm) },
    });
  }
  const flat = arms.flatMap((arm) => arm[measure].mean).filter((v) => v !== null && v > 0);
  const wide = measure === "loss" && Math.max(...flat) / Math.min(...flat) > 8;
  return [data, layout({
    hovermode: together ? "x unified" : "closest",
    xaxis: against === "round"
      ? { title: { text: "round", standoff: 6, font: { size: 12 } }, range: [0.5, section.rounds + 0.5], unifiedhovertitle: { text: "round %{x}" }, tickformat: "d", nticks: 8 }
      : byteAxis("upload per client so far (log scale)", widened(powersOf(arms.flatMap((arm) => arm.sent)), 0.04, 1), width),
    yaxis: measure === "loss" ? { type: wide ? "log" : "linear", tickformat: "~g", ...(wide ? { dtick: "D2" } : { nticks: 7 }) } : { ticksuffix: " %", nticks: 7, rangemode: measure === "kept" ? "tozero" : "normal" },
  })];
}

const error = (std, color, width) => (std ? { type: "data", array: [std], color: faded(color, 0.55), thickness: 1.4, width } : undefined);
function points(arms, section) {
  return arms.map((arm) => ({
    x: [arm.end.sent[0]], y: [arm.end.accuracy[0]], name: arm.name, mode: "markers", hovertemplate: "%{hovertext}<extra></extra>",
    hovertext: [`<b>${safe(arm.name)}</b><br>round ${arm.accuracy.mean.length}<br>test accuracy ${value("accuracy", ...arm.end.accuracy)}<br>${bytes(arm.end.sent[0])} sent, ${against(arm, section)}`],
    error_y: error(arm.end.accuracy[1], colour(arm), 3), error_x: error(arm.end.sent[1], colour(arm), 0),
    marker: { symbol: arm.mark + (arm.front ? "" : "-open"), size: 12, color: colour(arm), line: { width: arm.front ? 0 : 2, color: colour(arm) } },
  }));
}
// Each name where it is inside and meets no other name or mark; none where there is no such place, as the legend has it.
const SIDES = {
  "top center": [0, -1], "bottom center": [0, 1], "top right": [1, -1], "bottom right": [1, 1],
  "top left": [-1, -1], "bottom left": [-1, 1], "middle right": [1, 0], "middle left": [-1, 0],
};
function named(traces, arms, [low, high], [worst, best], width) {
  const [across, down] = [width - 70, HEIGHT - 54];
  const spots = arms.map(({ end }) => [
    across * (Math.log10(end.sent[0]) - low) / (high - low), down * (best - end.accuracy[0]) / (best - worst),
  ]);
  const taken = spots.map(([x, y]) => [x - 8, y - 8, x + 8, y + 8]);
  const meets = (a, b) => a[0] < b[2] && b[0] < a[2] && a[1] < b[3] && b[1] < a[3];
  return traces.map((trace, i) => {
    const lines = wrapped(arms[i].name, 22).split("<br>");
    const [half, tall] = [3 + 3.4 * Math.max(...lines.map((line) => line.length)), 7 * lines.length];
    for (const [textposition, [dx, dy]] of Object.entries(SIDES)) {
      const [x, y] = [spots[i][0] + dx * (half + 10), spots[i][1] + dy * (tall + 9)];
      const box = [x - half, y - tall, x + half, y + tall];
      if (box[0] < 0 || box[2] > across || box[1] < 0 || box[3] > down || taken.some((other) => meets(box, other))) continue;
      taken.push(box);
      return { ...trace, mode: "markers+text", text: [lines.join("<br>")], textposition, textfont: { color: css("ink"), size: 11 } };
    }
    return trace;
  });
}
function ends(section, width) {
  const arms = shown(section).filter(({ end }) => end.sent[0] > 0 && end.accuracy[0] !== null);
  arms.sort((a, b) => b.front - a.front || a.end.sent[0] - b.end.sent[0]); // the first have the choice of places
  const front = arms.filter((arm) => arm.front);
  const most = Math.max(...arms.map((arm) => arm.end.sent[0]));
  const stairs = {
    x: [...front.map((a) => a.end.sent[0]), most * 1.3], y: [...front.map((a) => a.end.accuracy[0]), front.at(-1)?.end.accuracy[0]],
    mode: "lines", line: { shape: "hv", color: css("muted"), width: 1 }, hoverinfo: "skip",
  };
  const sent = widened(powersOf(arms.map((arm) => arm.end.sent[0])), 0.16, 0.5);
  const reached = widened(arms.flatMap(({ end: { accuracy: [mean, std] } }) => [mean - (std || 0), mean + (std || 0)]), 0.14, 0.2);
  const spots = points(arms, section);
  return [[...(front.length ? [stairs] : []), ...(arms.length <= 8 ? named(spots, arms, sent, reached, width) : spots)], layout({
    xaxis: byteAxis("upload per client over the run (log scale)", sent, width),
    yaxis: { ticksuffix: " %", nticks: 7, range: reached },
  })];
}
function bars(section, width) {
  const arms = shown(section).sort((a, b) => a.times - b.times);
  const most = Math.max(1, ...arms.map((arm) => arm.times));
  const names = arms.map((arm) => wrapped(arm.name, width < 500 ? 20 : 32));
  const texts = arms.map((arm) => `${times(arm.times)}, ${bytes(arm.end.sent[0])}`);
  const long = (lines) => 7 * Math.max(0, ...lines.map((line) => line.length));
  const across = width - 16 - long(names.flatMap((name) => name.split("<br>")));
  return [[{
    type: "bar", orientation: "h", x: arms.map((arm) => arm.times), y: arms.map((arm) => arm.label), hovertemplate: "%{hovertext}<extra></extra>",
    hovertext: arms.map((arm) => `<b>${safe(arm.name)}</b><br>${against(arm, section)}<br>test accuracy ${value("accuracy", ...arm.end.accuracy)}<br>${bytes(arm.end.sent[0])} sent`),
    text: texts, textposition: "outside", cliponaxis: false, constraintext: "none",
    textfont: { color: css("ink") }, marker: { color: arms.map(colour) }, width: 0.66,
  }], layout({
    height: 64 + 30 * Math.max(2, arms.length), margin: { l: 8, r: 8, t: 8, b: 42 },
    xaxis: { range: [0, most * across / Math.max(across - long(texts) - 8, across / 3)], ticksuffix: "x", nticks: width < 500 ? 4 : 6, title: { text: `times less than ${safe(section.plain)} (linear)`, standoff: 6, font: { size: 12 } } },
    yaxis: { tickvals: arms.map((arm) => arm.label), ticktext: names.map((name) => name.replace("<br>", " <br>") + " "), tickfont: { color: css("ink") }, gridcolor: "rgba(0,0,0,0)", fixedrange: true },
  })];
}
function multiple(section, width, { number }) {
  const family = section.families[number];
  const own = family.arms.map((i) => section.arms[i]);
  const all = section.arms.map((arm) => arm.end);
  const best = Math.max(...all.map((end) => end.accuracy[0]));
  const worst = Math.min(...all.map((end) => end.accuracy[0]));
  const floor = Math.max(best - 2, worst - 0.2);
  const low = Math.min(...all.map((end) => end.sent[0]));
  const high = Math.max(...all.map((end) => end.sent[0]));
  const clip = (end) => Math.max(end.accuracy[0], floor);
  const others = { x: all.map((end) => end.sent[0]), y: all.map(clip), mode: "markers", hoverinfo: "skip", marker: { size: 5, color: css("muted"), opacity: 0.3 } };
  const line = { x: own.map((arm) => arm.end.sent[0]), y: own.map((arm) => clip(arm.end)), mode: "lines", hoverinfo: "skip", line: { color: colour(own[0]), width: 1.5 } };
  const spots = points(own, section).map((trace, i) => ({
    ...trace, y: [clip(own[i].end)], cliponaxis: false,
    marker: { ...trace.marker, symbol: own[i].end.accuracy[0] < floor ? "triangle-down-open" : own[i].mark, size: 9, line: { width: 1, color: colour(own[i]) } },
    error_y: own[i].end.accuracy[0] < floor ? undefined : trace.error_y,
  }));
  return [[others, line, ...spots], layout({
    height: 190, margin: { l: 40, r: 8, t: 4, b: 26 }, font: { size: 11, color: css("muted"), family: getComputedStyle(document.body).fontFamily },
    xaxis: byteAxis("", [Math.log10(low / 1.7), Math.log10(high * 1.7)], width),
    yaxis: { ticksuffix: " %", nticks: 4, range: [floor - 0.1, best + 0.35] },
  })];
}

function layers(section) {
  const { names, shares } = section.layers;
  return [names.map((name, i) => ({
    x: shares[i].map((_, t) => t + 1), y: shares[i], name, mode: "lines", line: { width: 1.4, color: css(`c${i % 10}`) },
    hovertemplate: `<b>${safe(name)}</b><br>round %{x}<br>%{y:.2f} %<extra></extra>`,
  })), layout({
    xaxis: { title: { text: "round", standoff: 6, font: { size: 12 } }, tickformat: "d", nticks: 8 },
    yaxis: { ticksuffix: " %", nticks: 7, rangemode: "tozero" },
  })];
}
function partition(section) {
  const { classes, counts } = section.partition;
  const clients = counts.map((_, client) => `client ${client}`);
  return [classes.map((name, i) => ({
    type: "bar", orientation: "h", name, y: clients, x: counts.map((row) => row[i]), marker: { color: css(`c${i % 10}`) },
    hovertemplate: `<b>%{y}</b><br>class ${safe(name)}: %{x}<extra></extra>`,
  })), layout({
    barmode: "stack", height: 110 + Math.min(900, 26 * clients.length), showlegend: classes.length <= 20,
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", traceorder: "normal" },
    xaxis: { title: { text: "training examples", standoff: 6, font: { size: 12 } }, nticks: 5 },
    yaxis: { autorange: "reversed", gridcolor: "rgba(0,0,0,0)", tickfont: { color: css("ink") } },
  })];
}

const DRAWN = { answer: ends, bytes: bars, multiple, layers, partition };
function draw(plot) {
  const section = sections[plot.dataset.section];
  const width = printing ? (plot.dataset.plot === "multiple" ? 160 : 325) : plot.clientWidth;
  const [data, look] = (DRAWN[plot.dataset.plot] || curves)(section, width, plot.dataset);
  look.width = width;
  look.height = look.height || HEIGHT;
  plot.style.minHeight = `${look.height}px`;
  const zoom = plot.dataset.zoom ? plot.dataset.zoom === "on" : !coarse;
  if (!zoom) Object.assign(look, { dragmode: false, xaxis: { ...look.xaxis, fixedrange: true }, yaxis: { ...look.yaxis, fixedrange: true } });
  Plotly.react(plot, data, look, { displayModeBar: false, doubleClick: "reset", scrollZoom: false });
  plot.dataset.drawn = width;
}
const plots = [...document.querySelectorAll("[data-plot]")];
const redraw = (which) => which.filter((plot) => plot.dataset.drawn).forEach(draw);
const near = new IntersectionObserver((seen) => seen.forEach((entry) => {
  if (entry.isIntersecting) { near.unobserve(entry.target); draw(entry.target); }
}), { rootMargin: "400px" });
plots.forEach((plot) => near.observe(plot));
new ResizeObserver(() => { if (!printing) redraw(plots.filter((plot) => +plot.dataset.drawn !== plot.clientWidth)); }).observe(document.body);
addEventListener("themechange", () => redraw(plots));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redraw(plots));
addEventListener("beforeprint", () => { printing = true; plots.forEach(draw); });
addEventListener("afterprint", () => { printing = false; plots.forEach(draw); });
