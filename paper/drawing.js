// What the explorer and the lab draw: lists of tokens and heat maps. Text of data only ever becomes text.
function element(tag, content, attributes) {
  const made = document.createElement(tag);
  if (content !== undefined) made.textContent = content;
  for (const [name, value] of Object.entries(attributes || {})) made.setAttribute(name, value);
  return made;
}

function drawn(tag, attributes, content) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (content !== undefined) made.textContent = content;
  return made;
}

function offer(select, options) {
  const before = select.value;
  select.replaceChildren(...options.map(([value, text]) => element("option", text, { value })));
  if (options.some(([value]) => String(value) === before)) select.value = before;
  select.disabled = options.length < 2;
}

const visibleToken = (text) => text.replace(/\n/g, "↵").replace(/^ /, "␣") || "∅";

// Tokens after a prompt, before step `at`: [text, step, confidence, is it in the answer, is it an end token] each.
function tokenItems(tokens, at) {
  return tokens.map(([text, when, confidence, answer, end]) => when >= at
    ? element("li", "▒▒", { class: "masked", "aria-label": "masked" })
    : element("li", end ? "∎" : visibleToken(text), {
      class: (when === at - 1 ? "fresh" : "shown") + (answer ? " answer" : ""),
      title: "revealed at step " + (when + 1) + ", confidence " + Math.round(100 * confidence) + "%",
    }));
}

// A heat map of `rows` [{ label, strong, values, said }] by layer: `values` has an effect or null for each layer, and
// `said(layer)` tells it in words. The darkest cell is the largest of the effects and of `total`. With `choose(row,
// layer)` cells can be clicked, and reached by the arrow keys; `chosen` is the [row, layer] that has been. Returns the
// drawing and `paint(row, layer)`, which shows a value that has changed since.
function heatMap({ rows, layers, total, label, cell, choose, chosen }) {
  const top = 26, high = 17;
  const known = rows.flatMap((row) => row.values.filter((value) => value !== null).map(Math.abs));
  const most = Math.max(0.01, Math.abs(total), ...known);
  const wide = label + layers * cell + 8;
  const svg = drawn("svg", { viewBox: "0 0 " + wide + " " + (top + rows.length * high + 4), role: choose ? "group" : "img" });
  svg.style.maxWidth = 1.25 * wide + "px";
  svg.append(drawn("text", { x: label, y: 11, class: "axis" }, "layer"));
  for (let layer = 0; layer < layers; layer += layers > 12 ? 4 : 1) {
    svg.append(drawn("text", { x: label + (layer + 0.5) * cell, y: 23, class: "axis", "text-anchor": "middle" }, layer));
  }
  const letters = Math.floor(label / 8);
  const paint = (line, layer) => {
    const row = rows[line], effect = row.values[layer], filled = cells[line][layer], said = row.said(layer);
    filled.setAttribute("class", effect === null ? "unknown" : effect < 0 ? "cold" : "heat");
    if (effect !== null) filled.setAttribute("fill-opacity", Math.min(1, Math.abs(effect) / most).toFixed(3));
    if (choose) filled.setAttribute("aria-label", said);
    filled.firstChild.textContent = said;
  };
  const cells = rows.map((row, line) => {
    const y = top + line * high;
    const name = drawn("text", { x: label - 6, y: y + 12, "text-anchor": "end" },
      (row.strong ? "*" : "") + (row.label.length > letters ? row.label.slice(0, letters - 1) + "…" : row.label));
    if (row.strong) name.style.fontWeight = 700;
    svg.append(name);
    return row.values.map((effect, layer) => {
      if (effect === null && !choose) return null;
      const box = { x: label + layer * cell, y, width: cell - 1, height: high - 1 };
      const filled = drawn("rect", choose ? { ...box, role: "button", tabindex: -1, "data-cell": line + " " + layer } : box);
      filled.append(drawn("title", {}));
      const picked = chosen && chosen[0] === line && chosen[1] === layer;
      svg.append(filled, drawn("rect", { ...box, class: picked ? "cell picked" : "cell", "pointer-events": "none" }));
      return filled;
    });
  });
  cells.forEach((line, i) => line.forEach((filled, layer) => { if (filled) paint(i, layer); }));
  if (choose) {
    const cellOf = (target) => target.dataset.cell && target.dataset.cell.split(" ").map(Number);
    svg.addEventListener("click", ({ target }) => { if (cellOf(target)) choose(...cellOf(target)); });
    svg.addEventListener("keydown", (event) => {
      const [line, layer] = cellOf(event.target);
      const [down, right] = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] }[event.key] || [0, 0];
      const next = (down || right) && cells[line + down] && cells[line + down][layer + right];
      if (event.key === "Enter" || event.key === " ") choose(line, layer);
      else if (next) next.focus();
      else return;
      event.preventDefault();
    });
  }
  if (choose && cells.length) cells[chosen ? chosen[0] : 0][chosen ? chosen[1] : 0].setAttribute("tabindex", 0);
  return { svg, paint };
}
