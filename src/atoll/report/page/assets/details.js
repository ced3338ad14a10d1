// One run in detail: its schedule, clusters and data, and the clusters that its clients find.
let detail = "";

function buildDetail() {
  const titles = data.details.map((d) => ({ column: d.title, title: d.title }));
  if (!titles.some((t) => t.title === detail)) detail = titles.length ? titles[0].title : "";
  fill(byId("run"), titles, detail);
}

let drawn = "";
function drawDetail() {
  const own = data.details.find((d) => d.title === detail);
  const signature = own ? JSON.stringify([own.title, own.figures.map((f) => [f.kind, f.clusters])]) : "";
  if (signature !== drawn) { drawn = signature; buildFigures(own); }
  byId("detail-note").textContent = own ? own.missing : "";
  if (!own) return;
  [...byId("detail-charts").querySelectorAll("figure")].forEach((figure, index) => {
    const told = own.figures[index];
    figure.querySelector("h3").textContent = told.title;
    figure.querySelector(".note").textContent = told.note;
    const element = figure.querySelector(".plot");
    element.setAttribute("aria-label", told.alt);
    drawInSight(element, () => DRAW[told.kind](element, told));
  });
}

const BROAD = new Set(["gantt"]);
function buildFigures(own) {
  clearPlots(byId("detail-charts"));
  byId("detail-charts").append(...(own ? own.figures : []).map((told) =>
    make("figure", BROAD.has(told.kind) ? { class: "broad" } : {}, make("h3"), make("div", { class: "plot", role: "img" }), make("p", { class: "note" }))));
}

const shades = () => [[0, color("--low")], [1, color("--high")]];
const tone = (index) => color(`--c${index % 7}`);
const colorbar = (text) => ({ thickness: 10, outlinewidth: 0, tickformat: ".0%", title: { text, side: "right", font: { size: 12, color: color("--quiet") } } });

/** Rows of a table that the pool holds flat. */
function rowsOf(place, width) {
  const flat = column(place), rows = [];
  for (let at = 0; at < flat.length; at += width) rows.push(Array.from(flat.subarray(at, at + width)));
  return rows;
}

function transposed(rows) { return rows[0].map((_, j) => rows.map((row) => row[j])); }

function tall(element, pixels) { element.style.height = `${Math.max(180, Math.min(pixels, 620))}px`; }

