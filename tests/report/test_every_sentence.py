"""Twelve pages, every sentence and every figure against plain numpy; unknown sentences fail."""

from __future__ import annotations

import functools
import json
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import t

import mmdp
from mmdp import report
from mmdp.report import page as pages_of_mmdp
from tests.report.pages import Blocks, Page, unpack
from tests.report.plain import Plain, mean, quantile, tail, worst

Array = np.ndarray[Any, Any]
T, STATES, ACTIONS = 3, ["stock 0", "stock 1", "stock 2"], ["wait", "treat"]
rng = np.random.default_rng(3)
PLAIN = Plain(
    rng.dirichlet(np.ones(3), size=(6, 3, 2)), (rng.normal(size=(6, 3, 2)) * 3 + 4).round(1),
    np.array([0.5, 0.3, 0.2]), np.array([0.1, 0.2, 0.3, 0.2, 0.1, 0.1]), 0.9, T,
)  # fmt: skip
W, ORACLE = PLAIN.weights, PLAIN.oracle()
GROUPS = np.array([1, 1, 2, 2, 3, 3])
MODEL = mmdp.MMDP(
    PLAIN.P, PLAIN.r, initial=PLAIN.initial, discount=PLAIN.discount, weights=W, states=STATES,
    actions=ACTIONS, parameters={"x": GROUPS}, unit="kt", quantity="catch",
)  # fmt: skip
TEST = MODEL.replace(weights=W[::-1])
EVERY = PLAIN.tables()
RETURNS = np.array([PLAIN.returns(x) for x in EVERY])
AIMS = {"mean": mean, "worst": worst, "cvar:0.3": tail(0.3), "regret:worst": worst}
NAMES = {"worst": "worst case", "cvar:0.3": "CVaR 30%", "regret:worst": "worst case of regret"}
SAYS = {
    "worst": "the worst of the models", "cvar:0.3": "the mean over the worst 30% of the models, "
    "by weight", "regret:worst": "the worst of the models, of what each loses against its own "
    "optimal policy, as a negative number",
}  # fmt: skip
KINDS = {
    "markov": None, "stationary": mmdp.Stationary(), "tree": mmdp.Tree(2), "memory": mmdp.Memory(2)
}  # fmt: skip
CASES = {
    ("mean", "markov", "alone"): {"memory": 2, "frontier": True, "information": True, "rule": True},
    ("mean", "markov", "compared"): {"test": TEST, "certify": 0.2},
    ("mean", "stationary", "alone"): {"information": True, "frontier": True},
    ("mean", "tree", "compared"): {"information": True, "memory": 2},
    ("mean", "memory", "compared"): {"frontier": True},
    ("worst", "markov", "compared"): {"memory": 2, "frontier": True, "information": True,
                                      "rule": True},
    ("worst", "stationary", "alone"): {},
    ("worst", "memory", "alone"): {},
    ("cvar:0.3", "markov", "compared"): {"certify": 0.2, "information": True},
    ("cvar:0.3", "tree", "alone"): {"frontier": True},
    ("regret:worst", "markov", "compared"): {"frontier": True, "information": True, "rule": True},
    ("regret:worst", "tree", "alone"): {"test": TEST},
}  # fmt: skip


# ---------------------------------------------------------------------- what is true
@dataclass
class Truth:
    """Figures and words of one page by name; ``tables`` by the name of a policy on the page."""

    aim: str
    tables: dict[str, Array]
    facts: dict[str, Any] = field(default_factory=dict)

    def returns(self, name: str) -> Array:
        return PLAIN.returns(self.tables[name])

    def value(self, returns: Array) -> float:
        of = returns - ORACLE if self.aim.startswith("regret") else returns
        return AIMS[self.aim](of, W)

    def against(self, prefix: str, mine: Array, other: Array, weights: Array = W) -> None:
        """Facts about a difference between two policies."""
        regret = self.aim.startswith("regret")
        own, theirs = (AIMS[self.aim](x - ORACLE if regret else x, weights) for x in (mine, other))
        better = mine > other + 1e-9
        self.facts |= {
            f"{prefix}_gain": abs(own - theirs),
            f"{prefix}_better": better.sum(), f"{prefix}_weight": weights[better].sum(),
            f"{prefix}_up": _word(self.aim, own > theirs),
        }  # fmt: skip


