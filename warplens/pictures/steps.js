// Steps through the requests of each .stepper, with no library: buttons, ← → Home End.
{
  for (const root of document.querySelectorAll(".stepper:not([data-ready])")) {
    root.dataset.ready = "yes";
    const { steps, colours } = JSON.parse(root.querySelector("script").textContent);
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
    const picture = root.querySelector("svg");
    picture.style = "width: 100%; height: auto; max-width: 720px; background: white";
    root.append(picture);

    const show = (n) => {
      at = Math.max(0, Math.min(steps.length - 1, n));
      const step = steps[at];
      line.textContent = ` request ${at + 1} of ${steps.length}`;
      code.textContent = step.source || "…";
      said.textContent = step.said;
      picture.replaceChildren();
      drawRequest(picture, step, colours);
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
}
