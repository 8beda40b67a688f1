// The data of the page, with what follows from them: who reads what, what is in which group, and how long it takes.
"use strict";

const QUANTISED = /_quant(ized)?$/;

class Model {
  constructor(view, index) {
    Object.assign(this, view);
    this.index = index;
    for (const node of this.nodes) if (node.error !== null) node.error = Number(node.error);
    this.measured = this.calls.some((call) => call.seconds !== null);
    this.calls.forEach((call, number) => {
      call.number = number;
      call.name = this.codes[call.code].name;
      call.time = this.timeOf(call);
    });
    this.total = this.calls.reduce((sum, call) => sum + (call.time ?? 0), 0);
    this.paths = this.groups.map(() => "");
    this.groups.forEach((group, number) => {
      this.paths[number] = `${group.parent < 0 ? "" : `${this.paths[group.parent]} / `}${group.name}`;
    });
    this.groupNumbers = new Map(this.paths.map((path, number) => [path, number]));
    this.reasonsOf = new Map();
    for (const remark of this.remarks) {
      if (!this.reasonsOf.has(remark.subject)) this.reasonsOf.set(remark.subject, []);
      this.reasonsOf.get(remark.subject).push(remark);
    }
    this.hasTimes = this.total > 0;
    this.hasErrors = this.nodes.some((node) => node.error !== null);
    this.levels = [];
    this.hasGraph = this.kind !== "artefact" && this.nodes.length > 0; // of an artefact only names of nodes are known
    if (this.hasGraph) this.levels.push("nodes");
    if (this.calls.length) this.levels.push("kernels");
    this.nodesByName = new Map();
    this.nodes.forEach((node, number) => {
      const keys = [`${node.operator} ${node.name}`, ...(node.operator === "input" || node.operator === "output" ? [] : [node.name])];
      for (const key of keys) if (!this.nodesByName.has(key)) this.nodesByName.set(key, number);
    });
    this.graphs = {};
  }

  // Seconds where they are measured, or the clock is known; else cycles.
  timeOf(call) {
    if (this.measured) return call.seconds;
    if (call.cycles === null) return null;
    return this.hertz ? call.cycles / this.hertz : call.cycles;
  }

  groupName(number) {
    const { name, count } = this.groups[number];
    return count ? `${count} × ${name}` : name;
  }

  get inSeconds() { return this.measured || this.hertz !== null; }

  timeText(time) { return time === null || time === undefined ? "" : this.inSeconds ? write.time(time) : write.cycles(time); }

  get timeName() { return this.measured ? "measured time" : "estimated time"; }

  // A node's share of the times of its kernels, each of which is shared equally by its nodes.
  nodeTime(node) {
    return node.kernels.reduce((sum, k) => sum + (this.calls[k].time ?? 0) / Math.max(1, this.calls[k].nodes.length), 0);
  }

  // The node of this model that is the same as one of another: by name and operator, or by name alone, as a quantised
  // model has other operators, and an artefact none. Tools that quantise put something behind names.
  partnerOf(node) {
    const bare = node.name.replace(QUANTISED, "");
    for (const key of [`${node.operator} ${node.name}`, node.name, `${node.name}_quant`, bare]) {
      const found = this.nodesByName.get(key);
      if (found !== undefined) return found;
    }
    return undefined;
  }

  graph(level) {
    this.graphs[level] ??= level === "nodes" ? graphOfNodes(this) : graphOfKernels(this);
    return this.graphs[level];
  }

  reasons(item) {
    const subjects = new Set([item.name]);
    if (item.kind === "kernel") {
      subjects.add(item.call.name);
      subjects.add(item.call.node);
      for (const node of item.call.nodes) subjects.add(this.nodes[node].name);
    } else if (item.kind === "node") {
      for (const k of item.node.kernels) subjects.add(this.calls[k].name);
    }
    return [...subjects].flatMap((subject) => this.reasonsOf.get(subject) ?? []);
  }
}

