"use strict";
// What the maps of a page share: words, colours, and a map of times (across) by states (down).
// Drawn on a canvas, so that hundreds of states stay quick; every cell of a map that can be focused
// is reached by mouse and by keyboard, and is described in words.
const at = (id) => document.getElementById(id);
const data = JSON.parse(at("policy-data").textContent);
const { times, timeName, isStationary, states, actions, usedActions, marks, colors, textColors } = data;
const T = times.length, TimeName = timeName[0].toUpperCase() + timeName.slice(1);
const unpack = (text, Type) =>
  new Type(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer);
const maps = []; // all of them, to be drawn again when the window or the colours change
let light = false; // paper is white whatever the screen is

// ------------------------------------------------------------------ words and the tip
const NAME = /(?<=^|, )[\p{L}_][\p{L}\p{N}_]*(?==)/gu; // stock and ordered in stock=3, ordered=5
function short(text, longest) { // names of values are cut first
  for (let letters = longest; letters > 0 && text.length > longest; letters--)
    text = text.replace(NAME, (name) => name.slice(0, letters));
  return text.length > longest ? text.slice(0, longest - 1).trimEnd() + "…" : text;
}
const number = (x) => x.toLocaleString("en",
  Math.abs(x) >= 1000 ? { maximumFractionDigits: 0 } : { maximumSignificantDigits: 4 }).replace("-", "−");
