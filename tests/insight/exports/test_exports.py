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
from mmdp.core.policies.tree import Feature, Leaf, Split
from mmdp.core.text import TimeLabels
from mmdp.insight.exports import TARGETS, excel, render_policy
from mmdp.insight.exports import html as html_of
from mmdp.insight.exports.spec import PolicySpec
from tests import chromium
from tests.cli.calls import run
from tests.insight.exports.formulas import Workbook
from tests.processes import TIMEOUT

STATES = [
    "plain",
    "PLAIN",
    "it's",
    'a "b"',
    "two\nlines",
    "</script><script>document.title=1</script>",
    "=1+1",
    "back\\slash\\",
    "ünï ☃ 漢",
    "*",
    "?",
    "'; DROP TABLE policy; --",
    "${1}`",
    "{{ 7 * 7 }}",
    "*/ int x; /*",
    "line\u2028break",
    "??/",
    "#N/A",
    "%s {0}",
    "<!--",
    "7",
    " blank ",
    "\u202eexe.txt",
    "\u2066\u200f",
    "\ufeff",
    "+1",
    "@SUM(1)",
    "-->",
    "]]>",
    "\t",
]
ACTIONS = ["wait", "=cmd|' /C calc'!A0", "</script>", "'\"\\\n", "%d {x} ☃", "__proto__"]
T, S, A, N = 4, len(STATES), len(ACTIONS), 3
AGES = {"age */ <b>": ["40", "</script>", "'; --", '"42"']}  # which only people read
LABELS: dict[str, Any] = {"state_labels": STATES, "action_labels": ACTIONS, "time_labels": AGES}


MASKED = "tree, some actions are not allowed"


def masked() -> Any:
    """(S, A) the actions that states allow, at least one each."""
    allowed = np.random.default_rng(5).random((S, A)) < 0.7
    allowed[:, 0] |= ~allowed.any(axis=1)
    return allowed


@cache
def make_policies() -> dict[str, Any]:
    rng = np.random.default_rng(3)
    probs = rng.dirichlet(np.ones(A), size=(T, S)) * (rng.random((T, S, A)) < 0.5)
    probs[..., 0] += 1 - probs.sum(axis=2)
    actions = rng.integers(A, size=(T, S))
    node_rows = rng.integers(N, size=(8, S))
    nodes = rng.integers(A, size=(T, S, N)), node_rows[rng.integers(8, size=(T, S, N))]
    return {
        "markov": mmdp.policies.MarkovPolicy(actions, **LABELS),
        "randomized": mmdp.policies.MarkovPolicy(probabilities=probs, **LABELS),
        "shares of 0 and 1": mmdp.policies.MarkovPolicy(probabilities=np.eye(A)[actions], **LABELS),
        "stationary": mmdp.policies.StationaryPolicy(actions[0], **LABELS),
        "stationary randomized": mmdp.policies.StationaryPolicy(probabilities=probs[0], **LABELS),
        "memory": mmdp.policies.MemoryPolicy(
            *nodes, rng.integers(N, size=S), n_actions=A, **LABELS
        ),
        "tree": make_tree(use_time=True),
        "tree, stationary": make_tree(use_time=False),
        MASKED: make_tree(use_time=True, allowed=masked()),
        "unlabelled": mmdp.policies.MarkovPolicy(actions),
    }


def make_tree(use_time: bool, allowed: Any = None) -> mmdp.policies.TreePolicy:
    """Questions about a number, a category with hostile levels, and the time."""
    rng = np.random.default_rng(4)
    number = Feature.from_values("class", rng.integers(-3, 9, size=S) / 7)
    word = Feature.from_values(
        "blood pressure */ \n'\"", [STATES[i] for i in rng.integers(6, size=S)]
    )
    features = [number, word, *([Feature.from_times(TimeLabels(), T)] if use_time else [])]
    last = Split(2, 1, Leaf(4), Leaf(5)) if use_time else Leaf(5)
    root = Split(
        0, 4, Split(1, 1, Leaf(0), Split(1, 3, Leaf(1), Leaf(2))), Split(0, 7, Leaf(3), last)
    )
    rows = np.array([[_find_leaf_action(root, features, t, s) for s in range(S)] for t in range(T)])
    if allowed is not None:
        rows = np.where(allowed[np.arange(S), rows], rows, allowed.argmax(axis=1))
    table: Any = mmdp.policies.MarkovPolicy(rows, **LABELS)
    if not use_time:
        table = mmdp.policies.StationaryPolicy(rows[0], **LABELS)
    return mmdp.policies.TreePolicy(table, root, features)


