// The page: its views, what is selected, and the keys.
"use strict";

const VIEWS = { graph: graphView, table: tableView, timeline: timelineView, memory: memoryView, roofline: rooflineView, compiling: compilingView, reasons: reasonsView };

const HELP = [["/", "search"], ["Esc", "close, or select nothing"], ["1 … 7", "views"], ["↑ ↓ ← →", "along the edges of the graph; between kernels"],
  ["Enter", "open or close a module"], ["m k b", "model, kernels, both"], ["e c", "open or close all modules"], ["+ − 0", "zoom; see all of it"], ["s", "source, all levels side by side"], ["?", "this help"]];

const app = {
  view: "graph",
  selected: null,
  painted: 0,

  start() {
    const names = models.map((model) => visible(model.name));
    byId("title").append(names.join("  ·  "), " ", names.length > 1 ? "" : el("small", {}, "tilewright"));
    byId("title").title = names.join(" and ");
    const usable = Object.entries(VIEWS).filter(([, view]) => view.available());
    byId("tabs").append(...usable.map(([name, view], number) => el("button", { type: "button", role: "tab", "data-view": name, title: `${view.title} (${number + 1})`, onclick: () => this.show(name) }, view.title)));
    this.usable = usable.map(([name]) => name);
    search.listen();
    this.listen();
    inspector.build(null); // before the graph, which begins at the size that is left for it
    if (this.usable.length) this.show(!models.some((model) => model.hasGraph) && this.usable.includes("table") ? "table" : this.usable[0]);
    else byId("view").append(el("p", { class: "empty" }, "There are no nodes and no kernels to show."));
  },

  show(name) {
    this.view = name;
    for (const tab of byId("tabs").children) {
      tab.setAttribute("aria-selected", String(tab.dataset.view === name));
      if (tab.dataset.view === name) tab.scrollIntoView({ block: "nearest", inline: "nearest" });
    }
    const parent = byId("view");
    parent.replaceChildren();
    tip.hide();
    VIEWS[name].build(parent);
  },

  select(chosen, source = null) {
    this.selected = chosen;
    VIEWS[this.view].selected?.(chosen, source);
    inspector.build(chosen);
  },

  help() {
    const box = byId("help");
    if (box.hidden) {
      box.replaceChildren(el("h2", {}, "Keys"), facts(HELP.map(([keys, text]) => [el("kbd", {}, keys), text])),
        el("p", { class: "quiet" }, "Drag to move, turn the wheel to zoom, click a box for what it is, its + to open it. Everything is in this file: nothing is loaded, nothing is sent."));
    }
    box.hidden = !box.hidden;
  },

  listen() {
    byId("help-button").addEventListener("click", () => this.help());
    document.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.target.closest?.("input, select, textarea")) return;
      if (event.key === "Escape") {
        const closed = codeView.close() || !byId("help").hidden;
        byId("help").hidden = true;
        if (!closed) this.select(null);
      } else if (codeView.isOpen) return; // keys are those of the texts then
      else if (event.key === "/") { byId("search").focus(); byId("search").select(); } else if (event.key === "?") this.help();
      else if (event.key === "s") this.source();
      else if (/^[1-9]$/.test(event.key) && this.usable[event.key - 1]) this.show(this.usable[event.key - 1]);
      else if (event.key === "Enter" && event.target.closest?.("button, summary, th")) return;
      else if (event.key.startsWith("Arrow") && event.target.closest?.("pre, #inspector, [role=tablist], #splitter")) return;
      else if (!VIEWS[this.view].key?.(event)) return;
      event.preventDefault();
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { theme.read(); VIEWS[this.view].repaint?.(); this.show(this.view); });
    this.splitter();
  },

  source() {
    const chosen = this.selected;
    if (!chosen || chosen.id === undefined) return;
    const model = models[chosen.model];
    const item = model.graph(chosen.level).items[chosen.id];
    const call = item.kind === "kernel" ? item.call : model.calls[item.node.kernels[0]];
    if (call && Object.keys(model.codes[call.code].texts).length) codeView.open(model, model.codes[call.code]);
  },

  splitter() {
    const bar = byId("splitter");
    const aside = byId("inspector");
    const set = (width) => { aside.style.width = `${Math.max(0, Math.min(innerWidth - 200, width))}px`; };
    bar.addEventListener("pointerdown", (event) => bar.setPointerCapture(event.pointerId));
    bar.addEventListener("pointermove", (event) => { if (bar.hasPointerCapture(event.pointerId)) set(innerWidth - event.clientX); });
    bar.addEventListener("dblclick", () => set(aside.clientWidth > 20 ? 0 : 400));
    bar.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: 30, ArrowRight: -30 }[event.key];
      if (step) { set(aside.clientWidth + step); event.preventDefault(); event.stopPropagation(); }
    });
  },
};

app.start();
