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
from mmdp.exports import TARGETS, excel
from mmdp.policy.tree import Feature, Leaf, Split
from tests import chromium
from tests.exports.formulas import Workbook

STATES = [
    "plain", "PLAIN", "it's", 'a "b"', "two\nlines", "</script><script>document.title=1</script>",
    "=1+1", "back\\slash\\", "ünï ☃ 漢", "*", "?", "'; DROP TABLE policy; --", "${1}`", "{{ 7 * 7 }}",
    "*/ int x; /*", "line\u2028break", "??/", "#N/A", "%s {0}", "<!--", "7", " blank ",
]  # fmt: skip
ACTIONS = ["wait", "=cmd|' /C calc'!A0", "</script>", "'\"\\\n", "%d {x} ☃", "__proto__"]
T, S, A, N = 4, len(STATES), len(ACTIONS), 3
LABELS: dict[str, Any] = {"state_labels": STATES, "action_labels": ACTIONS}


@cache
def policies() -> dict[str, Any]:
    rng = np.random.default_rng(3)
    shares = rng.dirichlet(np.ones(A), size=(T, S)) * (rng.random((T, S, A)) < 0.5)
    shares[..., 0] += 1 - shares.sum(axis=2)
    actions = rng.integers(A, size=(T, S))
    nodes = rng.integers(A, size=(T, S, N)), rng.integers(N, size=(T, S, N, S))
    return {
        "markov": mmdp.MarkovPolicy(actions, **LABELS),
        "randomised": mmdp.MarkovPolicy(probabilities=shares, **LABELS),
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
    features = [number, word, *([Feature.of("time", range(T), timed=True)] if timed else [])]
    last = Split(2, 1, Leaf(4), Leaf(5)) if timed else Leaf(5)
    root = Split(0, 4, Split(1, 1, Leaf(0), Split(1, 3, Leaf(1), Leaf(2))), Split(0, 7, Leaf(3), last))
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


def by_c(policy: Any, file: Path, asked: list[Asked]) -> list[Any]:
    """A program around the file; answers are bytes in hexadecimal, so that any label is a line."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler here")
    source, program = file.with_suffix(".main.c"), file.with_suffix("")
    calls = "\n".join(f"    {line}" for q in asked for line in _calls(policy, q))
    source.write_text(
        f'#include "{file.name}"\n#include <stdio.h>\n'
        "static void say(const char *x) { if (!x) printf(\"-\");"
        ' for (; x && *x; x++) printf("%02x", (unsigned char)*x); printf("\\n"); }\n'
        f"int main(void) {{\n{calls}\n    return 0;\n}}\n"
    )
    strict = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-trigraphs"]
    subprocess.run(["cc", *strict, "-o", str(program), str(source)], check=True, timeout=60)
    lines = iter(subprocess.run([str(program)], capture_output=True, text=True, check=True)
                 .stdout.splitlines())  # fmt: skip
    return [_read(policy, q, lines) for q in asked]


def _calls(policy: Any, q: Asked) -> list[str]:
    text = lambda x: '"' + "".join(f"\\{b:03o}" for b in x.encode()) + '"'
    place = ", ".join(text(x) if isinstance(x, str) else str(x) for k, x in q.items() if k != "next")
    if not getattr(policy, "deterministic", True):
        return [f'printf("%.17g\\n", mmdp_share({place}, {text(a)}));' for a in policy.action_names]
    found = [f"say(mmdp_decide({place}));"]
    if "next" in q:
        found.append(f'printf("%d\\n", mmdp_move({place}, {text(q["next"])}));')
        found.append(f'printf("%d\\n", mmdp_start({text(q["state"])}));')
    return found


def _read(policy: Any, q: Asked, lines: Any) -> Any:
    if not getattr(policy, "deterministic", True):
        shares = {a: float(next(lines)) for a in policy.action_names}
        return None if min(shares.values()) < 0 else {a: x for a, x in shares.items() if x}
    line = next(lines)
    action = None if line == "-" else bytes.fromhex(line).decode()
    if "next" not in q:
        return action
    numbers = int(next(lines)), int(next(lines))
    return None if action is None else [action, *numbers]


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
    "python": by_python, "javascript": by_javascript, "c": by_c, "sql": by_sql, "excel": by_excel,
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
    if target == "c":  # 0.5 is no int
        bad = [x for x in bad if x.get("time") != 0.5]
    found = ASKED[target](policy, file, [*asked, *bad])
    for q, answer in zip(asked, found, strict=False):
        assert answer == expected(policy, q), q
    assert found[len(asked) :] == [None] * len(bad)
