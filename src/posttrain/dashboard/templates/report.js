"use strict";
// Read a curve with the pointer or the arrow keys.
for (const chart of document.querySelectorAll(".chart")) {
  const points = JSON.parse(chart.dataset.points);
  const canvas = chart.querySelector(".canvas"), cursor = chart.querySelector(".cursor"), output = chart.querySelector(".latest");
  const latest = output.textContent;
  let at = points.length - 1;
  const show = (index) => {
    at = Math.max(0, Math.min(points.length - 1, index));
    const [x, , label] = points[at];
    cursor.setAttribute("x1", x);
    cursor.setAttribute("x2", x);
    cursor.setAttribute("visibility", "visible");
    output.textContent = label;
  };
  const hide = () => {
    cursor.setAttribute("visibility", "hidden");
    output.textContent = latest;
    at = points.length - 1;
  };
  chart.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const x = 100 * (event.clientX - box.left) / box.width;
    let best = 0;
    points.forEach(([px], i) => { if (Math.abs(px - x) < Math.abs(points[best][0] - x)) best = i; });
    show(best);
  });
  chart.addEventListener("pointerleave", hide);
  chart.addEventListener("blur", hide);
  chart.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1, Home: -points.length, End: points.length }[event.key];
    if (!move) return;
    event.preventDefault();
    show(at + move);
  });
}
// Show the episodes of one domain.
const filter = document.querySelector(".filter");
if (filter) {
  filter.hidden = false;
  const select = filter.querySelector("select");
  select.addEventListener("change", () => {
    for (const pair of document.querySelectorAll(".pair")) pair.hidden = select.value !== "" && pair.dataset.domain !== select.value;
  });
}
