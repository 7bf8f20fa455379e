// Draws one request of a warp into an <svg>: its lanes, and the sectors or banks that serve them.
const ROW = 22, WIDE = 32 * ROW;
const make = (tag, parent, attributes = {}, text = "") => {
  const made = document.createElementNS(parent.namespaceURI, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.textContent = text;
  parent.append(made);
  return made;
};
const drawRequest = (picture, step, colours) => {
  const colour = colours[step.op], inkOn = step.op === "load" ? "white" : "black";
  const box = (x, y, width, height, fill, text = "", ink = inkOn) => {
    make("rect", picture, { x, y, width, height, fill, stroke: colours.paper });
    const place = { x: x + width / 2, y: y + height / 2 + 3, "text-anchor": "middle" };
    if (text !== "") make("text", picture, { ...place, "font-size": 9, fill: ink }, text);
  };
  const drawGlobal = () => {
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
  const drawShared = () => {
    step.passes.forEach(([served, extra], n) => {
      for (let bank = 0; bank < step.banks; bank++) {
        const lane = served[bank] ?? "";
        const fill = lane === "" ? colours.faint : extra ? colours.extra : colour;
        box(bank * ROW, 40 + n * ROW, ROW, ROW, fill, lane, extra ? "black" : inkOn);
      }
    });
    return 40 + step.passes.length * ROW;
  };
  const active = new Set(step.lanes.map(([lane]) => lane));
  for (let lane = 0; lane < 32; lane++) {
    const on = active.has(lane);
    box(lane * ROW, 0, ROW, ROW, on ? colour : colours.faint, lane, on ? inkOn : colours.ink);
  }
  const height = step.space === "shared" ? drawShared() : drawGlobal();
  picture.setAttribute("viewBox", `-2 -2 ${WIDE + 4} ${Math.max(height, 106) + 4}`);
};
