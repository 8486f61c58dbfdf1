"use strict";
/* The page of a comparison: nothing moves but the theme. Needs base.js. */
Paceline.startThemes();
document.documentElement.dataset.ready = "true";
