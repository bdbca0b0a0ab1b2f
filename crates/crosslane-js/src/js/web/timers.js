// setTimeout and the like, for functions that return promises. A timer lives as long as its batch;
// a timer of a set-up lives until it is due. Timers run only while a call waits for promises.

const { now } = Date;
let timers = list();
let lastTimer = 0;
// Whether timers that are started now outlive the batch.
let timersOutliveBatch = false;

function setTimer(call, milliseconds, repeat, passed) {
  if (typeof call !== "function") throw new TypeError(`a timer calls a function, not ${show(call)}`);
  const delay = max(0, Number(milliseconds) || 0);
  timers[timers.length] = {
    id: ++lastTimer,
    due: now() + delay,
    delay,
    repeat,
    call,
    passed,
    outlivesBatch: timersOutliveBatch,
  };
  return lastTimer;
}

function clearTimer(id) {
  timers = chosenOf(timers, (timer) => timer.id !== id);
}

globalThis.setTimeout = (call, milliseconds, ...passed) => setTimer(call, milliseconds, false, passed);
globalThis.setInterval = (call, milliseconds, ...passed) => setTimer(call, milliseconds, true, passed);
globalThis.clearTimeout = globalThis.clearInterval = clearTimer;

// Called when a batch begins, or begins again.
function clearTimers() {
  timersOutliveBatch = false;
  if (timers.length > 0) timers = chosenOf(timers, (timer) => timer.outlivesBatch);
}

// Called after a set-up: its timers outlive the batch, and so do those that its promises start
// before the next batch.
function keepTimers() {
  timersOutliveBatch = true;
  for (let i = 0; i < timers.length; i++) timers[i].outlivesBatch = true;
}

// Runs the timers that are due. Returns whether there were any.
function runTimers() {
  const due = sortIn(
    chosenOf(timers, (timer) => timer.due <= now()),
    (a, b) => a.due - b.due || a.id - b.id,
  );
  for (let i = 0; i < due.length; i++) {
    const timer = due[i];
    if (chosenOf(timers, (other) => other === timer).length === 0) continue;
    if (timer.repeat) timer.due = now() + max(1, timer.delay);
    else clearTimer(timer.id);
    timersOutliveBatch = timer.outlivesBatch;
    try {
      apply(timer.call, undefined, timer.passed);
    } finally {
      timersOutliveBatch = false;
    }
  }
  return due.length > 0;
}

// The time at which the first timer is due.
function firstTimer() {
  let first = Infinity;
  for (let i = 0; i < timers.length; i++) first = min(first, timers[i].due);
  return first;
}

function neverSettles() {
  return new Error(
    "a promise that nothing can settle: there are timers here, but no files or sockets to wait for",
  );
}
