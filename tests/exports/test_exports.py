"""Exported files answer as mmdp does, whatever states and actions are called."""

from __future__ import annotations

import html.parser
import itertools
import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mmdp
from mmdp import InputError
from mmdp.exports import TARGETS, excel, exported
from mmdp.exports import html as html_of
from mmdp.policy.tree import Feature, Leaf, Split
from mmdp.words import Times
from tests import chromium
from tests.cli.calls import run
from tests.exports.formulas import Workbook

STATES = [
    "plain", "PLAIN", "it's", 'a "b"', "two\nlines", "</script><script>document.title=1</script>",
    "=1+1", "back\\slash\\", "ünï ☃ 漢", "*", "?", "'; DROP TABLE policy; --", "${1}`",
    "{{ 7 * 7 }}", "*/ int x; /*", "line\u2028break", "??/", "#N/A", "%s {0}", "<!--", "7",
    " blank ", "\u202eexe.txt", "\u2066\u200f", "\ufeff", "+1", "@SUM(1)", "-->", "]]>", "\t",
]  # fmt: skip
ACTIONS = ["wait", "=cmd|' /C calc'!A0", "</script>", "'\"\\\n", "%d {x} ☃", "__proto__"]
T, S, A, N = 4, len(STATES), len(ACTIONS), 3
AGES = {"age */ <b>": ["40", "</script>", "'; --", '"42"']}  # which only people read
LABELS: dict[str, Any] = {"state_labels": STATES, "action_labels": ACTIONS, "times": AGES}


@cache
def policies() -> dict[str, Any]:
    rng = np.random.default_rng(3)
    shares = rng.dirichlet(np.ones(A), size=(T, S)) * (rng.random((T, S, A)) < 0.5)
    shares[..., 0] += 1 - shares.sum(axis=2)
    actions = rng.integers(A, size=(T, S))
    ways = rng.integers(N, size=(8, S))
    nodes = rng.integers(A, size=(T, S, N)), ways[rng.integers(8, size=(T, S, N))]
    return {
        "markov": mmdp.MarkovPolicy(actions, **LABELS),
        "randomised": mmdp.MarkovPolicy(probabilities=shares, **LABELS),
        "shares of 0 and 1": mmdp.MarkovPolicy(probabilities=np.eye(A)[actions], **LABELS),
        "stationary": mmdp.StationaryPolicy(actions[0], **LABELS),
        "stationary randomised": mmdp.StationaryPolicy(probabilities=shares[0], **LABELS),
        "memory": mmdp.MemoryPolicy(*nodes, rng.integers(N, size=S), n_actions=A, **LABELS),
        "tree": tree(timed=True),
        "tree, stationary": tree(timed=False),
        "tree, some actions are not allowed": tree(timed=True, allowed=rng.random((S, A)) < 0.7),
        "unlabelled": mmdp.MarkovPolicy(actions),
    }


def tree(timed: bool, allowed: Any = None) -> mmdp.TreePolicy:
    """Questions about a number, a category with hostile levels, and the time."""
    rng = np.random.default_rng(4)
    number = Feature.of("class", rng.integers(-3, 9, size=S) / 7)
    word = Feature.of("blood pressure */ \n'\"", [STATES[i] for i in rng.integers(6, size=S)])
    features = [number, word, *([Feature.of_times(Times(), T)] if timed else [])]
    last = Split(2, 1, Leaf(4), Leaf(5)) if timed else Leaf(5)
    root = Split(
        0, 4, Split(1, 1, Leaf(0), Split(1, 3, Leaf(1), Leaf(2))), Split(0, 7, Leaf(3), last)
    )
    rows = np.array([[_leaf(root, features, t, s) for s in range(S)] for t in range(T)])
    if allowed is not None:
        allowed[:, 0] |= ~allowed.any(axis=1)
        rows = np.where(allowed[np.arange(S), rows], rows, allowed.argmax(axis=1))
    table: Any = mmdp.MarkovPolicy(rows, **LABELS)
    if not timed:
        table = mmdp.StationaryPolicy(rows[0], **LABELS)
    return mmdp.TreePolicy(table, root, features)