def _word(aim: str, up: bool) -> str:
    pairs = {"mean": ("less", "more"), "regret:worst": ("worse", "better")}
    return pairs.get(aim, ("lower", "higher"))[up]


def _followed(rule: str, time: int, state: int) -> int:
    """The action of a tree in words."""
    lines = rule.split("\n")
    at = 0
    while True:
        when, _, then = lines[at].strip().partition(":")
        depth = len(lines[at]) - len(lines[at].lstrip())
        asked = re.fullmatch(r"if (\w+) is (at most|above) (\d+)", when)
        if asked:
            x = {"time": time, "stock": state}[asked[1]]
            if (x <= int(asked[3])) != (asked[2] == "at most"):  # go on at the same depth
                at = next(i for i in range(at + 1, len(lines))
                          if len(lines[i]) - len(lines[i].lstrip()) == depth)  # fmt: skip
                continue
        if then.strip():
            return ACTIONS.index(then.strip())
        at += 1


def truth_of(case: tuple[str, str, str], text: str, solution: mmdp.Solution) -> Truth:
    aim, kind, beside = case
    maps, compared = (json.loads(x) for x in Page(text).scripts[:2])
    shape = (T, len(STATES))
    tables = {
        name: np.array(maps["used"])[unpack(x, "<u2", shape) & 0x7FFF]
        for name, x in zip(compared["names"], compared["place"], strict=True)
    }
    own = next(table for name, table in tables.items() if name.startswith("this policy"))
    found = Truth(aim, {**tables, "this policy": own})
    mine, facts = PLAIN.returns(own), found.facts
    low, high = quantile(mine, W, 0.1), quantile(mine, W, 0.9)
    inside = (mine >= low) & (mine <= high)
    knows, best = mean(ORACLE, W), found.value(mine)
    b = PLAIN.joint(own)
    given = b[-1] / b[-1].sum(axis=0)
    entropy = (-(given * np.log(given)).sum(axis=0) * b[-1].sum(axis=0)).sum()
    moved = np.abs(b - b.sum(axis=1, keepdims=True) * W[:, None]).sum(axis=(0, 1))
    aimed_own = ORACLE * 0 if aim.startswith("regret") else ORACLE
    restricted = kind in ("stationary", "tree")
    of_kind = {"stationary": (EVERY[:, :1] == EVERY).all(axis=(1, 2)),
               "tree": (EVERY[:, None] == PLAIN.trees()).all(axis=(2, 3)).any(axis=1)}.get(
                   kind, np.ones(len(EVERY), bool))  # fmt: skip
    reference = max(mean(mine, W), (RETURNS[of_kind] @ W).max())
    within = RETURNS[of_kind].max(axis=0) @ W - reference
    partly = sum((RETURNS[of_kind][:, g == GROUPS] @ W[g == GROUPS]).max() for g in (1, 2, 3))
    always = max((np.full(shape, a) for a in range(2)), key=lambda x: found.value(PLAIN.returns(x)))
    stake, other = at_stake(found, best, beside)
    tails = {name: tail(0.1)(PLAIN.returns(x), W) for name, x in tables.items()}
    safest = max(tails, key=lambda x: (round(tails[x], 9), mean(found.returns(x), W)))
    method = "CADP" + {"markov": "", "memory": ""}.get(kind, f" ({kind})")
    name = method if aim == "mean" else f"CADP ({', '.join([kind] * restricted + [NAMES[aim]])})"
    facts |= {
        "models": 6, "states": 3, "actions": 2, "horizon": T, "discount": 0.9, "last": T - 1,
        "mean": mean(mine, W), "aim": best, "name": name, "method": method, "kind": kind,
        "goal": NAMES.get(aim, ""), "says": SAYS.get(aim, ""),
        "Says": SAYS.get(aim, "").capitalize(),
        "low": low, "high": high, "middle": inside.sum(), "middle_weight": W[inside].sum(),
        "worst_model": str(mine.argmin()), "worst": mine.min(), "tail": tail(0.1)(mine, W),
        "sd": math.sqrt(W @ (mine - mean(mine, W)) ** 2), "knows": knows,
        "regret": knows - mean(mine, W), "largest": (ORACLE - mine).max(),
        "missing": AIMS[aim](aimed_own, W) - best,
        "evpi": knows - reference,
        "reference": reference, "within": within, "partly": partly - reference,
        "partly_of_all": (partly - reference) / (within if restricted else knows - reference),
        "equal": 1 / (W @ W), "least_weight": W.min(), "most_weight": W.max(),
        "in_play": np.exp(entropy), "telling": STATES[int(moved.argmax())],
        "stake": stake, "other": other, "near_amount": 0.01 * stake,
        "near": W[ORACLE - mine <= 0.01 * stake].sum(),
        "always": ACTIONS[int(always[0, 0])], "safest": safest, "always_loss": best - found.value(
            PLAIN.returns(always)),
        "safer_tail": tails[safest], "safer_gain": tails[safest] - tail(0.1)(mine, W),
        "safer_cost": abs(mean(mine, W) - mean(found.returns(safest), W)),
        "restriction": ", free of the restriction" * (restricted and safest.startswith("best ")),
    }  # fmt: skip
    if "WSU" in tables:
        facts["climbed"] = (RETURNS @ W).max() - mean(found.returns("WSU"), W)
    facts["grown"] = reference - mean(PLAIN.returns(np.zeros(shape, int)), W)
    if beside == "compared":
        found.tables["today"] = np.zeros(shape, int)
        found.against("today", mine, found.returns("today"))
        found.against("tested", mine, found.returns("today"), W[::-1])
    facts |= {"tested_mean": mean(mine, W[::-1]), "tested_tail": tail(0.1)(mine, W[::-1])}
    methods = [x for x in tables if x in ("CADP", "WSU", "MVP")]
    for ahead in sorted(methods, key=lambda x: -mean(found.returns(x), W[::-1]))[:1]:
        more = found.returns(ahead) - mine
        spread = math.sqrt(W[::-1] ** 2 @ (more - mean(more, W[::-1])) ** 2 * 6 / 5)
        error = t.ppf(0.975, 5) * spread
        facts |= {"ahead": ahead, "ahead_by": mean(more, W[::-1]), "ahead_error": error}
    if words := re.search(r'<pre id="rule">(.*?)</pre>', text, re.DOTALL):
        told = [line for line in words[1].split("\n") if line.split()[-1] in ACTIONS]
        rule = np.array([[_followed(words[1], time, s) for s in range(3)] for time in range(T)])
        gain = abs(best - found.value(PLAIN.returns(rule)))
        facts |= {"leaves": len(told), "rule_gain": gain}
    if "the short rule" in tables:
        facts["short_loss"] = best - found.value(found.returns("the short rule"))
    if "one rule for all steps" in tables:
        facts["one_loss"] = best - found.value(found.returns("one rule for all steps"))
    if solution.price is not None:
        facts["price"] = solution.price
        most = max(found.value(x) for x in RETURNS)
        assert solution.value + solution.price <= most + 1e-9
    if solution.bound is not None:
        assert solution.bound >= max(found.value(x) for x in RETURNS) - 1e-9
        facts |= {"bound": solution.bound, "room": solution.bound - best}
    if kind == "memory":
        policy = solution.policy
        nodes = PLAIN.with_nodes(policy.first, policy.actions, policy.moves)
        found.against("nodes", nodes, mine)
        facts["with_nodes"] = mean(nodes, W)
        facts["given"] = nodes
    changes = (own != EVERY).any(axis=1) if kind == "stationary" else (own != EVERY).reshape(-1, 9)
    near = of_kind & (changes.sum(axis=1) == 1)
    highest = max(found.value(x) for x in RETURNS)
    facts |= remembering() | {  # words that are on the page only if they are true
        "rule_nothing": "nothing" if facts.get("rule_gain", 0) < 1e-9 else "FALSE",
        "short_nothing": "nothing" if facts.get("short_loss", 0) < 1e-9 else "FALSE",
        "safer": "safer" if facts["safer_gain"] < 1e-9 else "FALSE",
        "best": "best" if best > highest - 1e-9 else "FALSE",
        "better": "better" if best > highest - 1e-9 else "FALSE",
        "improves": "improves"
        if best > max((found.value(x) for x in RETURNS[near]), default=best) - 1e-9
        else "FALSE",
    }
    facts |= {
        f"{key.removesuffix('_loss').removesuffix('_gain').removesuffix('_cost')}_share": x / stake
        for key, x in facts.items() if isinstance(x, float)
    }  # fmt: skip
    return found