const tip = at("tip");
function showTip(x, y, text) {
  tip.textContent = text;
  tip.hidden = false;
  tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - tip.offsetWidth - 8))}px`;
  tip.style.top = `${y + 18 + tip.offsetHeight > innerHeight ? y - tip.offsetHeight - 10 : y + 18}px`;
}
const hideTip = () => { tip.hidden = true; };

// ------------------------------------------------------------------ colours and hatches
const theme = (name) =>
  light ? { "--ink": "#000", "--paper": "#fff", "--quiet": "#444" }[name]
    : getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const HATCHES = [
  [], [[0, 8, 8, 0]], [[0, 0, 8, 8]], [[0, 4, 8, 4]], [[4, 0, 4, 8]], [[0, 4, 8, 4], [4, 0, 4, 8]],
];
const ordered = usedActions.length > HATCHES.length; // then light to dark says the order
function fillOf(g, a, hatched) {
  if (!hatched || ordered || !HATCHES[a].length) return colors[a];
  const tile = document.createElement("canvas");
  tile.width = tile.height = 8;
  const h = tile.getContext("2d");
  h.fillStyle = colors[a];
  h.fillRect(0, 0, 8, 8);
  h.strokeStyle = textColors[a];
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
function entry(legend, fill, text, title) {
  const li = document.createElement("li");
  if (fill) {
    const c = document.createElement("canvas");
    c.width = 30;
    c.height = 16;
    const g = c.getContext("2d");
    g.fillStyle = fill(g);
    g.fillRect(0, 0, 30, 16);
    c.setAttribute("aria-hidden", "true");
    li.append(c);
  }
  li.append(text);
  if (title) li.title = title;
  legend.append(li);
}
function actionLegend(legend, shown) {
  legend.replaceChildren();
  usedActions.forEach((a, i) => {
    if (!shown.has(i)) return;
    entry(legend, (g) => fillOf(g, i, true), `${marks[i]}  ${short(actions[a], 40)}`, actions[a]);
  });
}

// ------------------------------------------------------------------ a map
// options: actionId(t, s), the action; reached(t, s); rows, states from top to bottom; words(t, s);
// said, where the words of the focused cell go; numbers(), values to shade by instead of actions;
// still(), whether one column stands for all times; marked(t, s), cells that stand out; tallest, narrowest, in pixels; moved(cell), when it is pointed at
const STEPS = {
  ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1],
  PageUp: [0, -10], PageDown: [0, 10], Home: [-Infinity, 0], End: [Infinity, 0],
};
class PolicyMap {
  constructor(host, options) {
    Object.assign(this, { tallest: 900, narrowest: 5, still: () => false, host, cell: null, pointed: null }, options);
    this.canvas = host.querySelector("canvas");
    maps.push(this);
    if (this.words) this.listen();
  }
  get T() { return this.still() ? 1 : T; }
  sizes(g) {
    const n = this.rows.length;
    const usual = n <= 12 ? 34 : n <= 60 ? 19 : Math.min(14, 900 / n);
    const h = Math.max(2, Math.min(usual, this.tallest / n));
    g.font = "13px system-ui, sans-serif";
    const step = h >= 13 ? 1 : Math.ceil(16 / h);
    const longest = this.host.clientWidth < 500 ? 14 : 26;
    const labels = this.rows.map((s, k) => (k % step === 0 ? short(states[s], longest) : ""));
    const left = 12 + Math.max(...labels.map((text) => g.measureText(text).width));
    const w = Math.min(this.still() ? 240 : 60, Math.max(this.narrowest, (this.host.clientWidth - left - 12) / this.T));
    return { n, h, w, left, labels, top: 8, bottom: this.still() ? 4 : 36 };
  }
  draw() {
    const g = this.canvas.getContext("2d"), box = this.box = this.sizes(g);
    const wide = Math.ceil(box.left + this.T * box.w + 10);
    const high = Math.ceil(box.top + box.n * box.h + box.bottom);
    const sharp = Math.min(window.devicePixelRatio > 1 || light ? 2 : 1, 16000 / wide, 16000 / high);
    this.canvas.width = wide * sharp;
    this.canvas.height = high * sharp;
    this.canvas.style.width = `${wide}px`;
    this.canvas.style.height = `${high}px`;
    g.scale(sharp, sharp);
    const shaded = this.numbers ? this.numbers() : null;
    this.rows.forEach((s, k) =>
      (shaded ? this.drawNumbers(g, s, k, shaded) : this.drawRuns(g, s, k)));
    this.axes(g);
    if (this.cell && document.activeElement === this.host) this.outline(g, this.cell);
    if (this.pointed) this.outline(g, this.pointed);
  }
  drawRuns(g, s, k) {
    const { h, w, left } = this.box, gap = h >= 8 ? 1 : 0, y = this.box.top + k * h;
    const same = (t, u) => this.actionId(t, s) === this.actionId(u, s)
      && this.reached(t, s) === this.reached(u, s)
      && (!this.marked || this.marked(t, s) === this.marked(u, s));
    for (let t = 0; t < this.T;) {
      const a = this.actionId(t, s), reached = this.reached(t, s);
      let end = t + 1;
      while (end < this.T && same(t, end)) end += 1;
      const x = left + t * w, width = (end - t) * w;
      const name = h >= 13 ? this.fitting(g, a, width - gap - 4) : "";
      const marked = this.marked && this.marked(t, s);
      g.globalAlpha = (this.faint ? marked : reached) ? 1 : 0.3;
      g.fillStyle = fillOf(g, a, !name);
      g.fillRect(x, y, width - gap, gap ? h - gap : h + 0.5);
      g.globalAlpha = 1;
      if (name) {
        g.fillStyle = (this.faint ? marked : reached) ? textColors[a] : theme("--ink");
        g.textAlign = "center";
        g.textBaseline = "middle";
        g.fillText(name, x + (width - gap) / 2, y + (h - gap) / 2 + 0.5);
      }
      if (marked && !this.faint) this.frame(g, x, y, width - gap, h - gap);
      t = end;
    }
  }
  get faint() { // frames around small cells would hide them: all others are pale instead
    return this.marked && Math.min(this.box.h, this.box.w) < 10;
  }
  frame(g, x, y, w, h) {
    g.strokeStyle = theme("--ink");
    g.lineWidth = 2;
    g.strokeRect(x + 1, y + 1, Math.max(w - 2, 1), Math.max(h - 2, 1));
  }
  fitting(g, a, width) {
    g.font = `${this.box.h > 24 ? 13 : 11.5}px system-ui, sans-serif`;
    const whole = short(actions[usedActions[a]], 40), both = `${marks[a]}  ${whole}`;
    for (const text of [both, marks[a]]) if (g.measureText(text).width <= width) return text;
    return "";
  }
  drawNumbers(g, s, k, { values, scale }) {
    const { h, w, left, top } = this.box, gap = h >= 8 ? 1 : 0, y = top + k * h;
    for (let t = 0; t < this.T; t += 1) {
      const value = values[t * states.length + s];
      if (Number.isNaN(value)) continue;
      g.fillStyle = shade(scale.of(value));
      g.fillRect(left + t * w, y, w - (w >= 8 ? 1 : 0) + 0.3, h - gap);
    }
  }
  axes(g) {
    const { h, w, left, top, n, labels } = this.box;
    g.font = "13px system-ui, sans-serif";
    g.fillStyle = theme("--ink");
    g.textAlign = "right";
    g.textBaseline = "middle";
    labels.forEach((text, k) => g.fillText(text, left - 6, top + (k + 0.5) * h));
    g.textAlign = "center";
    g.textBaseline = "top";
    if (this.still()) return;
    const named = times.map((text) => short(text, 12));
    const wide = Math.max(22, ...named.map((text) => g.measureText(text).width)) + 12;
    const nice = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000].find((d) => d * w >= wide) || 2000;
    const y = top + n * h + 4;
    for (let t = 0; t < this.T; t += nice) g.fillText(named[t], left + (t + 0.5) * w, y);
    g.fillStyle = theme("--quiet");
    g.fillText(timeName, left + (T * w) / 2, y + 16);
  }
  outline(g, cell) {
    const { left, top } = this.box, x = left + cell.t * this.box.w, y = top + cell.k * this.box.h;
    const w = Math.max(this.box.w, 6), h = Math.max(this.box.h, 6);
    for (const [colour, width] of [[theme("--paper"), 5], [theme("--ink"), 2.5]]) {
      g.strokeStyle = colour;
      g.lineWidth = width;
      g.strokeRect(x + (this.box.w - w) / 2, y + (this.box.h - h) / 2, w, h);
    }
  }
  // ---------------------------------------------------------------- mouse and keyboard
  under(event) {
    const frame = this.canvas.getBoundingClientRect();
    const t = Math.floor((event.clientX - frame.left - this.box.left) / this.box.w);
    const k = Math.floor((event.clientY - frame.top - this.box.top) / this.box.h);
    return t >= 0 && t < this.T && k >= 0 && k < this.rows.length ? { t, k } : null;
  }
  listen() {
    const { canvas, host } = this;
    canvas.addEventListener("pointermove", (event) => {
      const found = this.under(event);
      if (found) showTip(event.clientX, event.clientY, this.words(found.t, this.rows[found.k]));
      else hideTip();
      if (this.moved) this.moved(found);
    });
    canvas.addEventListener("pointerleave", () => {
      hideTip();
      if (this.moved) this.moved(null);
    });
    canvas.addEventListener("click", (event) => {
      const found = this.under(event);
      if (!found) return;
      host.focus();
      this.move(found.t, found.k);
    });
    host.addEventListener("keydown", (event) => {
      const step = STEPS[event.key];
      if (!step || event.altKey || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      if (this.cell) this.move(this.cell.t + step[0], this.cell.k + step[1]);
      else this.move(0, 0);
    });
    host.addEventListener("focus", () => { if (this.cell) this.draw(); else this.move(0, 0); });
    host.addEventListener("blur", () => {
      this.draw();
      if (this.moved) this.moved(null);
    });
  }
  move(t, k) {
    this.cell = {
      t: Math.min(this.T - 1, Math.max(0, t)), k: Math.min(this.rows.length - 1, Math.max(0, k)),
    };
    this.said.textContent = this.words(this.cell.t, this.rows[this.cell.k]);
    this.draw();
    if (this.moved) this.moved(this.cell);
  }
}
