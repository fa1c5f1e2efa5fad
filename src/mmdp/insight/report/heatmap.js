// The policy as a heat map with several looks, and its small version in the answer.
(() => {
  const map = at("map"), look = at("look"), rowsOf = at("rows"), legend = at("legend");
  const S = states.length;
  const actionIds = unpack(data.actionIds, Uint16Array);
  const runnerUp = unpack(data.runnerUp, Int32Array);
  const layers = {};
  for (const name of Object.keys(data.layers)) {
    layers[name] = unpack(data.layers[name], Float32Array);
  }
  const there = (t, s) => layers.probability[t * S + s] > 0;
  const ever = states.map((_, s) => times.some((_, t) => there(t, s)));
  const drawn = { // if one column stands for all times, a state counts that is reached at any
    actionId: (t, s) => actionIds[t * S + s], reached: isStationary ? (t, s) => ever[s] : there,
  };
  const still = () => isStationary && look.value === "action";

  // ---------------------------------------------------------------- words
  function words(t, s) {
    const i = t * S + s, a = actionIds[i];
    const what = `state ${states[s]}: ${actions[usedActions[a]]} (${marks[a]}).`;
    if (still()) return `At all times in ${what}`;
    let text = `${TimeName} ${times[t]}, ${what}`;
    const chance = layers.probability[i];
    text += chance > 0 ? ` Probability of the state ${chance < 0.001 ? "under 0.001" : number(chance)}.` : " Never reached.";
    const margin = layers.margin[i];
    if (runnerUp[i] < 0) text += " The only action.";
    else if (!Number.isNaN(margin)) {
      text += ` Margin ${number(margin)} over ${actions[runnerUp[i]]}.`;
    }
    const agree = layers.agreement && layers.agreement[i];
    if (agree !== undefined && !Number.isNaN(agree)) {
      text += ` ${Math.round(100 * agree)}% of the models agree.`;
    }
    return text;
  }

  // ---------------------------------------------------------------- what is shown
  function scaleOf(name) {
    if (name === "action") return null;
    const known = Array.from(layers[name]).filter((x) => Number.isFinite(x)).sort((a, b) => a - b);
    if (!known.length) return { low: 0, high: 1, of: () => 0 };
    if (name === "agreement") return { low: 0, high: 1, of: (x) => x };
    const low = Math.min(0, known[0]);
    const high = known[Math.floor(0.98 * (known.length - 1))] || known[known.length - 1] || 1;
    return { low, high, of: (x) => Math.sqrt(Math.min(1, Math.max(0, (x - low) / (high - low || 1)))) };
  }
  function relabel(scale) {
    if (scale) {
      legend.replaceChildren();
      const middle = (scale.low + scale.high) / 2;
      entry(legend, () => shade(scale.of(scale.low)), number(scale.low));
      entry(legend, () => shade(scale.of(middle)), number(middle));
      entry(legend, () => shade(scale.of(scale.high)), `${number(scale.high)}${look.value === "agreement" ? "" : " or more"}`);
      entry(legend, null, "blank: no model gets there, or there is no other action");
      return;
    }
    actionLegend(legend, new Set(actionIds));
    if (isStationary ? ever.includes(false) : layers.probability.some((x) => x <= 0)) entry(legend, null, "pale: never reached");
  }
  let scale = null;
  const main = new PolicyMap(map, {
    ...drawn, rows: [], words, still, said: at("said"),
    numbers: () => scale && { values: layers[look.value], scale },
  });
  function choose() {
    const chosen = rowsOf ? rowsOf.value : "all", every = states.map((_, s) => s);
    main.rows = chosen === "first" ? data.defaultRows : chosen === "all" ? every
      : every.filter((s) => `, ${states[s]}, `.includes(`, ${chosen}, `)); // a value may have commas
    if (main.cell) main.cell.k = Math.min(main.cell.k, main.rows.length - 1);
    scale = scaleOf(look.value);
    relabel(scale);
    main.draw();
  }
  look.addEventListener("change", choose);
  if (rowsOf) rowsOf.addEventListener("change", choose);

  const small = new PolicyMap(at("glance"), { ...drawn, rows: data.defaultRows, still: () => isStationary, tallest: 190, narrowest: 0.5 });
  function colour() {
    choose();
    actionLegend(at("glance-legend"), new Set(actionIds));
    if (data.defaultRows.some((s) => times.some((_, t) => !drawn.reached(t, s)))) entry(at("glance-legend"), null, "pale: never reached");
  }

  // ---------------------------------------------------------------- start, and changes around us
  const drawAll = () => maps.forEach((each) => each.draw());
  addEventListener("resize", drawAll);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { colour(); drawAll(); });
  const folded = [...document.querySelectorAll("details:not([open])")];
  function paper(printing) {
    light = printing;
    for (const part of folded) part.open = printing;
    drawAll();
  }
  addEventListener("beforeprint", () => paper(true));
  addEventListener("afterprint", () => paper(false));
  for (const hidden of document.querySelectorAll(".scripted")) hidden.hidden = false;
  colour();
  small.draw();
  map.dataset.ready = "yes";
})();