def at_stake(found: Truth, best: float, beside: str) -> tuple[float, str]:
    """To what is done today, else to the best single action with another value, and its name."""
    each = {
        f"always {name}": found.value(PLAIN.returns(np.full((T, len(STATES)), a)))
        for a, name in enumerate(ACTIONS)
    }
    others = [("today", each["always wait"])] * (beside == "compared")
    others += sorted(each.items(), key=lambda x: -x[1])
    return next((abs(best - x), name) for name, x in others if abs(best - x) > 1e-9)


@functools.cache
def remembering() -> dict[str, float]:
    """What memory gains; all of it is on the right side of the best over all histories."""
    table = mmdp.value_of_memory(MODEL, T, nodes=(1, 2), time_limit=5)
    policy = mmdp.solve(MODEL, T, policy=mmdp.Memory(2)).policy
    markov, most = (RETURNS @ W).max(), PLAIN.best_with_memory()
    nodes = mean(PLAIN.with_nodes(policy.first, policy.actions, policy.moves), W)
    belief, error = table["value"].iloc[2], table["stderr"].iloc[2]
    gain = max(nodes, belief - 2 * error) - markov
    bound = table["value"].iloc[3] - markov
    assert gain <= most - markov + 1e-9
    assert most - markov <= bound + 1e-9
    assert belief <= most + 3 * error
    return {
        "memory": gain, "memory_most": bound, "recovered": (nodes - markov) / (belief - markov),
    }  # fmt: skip


