// What was done and not done, and why: by stage and reason, the most frequent first.
"use strict";

const KINDS = [["failed", "failed"], ["warning", "warnings"], ["missed", "not done"], ["applied", "done"], ["analysis", "found out"]];

const reasonsView = {
  title: "Reasons",
  kinds: new Set(["failed", "warning", "missed"]),

  available() { return models.some((model) => model.remarks.length); },

  build(parent) {
    const counts = new Map();
    for (const model of models) for (const remark of model.remarks) counts.set(remark.kind, (counts.get(remark.kind) ?? 0) + 1);
    if (![...this.kinds].some((kind) => counts.has(kind))) this.kinds = new Set(counts.keys());
    parent.append(el("div", { class: "bar" }, "Show", KINDS.filter(([kind]) => counts.has(kind)).map(([kind, name]) => el("label", {},
      el("input", { type: "checkbox", checked: this.kinds.has(kind), onchange: (event) => { if (event.target.checked) this.kinds.add(kind); else this.kinds.delete(kind); app.show("reasons"); } }),
      `${name} (${counts.get(kind)})`))));
    const scroll = el("div", { class: "scroll" });
    parent.append(scroll);
    for (const model of models) {
      const stages = new Map();
      for (const remark of model.remarks) {
        if (!this.kinds.has(remark.kind)) continue;
        if (!stages.has(remark.stage)) stages.set(remark.stage, new Map());
        const key = `${remark.kind}\n${remark.message}`;
        const reasons = stages.get(remark.stage);
        if (!reasons.has(key)) reasons.set(key, []);
        reasons.get(key).push(remark);
      }
      if (models.length > 1) scroll.append(el("h2", {}, model.name));
      for (const [stage, reasons] of stages) {
        scroll.append(el("h3", {}, stage));
        for (const remarks of [...reasons.values()].sort((a, b) => b.length - a.length)) {
          const [{ kind, message }] = remarks;
          const subjects = [...new Set(remarks.map((remark) => remark.subject))];
          scroll.append(el("div", { class: `reason ${kind}` }, el("details", {}, el("summary", {}, message, " ", el("span", { class: "count" }, `${remarks.length}×`)),
            el("div", { class: "subjects" }, listed(subjects.map((subject) => [this.subject(model, subject)]), 40)))));
        }
      }
    }
    if (scroll.childElementCount === 0) scroll.append(el("p", { class: "empty" }, "Nothing of these kinds."));
  },

  subject(model, subject) {
    const node = model.nodes.findIndex((each) => each.name === subject);
    if (node >= 0) return link(subject, { model: model.index, level: "nodes", id: node });
    const call = model.calls.find((each) => each.name === subject || each.node === subject);
    return call ? link(subject, { model: model.index, level: "kernels", id: call.number }) : el("span", {}, subject);
  },
};
