// How long each stage of compiling took, and what took most of it.
"use strict";

const compilingView = {
  title: "Compiling",

  available() { return models.some((model) => model.compiling.length); },

  build(parent) {
    const scroll = el("div", { class: "scroll" });
    parent.append(scroll);
    for (const model of models) {
      if (!model.compiling.length) continue;
      const stages = new Map();
      for (const { stage, step, seconds } of model.compiling) {
        if (!stages.has(stage)) stages.set(stage, { seconds: 0, steps: [] });
        stages.get(stage).seconds += seconds;
        stages.get(stage).steps.push([step, seconds]);
      }
      const total = [...stages.values()].reduce((sum, stage) => sum + stage.seconds, 0);
      const most = Math.max(...[...stages.values()].map((stage) => stage.seconds));
      scroll.append(el("h2", {}, `${model.name}: ${write.time(total)}`), el("p", { class: "kind-line" }, "on one thread, while this page was made"));
      scroll.append(this.bars([...stages].map(([name, stage]) => [name, stage.seconds]), most));
      for (const [name, stage] of stages) {
        if (stage.steps.length < 2) continue;
        const steps = stage.steps.sort((a, b) => b[1] - a[1]);
        scroll.append(el("h3", {}, `${name}: ${steps.length} ${name === "LLVM" ? "kernels" : "steps"}`), this.bars(steps.slice(0, 12), steps[0][1]));
        if (steps.length > 12) scroll.append(el("p", { class: "quiet" }, `${steps.length - 12} more take ${write.time(steps.slice(12).reduce((sum, step) => sum + step[1], 0))} together`));
      }
    }
  },

  bars(rows, most) {
    return el("div", { class: "bars" }, rows.flatMap(([name, seconds]) => [
      el("span", { class: "name", title: name }, name), el("span", { class: "track" }, el("div", { class: "fill", style: `width: ${(100 * seconds / (most || 1)).toFixed(2)}%` })), el("span", { class: "value" }, write.time(seconds))]));
  },
};