function graphOfNodes(model) {
  const items = model.nodes.map((node, number) => ({
    id: number, kind: node.operator === "input" || node.operator === "output" ? "end" : "node", node,
    name: node.name, label: node.operator, sub: node.name, group: node.group, reads: node.reads,
    time: model.nodeTime(node), error: node.error, known: !node.kernels.length,
  }));
  return new Graph(model, "nodes", items);
}

function graphOfKernels(model) {
  const items = model.calls.map((call) => {
    const errors = call.nodes.map((n) => model.nodes[n].error).filter((error) => error !== null);
    return {
      id: call.number, kind: "kernel", call, name: call.node, label: operatorsOf(model, call), sub: call.node,
      group: call.group, reads: [...call.reads], time: call.time, error: errors.length ? Math.max(...errors) : null,
    };
  });
  const ends = new Map();
  const endOf = (number) => {
    if (!ends.has(number)) {
      const node = model.nodes[number];
      ends.set(number, items.length);
      items.push({ id: items.length, kind: "end", node, name: node.name, label: node.operator, sub: node.name,
        group: node.group, reads: [], time: 0, error: node.error });
    }
    return ends.get(number);
  };
  for (const call of model.calls) {
    for (const number of call.ends) {
      const end = endOf(number);
      if (model.nodes[number].operator === "input") items[call.number].reads.push(end);
      else items[end].reads.push(call.number);
    }
  }
  return new Graph(model, "kernels", items);
}

function operatorsOf(model, call) {
  const counts = new Map();
  for (const n of call.nodes) counts.set(model.nodes[n].operator, (counts.get(model.nodes[n].operator) ?? 0) + 1);
  const names = [...counts].filter(([name]) => name).map(([name, count]) => (count > 1 ? `${name} ×${count}` : name));
  return names.length ? names.join(" + ") : call.name.replace(/^k\d+_/, "");
}

class Graph {
  constructor(model, level, items) {
    this.model = model;
    this.level = level;
    this.items = items;
    this.readers = items.map(() => []);
    for (const item of items) for (const read of item.reads) this.readers[read].push(item.id);
    this.members = new Map(); // of a group (-1: the whole graph): its items, and the groups in it
    const list = (group) => {
      if (!this.members.has(group)) this.members.set(group, { items: [], groups: [], all: [] });
      return this.members.get(group);
    };
    list(-1);
    for (const item of items) {
      list(item.group).items.push(item.id);
      for (let group = item.group; ; group = model.groups[group].parent) {
        list(group).all.push(item.id);
        if (group < 0) break;
      }
    }
    model.groups.forEach((group, number) => {
      if (this.members.has(number)) list(group.parent).groups.push(number);
    });
    this.sums = new Map();
    for (const [group, members] of this.members) {
      const errors = members.all.map((id) => items[id].error).filter((error) => error !== null);
      this.sums.set(group, {
        time: members.all.reduce((sum, id) => sum + (items[id].time ?? 0), 0),
        error: errors.length ? Math.max(...errors) : null,
      });
    }
    this.mostTime = items.reduce((most, { time }) => Math.max(most, time ?? 0), 0);
    this.mostError = items.reduce((most, { error }) => (Number.isFinite(error) ? Math.max(most, error) : most), 0);
  }

  lineage(id) {
    const found = [];
    for (let group = this.items[id].group; group >= 0; group = this.model.groups[group].parent) found.push(group);
    return found;
  }

  // A group with one member is that member.
  isPlain(group) { return this.members.get(group).all.length === 1; }

  // Whether it holds inputs or outputs alone.
  isOfEnds(group) { return this.members.get(group).all.every((id) => this.items[id].kind === "end"); }
}

// The most that any of the graphs of a level has: two models are coloured by one scale, where their times are of one kind.
function mostOf(graph, what) {
  const beside = models.filter((model) => model.levels.includes(graph.level) && (what !== "mostTime" || model.measured === graph.model.measured && model.inSeconds === graph.model.inSeconds));
  return Math.max(graph[what], ...beside.map((model) => model.graph(graph.level)[what]));
}

async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).text();
}

const page = JSON.parse(byId("data").textContent);
const models = page.models.map((view, index) => new Model(view, index));
