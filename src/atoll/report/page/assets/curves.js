// Curves: three lists choose what is shown, the legend's buttons which curves.
const view = { x: "", y: [], log: null, band: "interval", hidden: new Set() };

function fill(select, options, value) {
  const isSame = (option, i) => select.options[i].value === option.column && select.options[i].text === option.title;
  // An open list stays open.
  if (select.options.length !== options.length || !options.every(isSame)) select.replaceChildren(...options.map((o) => make("option", { value: o.column }, o.title)));
  select.value = value;
}

function quantity(name) { return data.curves.quantities.find((q) => q.column === name); }

/** Keep the reader's choice while it exists; else start with accuracy beside training loss. */
function settleView() {
  const names = data.curves.quantities.map((q) => q.column);
  const preferred = [
    ["test_accuracy", "mean_cluster_accuracy", "train_loss"],
    ["train_loss", "parameter_error", "ari", "test_loss"],
  ];
  preferred.forEach((wanted, i) => {
    const isFree = (name) => names.includes(name) && name !== view.y[0];
    if (!names.includes(view.y[i])) view.y[i] = wanted.find(isFree) || names[0];
  });
  if (names.length > 1 && view.y[0] === view.y[1]) view.y[1] = names.find((name) => name !== view.y[0]);
}

function buildControls() {
  settleView();
  if (!view.chosen) view.x = data.curves.lead;
  fill(byId("x"), data.curves.axes, view.x);
  [0, 1].forEach((i) => fill(byId(`y${i}`), data.curves.quantities, view.y[i]));
  if (view.log === null) view.log = spansDecades("train_loss");
  byId("log").checked = view.log;
  const hasSeeds = data.curves.panels.some((panel) => panel.groups.some((group) => group.runs.length > 1));
  byId("band-label").hidden = byId("seeds-note").hidden = !hasSeeds;
}

/** All values of a column in a panel's runs. */
function* valuesOf(panel, name) {
  for (const group of panel.groups) for (const run of group.runs) yield* column(run[name]) || [];
}

/** Whether a column has values below 0, which a logarithmic axis leaves out. */
function isSigned(panel, name) {
  for (const value of valuesOf(panel, name)) if (value < 0) return true;
  return false;
}

function isLog(panel, y) { return view.log && !y.share && !isSigned(panel, y.column); }

function spansDecades(name) {
  let low = Infinity, high = 0;
  for (const panel of data.curves.panels) {
    if (isSigned(panel, name)) return false;
    for (const value of valuesOf(panel, name)) {
      if (value > 0) { low = Math.min(low, value); high = Math.max(high, value); }
    }
  }
  return high > 30 * low;
}

function buildLegend() {
  const list = byId("legend");
  const buttons = new Map([...list.querySelectorAll("button")].map((button) => [button.dataset.label, button]));
  list.replaceChildren(...data.curves.labels.map((label) => {
    const button = buttons.get(label) || make("button", { type: "button", "data-label": label });
    button.replaceChildren(swatch(styleOf(label)), label);
    button.setAttribute("aria-pressed", !view.hidden.has(label));
    button.onclick = () => toggle([label], view.hidden.has(label));
    return make("li", {}, button);
  }));
}

function toggle(labels, isShown) {
  for (const label of labels) isShown ? view.hidden.delete(label) : view.hidden.add(label);
  for (const button of byId("legend").querySelectorAll("button"))
    button.setAttribute("aria-pressed", !view.hidden.has(button.dataset.label));
  drawCurves();
}

/** The finite points of a run: round, x and y. */
function points(run, y) {
  const rounds = column(run.round), xs = column(run[view.x]), ys = column(run[y.column]);
  const found = { round: [], x: [], y: [] };
  if (!xs || !ys) return found;
  for (let i = 0; i < ys.length; i++) if (Number.isFinite(xs[i]) && Number.isFinite(ys[i])) {
    found.round.push(rounds ? rounds[i] : i);
    found.x.push(xs[i]);
    found.y.push(y.share ? 100 * ys[i] : ys[i]);
  }
  return found;
}

