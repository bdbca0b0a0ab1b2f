// The profile of Python functions: one bar for each line, below the line that has called it. A bar is as
// wide as its part of the samples.

// Bars of a smaller part of the width are left out.
const LEAST = 0.002;

class Profile {
  constructor(element, tree) {
    this.element = element;
    this.tree = tree;
    this.show([tree]);
  }

  // Shows a line in the whole width, below those that have called it.
  show(path) {
    const shown = path[path.length - 1];
    const bars = path
      .slice(1, -1)
      .map((line, depth) => this.bar(line, path.slice(0, depth + 2), depth, 0, 1));
    for (const bar of bars) bar.classList.add("caller");
    this.add(bars, shown, path, Math.max(0, path.length - 2), 0, 1);
    this.element.replaceChildren(...bars);
    this.element.style.height = `${1.5 * (1 + Math.max(-1, ...bars.map((bar) => Number(bar.dataset.depth))))}rem`;
  }

  add(bars, line, path, depth, left, width) {
    if (width < LEAST) return;
    const isRoot = line === this.tree;
    if (!isRoot) bars.push(this.bar(line, path, depth, left, width));
    for (const below of line.called) {
      const part = (width * below.samples) / line.samples;
      this.add(bars, below, [...path, below], isRoot ? depth : depth + 1, left, part);
      left += part;
    }
  }

  bar(line, path, depth, left, width) {
    const name = `${line.name} (${line.file.split("/").pop()}:${line.line})`;
    const bar = made("button", name);
    bar.type = "button";
    const part = few.format((100 * line.samples) / this.tree.samples);
    bar.title = `${line.name}\n${line.file}:${line.line}\n${part} % of the samples (${count(line.samples)})`;
    bar.dataset.depth = depth;
    bar.style.top = `${1.5 * depth}rem`;
    bar.style.left = `${100 * left}%`;
    bar.style.width = `${100 * width}%`;
    bar.style.background = `var(--${shadeOf(line.file)})`;
    const isShown = this.shown === line;
    bar.addEventListener("click", () => {
      this.shown = isShown ? undefined : line;
      this.show(isShown ? [this.tree] : path);
    });
    return bar;
  }
}

// Lines of one file have one colour.
function shadeOf(file) {
  let sum = 0;
  for (const letter of file) sum = (sum * 31 + letter.codePointAt(0)) % 65521;
  return sum % SHADES === 0 ? FUNCTION : `${FUNCTION}_${sum % SHADES}`;
}

function showProfile(tree) {
  if (!tree) return;
  at("profile").hidden = false;
  at("samples").textContent =
    tree.samples > 0
      ? `${count(tree.samples)} samples, one each 5 ms, of Python functions at work`
      : "no samples: no Python function was at work for 5 ms";
  new Profile(at("lines"), tree);
}

showProfile(trace.profile);
