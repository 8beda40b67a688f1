// The graph on canvases: one pane, or two beside each other in step.
"use strict";

const LEGIBLE = 0.6; // the scale from which on names can be read
const MOST_BOXES = 70; // that are shown at first: groups are opened, outermost first, while there are fewer

class Pane {
  constructor(parent, graph, shared) {
    this.graph = graph;
    this.shared = shared;
    this.layout = graph.layout ??= new Layout(graph);
    this.view = { x: 0, y: 0, scale: 1 };
    this.element = el("div", { class: "pane" });
    parent.append(this.element);
    const made = canvasIn(this.element, (context, width, height) => this.draw(context, width, height),
      { tabindex: "0", role: "application", "aria-label": `Graph of ${graph.model.name}, ${LEVEL_NAMES[graph.level]}` });
    Object.assign(this, made);
    const { model } = graph;
    this.element.append(el("div", { class: "caption" },
      `${models.length > 1 ? `${model.name}: ` : ""}${LEVEL_NAMES[graph.level]} · ${graph.items.filter((i) => i.kind !== "end").length}`));
    this.rebuild();
    this.listen();
  }

  rebuild() { this.scene = this.layout.scene((path) => this.shared.open.has(path)); }

  // Places and sizes

  // The scale in which all of it is seen.
  get whole() {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    return Math.min(1.25, (width - 30) / this.scene.width, (height - 56) / this.scene.height);
  }

  // The same, but a long graph is shown from its beginning, and of a wide one the middle, in a size that can be read.
  get legible() { return Math.max(this.whole, LEGIBLE, Math.min(1, (this.canvas.clientWidth - 30) / this.scene.width)); }

  // Begins where a graph of this height would: two models begin beside each other.
  centre(scale, tall = this.scene.height) {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    this.view = { scale, x: (width - this.scene.width * scale) / 2, y: Math.max(38, (height - tall * scale) / 2) };
    this.repaint();
  }

  show(key, scale = null) {
    const place = this.scene.places.get(key);
    if (!place) return;
    const { clientWidth: width, clientHeight: height } = this.canvas;
    if (scale !== null) this.view.scale = Math.max(this.view.scale, scale);
    const { scale: by } = this.view;
    this.view.x = width / 2 - (place.x + Math.min(place.width, width / by / 2) / 2) * by;
    this.view.y = height / 2 - (place.y + Math.min(place.height, height / by / 2) / 2) * by;
    this.repaint();
  }

  zoom(by, x, y) {
    const scale = Math.max(0.02, Math.min(4, this.view.scale * by));
    const real = scale / this.view.scale;
    this.view = { scale, x: x - (x - this.view.x) * real, y: y - (y - this.view.y) * real };
    this.repaint();
  }

  // Where an item or group is on the screen; the box of the group that hides it where that is closed.
  place(key) {
    const at = this.scene.places.get(key);
    if (!at) return null;
    const box = this.canvas.getBoundingClientRect();
    const { x, y, scale } = this.view;
    return { x: box.x + x + (at.x + at.width / 2) * scale, y: box.y + y + (at.y + Math.min(at.height, 20) / 2) * scale };
  }

  hit(px, py) {
    const { x, y, scale } = this.view;
    const [sx, sy] = [(px - x) / scale, (py - y) / scale];
    const inside = (boxes, left, top) => {
      for (const box of boxes) {
        const [bx, by] = [left + box.x, top + box.y];
        if (sx < bx || sy < by || sx > bx + box.width || sy > by + box.height) continue;
        const within = box.children ? inside(box.children, bx, by) : null;
        return within ?? { box, title: sy - by < SIZES.title, corner: bx + box.width - sx < 24 && sy - by < 24 };
      }
      return null;
    };
    return inside(this.scene.root.children, 0, 0);
  }

  // What the pointer does

