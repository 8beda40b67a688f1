// Finding nodes, kernels and modules by parts of their names.
"use strict";

const search = {
  rows: [],
  at: 0,

  entries() {
    this.known ??= models.flatMap((model) => [
      ...model.nodes.map((node, id) => ({ text: node.name, kind: node.operator, chosen: { model: model.index, level: "nodes", id } })),
      ...model.calls.map((call) => ({ text: call.name, more: call.node, kind: "kernel", chosen: { model: model.index, level: "kernels", id: call.number } })),
      ...model.groups.map((group, number) => ({ text: model.paths[number], kind: group.kind, chosen: { model: model.index, level: model.levels.at(-1), group: number } })),
    ]).map((entry) => ({ ...entry, low: `${entry.text} ${entry.more ?? ""} ${entry.kind}`.toLowerCase(), own: models.length > 1 ? models[entry.chosen.model].name : "" }));
    return this.known;
  },

  find(text) {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    if (!words.length) return [];
    const found = this.entries().filter((entry) => words.every((word) => entry.low.includes(word)));
    const rank = (entry) => (entry.text.toLowerCase() === text.toLowerCase() ? 0 : entry.text.toLowerCase().endsWith(text.toLowerCase()) ? 1 : 2) * 1000 + Math.min(999, entry.text.length);
    return found.sort((a, b) => rank(a) - rank(b)).slice(0, 60);
  },

  update() {
    const list = byId("results");
    this.rows = this.find(byId("search").value);
    this.at = 0;
    list.replaceChildren(...this.rows.map((entry, number) => el("li", { role: "option", onmousedown: (event) => { event.preventDefault(); this.choose(number); } },
      el("span", { class: "name", title: entry.text }, entry.more ? `${entry.text} · ${entry.more}` : entry.text), el("span", { class: "kind" }, [entry.kind, entry.own].filter(Boolean).join(" · ")))));
    if (byId("search").value && !this.rows.length) list.replaceChildren(el("li", { class: "quiet" }, "nothing has this name"));
    list.hidden = !byId("search").value;
    this.mark();
  },

  mark() {
    [...byId("results").children].forEach((row, number) => row.setAttribute("aria-selected", String(number === this.at && this.rows.length > 0)));
    byId("results").children[this.at]?.scrollIntoView({ block: "nearest" });
  },

  choose(number) {
    const entry = this.rows[number];
    if (!entry) return;
    byId("results").hidden = true;
    byId("search").blur();
    if (app.view === "graph" || app.view === "reasons" || app.view === "compiling") {
      graphView.arrangement = graphView.arrangement === "both" ? "both" : entry.chosen.level;
      app.selected = entry.chosen;
      app.show("graph");
    }
    app.select(entry.chosen);
  },

  listen() {
    const input = byId("search");
    input.addEventListener("input", () => this.update());
    input.addEventListener("focus", () => this.update());
    input.addEventListener("blur", () => { byId("results").hidden = true; });
    input.addEventListener("keydown", (event) => {
      if (event.key === "ArrowDown" || event.key === "ArrowUp") {
        this.at = Math.max(0, Math.min(this.rows.length - 1, this.at + (event.key === "ArrowDown" ? 1 : -1)));
        this.mark();
        event.preventDefault();
      } else if (event.key === "Enter") this.choose(this.at);
      else if (event.key === "Escape") { input.value = ""; input.blur(); event.stopPropagation(); }
    });
  },
};
