// One call of the model from left to right: its modules above, and below them the kernels, as wide as they take long.
"use strict";

const ROW = 22;

class Timeline {
  constructor(parent, model, shared) {
    this.model = model;
    this.shared = shared;
    const box = el("div", { class: "chart" });
    parent.append(box);
    Object.assign(this, canvasIn(box, (context, width, height) => this.draw(context, width, height), { tabindex: "0", "aria-label": `Timeline of ${model.name}` }));
    const starts = [];
    let now = 0;
    for (const call of model.calls) { starts.push(now); now += call.time ?? 0; }
    this.starts = starts;
    this.total = now || 1; // of two models the longer one, so that both have one scale
    for (const other of models) if (other.measured === model.measured && other.inSeconds === model.inSeconds) this.total = Math.max(this.total, other.total);
    this.spans = this.modules();
    this.depth = 1 + Math.max(-1, ...this.spans.map((span) => span.depth));
    this.listen();
  }

  // Runs of calls in the same group, for each depth of groups.
  modules() {
    const { model } = this;
    const lineages = model.calls.map((call) => {
      const found = [];
      for (let group = call.group; group >= 0; group = model.groups[group].parent) found.unshift(group);
      return found;
    });
    const spans = [];
    const open = [];
    lineages.forEach((groups, number) => {
      const begin = this.starts[number];
      const end = begin + (model.calls[number].time ?? 0);
      for (let depth = 0; depth < Math.max(groups.length, open.length); depth += 1) {
        if (open[depth] && open[depth].group === groups[depth]) { open[depth].end = end; continue; }
        open.length = Math.min(open.length, depth);
        if (groups[depth] === undefined) break;
        const span = { group: groups[depth], depth, begin, end };
        open[depth] = span;
        spans.push(span);
      }
    });
    return spans;
  }

  x(time, width) { return (time / this.total - this.shared.from) / (this.shared.to - this.shared.from) * width; }

  draw(context, width, height) {
    const { model } = this;
    context.font = `11px ${theme.sans}`;
    context.textBaseline = "middle";
    this.axis(context, width);
    const top = 24;
    for (const span of this.spans) this.bar(context, width, top + span.depth * ROW, span.begin, span.end, theme[span.depth % 2 ? "group-deep" : "group"], model.groupName(span.group), theme.line, ROW);
    const kernels = top + this.depth * ROW + 6;
    this.kernelsAt = kernels;
    const most = Math.max(mostOf(model.graph("kernels"), "mostTime"), 1e-30);
    this.shares(context, width, kernels + 46 + 14, Math.min(220, height - kernels - 46 - 30));
    model.calls.forEach((call, number) => {
      const end = this.starts[number] + (call.time ?? 0);
      const chosen = this.isChosen(number);
      const share = Math.sqrt((call.time ?? 0) / most);
      this.bar(context, width, kernels, this.starts[number], end, heat(share), call.node.split("/").slice(-2).join("/"), chosen ? theme.accent : theme.line, 46, inkOn(share), chosen ? 2.5 : 1);
    });
  }

  // Below the kernels, what share of the machine's best speed each reaches: what is empty is lost.
  shares(context, width, top, height) {
    if (height < 40 || !this.model.calls.some((call) => call.percent !== null)) return;
    const up = (share) => top + 16 + (height - 16) * (1 - Math.min(1, share));
    context.fillStyle = theme.quiet;
    context.fillText("share of the machine's best speed", 4, top + 4);
    context.fillStyle = theme.group;
    context.fillRect(0, up(1), width, height - 16);
    this.model.calls.forEach((call, number) => {
      const [left, right] = [this.x(this.starts[number], width), this.x(this.starts[number] + (call.time ?? 0), width)];
      if (right < 0 || left > width || call.percent === null) return;
      context.fillStyle = this.isChosen(number) ? theme.accent : theme.edge;
      context.fillRect(left, up(call.percent / 100), Math.max(0.5, right - left - (right - left > 4 ? 1 : 0)), up(0) - up(call.percent / 100));
    });
    context.strokeStyle = theme.line;
    context.fillStyle = theme.quiet;
    for (const share of [0.5, 1]) {
      context.beginPath();
      context.moveTo(0, up(share));
      context.lineTo(width, up(share));
      context.stroke();
      context.fillText(write.share(share), 4, up(share) + 8);
    }
  }

  isChosen(number) {
    const chosen = app.selected;
    if (!chosen || chosen.model !== this.model.index || chosen.id === undefined) return false;
    return chosen.level === "kernels" ? chosen.id === number : this.model.calls[number].nodes.includes(chosen.id);
  }

  bar(context, width, y, begin, end, fill, label, line, height, ink = theme.quiet, lineWidth = 1) {
    const [left, right] = [this.x(begin, width), this.x(end, width)];
    if (right < 0 || left > width || right - left < 0.3) return;
    context.fillStyle = fill;
    context.fillRect(left, y, right - left, height - 2);
    if (right - left > 3) { context.strokeStyle = line; context.lineWidth = lineWidth; context.strokeRect(left + 0.5, y + 0.5, right - left - 1, height - 3); }
    const room = Math.min(right, width) - Math.max(left, 0) - 8;
    if (room < 24) return;
    context.fillStyle = ink;
    fitText(context, label, Math.max(left, 0) + 4, y + height / 2 - 1, room);
  }

