// Runs before the page is painted, so that a chosen theme does not flash.
"use strict";
{
  const chosen = localStorage.getItem("theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
}
