// What the theme leaves out: levels of the headings in the sidebar, and code that scrolls by the keyboard.
for (const heading of document.querySelectorAll('[role="heading"]:not([aria-level])'))
  heading.setAttribute("aria-level", "2");
for (const block of document.querySelectorAll("pre")) block.tabIndex = 0;