const DRAW = {
  gantt(element, told) {
    const [factor, unit] = unitOf("seconds", Math.max(...column(told.ended)));
    const began = column(told.began), ended = column(told.ended), turn = column(told.turn);
    const shortest = 0.002 * Math.max(...ended); // seconds of work in a day would not be seen
    tall(element, 90 + 22 * told.clusters);
    plot(element, [{ type: "bar", orientation: "h", y: Array.from(column(told.cluster)), base: Array.from(began, (s) => s * factor),
      x: Array.from(ended, (s, i) => Math.max(s - began[i], shortest) * factor), width: 0.74,
      marker: { color: Array.from(turn, (t) => (t ? color("--c0") : faded(color("--c0"), 0.45))), line: { width: 0 } },
      customdata: Array.from(ended, (s) => s * factor),
      hovertemplate: `Cluster %{y}<br>%{base:.4~r} to %{customdata:.4~r} ${unit}<extra></extra>` }],
      layoutOf({ title: `Virtual time (${unit})`, zeroline: false },
        { title: "Cluster", range: [told.clusters - 0.4, -0.6], showgrid: false, zeroline: false, tickformat: "d", ...(told.clusters < 13 ? { dtick: 1 } : {}) }, { barmode: "overlay", uirevision: told.title }));
  },
  bands(element, told) {
    const [, groups, models] = told.shape, rounds = Array.from(column(told.rounds));
    const shares = rowsOf(told.shares, groups * models), traces = [];
    tall(element, 110 + 44 * groups);
    for (let g = 0; g < groups; g++) {
      let floor = rounds.map(() => -g - 0.43);
      for (let m = 0; m < models; m++) {
        const top = floor.map((low, p) => low + 0.86 * shares[p][g * models + m]);
        if (top.some((value, p) => value > floor[p])) traces.push({ type: "scatter", mode: "lines", x: rounds.concat([...rounds].reverse()), y: top.concat([...floor].reverse()),
          fill: "toself", fillcolor: tone(m), line: { width: 0, color: tone(m) }, hoveron: "fills", text: `Group ${g}, model ${m}`, hoverinfo: "text" });
        floor = top;
      }
    }
    const step = Math.ceil(groups / 20), names = [...Array(groups).keys()].filter((g) => g % step === 0);
    plot(element, traces, layoutOf({ title: "Rounds", showgrid: false, zeroline: false },
      { title: groups > 1 ? "Planted group" : "", range: [0.5 - groups, 0.5], tickvals: groups > 1 ? names.map((g) => -g) : [], ticktext: names, showgrid: false, zeroline: false }, { uirevision: told.title }));
  },
  confusion(element, told) {
    const [groups, models] = told.shape, counts = rowsOf(told.counts, models);
    tall(element, 110 + 44 * groups);
    const written = groups <= 12 && models <= 12;
    plot(element, [{ type: "heatmap", z: counts.map((row) => row.map((n) => n / Math.max(1, row.reduce((a, b) => a + b)))), zmin: 0, zmax: 1, colorscale: shades(),
      xgap: 2, ygap: 2, colorbar: colorbar("share of the group"), text: counts, texttemplate: written ? "%{text}" : "",
      hovertemplate: "Group %{y}, model %{x}: %{text} clients<extra></extra>" }],
      layoutOf({ title: "Model", showgrid: false, tickformat: "d", ...(models < 21 ? { dtick: 1 } : {}) }, { title: "Planted group", autorange: "reversed", showgrid: false, tickformat: "d", ...(groups < 21 ? { dtick: 1 } : {}) }));
  },
  models(element, told) {
    const rows = rowsOf(told.values, told.shape[1]), rounds = Array.from(column(told.rounds));
    plot(element, transposed(rows).map((values, m) => ({ type: "scatter", mode: "lines+markers", x: rounds, y: values.map((v) => 100 * v), connectgaps: true, name: `Model ${m}`,
      line: { color: tone(m), width: 1.8, dash: DASHES[m % 4] }, marker: { symbol: SYMBOLS[m % 7], size: 7, maxdisplayed: 6 }, hovertemplate: `Model ${m}<br>round %{x}<br><b>%{y:.1f} %</b><extra></extra>` })),
      layoutOf({ title: "Rounds", zeroline: false }, { title: "Test accuracy (%)", zeroline: false }, { showlegend: true, legend: { orientation: "h", y: -0.22 }, uirevision: told.title }));
  },
  map(element, told) {
    const [x, y] = told.clients.map(column), [ax, ay] = told.aggregators.map(column), owner = column(told.owner), sizes = column(told.sizes);
    const spokes = { type: "scatter", mode: "lines", x: [], y: [], hoverinfo: "skip", line: { color: faded(color("--edge"), 0.5), width: 0.8 } };
    for (let i = 0; i < x.length; i++) if (owner[i] >= 0) { spokes.x.push(x[i], ax[owner[i]], null); spokes.y.push(y[i], ay[owner[i]], null); }
    const look = (j) => (j < 0 ? color("--edge") : tone(told.color[j])), form = (j) => (j < 0 ? "x-thin-open" : SYMBOLS[told.marker[j]]);
    const size = x.length > 500 ? 4 : 7, owners = Array.from(owner);
    const clients = { type: "scatter", mode: "markers", x, y, text: owners.map((j) => (j < 0 ? "left out" : `client of aggregator ${j}`)), hoverinfo: "text",
      marker: { size, color: owners.map(look), symbol: owners.map(form), line: { width: 0.5, color: color("--paper") } } };
    const all = Array.from(sizes, (_, j) => j);
    const aggregators = { type: "scatter", mode: all.length > 25 ? "markers" : "markers+text", x: ax, y: ay, hovertext: all.map((j) => `aggregator ${j}: ${sizes[j]} clients`), hoverinfo: "text",
      text: all.map(String), textfont: { size: 10, color: all.map((j) => (sizes[j] ? color("--paper") : color("--ink"))) },
      marker: { size: 20, symbol: all.map(form), color: all.map((j) => (sizes[j] ? look(j) : color("--paper"))), line: { width: 1.5, color: all.map((j) => (sizes[j] ? color("--ink") : look(j))) } } };
    const traces = [spokes, clients, aggregators];
    if (told.server) traces.push({ type: "scatter", mode: "markers", x: [told.server[0]], y: [told.server[1]], text: ["server"], hoverinfo: "text", marker: { symbol: "star", size: 17, color: color("--ink"), line: { width: 1, color: color("--paper") } } });
    tall(element, 440);
    plot(element, traces, layoutOf({ title: "x (metres)", zeroline: false, scaleanchor: "y", constrain: "domain" }, { title: "y (metres)", zeroline: false, constrain: "domain" }, { uirevision: told.title }));
  },
  clusters(element, told) {
    const [clusters, classes] = told.shape, places = [...Array(clusters).keys()];
    tall(element, 260 + 16 * classes);
    const heat = { type: "heatmap", x: places, z: transposed(rowsOf(told.shares, classes)), zmin: 0, zmax: 1, colorscale: shades(), xgap: 1, ygap: 1, colorbar: { ...colorbar("share of samples"), len: 0.66, y: 0.33 },
      hovertemplate: "Cluster %{x}, class %{y}: %{z:.1%}<extra></extra>" };
    const bars = { type: "bar", x: places, y: column(told.sizes), yaxis: "y2", marker: { color: color("--c0") }, width: 0.74, hovertemplate: "Cluster %{x}: %{y} clients<extra></extra>" };
    const layout = layoutOf({ title: "Cluster", showgrid: false, zeroline: false, ...(clusters < 21 ? { dtick: 1 } : {}) }, { title: "Class", domain: [0, 0.66], showgrid: false, autorange: "reversed", ...(classes < 13 ? { dtick: 1 } : {}) });
    layout.yaxis2 = { ...layout.yaxis, title: { ...layout.yaxis.title, text: "Clients" }, domain: [0.72, 1], showgrid: true, autorange: true, dtick: undefined, rangemode: "tozero" };
    plot(element, [heat, bars], layout);
  },
  shares(element, told) {
    const [, classes] = told.shape, places = Array.from(column(told.clients));
    tall(element, 260 + 16 * classes);
    plot(element, [{ type: "heatmap", x: places.map((_, i) => i), customdata: Array(classes).fill(places), z: transposed(rowsOf(told.shares, classes)), zmin: 0, zmax: 1, colorscale: shades(), colorbar: colorbar("share of samples"),
      hovertemplate: "Client %{customdata}, class %{y}: %{z:.1%}<extra></extra>" }],
      layoutOf({ title: "Client", showgrid: false, zeroline: false, tickvals: places.map((_, i) => i).filter((i) => i % Math.ceil(places.length / 10) === 0), ticktext: places.filter((_, i) => i % Math.ceil(places.length / 10) === 0) },
        { title: "Class", showgrid: false, autorange: "reversed", ...(classes < 13 ? { dtick: 1 } : {}) }));
  },
};

byId("run").addEventListener("change", (event) => { detail = event.target.value; drawDetail(); say(`The figures show ${detail}.`); });
