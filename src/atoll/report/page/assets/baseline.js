// The baseline: speed-ups and differences are relative to the setting that the reader chooses.
let baseline = "";

function buildBaseline() {
  const labels = data.curves.labels;
  byId("baseline-label").hidden = labels.length < 2;
  if (!labels.includes(baseline)) baseline = data.compared.baseline;
  fill(byId("baseline"), labels.map((label) => ({ column: label, title: label })), baseline);
  compareAll();
}

function compareAll() {
  for (const body of byId("targets-body").querySelectorAll("tbody")) {
    const rows = [...body.rows].filter((row) => row.cells.length > 1);
    const base = rows.find((row) => row.cells[0].textContent === baseline) || rows[0];
    for (const row of rows) [...row.cells].forEach((cell, i) => showSpeedUp(cell, base.cells[i], row === base));
  }
  const bodies = byId("results-body").querySelector("table")?.tBodies || [];
  data.compared.differences.forEach((all, panel) => {
    const found = all[Math.max(0, data.compared.labels[panel].indexOf(baseline))];
    [...bodies[panel].querySelectorAll("td.difference")].forEach((cell, i) => {
      const [text, p] = found[i] || ["–", ""]; // of many settings, only to the first baseline
      cell.replaceChildren(text, ...(p ? [make("small", {}, p)] : []));
    });
  });
}

/** Costs that all seeds have carry their mean; others keep their note of how many reached the target. */
function showSpeedUp(cell, base, isBase) {
  if (cell.dataset.value === undefined) return;
  cell.querySelector("small")?.remove();
  cell.classList.remove("faster", "slower");
  const own = Number(cell.dataset.value), ratio = Math.round(100 * Number(base.dataset.value) / own) / 100;
  if (cell.dataset.clock !== base.dataset.clock) return; // not comparable
  if (isBase || base.dataset.value === undefined || !own) return;
  if (ratio !== 1) cell.classList.add(ratio > 1 ? "faster" : "slower");
  cell.append(make("small", {}, `${ratio < 10 ? ratio.toFixed(2) : Math.round(ratio).toLocaleString("en")}×`));
}

byId("baseline").addEventListener("change", (event) => {
  baseline = event.target.value;
  compareAll();
  say(`All settings are compared with ${baseline}.`);
});
