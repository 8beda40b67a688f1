// Operations and bytes of each kernel beside what the machine can do.
"use strict";

// Where a kernel is: operations and bytes in a second, operations for each byte, its share of the machine's best speed
// and what sets that. Of estimated times the last two mean nothing: the machine's facts are what they were made of.
function pointOf(model, call) {
  if (!call.time || !model.inSeconds) return null;
  return {
    rate: call.flops ? call.flops / call.time : null,
    stream: call.bytes ? call.bytes / call.time : null,
    intensity: call.flops && call.bytes ? call.flops / call.bytes : null,
    share: call.percent === null ? null : call.percent / 100,
    bound: call.bound,
  };
}

const rooflineView = {
  title: "Roofline",
  hits: [],

  available() { return models.some((model) => model.roofline && model.hasTimes); },

  build(parent) {
    this.hits = [];
    const shown = models.filter((model) => model.roofline && model.hasTimes);
    const { roofline } = shown[0];
    const roofs = this.roofs(roofline, shown);
    parent.append(el("div", { class: "bar" },
      el("span", {}, `${roofline.machine}, ${roofline.threads} ${roofline.threads === 1 ? "thread" : "threads"}: `,
        roofs.map(([name, rate], number) => [number ? ", " : "", el("b", {}, write.rate(rate)), ` ${name}`])),
      ...Object.entries(roofline.bandwidth).map(([name, rate]) => el("span", {}, `${name} ${write.stream(rate)}`)),
      el("span", { class: "quiet" }, roofline.measured ? "measured on this machine" : "by the facts of the cost model")));
    const points = shown.flatMap((model) => model.calls.map((call) => ({ model, call, at: pointOf(model, call) })).filter(({ at }) => at?.intensity && at.rate));
    if (!points.length) { parent.append(el("p", { class: "empty" }, "No kernel has counted operations and a time.")); return; }
    const xs = points.map(({ at }) => at.intensity);
    const ys = points.map(({ at }) => at.rate);
    const peak = Math.max(...roofs.map(([, rate]) => rate));
    const low = 10 ** Math.floor(Math.log10(Math.min(0.05, ...xs)));
    const high = 10 ** Math.ceil(Math.log10(Math.max(100, ...xs)));
    const bottom = 10 ** Math.floor(Math.log10(Math.min(peak / 100, ...ys)));
    const box = el("div", { class: "chart", style: "margin: 8px" });
    parent.append(box);
    const draw = (plot) => this.draw(plot, roofline, roofs, points, low, high);
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
      tip.show(event, call.node, call.name, `${write.rate(at.rate)}, ${at.intensity.toFixed(1)} operations for each byte`, [model.timeText(call.time), at.share === null ? "" : `${write.share(at.share)} of the machine's best`].filter(Boolean).join(", "));
    });
    box.addEventListener("pointerleave", () => tip.hide());
    box.addEventListener("click", (event) => {
      const found = this.nearest(box, event);
      app.select(found ? { model: found.model.index, level: "kernels", id: found.call.number } : null);
    });
    this.made = made;
  },

  // The roofs that some kernel is below, and always that of float32.
  roofs(roofline, shown) {
    const used = new Set(["f32", ...shown.flatMap((model) => model.calls.map((call) => call.bound))]);
    return Object.entries(roofline.flops).filter(([name]) => used.has(name));
  },

  draw(plot, roofline, roofs, points, low, high) {
    const { ctx: context } = plot;
    const ratio = devicePixelRatio || 1;
    const at = (x, y) => [plot.valToPos(x, "x", true), plot.valToPos(y, "y", true)];
    const peak = Math.max(...roofs.map(([, rate]) => rate));
    context.save();
    context.beginPath();
    context.rect(plot.bbox.left, plot.bbox.top, plot.bbox.width, plot.bbox.height);
    context.clip();
    context.font = `${11 * ratio}px ${theme.sans}`;
    context.lineWidth = 1.5 * ratio;
    const bands = Object.entries(roofline.bandwidth);
    bands.forEach(([name, band], number) => {
      const ridge = Math.min(peak / band, high);
      context.strokeStyle = number === bands.length - 1 ? theme.quiet : theme.strong;
      context.beginPath();
      context.moveTo(...at(low, low * band));
      context.lineTo(...at(ridge, ridge * band));
      context.stroke();
      const [x, y] = at(low * 1.5, low * 1.5 * band);
      context.fillStyle = theme.quiet;
      if (y < plot.bbox.top + plot.bbox.height) context.fillText(name, x, y - 7 * ratio);
    });
    for (const [name, rate] of roofs) {
      context.strokeStyle = theme.quiet;
      context.beginPath();
      context.moveTo(...at(rate / Math.max(...bands.map(([, band]) => band)), rate));
      context.lineTo(...at(high, rate));
      context.stroke();
      context.textAlign = "right";
      context.fillText(name, plot.bbox.left + plot.bbox.width - 6 * ratio, at(high, rate)[1] - 6 * ratio);
      context.textAlign = "left";
    }
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