# ---------------------------------------------------------------------- what is told
# {x}: a figure or a word of Truth.facts; {x%}: in percent; ^: rounded up; {~}: a time or a command
SENTENCES = Path(__file__).with_name("sentences.txt").read_text(encoding="utf-8").splitlines()
NUMBER = r"[−+]?[\d,]*\.?\d+(?:e[-+]\d+)?"
SAID = ("p", "figcaption", "caption", "summary")
ELSEWHERE = ("Where may people choose?", "What to do")  # read in tests/measures and test_answer.py


@dataclass
class Reader:
    """Reads a page; ``seen`` has the sentences, ``wrong`` what is false or unknown."""

    truth: Truth
    seen: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def read(self, blocks: list[tuple[str, str]]) -> None:
        heading = ""
        for tag, text in blocks:
            if tag in ("h1", "h2", "h3"):
                heading = text
            elif tag == "li" or (tag in SAID and heading not in ELSEWHERE):
                self.sentences(text)
        self.tables(blocks)

    def sentences(self, text: str) -> None:
        for sentence in re.split(r"(?<=[.])\s+(?=[A-Z])", text):
            self.seen.append(sentence)
            known = [found for x in SENTENCES if (found := self.matched(x, sentence)) is not None]
            if not known:
                self.wrong.append(f"unknown: {sentence}")
            elif all(known):
                self.wrong.append(f"{sentence}  [{'; '.join(known)}]")

    def matched(self, template: str, sentence: str) -> str | None:
        """What is wrong with the sentence, maybe nothing; None if it is not of this template."""
        parts = re.split(r"\{([\w~]+)([%^]*)\}", template)
        fields = list(zip(parts[1::3], parts[2::3], strict=True))
        pattern = re.escape(parts[0])
        for (name, flags), after in zip(fields, parts[3::3], strict=True):
            fact = self.truth.facts.get(name)
            word = re.escape(fact) if isinstance(fact, str) else f"({NUMBER}){'%' * ('%' in flags)}"
            pattern += (r".*?" if name == "~" else word) + re.escape(after)
        match = re.fullmatch(pattern, sentence)
        if match is None:
            return None
        told = [x for x in fields if not isinstance(self.truth.facts.get(x[0]), str)]
        told = [x for x in told if x[0] != "~"]
        return "; ".join(
            f"{name} is {self.truth.facts.get(name)}"
            for (name, flags), text in zip(told, match.groups(), strict=True)
            if not right(text, self.truth.facts.get(name), flags)
        )

    def tables(self, blocks: list[tuple[str, str]]) -> None:
        rows = self.rows(blocks)
        truth = self.truth
        for name, cells in rows[
            "Returns of these policies in kt, and the change against this policy"
        ]:
            x, own = truth.returns(name), truth.returns("this policy")
            tails = tail(0.1)(x, W), tail(0.1)(own, W)
            told = [mean(x, W), tails[0], x.min(), mean(x - own, W), tails[0] - tails[1]]
            self.cells(name, cells[: len(told)], told)
        for name, cells in rows["Returns over the models in kt"]:
            if name.startswith("the given policy,"):
                x = truth.facts["given"]
            elif name.startswith("Oracle"):
                x = ORACLE
            else:
                x = truth.returns(name if name in truth.tables else "this policy")
            sd = math.sqrt(W @ (x - mean(x, W)) ** 2)
            told = [mean(x, W), sd, x.min(), tail(0.1)(x, W), mean(ORACLE - x, W)]
            self.cells(name, cells[: len(told)], told)
        visits = PLAIN.joint(truth.tables["this policy"]).sum(axis=(0, 1))
        for name, cells in rows["Times and what to do."]:
            self.cells(name, cells[:1], [visits[STATES.index(name)]])
        for name, cells in rows.get("Value of knowing one parameter before acting (EVPPI)", []):
            self.cells(name, cells[:1], [truth.facts["partly"]])
            self.cells(name, [cells[1].rstrip("%")], [100 * truth.facts["partly_of_all"]])

    @staticmethod
    def rows(blocks: list[tuple[str, str]]) -> dict[str, list[tuple[str, list[str]]]]:
        """The rows of each table by its caption: the name and the other cells."""
        found: dict[str, list[tuple[str, list[str]]]] = {}
        rows: list[tuple[str, list[str]]] = []
        for tag, text in blocks:
            if tag == "caption":
                rows = found.setdefault(re.split(r"[;,] (?=higher|to)", text)[0], [])
            elif tag == "th":
                rows.append((text, []))
            elif tag == "td" and rows:
                rows[-1][1].append(text)
        return {name: [x for x in rows if x[1]] for name, rows in found.items()}

    def cells(self, name: str, cells: list[str], told: list[float]) -> None:
        self.wrong += [
            f"{name}: {cell} is {fact}"
            for cell, fact in zip(cells, told, strict=True)
            if not right(cell, fact, "")
        ]