def _leaf(node: Any, features: Any, t: int, s: int) -> int:
    while isinstance(node, Split):
        asked = features[node.feature]
        value, level = asked.values[t if asked.timed else s], asked.levels[node.cut]
        node = node.yes if (value <= level if asked.ordered else value == level) else node.no
    return node.action


Asked = dict[str, Any]


def questions(policy: Any) -> list[Asked]:
    """Every (time, state, node) as the file takes it; with nodes, a state that is seen next."""
    nodes = range(N) if policy.name == "memory" else [None]
    times = range(T) if policy.horizon == T else [None]
    rng, names = np.random.default_rng(0), policy.state_names
    found = []
    for t, s, n in itertools.product(times, range(S), nodes):
        asked = {"time": t, "state": names[s], "node": n}
        if n is not None:
            asked["next"] = names[rng.integers(S)]
        found.append({name: x for name, x in asked.items() if x is not None})
    return found


def expected(policy: Any, asked: Asked) -> Any:
    """What mmdp itself does: an action, its shares, or the action, next node and first node."""
    s, actions = policy.state_names.index(asked["state"]), policy.action_names
    time, node = asked.get("time", 0), asked.get("node")
    if node is not None:
        to = policy.state_names.index(asked["next"])
        act = policy.act(node, time, s)
        moved = int(policy.update(node, time, s, act, to))
        return [actions[act], moved, int(policy.first[s])]
    if policy.deterministic:
        return actions[policy.act(None, time, s)]
    row = policy.probabilities[time, s] if policy.horizon == T else policy.probabilities[s]
    return {actions[a]: row[a] for a in np.flatnonzero(row)}


# ---------------------------------------------------------------------- asking each target
def by_python(policy: Any, file: Path, asked: list[Asked]) -> list[Any]:
    """In a process that cannot see mmdp."""
    script = """
import json, runpy, sys
rule = runpy.run_path(sys.argv[1])
def ask(q):
    next_state = q.pop("next", None)
    done = rule["decide"](**q)
    if next_state is None:
        return done
    return [done, rule["move"](**q, next_state=next_state), rule["start"](q["state"])]
def tried(q):
    try:
        return ask(q)
    except ValueError:
        return None
print(json.dumps([tried(q) for q in json.load(sys.stdin)]))
"""
    return answered([sys.executable, "-I", "-c", script, str(file)], asked)


NODE = """
const ask = q => {
  const place = ["time", "state", "node"].filter(x => x in q).map(x => q[x]);
  const done = RULE.decide(...place);
  return "next" in q ? [done, RULE.move(...place, q.next), RULE.start(q.state)] : done;
};
const tried = q => { try { return ask(q); } catch (e) {
  if (e instanceof RangeError) return null; throw e; } };
console.log(JSON.stringify(JSON.parse(require("fs").readFileSync(0, "utf8")).map(tried)));
"""


def by_javascript(policy: Any, file: Path, asked: list[Asked]) -> list[Any]:
    if shutil.which("node") is None:
        pytest.skip("no node here")
    script = f"const RULE = require({json.dumps(str(file))});{NODE}"
    return answered(["node", "-e", script], asked)


