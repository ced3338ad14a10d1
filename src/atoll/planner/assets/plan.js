// A plan's page: curves of what raced, and the map and first events of the plan that the sliders choose.
const wanted = { ...data.plans[0].values };
const chosenPlan = () => data.plans.find((plan) => data.axes.every(({ name }) => plan.values[name] === wanted[name]));
const tall = (element, pixels) => { element.style.height = `${Math.max(180, Math.min(pixels, 620))}px`; };

/** A slider where an axis has numbers, else a list. */
function buildAxes() {
  for (const { name, title, texts } of data.axes) {
    if (texts.length < 2) continue;
    const isNumber = texts.every((text) => Number.isFinite(Number(text))), id = `axis-${name}`;
    if (isNumber) texts.sort((one, other) => one - other);
    const input = isNumber
      ? make("input", { type: "range", id, min: 0, max: texts.length - 1, step: 1, value: texts.indexOf(wanted[name]) })
      : make("select", { id }, ...texts.map((text) => make("option", { value: text }, text)));
    if (!isNumber) input.value = wanted[name];
    const said = make("output", { for: id }, isNumber ? wanted[name] : "");
    if (isNumber) input.setAttribute("aria-valuetext", wanted[name]);
    input.addEventListener("input", () => {
      wanted[name] = isNumber ? texts[Number(input.value)] : input.value;
      if (isNumber) { said.textContent = wanted[name]; input.setAttribute("aria-valuetext", wanted[name]); }
      drawAll();
    });
    byId("axes").append(make("span", { class: "field" }, make("label", { for: id }, title), input, said));
  }
}

function drawAll() {
  const plan = chosenPlan();
  drawInSight(byId("curves"), () => drawCurves(plan));
  const key = data.axes.map(({ name }) => wanted[name]).join("\n");
  byId("shown").textContent = plan ? `${plan.place}. ${plan.title}: ${plan.judged}` : data.dropped[key] || "There is no such plan.";
  byId("map").parentElement.hidden = byId("gantt").parentElement.hidden = !plan;
  if (!plan) return;
  drawInSight(byId("map"), () => drawMap(plan));
  drawInSight(byId("gantt"), () => drawGantt(plan));
}

function drawCurves(plan) {
  const kind = byId("against").value, share = data.isShare ? 100 : 1;
  const most = Math.max(1e-9, ...data.plans.flatMap(({ curve }) => curve[kind]));
  const known = { joules: [1e-3, "kJ"], price: [1, ""] }[kind];
  const [factor, unit] = known || unitOf(kind === "time" ? "seconds" : "bytes", most);
  const marks = data.plans.filter(({ curve }) => curve.level.length).map((each) => {
    const { color, dash } = styleOf(each.title), x = each.curve[kind].map((v) => v * factor), y = each.curve.level.map((v) => v * share);
    return { type: "line", name: each.title, x, y, color, dash, width: each === plan ? 4 : 1.8,
      tip: (i) => [each.title, `${short(x[i], 3)} ${unit}`, `${short(y[i], 3)}${data.isShare ? " %" : ""}`] };
  });
  if (data.target !== null) marks.push({ type: "line", quiet: true, color: color("--quiet"), dash: "dash", width: 1.2, x: [0, most * factor], y: [data.target * share, data.target * share] });
  const legend = data.plans.map(({ title }) => ({ text: title, style: styleOf(title) }));
  tall(byId("curves"), 340 + 20 * legend.length);
  const title = { time: "Virtual time", bytes: "Sent", joules: "Energy", price: "Price" }[kind] + (unit && ` (${unit})`);
  plot(byId("curves"), { key: kind, x: { title, zero: true, tight: true }, y: { title: data.measured }, marks, legend });
}

const name = (kind, i) => (data.names[kind] ? data.names[kind][i] : i);
const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

