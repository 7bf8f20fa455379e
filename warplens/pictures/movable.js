// Gives each .movable its sliders, with no library; a position was drawn before, and is shown here.
{
  for (const root of document.querySelectorAll(".movable:not([data-ready])")) {
    root.dataset.ready = "yes";
    const { knobs, frames, at } = JSON.parse(root.querySelector("script").textContent);
    const picture = root.querySelector("img"), said = root.querySelector("p");
    const show = () => {
      const n = knobs.reduce((n, knob, k) => n * knob.values.length + at[k], 0);
      picture.src = frames[n].src;
      picture.alt = said.textContent = frames[n].said;
    };
    knobs.forEach(({ name, values }, k) => {
      const label = document.createElement("label"), slider = document.createElement("input");
      const value = document.createElement("output");
      Object.assign(slider, { type: "range", min: 0, max: values.length - 1, value: at[k] });
      const move = () => {
        at[k] = Number(slider.value);
        value.textContent = ` ${values[at[k]]}`;
        slider.setAttribute("aria-valuetext", values[at[k]]);
        show();
      };
      slider.addEventListener("input", move);
      slider.addEventListener("keydown", (event) => event.stopPropagation());
      label.style = "display: block";
      label.append(`${name} `, slider, value);
      root.insertBefore(label, picture);
      move();
    });
  }
}
