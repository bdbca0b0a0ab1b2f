// The time line: a canvas with a row for each worker and each thread.

const AXIS = 26;
const ROW = 26;
const GROUP = 28;
const GAP = 6;
const BAR = 16;
const NARROWEST = 100;
// How strong the colour of a short event is, which would be invisible otherwise.
const FAINTEST = 0.35;
// The most points of the screen in the height of a canvas. Browsers draw nothing on a higher one.
const HIGHEST = 16000;

class TimeLine {
  // `changed` is called when the part that is shown changes.
  constructor(canvas, trace, changed) {
    Object.assign(this, { canvas, trace, changed });
    this.context = canvas.getContext("2d");
    this.hidden = new Set();
    this.wanted = "";
    this.chosen = null;
    // The places between which the pointer selects a part.
    this.selected = null;
    this.layOut();
    this.view = { from: 0, to: this.whole() };
    this.readColours();
    new ResizeObserver(() => this.resize()).observe(canvas.parentElement);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      this.readColours();
      this.draw();
    });
  }

  whole() {
    return Math.max(this.trace.duration, NARROWEST);
  }

  layOut() {
    let top = AXIS;
    let group = null;
    this.groups = [];
    for (const row of this.trace.rows) {
      if (row.group !== group) {
        top += group === null ? 0 : GAP;
        group = row.group;
        this.groups.push({ name: group, top });
        top += GROUP;
      }
      row.top = top;
      top += ROW;
    }
    this.height = top + 12;
  }

  readColours() {
    const style = getComputedStyle(document.documentElement);
    this.colour = (name) => style.getPropertyValue(`--${name}`);
    const shades = Array.from({ length: SHADES }, (_, number) => `${FUNCTION}_${number}`);
    const names = [...Object.keys(KINDS), ...shades];
    this.colours = Object.fromEntries(names.map((name) => [name, this.colour(name)]));
  }

  resize() {
    this.width = this.canvas.parentElement.clientWidth;
    this.left = this.width < 640 ? 92 : 200;
    const scale = Math.min(window.devicePixelRatio || 1, HIGHEST / this.height);
    this.canvas.style.height = `${this.height}px`;
    this.canvas.width = Math.round(this.width * scale);
    this.canvas.height = Math.round(this.height * scale);
    this.context.setTransform(scale, 0, 0, scale, 0, 0);
    this.paint();
  }

  draw() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => {
      this.pending = false;
      this.paint();
    });
  }

  right() {
    return this.width - 16;
  }

  x(time) {
    const { from, to } = this.view;
    return this.left + ((time - from) / (to - from)) * (this.right() - this.left);
  }

  time(x) {
    const { from, to } = this.view;
    return from + ((x - this.left) / (this.right() - this.left)) * (to - from);
  }

  show(from, to) {
    const whole = this.whole();
    const span = Math.min(Math.max(to - from, NARROWEST), whole);
    const first = Math.min(Math.max((from + to - span) / 2, 0), whole - span);
    this.view = { from: first, to: first + span };
    this.changed(span < whole);
    this.draw();
  }

  showAll() {
    this.show(0, this.whole());
  }

  zoom(factor, around) {
    const { from, to } = this.view;
    this.show(around - (around - from) * factor, around + (to - around) * factor);
  }

  move(share) {
    const span = this.view.to - this.view.from;
    this.show(this.view.from + share * span, this.view.to + share * span);
  }

  // Shows one event, with some time around it.
  choose(index) {
    const { start, duration: durations } = this.trace.events;
    const around = Math.max(2 * durations[index], NARROWEST);
    this.chosen = index;
    this.show(start[index] - around, start[index] + durations[index] + around);
  }

  isWanted(index) {
    return !this.wanted || (this.trace.events.function[index] ?? "").toLowerCase().includes(this.wanted);
  }

  // The place in a row of its first event that may end after a time.
  first(row, time) {
    const { start } = this.trace.events;
    let [low, high] = [0, row.events.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (start[row.events[middle]] < time - row.longest) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  paint() {
    const { context } = this;
    context.clearRect(0, 0, this.width, this.height);
    context.textBaseline = "middle";
    this.paintAxis();
    this.paintLabels();
    context.save();
    context.beginPath();
    context.rect(this.left, 0, this.right() - this.left, this.height);
    context.clip();
    for (const row of this.trace.rows) this.paintRow(row);
    context.restore();
    this.paintPart();
    if (this.selected) {
      const [from, to] = this.selected;
      context.fillStyle = this.colour("shade");
      context.fillRect(from, AXIS, to - from, this.height - AXIS - 12);
    }
  }

  paintAxis() {
    const { context } = this;
    const { from, to } = this.view;
    const most = Math.max(2, Math.floor((this.right() - this.left) / 110));
    const rough = (to - from) / most;
    const unit = 10 ** Math.floor(Math.log10(rough));
    const step = unit * [1, 2, 5, 10].find((times) => times * unit >= rough);
    context.font = "12px system-ui, sans-serif";
    for (let time = Math.ceil(from / step) * step; time <= to; time += step) {
      const x = Math.round(this.x(time)) + 0.5;
      context.strokeStyle = this.colour("faint");
      context.beginPath();
      context.moveTo(x, AXIS - 4);
      context.lineTo(x, this.height - 12);
      context.stroke();
      context.fillStyle = this.colour("soft");
      const text = moment(time, step, to);
      const half = context.measureText(text).width / 2;
      context.fillText(text, Math.min(Math.max(x - half, this.left), this.right() - 2 * half), AXIS / 2);
    }
  }

  paintLabels() {
    const { context } = this;
    const write = (text, y, most) => {
      let shown = text;
      while (shown.length > 1 && context.measureText(shown).width > most) shown = `${shown.slice(0, -2)}…`;
      context.fillText(shown, 16, y);
    };
    for (const { name, top } of this.groups) {
      context.strokeStyle = this.colour("line");
      context.beginPath();
      context.moveTo(0, top + 0.5);
      context.lineTo(this.width, top + 0.5);
      context.stroke();
      context.font = "600 12.5px system-ui, sans-serif";
      context.fillStyle = this.colour("text");
      write(name, top + GROUP / 2 + 2, this.width - 32);
    }
    context.font = "12.5px system-ui, sans-serif";
    context.fillStyle = this.colour("soft");
    for (const row of this.trace.rows)
      write(this.width < 640 ? row.short : row.name, row.top + ROW / 2, this.left - 26);
  }

  // Long events are bars. In a column of pixels with only short ones, the colour is as strong as the
  // time that they take.
  paintRow(row) {
    const { context, view, colours } = this;
    const { kind, start, duration: durations, function: functions } = this.trace.events;
    const [left, width] = [this.left, Math.ceil(this.right() - this.left) + 1];
    const top = row.top + (ROW - BAR) / 2;
    const cover = new Float32Array(width);
    const longest = new Float32Array(width);
    const strongest = new Float32Array(width);
    const paints = new Array(width);
    const marks = [];
    for (let place = this.first(row, view.from); place < row.events.length; place++) {
      const index = row.events[place];
      if (start[index] > view.to) break;
      if (this.hidden.has(kind[index]) || start[index] + durations[index] < view.from) continue;
      if (!KINDS[kind[index]].lasts) {
        marks.push(index);
        continue;
      }
      const [from, to] = [this.x(start[index]), this.x(start[index] + durations[index])];
      const strength = this.isWanted(index) ? 1 : 0.12;
      const colour = colours[this.trace.colour(kind[index], functions[index])];
      if (to - from < 2) {
        const column = Math.min(Math.max(Math.floor(from - left), 0), width - 1);
        cover[column] += (to - from) * strength;
        strongest[column] = Math.max(strongest[column], strength);
        if (to - from >= longest[column]) [longest[column], paints[column]] = [to - from, colour];
        continue;
      }
      context.globalAlpha = strength;
      context.fillStyle = colour;
      const [begin, end] = [Math.max(from, left - 4), Math.min(to, this.right() + 4)];
      const gap = to - from > 4 ? 1 : 0;
      context.beginPath();
      context.roundRect(begin, top, end - begin - gap, BAR, to - from > 6 ? 3 : 0);
      context.fill();
      const label = functions[index] ?? KINDS[kind[index]].name;
      if (kind[index] === FUNCTION || functions[index] === null) this.write(label, begin, end, top);
      if (index === this.chosen) this.outline(begin, end, top);
    }
    for (let column = 0; column < width; column++) {
      if (!paints[column]) continue;
      context.globalAlpha = Math.min(1, Math.max(FAINTEST * strongest[column], cover[column]));
      context.fillStyle = paints[column];
      context.fillRect(left + column, top, 1, BAR);
    }
    this.paintMarks(marks, top);
    context.globalAlpha = 1;
  }

  write(text, begin, end, top) {
    const { context } = this;
    const from = Math.max(begin, this.left);
    context.font = "11.5px system-ui, sans-serif";
    if (end - from < 24 || context.measureText(text).width > end - from - 10) return;
    context.fillStyle = this.colour("inside");
    context.fillText(text, from + 5, top + BAR / 2 + 0.5);
  }

  outline(begin, end, top) {
    const { context } = this;
    context.strokeStyle = this.colour("text");
    context.lineWidth = 2;
    context.strokeRect(begin, top - 1, end - begin - 1, BAR + 2);
    context.lineWidth = 1;
  }

  // Events without a duration. Of those of a kind that lie close together, one is drawn.
  paintMarks(marks, top) {
    const { context } = this;
    const last = {};
    for (const index of marks) {
      const kind = this.trace.events.kind[index];
      const x = this.x(this.trace.events.start[index]);
      if (x - (last[kind] ?? -9) < 4) continue;
      last[kind] = x;
      context.globalAlpha = this.isWanted(index) ? 1 : 0.12;
      context.fillStyle = this.colours[kind];
      if (KINDS[kind].isQuiet) {
        context.fillRect(x - 1, top + BAR + 1, 2, 4);
        continue;
      }
      context.strokeStyle = this.colour("card");
      context.beginPath();
      context.moveTo(x - 5, top - 4);
      context.lineTo(x + 5, top - 4);
      context.lineTo(x, top + 5);
      context.closePath();
      context.stroke();
      context.fill();
    }
  }

  // Where the part that is shown lies in the whole trace.
  paintPart() {
    const { context, view } = this;
    const whole = this.whole();
    if (view.to - view.from >= whole) return;
    const span = this.right() - this.left;
    context.fillStyle = this.colour("faint");
    context.fillRect(this.left, this.height - 6, span, 4);
    context.fillStyle = this.colour("soft");
    const width = Math.max(8, ((view.to - view.from) / whole) * span);
    context.fillRect(
      this.left + Math.min((view.from / whole) * span, span - width),
      this.height - 6,
      width,
      4,
    );
  }

  // The event at a point. A mark lies above a bar, and a near event counts if there is none.
  at(x, y) {
    const row = this.trace.rows.find(({ top }) => y >= top && y < top + ROW);
    if (!row || x < this.left || x > this.right()) return null;
    const { kind, start, duration: durations } = this.trace.events;
    const reach = 5;
    let [best, distance] = [null, reach];
    for (let place = this.first(row, this.time(x - reach)); place < row.events.length; place++) {
      const index = row.events[place];
      const from = this.x(start[index]);
      if (from > x + reach) break;
      if (this.hidden.has(kind[index])) continue;
      const to = this.x(start[index] + durations[index]);
      const away = KINDS[kind[index]].lasts ? Math.max(0, from - x, x - to) : Math.abs(from - x) - reach;
      if (away <= distance) [best, distance] = [index, away];
    }
    return best;
  }
}
