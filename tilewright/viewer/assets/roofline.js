// Operations and bytes of each kernel beside what the machine can do.
"use strict";

const SLOPES = [["memory", "memory"], ["l3", "L3"], ["l2", "L2"]];

// Where a kernel is: operations for each byte, operations and bytes in a second, its share of the roof, and what bounds it.
function pointOf(model, call) {
  const { roofline } = model;
  if (!call.time || !model.inSeconds) return null;
  const rate = call.flops ? call.flops / call.time : null;
  const stream = call.bytes ? call.bytes / call.time : null;
  if (!roofline || !roofline.hertz || !call.bytes) return { rate, stream, share: null, bound: null, intensity: null };
  const peak = roofline.flops * roofline.hertz;
  const band = roofline.bandwidth.memory * roofline.hertz;
  const computing = (call.flops ?? 0) / peak;
  const moving = call.bytes / (sourceOf(model, call) * roofline.hertz);
  const slope = call.bytes / band;
  return {
    rate, stream, intensity: call.flops ? call.flops / call.bytes : null,
    share: Math.max(computing, moving) / call.time,
    bound: computing >= moving ? "multiply-adds" : computing >= slope ? "caches" : "bytes moved",
  };
}

// Bytes in a cycle from where so much data probably are: what a call has just written is near.
function sourceOf(model, call) {
  const { bandwidth } = model.roofline;
  return call.bytes > 24e6 ? bandwidth.memory : call.bytes > 1e6 ? bandwidth.l3 : bandwidth.l2;
}

const rooflineView = {
  title: "Roofline",
  hits: [],

  available() { return models.some((model) => model.roofline && model.roofline.hertz && model.hasTimes); },

  build(parent) {
    this.hits = [];
    const shown = models.filter((model) => model.roofline && model.roofline.hertz && model.hasTimes);
    const { roofline } = shown[0];
    parent.append(el("div", { class: "bar" },
      el("span", {}, `${roofline.machine}, ${roofline.threads} threads: `, el("b", {}, write.rate(roofline.flops * roofline.hertz)), " of float32"),
      ...SLOPES.map(([name, text]) => el("span", {}, `${text} ${write.stream(roofline.bandwidth[name] * roofline.hertz)}`)),
      el("span", { class: "quiet" }, shown[0].measured ? "times measured" : "times estimated by the cost model", "; roofs by the facts of the machine")));
    const points = shown.flatMap((model) => model.calls.map((call) => ({ model, call, at: pointOf(model, call) })).filter(({ at }) => at?.intensity && at.rate));
    if (!points.length) { parent.append(el("p", { class: "empty" }, "No kernel has counted operations and a time.")); return; }
    const xs = points.map(({ at }) => at.intensity);
    const ys = points.map(({ at }) => at.rate);
    const peak = roofline.flops * roofline.hertz;
    const low = 10 ** Math.floor(Math.log10(Math.min(0.05, ...xs)));
    const high = 10 ** Math.ceil(Math.log10(Math.max(100, ...xs)));
    const bottom = 10 ** Math.floor(Math.log10(Math.min(peak / 100, ...ys)));
    const box = el("div", { class: "chart", style: "margin: 8px" });
    parent.append(box);
    const draw = (plot) => this.draw(plot, roofline, points, low, high);
    const made = chart(box, (width, height) => ({
      width, height, padding: [14, 24, 6, 0], legend: { show: false }, cursor: { x: false, y: false, drag: { x: false } },
      scales: { x: { time: false, distr: 3, range: [low, high] }, y: { distr: 3, range: [bottom, 10 ** Math.ceil(Math.log10(Math.max(peak * 1.1, ...ys)))] } },
      axes: [{ ...axisOf(), label: "operations on floats for each byte of the arguments", labelFont: `11px ${theme.sans}`, labelSize: 20 },
        { ...axisOf(), size: 86, values: (_, ticks) => ticks.map((t) => (t === null ? "" : write.rate(t))) }],
      series: [{}, { show: true, stroke: "transparent", points: { show: false } }], hooks: { draw: [draw] },
    }), [[...xs].sort((a, b) => a - b), [...xs].sort((a, b) => a - b).map(() => peak)]);
    box.addEventListener("pointermove", (event) => {
      const found = this.nearest(box, event);
      box.style.cursor = found ? "pointer" : "";
      if (!found) { tip.hide(); return; }
      const { model, call, at } = found;
      tip.show(event, call.node, call.name, `${write.rate(at.rate)}, ${at.intensity.toFixed(1)} operations for each byte`, `${model.timeText(call.time)}, ${write.share(at.share)} of the roof`);
    });
    box.addEventListener("pointerleave", () => tip.hide());
    box.addEventListener("click", (event) => {
      const found = this.nearest(box, event);
      app.select(found ? { model: found.model.index, level: "kernels", id: found.call.number } : null);
    });
    this.made = made;
  },

  draw(plot, roofline, points, low, high) {
    const { ctx: context } = plot;
    const ratio = devicePixelRatio || 1;
    const at = (x, y) => [plot.valToPos(x, "x", true), plot.valToPos(y, "y", true)];
    const peak = roofline.flops * roofline.hertz;
    context.save();
    context.beginPath();
    context.rect(plot.bbox.left, plot.bbox.top, plot.bbox.width, plot.bbox.height);
    context.clip();
    context.font = `${11 * ratio}px ${theme.sans}`;
    context.lineWidth = 1.5 * ratio;
    SLOPES.forEach(([name, text], number) => {
      const band = roofline.bandwidth[name] * roofline.hertz;
      const ridge = peak / band;
      context.strokeStyle = number ? theme.strong : theme.quiet;
      context.beginPath();
      context.moveTo(...at(low, low * band));
      context.lineTo(...at(Math.min(ridge, high), Math.min(ridge, high) * band));
      context.stroke();
      const [x, y] = at(low * 1.5, low * 1.5 * band);
      if (y < plot.bbox.top + plot.bbox.height) { context.fillStyle = theme.quiet; context.fillText(text, x, y - 7 * ratio); }
    });
    context.strokeStyle = theme.quiet;
    context.beginPath();
    context.moveTo(...at(peak / (roofline.bandwidth.l2 * roofline.hertz), peak));
    context.lineTo(...at(high, peak));
    context.stroke();
    this.hits = points.map(({ model, call, at: point }) => {
      const [x, y] = at(point.intensity, point.rate);
      const radius = Math.max(3, Math.min(20, 34 * Math.sqrt(call.time / model.total))) * ratio;
      const chosen = app.selected?.level === "kernels" && app.selected.model === model.index && app.selected.id === call.number;
      context.beginPath();
      context.arc(x, y, radius, 0, 7);
      context.fillStyle = `color-mix(in srgb, ${model.index ? theme.good : theme.mark} 38%, transparent)`;
      context.fill();
      context.lineWidth = (chosen ? 3 : 1) * ratio;
      context.strokeStyle = chosen ? theme.accent : model.index ? theme.good : theme.mark;
      context.stroke();
      return { model, call, at: point, x: x / ratio, y: y / ratio, radius: radius / ratio };
    });
    context.restore();
  },

  nearest(box, event) {
    const { left, top } = box.getBoundingClientRect();
    const [x, y] = [event.clientX - left, event.clientY - top];
    let best = null;
    for (const hit of this.hits) {
      const apart = Math.hypot(hit.x - x, hit.y - y);
      if (apart < hit.radius + 4 && (!best || hit.radius <= best.radius)) best = hit;
    }
    return best;
  },

  selected() { this.made?.()?.redraw(false); },
  repaint() { app.show("roofline"); },
};
