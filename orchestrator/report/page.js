"use strict";
// Draws the charts with Vega-Embed, fills the tables, and applies the filters to both. All texts become text nodes or are
// drawn; none becomes markup.
const page = JSON.parse(document.getElementById("data").textContent);
const datasets = Object.fromEntries(Object.entries(page.data).map(([name, columns]) => [name, rowsOf(columns)]));
const menus = [...document.querySelectorAll("#filters select")];
const dark = matchMedia("(prefers-color-scheme: dark)");
const touch = matchMedia("(pointer: coarse)");
const tip = document.getElementById("tip");
const MOST_FIGURES = 10;  // under the pointer
const MOST_TIPS = 8;  // of marks that hide one another
const MOST_ROWS = 200;  // of a table; filters and sorting choose which
let chosen = null;  // labels of the cells that the filters leave; null: all

function rowsOf(columns) {
  const lists = Object.entries(columns).map(([name, list]) => [name, list.places?.map((place) => list.texts[place]) ?? list]);
  return (lists[0]?.[1] ?? []).map((_, row) => Object.fromEntries(lists.map(([name, list]) => [name, list[row]])));
}

// The text of a cell under the pointer: its row of the table, without the note.
datasets.cells.forEach((row, index) => {
  const { columns, rows } = page.tables.cells;
  const figures = (rows[index] ?? []).map((text, column) => text && `${columns[column][0]}: ${text}`);
  row.tip = [row.cell, ...figures.slice(1, MOST_FIGURES)].filter(Boolean).join("\n");
});

function showTip(_handler, event, _item, text) {
  if (!text) return tellAt(0, 0, "");
  // A mark may hide others: all under the pointer are listed, several in short.
  const under = document.elementsFromPoint(event.clientX, event.clientY).map((element) => element.__data__?.datum?.tip);
  const texts = [...new Set([text, ...under].filter(Boolean))];
  const short = texts.slice(0, MOST_TIPS).map((one) => one.split("\n").slice(0, 5).join(" · "));
  const more = texts.length > MOST_TIPS ? [`${texts.length - MOST_TIPS} more points`] : [];
  tellAt(event.clientX, event.clientY, texts.length < 2 ? text : [...short, ...more].join("\n"));
}

