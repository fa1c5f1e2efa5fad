// The page around decide(): reads what is typed and says what to do.
{
  const at = id => document.getElementById(id);
  // a field of one line drops the line breaks of a label
  const NAMES = new Map(STATES.map(label => [label.replace(/[\r\n]/g, ""), label]));
  const named = text => PLACE.has(text) ? text : NAMES.get(text) ?? text;
  const typed = name => name === "state" ? named(at("state").value)
    : at(name).value.trim() === "" ? NaN : Number(at(name).value);

  function answer() {
    const out = at("answer");
    try {
      const found = decide(...ARGUMENTS.map(typed));
      out.className = "";
      out.textContent = typeof found === "string" ? found
        : Object.entries(found).map(([action, share]) => action + " " + +(100 * share).toFixed(1) + "%").join("\n");
    } catch (error) {
      out.className = "wrong";
      out.textContent = error.message;
    }
  }

  function begin() {  // an episode begins in the node of its first state
    if (ARGUMENTS.includes("node") && typed("time") === 0) {
      try { at("node").value = start(typed("state")); } catch { /* answer() says what is wrong */ }
    }
    answer();
  }

  function goOn() {
    try {
      const next = named(at("next").value);
      at("node").value = move(typed("time"), typed("state"), typed("node"), next);
      at("state").value = next;
      at("time").value = typed("time") + 1;
      at("next").value = "";
      answer();
    } catch (error) {
      at("answer").className = "wrong";
      at("answer").textContent = error.message;
    }
  }

  for (const label of STATES) at("states").append(new Option(label, label));
  at("state").value = STATES[0];
  at("state").addEventListener("input", begin);
  at("state").addEventListener("focus", () => at("state").select());
  for (const name of ARGUMENTS) if (name !== "state") at(name).addEventListener("input", answer);
  if (at("on")) at("on").addEventListener("click", goOn);
  at("ask").hidden = false;
  begin();
}
