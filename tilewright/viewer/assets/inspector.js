// What is selected: what it is, what it costs, why, and its source.
"use strict";

const LEVELS = [["loops", "Loops", "The loop program, and the steps that made it"], ["schedule", "Schedule", "The steps, as `tilewright compile --schedule` takes them"],
  ["llvm", "LLVM IR", "Before LLVM's own passes"], ["asm", "Assembly", "With what its loops do and cost"]];

const KEYWORDS = /^(for|if|else|parallel|vector|unroll|kernel|func|define|declare|call|load|store|ret|br|phi|alloc|return|yield|bind|run|and|or|min|max|select|fma|getelementptr|icmp|fadd|fmul)$/;

const TOKENS = /(?:^|(?<=\s))[#;][^\n]*|[%@][\w.$]+|[A-Za-z_][\w.]*|\b\d[\w.+-]*|\s+|[^\s\w%@#;]+|./gm;
const TOKENS_OF_ASSEMBLERS = new RegExp(`//[^\\n]*|${TOKENS.source}`, "gm");

// Comments, keywords, numbers and names, each in a span of its own; plain text where there is very much of it.
// `//` is a comment of assemblers, and a division of programs.
function coloured(source, level) {
  const text = visible(source);
  if (text.length > 200_000) return [text];
  const found = [];
  let plain = "";
  const flush = () => { if (plain) { found.push(plain); plain = ""; } };
  const tokens = level === "asm" ? TOKENS_OF_ASSEMBLERS : TOKENS;
  for (const [token] of text.matchAll(tokens)) {
    const first = token[0];
    const kind = /^[#;]/.test(token) || (level === "asm" && token.startsWith("//")) ? "c" : KEYWORDS.test(token) ? "k" : /\d/.test(first) ? "n" : first === "%" || first === "@" ? "v" : "";
    if (!kind) { plain += token; continue; }
    flush();
    found.push(el("span", { class: `tok-${kind}` }, token));
  }
  flush();
  return found;
}

function link(text, chosen) {
  return el("button", { type: "button", class: "link", onclick: () => app.select(chosen) }, text);
}

function listed(rows, most = 12) {
  const list = el("ul", { class: "links" });
  const add = (some) => list.append(...some.map((row) => el("li", {}, row)));
  add(rows.slice(0, most));
  if (rows.length > most) {
    const more = el("button", { type: "button", class: "link more", onclick: () => { more.remove(); add(rows.slice(most)); } }, `${rows.length - most} more`);
    list.append(more);
  }
  return list;
}

function facts(pairs) {
  return el("dl", {}, pairs.filter(([, value]) => value !== "" && value !== null && value !== undefined)
    .flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
}

function reasonList(remarks, most = 20) {
  return remarks.slice(0, most).map((remark) => el("div", { class: `reason ${remark.kind}` },
    el("b", {}, { applied: "done", missed: "not done", failed: "failed", warning: "warning", analysis: "found" }[remark.kind] ?? remark.kind), " ",
    el("span", { class: "stage" }, `${remark.stage}: `), remark.message));
}

const inspector = {
  level: "loops",

  build(chosen) {
    const parent = byId("inspector");
    parent.replaceChildren();
    if (!chosen) this.overview(parent);
    else if (chosen.group !== undefined) this.group(parent, chosen);
    else {
      const item = models[chosen.model].graph(chosen.level).items[chosen.id];
      if (item.kind === "kernel") this.kernel(parent, models[chosen.model], item);
      else this.node(parent, models[chosen.model], item);
    }
    parent.scrollTop = 0;
  },

  // What is said of a whole model, as names and values.
  summary(model) {
    const ends = model.nodes.filter((node) => node.operator === "input" || node.operator === "output");
    return [
      ["nodes", model.hasGraph ? write.number(model.nodes.length - ends.length) : ""],
      ["kernels", model.calls.length ? `${write.counted(model.calls.length, "call")} of ${write.counted(model.codes.length, "kernel")}` : ""],
      [model.timeName, model.hasTimes ? model.timeText(model.total) : ""],
      ["operations", write.flops(model.calls.reduce((sum, call) => sum + (call.flops ?? 0), 0))],
      ["arena", model.memory.length ? `${write.bytes(model.memory.reduce((sum, m) => sum + m.total, 0))}, ${write.bytes(model.memory.reduce((sum, m) => sum + m.unshared, 0))} without sharing` : ""],
      ...model.facts,
    ];
  },

  overview(parent) {
    if (models.length > 1) this.both(parent);
    for (const model of models) {
      parent.append(el("h2", {}, model.name), el("p", { class: "kind-line" }, model.kind === "artefact" ? "a compiled model" : "a model on its way through the compiler"));
      for (const note of model.notes) parent.append(el("p", { class: "note" }, note));
      if (models.length === 1) parent.append(facts(this.summary(model)));
      const graph = model.levels.length ? model.graph(model.levels.at(-1)) : null;
      const repeats = model.groups.map((group, number) => [group, number]).filter(([group, number]) => group.kind === "repeat" && graph?.members.has(number));
      if (repeats.length) {
        parent.append(el("h3", {}, "Repeated blocks"), listed(repeats.map(([, number]) => [
          link(model.groupName(number), { model: model.index, level: graph.level, group: number }),
          el("span", { class: "quiet" }, model.timeText(graph.sums.get(number).time || null))])));
      }
      if (model.hasTimes) {
        const slow = [...model.calls].sort((a, b) => (b.time ?? 0) - (a.time ?? 0)).slice(0, 8);
        parent.append(el("h3", {}, "Where the time goes"), listed(slow.map((call) => [
          link(call.node, { model: model.index, level: "kernels", id: call.number }),
          el("span", { class: "quiet" }, `${model.timeText(call.time)}  ${write.share(call.time / model.total)}`)])));
      }
    }
  },

  // Two models in a table, a line for each fact.
  both(parent) {
    const [one, two] = models.map((model) => new Map(this.summary(model).filter(([, value]) => value)));
    const names = [...new Set([...one.keys(), ...two.keys()])];
    parent.append(el("table", { class: "both" }, el("thead", {}, el("tr", {}, el("th", {}, ""), models.map((model) => el("th", { scope: "col" }, model.name)))),
      el("tbody", {}, names.map((name) => el("tr", { class: one.get(name) === two.get(name) ? "same" : "" }, el("th", { scope: "row" }, name), el("td", {}, one.get(name) ?? ""), el("td", {}, two.get(name) ?? ""))))));
  },

  group(parent, chosen) {
    const model = models[chosen.model];
    const graph = model.graph(chosen.level);
    const sums = graph.sums.get(chosen.group);
    const { all } = graph.members.get(chosen.group);
    const costs = all.map((id) => graph.items[id]).sort((a, b) => (b.time ?? 0) - (a.time ?? 0));
    parent.append(el("h2", {}, model.groupName(chosen.group)), el("p", { class: "kind-line" }, model.paths[chosen.group]), facts([
      [graph.level, String(all.length)],
      [model.timeName, sums.time ? `${model.timeText(sums.time)}, ${write.share(sums.time / model.total)}` : ""],
      ["largest error", write.error(sums.error)],
    ]));
    if (graphView.panes.length) {
      const path = model.paths[chosen.group];
      parent.append(el("p", {}, el("button", { type: "button", class: "small", onclick: () => { graphView.toggle(graphView.panes.find((p) => p.graph === graph) ?? graphView.panes[0], path); this.build(chosen); } },
        graphView.open.has(path) ? "Close this module" : "Open this module")));
    }
    parent.append(el("h3", {}, graph.level === "nodes" ? "Nodes" : "Kernels"), listed(costs.map((item) => [
      link(item.name, { model: chosen.model, level: chosen.level, id: item.id }), el("span", { class: "quiet" }, item.time ? model.timeText(item.time) : "")]), 20));
  },

  node(parent, model, item) {
    const { node } = item;
    const number = model.nodes.indexOf(node);
    parent.append(el("h2", {}, node.name), el("p", { class: "kind-line" }, node.operator || "a node of the model that this was made of"), facts([
      ["gives", node.types.join(", ")], ["reads", node.constants.length ? shortened(node.constants.join(", "), 400) : ""],
      ["module", model.paths[node.group] ?? ""],
      ["error", write.error(node.error, 3)],
    ]));
    if (item.kind !== "end") {
      parent.append(el("h3", {}, "Computed by"));
      if (node.kernels.length) {
        parent.append(listed(node.kernels.map((k) => [link(model.calls[k].name, { model: model.index, level: "kernels", id: k }),
          el("span", { class: "quiet" }, model.timeText(model.calls[k].time))])));
      } else parent.append(el("p", { class: "quiet" }, "no kernel: it is known when compiling, needs no work, or is part of another node"));
    }
    this.partners(parent, model, item, "nodes");
    this.neighbours(parent, model, model.graph("nodes"), number);
    this.reasons(parent, model, item);
    if (node.text) parent.append(el("h3", {}, "As imported"), el("pre", { id: "source" }, coloured(node.text)));
    if (node.kernels.length) this.code(parent, model, model.codes[model.calls[node.kernels[0]].code], !node.text);
  },

  kernel(parent, model, item) {
    const { call } = item;
    const code = model.codes[call.code];
    const same = model.calls.filter((other) => other.code === call.code);
    const point = pointOf(model, call);
    parent.append(el("h2", {}, call.name), el("p", { class: "kind-line" }, `call ${call.number + 1} of ${model.calls.length}, for ${call.node}`), facts([
      [model.timeName, call.time === null ? "" : `${model.timeText(call.time)}, ${write.share(call.time / (model.total || 1))}`],
      ["estimate", model.measured && call.cycles !== null ? (model.hertz ? write.time(call.cycles / model.hertz) : write.cycles(call.cycles)) : ""],
      ["operations", write.flops(call.flops)], ["data moved", write.bytes(call.bytes)],
      ["at least", call.least ? write.time(call.least) : ""],
      ["rate", point?.rate ? write.rate(point.rate) : ""],
      ["of the machine's best", point && point.share !== null ? `${write.share(point.share)}, bound by ${point.bound}` : ""],
      ["bandwidth", point?.stream ? write.stream(point.stream) : ""],
      ["threads' balance", call.balance === null ? "" : write.share(call.balance)],
      ["strategy", code.strategy.replaceAll("_", " ")], ["gives", call.types.join(", ")],
      ["calls", same.length > 1 ? `${same.length} of this kernel, ${model.timeText(same.reduce((sum, c) => sum + (c.time ?? 0), 0))} together` : ""],
      ["error", write.error(item.error, 3)],
    ]));
    if (call.nodes.length) {
      parent.append(el("h3", {}, `Nodes (${call.nodes.length})`), listed(call.nodes.map((n) => [
        link(model.nodes[n].name, { model: model.index, level: "nodes", id: n }), el("span", { class: "quiet" }, model.nodes[n].operator)]), 8));
    }
    this.partners(parent, model, item, "kernels");
    this.code(parent, model, code, true);
    this.reasons(parent, model, item);
    this.neighbours(parent, model, model.graph("kernels"), item.id);
  },

  neighbours(parent, model, graph, id) {
    const rows = (ids, arrow) => ids.map((other) => [link(`${arrow} ${graph.items[other].name}`, { model: model.index, level: graph.level, id: other }),
      el("span", { class: "quiet" }, shortened(graph.items[other].label, 28))]);
    const all = [...rows(graph.items[id].reads, "↑"), ...rows([...new Set(graph.readers[id])], "↓")];
    if (all.length) parent.append(el("h3", {}, "Reads ↑ and is read by ↓"), listed(all, 8));
  },

  // The same in the other model, where there are two, and how long it takes there.
  partners(parent, model, item, level) {
    const other = models[1 - model.index];
    if (!other) return;
    const graph = other.graph(level);
    const found = partnersIn({ model: model.index, level, id: item.id }, graph).map((id) => graph.items[id]);
    const all = (items) => items.reduce((sum, { time }) => sum + (time ?? 0), 0);
    const comparable = level === "kernels" && found.length && item.time && all(found) && model.measured === other.measured && model.inSeconds === other.inSeconds;
    parent.append(el("h3", {}, `In ${other.name}`), found.length
      ? listed(found.map((same) => [link(same.kind === "kernel" ? same.call.name : same.name, { model: other.index, level, id: same.id }), el("span", { class: "quiet" }, same.time ? other.timeText(same.time) : "")]), 8)
      : el("p", { class: "quiet" }, "nothing of these names"));
    if (comparable) parent.append(el("p", { class: "quiet" }, `${(all(found) / item.time).toFixed(2)} times the time of this one`));
  },

  reasons(parent, model, item) {
    const found = model.reasons(item);
    if (found.length) parent.append(el("h3", {}, `Reasons (${found.length})`), ...reasonList(found));
  },

  code(parent, model, code, isSource) {
    const levels = LEVELS.filter(([level]) => code.texts[level]);
    if (!levels.length) return;
    if (!levels.some(([level]) => level === this.level)) this.level = levels[0][0];
    const text = el("pre", { id: isSource ? "source" : "kernel-source" }, "…");
    const show = async (level) => {
      this.level = level;
      for (const button of row.querySelectorAll("button[data-level]")) button.setAttribute("aria-pressed", String(button.dataset.level === level));
      const found = await unpacked(code.texts[level]);
      if (this.level === level) text.replaceChildren(...coloured(found, level));
    };
    const row = el("div", { class: "levels" }, levels.map(([level, name, title]) => el("button", { type: "button", "data-level": level, title, onclick: () => show(level) }, name)),
      el("button", { type: "button", class: "wide", title: "All levels beside each other (s)", onclick: () => codeView.open(model, code) }, "All"));
    parent.append(row, text);
    show(this.level);
  },
};

// All levels of a kernel beside each other, over the whole window.
const codeView = {
  shown: new Set(innerWidth > 1100 ? ["loops", "schedule", "llvm", "asm"] : ["loops", "asm"]),

  open(model, code) {
    const parent = byId("code");
    const levels = LEVELS.filter(([level]) => code.texts[level]);
    const columns = el("div", { class: "columns" });
    const fill = () => columns.replaceChildren(...levels.filter(([level]) => this.shown.has(level)).map(([level, name]) => {
      const text = el("pre", { tabindex: "0" }, "…");
      unpacked(code.texts[level]).then((found) => text.replaceChildren(...coloured(found, level)));
      return el("div", { class: "column" }, el("h3", {}, name), text);
    }));
    const buttons = levels.map(([level, name]) => el("button", {
      type: "button", "aria-pressed": String(this.shown.has(level)),
      onclick: (event) => {
        if (this.shown.has(level)) this.shown.delete(level); else this.shown.add(level);
        event.currentTarget.setAttribute("aria-pressed", String(this.shown.has(level)));
        fill();
      },
    }, name));
    parent.replaceChildren(el("div", { class: "bar" }, el("b", {}, code.name), el("span", { class: "segmented" }, buttons), el("span", { class: "spacer" }),
      el("button", { type: "button", onclick: () => this.close() }, "Close (Esc)")), columns);
    if (parent.hidden) this.before = document.activeElement;
    parent.hidden = false;
    fill();
    (parent.querySelector("pre") ?? parent.querySelector("button")).focus();
  },

  get isOpen() { return !byId("code").hidden; },

  close() {
    const { isOpen } = this;
    byId("code").hidden = true;
    if (isOpen) this.before?.focus?.();
    return isOpen;
  },
};
