// Elements, and how numbers are written. What the data say becomes text nodes only, never markup.
"use strict";

// Names may hold characters that show nothing, or turn the direction of the text beside them: these are written out.
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;
const visible = (text) => text.replace(UNSEEN, (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`);

function el(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "class") made.className = value;
    else if (name === "style") made.style.cssText = value;
    else made.setAttribute(name, value === true ? "" : visible(String(value)));
  }
  made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== "")
    .map((child) => (child instanceof Node ? child : visible(String(child)))));
  return made;
}

const byId = (id) => document.getElementById(id);

function scaled(value, units, base = 1000) {
  let at = 0;
  while (Math.abs(value) >= base && at < units.length - 1) { value /= base; at += 1; }
  const digits = Math.abs(value) >= 100 || (at === 0 && Number.isInteger(value)) ? 0 : Math.abs(value) >= 10 ? 1 : 2;
  return `${value.toFixed(digits)} ${units[at]}`;
}

const write = {
  time: (seconds) => (seconds === null ? "" : scaled(seconds * 1e9, ["ns", "µs", "ms", "s"])),
  cycles: (cycles) => (cycles === null ? "" : scaled(cycles, ["cycles", "k cycles", "M cycles", "G cycles"])),
  bytes: (bytes) => (bytes === null ? "" : scaled(bytes, ["B", "KiB", "MiB", "GiB"], 1024)),
  flops: (flops) => (flops === null ? "" : scaled(flops, ["flop", "kflop", "Mflop", "Gflop", "Tflop"])),
  rate: (flops) => (flops === null ? "" : scaled(flops, ["flop/s", "kflop/s", "Mflop/s", "Gflop/s", "Tflop/s"])),
  stream: (bytes) => (bytes === null ? "" : scaled(bytes, ["B/s", "kB/s", "MB/s", "GB/s"])),
  share: (share) => (share === null ? "" : `${(100 * share).toFixed(share < 0.1 ? 1 : 0)} %`),
  error: (error, digits = 2) => (error === null || error === undefined ? "" : Number.isFinite(error) ? error.toExponential(digits) : "∞ (it should be 0)"),
  counted: (count, what) => `${count.toLocaleString("en")} ${what}${count === 1 ? "" : "s"}`,
  number: (number) => (number === null ? "" : number.toLocaleString("en")),
};

// A row of buttons of which one is pressed.
function choice(label, options, current, choose) {
  const row = el("span", { class: "segmented", role: "group", "aria-label": label });
  for (const [value, text, title] of options) {
    row.append(el("button", {
      type: "button", "aria-pressed": String(value === current), "data-value": value, title,
      onclick: () => choose(value),
    }, text));
  }
  return row;
}

function shortened(text, most) {
  return text.length <= most ? text : `${text.slice(0, Math.ceil(most / 2) - 1)}…${text.slice(-Math.floor(most / 2))}`;
}

// A text on a canvas, shortened to the room that there is.
function fitText(context, text, x, y, room) {
  let shown = shortened(visible(text.replace(/[\n\t]/g, "␣")), 120);
  if (context.measureText(shown).width > room) {
    let most = Math.max(1, Math.floor(shown.length * room / context.measureText(shown).width));
    while (most > 1 && context.measureText(shortened(shown, most)).width > room) most -= 1;
    shown = shortened(shown, most);
  }
  context.fillText(shown, x, y);
}

const tip = {
  show(event, ...lines) {
    const box = byId("tip");
    box.replaceChildren(...lines.filter(Boolean).map((line, at) => el("span", { class: at ? "quiet" : "" }, line)));
    box.hidden = false;
    const { width, height } = box.getBoundingClientRect();
    box.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - width - 6))}px`;
    box.style.top = `${Math.max(4, Math.min(event.clientY + 16, innerHeight - height - 6))}px`;
  },
  hide() { byId("tip").hidden = true; },
};

// Draws on a canvas that fills its parent, in CSS pixels, whenever that changes its size.
function canvasIn(parent, draw, properties = {}) {
  const canvas = el("canvas", { class: "own", ...properties });
  parent.append(canvas);
  const context = canvas.getContext("2d");
  let asked = false;
  const paint = () => {
    asked = false;
    const { clientWidth: width, clientHeight: height } = canvas;
    const ratio = devicePixelRatio || 1;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    if (width && height) draw(context, width, height);
  };
  const repaint = () => { if (!asked) { asked = true; requestAnimationFrame(paint); } };
  new ResizeObserver(repaint).observe(canvas);
  return { canvas, repaint, paint };
}