def _find_leaf_action(node: Any, features: Any, t: int, s: int) -> int:
    while isinstance(node, Split):
        feature = features[node.feature]
        value, level = (
            feature.values[t if feature.is_time else s],
            feature.levels[node.threshold_id],
        )
        node = (
            node.if_true
            if (value <= level if feature.is_ordered else value == level)
            else node.if_false
        )
    return node.action


Query = dict[str, Any]


def list_queries(policy: Any) -> list[Query]:
    """Every (time, state, node) as the file takes it; with nodes, a state that is seen next."""
    nodes = range(N) if policy.name == "memory" else [None]
    times = range(T) if policy.horizon == T else [None]
    rng, names = np.random.default_rng(0), policy.state_names
    queries = []
    for t, s, n in itertools.product(times, range(S), nodes):
        query = {"time": t, "state": names[s], "node": n}
        if n is not None:
            query["next"] = names[rng.integers(S)]
        queries.append({name: x for name, x in query.items() if x is not None})
    return queries


def compute_answer(policy: Any, query: Query) -> Any:
    """What mmdp itself does: an action, its shares, or the action, next node and first node."""
    s, actions = policy.state_names.index(query["state"]), policy.action_names
    time, node = query.get("time", 0), query.get("node")
    if node is not None:
        next_state = policy.state_names.index(query["next"])
        action = policy.act(node, time, s)
        next_node = int(policy.update(node, time, s, action, next_state))
        return [actions[action], next_node, int(policy.initial_nodes[s])]
    if policy.is_deterministic:
        return actions[policy.act(None, time, s)]
    row = policy.probabilities[time, s] if policy.horizon == T else policy.probabilities[s]
    return {actions[a]: row[a] for a in np.flatnonzero(row)}


# ---------------------------------------------------------------------- asking each target
def query_python(policy: Any, file: Path, queries: list[Query]) -> list[Any]:
    """In a process that cannot see mmdp."""
    script = """
import json, runpy, sys
rule = runpy.run_path(sys.argv[1])
def ask(q):
    next_state = q.pop("next", None)
    done = rule["decide"](**q)
    if next_state is None:
        return done
    return [done, rule["next_node"](**q, next_state=next_state), rule["initial_node"](q["state"])]
def tried(q):
    try:
        return ask(q)
    except ValueError:
        return None
print(json.dumps([tried(q) for q in json.load(sys.stdin)]))
"""
    return query_process([sys.executable, "-I", "-c", script, str(file)], queries)


NODE_SCRIPT = """
const ask = q => {
  const place = ["time", "state", "node"].filter(x => x in q).map(x => q[x]);
  const done = RULE.decide(...place);
  return "next" in q ? [done, RULE.nextNode(...place, q.next), RULE.initialNode(q.state)] : done;
};
const tried = q => { try { return ask(q); } catch (e) {
  if (e instanceof RangeError) return null; throw e; } };
console.log(JSON.stringify(JSON.parse(require("fs").readFileSync(0, "utf8")).map(tried)));
"""


def query_javascript(policy: Any, file: Path, queries: list[Query]) -> list[Any]:
    if shutil.which("node") is None:
        pytest.skip("no node here")
    script = f"const RULE = require({json.dumps(str(file))});{NODE_SCRIPT}"
    return query_process(["node", "-e", script], queries)


