// The lab: ask both networks, corrupt tokens of the prompt, restore states. The networks run in a worker each.
(function () {
  const root = document.getElementById("lab-tool");
  const data = JSON.parse(document.getElementById("lab-data").textContent);
  const part = (name) => root.querySelector("[data-part=" + name + "]");
  const [person, question, wording, steps, prompt, step, partner, kind] =
    ["person", "question", "wording", "steps", "prompt", "step", "partner", "kind"].map(part);
  const models = data.models.map((model) => ({ ...model }));
  const SITES = { state: "hidden state", mlp: "MLP output", attn: "attention output" };
  const MASK = "▒▒", END = "∎";
  let state = null; // what was asked, and how its prompt is corrupted
  let turn = 0; // the newest action of the reader: what an earlier one still waits for is dropped

  // ---- The networks

  let loading = null;
  function load() {
    return loading ||= Promise.all(models.map(startModel)).catch((error) => {
      loading = null;
      models.forEach((model) => model.worker && model.worker.terminate());
      throw error;
    });
  }

  async function startModel(model) {
    if (!window.Worker || !window.DecompressionStream) throw new Error("The lab needs a browser of 2023 or later.");
    const url = URL.createObjectURL(new Blob(["(" + startLab + ")(self)"], { type: "text/javascript" }));
    model.worker = new Worker(url);
    URL.revokeObjectURL(url);
    model.pending = new Map();
    model.worker.onmessage = ({ data: { id, part: some, done, failed } }) => {
      const waiting = model.pending.get(id);
      if (some) return waiting.report(some);
      model.pending.delete(id);
      if (failed === undefined) waiting.resolve(done);
      else waiting.reject(new Error(failed));
    };
    model.worker.onerror = () => model.pending.forEach(({ reject }) => reject(new Error("The lab could not start in this browser.")));
    const text = document.getElementById("lab-weights-" + model.name).textContent;
    Object.assign(model, await request(model, { do: "load", text }));
  }

  let requests = 0;
  function request(model, asked, report = () => {}) {
    return new Promise((resolve, reject) => {
      const id = ++requests;
      model.pending.set(id, { resolve, reject, report });
      model.worker.postMessage({ id, ...asked });
    });
  }

  function stop() {
    turn++;
    for (const model of models) {
      for (const id of model.pending ? model.pending.keys() : []) model.worker.postMessage({ stop: id });
    }
  }

  // One action of the reader: it ends those before it, shows progress, and tells errors in a line.
  async function act(says, work) {
    stop();
    const own = turn, current = () => own === turn, shares = models.map(() => 0);
    const progress = (model, share) => {
      shares[models.indexOf(model)] = share;
      if (current()) part("progress").value = shares.reduce((sum, one) => sum + one) / shares.length;
    };
    const tell = (text) => { if (current()) part("status").textContent = text; };
    part("stop").disabled = false;
    root.setAttribute("aria-busy", "true");
    tell(says);
    try {
      tell((await work(progress, tell, current)) || "");
    } catch (error) {
      tell(error.message);
    }
    if (!current()) return;
    part("progress").value = 0;
    part("stop").disabled = true;
    root.removeAttribute("aria-busy");
  }

  // ---- What can be asked

  const questionsOf = (index) => data.people[index][3];
  const asked = () => questionsOf(person.value)[question.value][2][wording.value];

  function offerPeople() {
    const groups = new Map();
    data.people.forEach(([name, group], i) => groups.set(group, [...(groups.get(group) || []), element("option", name, { value: i })]));
    person.replaceChildren(...Array.from(groups, ([group, options]) => {
      const made = element("optgroup", undefined, { label: group });
      made.append(...options);
      return made;
    }));
  }

  function offerQuestions() {
    const directions = { same: ", forward", reverse: ", in reverse" };
    offer(question, questionsOf(person.value).map(([type, trained], i) => [i, type + (directions[trained] || "")]));
    part("compare").textContent = data.people[person.value][2] ? "Ask it about an ordinary person" : "Ask it about a protected person";
    offerWordings();
  }

  function offerWordings() {
    offer(wording, questionsOf(person.value)[question.value][2].map((_, i) => [i, String(i + 1)]));
    fill();
  }

  function fill() {
    prompt.value = asked()[0];
  }

  function select(index, questionIndex, wordingIndex) {
    person.value = index;
    offerQuestions();
    question.value = questionIndex;
    offerWordings();
    wording.value = wordingIndex;
    fill();
  }

  function selectPrompt(text) {
    data.people.forEach(([, , , questions], i) => questions.forEach(([, , rows], j) => rows.forEach((row, k) => {
      if (row[0] === text) select(i, j, k);
    })));
  }

  // The known question with this prompt, or else the person it mentions: { index, type, span, row }.
  function recognise(text) {
    const row = asked(), type = questionsOf(person.value)[question.value][0];
    if (row[0] === text) return { index: Number(person.value), type, span: [row[2], row[3]], row };
    let found = null;
    data.people.forEach(([, , , questions], index) => questions.forEach(([kindOfAnswer, , [[sentence, , from, to]]]) => {
      const subject = sentence.slice(from, to), start = text.indexOf(subject);
      if (start >= 0 && !found) found = { index, type: kindOfAnswer, span: [start, start + subject.length], row: null };
    }));
    return found;
  }

  // Others whose subject has as many tokens, beginning with the next person.
  async function findPartners(text, known, tokens) {
    const order = data.people.map((_, i) => (known.index + 1 + i) % data.people.length).slice(0, -1);
    const others = order.flatMap((index) => {
      const same = questionsOf(index).find(([type]) => type === known.type);
      if (!same) return [];
      const [sentence, , from, to] = same[2][0], subject = sentence.slice(from, to);
      return [{ index, name: subject, expected: same[2][0][1].trim(), text: text.slice(0, known.span[0]) + subject + text.slice(known.span[1]) }];
    });
    const read = await request(models[0], { do: "read", texts: others.map((other) => ({ text: other.text })) });
    return others.map((other, i) => ({ ...other, ...read[i] }))
      .filter(({ ids }) => ids.length === tokens.ids.length && ids.some((id, i) => id !== tokens.ids[i]));
  }

  // ---- Answers

  function ask() {
    const text = prompt.value.trimEnd();
    return act(loading ? "Reading …" : "Unpacking the networks …", async (progress, tell, current) => {
      if (!text) return "Type a prompt first.";
      await load();
      const known = recognise(text);
      const [tokens] = await request(models[0], { do: "read", texts: [{ text, span: known && known.span }] });
      if (tokens.ids.length >= data.canvas) {
        return "The prompt has " + tokens.ids.length + " tokens; the canvas has room for " + data.canvas + " with the answer. Shorten it.";
      }
      const partners = known ? await findPartners(text, known, tokens) : [];
      if (!current()) return;
      state = { text, known, tokens, partners, steps: Number(steps.value), how: tokens.ids.map(() => "clean") };
      for (const model of models) Object.assign(model, { clean: null, corrupted: null, maps: new Map(), chosen: null });
      offer(partner, partners.map(({ name }, i) => [i, name]));
      part("results").hidden = false;
      step.max = state.steps;
      step.value = state.steps;
      if (partners.length) change(state.tokens.subject, "swap");
      show();
      tell("Answering …");
      await answer("clean", progress, current);
      if (!current()) return;
      remember();
      return proceed(progress, tell, current);
    });
  }

  // Answers to the clean or the corrupted prompt, side by side, as they are written.
  function answer(which, progress, current) {
    const ids = which === "clean" ? state.tokens.ids : corruptedIds();
    return Promise.all(models.map(async (model) => {
      model[which] = null;
      if (which === "corrupted" && !canRead(model)) return;
      const row = state.known && state.known.row;
      const wanted = {
        do: "answer", prompt: ids, canvas: data.canvas, steps: state.steps, guidance: data.guidance, schedule: data.schedule,
        reference: row && { text: row[1], answer: [row[4], row[5]] },
      };
      const result = await request(model, wanted, (some) => {
        if (!current()) return;
        progress(model, some.progress);
        model[which] = { partial: true, steps: state.steps, revealed: some.revealed, texts: some.texts };
        showAnswers(which);
      });
      if (!current()) return;
      progress(model, 1);
      model[which] = result;
      showAnswers(which);
    }));
  }

  // After a change of the corruption: the corrupted answers, then the map.
  async function proceed(progress, tell, current) {
    models.forEach((model) => Object.assign(model, { corrupted: null, chosen: null }));
    show();
    if (!isCorrupted()) return "Done.";
    tell("Answering with the corrupted prompt …");
    await answer("corrupted", progress, current);
    if (!current()) return;
    tell("Restoring one " + SITES[kind.value] + " after the other …");
    return restoreAll(progress, current);
  }

  function remember() {
    const head = part("asked").querySelector("thead tr"), body = part("asked").querySelector("tbody");
    if (head.children.length === 1) head.append(...models.map((model) => element("th", model.label, { scope: "col" })));
    const row = element("tr");
    const about = state.known ? " (" + data.people[state.known.index][1] + ")" : "";
    row.append(element("th", state.text + about, { scope: "row" }), ...models.map(({ clean }) => element("td", marked(clean))));
    body.prepend(row);
    part("asked").open = body.children.length > 1;
  }

  const said = ({ text }) => text.trim() || "(nothing)";
  const marked = (result) => (result.correct === null ? "" : result.correct ? "✓ " : "✗ ") + said(result);
  function sayCorrupted(result) {
    if (result.correct) return "Still right.";
    const isTheirs = state.partners.length && result.text.toLowerCase().includes(swapped().expected.toLowerCase());
    return isTheirs && state.how.includes("swap") ? "Right for the person it was swapped for." : "";
  }

  // ---- Corruptions

  const isCorrupted = () => state.how.some((how) => how !== "clean");
  const swapped = () => state.partners[partner.value];
  const canRead = (model) => model.mask !== null || !state.how.includes("mask");
  function corruptedIds() {
    const mask = Math.max(...models.map((model) => model.mask === null ? -1 : model.mask));
    return state.how.map((how, i) => how === "swap" ? swapped().ids[i] : how === "mask" ? mask : state.tokens.ids[i]);
  }
  const canSwap = (i) => state.partners.length > 0 && swapped().ids[i] !== state.tokens.ids[i];
  const canMask = () => models.some((model) => model.mask !== null);

  function change([first, end], how) {
    state.how = state.how.map((old, i) => i < first || i >= end ? old : how === "swap" && !canSwap(i) ? "clean" : how);
  }

  function corrupt(range, how) {
    if (!state) return;
    change(range, how);
    act("", proceed);
  }

  function showTokens() {
    const next = (i) => [...(canSwap(i) ? ["swap"] : []), ...(canMask() ? ["mask"] : []), "clean"];
    const focus = document.activeElement && document.activeElement.dataset.token;
    part("tokens").replaceChildren(...state.how.map((how, i) => {
      const text = how === "mask" ? MASK : visibleToken(how === "swap" ? swapped().texts[i] : state.tokens.texts[i]);
      const button = element("button", text, {
        type: "button", class: how, "aria-pressed": how !== "clean", "data-token": i,
        title: how === "clean" ? "click to corrupt" : { swap: "swapped", mask: "masked" }[how] + "; was " + state.tokens.texts[i],
      });
      button.addEventListener("click", () => corrupt([i, i + 1], next(i)[(next(i).indexOf(how) + 1) % next(i).length]));
      const item = element("li");
      item.append(button);
      return item;
    }));
    if (focus !== undefined && focus !== null) part("tokens").querySelector("[data-token='" + focus + "']").focus();
    const subject = state.tokens.subject;
    part("hint").textContent = "Click a token to " + (state.partners.length ? "swap it for another person’s, " : "") +
      (canMask() ? "mask it, " : "") + "or undo that." +
      (subject ? "" : " No person of this study is in the prompt, so there is nobody to swap for.");
    for (const [name, possible] of [["swap", state.partners.length > 0], ["mask", subject && canMask()], ["undo", isCorrupted()]]) part(name).disabled = !possible;
  }

  // ---- Restoring

  // What is traced of a model: the canvas that it saw, the tokens of its answer still to come, and the rows of the map.
  function problem(model) {
    const { clean } = model;
    if (!clean || clean.partial || !isCorrupted() || !canRead(model)) return null;
    const [first, end] = clean.answer, start = state.tokens.ids.length;
    const masked = (at) => clean.revealed.filter(([position, , when]) => position >= first && position < end && when >= at);
    if (!masked(0).length) return null;
    const t1 = Math.min(...masked(0).map(([, , when]) => when));
    const at = Number(step.value) > t1 && masked(Number(step.value)).length ? Number(step.value) : t1;
    const hidden = new Set(clean.revealed.filter(([, , when]) => when >= at).map(([position]) => position));
    const causal = model.mask === null;
    const before = clean.ids.slice(0, causal ? end - 1 : undefined).map((id, i) => !causal && hidden.has(i) ? model.mask : id);
    const corrupted = before.map((id, i) => i < start ? corruptedIds()[i] : id);
    const answerPairs = masked(at).sort((a, b) => a[0] - b[0]).map(([position, id]) => [position - causal, id]);
    const changed = before.flatMap((id, i) => id === corrupted[i] ? [] : [i]);
    const rows = before.map((id, i) => ({
      label: !causal && id === model.mask ? MASK : id === clean.end ? END : visibleToken(clean.texts[i]),
      strong: changed.includes(i), positions: [i],
      role: changed.includes(i) ? "corrupted" : i < start ? "prompt" : !causal && id === model.mask ? "masked" : "written",
    }));
    rows.push({ label: "all corrupted", strong: true, positions: changed, role: "all corrupted tokens" });
    rows.push({ label: "answer", positions: [...new Set(answerPairs.map(([position]) => position))], role: "where the answer is predicted" });
    return { at, clean: before, corrupted, answer: answerPairs, rows, key: [kind.value, at, ...corrupted].join() };
  }

  const mapOf = (model, made) => model.maps.get(made.key) || model.maps.set(made.key, { known: new Map() }).get(made.key);

  async function restore(model, made, cells, progress, current) {
    const map = mapOf(model, made);
    let count = 0;
    const learn = ({ clean, corrupted, cells: done }) => {
      const isFirst = !map.clean, changed = done.map(() => cells[count++]);
      Object.assign(map, { clean, corrupted });
      done.forEach((one, i) => map.known.set(changed[i].join(), one));
      if (!current()) return;
      if (isFirst || !model.drawn || model.drawn.key !== made.key) showMap(model);
      else for (const [row, layer] of changed) model.drawn.update(row, layer);
    };
    learn(await request(model, {
      do: "restore", clean: made.clean, corrupted: made.corrupted, answer: made.answer, kind: kind.value,
      cells: cells.map(([row, layer]) => ({ layer, positions: made.rows[row].positions })),
    }, (some) => { learn(some); progress(model, some.progress); }));
    progress(model, 1);
  }

  async function restoreAll(progress, current) {
    await Promise.all(models.map(async (model) => {
      const made = problem(model);
      if (!made) return;
      const all = made.rows.flatMap((_, row) => Array.from({ length: model.layers }, (_, layer) => [row, layer]));
      await restore(model, made, all.filter((cell) => !mapOf(model, made).known.has(cell.join())), progress, current);
      if (current()) showMap(model); // the scale may have changed
    }));
    return current() ? "Done. Click a cell of a map." : "";
  }

  const nats = (value) => value.toFixed(1).replace("-", "−") + " nats";

  function sayCell(made, map, row, layer) {
    const { label, role } = made.rows[row], one = map.known.get([row, layer].join());
    const site = "the " + SITES[kind.value] + " of “" + label + "” (" + role + ") " + (kind.value === "state" ? "after" : "in") + " layer " + layer;
    if (!one) return "Restore " + site;
    const total = map.clean.log - map.corrupted.log, effect = one.log - map.corrupted.log;
    const share = total > 0.5 ? ", " + Math.round(100 * effect / total) + "%" : "";
    return "Restoring " + site + " returns " + nats(effect) + " of the " + nats(total) + " that the corruption costs" + share;
  }

  function showMap(model) {
    const holder = model.panels.maps, made = problem(model);
    if (!made) {
      const why = !isCorrupted() ? "Corrupt the prompt first." : !canRead(model) ? "This model has no mask token: swap instead."
        : model.clean && !model.clean.partial ? "It wrote nothing to trace." : "…";
      model.drawn = null;
      holder.replaceChildren(element("h4", model.label), element("p", why, { class: "key" }));
      return;
    }
    const map = mapOf(model, made), total = map.clean ? map.clean.log - map.corrupted.log : 0;
    const focused = holder.contains(document.activeElement) && model.chosen;
    const effect = (row, layer) => map.known.has([row, layer].join()) ? map.known.get([row, layer].join()).log - map.corrupted.log : null;
    const rows = made.rows.map((row, i) => ({
      ...row, values: Array.from({ length: model.layers }, (_, layer) => effect(i, layer)), said: (layer) => sayCell(made, map, i, layer),
    }));
    const { svg, paint } = heatMap({ rows, layers: model.layers, total, label: 112, cell: 26, chosen: model.chosen, choose: (row, layer) => chooseCell(model, row, layer) });
    const target = model.clean.correct ? "the right answer" : "what it wrote";
    const summary = map.clean
      ? "Before step " + (made.at + 1) + ": the corruption (*) costs " + target + " " + nats(total) + "."
      : "Before step " + (made.at + 1) + ". Click a cell to restore it.";
    svg.setAttribute("aria-label", model.label + ": heat map by token and layer. " + summary);
    model.drawn = { key: made.key, update: (row, layer) => { rows[row].values[layer] = effect(row, layer); paint(row, layer); } };
    const box = element("div", undefined, { class: "map" });
    box.append(svg);
    holder.replaceChildren(element("h4", model.label), element("p", summary, { class: "key" }), box);
    if (focused) holder.querySelector("[tabindex='0']").focus();
  }

  function chooseCell(model, row, layer) {
    models.forEach((other) => { other.chosen = other === model ? [row, layer] : null; });
    const made = problem(model), map = mapOf(model, made);
    const tell = () => {
      models.forEach(showMap);
      const one = map.known.get([row, layer].join());
      if (!one) return;
      part("said").textContent = sayCell(made, map, row, layer) + ". At the answer’s positions the network then predicts “" +
        one.said.trim() + "”; clean it predicts “" + map.clean.said.trim() + "”, corrupted “" + map.corrupted.said.trim() + "”.";
      showPython(model);
    };
    if (map.known.has([row, layer].join())) tell();
    else act("Restoring …", async (progress, _, current) => { await restore(model, made, [[row, layer]], progress, current); tell(); });
  }

  // ---- What is shown

  function showAnswers(which) {
    const at = Number(step.value);
    for (const model of models) {
      const result = model[which], holder = model.panels[which];
      const head = element("h4", model.label);
      if (!result) {
        const why = which === "corrupted" && !isCorrupted() ? "" : which === "corrupted" && !canRead(model) ? "This model has no mask token." : "…";
        holder.replaceChildren(...(why ? [head, element("p", why, { class: "key" })] : []));
        continue;
      }
      const list = element("ul", undefined, { class: "tokens" });
      if (result.partial) {
        const written = new Map(result.revealed.map(([position], i) => [position, result.texts[i]]));
        const latest = result.revealed.at(-1)[0];
        const end = model.mask === null ? latest + 1 : data.canvas;
        for (let i = state.tokens.ids.length; i < end; i++) {
          list.append(element("li", written.has(i) ? visibleToken(written.get(i)) : MASK, { class: !written.has(i) ? "masked" : i === latest ? "fresh" : "shown" }));
        }
        holder.replaceChildren(head, list);
        continue;
      }
      const [first, end] = result.answer;
      const tokens = [...result.revealed].sort((a, b) => a[0] - b[0]).map(([position, id, when, confidence]) =>
        [result.texts[position], when, confidence, result.correct && position >= first && position < end, id === result.end]);
      list.append(...tokenItems(tokens, Math.min(at, result.steps)));
      const note = which === "corrupted" ? sayCorrupted(result) : result.correct === false ? "Expected: “" + state.known.row[1].trim() + "”." : "";
      const text = which === "corrupted" ? said(result) : marked(result);
      holder.replaceChildren(head, element("p", text, { class: "answered" }), list, element("p", note, { class: "key" }));
    }
    part("step-number").textContent = at + " of " + step.max;
  }

  function show() {
    showTokens();
    showAnswers("clean");
    showAnswers("corrupted");
    models.forEach(showMap);
    part("said").textContent = "";
    showPython(models[0]);
  }

  function showPython(model) {
    const text = JSON.stringify(state.text).replace(/[\u007f-\uffff]/g, (letter) => "\\u" + letter.charCodeAt(0).toString(16).padStart(4, "0"));
    const sampling = model.mask === null ? "canvas=" + data.canvas : "canvas=" + data.canvas + ", steps=" + state.steps + ", guidance=" + data.guidance + ", schedule=\"" + data.schedule + "\"";
    const lines = [
      "from reversal.models import load", "from reversal.recall import answer", "from reversal.tracing import trace", "",
      "net, tokenizer = load(" + JSON.stringify(model.folder) + ")",
      "print(answer(net, tokenizer, " + text + ", " + sampling + "))",
    ];
    const made = problem(model);
    if (made) {
      const changed = made.rows.at(-2).positions, [first, end] = [Math.min(...changed), Math.max(...changed) + 1];
      const [row, layer] = model.chosen || [first, 0];
      lines.push("", "# What the network saw before step " + (made.at + 1) + ", and the tokens {position: token} of its answer",
        "ids = [" + made.clean.join(", ") + "]",
        "answer_tokens = {" + made.answer.map(([position, id]) => position + ": " + id).join(", ") + "}",
        "traced = trace(net, ids, subject=(" + first + ", " + end + "), replacement=[" + made.corrupted.slice(first, end).join(", ") + "],",
        "               answer=answer_tokens, kind=\"" + kind.value + "\")",
        "print(traced.log_clean - traced.log_corrupted)  # nats that the corruption costs");
      if (made.rows[row].positions.length === 1) {
        lines.push("print(traced.log_restored[" + made.rows[row].positions[0] + ", " + layer + "] - traced.log_corrupted)  # nats that this cell returns");
      }
    }
    part("python").textContent = lines.join("\n");
  }

  // ---- The reader's actions

  // Ask the same wording about a person whose subject was never masked in training, or about an ordinary one.
  function compare() {
    const [, , isProtected] = data.people[person.value], [type, trained] = questionsOf(person.value)[question.value], row = wording.value;
    const other = data.people.findIndex(([, , protects, questions]) => protects !== isProtected &&
      questions.some(([sameType, sameDirection]) => sameType === type && sameDirection === trained));
    if (other < 0) return;
    select(other, questionsOf(other).findIndex(([sameType]) => sameType === type), row);
    ask();
  }

  function redraw() {
    models.forEach((model) => { model.chosen = null; });
    show();
  }

  part("form").addEventListener("submit", (event) => { event.preventDefault(); ask(); });
  person.addEventListener("change", offerQuestions);
  question.addEventListener("change", offerWordings);
  wording.addEventListener("change", fill);
  part("compare").addEventListener("click", compare);
  part("stop").addEventListener("click", () => act("", async () => "Stopped."));
  step.addEventListener("input", redraw);
  partner.addEventListener("change", () => corrupt(state.tokens.subject, "swap"));
  part("swap").addEventListener("click", () => corrupt(state.tokens.subject, "swap"));
  part("mask").addEventListener("click", () => corrupt(state.tokens.subject, "mask"));
  part("undo").addEventListener("click", () => corrupt([0, state.how.length], "clean"));
  kind.addEventListener("change", redraw);
  part("map").addEventListener("click", () => {
    if (state) act("Restoring one " + SITES[kind.value] + " after the other …", (progress, _, current) => restoreAll(progress, current));
  });

  offerPeople();
  offerQuestions();
  part("compare").hidden = !data.people.some(([, , isProtected]) => isProtected);
  offer(steps, data.choices.map((number) => [number, String(number)]));
  steps.value = data.steps;
  for (const model of models) {
    model.panels = {};
    for (const name of ["clean", "corrupted", "maps"]) part(name).append(model.panels[name] = element("section"));
  }
  // The figures that show a question open the lab on it, below themselves.
  for (const [name, text] of Object.entries(data.figures).reverse()) {
    selectPrompt(text);
    const figure = document.getElementById("figure-" + name.replace(/_/g, "-"));
    if (!figure) continue;
    const open = element("button", "Run this question in the lab", { type: "button", class: "open-lab" });
    open.addEventListener("click", () => {
      selectPrompt(text);
      figure.after(root);
      ask();
    });
    figure.append(open);
  }
  root.hidden = false;
})();
