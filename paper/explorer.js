"use strict";

// Where a number comes from, and the reference behind a citation: beside what has the pointer or the focus.
(function () {
  const tip = document.getElementById("tip");
  let shown = null;
  function place() {
    const at = shown.getBoundingClientRect();
    const size = tip.getBoundingClientRect();
    const below = at.bottom + 6;
    tip.style.left = Math.max(8, Math.min(at.left, document.documentElement.clientWidth - size.width - 8)) + "px";
    tip.style.top = (below + size.height > window.innerHeight ? Math.max(8, at.top - size.height - 6) : below) + "px";
  }
  function show(target, nodes) {
    tip.replaceChildren(...nodes);
    tip.hidden = false;
    shown = target;
    place();
  }
  function hide() {
    tip.hidden = true;
    shown = null;
  }
  function attach(target, events, nodes) {
    for (const event of events) target.addEventListener(event, () => show(target, nodes()));
    target.addEventListener("mouseleave", hide);
    target.addEventListener("blur", hide);
  }
  for (const link of document.querySelectorAll(".cite a")) {
    const entry = document.getElementById(link.getAttribute("href").slice(1));
    attach(link, ["mouseenter", "focus"], () => Array.from(entry.childNodes, (node) => node.cloneNode(true)));
  }
  // The browser itself shows a title under the pointer; for the focus and for fingers it is shown here.
  for (const number of document.querySelectorAll(".n")) attach(number, ["focus", "click"], () => [number.title]);
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
  document.addEventListener("scroll", () => { if (shown) place(); }, { passive: true });
})();

// Contents: beside the text where there is room for them, else folded into a line above it. They follow the reader.
(function () {
  const nav = document.querySelector("nav");
  const list = nav.querySelector("details");
  const here = nav.querySelector("[data-part=here]");
  const links = Array.from(nav.querySelectorAll("a"));
  const places = links.map((link) => document.getElementById(link.getAttribute("href").slice(1)));
  const roomy = window.matchMedia("(min-width: 78rem)");
  let marked = null;
  function follow() {
    const top = nav.getBoundingClientRect().height * !roomy.matches + 0.25 * window.innerHeight;
    const link = links[places.findLastIndex((place) => place.getBoundingClientRect().top < top)];
    if (link === marked) return;
    if (marked) marked.removeAttribute("aria-current");
    if (link) link.setAttribute("aria-current", "true");
    if (link && roomy.matches) nav.scrollTop = link.offsetTop - nav.clientHeight / 2;
    here.textContent = link ? ": " + link.textContent : "";
    marked = link;
  }
  function unfold() { list.open = roomy.matches; }
  // A link into an appendix opens it.
  function open() {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    for (let one = target; one; one = one.parentElement) if (one.tagName === "DETAILS") one.open = true;
    if (target) target.scrollIntoView();
  }
  roomy.addEventListener("change", unfold);
  for (const link of links) link.addEventListener("click", unfold);
  window.addEventListener("hashchange", open);
  document.addEventListener("scroll", follow, { passive: true });
  window.addEventListener("resize", follow);
  unfold();
  follow();
  if (location.hash) open();
})();