function drawMap(plan) {
  const { x, y, ax, ay, server, links, classes, placed } = data.network, kind = byId("colour").value, n = x.length;
  const called = data.names.aggregators && ax.length <= 25 ? ` ${data.names.aggregators.map((each, j) => `${j} is ${each}`).join(", ")}.` : "";
  byId("map-note").textContent = `${n ? NOTES[kind] + called : ""} ${data.network.why}`;
  byId("map").hidden = !n;
  if (!n) return;
  const most = Math.max(...plan.seconds) || 1, own = plan.owner, paper = color("--paper"), ink = color("--ink");
  const fill = { cluster: (i) => (own[i] < 0 ? color("--edge") : tone(own[i])), class: (i) => tone(classes[i]), seconds: (i) => shade(plan.seconds[i] / most) }[kind];
  const form = { cluster: (i) => SYMBOLS[Math.max(own[i], 0) % 7], class: (i) => SYMBOLS[classes[i] % 7], seconds: () => "circle" }[kind];
  const tied = indices(n).filter((i) => own[i] >= 0), sizes = ax.map((_, j) => own.filter((k) => k === j).length);
  const spokes = (style, pairs) => ({ type: "spokes", color: style, x0: pairs.map((p) => p[0]), y0: pairs.map((p) => p[1]), x1: pairs.map((p) => p[2]), y1: pairs.map((p) => p[3]) });
  const backbone = plan.hasServer && server ? ax.map((_, j) => [ax[j], ay[j], ...server]) : links.map(([a, b]) => [ax[a], ay[a], ax[b], ay[b]]);
  const marks = [
    spokes(faded(color("--edge"), 0.5), tied.map((i) => [x[i], y[i], ax[own[i]], ay[own[i]]])), spokes(color("--quiet"), backbone),
    { type: "dots", x, y, size: n > 500 ? 4 : 7, symbols: indices(n).map(form), fills: indices(n).map(fill), edges: indices(n).map(() => (kind === "seconds" ? ink : paper)),
      tip: (i) => [`Client ${name("clients", i)}`, own[i] < 0 ? "left out" : `of aggregator ${name("aggregators", own[i])}`, `${short(plan.seconds[i], 3)} s`, `mostly class ${classes[i]}`] },
    { type: "dots", x: ax, y: ay, size: ax.length > 25 ? 13 : 20, edge: 1.5, symbols: ax.map(() => "square"), fills: sizes.map((size) => (size ? ink : paper)),
      edges: ax.map(() => ink), texts: ax.length > 25 ? null : ax.map((_, j) => j), inks: sizes.map((size) => (size ? paper : ink)), tip: (j) => [`Aggregator ${name("aggregators", j)}`, `${sizes[j]} clients`] },
  ];
  if (plan.hasServer && server) marks.push({ type: "dots", x: [server[0]], y: [server[1]], size: 17, symbols: ["star"], fills: [ink], edges: [paper], tip: () => ["Server"] });
  tall(byId("map"), 440);
  plot(byId("map"), { key: "map", equal: true, x: { title: placed ? "x (metres)" : "", bare: !placed, ticks: placed ? undefined : [] }, y: { title: placed ? "y (metres)" : "", bare: !placed, ticks: placed ? undefined : [] }, marks });
}

const NOTES = {
  cluster: "Clients have their aggregator's colour; lines between aggregators are links.",
  class: "Clients have the colour of the class that they have most of: a cluster of one colour is badly mixed.",
  seconds: "The darker a client, the longer its training and its upload take.",
};

function drawGantt(plan) {
  const { cluster, began, done, ended, turn } = plan.bars, [factor, unit] = unitOf("seconds", Math.max(...ended));
  const times = (values) => values.map((v) => v * factor), y0 = cluster.map((j) => j - 0.37), y1 = cluster.map((j) => j + 0.37);
  const tip = (i) => [`Cluster ${name("aggregators", cluster[i])}`, `${short(began[i] * factor, 3)} to ${short(done[i] * factor, 3)} ${unit}`];
  const marks = [
    { type: "rects", x0: times(done), x1: times(ended), y0, y1, fill: color("--line") },
    { type: "rects", x0: times(began), x1: times(done), y0, y1, tip, least: 1, fills: turn.map((t) => (t % 2 ? faded(tone(0), 0.45) : tone(0))) },
  ];
  tall(byId("gantt"), 90 + 22 * plan.clusters);
  const step = [1, 2, 5, 10, 20, 50, 100].find((by) => plan.clusters <= by * 20) || plan.clusters;
  const ticks = indices(plan.clusters).filter((j) => j % step === 0).map((at) => ({ at, text: data.names.aggregators ? cut(`${at} ${name("aggregators", at)}`, 10) : `${at}` }));
  const down = { title: "Cluster", domain: [-0.6, plan.clusters - 0.4], reversed: true, bare: true, ticks };
  plot(byId("gantt"), { key: plan.title, x: { title: `Virtual time (${unit})`, zero: true, tight: true }, y: down, marks });
}

for (const kind of ["joules", "price"]) if (!data.plans.some(({ curve }) => curve[kind].length)) byId("against").querySelector(`[value=${kind}]`).remove();
for (const id of ["against", "colour"]) byId(id).addEventListener("change", drawAll);
buildAxes();
drawAll();
