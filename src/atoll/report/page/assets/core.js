// Data, units and the theme. The scripts are joined in one function, in the order core, chart, curves, details, live.
let data = JSON.parse(byId("atoll-data").textContent);
let arrays = [];

function byId(id) { return document.getElementById(id); }

/** Make an element; text goes in as text, never as markup. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Return an array of the pool, stored as base64 of little-endian float32 and decoded on first use. */
function column(place) {
  if (place === undefined) return null;
  if (!arrays[place]) {
    const text = atob(data.columns[place]);
    const bytes = new Uint8Array(text.length);
    for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
    arrays[place] = new Float32Array(bytes.buffer);
  }
  return arrays[place];
}

function say(text) { byId("status").textContent = text; }

const TIMES = [[86400, "days"], [3600, "hours"], [60, "minutes"], [1, "seconds"]];
const SIZES = [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "B"]];

/** Choose the unit of an axis by its largest value: the factor to stored values, and the unit's name. */
function unitOf(kind, most) {
  if (kind === "seconds") { const u = TIMES.find(([size]) => most >= 2 * size) || TIMES[3]; return [1 / u[0], u[1]]; }
  if (kind === "bytes") { const u = SIZES.find(([size]) => most >= size) || SIZES[4]; return [1 / u[0], u[1]]; }
  return [1, ""];
}

const DASHES = ["solid", "dash", "dot", "dashdot"];
const SVG_DASHES = { solid: "", dash: "6 4", dot: "2 3", dashdot: "7 3 2 3" };
const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "cross", "x", "star"];
const seen = new Map();

/** Assign each label a colour, dashes and a marker for as long as the page is open. */
function styleOf(label) {
  if (!seen.has(label)) seen.set(label, seen.size);
  const index = seen.get(label);
  return { color: color(`--c${index % 12}`), dash: DASHES[index % 4], symbol: SYMBOLS[index % 7], index };
}

let colors = {};
function color(name) {
  return (colors[name] ||= getComputedStyle(document.documentElement).getPropertyValue(name).trim());
}

function faded(hex, alpha) {
  const [r, g, b] = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  return `rgba(${r},${g},${b},${alpha})`;
}

/** Draw figures when they come into view, so that a page with many opens quickly. */
const pending = new Map();
const sight = new IntersectionObserver((entries) => {
  // Each in its own task, so that the first is visible while the second is drawn.
  for (const { target, isIntersecting } of entries) if (isIntersecting) setTimeout(drawNow, 0, target);
}, { rootMargin: "300px" });

function drawNow(element) {
  const draw = pending.get(element);
  sight.unobserve(element);
  pending.delete(element);
  if (draw && element.isConnected) draw();
}

function drawInSight(element, draw) {
  pending.set(element, draw);
  sight.unobserve(element); // observing again reports at once whether it is in view
  sight.observe(element);
}

/** The theme: the reader's choice, else the system's. */
const dark = matchMedia("(prefers-color-scheme: dark)");
function remembered(value) {
  try {
    if (value !== undefined) localStorage.setItem("atoll-theme", value);
    return localStorage.getItem("atoll-theme");
  } catch { return null; } // local files may not be allowed storage
}
let chosen = remembered();
function isDark() { return chosen ? chosen === "dark" : dark.matches; }
function setTheme(isDarkNow = isDark()) {
  document.documentElement.dataset.theme = isDarkNow ? "dark" : "light";
  byId("theme").textContent = isDarkNow ? "Light mode" : "Dark mode"; // what it will do
  colors = {};
}
byId("theme").addEventListener("click", () => {
  chosen = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  remembered(chosen);
  setTheme();
  drawAll();
});
dark.addEventListener("change", () => { setTheme(); drawAll(); });
// Paper is white, and has all figures, including those not yet in view.
function drawForPaper() { setTheme(false); drawAll(); for (const element of [...pending.keys()]) drawNow(element); }
addEventListener("beforeprint", drawForPaper);
addEventListener("afterprint", () => { setTheme(); drawAll(); });
byId("theme").hidden = false;
setTheme();
