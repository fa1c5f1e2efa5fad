// The page around decide(): reads what is typed and says what to do.
{
  const at = id => document.getElementById(id);
  // a field of one line drops the line breaks of a label
  const NAMES = new Map(STATES.map(label => [label.replace(/[\r\n]/g, ""), label]));
  const named = text => PLACE.has(text) ? text : NAMES.get(text) ?? text;
  const fields = id => AXES.length ? AXES.map((_, i) => at(id + "-" + i)) : [at(id)];
  const written = id => fields(id).map(field => field.value.trim());
  const joined = values => AXES.map(([name], i) => name + "=" + values[i]).join(", ");

  function nearest(text, [name, values]) {  // the point of an axis nearest to a number
    const points = values.map(Number), x = Number(text);
    if (values.includes(text) || text === "" || ![x, ...points].every(Number.isFinite)) return text;
    const low = points.reduce((a, b) => Math.min(a, b)), high = points.reduce((a, b) => Math.max(a, b));
    if (x < low || x > high) throw new RangeError(name + " must be from " + low + " to " + high);
    return values[points.reduce((best, p, i) => Math.abs(p - x) < Math.abs(points[best] - x) ? i : best, 0)];
  }

  function label(id) {
    if (!AXES.length) return named(at(id).value);
    const values = written(id), other = named(values[0]);
    return OTHERS.includes(other) ? other : joined(AXES.map((axis, i) => nearest(values[i], axis)));
  }

  const typed = name => name === "state" ? label("state")
    : at(name).value.trim() === "" ? NaN : Number(at(name).value);
  const digits = (x, n) => (+x.toPrecision(n)).toLocaleString("en", { maximumFractionDigits: 12 });

  function answer() {
    const out = at("answer");
    try {
      const place = ARGUMENTS.map(typed), found = decide(...place);
      out.className = "";
      out.textContent = typeof found === "string" ? found
        : Object.entries(found).map(([action, share]) => action + " " + +(100 * share).toFixed(1) + "%").join("\n");
      if (AXES.length) at("nearest").textContent = near(label("state"));
      if (STAKES) at("matters").textContent = matters(place.map(x => typeof x === "string" ? stateOf(x) : x));
    } catch (error) {
      wrong(error);
    }
  }

  const near = state => OTHERS.includes(state) || state === joined(written("state")) ? ""
    : "This is for the nearest point, " + state + ".";

  function wrong(error) {
    at("answer").className = "wrong";
    at("answer").textContent = error.message;
    if (AXES.length) at("nearest").textContent = "";
    if (STAKES) at("matters").textContent = "";
  }

  function matters(place) {  // what the next best action costs, and what may be mixed
    const said = a => [...ACTIONS[a]].filter(x => !TURNS.includes(x)).join("");
    const of = table => place.reduce((row, x) => row[x], table);
    const next = of(STAKES.next), cost = of(STAKES.cost), free = STAKES.sets[of(STAKES.free)];
    if (next < 0) return next < -1 ? "There is nothing to decide here." : "In these models the rule does not lead here, or hardly ever.";
    const size = Math.abs(cost), share = digits(100 * size / STAKES.stake, 2);
    const amount = digits(size, 3) + STAKES.unit + (STAKES.stake ? " (" + share + "% of what is at stake)" : "");
    const here = ARGUMENTS.includes("time") ? "Here it" : "Taken here every time, it";
    const text = cost === 0 ? said(next) + " is as good here."
      : "Next best: " + said(next) + ". " + here + (cost > 0 ? " costs " : " gains ") + amount + ".";
    return free.length < 2 ? text : text + "\nFree to choose: " + free.map(said).join(" or ")
      + (STAKES.most ? ". Choosing wherever the card says so loses at most " + STAKES.most + " in all." : ", which are as good.");
  }

  function begin() {  // an episode begins in the node of its first state
    if (ARGUMENTS.includes("node") && typed("time") === 0) {
      try { at("node").value = start(typed("state")); } catch { /* answer() says what is wrong */ }
    }
    answer();
  }

  function goOn() {
    try {
      at("node").value = move(typed("time"), typed("state"), typed("node"), label("next"));
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
    at("state").value = STATES[BEGINS];
  }
  for (const field of fields("state")) {
    field.addEventListener("input", begin);
    field.addEventListener("focus", () => field.select());
  }
  for (const name of ARGUMENTS) if (name !== "state") at(name).addEventListener("input", answer);
  if (at("on")) at("on").addEventListener("click", goOn);
  at("ask").hidden = false;
  begin();
}
