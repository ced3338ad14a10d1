// Charts as inline SVG: axes, marks, tooltips and zoom. A chart is redrawn whenever it changes.
//
// A chart is { key, x, y, marks } and optionally `equal` (one scale for both axes), `bar` (a colour scale: title and
// largest value), `legend` (entries with text and style), `rows()` (its data as a table, to be saved) and `title` (the
// name of saved files; by default the key). An axis has a `title`, a `domain` (by default that of the marks), and may be
// `log`, `reversed`, `zero` (begins at 0), `bare` (without grid lines), `whole`, or have its own `ticks`.
const charts = new WeakMap(); // what each element shows, and its zoom

/** Draw a chart into an element; the zoom is kept while the key is the same. */
function plot(element, chart) {
  const state = charts.get(element) || attach(element);
  if (state.chart?.key !== chart.key) state.x = state.y = null;
  state.chart = chart;
  render(element, state);
}

function clearPlots(container) {
  for (const element of container.querySelectorAll(".plot")) {
    sight.unobserve(element);
    pending.delete(element);
    charts.get(element)?.size.disconnect();
  }
  container.replaceChildren();
}

function zoomOut(element) {
  const state = charts.get(element);
  if (state) { state.x = state.y = null; render(element, state); }
}

const log10 = (value) => (value > 0 ? Math.log10(value) : NaN);

/** Maps values to pixels; `invert` maps back. */
function scaleOf(axis, [low, high], from, to) {
  const turn = axis.log ? log10 : Number;
  const [a, b] = [turn(low), turn(high)];
  const scale = (value) => from + ((turn(value) - a) / (b - a || 1)) * (to - from);
  scale.invert = (pixel) => { const v = a + ((pixel - from) / (to - from)) * (b - a); return axis.log ? 10 ** v : v; };
  return scale;
}

/** The domain of an axis: its own, or that of all marks with a small margin. */
function domainOf(axis, values) {
  if (axis.domain) return axis.domain;
  let low = Infinity, high = -Infinity;
  for (const value of values) if (Number.isFinite(value) && (!axis.log || value > 0)) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  if (low > high) return axis.log ? [0.1, 1] : [0, 1];
  if (axis.zero) low = Math.min(0, low);
  if (axis.log) return [low / 1.15, high * 1.15];
  const room = axis.tight ? 0 : 0.04 * (high - low) || Math.abs(high) * 0.05 || 0.5;
  return [axis.zero && low === 0 ? 0 : low - room, axis.tight && high > low ? high : high + room];
}

function* each(marks, names) { for (const mark of marks) for (const name of names) yield* mark[name] || []; }

function ticksOf(axis, [low, high], most) {
  if (axis.ticks) return axis.ticks.filter(({ at }) => at >= Math.min(low, high) && at <= Math.max(low, high));
  const found = axis.log ? logTicks(low, high) : evenTicks(Math.min(low, high), Math.max(low, high), most, axis.whole);
  return found.map((at) => ({ at, text: short(at) }));
}

function evenTicks(low, high, most, whole) {
  const rough = (high - low) / Math.max(most, 1), size = 10 ** Math.floor(Math.log10(rough || 1));
  let step = size * [1, 2, 5, 10].find((times) => times * size >= rough * 0.999);
  if (whole) step = Math.max(1, Math.round(step));
  const ticks = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) ticks.push(k * step);
  return ticks;
}

function logTicks(low, high) {
  const decades = Math.log10(high / low), times = decades < 1.2 ? [1, 2, 3, 5, 7] : decades < 3 ? [1, 2, 5] : [1];
  const skip = Math.ceil(decades / 8), ticks = [];
  for (let e = Math.floor(Math.log10(low)); e <= Math.log10(high); e++) {
    for (const t of times) if (e % skip === 0 && t * 10 ** e >= low && t * 10 ** e <= high) ticks.push(t * 10 ** e);
  }
  return ticks;
}

/** A number in short form: 20k, 1.5M, 0.001. */
function short(value, digits = 4) {
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (Math.abs(value) >= size) return Number((value / (unit === "k" ? 1e3 : size)).toPrecision(digits)) + unit;
  }
  return String(Number(value.toPrecision(digits)));
}

