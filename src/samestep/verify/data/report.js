"use strict";
// Sorting: a click on a header orders the table's bodies, one for each row with its details, by that column.
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const header = button.closest("th");
    const table = header.closest("table");
    const column = [...header.parentNode.children].indexOf(header);
    const up = header.getAttribute("aria-sort") !== "ascending";
    for (const other of header.parentNode.children) {
      if (other.hasAttribute("aria-sort")) other.setAttribute("aria-sort", "none");
    }
    header.setAttribute("aria-sort", up ? "ascending" : "descending");
    const keyed = [...table.tBodies].map((body) => {
      const cell = body.rows[0].cells[column];
      return [cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value), body];
    });
    keyed.sort(([a], [b]) => (typeof a === "number" ? a - b || 0 : a.localeCompare(b)) * (up ? 1 : -1));
    table.append(...keyed.map(([, body]) => body));
  });
}
// Paper cannot be clicked.
let opened = [];
addEventListener("beforeprint", () => {
  opened = [...document.querySelectorAll("details:not([open])")];
  for (const details of opened) details.open = true;
});
addEventListener("afterprint", () => {
  for (const details of opened) details.open = false;
});
