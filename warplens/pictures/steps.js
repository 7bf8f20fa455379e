// Draws the request at hand of each .stepper, with no library: buttons, ← → Home End.
(() => {
  const NS = "http://www.w3.org/2000/svg";
  const ROW = 22, WIDE = 32 * ROW;
  for (const root of document.querySelectorAll(".stepper:not([data-ready])")) {
    root.dataset.ready = "yes";
    const { steps, colours } = JSON.parse(root.querySelector("script").textContent);
    const make = (tag, parent, attributes = {}, text = "") => {
      const svg = ["svg", "rect", "line", "text"].includes(tag);
      const made = svg ? document.createElementNS(NS, tag) : document.createElement(tag);
      for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
      made.textContent = text;
      parent.append(made);
      return made;
    };
    const bar = make("p", root);
    const button = (text, move) => {
      const made = make("button", bar, { type: "button" }, text);
      made.addEventListener("click", () => show(move(at)));
      bar.append(" ");
    };
    let at = 0;
    button("first", () => 0);
    button("back", (n) => n - 1);
    button("next", (n) => n + 1);
    const line = make("span", bar);
    const code = make("pre", root);
    const said = make("p", root, { "aria-live": "polite" });
    const picture = make("svg", root, { viewBox: `-2 -2 ${WIDE + 4} 120`, "aria-hidden": "true" });
    picture.style.width = "100%";
    picture.style.maxWidth = "720px";
    picture.style.background = "white";

    const box = (x, y, width, height, fill, text = "", ink = "white") => {
      const look = { x, y, width, height, fill, stroke: "white" };
      make("rect", picture, look);
      const place = { x: x + width / 2, y: y + height / 2 + 3, "text-anchor": "middle" };
      if (text !== "") make("text", picture, { ...place, "font-size": 9, fill: ink }, text);
    };
    const drawGlobal = (step, colour) => {
      const size = Math.min(8 * ROW, WIDE / step.sectors.length);
      const left = new Map(step.sectors.map((sector, n) => [sector, n * size]));
      const word = (size * step.word) / step.sector;
      const x = (a) => left.get(Math.floor(a / step.sector)) + ((a % step.sector) / step.sector) * size;
      for (const start of left.values()) box(start, 84, size, ROW, colours.faint);
      for (const [lane, a] of step.lanes) {
        box(x(a), 84, (word * step.width) / step.word, ROW, colour);
        const middle = x(a) + (word * step.width) / step.word / 2;
        const ends = { x1: (lane + 0.5) * ROW, y1: ROW, x2: middle, y2: 84 };
        make("line", picture, { ...ends, stroke: colour, "stroke-opacity": 0.6 });
      }
      for (const start of left.values()) {
        const edge = { x: start, y: 84, width: size, height: ROW, fill: "none" };
        make("rect", picture, { ...edge, stroke: colours.ink });
      }
      return 84 + ROW;
    };
    const drawShared = (step, colour) => {
      step.passes.forEach(([served, extra], n) => {
        for (let bank = 0; bank < step.banks; bank++) {
          const lane = served[bank] ?? "";
          const fill = lane === "" ? colours.faint : extra ? colours.extra : colour;
          box(bank * ROW, 40 + n * ROW, ROW, ROW, fill, lane, extra ? colours.ink : "white");
        }
      });
      return 40 + step.passes.length * ROW;
    };
    const show = (n) => {
      at = Math.max(0, Math.min(steps.length - 1, n));
      const step = steps[at], colour = colours[step.op];
      line.textContent = ` request ${at + 1} of ${steps.length}`;
      code.textContent = step.source || "…";
      said.textContent = step.said;
      picture.replaceChildren();
      const active = new Set(step.lanes.map(([lane]) => lane));
      for (let lane = 0; lane < 32; lane++) {
        const on = active.has(lane);
        box(lane * ROW, 0, ROW, ROW, on ? colour : colours.faint, lane, on ? "white" : colours.ink);
      }
      const height = (step.space === "shared" ? drawShared : drawGlobal)(step, colour);
      picture.setAttribute("viewBox", `-2 -2 ${WIDE + 4} ${Math.max(height, 106) + 4}`);
    };
    const keys = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity };
    root.addEventListener("keydown", (event) => {
      if (!(event.key in keys)) return;
      event.preventDefault();
      event.stopPropagation();
      show(at + keys[event.key]);
    });
    show(0);
  }
})();
