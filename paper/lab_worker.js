"use strict";

// The networks of the lab, in a worker: unpack one, read a text, write an answer, restore states. `port` is the worker.
// Requests are { id, do, … }; replies { id, part } on the way, then { id, done } or { id, failed }. A request
// { stop: id } ends that one.
function startLab(port) {
  let net = null;
  const stopped = new Set();
  const pause = () => new Promise((resolve) => setTimeout(resolve));

  // ---- A packed network: see workflow/reversal/paper/lab.py

  const DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;,=>?@^_`{|}~";

  // The bytes of a text in base 85: four for five digits, the last ones cut like the text.
  function fromBase85(text) {
    const value = new Uint8Array(128).fill(85);
    for (let digit = 0; digit < 85; digit++) value[DIGITS.charCodeAt(digit)] = digit;
    const words = new DataView(new ArrayBuffer(4 * Math.ceil(text.length / 5)));
    for (let at = 0; at < text.length; at += 5) {
      let word = 0;
      for (let i = at; i < at + 5; i++) {
        const digit = i < text.length ? value[text.charCodeAt(i)] : 84;
        if (!(digit < 85)) throw new Error("not in base 85");
        word = 85 * word + digit;
      }
      words.setUint32(4 * (at / 5), word);
    }
    return words.buffer.slice(0, Math.floor(4 * text.length / 5));
  }

  async function unpack(text) {
    const stream = new Blob([fromBase85(text)]).stream().pipeThrough(new DecompressionStream("gzip"));
    const bytes = await new Response(stream).arrayBuffer(); // fails unless length and checksum are right
    let at = 4 + new Uint32Array(bytes, 0, 1)[0];
    const header = JSON.parse(new TextDecoder().decode(new Uint8Array(bytes, 4, at - 4)));
    const take = (Kind, length) => {
      const values = new Kind(bytes, at, length);
      at += Math.ceil(values.byteLength / 8) * 8;
      return values;
    };
    const tensors = header.shapes.map(([rows, columns]) => {
      const scale = take(Float32Array, rows), size = rows * columns;
      const high = take(Int8Array, size), values = new Float64Array(size);
      for (let i = 0; i < size; i++) values[i] = high[i] * 2 ** (header.bits - 8);
      for (let bit = 0; bit < header.bits - 8; bit++) {
        const plane = take(Uint8Array, Math.ceil(size / 8));
        for (let i = 0; i < size; i++) values[i] += ((plane[i >> 3] >> (i & 7)) & 1) << bit;
      }
      for (let i = 0; i < size; i++) values[i] *= scale[Math.floor(i / columns)];
      return values;
    });
    const [embedding, norm, head] = [tensors[0], tensors.at(-2), tensors.at(-1)];
    const parts = ["attentionNorm", "query", "key", "value", "out", "mlpNorm", "gate", "up", "down"];
    const blocks = Array.from({ length: header.layers }, (_, layer) =>
      Object.fromEntries(parts.map((part, i) => [part, tensors[1 + parts.length * layer + i]])));
    return { ...header, embedding, norm, head, blocks, ...prepareTokenizer(header) };
  }

  // ---- Text and tokens: byte-level BPE

  function prepareTokenizer({ tokens, merges, added }) {
    const shown = [], byteOf = new Map();
    for (let byte = 0, next = 256; byte < 256; byte++) {
      const plain = (byte > 32 && byte < 127) || (byte > 160 && byte !== 173);
      shown.push(String.fromCharCode(plain ? byte : next++));
      byteOf.set(shown[byte], byte);
    }
    const special = new Map(Object.entries(added).map(([text, token]) => [token, text]));
    const bytesOf = tokens.map((token, i) => special.has(i) ? new TextEncoder().encode(token)
      : Uint8Array.from(token, (letter) => byteOf.get(letter)));
    return {
      shown, bytesOf, special,
      ids: new Map(tokens.map((token, i) => [token, i])),
      rank: new Map(merges.map(([left, right], i) => [left + " " + right, i])),
    };
  }

  const WORD = /'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+/gu;

  // The tokens of a text, each { id, start, end } with the characters that it covers.
  function encode(text) {
    const found = [];
    for (const [start, end, special] of splitSpecial(text)) {
      if (special !== undefined) found.push({ id: special, start, end });
      else for (const word of text.slice(start, end).matchAll(WORD)) encodeWord(word[0], start + word.index, found);
    }
    return found;
  }

  function splitSpecial(text) {
    const parts = [];
    let at = 0;
    while (at < text.length) {
      const next = [...net.special].map(([token, name]) => [text.indexOf(name, at), name.length, token])
        .filter(([index]) => index >= 0).sort((a, b) => a[0] - b[0])[0];
      if (!next || next[0] > at) parts.push([at, next ? next[0] : text.length]);
      if (!next) break;
      parts.push([next[0], next[0] + next[1], next[2]]);
      at = next[0] + next[1];
    }
    return parts;
  }

  function encodeWord(word, start, found) {
    const pieces = [];
    let at = start;
    for (const letter of word) {
      for (const byte of new TextEncoder().encode(letter)) {
        pieces.push({ text: net.shown[byte], start: at, end: at + letter.length });
      }
      at += letter.length;
    }
    for (;;) {
      let best = null;
      for (let i = 0; i + 1 < pieces.length; i++) {
        const rank = net.rank.get(pieces[i].text + " " + pieces[i + 1].text);
        if (rank !== undefined && (!best || rank < best.rank)) best = { rank, i };
      }
      if (!best) break;
      const [left, right] = pieces.splice(best.i, 2);
      pieces.splice(best.i, 0, { text: left.text + right.text, start: left.start, end: right.end });
    }
    for (const { text, start: from, end } of pieces) found.push({ id: net.ids.get(text), start: from, end });
  }

  function decode(ids) {
    const bytes = ids.filter((id) => !net.special.has(id)).flatMap((id) => [...net.bytesOf[id]]);
    return new TextDecoder().decode(new Uint8Array(bytes));
  }

  const textOf = (id) => net.special.get(id) || decode([id]);

  // ---- The network

  // An array for the output of one step of a run, used again by the next run: new ones would pile up.
  const arrays = new Map();
  function scratch(name, size) {
    if (!arrays.has(name) || arrays.get(name).length !== size) arrays.set(name, new Float64Array(size));
    return arrays.get(name);
  }

  // The product (rows, to) of x (rows, from) and the transposed weight (to, from), 2 × 4 numbers at a time.
  function product(name, x, weight, from, to) {
    const rows = x.length / from, y = scratch(name, rows * to);
    for (let m = 0; m < to; m += 4) {
      // Beyond the edge the last row is computed again.
      const m1 = Math.min(m + 1, to - 1), m2 = Math.min(m + 2, to - 1), m3 = Math.min(m + 3, to - 1);
      const w0 = m * from, w1 = m1 * from, w2 = m2 * from, w3 = m3 * from;
      for (let t = 0; t < rows; t += 2) {
        const t1 = Math.min(t + 1, rows - 1), x0 = t * from, x1 = t1 * from;
        let a0 = 0, a1 = 0, a2 = 0, a3 = 0, b0 = 0, b1 = 0, b2 = 0, b3 = 0;
        for (let k = 0; k < from; k++) {
          const a = x[x0 + k], b = x[x1 + k];
          const v0 = weight[w0 + k], v1 = weight[w1 + k], v2 = weight[w2 + k], v3 = weight[w3 + k];
          a0 += a * v0; a1 += a * v1; a2 += a * v2; a3 += a * v3;
          b0 += b * v0; b1 += b * v1; b2 += b * v2; b3 += b * v3;
        }
        y[t * to + m] = a0; y[t * to + m1] = a1; y[t * to + m2] = a2; y[t * to + m3] = a3;
        y[t1 * to + m] = b0; y[t1 * to + m1] = b1; y[t1 * to + m2] = b2; y[t1 * to + m3] = b3;
      }
    }
    return y;
  }

  function normalise(name, x, weight) {
    const width = weight.length, y = scratch(name, x.length);
    for (let row = 0; row < x.length; row += width) {
      let squares = 0;
      for (let k = 0; k < width; k++) squares += x[row + k] * x[row + k];
      const scale = 1 / Math.sqrt(squares / width + net.eps);
      for (let k = 0; k < width; k++) y[row + k] = x[row + k] * scale * weight[k];
    }
    return y;
  }

  // Rotate pairs of numbers, half a head apart, by the position of their row; in place.
  function rotate(x, heads, first) {
    const size = net.head_size, half = size / 2, width = heads * size;
    for (let row = 0; row * width < x.length; row++) {
      for (let i = 0; i < half; i++) {
        const angle = (first + row) * net.theta ** (-i / half), cos = Math.cos(angle), sin = Math.sin(angle);
        for (let at = row * width + i; at < (row + 1) * width; at += size) {
          const a = x[at], b = x[at + half];
          x[at] = a * cos - b * sin;
          x[at + half] = b * cos + a * sin;
        }
      }
    }
    return x;
  }

  // Attention of queries, whose first row is at position `first`, to keys and values of positions from 0.
  function attend(query, key, value, first) {
    const { heads, key_heads, head_size } = net, width = heads * head_size, keyWidth = key_heads * head_size;
    const y = scratch("attended", query.length).fill(0), rows = key.length / keyWidth, weight = scratch("attention", rows);
    for (let row = 0; row * width < query.length; row++) {
      const seen = net.causal ? first + row + 1 : rows;
      for (let head = 0; head < heads; head++) {
        const q = row * width + head * head_size, k = Math.floor(head * key_heads / heads) * head_size;
        let most = -Infinity, total = 0;
        for (let other = 0; other < seen; other++) {
          let dot = 0;
          for (let i = 0; i < head_size; i++) dot += query[q + i] * key[other * keyWidth + k + i];
          weight[other] = dot / Math.sqrt(head_size);
          most = Math.max(most, weight[other]);
        }
        for (let other = 0; other < seen; other++) total += weight[other] = Math.exp(weight[other] - most);
        for (let other = 0; other < seen; other++) {
          const share = weight[other] / total;
          for (let i = 0; i < head_size; i++) y[q + i] += share * value[other * keyWidth + k + i];
        }
      }
    }
    return y;
  }

  const add = (x, y) => { for (let i = 0; i < x.length; i++) x[i] += y[i]; };
  const join = (a, b) => { const both = new Float64Array(a.length + b.length); both.set(a); both.set(b, a.length); return both; };

  function embed(ids) {
    const x = new Float64Array(ids.length * net.width); // not scratch: restoring keeps it
    ids.forEach((id, row) => x.set(net.embedding.subarray(id * net.width, (id + 1) * net.width), row * net.width));
    return x;
  }

  // The states after the final norm, from the states (rows, width) that enter block `from`. `hook(site, layer, output)`
  // may read or change the output of "attn", "mlp" and of the whole block, "state". `past` keeps keys and values of a
  // causal network: the rows then follow those that it has.
  function run(states, { from = 0, hook = () => {}, past = null } = {}) {
    const x = scratch("x", states.length), { width, heads, key_heads, head_size } = net;
    x.set(states);
    for (let layer = from; layer < net.blocks.length; layer++) {
      const block = net.blocks[layer], inner = block.up.length / width;
      const normed = normalise("normed", x, block.attentionNorm);
      const known = past && past[layer], first = known ? known.key.length / (key_heads * head_size) : 0;
      const query = rotate(product("query", normed, block.query, width, heads * head_size), heads, first);
      let key = rotate(product("key", normed, block.key, width, key_heads * head_size), key_heads, first);
      let value = product("value", normed, block.value, width, key_heads * head_size);
      if (past) past[layer] = { key, value } = known ? { key: join(known.key, key), value: join(known.value, value) }
        : { key: key.slice(), value: value.slice() };
      const attended = product("attn", attend(query, key, value, first), block.out, heads * head_size, width);
      hook("attn", layer, attended);
      add(x, attended);
      const again = normalise("normed", x, block.mlpNorm), gate = product("gate", again, block.gate, width, inner);
      const up = product("up", again, block.up, width, inner);
      for (let i = 0; i < up.length; i++) up[i] *= gate[i] / (1 + Math.exp(-gate[i]));
      const mlp = product("mlp", up, block.down, inner, width);
      hook("mlp", layer, mlp);
      add(x, mlp);
      hook("state", layer, x);
    }
    return normalise("states", x, net.norm);
  }

  // Logits (positions, vocabulary) at some positions; a mask is never predicted.
  function predict(states, positions, name = "logits") {
    const chosen = scratch("chosen", positions.length * net.width);
    positions.forEach((position, row) =>
      chosen.set(states.subarray(position * net.width, (position + 1) * net.width), row * net.width));
    const logits = product(name, chosen, net.head, net.width, net.vocabulary);
    if (net.mask < net.vocabulary && net.mask !== null) {
      for (let at = net.mask; at < logits.length; at += net.vocabulary) logits[at] = -3.4e38;
    }
    return positions.map((_, row) => logits.subarray(row * net.vocabulary, (row + 1) * net.vocabulary));
  }

  // The most likely token of some logits, and the log-probability of a token, or of that one.
  function choose(logits, token) {
    let best = 0, total = 0;
    for (let i = 1; i < logits.length; i++) if (logits[i] > logits[best]) best = i;
    for (let i = 0; i < logits.length; i++) total += Math.exp(logits[i] - logits[best]);
    return { best, log: logits[token === undefined ? best : token] - logits[best] - Math.log(total) };
  }

  // ---- Answers

  function timesteps(schedule, steps) {
    const last = 1e-5;
    return Array.from({ length: steps + 1 }, (_, i) => {
      const u = i / steps;
      if (schedule === "linear") return 1 + u * (last - 1);
      return schedule === "cosine" ? last + (1 - last) * Math.cos(Math.PI / 2 * u) : last ** u;
    });
  }

  // [[step, how many tokens it reveals]]; steps that reveal nothing are left out.
  function planUnmasking(masked, steps, schedule) {
    const t = timesteps(schedule, steps), plan = [];
    for (let step = 0; step < steps; step++) {
      const count = step === steps - 1 ? masked : Math.floor(masked * (1 - t[step + 1] / t[step]));
      if (count) plan.push([step, count]);
      masked -= count;
    }
    return plan;
  }

  // The canvas is filled from the most confident token on; tokens [position, id, step, confidence] as they are revealed.
  async function denoise({ prompt, canvas: length, steps, guidance, schedule }, report) {
    const canvas = [...prompt, ...Array(length - prompt.length).fill(net.mask)], revealed = [];
    for (const [step, count] of planUnmasking(length - prompt.length, steps, schedule)) {
      const masked = canvas.flatMap((id, position) => position >= prompt.length && id === net.mask ? [position] : []);
      const logits = predict(run(embed(canvas)), masked);
      if (guidance) {
        const without = canvas.map((id, position) => position < prompt.length ? net.mask : id);
        predict(run(embed(without)), masked, "unconditional").forEach((plain, i) => {
          for (let id = 0; id < plain.length; id++) logits[i][id] = plain[id] + (1 + guidance) * (logits[i][id] - plain[id]);
        });
      }
      const chosen = masked.map((position, i) => ({ position, ...choose(logits[i]) }));
      chosen.sort((a, b) => b.log - a.log || a.position - b.position);
      for (const { position, best, log } of chosen.slice(0, count)) {
        canvas[position] = best;
        revealed.push([position, best, step, Math.exp(log)]);
      }
      await report({ revealed, progress: (step + 1) / steps });
    }
    return { ids: canvas, revealed, steps };
  }

  // Greedy decoding, up to the end token or the length of the canvas.
  async function complete({ prompt, canvas }, report) {
    const ids = [...prompt], revealed = [], past = [];
    let states = run(embed(prompt), { past });
    while (ids.length < canvas) {
      const { best, log } = choose(predict(states, [states.length / net.width - 1])[0]);
      revealed.push([ids.length, best, ids.length - prompt.length, Math.exp(log)]);
      ids.push(best);
      await report({ revealed, progress: ids.length / canvas });
      if (best === net.end || ids.length === canvas) break;
      states = run(embed([best]), { past });
    }
    return { ids, revealed, steps: revealed.length };
  }

  // What readers see of an answer: the texts of its tokens and of the whole, and which tokens answer the question.
  function describe({ ids, revealed, steps }, { prompt, reference }) {
    const generated = ids.slice(prompt.length), end = generated.indexOf(net.end);
    const said = end < 0 ? generated : generated.slice(0, end);
    const text = decode(said);
    let answer = [0, said.length], correct = null;
    if (reference) {
      const wanted = reference.text.trim().toLowerCase(), start = text.toLowerCase().indexOf(wanted);
      correct = start >= 0;
      if (correct) {
        const shift = start - (reference.text.length - reference.text.trimStart().length);
        const ends = said.map((_, i) => decode(said.slice(0, i + 1)).length);
        answer = tokenRange(text, ends.map((to, i) => [i ? ends[i - 1] : 0, to]), shift + reference.answer[0], shift + reference.answer[1]);
      }
    }
    return {
      ids, revealed, steps, text, correct, end: net.end, answer: answer.map((place) => prompt.length + place),
      texts: ids.map((id) => id === net.mask ? "" : textOf(id)),
    };
  }

  // The half-open range of tokens, with the characters [start, end] of each, that have a letter of a span of characters.
  function tokenRange(text, offsets, from, to) {
    const touched = offsets.flatMap(([start, end], i) => {
      while (start < end - 1 && /\s/.test(text[start])) start++;
      return start < to && end > from ? [i] : [];
    });
    return touched.length ? [touched[0], touched.at(-1) + 1] : [0, 0];
  }

  // ---- Causal tracing: the corrupted run with the clean output of one site put back at some positions. A part of the
  // reply has the cells since the part before it.

  async function restore({ clean, corrupted, answer, kind, cells }, report) {
    const record = (ids) => {
      const entering = [embed(ids)], outputs = [];
      const states = run(entering[0], {
        hook: (site, layer, output) => {
          if (site === "state") entering.push(output.slice());
          if (site === kind) outputs.push(output.slice());
        },
      });
      return { entering, outputs, ...score(states) };
    };
    const score = (states) => {
      const chosen = predict(states, answer.map(([position]) => position)).map((logits, i) => choose(logits, answer[i][1]));
      return { log: chosen.reduce((sum, one) => sum + one.log, 0), said: decode(chosen.map((one) => one.best)) };
    };
    const runs = { clean: record(clean), corrupted: record(corrupted) };
    const base = Object.fromEntries(Object.entries(runs).map(([name, { log, said }]) => [name, { log, said }]));
    let done = []; // of the cells, in their order, those not reported yet
    for (const [i, { layer, positions }] of cells.entries()) {
      const patch = (output) => {
        for (const position of positions) {
          const at = position * net.width;
          output.set(runs.clean.outputs[layer].subarray(at, at + net.width), at);
        }
      };
      const states = runs.corrupted.entering[kind === "state" ? layer + 1 : layer].slice();
      if (kind === "state") patch(states);
      done.push(score(run(states, {
        from: kind === "state" ? layer + 1 : layer,
        hook: (site, at, output) => { if (kind !== "state" && site === kind && at === layer) patch(output); },
      })));
      if (await report({ ...base, cells: done, progress: (i + 1) / cells.length })) done = [];
    }
    return { ...base, cells: done };
  }

  // ---- Requests

  const REQUESTS = {
    async load({ text }) {
      try {
        net = await unpack(text);
      } catch {
        throw new Error("The weights in this page are damaged; get the page again.");
      }
      return { mask: net.mask, layers: net.layers };
    },
    async read({ texts }) {
      return texts.map(({ text, span }) => {
        const tokens = encode(text);
        return {
          ids: tokens.map(({ id }) => id),
          texts: tokens.map(({ id }) => textOf(id)),
          subject: span ? tokenRange(text, tokens.map(({ start, end }) => [start, end]), ...span) : null,
        };
      });
    },
    async answer(request, report) {
      const write = net.causal ? complete : denoise;
      return describe(await write(request, (part) => report({ ...part, texts: part.revealed.map(([, id]) => textOf(id)) })), request);
    },
    restore,
    async logits({ ids, positions }) {
      return predict(run(embed(ids)), positions).map((row) => Array.from(row));
    },
  };

  port.onmessage = async ({ data: request }) => {
    if (request.stop !== undefined) return void stopped.add(request.stop);
    let told = 0;
    const report = async (part) => {
      if (performance.now() - told < 60) return false;
      port.postMessage({ id: request.id, part });
      await pause(); // lets a request to stop come in
      told = performance.now();
      if (stopped.has(request.id)) throw new Error("stopped");
      return true;
    };
    try {
      port.postMessage({ id: request.id, done: await REQUESTS[request.do](request, report) });
    } catch (error) {
      port.postMessage({ id: request.id, failed: error.message });
    }
  };
}