def query_process(command: list[str], queries: list[Any]) -> list[Any]:
    completed = subprocess.run(
        command,
        input=json.dumps(queries),
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr[-2000:]
    answers: list[Any] = json.loads(completed.stdout)
    return answers


def query_sql(policy: Any, file: Path, queries: list[Query]) -> list[Any]:
    base = sqlite3.connect(":memory:")
    base.executescript(file.read_text(encoding="utf-8"))

    def ask(q: Query) -> Any:
        key = {name: x for name, x in q.items() if name != "next"}
        condition = " AND ".join(f"{x} = :{x}" for x in key)
        rows = base.execute(f"SELECT * FROM policy WHERE {condition}", key)
        names = [x[0] for x in rows.description]
        records = [dict(zip(names, row, strict=True)) for row in rows]
        if not records or "share" in names:
            return {x["action"]: x["share"] for x in records} or None
        if "next" not in q:
            return records[0]["action"]
        next_node = base.execute(
            "SELECT next_node FROM policy_node_rows JOIN policy USING (node_row) WHERE "
            f"{condition} "
            "AND next_state = :next",
            q,
        ).fetchone()
        initial_node = base.execute(
            "SELECT node FROM policy_initial_nodes WHERE state = :state", q
        ).fetchone()
        return [records[0]["action"], *next_node, *initial_node]

    return [ask(q) for q in queries]


def query_excel(policy: Any, file: Path, queries: list[Query]) -> list[Any]:
    """By the formulas of the front sheet."""
    pytest.importorskip("openpyxl")
    book = Workbook(file)

    def ask(q: Query) -> Any:
        book.set_inputs({"next state" if name == "next" else name: x for name, x in q.items()})
        if not getattr(policy, "is_deterministic", True):
            shares = {a: book.read_output(a) for a in policy.action_names}
            wrong = any(isinstance(x, str) for x in shares.values())
            return None if wrong else {a: x for a, x in shares.items() if x}
        action = book.read_output("action")
        if action == excel.ERROR_TEXT.strip('"'):
            return None
        more = ("next node", "an episode begins in node") if "next" in q else ()
        return [action, *map(book.read_output, more)] if more else action

    return [ask(q) for q in queries]


class ScriptParser(html.parser.HTMLParser):
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


def query_html(policy: Any, file: Path, queries: list[Query]) -> list[Any]:
    """By the functions in the page's only script."""
    page = ScriptParser(file.read_text(encoding="utf-8"))
    assert len(page.scripts) == 1
    assert page.links == ["data:,"]
    if shutil.which("node") is None:
        pytest.skip("no node here")
    functions = page.scripts[0].split("// The page around decide()")[0]
    names = "{ decide, initialNode, nextNode }" if policy.name == "memory" else "{ decide }"
    return query_process(
        ["node", "-e", f"{functions}\nconst RULE = {names};{NODE_SCRIPT}"], queries
    )


QUERY_TARGET: dict[str, Callable[[Any, Path, list[Query]], list[Any]]] = {
    "python": query_python,
    "javascript": query_javascript,
    "sql": query_sql,
    "excel": query_excel,
    "html": query_html,
}
BAD_FIELDS = [{"state": "nobody"}, {"time": -1}, {"time": T}, {"time": 0.5}, {"node": N}]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("policy_name", make_policies())
def test_every_target_answers_as_mmdp_does(policy_name: str, target: str, tmp_path: Path) -> None:
    policy, file = make_policies()[policy_name], tmp_path / f"rule{TARGETS[target]}"
    mmdp.export(policy, file)
    queries = list_queries(policy)
    bad_queries = [{**queries[0], **x} for x in BAD_FIELDS if {*x} <= {*queries[0]}]
    answers = QUERY_TARGET[target](policy, file, [*queries, *bad_queries])
    for q, answer in zip(queries, answers, strict=False):
        expected = compute_answer(policy, q)
        if isinstance(expected, dict):  # a workbook has 16 digits of a share
            expected = pytest.approx(expected, rel=1e-14 if target == "excel" else 0, abs=0)
        assert answer == expected, q
    assert answers[len(queries) :] == [None] * len(bad_queries)


# ---------------------------------------------------------------------- by what a tree asks
@pytest.mark.parametrize("target", ["python", "javascript"])
def test_a_tree_takes_its_features_too(target: str, tmp_path: Path) -> None:
    policy, file = make_policies()["tree"], tmp_path / f"rule{TARGETS[target]}"
    mmdp.export(policy, file)
    number, word, _ = policy.features
    queries: list[list[Any]] = [
        [t, number.values[s], word.values[s]] for t in range(T) for s in range(S)
    ]
    bad_queries: list[list[Any]] = [
        [T, 0, word.values[0]],
        [0, "high", word.values[0]],
        [0, 0, "no such level"],
    ]
    if target == "python":
        script = f"""
import json, runpy, sys
found = runpy.run_path({str(file)!r})["decide_by_features"]
def tried(q):
    try:
        return found(*q)
    except ValueError:
        return None
print(json.dumps([tried(q) for q in json.load(sys.stdin)]))
"""
        answers = query_process([sys.executable, "-I", "-c", script], [*queries, *bad_queries])
    else:
        if shutil.which("node") is None:
            pytest.skip("no node here")
        script = f"""
const {{ decideByFeatures }} = require({json.dumps(str(file))});
const tried = q => {{ try {{ return decideByFeatures(...q); }} catch (e) {{
  if (e instanceof RangeError) return null; throw e; }} }};
console.log(JSON.stringify(JSON.parse(require("fs").readFileSync(0, "utf8")).map(tried)));
"""
        answers = query_process(["node", "-e", script], [*queries, *bad_queries])
    assert answers == [
        *(ACTIONS[a] for a in policy.actions.reshape(-1)),
        *[None] * len(bad_queries),
    ]


@pytest.mark.parametrize("horizon", [3, np.inf])
@pytest.mark.parametrize("seed", range(3))
def test_a_solved_tree_agrees_with_its_policy_in_every_state_and_time(
    seed: int, horizon: float
) -> None:
    """By state; and by its features, if every state allows the action of its leaf."""
    rng = np.random.default_rng(seed)
    names, actions = [f"x={i % 3}, y={i // 3}" for i in range(8)], list("abcd")
    allowed = rng.random((8, 4)) < 0.5
    allowed[np.arange(8), rng.integers(4, size=8)] = True
    for mask in (None, allowed):
        model = mmdp.MMDP(
            rng.dirichlet(np.ones(8), size=(2, 8, 4)),
            rng.normal(size=(2, 8, 4)),
            allowed=mask,
            states=names,
            actions=actions,
            discount=0.9,
        )
        solution = mmdp.solve(model, horizon, policy_class=mmdp.policies.Tree(max_leaves=3))
        policy: Any = solution.policy
        spec = PolicySpec(solution, model)
        program: dict[str, Any] = {}
        exec(render_policy(solution, "python", model), program)
        assert (spec.tree is None) == (mask is not None) == ("decide_by_features" not in program)
        table = policy.to_markov(3).actions
        for t, s in itertools.product(range(3), range(8)):
            expected = actions[table[t, s]]
            assert program["decide"](*[t] * spec.uses_time, names[s]) == expected
            if spec.tree is not None:
                features = [policy.features[i] for i in spec.features_used]
                arguments = [t for x in features if x.is_time]
                arguments += [x.values[s] for x in features if not x.is_time]
                assert program["decide_by_features"](*arguments) == expected


def test_a_table_that_its_tree_does_not_make_is_exported_as_it_is(tmp_path: Path) -> None:
    rows = mmdp.policies.MarkovPolicy(
        [[0, 1], [1, 0]], state_labels=["a", "b"], action_labels=["x", "y"]
    )
    policy = mmdp.policies.TreePolicy(rows, Leaf(0), [])
    for target in ("python", "javascript"):
        file = tmp_path / f"rule{TARGETS[target]}"
        mmdp.export(policy, file)
        queries = [{"time": t, "state": s} for t in (0, 1) for s in "ab"]
        assert QUERY_TARGET[target](policy, file, queries) == ["x", "y", "y", "x"]


# ---------------------------------------------------------------------- the page at work
PAGE = """
const made = {};
const element = () => ({ typed: "", get value() { return this.typed; },
  set value(x) { this.typed = String(x).replace(/[\\r\\n]/g, ""); }, listeners: {}, textContent: "",
  select() {}, append() {}, addEventListener(name, what) { this.listeners[name] = what; } });
const document = { getElementById: id => has.includes(id) ? (made[id] ??= element()) : null };
class Option {}
"""


def run_page_in_node(file: Path, element_ids: list[str], steps: str) -> Any:
    """What the page's script does with the elements of these ids, after these steps."""
    if shutil.which("node") is None:
        pytest.skip("no node here")
    (script,) = ScriptParser(file.read_text(encoding="utf-8")).scripts
    set_up = f"const has = {json.dumps(element_ids)};{PAGE}"
    typing = """
const type = (id, value) => { made[id].value = value; made[id].listeners.input({}); };
const said = [];
const say = () => said.push([made.answer.className ?? "", made.answer.textContent]);
"""
    return query_process(
        ["node", "-e", f"{set_up}{script}{typing}{steps};console.log(JSON.stringify(said))"], []
    )


def test_the_page_says_what_to_do(tmp_path: Path) -> None:
    policy, file = make_policies()["markov"], tmp_path / "card.html"
    mmdp.export(policy, file)
    steps = f"""
say(); type("time", "2"); type("state", {json.dumps(STATES[5])}); say();
type("time", ""); say(); type("time", "1"); type("state", "nobody"); say()
"""
    first, second, no_time, nobody = run_page_in_node(
        file, ["ask", "answer", "time", "state", "states"], steps
    )
    # the time is 0 from the page itself, which the elements here do not know
    assert first == ["wrong", "time must be a whole number from 0 to 3"]
    assert second == ["", ACTIONS[policy.actions[2, 5]]]
    assert no_time == first
    assert nobody == ["wrong", 'no state is called "nobody"']


def test_the_page_follows_a_flow_chart(tmp_path: Path) -> None:
    policy, file = make_policies()["memory"], tmp_path / "card.html"
    mmdp.export(policy, file)
    path = [4, 8, 4, 20]
    steps = f'type("time", "0"); type("state", {json.dumps(STATES[path[0]])}); say();'
    for s in path[1:]:
        steps += f"document.getElementById('next').value = {json.dumps(STATES[s])};"
        steps += "made.on.listeners.click({}); say();"
    element_ids = ["ask", "answer", "time", "state", "states", "node", "next", "on"]
    node, expected = int(policy.initial_nodes[path[0]]), []
    for t, s in enumerate(path):
        expected.append(["", ACTIONS[policy.act(node, t, s)]])
        if t + 1 < len(path):
            node = policy.update(node, t, s, 0, path[t + 1])
    assert run_page_in_node(file, element_ids, steps) == expected


@pytest.mark.parametrize("policy_name", ["markov", "randomized", "memory", "tree"])
def test_labels_are_inert_in_the_page(policy_name: str, tmp_path: Path) -> None:
    file = tmp_path / "card.html"
    mmdp.export(make_policies()[policy_name], file)
    text = file.read_text(encoding="utf-8")
    page = ScriptParser(text)
    assert "default-src 'none'" in text
    assert not page.tags & {"img", "iframe", "object", "embed", "form"}
    assert "<script>document" not in text


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Any:
    program = chromium.find()
    if program is None:
        pytest.skip("no chromium here; make browser installs it")
    chrome = chromium.Chromium(program, tmp_path_factory.mktemp("chromium"))
    yield chrome
    chrome.close()


TYPING_SCRIPT = """
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


@pytest.mark.parametrize("policy_name", make_policies())
def test_in_a_browser(policy_name: str, browser: chromium.Chromium, tmp_path: Path) -> None:
    """The page by typing, and the script by its functions."""
    policy, file = make_policies()[policy_name], tmp_path / "card.html"
    mmdp.export(policy, file)
    queries = list_queries(policy)
    expected = [compute_answer(policy, q) for q in queries]
    browser.open(file, "!document.getElementById('ask').hidden")
    if policy.time_labels.labels and policy.horizon == T:
        chosen = "[...document.getElementById('time').options].map(x => x.text)"
        assert browser.evaluate(chosen) == [x.strip() for x in next(iter(AGES.values()))]
    shares = lambda x: "\n".join(f"{a} {float(f'{100 * p:.1f}'):g}%" for a, p in x.items())
    # a field of one line keeps a label but for its line breaks, which the page finds again
    expected_answers = [shares(x) if isinstance(x, dict) else x for x in expected]
    assert browser.evaluate(f"{TYPING_SCRIPT}({json.dumps(queries)})") == expected_answers
    assert browser.evaluate("document.title") == "What to do"
    assert browser.log_entries == []
    assert [x for x in browser.requests if not x.startswith(("file:", "data:"))] == []
    mmdp.export(policy, tmp_path / "rule.js")
    names = "{ decide, initialNode, nextNode }" if policy.name == "memory" else "{ decide }"
    text = (
        (tmp_path / "rule.js").read_text()
        + f"const RULE = {names};"
        + NODE_SCRIPT.split("const tried")[0]
    )
    assert (
        browser.evaluate(f"(() => {{ {text}; return {json.dumps(queries)}.map(ask); }})()")
        == expected
    )


# ---------------------------------------------------------------------- how much it matters
def read_page_in_node(file: Path, element_ids: list[str], steps: str) -> list[str]:
    answers = run_page_in_node(
        file,
        ["ask", "answer", "matters", *element_ids],
        "const matters = () => said.push(made.matters.textContent);" + steps,
    )
    return [str(x) for x in answers]


def make_shop() -> mmdp.MMDP:
    """Two years; the state has two axes. From stock=0 in the cold, both ways lead to 2."""
    P = np.zeros((2, 4, 2, 4))
    P[:, :, :, 2], P[:, 1, 1] = 1.0, np.eye(4)[3]
    r = np.array([[[4, 3], [0, 0], [2.0, 1.0], [2, 2]], [[4, 1], [0, 0], [2.0, 2.0], [2, 2]]])
    names = [f"stock={x}, mode={y}" for x in (0, 1) for y in ("on", "off, cold")]
    return mmdp.MMDP(P, r, initial=[0.75, 0.25, 0, 0], states=names, actions=["a", "\u202e</b>"])


def test_cards_from_python_and_from_a_file_are_the_same_without_shares(tmp_path: Path) -> None:
    """A tree knows that a better policy was found without its restriction; its file does not."""
    model = mmdp.domains.riverswim(n_train=20, n_test=1).train
    solution = mmdp.solve(model, 20, policy_class=mmdp.policies.Tree(2))
    assert solution.best_value > solution.value
    mmdp.save_policy(solution, tmp_path / "tree.json")
    loaded = mmdp.load_policy(tmp_path / "tree.json", model)
    cards = [render_policy(x, "html", model) for x in (solution, loaded)]
    costs = [next(x for x in str(card).splitlines() if "ACTION_COSTS =" in x) for card in cards]
    assert costs[0] == costs[1]
    stake = solution.value - max(
        mmdp.evaluate(model, mmdp.policies.MarkovPolicy([[a] * 20] * 20)).mean for a in (0, 1)
    )
    found = json.loads(costs[0].split(" = ")[1].rstrip(";"))
    assert found["max_loss_text"] == f"{0.01 * stake:.3g}"
    assert found["text"].endswith(f"costs at most {0.01 * stake:.3g} in all") or (
        found["text"] == f"no decision is free if at most {0.01 * stake:.3g} may be lost"
    )
    assert found["stake"] == 0
    assert "at stake," not in str(cards[0])


def test_the_card_says_what_the_next_best_action_costs(tmp_path: Path) -> None:
    model, file = make_shop(), tmp_path / "card.html"
    mmdp.export(mmdp.solve(model, 2), file, model=model)
    steps = """
matters(); type("time", "1"); type("state-0", "1"); type("state-1", "on"); matters();
type("state-1", "off, cold"); matters(); type("time", "0"); matters();
type("state-0", "0"); matters(); type("state-1", "?"); matters();
type("state-0", "1"); type("state-1", "on"); matters()
"""
    element_ids = ["time", "state-0", "state-1", "nearest"]
    _, year, cold, first, rest, nobody, never = read_page_in_node(file, element_ids, steps)
    # a returns 4 and then 2: 5 of 5 with 3/4 in stock=0, mode=on
    # at stake is what always </b> has less: 3/4 of 2 and of 1/2
    assert year == "Next best: </b>. Here it costs 0.5 (27% of what is at stake)."
    assert cold == first == "Here no other action changes anything."
    assert never == "In these models the rule does not lead here, or hardly ever."
    assert rest == (
        "</b> is as good here.\nFree to choose: a or </b>. Choosing wherever the card says so "
        "loses at most 0.0187 (1% of what is at stake, 1.88 between always </b> and this "
        "policy) in all."
    )
    lines = file.read_text().split("The whole rule")[1].split("</details>")[0]
    assert "stock=0, mode=on" in lines
    assert "stock=1, mode=off, cold" not in lines  # no action changes anything
    assert nobody == ""
    model_with_unit = model.replace(unit="kEUR")
    mmdp.export(mmdp.solve(model_with_unit, 2), file, model=model_with_unit)
    year = read_page_in_node(file, element_ids, steps)[1]
    assert year == "Next best: </b>. Here it costs 0.5 kEUR (27% of what is at stake)."
    assert "Its value on these models (mean) is 5 kEUR." in file.read_text()
    model_in_pounds = model.replace(unit="£")
    mmdp.export(mmdp.solve(model_in_pounds, 2, objective="cvar:0.5"), file, model=model_in_pounds)
    assert "Here it costs £1 (" in read_page_in_node(file, element_ids, steps)[1]
    assert "Its value on these models (CVaR 50%) is £5." in file.read_text()
    dated = model_with_unit.replace(time_labels={"year": [2030, 2031]})
    mmdp.export(mmdp.solve(dated, 2), file, model=dated)
    assert '<th class="text">Year</th>' in file.read_text()


def test_a_card_has_a_field_for_each_axis_and_reads_the_nearest_point(tmp_path: Path) -> None:
    labels = [f"place={x}, gear={y}" for x in (-1.2, -0.9, -0.6) for y in ("low", "top")]
    policy = mmdp.policies.StationaryPolicy([0, 1, 2, 3, 4, 5, 6], state_labels=[*labels, "ended"])
    mmdp.export(policy, file := tmp_path / "card.html")
    steps = "const near = () => said.push(made.nearest.textContent);"
    inputs = [(-1.0, "top"), (-1.05, "low"), (-0.6, "top"), (-0.5, "top"), ("ended", "top")]
    for position, gear in inputs:
        steps += f'type("state-0", "{position}"); type("state-1", "{gear}"); say(); near();'
    element_ids = ["ask", "answer", "nearest", "state-0", "state-1"]
    answers = run_page_in_node(file, element_ids, steps)
    wrong = ["wrong", "place must be from -1.2 to -0.6"]
    assert answers[::2] == [["", "3"], ["", "0"], ["", "5"], wrong, ["", "6"]]
    assert [policy.action(place=x, gear=y) for x, y in inputs[:3]] == ["3", "0", "5"]
    point = "This is for the nearest point, place={}."
    assert answers[1::2] == [
        point.format("-0.9, gear=top"),
        point.format("-1.2, gear=low"),
        *[""] * 3,
    ]
    assert file.read_text().count('<option value="ended">') == 1


def test_no_label_changes_text_direction(tmp_path: Path) -> None:
    """Marks of direction are in the data alone, as escapes."""
    model, file = make_shop(), tmp_path / "card.html"
    labels = model.replace(states=["\u202ea", "\u2067b", "c\u2069", "d"])
    for policy_class in (
        None,
        mmdp.policies.Memory(2),
        mmdp.policies.Tree(2, {"x\u202e": ["\u202e", "b", "c", "d"]}),
    ):
        mmdp.export(mmdp.solve(labels, 2, policy_class=policy_class), file, model=labels)
        text = file.read_text(encoding="utf-8")
        assert "\\u202e" in text
        assert not {*text} & {*html_of.BIDI_MARKS}


def test_a_card_of_a_flow_chart_says_it_too(tmp_path: Path) -> None:
    (model, _), file = mmdp.domains.two_models(), tmp_path / "card.html"
    policy = mmdp.solve(model, 3, policy_class=mmdp.policies.Memory(2)).policy
    mmdp.export(policy, file, model=model)
    assert '<figure data-plot="chart"><svg' in file.read_text()
    near_optimal, t = mmdp.measures.near_optimal_actions(model, policy), 2
    (s, n), *_ = np.argwhere(near_optimal.visit_probs[t] > 0)
    element_ids = ["time", "state", "states", "node", "next", "on"]
    steps = (
        f'type("time", "{t}"); type("state", {json.dumps(policy.state_names[s])});'
        f'type("node", "{n}"); matters()'
    )
    (text,) = read_page_in_node(file, element_ids, steps)
    cost = (
        np.delete(near_optimal.loss[t, s, n], policy.actions[t, s, n]).min()
        / near_optimal.visit_probs[t, s, n]
    )
    assert f"costs {cost:.3g} (" in text or (cost == 0 and "is as good here" in text)


# ---------------------------------------------------------------------- what it says
@pytest.mark.parametrize("target", [x for x in TARGETS if x != "excel"])
def test_a_file_says_where_it_came_from(target: str, tmp_path: Path) -> None:
    train, _ = mmdp.domains.two_models()
    solution = mmdp.solve(train, 3, certify_time=0.5)
    file = tmp_path / "rule.txt"
    mmdp.export(solution, file, to=target, model=train)
    text = " ".join(file.read_text(encoding="utf-8").split())
    for fact in (
        "4 states",
        "times count from 0 to 2",
        "cadp for 2 models",
        train.fingerprint(),
        f"(mean) is {solution.value:g}",
        "Proven: no",
        mmdp.__version__,
    ):
        assert fact in text, fact


def test_labels_in_a_workbook_are_text(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    for policy_name in ("markov", "tree", "memory"):
        mmdp.export(make_policies()[policy_name], tmp_path / "rule.xlsx")
        for sheet in openpyxl.load_workbook(tmp_path / "rule.xlsx", read_only=True):
            cells = [cell for row in sheet.iter_rows() for cell in row]
            formulas = [cell for cell in cells if cell.data_type == "f"]
            assert all(sheet.title == "Decide" and cell.column > 1 for cell in formulas)
            assert not any(label in cell.value for cell in formulas for label in STATES[2:9])


def test_what_is_too_long_is_refused(tmp_path: Path) -> None:
    long = np.zeros((1_049, 1_000), dtype=int)
    for name, rows in (("rule.xlsx", "1,048,575"), ("card.html", "1,000,000")):
        with pytest.raises(InputError, match=rf"1,049,000 rows are more.*{rows}.*choose python"):
            mmdp.export(mmdp.policies.MarkovPolicy(long), tmp_path / name)


def test_refusals(tmp_path: Path) -> None:
    policy = make_policies()["markov"]
    with pytest.raises(InputError, match=r"unknown suffix '.txt'; write .py, .js"):
        mmdp.export(policy, tmp_path / "rule.txt")
    with pytest.raises(InputError, match="is a folder; give a file"):
        mmdp.export(policy, tmp_path)
    with pytest.raises(InputError, match=r"no target is called 'pyton' \(did you mean 'python'"):
        mmdp.export(policy, tmp_path / "rule.py", to="pyton")
    with pytest.raises(InputError, match="a character that files cannot hold"):
        mmdp.export(mmdp.policies.MarkovPolicy([[0]], state_labels=["a\0"]), tmp_path / "rule.py")
    with pytest.raises(InputError, match="a character that files cannot hold"):
        mmdp.export(
            mmdp.policies.MarkovPolicy([[0]], state_labels=["\ud800"]), tmp_path / "rule.html"
        )
    for label in ("a\x01", "a\r\nb"):  # XML turns the second into "a\nb"
        with pytest.raises(InputError, match="Excel cannot hold the label"):
            mmdp.export(
                mmdp.policies.MarkovPolicy([[0]], state_labels=[label]), tmp_path / "rule.xlsx"
            )
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
    saved, resaved = tmp_path / f"policy.{ending}", tmp_path / f"again.{ending}"
    mmdp.save_policy(solution, saved)
    mmdp.save_policy(mmdp.load_policy(saved, train), resaved)
    value = float(np.sort(solution.returns)[:2] @ [1 / 6, 0.3 - 1 / 6] / 0.3)  # the worst 30%
    for source in (solution, mmdp.load_policy(saved, train), mmdp.load_policy(resaved)):
        page = render_policy(source, "html", train)
        assert f"(CVaR 30%) is {value:.8g}" in page
        assert "Solved for the CVaR 30%." in render_policy(mmdp.load_policy(saved), "python")
    mmdp.save(train, tmp_path / "models.npz")
    result = run("export", saved, tmp_path / "models.npz", "--to", "html")
    assert f"(CVaR 30%) is {value:.8g}" in result.out


# ---------------------------------------------------------------------- what a card asks
def test_a_card_has_only_fields_the_rule_uses(tmp_path: Path) -> None:
    """Neither the time nor the sex, and not every combination is a state."""
    places = [*itertools.product("fm", (40, 60), ("well", "ill"))]
    places.remove(("f", 60, "ill"))
    labels = [f"sex={x}, age={y}, health={z}" for x, y, z in places]
    row = [int(y == 60) + 2 * (z == "ill") for _, y, z in places]
    policy = mmdp.policies.MarkovPolicy([row] * 3, state_labels=labels, action_labels=[*"abcd"])
    mmdp.export(policy, file := tmp_path / "card.html")
    page = file.read_text(encoding="utf-8")
    element_ids = ["ask", "answer", "nearest", "state-1", "state-2"]
    assert [
        x for x in (*element_ids, "state-0", "time", "more") if f' id="{x}"' in page
    ] == element_ids
    steps = "".join(f'type("state-1", "{y}"); type("state-2", "{z}"); say();' for _, y, z in places)
    steps += 'type("state-2", "dead"); say()'
    *answers, dead = run_page_in_node(file, element_ids, steps)
    assert answers == [["", "abcd"[a]] for a in row]
    assert dead[0] == "wrong"
    # what other actions cost depends on the rest too, which is asked apart
    p = np.broadcast_to(np.eye(7), (4, 7, 7)).swapaxes(0, 1)[None]
    model = mmdp.MMDP(p, -np.ones((7, 4)), states=labels, actions=[*"abcd"], name="clinic")
    mmdp.export(policy, file, model=model)
    page = file.read_text(encoding="utf-8")
    front, more = page.split('<details id="more">')
    assert [f' id="{x}"' in front for x in (*element_ids, "state-0", "time")] == [True] * 5 + [
        False
    ] * 2
    assert [f' id="{x}"' in more for x in ("state-0", "time", "matters")] == [True] * 3
    assert "<h1>clinic: what to do</h1>" in page


def test_a_card_tells_a_better_action_from_a_next_best_one(tmp_path: Path) -> None:
    """A rule may give something up to be simple: then no action that gains is called next best."""
    model = mmdp.MMDP(
        [[[[0.5, 0.5]] * 3] * 2],
        [[1.0, 0.0, 0.5], [0.0, 4.0, 1.0]],
        states=["x=0", "x=1"],
        actions=[*"abc"],
    )
    policy = mmdp.policies.TreePolicy(
        mmdp.policies.MarkovPolicy.for_model(model, [[1, 1]]), Leaf(1), []
    )
    mmdp.export(policy, file := tmp_path / "card.html", model=model)
    steps = 'type("time", "0"); type("state-0", "0"); matters(); type("state-0", "1"); matters();'
    worse_answer, best = read_page_in_node(file, ["time", "state-0", "nearest"], steps)
    assert worse_answer.startswith("Better here alone: a. Here it gains 1; the rule")
    assert best.startswith("Next best: c. Here it costs 3.")
