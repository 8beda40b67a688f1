// Colours of the theme, of operators, and of scales. Canvases read them again when the theme changes.
"use strict";

const theme = {
  read() {
    const style = getComputedStyle(document.documentElement);
    for (const name of ["page", "surface", "raised", "line", "strong", "text", "quiet", "faint", "accent", "accent-soft",
      "mark", "warn", "good", "bad", "box", "group", "group-deep", "edge"]) {
      this[name] = style.getPropertyValue(`--${name}`).trim();
    }
    this.dark = matchMedia("(prefers-color-scheme: dark)").matches;
    this.sans = getComputedStyle(document.body).fontFamily;
  },
};
theme.read();

const FAMILIES = [
  [/conv|winograd/i, 215], [/matmul|gemm|linear|einsum|addmm|bmm|attention|dot/i, 255], [/norm/i, 165],
  [/pool|reduce|mean|sum|max$|argm/i, 190], [/softmax|sigmoid|relu|gelu|tanh|erf|silu|clip|hardswish|act/i, 28],
  [/add|sub|mul|div|pow|sqrt|exp|log|neg|where|equal|greater|less|and|or|not|min/i, 48],
  [/reshape|transpose|concat|slice|split|squeeze|gather|expand|pad|view|permute|flatten|resize|cast/i, 330],
  [/quant/i, 290],
];

function hueOf(operator) {
  const found = FAMILIES.find(([pattern]) => pattern.test(operator));
  return found ? found[1] : null;
}

// From nothing to the most there is, in one hue that gets stronger.
function heat(share) {
  const at = Math.max(0, Math.min(1, share));
  const from = theme.dark ? [36, 43, 52] : [255, 255, 255];
  const middle = theme.dark ? [128, 62, 30] : [253, 196, 128];
  const to = theme.dark ? [255, 138, 76] : [217, 72, 15];
  const [a, b, part] = at < 0.5 ? [from, middle, 2 * at] : [middle, to, 2 * at - 1];
  return `rgb(${a.map((x, k) => Math.round(x + (b[k] - x) * part)).join(",")})`;
}

function inkOn(share) { return !theme.dark ? (share > 0.8 ? "#ffffff" : theme.text) : share > 0.8 ? "#16100c" : theme.text; }

// How warm an item or group is by what is shown: 0 to 1, or null where nothing is known of it.
function warmth(graph, mode, value) {
  if (mode === "time") return value.time ? Math.sqrt(Math.min(1, value.time / mostOf(graph, "mostTime"))) : 0;
  if (mode === "error") {
    if (value.error === null) return null;
    if (value.error === Infinity) return 1;
    const most = mostOf(graph, "mostError");
    if (most <= 0) return 0;
    const low = Math.log10(Math.max(most * 1e-6, 1e-12));
    return value.error <= 0 ? 0 : Math.max(0, (Math.log10(value.error) - low) / (Math.log10(most) - low));
  }
  return null;
}

function fillOf(graph, mode, item) {
  if (mode !== "operator") {
    const warm = warmth(graph, mode, item);
    return warm === null ? theme.box : heat(warm);
  }
  if (item.known) return theme.group;
  const hue = hueOf(item.label);
  if (hue === null) return theme.box;
  return theme.dark ? `hsl(${hue} 38% 27%)` : `hsl(${hue} 75% 92%)`;
}
