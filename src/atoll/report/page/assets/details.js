// One run in detail: its schedule, clusters and data, and learned cluster assignments.
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
  byId("shown-run").textContent = own ? `: ${detail}` : "";
  byId("detail-note").textContent = own ? own.missing : "";
  byId("ids-label").hidden = !own?.figures.some((figure) => figure.kind === "map");
  if (!own) return;
  [...byId("detail-charts").querySelectorAll("figure")].forEach((figure, index) => {
    const told = own.figures[index];
    figure.querySelector("h3").textContent = told.title;
    figure.querySelector(".note").textContent = told.note || "";
    const element = figure.querySelector(".plot");
    element.setAttribute("aria-label", told.alt);
    drawInSight(element, () => DRAW[told.kind](element, told));
  });
}

const BROAD = new Set(["gantt"]);
function buildFigures(own) {
  clearPlots(byId("detail-charts"));
  const figures = (own ? own.figures : []).map((told) => {
    const surface = make("div", { class: "plot", role: "img" }), style = BROAD.has(told.kind) ? { class: "broad" } : {};
    const caption = make("figcaption", {}, make("h3"), make("span", {}, ...saveButtons(surface)));
    nameButtons(caption, told.title);
    return make("figure", style, caption, surface, make("p", { class: "note" }));
  });
  byId("detail-charts").append(...figures);
}

const percent = (share) => `${(100 * share).toFixed(1)} %`;

/** Ticks of things counted from 0: all if they fit, else every second, fifth, ... */
function counted(count, most, names) {
  const step = [1, 2, 5, 10, 20, 50, 100].find((by) => count <= by * most) || count;
  return indices(count).filter((i) => i % step === 0).map((i) => ({ at: i, text: names ? names[i] : i }));
}

/** Rows of a table stored flat in the pool. */
function rowsOf(place, width) {
  const flat = column(place), rows = [];
  for (let at = 0; at < flat.length; at += width) rows.push(Array.from(flat.subarray(at, at + width)));
  return rows;
}

function transposed(rows) { return rows[0].map((_, j) => rows.map((row) => row[j])); }

function tall(element, pixels) { element.style.height = `${Math.max(180, Math.min(pixels, 620))}px`; }

function drawGantt(element, told) {
  const [began, ended, done] = [told.began, told.ended, told.done].map(column), rows = Array.from(column(told.cluster));
  const last = ended.reduce((a, b) => Math.max(a, b), 0), [factor, unit] = unitOf("seconds", last);
  const worked = Array.from(done || ended), at = (seconds) => seconds * factor;
  const y0 = rows.map((row) => row - 0.37), y1 = rows.map((row) => row + 0.37);
  const tip = (i) => [`Cluster ${rows[i]}`, `${short(at(began[i]))} to ${short(at(worked[i]))} ${unit}`,
    ...(ended[i] > worked[i] ? [`waiting until ${short(at(ended[i]))} ${unit}`] : [])];
  const marks = [{
    type: "rects", x0: Array.from(began, at), x1: worked.map(at), y0, y1, tip, least: 1, // keeps seconds in a day visible
    fills: Array.from(column(told.turn), (turn) => (turn ? tone(0) : faded(tone(0), 0.45))),
  }];
  const waits = indices(rows.length).filter((i) => ended[i] > worked[i]);
  const of = (values) => waits.map((i) => values[i]);
  if (waits.length) marks.push({
    type: "rects", x0: of(worked).map(at), x1: of(ended).map(at), y0: of(y0), y1: of(y1), tip: (k) => tip(waits[k]),
    fill: color("--line"),
  });
  tall(element, 90 + 22 * told.clusters);
  const y = { title: "Cluster", domain: [-0.6, told.clusters - 0.4], reversed: true, bare: true, ticks: counted(told.clusters, 20) };
  const table = () => [["cluster", "began_seconds", "worked_until_seconds", "ended_seconds"],
    ...rows.map((row, i) => [row, began[i], worked[i], ended[i]])];
  plot(element, { key: told.title, x: { title: `Virtual time (${unit})`, zero: true, tight: true }, y, marks, rows: table });
}

/** A row for each planted group, split at every round by the models that its clients take. */
function drawBands(element, told) {
  const [, groups, models] = told.shape, rounds = Array.from(column(told.rounds));
  const shares = rowsOf(told.shares, groups * models), marks = [];
  for (let g = 0; g < groups; g++) {
    let floor = rounds.map(() => g + 0.43);
    for (let m = 0; m < models; m++) {
      const top = floor.map((low, probe) => low - 0.86 * shares[probe][g * models + m]);
      if (top.some((value, probe) => value < floor[probe])) marks.push({ type: "area", x: rounds, y0: floor, y1: top, fill: tone(m) });
      floor = top;
    }
  }
  tall(element, 110 + 44 * groups);
  const ticks = groups > 1 ? counted(groups, 20, told.groups) : [];
  const y = { title: groups > 1 ? "Planted group" : "", domain: [-0.5, groups - 0.5], reversed: true, bare: true, ticks };
  const rows = () => [["round", "group", "model", "share"], ...rounds.flatMap((round, probe) =>
    shares[probe].map((share, k) => [round, told.groups[Math.floor(k / models)], k % models, share]))];
  plot(element, { key: told.title, x: { title: "Rounds", tight: true, whole: true, bare: true }, y, marks, rows });
}