/** The mean over seeds and the edges of its band, at the rounds that all seeds have. */
function meanOf(runs, share) {
  const at = runs.map((run) => new Map(run.round.map((round, i) => [round, i])));
  const mean = { x: [], y: [], low: [], high: [] };
  for (const round of runs[0].round) {
    const places = at.map((map) => map.get(round));
    if (places.includes(undefined)) continue;
    const ys = runs.map((run, k) => run.y[places[k]]);
    const middle = ys.reduce((sum, y) => sum + y, 0) / ys.length;
    mean.x.push(runs.reduce((sum, run, k) => sum + run.x[places[k]], 0) / ys.length);
    mean.y.push(middle);
    const std = ys.length > 1 ? Math.sqrt(ys.reduce((sum, y) => sum + (y - middle) ** 2, 0) / (ys.length - 1)) : 0;
    const half = view.band === "spread" ? std : std * (data.curves.t[ys.length] || 0) / Math.sqrt(ys.length);
    mean.low.push(ys.every((y) => y >= 0) ? Math.max(0, middle - half) : middle - half);
    mean.high.push(share ? Math.min(100, middle + half) : middle + half);
  }
  return mean;
}

/** Vertical lines where the clients' data change, as high as the curves. */
function changesOf(panel, y, factor) {
  const run = panel.groups[0].runs[0], rounds = column(run.round) || [], xs = column(run[view.x]) || [];
  const known = [...valuesOf(panel, y.column)].filter(Number.isFinite).map((value) => (y.share ? 100 * value : value));
  const ends = known.length ? [known.reduce((a, b) => Math.min(a, b)), known.reduce((a, b) => Math.max(a, b))] : [];
  const places = panel.changes.map((round) => xs[rounds.findLastIndex((each) => each <= round)]);
  const style = { type: "line", quiet: true, color: color("--quiet"), width: 1, dash: "dot" };
  return places.map((x) => ({ ...style, x: ends.map(() => x * factor), y: ends }));
}

/** Return the marks of a panel, and its description for screen readers. */
function marksOf(panel, y, factor, unit) {
  const marks = changesOf(panel, y, factor), told = [];
  for (const group of panel.groups) {
    const label = data.curves.labels[group.style];
    if (view.hidden.has(label)) continue;
    const style = styleOf(label);
    const runs = group.runs.map((run) => points(run, y));
    const counted = group.done.includes(true) ? runs.filter((_, i) => group.done[i]) : runs;
    const mean = runs.length > 1 ? meanOf(counted, y.share) : runs[0];
    const scaled = (xs) => xs.map((x) => x * factor);
    const x = scaled(mean.x);
    if (runs.length > 1 && view.band !== "none") {
      const bottom = !isLog(panel, y) ? mean.low : mean.low.map((v, i) => Math.max(v, mean.y[i] / 100)); // log: none below 0
      marks.push({ type: "area", x, y0: bottom, y1: mean.high, fill: faded(style.color, panel.groups.length > 4 ? 0.1 : 0.16) });
    }
    if (runs.length > 1 && panel.groups.length <= 3) {
      const thin = { type: "line", quiet: true, color: faded(style.color, 0.35), width: 1 };
      for (const run of runs) marks.push({ ...thin, x: scaled(run.x), y: run.y });
    }
    const written = (value) => (y.share ? `${value.toFixed(2)} %` : short(value));
    marks.push({
      type: "line", name: label, x, y: mean.y, color: style.color, dash: style.dash, symbol: style.symbol,
      tip: (i) => [label, `${short(x[i])} ${unit}`, written(mean.y[i])],
    });
    if (mean.y.length) told.push(`${label}: ${summary(mean.y, y)}`);
  }
  return [marks, told];
}

function summary(values, y) {
  const write = (value) => y.share ? `${value.toFixed(1)} %` : value.toPrecision(3);
  const best = values.reduce((a, b) => (y.share ? Math.max(a, b) : Math.min(a, b)));
  const extreme = `${y.share ? "highest" : "lowest"} ${write(best)}`;
  return `from ${write(values[0])} to ${write(values[values.length - 1])}, ${extreme}`;
}

