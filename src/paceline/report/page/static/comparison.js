"use strict";
/* The page of a comparison: only the theme is interactive. Needs base.js. */
Paceline.startThemes();
document.documentElement.dataset.ready = "true";