  axis(context, width) {
    const span = (this.shared.to - this.shared.from) * this.total;
    const raw = span / Math.max(2, width / 110);
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((k) => k * power).find((k) => k >= raw);
    context.fillStyle = theme.quiet;
    context.strokeStyle = theme.line;
    context.lineWidth = 1;
    for (let at = Math.ceil(this.shared.from * this.total / step) * step; at <= this.shared.to * this.total; at += step) {
      const x = this.x(at, width);
      context.beginPath(); context.moveTo(x, 0); context.lineTo(x, 20); context.stroke();
      context.fillText(this.model.timeText(at) || "0", x + 4, 9);
    }
  }

  at(event) {
    const { width } = this.canvas.getBoundingClientRect();
    const time = (this.shared.from + event.offsetX / width * (this.shared.to - this.shared.from)) * this.total;
    if (event.offsetY >= this.kernelsAt) {
      if (event.offsetY > this.kernelsAt + 46) return null;
      let number = this.starts.findLastIndex((start) => start <= time);
      while (number > 0 && !this.model.calls[number].time) number -= 1;
      return number >= 0 && time <= this.total ? { call: number } : null;
    }
    const depth = Math.floor((event.offsetY - 24) / ROW);
    const span = this.spans.find((each) => each.depth === depth && each.begin <= time && time < each.end);
    return span ? { group: span.group, span } : null;
  }

  listen() {
    const { canvas, model, shared } = this;
    let from = null;
    let moved = 0;
    canvas.addEventListener("pointerdown", (event) => { from = event.offsetX; moved = 0; canvas.setPointerCapture(event.pointerId); });
    canvas.addEventListener("pointermove", (event) => {
      if (from !== null) {
        moved += Math.abs(event.offsetX - from);
        shared.shift((from - event.offsetX) / canvas.clientWidth * (shared.to - shared.from));
        from = event.offsetX;
        return;
      }
      const found = this.at(event);
      canvas.style.cursor = found ? "pointer" : "grab";
      if (!found) tip.hide();
      else if (found.group !== undefined) tip.show(event, model.paths[found.group], model.timeText(found.span.end - found.span.begin), write.share((found.span.end - found.span.begin) / this.total));
      else { const call = model.calls[found.call]; tip.show(event, call.node, call.name, `${model.timeText(call.time)}, ${write.share((call.time ?? 0) / this.total)}`); }
    });
    canvas.addEventListener("pointerup", (event) => {
      from = null;
      if (moved > 4) return;
      const found = this.at(event);
      if (found?.call !== undefined) app.select({ model: model.index, level: "kernels", id: found.call });
      else if (found) app.select({ model: model.index, level: "kernels", group: found.group });
      else app.select(null);
    });
    canvas.addEventListener("pointercancel", () => { from = null; });
    canvas.addEventListener("pointerleave", () => tip.hide());
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) shared.shift((event.deltaX || event.deltaY) / canvas.clientWidth * (shared.to - shared.from));
      else shared.zoom(Math.exp(event.deltaY * 0.0016), event.offsetX / canvas.clientWidth);
    }, { passive: false });
  }
}

const timelineView = {
  title: "Timeline",
  from: 0,
  to: 1,
  lines: [],

  available() { return models.some((model) => model.hasTimes); },

  build(parent) {
    const shown = models.filter((model) => model.hasTimes);
    parent.append(el("div", { class: "bar" }, `${shown[0].timeName}, kernels one after the other`, el("span", { class: "spacer" }),
      el("button", { type: "button", onclick: () => { this.from = 0; this.to = 1; this.repaint(); } }, "Fit (0)")));
    this.lines = shown.map((model) => {
      const row = el("div", { style: "flex: 1; min-height: 0; display: flex; flex-direction: column" });
      parent.append(row);
      row.append(el("div", { class: "bar" }, models.length > 1 ? el("b", {}, model.name) : "", `${write.counted(model.calls.length, "kernel")}, ${model.timeText(model.total)}`));
      return new Timeline(row, model, this);
    });
  },

  zoom(by, at) {
    const middle = this.from + at * (this.to - this.from);
    const width = Math.max(1e-5, Math.min(1, (this.to - this.from) * by));
    this.from = Math.max(0, Math.min(1 - width, middle - at * width));
    this.to = this.from + width;
    this.repaint();
  },

  shift(by) {
    const width = this.to - this.from;
    this.from = Math.max(0, Math.min(1 - width, this.from + by));
    this.to = this.from + width;
    this.repaint();
  },

  key(event) {
    if (event.key === "0") { this.from = 0; this.to = 1; } else if (event.key === "+" || event.key === "=") this.zoom(0.8, 0.5); else if (event.key === "-") this.zoom(1.25, 0.5);
    else if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
      const step = event.key === "ArrowRight" ? 1 : -1;
      const chosen = app.selected?.level === "kernels" && app.selected.id !== undefined ? app.selected : { model: models.findIndex((m) => m.hasTimes), level: "kernels", id: -step };
      const { calls } = models[chosen.model];
      const id = Math.max(0, Math.min(calls.length - 1, chosen.id + step));
      app.select({ model: chosen.model, level: "kernels", id });
    } else return false;
    this.repaint();
    return true;
  },

  selected() { this.repaint(); },
  repaint() { this.lines.forEach((line) => line.repaint()); },
};
