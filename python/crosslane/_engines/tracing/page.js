// The page around the time line. All text becomes text, and never markup.

const at = (id) => document.getElementById(id);
const trace = read();

function made(name, text = "", style = "") {
  const element = document.createElement(name);
  if (text !== "") element.textContent = text;
  if (style) element.className = style;
  return element;
}

// The sign of a kind in the legend and in tables.
function sign(kind, name = null) {
  const { lasts, isQuiet } = KINDS[kind];
  const element = made("i", "", lasts ? "" : isQuiet ? "quiet" : "mark");
  element.style.color = `var(--${trace.colour(kind, name)})`;
  return element;
}

function showNumbers(totals) {
  const of = (kind, what) =>
    totals.filter((total) => total.kind === kind).reduce((sum, total) => sum + total[what], 0);
  const numbers = [
    ["Duration", duration(trace.duration)],
    ["Rows", count(of(FUNCTION, "rows"))],
    ["In functions", duration(of(FUNCTION, "time"))],
    ["Copying", duration(of("copy_in", "time") + of("copy_out", "time"))],
    ["Workers", count(trace.workers)],
    ["Exceptions", count(of("exception", "rows"))],
    ["Lost workers", count(of("lane_lost", "events"))],
  ];
  for (const [name, value] of numbers) {
    const box = made("div");
    box.append(made("dt", name), made("dd", value));
    at("numbers").append(box);
  }
}

function showTotals(totals) {
  const most = Math.max(...totals.map((total) => total.time), 1);
  let before;
  for (const total of totals) {
    const { lasts, name } = KINDS[total.kind];
    const row = made("tr", "", before === total.function ? "more" : "");
    before = total.function;
    const head = made("th", total.function ?? "whole file");
    head.scope = "row";
    const what = made("td", "", "text");
    what.append(sign(total.kind, total.function), name);
    const share = made("td", "", "share");
    if (lasts) {
      const bar = made("div");
      bar.style.width = `${(100 * total.time) / most}%`;
      bar.style.background = `var(--${trace.colour(total.kind, total.function)})`;
      share.append(bar);
    }
    const times = [total.time / total.events, total.longest, total.time].map((time) =>
      lasts ? duration(time) : "",
    );
    const cells = [count(total.events), total.rows ? count(total.rows) : "", ...times];
    row.append(head, what, ...cells.map((text) => made("td", text)), share);
    at("totals").tBodies[0].append(row);
  }
}

function showSlowest(timeLine) {
  const { start, duration: durations, rows, function: functions, detail } = trace.events;
  const calls = slowestOf(trace, 10);
  at("slow").hidden = calls.length === 0;
  for (const index of calls) {
    const row = made("tr");
    const head = made("th");
    head.scope = "row";
    const button = made("button", functions[index]);
    button.type = "button";
    button.title = "Show this call in the time line";
    button.addEventListener("click", () => {
      timeLine.choose(index);
      at("chart").scrollIntoView({ block: "nearest" });
    });
    head.append(button);
    const each = duration(durations[index] / Math.max(1, rows[index]));
    const cells = [duration(durations[index]), count(rows[index]), each, duration(start[index])];
    const text = made("td", detail.get(index), "text arguments");
    text.title = detail.get(index);
    row.append(head, ...cells.map((cell) => made("td", cell)), text);
    at("slowest").tBodies[0].append(row);
  }
}

function showLegend(timeLine) {
  for (const kind of trace.kinds) {
    const button = made("button");
    button.type = "button";
    button.dataset.kind = kind;
    button.setAttribute("aria-pressed", "true");
    button.append(sign(kind), KINDS[kind].name);
    button.addEventListener("click", () => {
      const isShown = timeLine.hidden.delete(kind);
      if (!isShown) timeLine.hidden.add(kind);
      button.setAttribute("aria-pressed", String(isShown));
      timeLine.draw();
    });
    at("legend").append(button);
  }
}

function begin() {
  at("title").textContent = trace.title;
  at("about").textContent = trace.about;
  if (trace.title) document.title = `${trace.title.slice(0, 60)} – Crosslane trace`;
  if (trace.dropped > 0) {
    at("dropped").hidden = false;
    at("dropped").textContent =
      `The trace was full: it has the first ${count(trace.events.length)} events, and ${count(trace.dropped)} later ones are missing.`;
  }
  const timeLine = new TimeLine(at("timeline"), trace, (isPart) => {
    at("all").disabled = !isPart;
  });
  new Gestures(timeLine, at("hint"));
  const totals = totalsOf(trace);
  showNumbers(totals);
  showLegend(timeLine);
  showSlowest(timeLine);
  showTotals(totals);
  at("all").addEventListener("click", () => timeLine.showAll());
  at("search").addEventListener("input", () => {
    timeLine.wanted = at("search").value.trim().toLowerCase();
    timeLine.draw();
  });
  return timeLine;
}

const timeLine = begin();
