// The arena: calls to the right, bytes upwards, a rectangle for each tensor; below it how much is in use.
"use strict";

const memoryView = {
  title: "Memory",
  maps: [],

  available() { return models.some((model) => model.memory.some((memory) => memory.tensors.length)); },

  build(parent) {
    this.maps = [];
    const most = Math.max(1, ...models.flatMap((model) => model.memory.map((memory) => memory.total))); // one scale for all
    for (const model of models) {
      model.memory.forEach((memory, number) => {
        if (!memory.tensors.length) return;
        const peak = Math.max(...memory.alive);
        const at = memory.alive.indexOf(peak);
        parent.append(el("div", { class: "bar" }, models.length > 1 ? el("b", {}, model.name) : "", model.memory.length > 1 ? `part ${number + 1}` : "",
          el("span", {}, "arena ", el("b", {}, write.bytes(memory.total))), el("span", {}, `most in use ${write.bytes(peak)}, at call ${at + 1} (${model.calls[memory.first + at]?.node ?? ""})`),
          el("span", {}, `without sharing ${write.bytes(memory.unshared)}`), el("span", {}, write.counted(memory.tensors.length, "tensor"))));
        const map = el("div", { class: "chart", style: "flex: 3 1 240px" });
        parent.append(map);
        this.map(map, model, memory, at, most);
        const used = el("div", { class: "chart", style: "flex: 1 1 130px; max-height: 190px" });
        parent.append(used);
        this.used(used, memory, Math.max(...models.flatMap((each) => each.memory.flatMap((one) => one.alive))));
      });
    }
  },

  map(parent, model, memory, peak, most) {
    const steps = memory.alive.length;
    const left = 76;
    let chosen = null;
    const place = (tensor, width, height) => {
      const across = (width - left - 10) / steps;
      const up = (height - 30) / most;
      return [left + tensor.first * across, 8 + (most - tensor.offset - tensor.size) * up, (tensor.last - tensor.first + 1) * across, tensor.size * up];
    };
    const made = canvasIn(parent, (context, width, height) => {
      const across = (width - left - 10) / steps;
      context.font = `11px ${theme.sans}`;
      context.textBaseline = "middle";
      context.fillStyle = theme.surface;
      context.fillRect(left, 8, width - left - 10, height - 30);
      context.fillStyle = theme.quiet;
      context.textAlign = "right";
      for (const part of [0, 0.25, 0.5, 0.75, 1]) context.fillText(write.bytes(part * most), left - 8, Math.max(12, 8 + (1 - part) * (height - 30)));
      context.textAlign = "center";
      const every = Math.max(1, Math.ceil(steps / Math.max(2, (width - left) / 70)));
      for (let step = 0; step < steps; step += every) context.fillText(String(step + 1), left + (step + 0.5) * across, height - 10);
      context.textAlign = "left";
      memory.tensors.forEach((tensor, number) => {
        const [x, y, w, h] = place(tensor, width, height);
        const hue = (number * 137.508) % 360;
        context.fillStyle = theme.dark ? `hsl(${hue} 34% 38%)` : `hsl(${hue} 58% 78%)`;
        context.fillRect(x, y, w, h);
        context.strokeStyle = number === chosen ? theme.accent : theme.page;
        context.lineWidth = number === chosen ? 3 : 0.7;
        context.strokeRect(x, y, w, h);
        if (w > 60 && h > 13) {
          context.fillStyle = theme.text;
          fitText(context, tensor.name.split("/").slice(-2).join("/").replace(/_output_0$/, "") || "unnamed", x + 4, y + Math.min(h / 2, 12), w - 8);
        }
      });
      context.strokeStyle = theme.mark;
      context.lineWidth = 1.5;
      context.setLineDash([4, 3]);
      const x = left + (peak + 0.5) * across;
      context.beginPath(); context.moveTo(x, 8); context.lineTo(x, height - 22); context.stroke();
      context.setLineDash([]);
      const now = app.selected;
      if (now?.level === "kernels" && now.model === model.index && now.id !== undefined && now.id >= memory.first && now.id < memory.first + steps) {
        context.fillStyle = theme.accent;
        context.fillRect(left + (now.id - memory.first) * across, height - 21, Math.max(3, across), 4);
      }
    }, { "aria-label": `Memory of ${model.name}` });
    this.maps.push(made);
    const hit = (event) => {
      const { clientWidth: width, clientHeight: height } = made.canvas;
      return memory.tensors.findLastIndex((tensor) => { const [x, y, w, h] = place(tensor, width, height); return event.offsetX >= x && event.offsetX <= x + w && event.offsetY >= y && event.offsetY <= y + h; });
    };
    made.canvas.addEventListener("pointermove", (event) => {
      const number = hit(event);
      if (number < 0) { tip.hide(); return; }
      const t = memory.tensors[number];
      tip.show(event, t.name || "a tensor", `${write.bytes(t.size)} at ${write.number(t.offset)}`, `made by call ${t.first + 1}, needed until call ${t.last + 1}`);
    });
    made.canvas.addEventListener("pointerleave", () => tip.hide());
    made.canvas.addEventListener("click", (event) => {
      const number = hit(event);
      chosen = number < 0 ? null : number;
      made.repaint();
      if (number >= 0) app.select({ model: model.index, level: "kernels", id: memory.first + memory.tensors[number].first });
    });
  },

  used(parent, memory, peak) {
    chart(parent, (width, height) => ({
      width, height, padding: [8, 10, 0, 0], legend: { show: false }, cursor: { y: false, drag: { x: false } },
      scales: { x: { time: false, range: [0.5, memory.alive.length + 0.5] }, y: { range: [0, Math.max(1, peak * 1.08)] } },
      axes: [{ ...axisOf(), size: 26, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000] }, { ...axisOf(), size: 76, values: (_, ticks) => ticks.map((t) => write.bytes(t)) }],
      series: [{}, { stroke: theme.accent, fill: `color-mix(in srgb, ${theme.accent} 22%, transparent)`, width: 1.5, paths: uPlot.paths.stepped({ align: 1 }), points: { show: false } }],
    }), [[...memory.alive, 0].map((_, k) => k + 0.5), [...memory.alive, memory.alive.at(-1)]]);
  },

  selected() { this.maps.forEach((map) => map.repaint()); },
  repaint() { app.show("memory"); },
};

const axisOf = () => ({ stroke: theme.quiet, grid: { stroke: theme.line, width: 1 }, ticks: { stroke: theme.line }, font: `11px ${theme.sans}` });

// A chart of uPlot that fills its parent.
function chart(parent, options, data) {
  let made = null;
  const size = () => [Math.max(120, parent.clientWidth), Math.max(80, parent.clientHeight)];
  const make = () => { made?.destroy(); made = new uPlot(options(...size()), data, parent); };
  requestAnimationFrame(() => { if (parent.isConnected) { make(); new ResizeObserver(() => { const [width, height] = size(); made.setSize({ width, height }); }).observe(parent); } });
  return () => made;
}
