// Without this every step stands below the other; with it one is shown at a time.
for (const box of document.querySelectorAll(".steps")) {
  const shown = [...box.querySelectorAll(".step")], slider = box.querySelector("input"), place = box.querySelector("output");
  const show = (number) => {
    slider.value = Math.max(0, Math.min(number, shown.length - 1));
    shown.forEach((step, index) => { step.hidden = index !== Number(slider.value); });
    place.textContent = `${Number(slider.value) + 1} of ${shown.length}`;
  };
  box.querySelector(".controls").hidden = false;
  slider.addEventListener("input", () => show(Number(slider.value)));
  box.querySelector(".back").addEventListener("click", () => show(Number(slider.value) - 1));
  box.querySelector(".next").addEventListener("click", () => show(Number(slider.value) + 1));
  show(Math.max(1, shown.findIndex((step) => step.querySelector(".edge.taken")))); // the first where a guess became text
}
