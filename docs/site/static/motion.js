// Reveals the recorded check of the front page line by line; Escape or a click on it shows all.
document.addEventListener("DOMContentLoaded", () => {
  const figure = document.querySelector(".motion");
  if (!figure || matchMedia("(prefers-reduced-motion: reduce)").matches) return;
  const lines = [...figure.querySelectorAll(".line")], pre = figure.querySelector("pre");
  let next = 0, timer = null;
  const stop = () => { clearTimeout(timer); lines.forEach(x => x.classList.remove("later")); };
  const step = () => {
    const line = lines[next++];
    line.classList.remove("later");
    pre.scrollTop = line.offsetTop + line.offsetHeight - pre.clientHeight;
    if (next < lines.length) timer = setTimeout(step, line.classList.contains("code") ? 260 : 620);
  };
  const play = () => {
    clearTimeout(timer);
    lines.forEach(x => x.classList.add("later"));
    next = 0;
    pre.scrollTop = 0;
    step();
  };
  figure.querySelector(".again").addEventListener("click", play);
  pre.addEventListener("click", stop);
  pre.addEventListener("keydown", e => { if (e.key === "Escape") stop(); });
  play();
});
