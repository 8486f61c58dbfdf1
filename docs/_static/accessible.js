// What the theme leaves out: levels of the headings in the sidebar, code and tables that scroll by the keyboard,
// names of the two sidebars, cells in place of empty heads of columns, a heading of the page of results.
for (const heading of document.querySelectorAll('[role="heading"]:not([aria-level])'))
  heading.setAttribute("aria-level", "2");
for (const block of document.querySelectorAll("pre, .table-wrapper")) block.tabIndex = 0;
for (const table of document.querySelectorAll(".table-wrapper")) {
  table.setAttribute("role", "region");
  table.setAttribute("aria-label", `table ${[...document.querySelectorAll(".table-wrapper")].indexOf(table) + 1}`);
}
document.querySelector(".sidebar-drawer")?.setAttribute("aria-label", "pages of the site");
document.querySelector(".toc-drawer")?.setAttribute("aria-label", "sections of this page");
for (const head of document.querySelectorAll("th")) {
  if (head.textContent.trim()) continue;
  const cell = document.createElement("td");
  cell.className = head.className;
  head.replaceWith(cell);
}
if (!document.querySelector("h1")) {
  const heading = document.createElement("h1");
  heading.textContent = "Search";
  document.getElementById("search-results")?.before(heading);
}
