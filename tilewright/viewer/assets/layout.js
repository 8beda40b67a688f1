// Where boxes and edges are: each open group is laid out by itself (by dagre), and is a box of the group around it.
"use strict";

const SIZES = { item: [148, 34], group: [164, 38], end: [132, 26], title: 22, margin: 10 };
const MANY = 60; // boxes from which on the quick ranking is taken

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
    const made = new dagre.graphlib.Graph({ multigraph: false });
    made.setGraph({ rankdir: "TB", nodesep: 16, ranksep: 24, edgesep: 8, ranker: all.length > MANY ? "longest-path" : "network-simplex" });
    made.setDefaultEdgeLabel(() => ({}));
    for (const box of all) made.setNode(box.key, { width: box.width, height: box.height });
    for (const [from, to] of edges.values()) made.setEdge(from.key, to.key);
    dagre.layout(made);
    const { margin, title } = SIZES;
    const down = group < 0 ? margin : title + margin / 2;
    for (const box of all) {
      const { x, y } = made.node(box.key);
      box.x = x - box.width / 2 + margin;
      box.y = y - box.height / 2 + down;
    }
    const { width, height } = made.graph();
    const full = { width: Math.max(width, group < 0 ? 0 : 110) + 2 * margin, height: height + down + margin };
    const lines = [...edges.values()].map(([from, to]) => {
      const points = made.edge(from.key, to.key).points.map(({ x, y }) => [x + margin, y + down]);
      if (from.port) points[0] = [from.x, 0];
      if (to.port) points[points.length - 1] = [to.x, full.height];
      return { from: from.key, to: to.key, points };
    });
    return { children: boxes, edges: lines, ...full };
  }
}