def right(text: str, fact: float | None, flags: str) -> bool:
    """Whether a figure is the fact rounded to the digits shown; ``^``: rounded up."""
    if fact is None:
        return False
    shown = float(text.replace("−", "-").replace(",", ""))
    digits = re.sub(r"e.*", "", text).partition(".")[2]
    unit = 10.0 ** -len(digits) * (10.0 ** int(text.split("e")[1]) if "e" in text else 1)
    true = 100 * fact if "%" in flags else fact
    if "^" in flags:
        return -1e-9 <= shown - true <= unit * (1 + 1e-6)
    return abs(shown - true) <= 0.5 * unit * (1 + 1e-6) + 1e-9


# ---------------------------------------------------------------------- the pages
def read_page(case: tuple[str, str, str], folder: Path) -> Reader:
    aim, kind, beside = case
    options = dict(CASES[case])
    asked: dict[str, Any] = {"rule": False, "frontier": False, "information": False, "memory": 0,
                             "enough": False, "resamples": 0}  # fmt: skip
    solution = mmdp.solve(
        MODEL, T, objective=aim, policy=KINDS[kind], certify=options.pop("certify", False)
    )
    compare = {"today": "wait"} if beside == "compared" else None
    file = report.write(
        MODEL, folder / "page.html", policy=solution, compare=compare, **{**asked, **options}
    )
    text = file.read_text(encoding="utf-8")
    reader = Reader(truth_of(case, text, solution))
    reader.read(Blocks(text).blocks)
    return reader


@pytest.mark.parametrize("case", CASES, ids=lambda x: "-".join(x).replace(":", ""))
def test_every_sentence_is_known_and_true(
    case: tuple[str, str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages_of_mmdp, "inlined", lambda *_: None)  # pictures say nothing here
    found = read_page(case, tmp_path)
    assert len(found.seen) > 50
    assert not found.wrong, "\n".join(["", *found.wrong])
