// setTimeout for functions that return promises. A timer lives as long as its batch.

const { now } = Date;
let timers = [];
let lastTimer = 0;

function setTimer(call, milliseconds, repeat, passed) {
  if (typeof call !== "function") throw new TypeError(`a timer calls a function, not ${show(call)}`);
  const delay = Math.max(0, Number(milliseconds) || 0);
  timers.push({ id: ++lastTimer, due: now() + delay, delay, repeat, call: () => call(...passed) });
  return lastTimer;
}

function clearTimer(id) {
  timers = timers.filter((timer) => timer.id !== id);
}

globalThis.setTimeout = (call, milliseconds, ...passed) => setTimer(call, milliseconds, false, passed);
globalThis.setInterval = (call, milliseconds, ...passed) => setTimer(call, milliseconds, true, passed);
globalThis.clearTimeout = globalThis.clearInterval = clearTimer;

function clearTimers() {
  if (timers.length > 0) timers = [];
}

// Calls what is due. Whether anything was.
function runTimers() {
  const due = timers.filter((timer) => timer.due <= now()).sort((a, b) => a.due - b.due || a.id - b.id);
  for (const timer of due) {
    if (!timers.includes(timer)) continue;
    if (timer.repeat) timer.due = now() + Math.max(1, timer.delay);
    else clearTimer(timer.id);
    timer.call();
  }
  return due.length > 0;
}

// When the first timer is due.
function firstTimer() {
  return timers.reduce((first, { due }) => Math.min(first, due), Infinity);
}

function neverSettles() {
  return new Error(
    "a promise that nothing can settle: there are timers here, but no files or sockets to wait for",
  );
}