def answered(command: list[str], asked: list[Asked]) -> list[Any]:
    done = subprocess.run(
        command, input=json.dumps(asked), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: list[Any] = json.loads(done.stdout)
    return found


def by_sql(policy: Any, file: Path, asked: list[Asked]) -> list[Any]:
    base = sqlite3.connect(":memory:")
    base.executescript(file.read_text(encoding="utf-8"))

    def ask(q: Asked) -> Any:
        place = {name: x for name, x in q.items() if name != "next"}
        where = " AND ".join(f"{x} = :{x}" for x in place)
        rows = base.execute(f"SELECT * FROM policy WHERE {where}", place)
        names = [x[0] for x in rows.description]
        found = [dict(zip(names, row, strict=True)) for row in rows]
        if not found or "share" in names:
            return {x["action"]: x["share"] for x in found} or None
        if "next" not in q:
            return found[0]["action"]
        moved = base.execute(
            f"SELECT next_node FROM policy_moves JOIN policy USING (way) WHERE {where} "
            "AND next_state = :next", q,
        ).fetchone()  # fmt: skip
        begun = base.execute("SELECT node FROM policy_start WHERE state = :state", q).fetchone()
        return [found[0]["action"], *moved, *begun]

    return [ask(q) for q in asked]


def by_excel(policy: Any, file: Path, asked: list[Asked]) -> list[Any]:
    """By the formulas of the front sheet."""
    pytest.importorskip("openpyxl")
    book = Workbook(file)

    def ask(q: Asked) -> Any:
        book.ask({"next state" if name == "next" else name: x for name, x in q.items()})
        if not getattr(policy, "deterministic", True):
            shares = {a: book.answer(a) for a in policy.action_names}
            wrong = any(isinstance(x, str) for x in shares.values())
            return None if wrong else {a: x for a, x in shares.items() if x}
        done = book.answer("action")
        if done == excel.CHECK.strip('"'):
            return None
        more = ("next node", "an episode begins in node") if "next" in q else ()
        return [done, *map(book.answer, more)] if more else done

    return [ask(q) for q in asked]


class Scripts(html.parser.HTMLParser):
    """The scripts of a page as a browser finds them, and what else there is."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.scripts: list[str] = []
        self.tags: set[str] = set()
        self.links: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        self.tags.add(tag)
        self.links += [x for name, x in attributes if name in ("src", "href")]
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.scripts and self.lasttag == "script":
            self.scripts[-1] += data


def by_html(policy: Any, file: Path, asked: list[Asked]) -> list[Any]:
    """By the functions in the page's only script."""
    page = Scripts(file.read_text(encoding="utf-8"))
    assert len(page.scripts) == 1
    assert page.links == ["data:,"]
    if shutil.which("node") is None:
        pytest.skip("no node here")
    functions = page.scripts[0].split("// The page around decide()")[0]
    names = "{ decide, start, move }" if policy.name == "memory" else "{ decide }"
    return answered(["node", "-e", f"{functions}\nconst RULE = {names};{NODE}"], asked)


ASKED: dict[str, Callable[[Any, Path, list[Asked]], list[Any]]] = {
    "python": by_python, "javascript": by_javascript, "sql": by_sql, "excel": by_excel,
    "html": by_html,
}  # fmt: skip
BAD = [{"state": "nobody"}, {"time": -1}, {"time": T}, {"time": 0.5}, {"node": N}]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", policies())
def test_every_target_answers_as_mmdp_does(kind: str, target: str, tmp_path: Path) -> None:
    policy, file = policies()[kind], tmp_path / f"rule{TARGETS[target]}"
    mmdp.export(policy, file)
    asked = questions(policy)
    bad = [{**asked[0], **x} for x in BAD if {*x} <= {*asked[0]}]
    found = ASKED[target](policy, file, [*asked, *bad])
    for q, answer in zip(asked, found, strict=False):
        wanted = expected(policy, q)
        if isinstance(wanted, dict):  # a workbook has 16 digits of a share
            wanted = pytest.approx(wanted, rel=1e-14 if target == "excel" else 0, abs=0)
        assert answer == wanted, q
    assert found[len(asked) :] == [None] * len(bad)


# ---------------------------------------------------------------------- by what a tree asks
@pytest.mark.parametrize("target", ["python", "javascript"])
def test_a_tree_is_asked_by_its_features_too(target: str, tmp_path: Path) -> None:
    policy, file = policies()["tree"], tmp_path / f"rule{TARGETS[target]}"
    mmdp.export(policy, file)
    number, word, _ = policy.features
    asked = [[t, number.values[s], word.values[s]] for t in range(T) for s in range(S)]
    bad = [[T, 0, word.values[0]], [0, "high", word.values[0]], [0, 0, "no such level"]]
    ask = "[rule(q) for q in json.load(sys.stdin)]"
    if target == "python":
        script = f"""
import json, runpy, sys
found = runpy.run_path({str(file)!r})["rule"]
def rule(q):
    try:
        return found(*q)
    except ValueError:
        return None
print(json.dumps({ask}))
"""
        found = answered([sys.executable, "-I", "-c", script], [*asked, *bad])
    else:
        if shutil.which("node") is None:
            pytest.skip("no node here")
        head = f"const RULE = {{decide: (...q) => require({json.dumps(str(file))}).rule(...q)}};"
        named = [dict(zip(("time", "state", "node"), q, strict=True)) for q in [*asked, *bad]]
        found = answered(["node", "-e", head + NODE], named)
    assert found == [*(ACTIONS[a] for a in policy.actions.reshape(-1)), None, None, None]


def test_a_table_that_its_tree_does_not_make_is_exported_as_it_is(tmp_path: Path) -> None:
    rows = mmdp.MarkovPolicy([[0, 1], [1, 0]], state_labels=["a", "b"], action_labels=["x", "y"])
    policy = mmdp.TreePolicy(rows, Leaf(0), [])
    for target in ("python", "javascript"):
        file = tmp_path / f"rule{TARGETS[target]}"
        mmdp.export(policy, file)
        asked = [{"time": t, "state": s} for t in (0, 1) for s in "ab"]
        assert ASKED[target](policy, file, asked) == ["x", "y", "y", "x"]


# ---------------------------------------------------------------------- the page at work
PAGE = """
const made = {};
const element = () => ({ typed: "", get value() { return this.typed; },
  set value(x) { this.typed = String(x).replace(/[\\r\\n]/g, ""); }, listeners: {}, textContent: "",
  select() {}, append() {}, addEventListener(name, what) { this.listeners[name] = what; } });
const document = { getElementById: id => has.includes(id) ? (made[id] ??= element()) : null };
class Option {}
"""


def page_in_node(file: Path, has: list[str], steps: str) -> Any:
    """What the page's script does with the elements of these ids, after these steps."""
    if shutil.which("node") is None:
        pytest.skip("no node here")
    (script,) = Scripts(file.read_text(encoding="utf-8")).scripts
    set_up = f"const has = {json.dumps(has)};{PAGE}"
    typing = """
const type = (id, value) => { made[id].value = value; made[id].listeners.input({}); };
const said = [];
const say = () => said.push([made.answer.className ?? "", made.answer.textContent]);
"""
    return answered(
        ["node", "-e", f"{set_up}{script}{typing}{steps};console.log(JSON.stringify(said))"], []
    )


def test_the_page_says_what_to_do(tmp_path: Path) -> None:
    policy, file = policies()["markov"], tmp_path / "card.html"
    mmdp.export(policy, file)
    steps = f"""
say(); type("time", "2"); type("state", {json.dumps(STATES[5])}); say();
type("time", ""); say(); type("time", "1"); type("state", "nobody"); say()
"""
    first, then, no_time, nobody = page_in_node(
        file, ["ask", "answer", "time", "state", "states"], steps
    )
    # the time is 0 from the page itself, which the elements here do not know
    assert first == ["wrong", "time must be a whole number from 0 to 3"]
    assert then == ["", ACTIONS[policy.actions[2, 5]]]
    assert no_time == first
    assert nobody == ["wrong", 'no state is called "nobody"']


def test_the_page_follows_a_flow_chart(tmp_path: Path) -> None:
    policy, file = policies()["memory"], tmp_path / "card.html"
    mmdp.export(policy, file)
    path = [4, 8, 4, 20]
    steps = f'type("time", "0"); type("state", {json.dumps(STATES[path[0]])}); say();'
    for s in path[1:]:
        steps += f"document.getElementById('next').value = {json.dumps(STATES[s])};"
        steps += "made.on.listeners.click({}); say();"
    has = ["ask", "answer", "time", "state", "states", "node", "next", "on"]
    node, wanted = int(policy.first[path[0]]), []
    for t, s in enumerate(path):
        wanted.append(["", ACTIONS[policy.act(node, t, s)]])
        if t + 1 < len(path):
            node = policy.update(node, t, s, 0, path[t + 1])
    assert page_in_node(file, has, steps) == wanted


@pytest.mark.parametrize("kind", ["markov", "randomised", "memory", "tree"])
def test_labels_are_inert_in_the_page(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "card.html"
    mmdp.export(policies()[kind], file)
    text = file.read_text(encoding="utf-8")
    page = Scripts(text)
    assert "default-src 'none'" in text
    assert not page.tags & {"img", "iframe", "object", "embed", "form"}
    assert "<script>document" not in text


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Any:
    program = chromium.find()
    if program is None:
        pytest.skip("no chromium here; make browser installs it")
    found = chromium.Chromium(program, tmp_path_factory.mktemp("chromium"))
    yield found
    found.close()


TYPED = """
((asked) => {
  const at = id => document.getElementById(id);
  const type = (id, value) => { at(id).value = value; at(id).dispatchEvent(new Event("input")); };
  return asked.map(q => {
    for (const name of ["state", "time", "node"]) if (name in q) type(name, q[name]);
    const found = at("answer").textContent;
    if (!("next" in q)) return found;
    type("time", 0); type("state", q.state);
    const begun = +at("node").value;
    type("time", q.time); type("node", q.node);
    at("next").value = q.next; at("on").click();
    return [found, +at("node").value, begun];
  });
})"""


@pytest.mark.parametrize("kind", policies())
def test_in_a_browser(kind: str, browser: chromium.Chromium, tmp_path: Path) -> None:
    """The page by typing, and the script by its functions."""
    policy, file = policies()[kind], tmp_path / "card.html"
    mmdp.export(policy, file)
    asked = questions(policy)
    wanted = [expected(policy, q) for q in asked]
    browser.open(file, "!document.getElementById('ask').hidden")
    if policy.times.labels and policy.horizon == T:
        chosen = "[...document.getElementById('time').options].map(x => x.text)"
        assert browser.run(chosen) == [x.strip() for x in next(iter(AGES.values()))]
    shares = lambda x: "\n".join(f"{a} {float(f'{100 * p:.1f}'):g}%" for a, p in x.items())
    # a field of one line keeps a label but for its line breaks, which the page finds again
    said = [shares(x) if isinstance(x, dict) else x for x in wanted]
    assert browser.run(f"{TYPED}({json.dumps(asked)})") == said
    assert browser.run("document.title") == "What to do"
    assert browser.logged == []
    assert [x for x in browser.requests if not x.startswith(("file:", "data:"))] == []
    mmdp.export(policy, tmp_path / "rule.js")
    names = "{ decide, start, move }" if policy.name == "memory" else "{ decide }"
    text = (
        (tmp_path / "rule.js").read_text() + f"const RULE = {names};" + NODE.split("const tried")[0]
    )
    assert browser.run(f"(() => {{ {text}; return {json.dumps(asked)}.map(ask); }})()") == wanted


# ---------------------------------------------------------------------- how much it matters
def said_in_node(file: Path, has: list[str], steps: str) -> list[str]:
    found = page_in_node(
        file, ["ask", "answer", "matters", *has],
        "const matters = () => said.push(made.matters.textContent);" + steps,
    )  # fmt: skip
    return [str(x) for x in found]


def shop() -> mmdp.MMDP:
    """Two years; the state has two axes. From stock=0 in the cold, both ways lead to 2."""
    P = np.zeros((2, 4, 2, 4))
    P[:, :, :, 2], P[:, 1, 1] = 1.0, np.eye(4)[3]
    r = np.array([[[4, 3], [0, 0], [2.0, 1.0], [2, 2]], [[4, 1], [0, 0], [2.0, 2.0], [2, 2]]])
    names = [f"stock={x}, mode={y}" for x in (0, 1) for y in ("on", "off, cold")]
    return mmdp.MMDP(P, r, initial=[0.75, 0.25, 0, 0], states=names, actions=["a", "\u202e</b>"])


def test_the_card_says_what_the_next_best_action_costs(tmp_path: Path) -> None:
    model, file = shop(), tmp_path / "card.html"
    mmdp.export(mmdp.solve(model, 2), file, model=model)
    steps = """
matters(); type("time", "1"); type("state-0", "1"); type("state-1", "on"); matters();
type("state-1", "off, cold"); matters(); type("time", "0"); matters();
type("state-0", "0"); matters(); type("state-1", "?"); matters();
type("state-0", "1"); type("state-1", "on"); matters()
"""
    has = ["time", "state-0", "state-1", "nearest"]
    _, year, cold, first, rest, nobody, never = said_in_node(file, has, steps)
    # a returns 4 and then 2: 5 of 5 with 3/4 in stock=0, mode=on
    # at stake is what always </b> has less: 3/4 of 2 and of 1/2
    assert year == "Next best: </b>. Here it costs 0.5 (27% of what is at stake)."
    assert cold == first == "There is nothing to decide here."
    assert never == "In these models the rule does not lead here, or hardly ever."
    assert rest == (
        "</b> is as good here.\nFree to choose: a or </b>. Choosing wherever the card says so "
        "loses at most 0.0187 (1% of what is at stake, 1.88 compared with always </b>) in all."
    )
    lines = file.read_text().split("The whole rule")[1].split("</details>")[0]
    assert "stock=0, mode=on" in lines
    assert "stock=1, mode=off, cold" not in lines  # no action changes anything
    assert nobody == ""
    priced = model.replace(unit="kEUR")
    mmdp.export(mmdp.solve(priced, 2), file, model=priced)
    year = said_in_node(file, has, steps)[1]
    assert year == "Next best: </b>. Here it costs 0.5 kEUR (27% of what is at stake)."
    assert "Its value on these models (mean) is 5 kEUR." in file.read_text()
    dated = priced.replace(times={"year": [2030, 2031]})
    mmdp.export(mmdp.solve(dated, 2), file, model=dated)
    assert '<th class="text">Year</th>' in file.read_text()


def test_a_card_has_a_field_for_each_axis_and_reads_the_nearest_point(tmp_path: Path) -> None:
    labels = [f"place={x}, gear={y}" for x in (-1.2, -0.9, -0.6) for y in ("low", "top")]
    policy = mmdp.StationaryPolicy([0, 1, 2, 3, 4, 5, 6], state_labels=[*labels, "ended"])
    mmdp.export(policy, file := tmp_path / "card.html")
    steps = "const near = () => said.push(made.nearest.textContent);"
    asked = [(-1.0, "top"), (-1.05, "low"), (-0.6, "top"), (-0.5, "top"), ("ended", "top")]
    for place, gear in asked:
        steps += f'type("state-0", "{place}"); type("state-1", "{gear}"); say(); near();'
    has = ["ask", "answer", "nearest", "state-0", "state-1"]
    found = page_in_node(file, has, steps)
    wrong = ["wrong", "place must be from -1.2 to -0.6"]
    assert found[::2] == [["", "3"], ["", "0"], ["", "5"], wrong, ["", "6"]]
    assert [policy.action(place=x, gear=y) for x, y in asked[:3]] == ["3", "0", "5"]
    point = "This is for the nearest point, place={}."
    assert found[1::2] == [
        point.format("-0.9, gear=top"),
        point.format("-1.2, gear=low"),
        *[""] * 3,
    ]
    assert file.read_text().count('<option value="ended">') == 1


def test_no_label_turns_what_follows_it(tmp_path: Path) -> None:
    """Marks of direction are in the data alone, as escapes."""
    model, file = shop(), tmp_path / "card.html"
    labels = model.replace(states=["\u202ea", "\u2067b", "c\u2069", "d"])
    for kind in (None, mmdp.Memory(2), mmdp.Tree(2, {"x\u202e": ["\u202e", "b", "c", "d"]})):
        mmdp.export(mmdp.solve(labels, 2, policy=kind), file, model=labels)
        text = file.read_text(encoding="utf-8")
        assert "\\u202e" in text
        assert not {*text} & {*html_of.TURNS}


def test_a_card_of_a_flow_chart_says_it_too(tmp_path: Path) -> None:
    (model, _), file = mmdp.domains.two_models(), tmp_path / "card.html"
    policy = mmdp.solve(model, 3, policy=mmdp.Memory(2)).policy
    mmdp.export(policy, file, model=model)
    assert '<figure data-plot="chart"><svg' in file.read_text()
    free, t = mmdp.freedom(policy, model), 2
    (s, n), *_ = np.argwhere(free.visited[t] > 0)
    has = ["time", "state", "states", "node", "next", "on"]
    steps = (f'type("time", "{t}"); type("state", {json.dumps(policy.state_names[s])});'
             f'type("node", "{n}"); matters()')  # fmt: skip
    (said,) = said_in_node(file, has, steps)
    cost = np.delete(free.loss[t, s, n], policy.actions[t, s, n]).min() / free.visited[t, s, n]
    assert f"costs {cost:.3g} (" in said or (cost == 0 and "is as good here" in said)


# ---------------------------------------------------------------------- what it says
@pytest.mark.parametrize("target", [x for x in TARGETS if x != "excel"])
def test_a_file_says_where_it_came_from(target: str, tmp_path: Path) -> None:
    train, _ = mmdp.domains.two_models()
    solution = mmdp.solve(train, 3, certify=0.5)
    file = tmp_path / "rule.txt"
    mmdp.export(solution, file, to=target, model=train)
    text = " ".join(file.read_text(encoding="utf-8").split())
    for told in ("4 states", "times count from 0 to 2", "cadp for 2 models", train.fingerprint(),
                 f"(mean) is {solution.value:g}", "Proven: no", mmdp.__version__):  # fmt: skip
        assert told in text, told


def test_labels_in_a_workbook_are_text(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    for kind in ("markov", "tree", "memory"):
        mmdp.export(policies()[kind], tmp_path / "rule.xlsx")
        for sheet in openpyxl.load_workbook(tmp_path / "rule.xlsx", read_only=True):
            cells = [cell for row in sheet.iter_rows() for cell in row]
            formulas = [cell for cell in cells if cell.data_type == "f"]
            assert all(sheet.title == "Decide" and cell.column > 1 for cell in formulas)
            assert not any(label in cell.value for cell in formulas for label in STATES[2:9])


def test_what_is_too_long_is_refused_but_for_a_tree(tmp_path: Path) -> None:
    pytest.importorskip("openpyxl")
    long = np.zeros((1_049, 1_000), dtype=int)
    for name, rows in (("rule.xlsx", "1,048,575"), ("card.html", "1,000,000")):
        with pytest.raises(InputError, match=rf"1,049,000 rows are more.*{rows}.*mmdp\.Tree"):
            mmdp.export(mmdp.MarkovPolicy(long), tmp_path / name)
        short = mmdp.TreePolicy(mmdp.MarkovPolicy(long), Leaf(0), [])
        mmdp.export(short, tmp_path / name)


def test_refusals(tmp_path: Path) -> None:
    policy = policies()["markov"]
    with pytest.raises(InputError, match=r"unknown suffix '.txt'; write .py, .js"):
        mmdp.export(policy, tmp_path / "rule.txt")
    with pytest.raises(InputError, match=r"no target is called 'pyton' \(did you mean 'python'"):
        mmdp.export(policy, tmp_path / "rule.py", to="pyton")
    with pytest.raises(InputError, match="two states are called 'a'"):
        mmdp.export(mmdp.MarkovPolicy([[0, 0]], state_labels=["a", "a"]), tmp_path / "rule.py")
    with pytest.raises(InputError, match="a character that files cannot hold"):
        mmdp.export(mmdp.MarkovPolicy([[0]], state_labels=["a\0"]), tmp_path / "rule.py")
    with pytest.raises(InputError, match="a character that files cannot hold"):
        mmdp.export(mmdp.MarkovPolicy([[0]], state_labels=["\ud800"]), tmp_path / "rule.html")
    for label in ("a\x01", "a\r\nb"):  # XML turns the second into "a\nb"
        with pytest.raises(InputError, match="Excel cannot hold the label"):
            mmdp.export(mmdp.MarkovPolicy([[0]], state_labels=[label]), tmp_path / "rule.xlsx")
    train, _ = mmdp.domains.two_models()
    with pytest.raises(InputError, match="an exported file holds a table of actions"):
        mmdp.export(mmdp.solve(train, 3, "qmdp"), tmp_path / "rule.py")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("ending", ["json", "parquet"])
def test_a_policy_from_a_file_is_shown_by_its_objective(ending: str, tmp_path: Path) -> None:
    if ending == "parquet":
        pytest.importorskip("pyarrow")
    train = mmdp.domains.riverswim(n_train=6, n_test=1).train
    solution = mmdp.solve(train, 4, objective="cvar:0.3")
    saved, again = tmp_path / f"policy.{ending}", tmp_path / f"again.{ending}"
    mmdp.save_policy(solution, saved)
    mmdp.save_policy(mmdp.load_policy(saved, train), again)
    value = float(np.sort(solution.returns)[:2] @ [1 / 6, 0.3 - 1 / 6] / 0.3)  # the worst 30%
    for given in (solution, mmdp.load_policy(saved, train), mmdp.load_policy(again)):
        page = exported(given, "html", train)
        assert f"(cvar:0.3) is {value:.8g}" in page
        assert "Solved for cvar:0.3." in exported(mmdp.load_policy(saved), "python")
    mmdp.save(train, tmp_path / "models.npz")
    done = run("export", saved, tmp_path / "models.npz", "--to", "html")
    assert f"(cvar:0.3) is {value:.8g}" in done.out


# ---------------------------------------------------------------------- what a card asks
def test_a_card_asks_for_what_the_rule_uses_alone(tmp_path: Path) -> None:
    """Neither the time nor the sex, and not every combination is a state."""
    places = [*itertools.product("fm", (40, 60), ("well", "ill"))]
    places.remove(("f", 60, "ill"))
    labels = [f"sex={x}, age={y}, health={z}" for x, y, z in places]
    row = [int(y == 60) + 2 * (z == "ill") for _, y, z in places]
    policy = mmdp.MarkovPolicy([row] * 3, state_labels=labels, action_labels=[*"abcd"])
    mmdp.export(policy, file := tmp_path / "card.html")
    page = file.read_text(encoding="utf-8")
    shown = ["ask", "answer", "nearest", "state-1", "state-2"]
    assert [x for x in (*shown, "state-0", "time", "more") if f' id="{x}"' in page] == shown
    steps = "".join(f'type("state-1", "{y}"); type("state-2", "{z}"); say();' for _, y, z in places)
    steps += 'type("state-2", "dead"); say()'
    *said, dead = page_in_node(file, shown, steps)
    assert said == [["", "abcd"[a]] for a in row]
    assert dead[0] == "wrong"
    # what other actions cost depends on the rest too, which is asked apart
    p = np.broadcast_to(np.eye(7), (4, 7, 7)).swapaxes(0, 1)[None]
    model = mmdp.MMDP(p, -np.ones((7, 4)), states=labels, actions=[*"abcd"], name="clinic")
    mmdp.export(policy, file, model=model)
    page = file.read_text(encoding="utf-8")
    front, more = page.split('<details id="more">')
    assert [f' id="{x}"' in front for x in (*shown, "state-0", "time")] == [True] * 5 + [False] * 2
    assert [f' id="{x}"' in more for x in ("state-0", "time", "matters")] == [True] * 3
    assert "<h1>clinic: what to do</h1>" in page


def test_a_card_tells_a_better_action_from_a_next_best_one(tmp_path: Path) -> None:
    """A rule may give something up to be simple: then no action that gains is called next best."""
    model = mmdp.MMDP(
        [[[[0.5, 0.5]] * 3] * 2], [[1.0, 0.0, 0.5], [0.0, 4.0, 1.0]],
        states=["x=0", "x=1"], actions=[*"abc"],
    )  # fmt: skip
    policy = mmdp.TreePolicy(mmdp.MarkovPolicy.for_model(model, [[1, 1]]), Leaf(1), [])
    mmdp.export(policy, file := tmp_path / "card.html", model=model)
    steps = 'type("time", "0"); type("state-0", "0"); matters(); type("state-0", "1"); matters();'
    worse, best = said_in_node(file, ["time", "state-0", "nearest"], steps)
    assert worse.startswith("Better here alone: a. Here it gains 1 (80% of what is at stake)")
    assert best.startswith("Next best: c. Here it costs 3 (240% of what is at stake)")
