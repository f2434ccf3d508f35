"use strict";

// Citations: the reference itself, beside the pointer or the focus.
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
  function show(link) {
    const entry = document.getElementById(link.getAttribute("href").slice(1));
    tip.replaceChildren(...Array.from(entry.childNodes, (node) => node.cloneNode(true)));
    tip.hidden = false;
    shown = link;
    place();
  }
  function hide() {
    tip.hidden = true;
    shown = null;
  }
  for (const link of document.querySelectorAll(".cite a")) {
    link.addEventListener("mouseenter", () => show(link));
    link.addEventListener("focus", () => show(link));
    link.addEventListener("mouseleave", hide);
    link.addEventListener("blur", hide);
  }
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
  roomy.addEventListener("change", unfold);
  for (const link of links) link.addEventListener("click", unfold);
  document.addEventListener("scroll", follow, { passive: true });
  window.addEventListener("resize", follow);
  unfold();
  follow();
})();

// The explorer: one generation, its canvas at one step, and the trace of what that step relies on.
(function () {
  const root = document.getElementById("explorer-tool");
  const data = JSON.parse(document.getElementById("explorer-data").textContent);
  if (!root || !data.cases.length) return;
  const part = (name) => root.querySelector("[data-part=" + name + "]");
  const [model, split, fact, kind, corruption, reading, step] =
    ["model", "split", "fact", "kind", "corruption", "reading", "step"].map(part);
  const SVG = "http://www.w3.org/2000/svg";

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

  const unique = (values) => Array.from(new Set(values));
  const visible = (text) => text.replace(/\n/g, "↵").replace(/^ /, "␣") || "∅";
  const chosen = () => data.cases.find((one) =>
    one.model === model.value && one.split === split.value && one.fact === fact.value);

  function offerSplits() {
    const there = unique(data.cases.filter((one) => one.model === model.value).map((one) => one.split));
    offer(split, there.map((name) => [name, data.splits[name]]));
  }

  function offerFacts() {
    const there = data.cases.filter((one) => one.model === model.value && one.split === split.value);
    offer(fact, there.map((one) => [one.fact, one.name + (one.correct ? "" : " (answered wrongly)")]));
  }

  function offerTraces() {
    const traces = (chosen() || {}).trace;
    const kinds = traces ? unique(Object.values(traces.kinds).flat()) : [];
    offer(kind, kinds.length ? kinds.map((name) => [name, data.kinds[name] || name]) : [["", "not traced"]]);
    const ways = traces ? Object.keys(traces.kinds).filter((name) => traces.kinds[name].includes(kind.value)) : [];
    offer(corruption, ways.length ? ways.map((name) => [name, data.corruptions[name] || name]) : [["", "not traced"]]);
  }

  function startAtTheAnswer() {
    const one = chosen();
    step.max = one.steps;
    step.value = one.trace ? one.trace.steps[0] : one.steps;
  }

  function showCanvas(one, at) {
    const items = [element("li", one.prompt, { class: "given" })];
    for (const [text, when, sure, answer, end] of one.tokens) {
      if (when >= at) {
        items.push(element("li", "▒▒", { class: "masked", "aria-label": "masked" }));
        continue;
      }
      const shown = element("li", end ? "∎" : visible(text), {
        class: (when === at - 1 ? "fresh" : "shown") + (answer ? " answer" : ""),
        title: "revealed at step " + (when + 1) + ", confidence " + Math.round(100 * sure) + "%",
      });
      items.push(shown);
    }
    part("canvas").replaceChildren(...items);
    const left = one.tokens.filter(([, when]) => when >= at).length;
    const fresh = one.tokens.filter(([, when]) => when === at - 1).length;
    part("said").textContent = "After step " + at + " of " + one.steps + ": " + fresh + " revealed by this step, " +
      left + " of " + one.tokens.length + " still masked." + (left ? "" : " The answer is " +
      (one.correct ? "right." : "wrong; the right one is “" + one.reference.trim() + "”."));
    part("step-number").textContent = at + " of " + one.steps;
  }

  function showTrace(one, at) {
    const holder = part("trace");
    const told = part("trace-said");
    const trace = one.trace;
    if (!trace) {
      holder.replaceChildren();
      told.textContent = data.traced
        ? "This question was not traced: only answered ones are, and only some of them are kept here."
        : "This study has no traces.";
      return;
    }
    const kindAt = trace.kinds[corruption.value].indexOf(kind.value);
    const traced = trace.effects[corruption.value][kindAt];
    const which = trace.steps.indexOf(at);
    if (which < 0 || which >= traced.length) {
      const jumps = trace.steps.slice(0, traced.length).map((when, i) => {
        const jump = element("button", "step " + when + " (" + trace.stages[i] + ")", { type: "button" });
        jump.addEventListener("click", () => { step.value = when; show(); step.focus(); });
        return jump;
      });
      holder.replaceChildren(...jumps);
      told.textContent = "Such states were traced where answer tokens are about to appear:";
      return;
    }
    const total = trace.total[corruption.value][which];
    const shares = reading.value !== "nats";
    const needed = reading.value === "needed";
    if (needed && (which > 0 || !trace.needed[corruption.value][kind.value])) {
      holder.replaceChildren();
      told.textContent = "What is lost without a state was asked at step " + trace.steps[0] +
        " alone, of hidden states, MLPs and attention, and of the first way to hide the subject.";
      return;
    }
    const cells = (needed ? trace.needed[corruption.value][kind.value] : traced[which])
      .map((effect) => shares && effect !== null ? 100 * effect / total : effect);
    const amount = (effect) => shares ? Math.round(effect) + "%" : (effect / 100).toFixed(2) + " nats";
    const layers = trace.layers;
    const most = Math.max(shares ? 100 : 1, ...cells.map(Math.abs));
    const label = 150, top = 26, high = 17, wide = Math.min(34, Math.max(9, 330 / layers));
    const rows = trace.seen[which].map((role, place) => [role, place]).filter(([role]) => role);
    const svg = drawn("svg", {
      viewBox: "0 0 " + (label + layers * wide + 8) + " " + (top + rows.length * high + 4), role: "img",
    });
    svg.style.maxWidth = 1.25 * (label + layers * wide + 8) + "px";
    svg.append(drawn("text", { x: label, y: 11, class: "axis" }, "layer"));
    for (let layer = 0; layer < layers; layer += layers > 12 ? 4 : 1) {
      svg.append(drawn("text", { x: label + (layer + 0.5) * wide, y: 23, class: "axis", "text-anchor": "middle" }, layer));
    }
    const best = { subject: null, elsewhere: null };
    const ends = new Set(one.tokens.filter(([, , , , end]) => end).map(([text]) => text));
    rows.forEach(([role, place], line) => {
      const y = top + line * high;
      const whole = role.startsWith("whole");
      const ofSubject = role.endsWith("subject");
      const token = whole ? role : role.startsWith("masked") ? "▒▒"
        : ends.has(trace.tokens[place]) ? "∎" : visible(trace.tokens[place]);
      const name = drawn("text", { x: label - 6, y: y + 12, "text-anchor": "end" },
        (ofSubject ? "*" : "") + (token.length > 18 ? token.slice(0, 17) + "…" : token));
      if (ofSubject) name.style.fontWeight = 700;
      svg.append(name);
      for (let layer = 0; layer < layers; layer++) {
        const effect = cells[place * layers + layer];
        if (effect === null) continue;
        const where = ofSubject ? "subject" : "elsewhere";
        if (!whole && (!best[where] || effect > best[where].effect)) best[where] = { effect, token, role, layer };
        const box = { x: label + layer * wide, y, width: wide - 1, height: high - 1 };
        const filled = drawn("rect", {
          ...box, class: effect < 0 ? "cold" : "heat", "fill-opacity": (Math.abs(effect) / most).toFixed(3),
        });
        filled.append(drawn("title", {}, token + " (" + role + "), layer " + layer + ": " + amount(effect)));
        svg.append(filled, drawn("rect", { ...box, class: "cell", "pointer-events": "none" }));
      }
    });
    const tell = (one) => amount(one.effect) + " at “" + one.token + "” (" + one.role + ", layer " + one.layer + ")";
    const summary = "SubjectCorruption the subject (*) costs what is still to come of the answer " + (total / 100).toFixed(1) +
      " nats. " + (needed ? "With one state as if it were hidden, at most this is lost: "
        : "Putting one state back returns at most " + (shares ? "this share of it: " : "")) +
      [best.subject, best.elsewhere].filter(Boolean).map(tell).join(", and ") + ".";
    svg.setAttribute("aria-label", "Heat map of effects by token and layer. " + summary);
    holder.replaceChildren(svg);
    told.textContent = summary;
  }

  // When the subject is needed: what the tokens to come rest on, and what is recalled without it for some of the steps.
  function showTime(one) {
    part("needed").hidden = !one.time;
    if (!one.time) return;
    const lines = Object.entries(one.time.rests).filter(([, points]) => points.length);
    const points = lines.flatMap(([, own]) => own);
    const left = 40, top = 12, wide = 230, high = 110;
    const last = Math.max(1, ...points.map(([revealed]) => revealed));
    const [least, most] = [Math.min(0, ...points.map(([, lost]) => lost)), Math.max(100, ...points.map(([, lost]) => lost))];
    const x = (revealed) => left + wide * revealed / last;
    const y = (lost) => top + high * (most - lost) / (most - least);
    const svg = drawn("svg", { viewBox: "0 0 290 160", role: "img" });
    for (const lost of unique([least, 0, most])) {
      svg.append(drawn("line", { x1: left, x2: left + wide, y1: y(lost), y2: y(lost), class: "cell" }));
      svg.append(drawn("text", { x: left - 5, y: y(lost) + 4, class: "axis", "text-anchor": "end" }, Math.round(lost / 100)));
    }
    for (let revealed = 0; revealed <= last; revealed++) {
      svg.append(drawn("text", { x: x(revealed), y: top + high + 15, class: "axis", "text-anchor": "middle" }, revealed));
    }
    svg.append(drawn("text", { x: left + wide / 2, y: top + high + 31, class: "axis", "text-anchor": "middle" }, "answer tokens revealed"));
    for (const [hidden, own] of lines) {
      svg.append(drawn("polyline", { class: "line " + hidden, points: own.map(([at, lost]) => x(at) + "," + y(lost)).join(" ") }));
      for (const [at, lost] of own) {
        const dot = drawn("circle", { class: "dot " + hidden, cx: x(at), cy: y(lost), r: 3 });
        dot.append(drawn("title", {}, hidden + " hidden, " + at + " revealed: " + (lost / 100).toFixed(1) + " nats lost"));
        svg.append(dot);
      }
    }
    const said = lines.map(([hidden, own]) => ({ subject: "the subject", revealed: "what is revealed of the answer", both: "both" }[hidden]) +
      " " + own.map(([, lost]) => (lost / 100).toFixed(1)).join(", ")).join("; ");
    svg.setAttribute("aria-label", "Nats lost of the tokens to come, as the answer appears, by what is hidden: " + said + ".");
    const rows = Object.entries(one.time.recalled).map(([hidden, cells]) => {
      const row = element("tr");
      row.append(element("th", hidden === "from" ? "hidden from step …" : "hidden up to step …", { scope: "row" }));
      for (const [when, right] of cells) {
        const cell = element("td", when, { class: right ? "right" : "wrong", title: right ? "still right" : "wrong" });
        cell.append(element("span", right ? " right" : " wrong", { class: "unseen" }));
        row.append(cell);
      }
      return row;
    });
    const table = element("table", undefined, { class: "recalled" });
    table.append(...rows);
    part("time").replaceChildren(svg, table);
  }

  function show() {
    const one = chosen();
    const at = Number(step.value);
    showCanvas(one, at);
    showTrace(one, at);
    showTime(one);
  }

  model.addEventListener("change", () => { offerSplits(); offerFacts(); offerTraces(); startAtTheAnswer(); show(); });
  split.addEventListener("change", () => { offerFacts(); offerTraces(); startAtTheAnswer(); show(); });
  fact.addEventListener("change", () => { offerTraces(); startAtTheAnswer(); show(); });
  kind.addEventListener("change", () => { offerTraces(); show(); });
  corruption.addEventListener("change", show);
  reading.addEventListener("change", show);
  step.addEventListener("input", show);
  part("back").addEventListener("click", () => { step.value = Number(step.value) - 1; show(); });
  part("on").addEventListener("click", () => { step.value = Number(step.value) + 1; show(); });

  offer(model, data.models.map((one) => [one.name, one.label]));
  offerSplits();
  offerFacts();
  offerTraces();
  startAtTheAnswer();
  show();
  root.hidden = false;
})();
