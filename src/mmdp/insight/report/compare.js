// Two policies side by side: where they stand, their return in every model, and their maps.
(() => {
  if (!at("compare-data")) return;
  const { rows, nFrontier, initialPair, names, models, figures, shareDiffering, shareBetter, ...raw } =
    JSON.parse(at("compare-data").textContent);
  const UNREACHED = 0x8000;
  const actionIds = raw.actionIds.map((text) => unpack(text, Uint16Array));
  const returns = raw.returns.map((text) => unpack(text, Float32Array));
  const safety = at("safety"), oneOf = at("one"), otherOf = at("other"), summary = at("pair-summary");
  const rank = new Map(rows.map((s, k) => [s, k]));
  let [other, one] = initialPair; // one is compared with the other
  let glimpse = null; // a policy that is only pointed at

  // ---------------------------------------------------------------- words
  const shown = () => (glimpse === null ? one : glimpse);
  const percent = (x) => (x > 0 && x < 0.001 ? "less than 0.1%" : `${Number((100 * x).toPrecision(2))}%`);
  function change(name, x, y) {
    const gain = x - y;
    if (Math.abs(gain) <= 1e-9 * Math.abs(y)) return `${name} ${number(x)}, the same`;
    return `${name} ${number(x)}, ${number(Math.abs(gain))} ${gain > 0 ? "more" : "less"}`;
  }
  function sentence(i, j) {
    const x = figures[i], y = figures[j];
    if (i === j) return `${names[i]}: average ${number(x.mean)}, worst tenth ${number(x.tail)}, worst model ${number(x.worst)}.`;
    let text = `${names[i]}, compared with ${names[j]}: ${change("average", x.mean, y.mean)}; `
      + `${change("worst tenth", x.tail, y.tail)}; ${change("worst model", x.worst, y.worst)}. `
      + `It returns more in ${percent(shareBetter[i][j])} of the models and less in ${percent(shareBetter[j][i])}; `
      + `${percent(shareDiffering[i][j])} of its decisions differ.`;
    if (x.test_mean !== undefined) {
      text += ` On held-out models: ${change("average", x.test_mean, y.test_mean)}; `
        + `${change("worst tenth", x.test_tail, y.test_tail)}.`;
    }
    return text[0].toUpperCase() + text.slice(1);
  }

  // ---------------------------------------------------------------- drawings
  const SVG = "http://www.w3.org/2000/svg";
  function add(parent, name, attributes, text) {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    parent.append(made);
    return made;
  }
  function scale(values, low, high) {
    const least = Math.min(...values), most = Math.max(...values), pad = 0.12 * (most - least || 1);
    const of = (v) => low + ((v - least + pad) / (most - least + 2 * pad)) * (high - low);
    return { of, inside: (v) => v >= least - pad && v <= most + pad, least, most, pad };
  }
  function ticks({ least, most, pad }) {
    const span = most - least + 2 * pad, step = 10 ** Math.floor(Math.log10(span / 3));
    const unit = [1, 2, 5, 10].map((k) => k * step).find((d) => span / d <= 5);
    const first = Math.ceil((least - pad) / unit);
    const count = Math.floor((most + pad) / unit) - first + 1;
    return Array.from({ length: count }, (_, k) => (first + k) * unit);
  }
  const tick = (v) => v.toLocaleString("en", { maximumSignificantDigits: 6 }).replace("-", "−");
  function frame(svg, wide, high, y, label) {
    svg.replaceChildren();
    svg.setAttribute("viewBox", `0 0 ${wide} ${high}`);
    const lines = ticks(y);
    const left = 14 + 7.5 * Math.max(...lines.map((v) => tick(v).length));
    for (const v of lines) {
      add(svg, "line", { x1: left, x2: wide - 4, y1: y.of(v), y2: y.of(v), class: "grid" });
      add(svg, "text", { x: left - 6, y: y.of(v) + 4, "text-anchor": "end" }, tick(v));
    }
    add(svg, "text", { x: 2, y: 12, class: "name" }, label);
    return left;
  }
  const plane = {
    svg: at("plane"),
    draw() {
      const { svg } = this, wide = svg.parentNode.clientWidth, high = 270;
      const counted = new Set([...Array(nFrontier + 1).keys(), one, other, shown()]);
      const near = figures.filter((_, i) => nFrontier === 0 || counted.has(i));
      const y = scale(near.map((p) => p.tail), high - 40, 26);
      const left = frame(svg, wide, high, y, "average of the worst tenth");
      const x = scale(near.map((p) => p.mean), left, wide - 8);
      for (const v of ticks(x)) {
        const room = wide - x.of(v) < 4 * tick(v).length ? "end" : "middle";
        add(svg, "text", { x: Math.min(x.of(v) + (room === "end" ? 8 : 0), wide), y: high - 22, "text-anchor": room }, tick(v));
      }
      add(svg, "text", { x: (left + wide) / 2, y: high - 4, class: "name", "text-anchor": "middle" },
        "average of all models");
      const safer = figures.slice(0, nFrontier); // the line joins those that no other beats in both
      const path = safer.filter((p) => !safer.some((q) => q.mean >= p.mean && q.tail >= p.tail && (q.mean > p.mean || q.tail > p.tail)))
        .sort((p, q) => q.mean - p.mean).map((p) => `${x.of(p.mean)},${y.of(p.tail)}`).join(" ");
      if (nFrontier) add(svg, "polyline", { points: path, class: "along" });
      const seen = figures.map((p, i) => i).filter((i) => x.inside(figures[i].mean) && y.inside(figures[i].tail));
      for (const i of seen) {
        const kind = i === shown() ? "one" : i === other ? "other" : i < nFrontier ? "safer" : "rest";
        const dot = add(svg, "circle", {
          cx: x.of(figures[i].mean), cy: y.of(figures[i].tail),
          r: i === shown() ? 8 : i === other ? 10 : 6, class: kind,
        });
        dot.addEventListener("pointerenter", (event) => {
          showTip(event.clientX, event.clientY, sentence(i, other));
          preview(i);
        });
        dot.addEventListener("click", () => choose(i, other));
      }
      this.write(other, x, y, wide, 24);
      if (shown() !== other) this.write(shown(), x, y, wide, -14);
    },
    write(i, x, y, wide, shift) {
      const px = x.of(figures[i].mean), anchor = px > wide * 0.66 ? "end" : px < wide * 0.33 ? "start" : "middle";
      add(this.svg, "text", {
        x: px, y: y.of(figures[i].tail) + shift, "text-anchor": anchor, class: "label",
      }, short(names[i], 34));
    },
  };
  plane.svg.addEventListener("pointerleave", () => { hideTip(); preview(null); });
  const each = {
    svg: at("each"),
    draw() {
      const { svg } = this, wide = svg.parentNode.clientWidth, high = 270;
      const a = returns[other], b = returns[shown()];
      this.order = Array.from(a.keys()).sort((i, j) => a[i] - a[j]);
      const all = [...a, ...b];
      const y = scale([all.reduce((u, v) => Math.min(u, v)), all.reduce((u, v) => Math.max(u, v))], high - 26, 26);
      this.left = frame(svg, wide, high, y, "return of each model") + 4;
      this.step = (wide - 10 - this.left) / Math.max(1, a.length - 1);
      const r = Math.max(1.5, Math.min(4, this.step * 0.6));
      this.order.forEach((m, k) => {
        const x = this.left + k * this.step;
        add(svg, "circle", { cx: x, cy: y.of(a[m]), r, class: "ring" });
        if (other === shown()) return;
        const v = y.of(b[m]);
        if (b[m] >= a[m]) add(svg, "circle", { cx: x, cy: v, r, class: "more" });
        else add(svg, "path", { d: `M${x - r - 1} ${v - r}h${2 * r + 2}l${-r - 1} ${2 * r + 1}z`, class: "less" });
      });
      add(svg, "text", { x: (this.left + wide) / 2, y: high - 6, class: "name", "text-anchor": "middle" },
        "models, sorted by the policy to compare with");
    },
  };
  each.svg.addEventListener("pointermove", (event) => {
    const frame = each.svg.getBoundingClientRect();
    const k = Math.round((event.clientX - frame.left - each.left) / each.step);
    const m = each.order[Math.min(each.order.length - 1, Math.max(0, k))];
    showTip(event.clientX, event.clientY,
      `Model ${models[m]}: ${number(returns[other][m])} with ${names[other]}, `
      + `${number(returns[shown()][m])} with ${names[shown()]}.`);
  });
  each.svg.addEventListener("pointerleave", hideTip);

  // ---------------------------------------------------------------- the two maps
  const cellOf = (i, t, s) => actionIds[i][t * rows.length + rank.get(s)];
  const actionOf = (i, t, s) => cellOf(i, t, s) & ~UNREACHED;
  function words(t, s) {
    const a = actionOf(shown(), t, s), b = actionOf(other, t, s);
    const name = (k) => `${actions[usedActions[k]]} (${marks[k]})`;
    const head = `${TimeName} ${times[t]}, state ${states[s]}: `;
    if (a === b) return `${head}${name(a)} with both.`;
    return `${head}${name(a)} with ${names[shown()]}, ${name(b)} with ${names[other]}.`;
  }
  const differs = (t, s) => actionOf(shown(), t, s) !== actionOf(other, t, s);
  function mapOf(host, policy) {
    return new PolicyMap(host, {
      rows, words, said: at("compared"), tallest: 320, narrowest: 3, marked: differs,
      actionId: (t, s) => actionOf(policy(), t, s),
      reached: (t, s) => !(cellOf(policy(), t, s) & UNREACHED),
      moved: (cell) => pair.forEach((map) => { map.pointed = cell; map.draw(); }),
    });
  }
  const pair = [mapOf(at("other-map"), () => other), mapOf(at("one-map"), shown)];
  maps.push(plane, each);

  // ---------------------------------------------------------------- choosing
  function drawAll() {
    for (const part of [plane, each, ...pair]) part.draw();
    at("one-name").textContent = names[shown()];
    at("other-name").textContent = names[other];
    const both = [...new Set([...actionIds[shown()], ...actionIds[other]].map((x) => x & ~UNREACHED))];
    actionLegend(at("compare-legend"), new Set(both));
    entry(at("compare-legend"), null, pair[0].faint ? "pale: they do the same" : "framed: they differ");
  }
  function preview(i) {
    if (glimpse === i) return;
    glimpse = i;
    at("one-name").textContent = names[shown()];
    for (const part of [each, ...pair]) part.draw();
  }
  function choose(i, j) {
    [one, other, glimpse] = [i, j, null];
    oneOf.value = one;
    otherOf.value = other;
    summary.textContent = sentence(one, other);
    if (safety && one < nFrontier) {
      safety.value = one;
      safety.setAttribute("aria-valuetext", sentence(one, other));
    }
    drawAll();
  }
  oneOf.addEventListener("change", () => choose(Number(oneOf.value), other));
  otherOf.addEventListener("change", () => choose(one, Number(otherOf.value)));
  if (safety) safety.addEventListener("input", () => choose(Number(safety.value), other));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  choose(one, other);
})();