// The explorer: one generation step by step, and the causal trace of the step before it.
(function () {
  const root = document.getElementById("explorer-tool");
  const data = JSON.parse(document.getElementById("explorer-data").textContent);
  if (!root || !data.cases.length) return;
  const part = (name) => root.querySelector("[data-part=" + name + "]");
  const [model, split, fact, step, play] = ["model", "split", "fact", "step", "play"].map(part);
  const SVG = "http://www.w3.org/2000/svg";
  const [PAUSE, FIRST, LAST] = [900, 2500, 4000]; // milliseconds for a step, for t1 and for the finished answer

  function element(tag, content, attributes) {
    const made = document.createElement(tag);
    if (content !== undefined) made.textContent = content;
    for (const [name, value] of Object.entries(attributes || {})) made.setAttribute(name, value);
    return made;
  }

  function drawn(tag, attributes, content) {
    const made = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    if (content !== undefined) made.textContent = content;
    return made;
  }

  function offer(select, options) {
    const before = select.value;
    select.replaceChildren(...options.map(([value, text]) => element("option", text, { value })));
    if (options.some(([value]) => value === before)) select.value = before;
    select.disabled = options.length < 2;
  }

  const visible = (text) => text.replace(/\n/g, "↵").replace(/^ /, "␣") || "∅";
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
    const items = [element("li", one.prompt, { class: "prompt" })];
    for (const [text, when, confidence, answer, end] of one.tokens) {
      if (when >= at) {
        items.push(element("li", "▒▒", { class: "masked", "aria-label": "masked" }));
        continue;
      }
      items.push(element("li", end ? "∎" : visible(text), {
        class: (when === at - 1 ? "fresh" : "shown") + (answer ? " answer" : ""),
        title: "revealed at step " + (when + 1) + ", confidence " + Math.round(100 * confidence) + "%",
      }));
    }
    part("canvas").replaceChildren(...items);
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
    const cells = trace.effects[which];
    const total = trace.total[which];
    const layers = trace.layers;
    const most = Math.max(1, Math.abs(total), ...cells.map(Math.abs));
    const label = 150, top = 26, high = 17, wide = Math.min(34, Math.max(9, 330 / layers));
    const rows = trace.roles[which].map((role, place) => [role, place]).filter(([role]) => role);
    const svg = drawn("svg", {
      viewBox: "0 0 " + (label + layers * wide + 8) + " " + (top + rows.length * high + 4), role: "img",
    });
    svg.style.maxWidth = 1.25 * (label + layers * wide + 8) + "px";
    svg.append(drawn("text", { x: label, y: 11, class: "axis" }, "layer"));
    for (let layer = 0; layer < layers; layer += layers > 12 ? 4 : 1) {
      svg.append(drawn("text", { x: label + (layer + 0.5) * wide, y: 23, class: "axis", "text-anchor": "middle" }, layer));
    }
    const ends = new Set(one.tokens.filter(([, , , , end]) => end).map(([text]) => text));
    let best = null;
    rows.forEach(([role, place], line) => {
      const y = top + line * high;
      const joint = place >= trace.tokens.length || role === "all subject tokens" || role === "answer positions";
      const ofSubject = role.includes("subject");
      const token = joint ? role : role.startsWith("masked") ? "▒▒"
        : ends.has(trace.tokens[place]) ? "∎" : visible(trace.tokens[place]);
      const name = drawn("text", { x: label - 6, y: y + 12, "text-anchor": "end" },
        (ofSubject ? "*" : "") + (token.length > 18 ? token.slice(0, 17) + "…" : token));
      if (ofSubject) name.style.fontWeight = 700;
      svg.append(name);
      for (let layer = 0; layer < layers; layer++) {
        const effect = cells[place * layers + layer];
        if (effect === null) continue;
        const said = token + " (" + role + ") after layer " + layer + ": " + Math.round(100 * effect / total) + "%, " +
          (effect / 100).toFixed(1) + " nats";
        if (!joint && (!best || effect > best.effect)) best = { effect, said };
        const box = { x: label + layer * wide, y, width: wide - 1, height: high - 1 };
        const filled = drawn("rect", {
          ...box, class: effect < 0 ? "cold" : "heat", "fill-opacity": (Math.abs(effect) / most).toFixed(3),
        });
        filled.append(drawn("title", {}, said));
        svg.append(filled, drawn("rect", { ...box, class: "cell", "pointer-events": "none" }));
      }
    });
    const summary = "Step " + trace.steps[which] + ": corrupting the subject (*) costs the rest of the answer " +
      (total / 100).toFixed(1) + " nats. Each cell restores one hidden state; the darker, the more of that it recovers" +
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
