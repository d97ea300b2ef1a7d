// Work in frames. The work of one frame takes at most FRAME_MS, so that scrolling stays smooth; the rest is done in the next frames.

const FRAME_MS = 8; // without style, layout and paint
const due = new Set();
let frame = 0;

// Call `work` once, in one of the next frames.
export function inFrame(work) {
  due.add(work);
  frame ||= requestAnimationFrame(run);
}

function run() {
  frame = 0;
  const end = performance.now() + FRAME_MS;
  for (const work of [...due]) {
    due.delete(work);
    work();
    if (performance.now() >= end) break;
  }
  if (due.size) frame ||= requestAnimationFrame(run);
}
