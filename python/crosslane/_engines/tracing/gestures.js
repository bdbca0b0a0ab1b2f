// What the pointer and the keys do with a time line.

class Gestures {
  // Shows what is under the pointer in the element `hint`.
  constructor(line, hint) {
    Object.assign(this, { line, hint, drag: null });
    this.listen(line.canvas);
  }

  listen(canvas) {
    canvas.addEventListener("wheel", (event) => this.turned(event), { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0 || event.offsetX < this.line.left) return;
      canvas.setPointerCapture(event.pointerId);
      const x = event.offsetX;
      this.drag = { from: x, to: x, selects: !event.shiftKey, view: this.line.view };
    });
    canvas.addEventListener("pointermove", (event) =>
      this.drag ? this.dragged(event) : this.explain(event),
    );
    canvas.addEventListener("pointerup", () => this.dropped());
    canvas.addEventListener("pointercancel", () => this.forget());
    canvas.addEventListener("pointerleave", () => {
      this.hint.hidden = true;
    });
    canvas.addEventListener("dblclick", () => this.line.showAll());
    canvas.addEventListener("keydown", (event) => this.pressed(event));
  }

  turned(event) {
    if (event.offsetX < this.line.left) return;
    const isWhole = this.line.view.to - this.line.view.from >= this.line.whole();
    // The page scrolls where a turn would change nothing.
    if (isWhole && (event.deltaY > 0 || event.shiftKey)) return;
    event.preventDefault();
    this.hint.hidden = true;
    const along = event.shiftKey ? event.deltaX || event.deltaY : event.deltaX;
    if (Math.abs(along) > Math.abs(event.deltaY) || event.shiftKey) this.line.move(along / 1000);
    else this.line.zoom(1.0015 ** event.deltaY, this.line.time(event.offsetX));
  }

  dragged(event) {
    const { drag, line } = this;
    this.hint.hidden = true;
    drag.to = Math.min(Math.max(event.offsetX, line.left), line.right());
    if (drag.selects) {
      line.selected = [drag.from, drag.to].sort((a, b) => a - b);
      line.draw();
      return;
    }
    const { from, to } = drag.view;
    const moved = ((drag.from - drag.to) / (line.right() - line.left)) * (to - from);
    line.show(from + moved, to + moved);
  }

  dropped() {
    const { line } = this;
    const selected = line.selected;
    this.forget();
    if (selected && selected[1] - selected[0] > 4) line.show(...selected.map((x) => line.time(x)));
  }

  // Ends a drag.
  forget() {
    this.drag = null;
    this.line.selected = null;
    this.line.draw();
  }

  pressed(event) {
    const middle = (this.line.view.from + this.line.view.to) / 2;
    const acts = {
      ArrowLeft: () => this.line.move(-0.2),
      ArrowRight: () => this.line.move(0.2),
      "+": () => this.line.zoom(0.6, middle),
      "-": () => this.line.zoom(1 / 0.6, middle),
      0: () => this.line.showAll(),
    };
    if (event.ctrlKey || event.metaKey || event.altKey || !acts[event.key]) return;
    event.preventDefault();
    acts[event.key]();
  }

  explain(event) {
    const { hint } = this;
    const index = this.line.at(event.offsetX, event.offsetY);
    hint.hidden = index === null;
    if (index === null) return;
    hint.replaceChildren(...this.lines(index));
    const [x, y] = [event.offsetX + 14, event.offsetY + 14];
    const left =
      x + hint.offsetWidth > this.line.width - 8 ? Math.max(8, event.offsetX - hint.offsetWidth - 14) : x;
    const top =
      y + hint.offsetHeight > this.line.height ? Math.max(0, event.offsetY - hint.offsetHeight - 10) : y;
    hint.style.transform = `translate(${Math.round(left)}px, ${Math.round(top)}px)`;
  }

  // What is known about an event, as elements of the hint.
  lines(index) {
    const {
      kind,
      start,
      duration: durations,
      rows,
      row,
      function: functions,
      detail,
    } = this.line.trace.events;
    const { name, lasts } = KINDS[kind[index]];
    const head = document.createElement("b");
    head.textContent =
      kind[index] === FUNCTION ? functions[index] : [name, functions[index]].filter(Boolean).join(": ");
    const each = rows[index] && lasts ? `, ${duration(durations[index] / rows[index])} per row` : "";
    const unit = lasts || kind[index] === "fan_out" ? "rows" : "times";
    const texts = [
      lasts ? `${duration(durations[index])}${each}` : "",
      rows[index] ? `${count(rows[index])} ${unit}` : "",
      `at ${duration(start[index])}, ${this.line.trace.rows[row[index]].name}`,
      detail.get(index) ?? "",
    ];
    const line = (text) => {
      const span = document.createElement("span");
      span.textContent = text;
      return span;
    };
    return [head, ...texts.filter(Boolean).map(line)];
  }
}