  listen() {
    const { canvas } = this;
    const pointers = new Map();
    let moved = 0;
    canvas.addEventListener("pointerdown", (event) => {
      pointers.set(event.pointerId, [event.offsetX, event.offsetY]);
      canvas.setPointerCapture(event.pointerId);
      moved = 0;
    });
    canvas.addEventListener("pointermove", (event) => {
      const before = pointers.get(event.pointerId);
      if (!before) { this.hover(event); return; }
      const now = [event.offsetX, event.offsetY];
      if (pointers.size === 1) {
        const [dx, dy] = [now[0] - before[0], now[1] - before[1]];
        moved += Math.abs(dx) + Math.abs(dy);
        this.shared.pan(this, dx, dy);
      } else {
        const other = [...pointers].find(([id]) => id !== event.pointerId)[1];
        const apart = (a) => Math.hypot(a[0] - other[0], a[1] - other[1]) || 1;
        moved += 10;
        this.shared.zoom(this, apart(now) / apart(before), (now[0] + other[0]) / 2, (now[1] + other[1]) / 2);
      }
      pointers.set(event.pointerId, now);
    });
    const release = (event) => {
      if (pointers.delete(event.pointerId) && event.type === "pointerup" && moved < 5) this.click(event);
    };
    canvas.addEventListener("pointerup", release);
    canvas.addEventListener("pointercancel", release);
    canvas.addEventListener("pointerleave", () => tip.hide());
    canvas.addEventListener("dblclick", (event) => {
      const found = this.hit(event.offsetX, event.offsetY);
      if (found?.box.path) this.shared.toggle(this, found.box.path);
    });
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      const step = event.deltaMode === 1 ? 30 : 1;
      if (event.shiftKey) this.shared.pan(this, -event.deltaY * step, 0);
      else this.shared.zoom(this, Math.exp(-event.deltaY * step * (event.ctrlKey ? 0.01 : 0.0016)), event.offsetX, event.offsetY);
    }, { passive: false });
  }

  click(event) {
    const found = this.hit(event.offsetX, event.offsetY);
    if (!found) { app.select(null); return; }
    const { box } = found;
    if (box.path && found.corner) { this.shared.toggle(this, box.path); return; }
    if (box.path) app.select({ model: this.graph.model.index, level: this.graph.level, group: box.group }, this);
    else app.select({ model: this.graph.model.index, level: this.graph.level, id: box.item }, this);
  }

  hover(event) {
    const found = this.hit(event.offsetX, event.offsetY);
    this.canvas.style.cursor = found ? "pointer" : "grab";
    if (!found || (found.box.open && !found.title)) { tip.hide(); return; }
    const { model } = this.graph;
    if (found.box.path) {
      const { all } = this.graph.members.get(found.box.group);
      tip.show(event, found.box.path, `${all.length} ${this.graph.level}`, model.timeText(this.graph.sums.get(found.box.group).time || null));
      return;
    }
    const item = this.graph.items[found.box.item];
    const types = item.kind === "kernel" ? item.call.types : item.node.types;
    tip.show(event, item.name, item.label, types.join(", "), item.time ? model.timeText(item.time) : "",
      item.error === null || item.error === undefined ? "" : `error ${write.error(item.error)}`);
  }

  // Drawing

  draw(context, width, height) {
    const { x, y, scale } = this.view;
    context.save();
    context.translate(x, y);
    context.scale(scale, scale);
    this.context = context;
    this.window = { left: -x / scale, top: -y / scale, right: (width - x) / scale, bottom: (height - y) / scale };
    this.near = this.shared.near(this);
    this.drawGroup(this.scene.root, 0, 0, 0);
    this.drawBoxes(this.scene.root, 0, 0);
    context.restore();
    if (!app.painted) { app.painted = performance.now(); }
  }

  drawGroup(group, left, top, depth) {
    for (const box of this.seen(group, left, top)) {
      if (!box.children) continue;
      this.drawFrame(box, left + box.x, top + box.y, depth);
      this.drawGroup(box, left + box.x, top + box.y, depth + 1);
    }
    this.drawEdges(group, left, top);
  }

  // After all edges: those of an outer group pass through the frames of inner ones.
  drawBoxes(group, left, top) {
    for (const box of this.seen(group, left, top)) {
      if (box.children) this.drawBoxes(box, left + box.x, top + box.y);
      else this.drawBox(box, left + box.x, top + box.y);
    }
  }

  seen(group, left, top) { return group.children.filter((box) => this.isSeen(box, left, top)); }

  isSeen(box, left, top) {
    const { window } = this;
    return left + box.x < window.right && top + box.y < window.bottom
      && left + box.x + box.width > window.left && top + box.y + box.height > window.top;
  }

  drawEdges(group, left, top) {
    const { context, near, window } = this;
    const marked = [];
    const faint = [];
    context.strokeStyle = theme.edge;
    context.lineWidth = Math.max(1, 0.7 / this.view.scale);
    context.beginPath();
    for (const edge of group.edges) {
      const ys = edge.points.map((p) => p[1]);
      if (top + Math.max(...ys) < window.top || top + Math.min(...ys) > window.bottom) continue;
      if (near && near.has(edge.from) && near.has(edge.to) && (near.chosen === edge.from || near.chosen === edge.to)) { marked.push(edge); continue; }
      if (edge.far) { faint.push(edge); continue; }
      this.curve(edge.points, left, top);
    }
    context.stroke();
    context.strokeStyle = theme.line;
    context.beginPath();
    for (const edge of faint) this.curve(edge.points, left, top);
    context.stroke();
    context.strokeStyle = theme.accent;
    context.lineWidth = 2;
    context.beginPath();
    for (const edge of marked) this.curve(edge.points, left, top);
    context.stroke();
  }

  curve(points, left, top) {
    const { context } = this;
    context.moveTo(left + points[0][0], top + points[0][1]);
    for (let k = 1; k < points.length - 1; k += 1) {
      const [a, b] = [points[k], points[k + 1]];
      const end = k === points.length - 2 ? b : [(a[0] + b[0]) / 2, (a[1] + b[1]) / 2];
      context.quadraticCurveTo(left + a[0], top + a[1], left + end[0], top + end[1]);
    }
    if (points.length === 2) context.lineTo(left + points[1][0], top + points[1][1]);
  }

  outline(box, x, y, radius) {
    this.context.beginPath();
    this.context.roundRect(x, y, box.width, box.height, radius);
  }

  stroke(box, usual) {
    const { context, near } = this;
    const chosen = near && near.chosen === box.key;
    const partner = near && near.partners.has(box.key);
    context.strokeStyle = chosen || partner ? theme.accent : usual;
    context.lineWidth = chosen ? 2.5 : partner ? 2 : 1;
    if (partner && !chosen) context.setLineDash([5, 3]);
    context.stroke();
    context.setLineDash([]);
    context.lineWidth = 1;
  }

  drawFrame(box, x, y, depth) {
    const { context } = this;
    context.fillStyle = depth % 2 ? theme["group-deep"] : theme.group;
    this.outline(box, x, y, 7);
    context.fill();
    this.stroke(box, theme.line);
    if (this.view.scale * 11 < 4) return;
    context.font = `600 11px ${theme.sans}`;
    context.fillStyle = theme.quiet;
    context.textBaseline = "middle";
    this.text(this.graph.model.groupName(box.group), x + 9, y + SIZES.title / 2 + 1, box.width - 34);
    this.knob(box, x, y, "−");
  }

  knob(box, x, y, sign, ink = theme.accent) {
    const { context } = this;
    context.font = `600 13px ${theme.sans}`;
    context.fillStyle = ink;
    context.textAlign = "center";
    context.fillText(sign, x + box.width - 12, y + 12);
    context.textAlign = "left";
  }

  drawBox(box, x, y) {
    const { context } = this;
    context.lineWidth = 1;
    const isGroup = box.group !== undefined;
    const what = isGroup ? this.graph.sums.get(box.group) : this.graph.items[box.item];
    const { mode } = this.shared;
    if (isGroup && this.graph.model.groups[box.group].kind === "repeat") {
      for (const shift of [6, 3]) {
        context.fillStyle = theme.group;
        this.outline(box, x + shift, y + shift, 6);
        context.fill();
        context.strokeStyle = theme.strong;
        context.stroke();
      }
    }
    const isEnd = !isGroup && what.kind === "end";
    context.fillStyle = isGroup && mode === "operator" ? theme.group : isEnd ? theme.surface : fillOf(this.graph, mode, what);
    this.outline(box, x, y, isEnd ? box.height / 2 : isGroup ? 6 : 4);
    context.fill();
    this.stroke(box, isGroup ? theme.strong : theme.line);
    if (this.view.scale * 12 < 4.2) return;
    const warm = warmth(this.graph, mode, what);
    context.textBaseline = "middle";
    context.fillStyle = warm === null ? theme.text : inkOn(warm);
    if (isEnd) {
      context.font = `11px ${theme.sans}`;
      this.text(what.label === what.name ? what.name : `${what.label} ${what.name}`, x + 11, y + box.height / 2, box.width - 22);
      return;
    }
    const time = what.time ? this.graph.model.timeText(what.time) : "";
    const label = isGroup ? this.graph.model.groupName(box.group) : what.label;
    const sub = isGroup ? `${this.graph.members.get(box.group).all.length} ${this.graph.isOfEnds(box.group) ? "tensors" : this.graph.level}` : what.sub.split("/").slice(-2).join("/");
    context.font = `600 11.5px ${theme.sans}`;
    this.text(label, x + 8, y + 11.5, box.width - (isGroup ? 32 : 16));
    context.font = `10px ${theme.sans}`;
    if (warm === null || warm < 0.45) context.fillStyle = theme.quiet;
    const shown = mode === "error" ? (what.error === Infinity ? "∞" : write.error(what.error, 1)) : this.graph.level === "kernels" || isGroup || mode === "time" ? time : "";
    const room = shown ? context.measureText(shown).width + 8 : 0;
    this.text(sub, x + 8, y + box.height - 10, box.width - 16 - room);
    if (shown) context.fillText(shown, x + box.width - 8 - context.measureText(shown).width, y + box.height - 10);
    if (isGroup) this.knob(box, x, y, "+", warm !== null && warm > 0.45 ? inkOn(warm) : theme.accent);
  }

  text(text, x, y, room) { fitText(this.context, text, x, y, room); }
}

