// Runs before anything is drawn, so that a chosen theme does not flash in the other one's colours.
(() => {
  const chosen = localStorage.getItem("cronoq.theme");
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
})();
