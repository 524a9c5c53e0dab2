// Applies the chosen theme before the first paint.
"use strict";
try {
  const theme = localStorage.getItem("theme");
  if (theme) document.documentElement.dataset.theme = theme;
} catch { /* Storage may be forbidden: the system's theme applies. */ }