/** A table of cells, `rows` downwards, each coloured by its share; the largest share is the darkest. */
function heat(rows, tip, texts) {
  const x0 = [], x1 = [], y0 = [], y1 = [], shares = rows.flat(), most = Math.max(...shares) || 1;
  rows.forEach((row, i) => row.forEach((_, j) => { x0.push(j - 0.5); x1.push(j + 0.5); y0.push(i - 0.5); y1.push(i + 0.5); }));
  const width = rows[0].length, inks = shares.map((share) => color(share > 0.55 * most ? "--paper" : "--ink"));
  const cells = {
    type: "rects", x0, x1, y0, y1, texts, inks, fills: shares.map((share) => shade(share / most)),
    edge: width <= 60 ? color("--paper") : "", tip: (k) => tip(Math.floor(k / width), k % width, shares[k]),
  };
  return [cells, most];
}

const cellsAcross = (title, count, names) => ({ title, domain: [-0.5, count - 0.5], bare: true, ticks: counted(count, 20, names) });
const cellsDown = (title, count, names) => ({ ...cellsAcross(title, count, names), reversed: true });

function drawConfusion(element, told) {
  const [groups, models] = told.shape, counts = rowsOf(told.counts, models);
  const shares = counts.map((row) => row.map((count) => count / Math.max(1, row.reduce((a, b) => a + b))));
  const tip = (g, m) => [`Group ${told.groups[g]}, model ${m}: ${counts[g][m]} clients`];
  const [cells, most] = heat(shares, tip, groups <= 12 && models <= 12 ? counts.flat() : null);
  tall(element, 110 + 44 * groups);
  const axes = { x: cellsAcross("Model", models), y: cellsDown("Planted group", groups, told.groups) };
  const rows = () => [["group", "model", "clients"], ...counts.flatMap((row, g) => row.map((count, m) => [told.groups[g], m, count]))];
  plot(element, { rows, key: told.title, ...axes, marks: [cells], bar: { title: "share of the group", most } });
}

function drawModels(element, told) {
  const rounds = Array.from(column(told.rounds)), styles = indices(told.shape[1]).map((m) => ({
    color: tone(m), dash: DASHES[m % 4], symbol: SYMBOLS[m % 7],
  }));
  const marks = transposed(rowsOf(told.values, told.shape[1])).map((values, m) => {
    const known = indices(rounds.length).filter((i) => Number.isFinite(values[i]));
    const x = known.map((i) => rounds[i]), y = known.map((i) => 100 * values[i]);
    return { type: "line", ...styles[m], width: 1.8, x, y, tip: (i) => [`Model ${m}`, `round ${x[i]}`, `${y[i].toFixed(1)} %`] };
  });
  const legend = styles.map((style, m) => ({ text: `Model ${m}`, style }));
  const x = { title: "Rounds", tight: true, whole: true };
  const rows = () => [["model", "round", "test_accuracy"], ...marks.flatMap((mark, m) => mark.x.map((round, i) => [m, round, mark.y[i] / 100]))];
  plot(element, { rows, key: told.title, x, y: { title: "Test accuracy (%)" }, marks, legend });
}

/** Clients in ascending order, against the share of clients with at most that value. */
function drawClients(element, told) {
  const factor = told.share ? 100 : 1, y = Array.from(column(told.values), (value) => factor * value);
  const unit = told.share ? " %" : "", last = Math.max(y.length - 1, 1), x = y.map((_, i) => (100 * i) / last);
  const share = (i) => (i + 1) / y.length;
  const tip = (i) => [`${(100 * share(i)).toFixed(0)} % of clients have at most`, short(y[i], 3) + unit];
  const curve = { type: "line", x, y, color: tone(0), width: 1.8, symbol: y.length > 1 ? "" : "circle", tip };
  const mean = { type: "line", quiet: true, x: [0, 100], y: [factor * told.mean, factor * told.mean], color: color("--quiet"), width: 1.4, dash: "dash" };
  const axes = { x: { title: "Clients (%), in ascending order", domain: [0, 100] }, y: { title: told.column + (told.share ? " (%)" : "") } };
  const rows = () => [["share_of_clients", told.column], ...y.map((value, i) => [share(i), value / factor])];
  plot(element, { rows, key: told.title, ...axes, marks: [curve, mean] });
}

