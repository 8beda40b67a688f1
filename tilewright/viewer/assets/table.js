// All calls of kernels as a table that can be sorted; with two models, what the other takes for the same nodes.
"use strict";

const tableView = {
  title: "Kernels",
  model: 0,
  by: "time",
  down: true,

  available() { return models.some((model) => model.calls.length); },

  columns(model) {
    const other = models.length > 1 ? models[1 - model.index] : null;
    const optional = (name, has) => (has ? [name] : []);
    const all = [
      ["number", "#", (call) => call.number + 1, (call) => call.number + 1],
      ["kernel", "kernel", (call) => call.name, (call) => call.name, true],
      ["node", "node", (call) => call.node, (call) => call.node, true],
      ["strategy", "strategy", (call) => model.codes[call.code].strategy, (call) => model.codes[call.code].strategy.replaceAll("_", " "), true],
      ["time", model.measured ? "time" : "estimate", (call) => call.time, (call) => model.timeText(call.time)],
      ["other", other ? `in ${other.name}` : "", (call) => this.other(other, call), (call) => (other ? other.timeText(this.other(other, call)) : "")],
      ["share", "share", (call) => call.time, (call) => (model.total ? write.share((call.time ?? 0) / model.total) : "")],
      ["flops", "operations", (call) => call.flops, (call) => write.flops(call.flops)],
      ["rate", "rate", (call) => pointOf(model, call)?.rate, (call) => write.rate(pointOf(model, call)?.rate ?? null)],
      ["bytes", "data", (call) => call.bytes, (call) => write.bytes(call.bytes)],
      ["roof", "of best", (call) => pointOf(model, call)?.share, (call) => write.share(pointOf(model, call)?.share ?? null)],
    ];
    const shown = new Set(["number", "kernel", "node", "time", "share", "flops", "rate", "bytes", "roof",
      ...optional("strategy", model.codes.some((code) => code.strategy)), ...optional("other", other)]);
    return all.filter(([name]) => shown.has(name) && !(name === "roof" && !model.calls.some((call) => call.percent !== null)));
  },

  other(other, call) {
    const ids = partnersIn({ model: this.model, level: "kernels", id: call.number }, other.graph("kernels"));
    return ids.length ? ids.reduce((sum, id) => sum + (other.calls[id].time ?? 0), 0) : null;
  },

  build(parent) {
    const usable = models.filter((model) => model.calls.length);
    if (!usable.some((model) => model.index === this.model)) this.model = usable[0].index;
    const model = models[this.model];
    if (usable.length > 1) {
      parent.append(el("div", { class: "bar" }, choice("Model", usable.map((m) => [m.index, m.name]), this.model, (value) => { this.model = value; app.show("table"); })));
    }
    const columns = this.columns(model);
    const [, , key] = columns.find(([name]) => name === this.by) ?? columns[0];
    const calls = [...model.calls].sort((a, b) => {
      const [x, y] = [key(a) ?? -1, key(b) ?? -1];
      const order = typeof x === "string" && typeof y === "string" ? y.localeCompare(x, "en", { numeric: true }) : x - y;
      return (this.down ? -order : order) || a.number - b.number;
    });
    const head = el("tr", {}, columns.map(([name, title, , , isText]) => el("th", {
      scope: "col", class: isText ? "text" : "", title, tabindex: "0", "aria-sort": name === this.by ? (this.down ? "descending" : "ascending") : undefined,
      onclick: () => this.sort(name), onkeydown: (event) => { if (event.key === "Enter") this.sort(name); },
    }, title)));
    const room = innerWidth > 860 ? 30 : 12; // characters of a column of texts, some less than its style gives: those that differ are at the end
    const most = model.calls.reduce((found, { time }) => Math.max(found, time ?? 0), 0) || 1;
    const body = el("tbody", {}, calls.map((call) => el("tr", {
      "data-call": call.number, onclick: () => app.select({ model: model.index, level: "kernels", id: call.number }),
    }, columns.map(([name, , , text, isText]) => {
      const written = String(text(call));
      const cell = el("td", { class: `${isText ? "text" : ""} ${name === "share" ? "barcell" : ""}`, title: isText ? written : undefined }, isText ? shortened(written, room) : written);
      if (name === "share" && model.total) cell.prepend(el("i", { style: `width: ${(100 * (call.time ?? 0) / most).toFixed(1)}%` }));
      return cell;
    }))));
    parent.append(el("div", { class: "table" }, el("table", {}, el("thead", {}, head), body)));
    this.selected(app.selected);
  },

  sort(name) { this.down = this.by === name ? !this.down : true; this.by = name; app.show("table"); },

  selected(chosen) {
    for (const row of document.querySelectorAll("#view tbody tr")) {
      const is = chosen && chosen.level === "kernels" && chosen.model === this.model && Number(row.dataset.call) === chosen.id;
      row.setAttribute("aria-selected", String(Boolean(is)));
    }
  },

  key(event) {
    if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return false;
    const rows = [...document.querySelectorAll("#view tbody tr")];
    const at = rows.findIndex((row) => row.getAttribute("aria-selected") === "true");
    const next = rows[Math.max(0, Math.min(rows.length - 1, at + (event.key === "ArrowDown" ? 1 : -1)))];
    if (next) { app.select({ model: this.model, level: "kernels", id: Number(next.dataset.call) }); next.scrollIntoView({ block: "nearest" }); }
    return true;
  },
};
