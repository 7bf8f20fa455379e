// A line is selected, and its requests are stepped through. `drawRequest` draws those of a warp.
const { steps, inOrder, totals, unit, colours } = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const all = (selector) => [...document.querySelectorAll(selector)];
const rows = all("#source .source tr[data-line]");
const ofLine = {};
steps.forEach((step, n) => (ofLine[step.line] ??= []).push(n));
let line = null, shown = [], at = 0;

const mark = (key) => {
  line = key;
  for (const marked of all(".chosen")) marked.classList.remove("chosen");
  for (const one of all("tr[data-line], .listing [data-line]"))
    if (one.dataset.line === key) one.classList.add("chosen");
  for (const row of rows) {
    const button = row.querySelector("button"), chosen = row.dataset.line === key;
    button.setAttribute("aria-pressed", chosen);
    button.tabIndex = chosen ? 0 : -1;
  }
  const box = document.querySelector(".listing"), first = box?.querySelector(".chosen");
  if (first) box.scrollTop = first.offsetTop - box.offsetTop - 30;
};
const drawSectors = (picture, step) => {
  const size = 22;
  step.used.forEach(([sector, used], n) => {
    const place = { x: (n % 32) * size, y: Math.floor(n / 32) * size, width: size - 2 };
    make("rect", picture, { ...place, height: size - 2, fill: colours.faint });
    const full = (used / step.sector) * (size - 2);
    const bottom = { ...place, y: place.y + size - 2 - full, height: full };
    const part = make("rect", picture, { ...bottom, fill: colours[step.op] });
    make("title", part, {}, `sector ${sector}: ${used} of ${step.sector} bytes`);
  });
  picture.setAttribute("viewBox", `0 0 704 ${Math.ceil(step.used.length / 32) * size}`);
};
const draw = () => {
  const picture = byId("drawing"), step = steps[shown[at]];
  picture.replaceChildren();
  picture.style.display = step && (step.lanes || step.used) ? "" : "none";
  for (const now of all(".timeline .now")) now.classList.remove("now");
  if (!step) {
    byId("position").textContent = "";
    byId("said").textContent = `This line makes no ${unit}.`;
    return;
  }
  const total = totals[step.line], whole = byId("which").value === "line" && total > shown.length;
  byId("position").textContent =
    `${at + 1} of ${shown.length}` + (whole ? `, a sample of ${total.toLocaleString("en")}` : "");
  byId("said").textContent = `${step.who}, ${step.said}`;
  if (step.lanes) drawRequest(picture, step, colours);
  else if (step.used) drawSectors(picture, step);
  else document.querySelector(`.timeline [data-step="${step.step}"]`)?.classList.add("now");
};
const select = (key) => {
  byId("which").value = "line";
  mark(key);
  shown = ofLine[key] || [];
  at = 0;
  draw();
};
const move = (n) => {
  if (!shown.length) return;
  at = Math.max(0, Math.min(shown.length - 1, n));
  if (byId("which").value === "order") mark(steps[shown[at]].line);
  draw();
};
const moves = { first: () => 0, back: () => at - 1, next: () => at + 1, last: () => Infinity };
for (const button of all("[data-move]"))
  button.addEventListener("click", () => move(moves[button.dataset.move]()));
byId("which").addEventListener("change", () => {
  if (byId("which").value === "line") return select(line);
  shown = inOrder;
  move(0);
});
for (const part of all("#source [data-line], .listing [data-line], .timeline [data-line]"))
  part.addEventListener("click", () => select(part.dataset.line));
const follow = () => rows.some((row) => "#" + row.dataset.line === location.hash)
  && select(location.hash.slice(1));
addEventListener("hashchange", follow);

const keys = { ArrowLeft: "back", ArrowRight: "next", Home: "first", End: "last" };
for (const region of [byId("requests"), byId("source")])
  region.addEventListener("keydown", (event) => {
    if (event.target.tagName === "SELECT" || event.ctrlKey || event.altKey || event.metaKey) return;
    const down = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (event.key in keys) move(moves[keys[event.key]]());
    else if (down && region.id === "source") {
      const n = rows.findIndex((row) => row.dataset.line === line) + down;
      if (!rows[n]) return;
      select(rows[n].dataset.line);
      rows[n].querySelector("button").focus();
    } else return;
    event.preventDefault();
  });

const theme = make("button", document.querySelector("main"), { type: "button", class: "theme" });
document.querySelector("main").prepend(theme);
const isDark = () => {
  const own = document.documentElement.style.colorScheme;
  return own ? own === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
};
const nameTheme = () => (theme.textContent = isDark() ? "Light" : "Dark");
theme.addEventListener("click", () => {
  document.documentElement.style.colorScheme = isDark() ? "light" : "dark";
  nameTheme();
});
nameTheme();
if (!follow() && rows.length) {
  const hottest = (row) => parseFloat(row.querySelector(".bar")?.style.width || 0);
  select([...rows].sort((a, b) => hottest(b) - hottest(a))[0].dataset.line);
}