function drawMap(element, told) {
  const [x, y] = told.clients.map(column), [ax, ay] = told.aggregators.map(column);
  const owners = Array.from(column(told.owner)), ids = column(told.ids), sizes = Array.from(column(told.sizes));
  const look = (j) => (j < 0 ? color("--edge") : tone(told.color[j])), many = sizes.length > 25;
  const form = (j) => (j < 0 ? "x" : SYMBOLS[told.marker[j]]), paper = color("--paper"), ink = color("--ink");
  const tied = indices(owners.length).filter((i) => owners[i] >= 0);
  const marks = [{
    type: "spokes", color: faded(color("--edge"), 0.5), x0: tied.map((i) => x[i]), y0: tied.map((i) => y[i]),
    x1: tied.map((i) => ax[owners[i]]), y1: tied.map((i) => ay[owners[i]]),
  }, {
    type: "dots", x, y, size: x.length > 500 ? 4 : 7, symbols: owners.map(form), fills: owners.map(look),
    edges: owners.map(() => paper), tip: (i) => [`Client ${ids[i]}`, owners[i] < 0 ? "left out" : `of aggregator ${owners[i]}`],
  }, {
    type: "dots", x: ax, y: ay, size: many ? 13 : 20, edge: 1.5, symbols: sizes.map((_, j) => form(j)),
    fills: sizes.map((size, j) => (size ? look(j) : paper)), edges: sizes.map((size, j) => (size ? ink : look(j))),
    texts: many ? null : sizes.map((_, j) => j), inks: sizes.map((size) => (size ? paper : ink)),
    tip: (j) => [`Aggregator ${j}`, `${sizes[j]} clients`],
  }];
  if (byId("ids").checked) Object.assign(marks[1], { texts: Array.from(ids), inks: owners.map(() => ink) });
  if (told.server) marks.push({
    type: "dots", x: [told.server[0]], y: [told.server[1]], size: 17, symbols: ["star"], fills: [ink], edges: [paper], tip: () => ["Server"],
  });
  const rows = () => [["kind", "number", "x_metres", "y_metres", "aggregator"],
    ...indices(x.length).map((i) => ["client", ids[i], x[i], y[i], owners[i]]),
    ...indices(ax.length).map((j) => ["aggregator", j, ax[j], ay[j], j]),
    ...(told.server ? [["server", NaN, ...told.server, NaN]] : [])];
  tall(element, 440);
  plot(element, { rows, key: told.title, equal: true, x: { title: "x (metres)" }, y: { title: "y (metres)" }, marks });
}

function drawClusters(element, told) {
  const [clusters, classes] = told.shape, rows = transposed(rowsOf(told.shares, classes)), sizes = column(told.sizes);
  const [cells, most] = heat(rows, (k, j, share) => [`Cluster ${j}: ${sizes[j]} clients`, `class ${k}: ${percent(share)}`]);
  tall(element, 160 + 16 * classes);
  const isWide = element.clientWidth > 60 * clusters + 120; // wide enough for sizes too
  const named = indices(clusters).map((j) => (isWide ? `${j} (${sizes[j]})` : j));
  const axes = { x: cellsAcross(isWide ? "Cluster (number of clients)" : "Cluster", clusters, named), y: cellsDown("Class", classes) };
  const table = () => [["cluster", "clients", "class", "share"], ...rows.flatMap((shares, k) => shares.map((share, j) => [j, sizes[j], k, share]))];
  plot(element, { rows: table, key: told.title, ...axes, marks: [cells], bar: { title: "share of samples", most } });
}

function drawShares(element, told) {
  const [, classes] = told.shape, clients = Array.from(column(told.clients));
  const shares = rowsOf(told.shares, classes);
  const rows = () => [["client", "class", "share"], ...shares.flatMap((own, i) => own.map((share, k) => [clients[i], k, share]))];
  const [cells, most] = heat(transposed(shares), (k, i, share) => [`Client ${clients[i]}`, `class ${k}: ${percent(share)}`]);
  tall(element, 160 + 16 * classes);
  const axes = { x: { ...cellsAcross("Client", clients.length), ticks: counted(clients.length, 12, clients) }, y: cellsDown("Class", classes) };
  plot(element, { rows, key: told.title, ...axes, marks: [cells], bar: { title: "share of samples", most } });
}

const DRAW = {
  gantt: drawGantt, bands: drawBands, confusion: drawConfusion, models: drawModels, map: drawMap, clusters: drawClusters,
  shares: drawShares, clients: drawClients,
};

byId("ids").addEventListener("change", drawDetail);
byId("run").addEventListener("change", (event) => {
  detail = event.target.value;
  drawDetail();
  say(`The figures show ${detail}.`);
});

byId("same-label").hidden = false;
byId("same").addEventListener("change", (event) => {
  byId("settings").classList.toggle("differing", !event.target.checked);
});