function drawing(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** A sample of a curve for a legend: its colour, dashes and marker. */
function sample(style) {
  const stroke = { stroke: style.color, "stroke-width": 2.4, "stroke-dasharray": SVG_DASHES[style.dash] };
  return [drawing("path", { d: "M1 7H33", fill: "none", ...stroke }), drawing("path", { d: SHAPES[style.symbol], fill: style.color })];
}

function swatch(style) {
  return drawing("svg", { width: 34, height: 14, viewBox: "0 0 34 14", "aria-hidden": "true" }, ...sample(style));
}
const SHAPES = {
  circle: "M13 7a4 4 0 1 0 8 0a4 4 0 1 0 -8 0", square: "M13.5 3.5h7v7h-7z", diamond: "M17 2l5 5l-5 5l-5-5z",
  "triangle-up": "M17 2.5l4.5 8h-9z", cross: "M15.5 3h3v2.5h2.5v3h-2.5v2.5h-3v-2.5h-2.5v-3h2.5z",
  x: "M13 4.5l1.5-1.5l2.5 2.5l2.5-2.5l1.5 1.5l-2.5 2.5l2.5 2.5l-1.5 1.5l-2.5-2.5l-2.5 2.5l-1.5-1.5l2.5-2.5z",
  star: "M17 2l1.5 3.4l3.6.3l-2.7 2.5l.8 3.6l-3.2-1.9l-3.2 1.9l.8-3.6l-2.7-2.5l3.6-.3z",
};

const tone = (index) => color(`--c${index % 12}`);
const indices = (count) => [...Array(count).keys()];

let drawnSoFar = 0;
function render(element, state) {
  const { chart } = state, width = Math.max(element.clientWidth, 160), height = Math.max(element.clientHeight, 120);
  const values = (axis, names) => domainOf(axis, each(chart.marks, names));
  const x = state.x || values(chart.x, ["x", "x0", "x1"]), y = state.y || values(chart.y, ["y", "y0", "y1"]);
  const up = ticksOf(chart.y, y, Math.max(2, height / 52));
  const letters = Math.max(0, ...up.map(({ text }) => String(text).length));
  const legend = legendRows(chart.legend || [], width);
  const box = {
    left: 12 + 6.8 * letters + (chart.y.title ? 18 : 0), right: width - (chart.bar ? 74 : 14),
    top: 8, bottom: height - (chart.x.title ? 42 : 24) - 20 * legend.length,
  };
  const [dx, dy] = chart.equal ? equalised(x, y, box) : [x, y];
  const reversed = chart.y.reversed !== undefined;
  const sx = scaleOf(chart.x, dx, box.left, box.right);
  const sy = scaleOf(chart.y, dy, ...(reversed ? [box.top, box.bottom] : [box.bottom, box.top]));
  const id = `clip${++drawnSoFar}`, font = getComputedStyle(document.body).fontFamily;
  const size = { // with room for half a marker at the edges
    x: box.left - 5, y: box.top - 5, width: Math.max(0, box.right - box.left) + 10, height: Math.max(0, box.bottom - box.top) + 10,
  };
  const inside = drawing("g", { "clip-path": `url(#${id})` });
  state.targets = [];
  for (const mark of chart.marks) MARKS[mark.type](inside, mark, sx, sy, state.targets);
  const svg = drawing("svg", {
    viewBox: `0 0 ${width} ${height}`, width, height, "font-family": font, "font-size": 12, "aria-hidden": "true",
    "data-x": dx.join(" "),
  }, drawing("clipPath", { id }, drawing("rect", size)), ...axisLines(chart, box, dx, up, sx, sy, width), inside,
  ...(chart.bar ? colorbar(chart.bar, box, width) : []), ...legendOf(legend, box.bottom + (chart.x.title ? 42 : 24)));
  Object.assign(state, { sx, sy, box, width });
  state.tip.hidden = true;
  element.replaceChildren(svg, state.tip);
}

/** Use one scale for both axes, whatever the element's shape. */
function equalised(x, y, box) {
  const perX = (x[1] - x[0]) / (box.right - box.left), perY = (y[1] - y[0]) / (box.bottom - box.top);
  const grown = ([low, high], by) => [(low + high) / 2 - ((high - low) / 2) * by, (low + high) / 2 + ((high - low) / 2) * by];
  return perX < perY ? [grown(x, perY / perX), y] : [x, grown(y, perX / perY)];
}

function writing(text, attributes) { return drawing("text", { fill: color("--quiet"), ...attributes }, String(text)); }

function axisLines(chart, box, dx, up, sx, sy, width) {
  const drawn = [], grid = { stroke: color("--line"), "stroke-width": 1 };
  const across = ticksOf(chart.x, dx, Math.max(2, (box.right - box.left) / 80));
  for (const { at, text } of across) {
    if (!chart.x.bare) drawn.push(drawing("path", { d: `M${sx(at)} ${box.top}V${box.bottom}`, ...grid }));
    drawn.push(writing(text, { x: sx(at), y: box.bottom + 16, "text-anchor": "middle" }));
  }
  for (const { at, text } of up) {
    if (!chart.y.bare) drawn.push(drawing("path", { d: `M${box.left} ${sy(at)}H${box.right}`, ...grid }));
    drawn.push(writing(text, { x: box.left - 6, y: sy(at) + 4, "text-anchor": "end" }));
  }
  const middle = { x: (box.left + box.right) / 2, y: (box.top + box.bottom) / 2 };
  if (chart.x.title) drawn.push(writing(chart.x.title, { class: "x-title", x: middle.x, y: box.bottom + 35, "text-anchor": "middle" }));
  if (chart.y.title) {
    drawn.push(writing(chart.y.title, { transform: `translate(13 ${middle.y}) rotate(-90)`, "text-anchor": "middle" }));
  }
  return drawn;
}

function colorbar({ title, most }, box, width) {
  const steps = 24, tall = (box.bottom - box.top) / steps, left = box.right + 12;
  const drawn = indices(steps).map((k) => drawing("rect", {
    x: left, y: box.bottom - (k + 1) * tall, width: 10, height: tall + 0.5, fill: shade(k / (steps - 1)),
  }));
  const names = [0, most / 2, most].map((share, k) => writing(`${short(100 * share, 2)} %`, {
    x: left + 14, y: box.bottom - (k / 2) * (box.bottom - box.top) + (k === 2 ? 9 : 0), "font-size": 11,
  }));
  const place = `translate(${width - 4} ${(box.top + box.bottom) / 2}) rotate(-90)`;
  return [...drawn, ...names, writing(title, { transform: place, "text-anchor": "middle", "font-size": 11 })];
}

function legendRows(entries, width) {
  const rows = [];
  let room = 0;
  for (const entry of entries) {
    const wide = 52 + 7 * entry.text.length;
    if (room < wide || !rows.length) { rows.push([]); room = width - 20; }
    rows.at(-1).push({ ...entry, at: width - 10 - room });
    room -= wide;
  }
  return rows;
}

function legendOf(rows, top) {
  return rows.flatMap((row, r) => row.map(({ text, style, at }) => drawing("g", { transform: `translate(${at} ${top + 20 * r})` },
    ...sample(style), writing(text, { x: 40, y: 11 }))));
}

/** Interpolate between the colours of the smallest and the largest share. */
function shade(share) {
  const [low, high] = ["--low", "--high"].map((name) => [1, 3, 5].map((at) => parseInt(color(name).slice(at, at + 2), 16)));
  return `rgb(${low.map((from, k) => Math.round(from + (high[k] - from) * Math.min(1, Math.max(0, share)))).join(",")})`;
}

const symbolAt = (symbol, x, y, size, attributes) =>
  drawing("path", { d: SHAPES[symbol], transform: `translate(${x} ${y}) scale(${size / 8}) translate(-17 -7)`, ...attributes });

function stroke(xs, ys) {
  let path = "", joined = false;
  xs.forEach((x, i) => {
    const known = Number.isFinite(x) && Number.isFinite(ys[i]);
    if (known) path += `${joined ? "L" : "M"}${x.toFixed(1)} ${ys[i].toFixed(1)}`;
    joined = known;
  });
  return path;
}

/** How each kind of mark is drawn; marks with a `tip` show it when the pointer is near. */
const MARKS = {
  line(into, mark, sx, sy, targets) {
    const xs = mark.x.map(sx), ys = mark.y.map(sy), kind = mark.quiet ? "quiet" : "curve";
    if (mark.x.length > 1) into.append(drawing("path", {
      class: kind, "data-name": mark.name || "", d: stroke(xs, ys), fill: "none", stroke: mark.color,
      "stroke-width": mark.width || 2.2, "stroke-dasharray": SVG_DASHES[mark.dash || "solid"], "stroke-linejoin": "round",
    }));
    const gap = Math.max(1, Math.ceil(xs.length / 8));
    if (mark.symbol) xs.forEach((x, i) => {
      if (i % gap === 0 && Number.isFinite(ys[i])) into.append(symbolAt(mark.symbol, x, ys[i], 7, { fill: mark.color }));
    });
    if (mark.tip) targets.push({ xs, ys, tip: mark.tip });
  },
  area(into, mark, sx, sy) {
    const xs = mark.x.map(sx), there = stroke(xs, mark.y0.map(sy)), back = stroke([...xs].reverse(), mark.y1.map(sy).reverse());
    into.append(drawing("path", { d: `${there}${back.replace("M", "L")}Z`, fill: mark.fill }));
  },
  rects(into, mark, sx, sy, targets) {
    const boxes = Array.from(mark.x0, (x0, i) => {
      const [left, right] = [sx(x0), sx(mark.x1[i])], [top, bottom] = [sy(mark.y0[i]), sy(mark.y1[i])].sort((a, b) => a - b);
      return [left, top, Math.max(right - left, mark.least || 0), bottom - top];
    });
    boxes.forEach(([x, y, width, height], i) => into.append(drawing("rect", {
      x, y, width, height, fill: mark.fills ? mark.fills[i] : mark.fill, ...(mark.edge ? { stroke: mark.edge, "stroke-width": 1 } : {}),
    })));
    if (mark.texts) boxes.forEach(([x, y, width, height], i) => into.append(writing(mark.texts[i], {
      x: x + width / 2, y: y + height / 2 + 4, "text-anchor": "middle", fill: mark.inks[i],
    })));
    if (mark.tip) targets.push({ boxes, tip: mark.tip });
  },
  dots(into, mark, sx, sy, targets) {
    const xs = Array.from(mark.x, (value) => sx(value)), ys = Array.from(mark.y, (value) => sy(value));
    xs.forEach((x, i) => into.append(symbolAt(mark.symbols[i], x, ys[i], mark.size, {
      fill: mark.fills[i], stroke: mark.edges[i], "stroke-width": (8 * (mark.edge || 0.5)) / mark.size,
    })));
    if (mark.texts) xs.forEach((x, i) => into.append(writing(mark.texts[i], {
      x, y: ys[i] + 3.5, "text-anchor": "middle", "font-size": 10, fill: mark.inks[i],
    })));
    targets.push({ xs, ys, tip: mark.tip });
  },
  spokes(into, mark, sx, sy) {
    const path = Array.from(mark.x0, (x, i) => `M${sx(x).toFixed(1)} ${sy(mark.y0[i]).toFixed(1)}L${sx(mark.x1[i]).toFixed(1)} ${sy(mark.y1[i]).toFixed(1)}`);
    into.append(drawing("path", { d: path.join(""), stroke: mark.color, "stroke-width": 0.8, fill: "none" }));
  },
};

/** The tip under the pointer: of the box it is in, or of the nearest point within 24 pixels. */
function under(targets, px, py) {
  let best = null, nearest = 24 ** 2;
  for (const { xs, ys, boxes, tip } of targets) {
    if (boxes) boxes.forEach(([x, y, width, height], i) => {
      if (px >= x && px <= x + Math.max(width, 2) && py >= y && py <= y + height) best = () => tip(i);
    });
    else for (let i = 0; i < xs.length; i++) {
      const far = (xs[i] - px) ** 2 + (ys[i] - py) ** 2;
      if (far < nearest) { nearest = far; best = () => tip(i); }
    }
  }
  return best ? best() : null;
}

/** Give an element a chart's behaviour: tooltips, zoom by dragging, and resizing. */
function attach(element) {
  const state = { tip: make("div", { class: "tip", hidden: "" }), size: new ResizeObserver(() => {
    if (state.chart && state.width !== Math.max(element.clientWidth, 160)) render(element, state);
  }) };
  charts.set(element, state);
  state.size.observe(element);
  let from = null, frame = null;
  const at = (event) => { const box = element.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
  element.addEventListener("pointerdown", (event) => {
    if (event.button || event.pointerType === "touch") return; // a finger scrolls the page
    from = at(event);
    element.setPointerCapture(event.pointerId);
    event.preventDefault();
  });
  element.addEventListener("pointermove", (event) => {
    const [px, py] = at(event);
    if (!from) return tell(state, under(state.targets, px, py), px, py);
    frame?.remove();
    const size = { x: Math.min(from[0], px), y: Math.min(from[1], py), width: Math.abs(px - from[0]), height: Math.abs(py - from[1]) };
    frame = drawing("rect", { ...chosenPart(size, state.box), fill: faded(color("--c0"), 0.15), stroke: color("--c0") });
    element.querySelector("svg").append(frame);
  });
  element.addEventListener("pointerup", (event) => {
    const [px, py] = at(event), began = from;
    from = null;
    frame?.remove();
    if (!began) return;
    const [dx, dy] = [Math.abs(px - began[0]), Math.abs(py - began[1])];
    if (dx > 10) state.x = [began[0], px].sort((a, b) => a - b).map(state.sx.invert);
    if (dy > 25) state.y = [began[1], py].map(state.sy.invert).sort((a, b) => a - b);
    if (dx > 10 || dy > 25) render(element, state);
  });
  element.addEventListener("pointerleave", () => { state.tip.hidden = true; });
  element.addEventListener("dblclick", () => zoomOut(element));
  return state;
}

/** The whole height if the reader drags sideways, the whole width if vertically. */
function chosenPart({ x, y, width, height }, box) {
  const across = width > 10 || height <= 25, upwards = height > 25;
  return {
    x: across ? x : box.left, width: across ? width : box.right - box.left,
    y: upwards ? y : box.top, height: upwards ? height : box.bottom - box.top,
  };
}

function tell(state, lines, px, py) {
  state.tip.hidden = !lines;
  if (!lines) return;
  state.tip.replaceChildren(...lines.map((line) => make("div", {}, line)));
  state.tip.style.top = `${py + 14}px`;
  const right = px > state.width / 2;
  Object.assign(state.tip.style, right ? { right: `${state.width - px + 10}px`, left: "" } : { left: `${px + 12}px`, right: "" });
}

/** Buttons that save a chart as a file; its data are `rows`, the first of which has the column names. */
function saveButtons(element) {
  return Object.entries(SAVES).map(([kind, save]) => {
    const button = make("button", { type: "button", "data-kind": kind }, kind);
    button.onclick = () => {
      drawNow(element);
      const { chart } = charts.get(element);
      save(element, chart, (chart.title || chart.key).toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "") || "figure");
    };
    return button;
  });
}

/** Tell screen readers which chart these buttons belong to. */
function nameButtons(container, title) {
  for (const button of container.querySelectorAll("button[data-kind]")) {
    button.setAttribute("aria-label", `Save as ${button.dataset.kind}: ${title}`);
  }
}

const SAVES = {
  PNG(element, chart, name) {
    const [text, width, height] = svgOf(element), image = new Image();
    image.onload = () => {
      const canvas = make("canvas", { width: 2 * width, height: 2 * height });
      canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
      canvas.toBlob((blob) => handOver(blob, `${name}.png`));
    };
    image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  },
  SVG(element, chart, name) { handOver(new Blob([svgOf(element)[0]], { type: "image/svg+xml" }), `${name}.svg`); },
  CSV(element, chart, name) {
    const text = chart.rows().map((row) => `${row.map(cellOf).join(",")}\r\n`).join("");
    handOver(new Blob([text], { type: "text/csv;charset=utf-8" }), `${name}.csv`);
  },
};

/** Return a chart as a file, on the page's background colour, and its size. */
function svgOf(element) {
  const svg = element.querySelector("svg").cloneNode(true), [width, height] = ["width", "height"].map((n) => Number(svg.getAttribute(n)));
  svg.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  svg.prepend(drawing("rect", { width, height, fill: color("--paper") }));
  return [new XMLSerializer().serializeToString(svg), width, height];
}

/** Return a number with the digits the page holds, or a text that spreadsheets do not read as a formula. */
function cellOf(value) {
  if (typeof value === "number") return Number.isFinite(value) ? String(Number(value.toPrecision(7))) : "";
  const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

function handOver(blob, name) {
  const link = make("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}
