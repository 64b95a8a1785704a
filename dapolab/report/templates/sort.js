// Click a column's head to sort by it, again to turn it round. Empty cells stay last.
for (const table of document.querySelectorAll("table")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => head.firstElementChild.addEventListener("click", () => {
    const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    heads.forEach(other => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
    const key = row => row.cells[column].dataset.key;
    const compare = (a, b) => {
      if (a === "" || b === "") return (a === "") - (b === "");
      const by = head.classList.contains("number") ? a - b : a.localeCompare(b, "en", {numeric: true});
      return sign * by;
    };
    const rows = [...table.tBodies[0].rows].sort((a, b) => compare(key(a), key(b)));
    table.tBodies[0].append(...rows);
  }));
}
