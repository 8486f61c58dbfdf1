"use strict";
/* Sliders of a served search: labels follow them, a change asks for another search. */
(() => {
  const form = document.querySelector("form.search");
  if (!form) return;
  const label = ({ dataset, value }) =>
    dataset.start
      ? `${Math.max(1, Math.floor(dataset.start * 2 ** value)).toLocaleString("en")} ${dataset.unit}`
      : `$${Number(value).toFixed(2)} ${dataset.unit}`;
  form.addEventListener("input", ({ target }) => {
    target.labels[0].textContent = label(target);
  });
  form.addEventListener("change", ({ target }) => {
    form.elements.moved.value = target.id;
    form.requestSubmit();
  });
})();