/** The stored data of the visible curves, run by run. */
function curveRows(panel, name) {
  const own = [...new Set(["round", view.x, name])], rows = [["label", "run", ...own]];
  for (const group of panel.groups) {
    const label = data.curves.labels[group.style];
    if (view.hidden.has(label)) continue;
    group.runs.forEach((run, number) => {
      const columns = own.map((each) => column(run[each]));
      indices(column(run[name])?.length || 0).forEach((i) => rows.push([label, number, ...columns.map((values) => values?.[i] ?? NaN)]));
    });
  }
  return rows;
}

let shape = "";
function drawCurves() {
  const slots = view.y[0] === view.y[1] ? [0] : [0, 1];
  const signature = JSON.stringify([data.curves.panels.map((panel) => panel.title), slots]);
  if (signature !== shape) { shape = signature; buildCharts(slots); }
  for (const element of byId("charts").querySelectorAll(".plot")) {
    const [panel, slot] = element.dataset.place.split(" ").map(Number);
    drawInSight(element, () => drawCurve(element, data.curves.panels[panel], slot));
  }
}

function buildCharts(slots) {
  clearPlots(byId("charts"));
  byId("charts").append(...data.curves.panels.map((panel, index) => {
    const figures = slots.map((slot) => {
      const element = make("div", { class: "plot", role: "img", "data-place": `${index} ${slot}` });
      const reset = make("button", { type: "button" }, "Zoom out");
      reset.onclick = () => zoomOut(element);
      const heading = make(panel.title ? "h4" : "h3");
      return make("figure", {}, make("figcaption", {}, heading, make("span", {}, reset, " ", ...saveButtons(element))), element);
    });
    const pair = make("div", { class: "pair" }, ...figures);
    return make("div", { class: "panel" }, ...(panel.title ? [make("h3", {}, panel.title)] : []), pair);
  }));
}

function drawCurve(element, panel, slot) {
  const y = quantity(view.y[slot]), axis = data.curves.axes.find((a) => a.column === view.x);
  if (!y) return;
  let most = 0;
  for (const x of valuesOf(panel, view.x)) if (x > most) most = x;
  const [factor, unit] = unitOf(axis.kind, most);
  const title = axis.title + (unit ? ` (${unit})` : "");
  const [marks, told] = marksOf(panel, y, factor, unit || axis.title.toLowerCase());
  const where = panel.title ? `, ${panel.title}` : "";
  const what = `${y.title} against ${axis.title.toLowerCase()}${where}`;
  element.setAttribute("aria-label", `${what}. ${told.join("; ") || "No curve is shown."}`);
  const figure = element.closest("figure");
  figure.querySelector("h3, h4").textContent = y.title + (y.share ? " (%)" : "");
  figure.querySelector("button").setAttribute("aria-label", `Zoom out: ${y.title}${where}`);
  nameButtons(figure, y.title + where);
  const log = isLog(panel, y);
  const across = { title, zero: true, tight: true, whole: axis.kind === "count" };
  plot(element, { key: `${view.x} ${y.column} ${log}`, x: across, y: { log }, marks, title: what, rows: () => curveRows(panel, y.column) }); // the zoom stays as long
}

function told() {
  const names = [...new Set(view.y)].map((name) => quantity(name)?.title).join(" and ");
  say(`The curves show ${names} against ${data.curves.axes.find((a) => a.column === view.x).title}.`);
}
byId("x").addEventListener("change", (event) => { view.x = event.target.value; view.chosen = true; drawCurves(); told(); });
[0, 1].forEach((i) => byId(`y${i}`).addEventListener("change", (event) => {
  view.y[i] = event.target.value;
  drawCurves();
  told();
}));
byId("log").addEventListener("change", (event) => { view.log = event.target.checked; drawCurves(); });
byId("band").addEventListener("change", (event) => { view.band = event.target.value; drawCurves(); });
byId("all").addEventListener("click", () => { toggle(data.curves.labels, true); say("All curves are shown."); });
byId("none").addEventListener("click", () => { toggle(data.curves.labels, false); say("All curves are hidden."); });
