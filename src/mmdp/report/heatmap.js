"use strict";
// The policy as a heat map: times across, states down. Drawn on a canvas, so that hundreds of
// states stay quick; every cell can be reached by mouse and by keyboard, and is told in words.
(() => {
  const at = (id) => document.getElementById(id);
  const data = JSON.parse(at("policy-data").textContent);
  const map = at("map"), canvas = map.querySelector("canvas"), said = at("said"), tip = at("tip");
  const look = at("look"), rowsOf = at("rows"), legend = at("legend");
  const { horizon: T, states, actions, used, marks, colours, inks } = data;
  const S = states.length;
  const unpack = (text, Type) =>
    new Type(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer);
  const place = unpack(data.place, Uint16Array);
  const runner = unpack(data.runner, Int32Array);
  const numbers = {};
  for (const name of Object.keys(data.numbers)) {
    numbers[name] = unpack(data.numbers[name], Float32Array);
  }
  let rows = [], cell = null, box = null; // box: where the last drawing put things
  let light = false; // paper is white whatever the screen is

  // ---------------------------------------------------------------- words
  const short = (text, longest) =>
    text.length > longest ? text.slice(0, longest - 1).trimEnd() + "…" : text;
  const number = (x) => x.toLocaleString("en", { maximumSignificantDigits: 4 });
  function words(t, s) {
    const i = t * S + s, a = place[i];
    let text = `Time ${t}, state ${states[s]}: ${actions[used[a]]} (${marks[a]}).`;
    const chance = numbers.probability[i];
    text += chance > 0 ? ` Probability of being there ${number(chance)}.` : " Never reached.";
    const margin = numbers.margin[i];
    if (runner[i] < 0) text += " The only action.";
    else if (!Number.isNaN(margin)) {
      text += ` Margin ${number(margin)} over ${actions[runner[i]]}.`;
    }
    const agree = numbers.agree && numbers.agree[i];
    if (agree !== undefined && !Number.isNaN(agree)) {
      text += ` ${Math.round(100 * agree)}% of the models agree.`;
    }
    return text;
  }

  // ---------------------------------------------------------------- colours and hatches
  const theme = (name) =>
    light ? { "--ink": "#000", "--paper": "#fff", "--quiet": "#444" }[name]
      : getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const HATCHES = [
    [], [[0, 8, 8, 0]], [[0, 0, 8, 8]], [[0, 4, 8, 4]], [[4, 0, 4, 8]], [[0, 4, 8, 4], [4, 0, 4, 8]],
  ];
  const ordered = used.length > HATCHES.length; // then light to dark says the order
  function fillOf(g, a, hatched) {
    if (!hatched || ordered || !HATCHES[a].length) return colours[a];
    const tile = document.createElement("canvas");
    tile.width = tile.height = 8;
    const h = tile.getContext("2d");
    h.fillStyle = colours[a];
    h.fillRect(0, 0, 8, 8);
    h.strokeStyle = inks[a];
    h.globalAlpha = 0.75;
    for (const [x, y, u, v] of HATCHES[a]) {
      for (const shift of x !== u && y !== v ? [-8, 0, 8] : [0]) {
        h.beginPath();
        h.moveTo(x + shift, y);
        h.lineTo(u + shift, v);
        h.stroke();
      }
    }
    return g.createPattern(tile, "repeat");
  }
  const DARK = [8, 48, 107], PALE = [222, 235, 247];
  const shade = (x) =>
    `rgb(${DARK.map((d, i) => Math.round(PALE[i] + (d - PALE[i]) * x)).join(",")})`;
  function scaleOf(name) {
    if (name === "action") return null;
    const known = Array.from(numbers[name]).filter((x) => Number.isFinite(x)).sort((a, b) => a - b);
    if (!known.length) return { low: 0, high: 1, of: () => 0 };
    if (name === "agree") return { low: 0, high: 1, of: (x) => x };
    const low = Math.min(0, known[0]);
    const high = known[Math.floor(0.98 * (known.length - 1))] || known[known.length - 1] || 1;
    return { low, high, of: (x) => Math.sqrt(Math.min(1, Math.max(0, (x - low) / (high - low || 1)))) };
  }

  // ---------------------------------------------------------------- drawing
  function sizes(g) {
    const n = rows.length;
    const h = n <= 12 ? 34 : n <= 60 ? 19 : Math.max(2, Math.min(14, 900 / n));
    g.font = "13px system-ui, sans-serif";
    const step = h >= 13 ? 1 : Math.ceil(16 / h);
    const shown = rows.filter((s, k) => k % step === 0).map((s) => short(states[s], 26));
    const left = 12 + Math.max(...shown.map((text) => g.measureText(text).width));
    const w = Math.min(60, Math.max(5, (map.clientWidth - left - 12) / T));
    return { n, h, w, left, step, top: 8, bottom: 36 };
  }
  function draw() {
    const g = canvas.getContext("2d");
    box = sizes(g);
    const wide = Math.ceil(box.left + T * box.w + 10);
    const high = Math.ceil(box.top + box.n * box.h + box.bottom);
    const sharp = Math.min(window.devicePixelRatio > 1 ? 2 : light ? 2 : 1, 16000 / wide, 16000 / high);
    canvas.width = wide * sharp;
    canvas.height = high * sharp;
    canvas.style.width = `${wide}px`;
    canvas.style.height = `${high}px`;
    g.scale(sharp, sharp);
    const scale = scaleOf(look.value);
    rows.forEach((s, k) => (scale ? drawNumbers(g, s, k, scale) : drawRuns(g, s, k)));
    axes(g);
    if (cell && document.activeElement === map) outline(g);
  }
  function drawRuns(g, s, k) {
    const gap = box.h >= 8 ? 1 : 0, y = box.top + k * box.h;
    const written = box.h >= 13;
    for (let t = 0; t < T;) {
      const a = place[t * S + s], reached = numbers.probability[t * S + s] > 0;
      let end = t + 1;
      while (end < T && place[end * S + s] === a
        && numbers.probability[end * S + s] > 0 === reached) end += 1;
      const x = box.left + t * box.w, width = (end - t) * box.w;
      const name = written ? fitting(g, a, width - gap - 4) : "";
      g.globalAlpha = reached ? 1 : 0.3;
      g.fillStyle = fillOf(g, a, !name);
      g.fillRect(x, y, width - gap, box.h - gap);
      g.globalAlpha = 1;
      if (name) {
        g.fillStyle = reached ? inks[a] : theme("--ink");
        g.textAlign = "center";
        g.textBaseline = "middle";
        g.fillText(name, x + (width - gap) / 2, y + (box.h - gap) / 2 + 0.5);
      }
      t = end;
    }
  }
  function fitting(g, a, width) {
    g.font = `${box.h > 24 ? 13 : 11.5}px system-ui, sans-serif`;
    const whole = short(actions[used[a]], 40), both = `${marks[a]}  ${whole}`;
    for (const text of [both, marks[a]]) if (g.measureText(text).width <= width) return text;
    return "";
  }
  function drawNumbers(g, s, k, scale) {
    const gap = box.h >= 8 ? 1 : 0, y = box.top + k * box.h, values = numbers[look.value];
    for (let t = 0; t < T; t += 1) {
      const value = values[t * S + s];
      if (Number.isNaN(value)) continue;
      g.fillStyle = shade(scale.of(value));
      g.fillRect(box.left + t * box.w, y, box.w - (box.w >= 8 ? 1 : 0) + 0.3, box.h - gap);
    }
  }
  function axes(g) {
    g.font = "13px system-ui, sans-serif";
    g.fillStyle = theme("--ink");
    g.textAlign = "right";
    g.textBaseline = "middle";
    rows.forEach((s, k) => {
      if (k % box.step === 0) {
        g.fillText(short(states[s], 26), box.left - 6, box.top + (k + 0.5) * box.h);
      }
    });
    g.textAlign = "center";
    g.textBaseline = "top";
    const nice = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000].find((d) => d * box.w >= 34) || 2000;
    const y = box.top + box.n * box.h + 4;
    for (let t = 0; t < T; t += nice) g.fillText(t, box.left + (t + 0.5) * box.w, y);
    g.fillStyle = theme("--quiet");
    g.fillText("time", box.left + (T * box.w) / 2, y + 16);
  }
  function outline(g) {
    const x = box.left + cell.t * box.w, y = box.top + cell.k * box.h;
    const w = Math.max(box.w, 6), h = Math.max(box.h, 6);
    for (const [colour, width] of [[theme("--paper"), 5], [theme("--ink"), 2.5]]) {
      g.strokeStyle = colour;
      g.lineWidth = width;
      g.strokeRect(x + (box.w - w) / 2, y + (box.h - h) / 2, w, h);
    }
  }

  // ---------------------------------------------------------------- legend and rows
  function swatch(fill) {
    const c = document.createElement("canvas");
    c.width = 30;
    c.height = 16;
    const g = c.getContext("2d");
    g.fillStyle = fill(g);
    g.fillRect(0, 0, 30, 16);
    c.setAttribute("aria-hidden", "true");
    return c;
  }
  function entry(fill, text, title) {
    const li = document.createElement("li");
    if (fill) li.append(swatch(fill));
    li.append(text);
    if (title) li.title = title;
    legend.append(li);
  }
  function relabel() {
    legend.replaceChildren();
    const scale = scaleOf(look.value);
    if (scale) {
      const middle = scale.of((scale.low + scale.high) / 2);
      entry(() => shade(scale.of(scale.low)), number(scale.low));
      entry(() => shade(middle), number((scale.low + scale.high) / 2));
      entry(() => shade(scale.of(scale.high)), `${number(scale.high)}${look.value === "agree" ? "" : " or more"}`);
      entry(null, "blank: no model gets there, or there is no other action");
      return;
    }
    used.forEach((a, i) => {
      entry((g) => fillOf(g, i, true), `${marks[i]}  ${short(actions[a], 40)}`, actions[a]);
    });
    if (numbers.probability.some((x) => x <= 0)) entry(null, "pale: never reached");
  }
  function choose() {
    rows = rowsOf && rowsOf.value !== "all"
      ? data.most_visited.slice(0, Number(rowsOf.value)).sort((a, b) => a - b)
      : states.map((_, s) => s);
    if (cell) cell.k = Math.min(cell.k, rows.length - 1);
    relabel();
    draw();
  }

  // ---------------------------------------------------------------- mouse and keyboard
  function under(event) {
    const frame = canvas.getBoundingClientRect();
    const t = Math.floor((event.clientX - frame.left - box.left) / box.w);
    const k = Math.floor((event.clientY - frame.top - box.top) / box.h);
    return t >= 0 && t < T && k >= 0 && k < rows.length ? { t, k } : null;
  }
  function showTip(x, y, text) {
    tip.textContent = text;
    tip.hidden = false;
    tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - tip.offsetWidth - 8))}px`;
    tip.style.top = `${y + 18 + tip.offsetHeight > innerHeight ? y - tip.offsetHeight - 10 : y + 18}px`;
  }
  canvas.addEventListener("pointermove", (event) => {
    const found = under(event);
    if (found) showTip(event.clientX, event.clientY, words(found.t, rows[found.k]));
    else tip.hidden = true;
  });
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
  canvas.addEventListener("click", (event) => {
    const found = under(event);
    if (!found) return;
    map.focus();
    move(found.t, found.k);
  });
  function move(t, k) {
    cell = {
      t: Math.min(T - 1, Math.max(0, t)), k: Math.min(rows.length - 1, Math.max(0, k)),
    };
    said.textContent = words(cell.t, rows[cell.k]);
    draw();
  }
  const STEPS = {
    ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1],
    PageUp: [0, -10], PageDown: [0, 10], Home: [-Infinity, 0], End: [Infinity, 0],
  };
  map.addEventListener("keydown", (event) => {
    const step = STEPS[event.key];
    if (!step || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    if (cell) move(cell.t + step[0], cell.k + step[1]);
    else move(0, 0);
  });
  map.addEventListener("focus", () => { if (cell) draw(); else move(0, 0); });
  map.addEventListener("blur", draw);

  // ---------------------------------------------------------------- start, and changes around us
  look.addEventListener("change", choose);
  if (rowsOf) rowsOf.addEventListener("change", choose);
  addEventListener("resize", draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", choose);
  const folded = [...document.querySelectorAll("details:not([open])")];
  function paper(printing) {
    light = printing;
    for (const part of folded) part.open = printing;
    draw();
  }
  addEventListener("beforeprint", () => paper(true));
  addEventListener("afterprint", () => paper(false));
  for (const hidden of document.querySelectorAll(".scripted")) hidden.hidden = false;
  choose();
  map.dataset.ready = "yes";
})();
