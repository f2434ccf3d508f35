// The explorer: one generation step by step, and the causal trace of the step before it.
(function () {
  const root = document.getElementById("explorer-tool");
  const data = JSON.parse(document.getElementById("explorer-data").textContent);
  if (!root || !data.cases.length) return;
  const part = (name) => root.querySelector("[data-part=" + name + "]");
  const [model, split, fact, step, play] = ["model", "split", "fact", "step", "play"].map(part);
  const [PAUSE, FIRST, LAST] = [900, 2500, 4000]; // milliseconds for a step, for t1 and for the finished answer

  const chosen = () => data.cases.find((one) =>
    one.model === model.value && one.split === split.value && one.fact === fact.value);
  const start = (one) => one.trace ? one.trace.steps[0] : Math.min(...one.tokens.filter((token) => token[3]).map((token) => token[1]), one.steps);

  function offerSplits() {
    const there = new Set(data.cases.filter((one) => one.model === model.value).map((one) => one.split));
    offer(split, Object.entries(data.splits).filter(([name]) => there.has(name)));
  }

  function offerFacts() {
    const there = data.cases.filter((one) => one.model === model.value && one.split === split.value);
    offer(fact, there.map((one) => [one.fact, one.name + (one.correct ? "" : " (wrong)")]));
  }

  function begin() {
    const one = chosen();
    step.max = one.steps;
    step.value = start(one);
    show();
  }

  function showCanvas(one, at) {
    part("canvas").replaceChildren(element("li", one.prompt, { class: "prompt" }), ...tokenItems(one.tokens, at));
    const left = one.tokens.filter(([, when]) => when >= at).length;
    part("said").textContent = left ? left + " of " + one.tokens.length + " tokens still masked."
      : one.correct ? "✓ The answer is correct." : "✗ The answer is wrong; expected: “" + one.reference.trim() + "”.";
    part("step-number").textContent = at + " of " + one.steps;
  }

  function showTrace(one, at) {
    const trace = one.trace;
    const holder = part("trace");
    if (!trace) {
      holder.replaceChildren();
      part("trace-said").textContent = "Not traced: only some of the correct answers are.";
      return;
    }
    const which = Math.max(0, trace.steps.findLastIndex((when) => when <= at));
    const layers = trace.layers, total = trace.total[which] / 100;
    const ends = new Set(one.tokens.filter(([, , , , end]) => end).map(([text]) => text));
    let best = null;
    const rows = trace.roles[which].map((role, place) => {
      const joint = place >= trace.tokens.length || role === "all subject tokens" || role === "answer positions";
      const label = joint ? role : role.startsWith("masked") ? "▒▒"
        : ends.has(trace.tokens[place]) ? "∎" : visibleToken(trace.tokens[place]);
      const values = trace.effects[which].slice(place * layers, (place + 1) * layers)
        .map((effect) => effect === null ? null : effect / 100);
      const said = (layer) => label + " (" + role + ") after layer " + layer + ": " +
        Math.round(100 * values[layer] / total) + "%, " + values[layer].toFixed(1) + " nats";
      values.forEach((effect, layer) => {
        if (effect !== null && !joint && (!best || effect > best.effect)) best = { effect, said: said(layer) };
      });
      return { label, strong: role.includes("subject"), values, said, role };
    }).filter((row) => row.role);
    const { svg } = heatMap({ rows, layers, total, label: 150, cell: Math.min(34, Math.max(9, 330 / layers)) });
    const summary = "Step " + trace.steps[which] + ": corrupting the subject (*) costs the rest of the answer " +
      total.toFixed(1) + " nats. Each cell restores one hidden state; the darker, the more of that it recovers" +
      (best ? ". Most: " + best.said + "." : ".");
    svg.setAttribute("aria-label", "Heat map by token and layer. " + summary);
    holder.replaceChildren(svg);
    part("trace-said").textContent = summary;
  }

  function show() {
    const one = chosen();
    const at = Number(step.value);
    showCanvas(one, at);
    showTrace(one, at);
  }

  let timer = null;
  function tick() {
    const one = chosen();
    const at = Number(step.value);
    const next = at >= one.steps ? start(one) : at + 1;
    step.value = next;
    show();
    timer = setTimeout(tick, next === start(one) ? FIRST : next >= one.steps ? LAST : PAUSE);
  }
  function run(on) {
    clearTimeout(timer);
    timer = on ? setTimeout(tick, FIRST) : null;
    play.textContent = on ? "Pause" : "Play";
  }

  model.addEventListener("change", () => { run(false); offerSplits(); offerFacts(); begin(); });
  split.addEventListener("change", () => { run(false); offerFacts(); begin(); });
  fact.addEventListener("change", () => { run(false); begin(); });
  step.addEventListener("input", () => { run(false); show(); });
  play.addEventListener("click", () => run(timer === null));

  offer(model, data.models);
  offerSplits();
  offerFacts();
  begin();
  root.hidden = false;
  // It plays by itself once it comes into sight, unless the reader wants no motion.
  if (!window.matchMedia("(prefers-reduced-motion: reduce)").matches) {
    const watch = new IntersectionObserver((seen) => {
      if (!seen.some((one) => one.isIntersecting)) return;
      watch.disconnect();
      run(true);
    });
    watch.observe(root);
  }
})();
