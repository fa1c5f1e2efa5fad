// The page around decide(): reads what is typed and says what to do.
{
  const at = id => document.getElementById(id);
  // a field of one line drops the line breaks of a label
  const NAMES = new Map(STATES.map(label => [label.replace(/[\r\n]/g, ""), label]));
  const named = text => STATE_IDS.has(text) ? text : NAMES.get(text) ?? text;
  const fields = id => AXES.length ? AXES.map((_, i) => at(id + "-" + i)) : [at(id)];
  const open = () => !at("more") || at("more").open;  // what the rule does not use is asked there
  const written = id => fields(id).map((field, i) => field && (USED_AXES[i] || open()) ? field.value.trim() : null);
  const joined = values => AXES.flatMap(([name], i) => values[i] === null ? [] : [name + "=" + values[i]]).join(", ");

  function nearest(text, [name, values]) {  // the point of an axis nearest to a number
    const points = values.map(Number), x = Number(text);
    if (values.includes(text) || text === "" || ![x, ...points].every(Number.isFinite)) return text;
    const low = points.reduce((a, b) => Math.min(a, b)), high = points.reduce((a, b) => Math.max(a, b));
    if (x < low || x > high) throw new RangeError(name + " must be from " + low + " to " + high);
    return values[points.reduce((best, p, i) => Math.abs(p - x) < Math.abs(points[best] - x) ? i : best, 0)];
  }

  const nearby = id => written(id).map((text, i) => text === null ? null : nearest(text, AXES[i]));

  function known(values) {  // a state with these values, whatever those are that are not asked
    const i = values.indexOf(null);
    if (i < 0) return STATE_IDS.has(joined(values)) ? joined(values) : null;
    for (const x of AXES[i][1]) {
      const found = known(values.map((value, j) => j === i ? x : value));
      if (found !== null) return found;
    }
    return null;
  }

  function label(id) {
    if (!AXES.length) return named(at(id).value);
    const other = named(written(id).find(text => text !== null) ?? "");
    if (OTHER_LABELS.includes(other)) return other;
    const values = nearby(id), wrong = values.some((x, i) => x !== null && !AXES[i][1].includes(x));
    return (wrong ? null : known(values)) ?? joined(values);
  }

  const typed = name => name === "state" ? label("state")
    : !at(name) ? 0 : at(name).value.trim() === "" ? NaN : Number(at(name).value);
  const digits = (x, n) => (+x.toPrecision(n)).toLocaleString("en", { maximumFractionDigits: 12 });

  function answer() {
    const out = at("answer");
    try {
      const place = ARGUMENTS.map(typed), found = decide(...place);
      out.className = "";
      out.textContent = typeof found === "string" ? found
        : Object.entries(found).map(([action, share]) => action + " " + +(100 * share).toFixed(1) + "%").join("\n");
      if (AXES.length) at("nearest").textContent = near(label("state"));
      if (ACTION_COSTS && open()) at("matters").textContent = matters(place.map(x => typeof x === "string" ? stateOf(x) : x));
    } catch (error) {
      wrong(error);
    }
  }

  const near = state => OTHER_LABELS.includes(state) || joined(nearby("state")) === joined(written("state")) ? ""
    : "This is for the nearest point, " + joined(nearby("state")) + ".";

  function wrong(error) {
    at("answer").className = "wrong";
    at("answer").textContent = error.message;
    if (AXES.length) at("nearest").textContent = "";
    if (ACTION_COSTS) at("matters").textContent = "";
  }

  function matters(place) {  // what the next best action costs, and what may be mixed
    const said = a => [...ACTIONS[a]].filter(x => !BIDI_MARKS.includes(x)).join("");
    const of = table => place.reduce((row, x) => row[x], table);
    const next = of(ACTION_COSTS.next), cost = of(ACTION_COSTS.cost), free = ACTION_COSTS.action_sets[of(ACTION_COSTS.set_ids)];
    if (next < 0) return next < -1 ? "Here no other action changes anything." : "In these models the rule does not lead here, or hardly ever.";
    const size = Math.abs(cost), share = digits(100 * size / ACTION_COSTS.stake, 2);
    const shared = size <= ACTION_COSTS.stake * (1 + 1e-9);  // a share above 100% says nothing
    const amount = ACTION_COSTS.amount_template.replace("0", digits(size, 3)) + (shared ? " (" + share + "% of what is at stake)" : "");
    const here = ARGUMENTS.includes("time") ? "Here it" : "Taken here every time, it";
    const text = cost === 0 ? said(next) + " is as good here."
      : cost > 0 ? "Next best: " + said(next) + ". " + here + " costs " + amount + "."
      : "Better here alone: " + said(next) + ". " + here + " gains " + amount + "; the rule gives that up.";
    return free.length < 2 ? text : text + "\nFree to choose: " + free.map(said).join(" or ")
      + (ACTION_COSTS.max_loss_text ? ". Choosing wherever the card says so loses at most " + ACTION_COSTS.max_loss_text + " in all." : ", which are as good.");
  }

  function begin() {  // an episode begins in the node of its first state
    if (ARGUMENTS.includes("node") && typed("time") === 0) {
      try { at("node").value = initialNode(typed("state")); } catch { /* answer() says what is wrong */ }
    }
    answer();
  }

  function goOn() {
    try {
      at("node").value = nextNode(typed("time"), typed("state"), typed("node"), label("next"));
      at("time").value = typed("time") + 1;
      const now = fields("state");
      fields("next").forEach((field, i) => { now[i].value = field.value; field.value = ""; });
      answer();
    } catch (error) {
      wrong(error);
    }
  }

  if (!AXES.length) {
    for (const label of STATES) at("states").append(new Option(label, label));
    at("state").value = STATES[INITIAL_STATE];
  }
  for (const field of fields("state").filter(Boolean)) {
    field.addEventListener("input", begin);
    field.addEventListener("focus", () => field.select());
  }
  for (const name of ARGUMENTS) if (name !== "state" && at(name)) at(name).addEventListener("input", answer);
  if (at("more")) at("more").addEventListener("toggle", answer);
  if (at("on")) at("on").addEventListener("click", goOn);
  at("ask").hidden = false;
  begin();
}
