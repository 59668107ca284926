"use strict";

/** The number with which the text of a cell begins; null if it begins with none. */
function numberOf(text) {
  const plain = text.trim().replace(/^</, "").replace(/^\u2212/, "-").replace(/^inf/, "Infinity");
  const number = parseFloat(plain);
  return Number.isNaN(number) ? null : number;
}

/** The order of rows with these cells; cells without a number ("–") come last. */
function orderOf(texts, descending) {
  const numbers = texts.map(numberOf);
  const numeric = texts.every((text, i) => numbers[i] !== null || text.trim() === "–");
  const sign = descending ? -1 : 1;
  return texts.map((_, i) => i).sort((a, b) => {
    if (!numeric) return sign * texts[a].localeCompare(texts[b]);
    const lacks = (numbers[a] === null) - (numbers[b] === null);
    if (lacks || numbers[a] === null) return lacks;
    return sign * (numbers[a] - numbers[b]) || 0;
  });
}

/** The point [x, y, text] nearest to (x, y), in pixels of a picture of this size; or null. */
function nearestOf(points, x, y, width, height, most) {
  let nearest = null;
  let least = most;
  for (const point of points) {
    const distance = Math.hypot(point[0] * width - x, point[1] * height - y);
    if (distance <= least) [nearest, least] = [point, distance];
  }
  return nearest;
}

/** Makes the headings of a table buttons that sort its rows. */
function makeSortable(table) {
  const heads = Array.from(table.tHead.rows[table.tHead.rows.length - 1].cells);
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.textContent = head.textContent || "name";
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const rows = Array.from(table.tBodies[0].rows);
      const texts = rows.map((row) => row.cells[column].textContent);
      const first = texts.some((text) => numberOf(text) !== null) ? "descending" : "ascending";
      const other = first === "descending" ? "ascending" : "descending";
      const how = head.getAttribute("aria-sort") === first ? other : first;
      heads.forEach((each) => each.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", how);
      table.tBodies[0].append(...orderOf(texts, how === "descending").map((i) => rows[i]));
    });
  });
}

/** Says below a table that it can be scrolled, as long as a part of it is hidden. */
function makeHinted(region) {
  const look = () => region.classList.toggle("wide", region.scrollWidth > region.clientWidth);
  new ResizeObserver(look).observe(region);
}

/** Shows the value of the point of a picture that is nearest to the pointer. */
function makeReadable(figure) {
  const svg = figure.querySelector("svg");
  const points = JSON.parse(figure.querySelector("script").textContent);
  const tip = document.createElement("p");
  const dot = document.createElement("span");
  [tip.className, dot.className] = ["tip", "dot"];
  tip.hidden = dot.hidden = true;
  figure.append(dot, tip);
  const show = (event) => {
    const box = svg.getBoundingClientRect();
    const at = [event.clientX - box.left, event.clientY - box.top];
    const point = nearestOf(points, ...at, box.width, box.height, 40);
    tip.hidden = dot.hidden = point === null;
    if (point === null) return;
    const [x, y] = [point[0] * box.width, point[1] * box.height];
    tip.textContent = point[2];
    [dot.style.left, dot.style.top] = [`${x}px`, `${y}px`];
    const left = Math.max(0, Math.min(x - tip.offsetWidth / 2, box.width - tip.offsetWidth));
    [tip.style.left, tip.style.top] = [`${left}px`, `${y + 12}px`];
  };
  svg.addEventListener("pointermove", show);
  svg.addEventListener("pointerdown", show);
  svg.addEventListener("pointerleave", (event) => {
    if (event.pointerType === "mouse") tip.hidden = dot.hidden = true; // a finger leaves at once
  });
}

if (typeof document !== "undefined") {
  document.querySelectorAll("table").forEach(makeSortable);
  document.querySelectorAll(".scroll").forEach(makeHinted);
  document.querySelectorAll("figure > script").forEach((each) => makeReadable(each.parentElement));
}
