// Where boxes and edges are: each open group is laid out by itself, and is a box of the group around it.
"use strict";

const SIZES = { item: [148, 34], group: [164, 38], end: [132, 26], title: 22, margin: 10 };
const MOST_PASSED = 500; // ranks that the edges of a group pass in all: the longest beyond that have no part in the layout

class Layout {
  constructor(graph) {
    this.graph = graph;
    this.known = new Map();
  }

  // The scene for a set of open groups: nested boxes with places relative to the group around them.
  scene(isOpen) {
    const root = this.group(-1, isOpen);
    const places = new Map(); // of boxes by key, absolute
    const walk = (box, x, y) => {
      for (const child of box.children) {
        const at = { box: child, x: x + child.x, y: y + child.y, width: child.width, height: child.height };
        places.set(child.key, at);
        if (child.children) walk(child, at.x, at.y);
      }
    };
    walk(root, 0, 0);
    return { root, places, width: root.width, height: root.height };
  }

  group(group, isOpen) {
    const { model } = this.graph;
    const open = [];
    const collect = (at) => {
      for (const inner of this.graph.members.get(at).groups) {
        if (!this.graph.isPlain(inner) && isOpen(model.paths[inner])) { open.push(inner); collect(inner); }
      }
    };
    collect(group);
    const key = `${group}:${open.join(",")}`;
    if (!this.known.has(key)) this.known.set(key, this.laidOut(group, isOpen));
    return this.known.get(key);
  }

  laidOut(group, isOpen) {
    const { graph } = this;
    const { items: own, groups } = graph.members.get(group);
    const boxes = [];
    const boxOf = new Map(); // of items: the box of this group that they are in
    for (const inner of groups) {
      const members = graph.members.get(inner).all;
      if (graph.isPlain(inner)) {
        boxes.push(this.itemBox(members[0]));
        boxOf.set(members[0], boxes.at(-1));
        continue;
      }
      const path = graph.model.paths[inner];
      const box = { key: `g${inner}`, group: inner, path, open: isOpen(path) };
      if (box.open) {
        const inside = this.group(inner, isOpen);
        Object.assign(box, { children: inside.children, edges: inside.edges, width: inside.width, height: inside.height });
      } else {
        [box.width, box.height] = SIZES.group;
        if (graph.model.groups[inner].kind === "repeat") box.width += 12;
      }
      boxes.push(box);
      for (const id of members) boxOf.set(id, box);
    }
    for (const id of own) { const box = this.itemBox(id); boxes.push(box); boxOf.set(id, box); }
    return this.arranged(boxes, boxOf, group);
  }

  itemBox(id) {
    const item = this.graph.items[id];
    const [width, height] = item.kind === "end" ? SIZES.end : SIZES.item;
    return { key: `i${id}`, item: id, width, height };
  }

  arranged(boxes, boxOf, group) {
    const edges = new Map();
    const edge = (from, to) => { if (from !== to) edges.set(`${from.key}>${to.key}`, [from, to]); };
    const top = { key: "top", width: 1, height: 1, port: true };
    const bottom = { key: "bottom", width: 1, height: 1, port: true };
    let hasTop = false, hasBottom = false;
    for (const [id, box] of boxOf) {
      for (const read of this.graph.items[id].reads) {
        if (boxOf.has(read)) edge(boxOf.get(read), box);
        else { hasTop = true; edge(top, box); }
      }
      if (group >= 0 && this.graph.readers[id].some((reader) => !boxOf.has(reader))) { hasBottom = true; edge(box, bottom); }
    }
    const all = [...(hasTop ? [top] : []), ...boxes, ...(hasBottom ? [bottom] : [])];
    const pairs = [...edges.values()];
    const ranks = ranksOf(all, pairs);
    const far = farEdges(all, pairs, ranks);
    const made = layered(all, pairs.filter((pair) => !far.has(pair)), ranks);
    const { margin, title } = SIZES;
    const down = group < 0 ? margin : hasTop ? title - 14 : title + margin / 2; // a port has a rank above the first one
    for (const box of all) { box.x += margin; box.y += down; }
    const { width, height } = made;
    const full = { width: Math.max(width, group < 0 ? 0 : 110) + 2 * margin, height: height + down + margin };
    const lines = pairs.map((pair) => {
      const [from, to] = pair;
      if (far.has(pair)) return { from: from.key, to: to.key, points: besides(from, to, full), far: true };
      const points = made.points.get(pair).map(([x, y]) => [x + margin, y + down]);
      if (from.port) points[0] = [from.x, 0];
      if (to.port) points[points.length - 1] = [to.x, full.height];
      return { from: from.key, to: to.key, points };
    });
    return { children: boxes, edges: lines, ...full };
  }
}

// The rank of each box: the most edges from a box that nothing leads to. What is in a circle keeps rank 0.
function ranksOf(boxes, edges) {
  const into = new Map(boxes.map((box) => [box, []]));
  const out = new Map(boxes.map((box) => [box, []]));
  for (const [from, to] of edges) { out.get(from).push(to); into.get(to).push(from); }
  const ranks = new Map();
  const waits = new Map(boxes.map((box) => [box, into.get(box).length]));
  const ready = boxes.filter((box) => waits.get(box) === 0);
  for (const box of ready) {
    ranks.set(box, Math.max(0, ...into.get(box).map((from) => (ranks.get(from) ?? 0) + 1)));
    for (const to of out.get(box)) { waits.set(to, waits.get(to) - 1); if (waits.get(to) === 0) ready.push(to); }
  }
  // what only later boxes need stands near these
  for (const box of [...ready].reverse()) {
    if (into.get(box).length || !out.get(box).length || box.port) continue;
    ranks.set(box, Math.max(0, Math.min(...out.get(box).map((to) => ranks.get(to) ?? 0)) - 1));
  }
  return ranks;
}

// The edges that pass the most ranks, as many as pass more than is laid out; never the only one to or from a box. Those of
// circles, which go up, are among them.
function farEdges(boxes, edges, ranks) {
  const into = new Map(boxes.map((box) => [box, 0]));
  const out = new Map(boxes.map((box) => [box, 0]));
  for (const [from, to] of edges) { out.set(from, out.get(from) + 1); into.set(to, into.get(to) + 1); }
  const span = ([from, to]) => (ranks.get(to) ?? 0) - (ranks.get(from) ?? 0);
  const far = new Set(edges.filter((edge) => span(edge) < 1));
  let passed = edges.reduce((sum, edge) => sum + Math.max(0, span(edge) - 1), 0);
  for (const edge of [...edges].sort((a, b) => span(b) - span(a))) {
    if (passed <= MOST_PASSED) break;
    const [from, to] = edge;
    if (far.has(edge) || (!from.port && !to.port && (out.get(from) < 2 || into.get(to) < 2))) continue;
    far.add(edge);
    out.set(from, out.get(from) - 1);
    into.set(to, into.get(to) - 1);
    passed -= span(edge) - 1;
  }
  return far;
}

// A way from one box to another at the right of what lies in between.
function besides(from, to, group) {
  const [x0, y0] = from.port ? [from.x, 0] : [from.x + from.width / 2, from.y + from.height];
  const [x1, y1] = to.port ? [to.x, group.height] : [to.x + to.width / 2, to.y];
  const right = Math.min(group.width - 4, Math.max(x0, x1) + 90 + Math.min(160, Math.abs(y1 - y0) / 12));
  return [[x0, y0], [x0, y0 + 12], [right, y0 + 30], [right, y1 - 30], [x1, y1 - 12], [x1, y1]];
}
