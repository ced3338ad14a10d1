// Start, and on a watched page refresh: new rows appear, the reader's choices stay.
function drawAll() {
  if (data.curves.quantities.length) { buildLegend(); drawCurves(); }
  drawDetail();
}

function begin() {
  byId("curves").hidden = byId("curves-app").hidden = !data.curves.quantities.length;
  byId("detail").hidden = byId("detail-app").hidden = !data.details.length;
  for (const id of ["targets", "settings"]) byId(id).hidden = !byId(`${id}-body`).childElementCount;
  buildControls();
  buildDetail();
  buildBaseline();
  drawAll();
}

/** Replace tables that have changed, keeping their scroll positions. */
function swap(id, html) {
  const element = byId(id);
  if (element.dataset.html === html) return;
  const scrolled = [...element.querySelectorAll(".scroll")];
  const places = scrolled.map((region) => region.scrollLeft), focus = scrolled.indexOf(document.activeElement);
  element.innerHTML = html; // escaped by the server; the page's policy forbids other scripts and requests
  element.dataset.html = html;
  [...element.querySelectorAll(".scroll")].forEach((region, i) => {
    region.scrollLeft = places[i] || 0;
    if (i === focus) region.focus({ preventScroll: true });
  });
}

let tag = "", failures = 0;
async function refresh() {
  try {
    const answer = await fetch("state", { headers: tag ? { "If-None-Match": tag } : {}, cache: "no-store" });
    if (answer.status === 200) { tag = answer.headers.get("ETag"); show(await answer.json()); }
    else if (answer.status !== 304) throw new Error(String(answer.status));
    if (failures > 1) say("The connection is back.");
    failures = 0;
    byId("fresh").textContent = `Live · updated ${new Date().toLocaleTimeString()}`;
  } catch {
    if (++failures === 2) say("atoll watch is not answering; retrying.");
    if (failures > 1) byId("fresh").textContent = "Not live: atoll watch is not answering; retrying.";
  }
}

function show(state) {
  const before = data.state;
  data = state.data;
  arrays = [];
  for (const [id, html] of Object.entries(state.sections)) swap(id, html);
  byId("notices").hidden = !state.sections["notices-body"];
  byId("title").textContent = document.title = state.title;
  byId("summary").textContent = state.summary;
  if (before !== data.state) say(state.summary); // runs started or finished; new rows are not announced
  begin();
}

async function keepWatching() {
  for (;;) {
    if (!document.hidden) await refresh();
    await new Promise((done) => setTimeout(done, failures ? 5000 : 2000));
  }
}

begin();
if (data.live) {
  byId("fresh").hidden = false;
  document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
  keepWatching();
}