const LEVEL_NAMES = { nodes: "nodes of the model", kernels: "kernels, after fusion" };

const graphView = {
  title: "Graph",
  open: new Set(),
  opened: false,
  mode: null,
  arrangement: null,
  panes: [],

  available() { return models.some((model) => model.levels.length); },

  // The panes that an arrangement has: pairs of a model and a level.
  pairs() {
    const levels = [...new Set(models.flatMap((model) => model.levels))];
    this.arrangement ??= levels.includes("kernels") ? "kernels" : "nodes";
    const shown = this.arrangement === "both" ? (models.length > 1 ? ["kernels"] : ["nodes", "kernels"]) : [this.arrangement];
    return models.flatMap((model) => shown.map((level) => [model, model.levels.includes(level) ? level : model.levels[0]])).filter(([, level]) => level);
  },

  build(parent) {
    this.mode ??= models.some((model) => model.hasErrors) ? "error" // these were asked for
      : models.some((model) => model.hasTimes) ? "time" : "operator";
    const modes = [["operator", "operator"]];
    if (models.some((model) => model.hasTimes)) modes.push(["time", models[0].timeName]);
    if (models.some((model) => model.hasErrors)) modes.push(["error", "error"]);
    const arrangements = [["nodes", "Model", "Before fusion: the nodes of the model (m)"], ["kernels", "Kernels", "After fusion (k)"]]
      .filter(([level]) => models.some((model) => model.levels.includes(level)));
    if (models.length === 1 && arrangements.length === 2) arrangements.push(["both", "Both", "Before and after fusion, in step (b)"]);
    const again = () => app.show("graph");
    const select = el("select", { "aria-label": "Colour", onchange: (event) => { this.mode = event.target.value; again(); } },
      modes.map(([value, text]) => el("option", { value, selected: value === this.mode }, text)));
    parent.append(el("div", { class: "bar" },
      arrangements.length > 1 ? choice("Level", arrangements, this.arrangement ?? (this.pairs(), this.arrangement), (value) => { this.arrangement = value; again(); }) : "",
      el("label", {}, "Colour", select), this.mode === "operator" ? "" : this.scaleBar(),
      el("span", { class: "spacer" }),
      el("span", { class: "segmented" },
        el("button", { type: "button", title: "Open all modules (e)", onclick: () => this.openAll(true) }, "Open all"),
        el("button", { type: "button", title: "Close all modules (c)", onclick: () => this.openAll(false) }, "Close all"),
        el("button", { type: "button", title: "See all of it (0)", onclick: () => this.fit("whole") }, "Fit")),
    ));
    const row = el("div", { class: "panes" });
    parent.append(row);
    const pairs = this.pairs();
    if (!this.opened) { this.openFirst(pairs); this.opened = true; }
    const kept = this.panes.map((pane) => [pane.graph, pane.view]);
    this.panes = pairs.map(([model, level]) => new Pane(row, model.graph(level), this));
    const before = this.panes.map((pane) => kept.find(([graph]) => graph === pane.graph)?.[1]);
    // panes of another number have another width
    if (kept.length === pairs.length && before.every(Boolean)) this.panes.forEach((pane, k) => { pane.view = before[k]; pane.repaint(); });
    else this.fit("legible");
    if (app.selected) this.reveal(app.selected);
  },

  // Two models have one scale, so that they stay in step.
  fit(how) {
    const scales = this.panes.map((pane) => pane[how]);
    const tall = Math.max(...this.panes.map((pane) => pane.scene.height));
    this.panes.forEach((pane, k) => (models.length > 1 ? pane.centre(Math.min(...scales), tall) : pane.centre(scales[k])));
  },

  scaleBar() {
    const colours = [0, 0.25, 0.5, 0.75, 1].map(heat).join(",");
    return el("span", {}, "less ", el("i", { class: "scale", style: `background: linear-gradient(90deg, ${colours})` }), " more");
  },

  openFirst(pairs) {
    for (const [model, level] of pairs) {
      const graph = model.graph(level);
      let count = graph.members.get(-1).items.length + graph.members.get(-1).groups.length;
      let next = [...graph.members.get(-1).groups];
      while (next.length) {
        const inner = [];
        for (const group of next) {
          if (model.groups[group].kind === "repeat") continue;
          const members = graph.members.get(group);
          if (graph.isOfEnds(group)) continue; // in one row they are wider than all else
          const more = members.items.length + members.groups.length;
          if (graph.isPlain(group) || count + more > MOST_BOXES) continue;
          count += more;
          this.open.add(model.paths[group]);
          inner.push(...members.groups);
        }
        next = inner;
      }
    }
  },

  openAll(open) {
    this.open.clear();
    if (open) for (const pane of this.panes) for (const path of pane.graph.model.paths) this.open.add(path);
    this.rebuild();
    this.fit("legible");
  },

  rebuild() { for (const pane of this.panes) { pane.rebuild(); pane.repaint(); } },

  toggle(pane, path) {
    const key = `g${pane.graph.model.groupNumbers.get(path)}`;
    const before = pane.place(key);
    if (this.open.has(path)) this.open.delete(path); else this.open.add(path);
    this.rebuild();
    const after = pane.place(key);
    if (before && after) { pane.view.x += before.x - after.x; pane.view.y += before.y - after.y; }
    for (const other of this.panes) {
      if (other !== pane) { const number = other.graph.model.groupNumbers.get(path); if (number !== undefined) other.show(`g${number}`); }
    }
    pane.repaint();
  },

  inStep(pane) { return models.length > 1 ? this.panes : [pane]; },
  pan(pane, dx, dy) { for (const each of this.inStep(pane)) { each.view.x += dx; each.view.y += dy; each.repaint(); } },
  zoom(pane, by, x, y) { for (const each of this.inStep(pane)) each.zoom(by, x, y); },

  // What a pane marks: the box of what is selected, its neighbours, and the partners of what is selected elsewhere.
  near(pane) {
    const chosen = app.selected;
    if (!chosen) return null;
    const { graph } = pane;
    const found = new Set();
    found.partners = new Set(partnersIn(chosen, graph).map((id) => this.keyOf(pane, id)));
    found.chosen = null;
    if (chosen.model !== graph.model.index || chosen.level !== graph.level) return found;
    found.partners.clear();
    if (chosen.group !== undefined) {
      found.chosen = `g${chosen.group}`;
      return found;
    }
    found.chosen = `i${chosen.id}`;
    found.add(found.chosen);
    for (const id of [...graph.items[chosen.id].reads, ...graph.readers[chosen.id]]) { found.add(this.keyOf(pane, id)); found.add(`i${id}`); }
    return found;
  },

  // The box that shows an item: its own, or the closed group that it is in.
  keyOf(pane, id) {
    const own = `i${id}`;
    if (pane.scene.places.has(own)) return own;
    const group = pane.graph.lineage(id).find((number) => pane.scene.places.has(`g${number}`));
    return group === undefined ? own : `g${group}`;
  },

  // Open the groups around what is selected, and show it and its partners in all panes.
  reveal(chosen, source = null) {
    for (const pane of this.panes) {
      const own = chosen.model === pane.graph.model.index && chosen.level === pane.graph.level;
      if (chosen.group !== undefined) {
        const path = models[chosen.model].paths[chosen.group];
        const number = pane.graph.model.groupNumbers.get(path);
        if (number !== undefined && pane !== source) { this.openAround(pane.graph.model.groups[number].parent, pane.graph.model); pane.rebuild(); pane.show(`g${number}`); }
        continue;
      }
      const ids = own ? [chosen.id] : partnersIn(chosen, pane.graph);
      if (!ids.length) continue;
      this.openAround(pane.graph.items[ids[0]].group, pane.graph.model);
      pane.rebuild();
      if (pane !== source) pane.show(`i${ids[0]}`, 0.6);
    }
    this.rebuild();
  },

  openAround(group, model) {
    for (let at = group; at >= 0; at = model.groups[at].parent) this.open.add(model.paths[at]);
  },

  // Keys: along edges, and between neighbours of a rank.
  move(key) {
    const chosen = app.selected;
    const pane = this.panes.find((each) => chosen && each.graph.model.index === chosen.model && each.graph.level === chosen.level) ?? this.panes[0];
    if (!pane) return;
    if (!chosen || chosen.id === undefined) { app.select({ model: pane.graph.model.index, level: pane.graph.level, id: 0 }); return; }
    const { items, readers } = pane.graph;
    const at = pane.scene.places.get(`i${chosen.id}`);
    const x = (id) => pane.scene.places.get(`i${id}`)?.x ?? 0;
    let next;
    if (key === "ArrowDown") next = [...readers[chosen.id]].sort((a, b) => Math.abs(x(a) - at?.x) - Math.abs(x(b) - at?.x))[0];
    else if (key === "ArrowUp") next = [...items[chosen.id].reads].sort((a, b) => Math.abs(x(a) - at?.x) - Math.abs(x(b) - at?.x))[0];
    else {
      const right = key === "ArrowRight";
      const beside = [...pane.scene.places].filter(([name, p]) => name[0] === "i" && at && Math.abs(p.y - at.y) < 30 && (right ? p.x > at.x : p.x < at.x));
      beside.sort((a, b) => Math.abs(a[1].x - at.x) - Math.abs(b[1].x - at.x));
      next = beside.length ? Number(beside[0][0].slice(1)) : undefined;
    }
    if (next !== undefined) app.select({ model: pane.graph.model.index, level: pane.graph.level, id: next });
  },

  key(event) {
    if (event.key.startsWith("Arrow")) { this.move(event.key); return true; }
    const zoomed = { "+": 1.25, "=": 1.25, "-": 0.8 }[event.key];
    if (zoomed) { for (const pane of this.panes) pane.zoom(zoomed, pane.canvas.clientWidth / 2, pane.canvas.clientHeight / 2); return true; }
    if (event.key === "0") { this.fit("whole"); return true; }
    if (event.key === "e" || event.key === "c") { this.openAll(event.key === "e"); return true; }
    const arrangement = { m: "nodes", k: "kernels", b: "both" }[event.key];
    if (arrangement && (arrangement !== "both" || models.length === 1)) { this.arrangement = arrangement; app.show("graph"); return true; }
    if (event.key === "Enter" && app.selected?.group !== undefined) {
      const pane = this.panes.find((each) => each.graph.model.index === app.selected.model && each.graph.level === app.selected.level);
      if (pane) this.toggle(pane, pane.graph.model.paths[app.selected.group]);
      return true;
    }
    return false;
  },

  selected(chosen, source) { if (chosen) this.reveal(chosen, source); this.panes.forEach((pane) => pane.repaint()); },
  repaint() { this.panes.forEach((pane) => pane.repaint()); },
};

// What of a graph belongs to what is selected elsewhere: kernels of a node, nodes of a kernel, the same of another model.
function partnersIn(chosen, graph) {
  if (chosen.id === undefined) return [];
  const from = models[chosen.model];
  const item = from.graph(chosen.level).items[chosen.id];
  const nodes = item.kind === "kernel" ? item.call.nodes : [from.nodes.indexOf(item.node)];
  const to = graph.model;
  const same = from === to ? nodes
    : nodes.map((n) => to.partnerOf(from.nodes[n])).filter((n) => n !== undefined);
  if (graph.level === "nodes") return same;
  return [...new Set(same.flatMap((n) => to.nodes[n].kernels))];
}
