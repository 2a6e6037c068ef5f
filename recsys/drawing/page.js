// Reads the values of a picture by pointer, by tap and by arrow keys; the table below has them too.
for (const figure of document.querySelectorAll("figure:has(output)")) {
  const reading = figure.querySelector("output");
  for (const svg of figure.querySelectorAll("svg")) {
    const marks = [...svg.querySelectorAll(".mark")];
    // One row for each line, the best first: it is drawn last, over the others.
    const rows = [...new Set(marks.map((mark) => mark.parentNode))].reverse()
      .map((parent) => marks.filter((mark) => mark.parentNode === parent));
    let row = 0, place = 0;
    const within = (number, list) => Math.max(0, Math.min(number, list.length - 1));
    const read = (toRow, toPlace) => {
      rows[row][place].classList.remove("on");
      row = within(toRow, rows);
      place = within(toPlace, rows[row]);
      rows[row][place].classList.add("on");
      reading.textContent = rows[row][place].querySelector("title").textContent;
    };
    const point = (mark) => {
      const found = rows.findIndex((each) => each.includes(mark));
      read(found, rows[found].indexOf(mark));
    };
    const distance = (event) => (mark) => {
      const box = mark.getBoundingClientRect();
      return Math.hypot(box.x + box.width / 2 - event.clientX, box.y + box.height / 2 - event.clientY);
    };
    svg.setAttribute("tabindex", "0");
    svg.setAttribute("role", "application");
    svg.setAttribute("aria-roledescription", "chart");
    svg.setAttribute("aria-label", svg.getAttribute("aria-label") + ": arrow keys read the values");
    svg.addEventListener("focus", () => svg.matches(":focus-visible") && read(row, place));
    svg.addEventListener("keydown", (event) => {
      const along = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity }[event.key] ?? 0;
      const across = { ArrowDown: 1, ArrowUp: -1 }[event.key] ?? 0;
      if (!along && !across) return;
      event.preventDefault();
      rows.length > 1 ? read(row + across, place + along) : read(0, place + along + across);
    });
    svg.addEventListener("pointermove", (event) => {
      const mark = event.target.closest(".mark");
      if (mark && event.pointerType === "mouse") point(mark);
    });
    svg.addEventListener("click", (event) => {
      const far = distance(event);
      point(event.target.closest(".mark") ?? marks.reduce((a, b) => (far(b) < far(a) ? b : a)));
    });
  }
}