function tellAt(x, y, text) {
  tip.hidden = !text;
  if (!text) return;
  tip.textContent = text;
  tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - tip.offsetWidth - 8))}px`;
  tip.style.top = `${y + 16 + tip.offsetHeight > innerHeight ? y - tip.offsetHeight - 10 : y + 16}px`;
}

// The points of a focused chart by the arrow keys, from left to right.
function step(figure, event) {
  const direction = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  if (event.key === "Escape") tip.hidden = true;
  if (!direction) return;
  event.preventDefault();
  const marks = [...figure.querySelectorAll(".mark-symbol path, .mark-rect path")];
  const boxes = new Map(marks.map((point) => [point.__data__?.datum?.tip, point.getBoundingClientRect()]));
  const points = [...boxes].filter(([text]) => text).map(([text, box]) => ({ text, box }))
    .sort((one, other) => one.box.x - other.box.x || one.box.y - other.box.y);
  if (!points.length) return;
  figure.point = ((figure.point ?? (direction > 0 ? -1 : 0)) + direction + points.length) % points.length;
  const { text, box } = points[figure.point];
  tellAt(box.x + box.width / 2, box.y + box.height / 2, text);
}

// A chart or its panels in the width of the figure.
function fitted(spec, width) {
  const found = structuredClone(spec);
  if (touch.matches) dropZoom(found);
  if (!found.facet) return { ...found, width, autosize: { type: "fit-x", contains: "padding" } };
  found.columns = Math.max(1, Math.floor(width / 350));
  // The axis of the first column takes 70 pixels, the space between two panels 20.
  found.spec.width = Math.floor((width - 70) / found.columns) - 20;
  found.facet.header = { ...found.facet.header, labelLimit: found.spec.width };
  return found;
}

// As many columns of a legend as its longest label allows, beside the other legends.
function fitLegends(spec, width, rows) {
  const encodings = ((spec.spec ?? spec).layer ?? []).flatMap(({ encoding }) => [encoding.color, encoding.shape]);
  const coded = encodings.filter((one) => one?.field && one.legend !== null);
  const room = width / Math.max(1, new Set(coded.map((one) => one.field)).size);
  for (const one of coded) {
    const labels = one.scale?.domain ?? rows.map((row) => row[one.field]); // a field that the chart computes has a domain
    const longest = Math.max(...labels.map((label) => String(label ?? "").length));
    const columns = Math.max(2, Math.floor(room / (6 * longest + 36)));
    one.legend = { columns, labelLimit: Math.floor(room / columns) - 30 };
  }
}

function dropZoom(spec) {
  const layers = (spec.spec ?? spec).layer ?? [];
  for (const layer of layers) if (layer.params) layer.params = layer.params.filter((param) => param.name !== "zoom");
}

async function draw(figure) {
  const { spec, data } = page.plots[figure.dataset.plot];
  const rows = datasets[data].filter((row) => chosen === null || chosen.has(row.cell));
  const config = structuredClone(page.themes[dark.matches ? "dark" : "light"]);
  const width = figure.clientWidth;
  config.axis.labelLimit = Math.round(Math.min(400, width * 0.42));
  const shown = { ...fitted(spec, width), data: { values: rows } };
  fitLegends(shown, width, rows);
  const options = { mode: "vega-lite", renderer: "svg", ast: true, actions: false, defaultStyle: false, config, tooltip: showTip };
  figure.view?.finalize();
  figure.view = (await vegaEmbed(figure, shown, options)).view;
}

function fill(holder) {
  const { columns, rows, more, by = null } = page.tables[holder.dataset.table];
  const order = holder.order ?? { column: by, down: false };
  const role = columns.findIndex(([title]) => title === "role");
  const shown = rows.filter((row) => chosen === null || chosen.has(row[0]));
  if (order.column !== null) shown.sort(comparison(order, columns[order.column][1]));
  const table = document.createElement("table");
  const head = table.createTHead().insertRow();
  columns.forEach(([title, numeric], column) => {
    const heading = head.appendChild(document.createElement("th"));
    const button = heading.appendChild(document.createElement("button"));
    heading.scope = "col";
    heading.classList.toggle("number", numeric);
    button.type = "button";
    button.textContent = title;
    if (order.column === column) heading.setAttribute("aria-sort", order.down ? "descending" : "ascending");
    button.addEventListener("click", () => {
      holder.order = { column, down: order.column === column && !order.down };
      fill(holder);
      holder.querySelectorAll("th button")[column].focus();
    });
  });
  const body = table.createTBody();
  for (const row of shown.slice(0, MOST_ROWS)) {
    const line = body.insertRow();
    line.classList.toggle("chosen", /^(use|best)/.test(row[role]));
    row.forEach((text, column) => {
      const cell = line.insertCell();
      cell.textContent = text;
      cell.classList.toggle("number", columns[column][1]);
      cell.classList.toggle("long", text.length > 48);
      if (text.length > 48) cell.title = text;
    });
  }
  const hidden = shown.length - body.rows.length + more;
  if (hidden > 0) table.createCaption().textContent = `${hidden} more rows: filter or sort, or see the files.`;
  holder.replaceChildren(table);
}

// Empty texts stay last.
function comparison({ column, down }, numeric) {
  const number = (text) => Number.parseFloat(text.replaceAll(/[,≥≤]/g, ""));
  return (one, other) => {
    const [a, b] = [one[column], other[column]];
    if (a === "" || b === "") return (a === "") - (b === "");
    const order = numeric ? number(a) - number(b) : a.localeCompare(b, undefined, { numeric: true });
    return down ? -order : order;
  };
}

function isOpen(element) {
  return element.closest("details:not([open])") === null;
}

function update() {
  const set = menus.filter((menu) => menu.value !== "");
  const left = datasets.cells.filter((row) => set.every((menu) => row[menu.dataset.field] === menu.value));
  chosen = set.length ? new Set(left.map((row) => row.cell)) : null;
  const count = document.getElementById("count");
  if (count) count.textContent = `${left.length} of ${datasets.cells.length} cells`;
  document.querySelectorAll("figure[data-plot]").forEach((figure) => isOpen(figure) ? draw(figure) : figure.replaceChildren());
  document.querySelectorAll("[data-table]").forEach((holder) => isOpen(holder) ? fill(holder) : holder.replaceChildren());
}

for (const details of document.querySelectorAll("details")) {
  details.addEventListener("toggle", () => {
    if (!details.open) return;
    details.querySelectorAll("figure:empty").forEach(draw);
    details.querySelectorAll("[data-table]:empty").forEach(fill);
  });
}
for (const figure of document.querySelectorAll("figure[data-plot]")) {
  figure.tabIndex = 0;
  figure.addEventListener("keydown", (event) => step(figure, event));
  figure.addEventListener("blur", () => { tip.hidden = true; });
}
// Print and PDF contain everything. Charts are drawn without waiting, before the page is laid out for paper.
let closed = [];
addEventListener("beforeprint", () => {
  closed = [...document.querySelectorAll("details:not([open])")];
  for (const details of closed) details.open = true;
  document.querySelectorAll("figure:empty").forEach(draw);
  document.querySelectorAll("[data-table]:empty").forEach(fill);
});
addEventListener("afterprint", () => {
  for (const details of closed) details.open = false;
});
menus.forEach((menu) => menu.addEventListener("change", update));
dark.addEventListener("change", update);
let width = innerWidth;
addEventListener("resize", () => {
  if (innerWidth !== width) requestAnimationFrame(update);
  width = innerWidth;
});
update();
