"""Eighteen pages, every sentence and every figure against plain numpy; unknown sentences fail."""

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
from mmdp.insight import report
from tests.insight.report.pages import Page, PageBlocks, unpack
from tests.insight.report.reference import ReferenceModel, make_cvar, mean, quantile, worst_case

Array = np.ndarray[Any, Any]
T, STATES, ACTIONS = 3, ["stock 0", "stock 1", "stock 2"], ["wait", "treat"]
rng = np.random.default_rng(3)
REFERENCE = ReferenceModel(
    rng.dirichlet(np.ones(3), size=(6, 3, 2)),
    (rng.normal(size=(6, 3, 2)) * 3 + 4).round(1),
    np.array([0.5, 0.3, 0.2]),
    np.array([0.1, 0.2, 0.3, 0.2, 0.1, 0.1]),
    0.9,
    T,
)
W, ORACLE = REFERENCE.weights, REFERENCE.compute_model_optima()
GROUPS = np.array([1, 1, 2, 2, 3, 3])
MODEL = mmdp.MMDP(
    REFERENCE.P,
    REFERENCE.r,
    initial=REFERENCE.initial,
    discount=REFERENCE.discount,
    weights=W,
    states=STATES,
    actions=ACTIONS,
    parameters={"x": GROUPS},
    unit="kt",
    quantity="catch",
)
TEST = MODEL.replace(weights=W[::-1])
ALL_TABLES = REFERENCE.list_markov_tables()
RETURNS = np.array([REFERENCE.compute_returns(x) for x in ALL_TABLES])
OBJECTIVES = {
    "mean": mean,
    "worst": worst_case,
    "cvar:0.3": make_cvar(0.3),
    "cvar:0.1": make_cvar(0.1),
    "regret:worst": worst_case,
}
NAMES = {
    "worst": "worst case",
    "cvar:0.3": "CVaR 30%",
    "cvar:0.1": "CVaR 10%",
    "regret:worst": "worst case of regret",
}
OBJECTIVE_TEXTS = {
    "worst": "the worst of the models",
    "cvar:0.3": "the mean over the worst 30% of the models, by weight",
    "cvar:0.1": "the mean over the worst 10% of the models, by weight",
    "regret:worst": "the worst of the models, of what each loses against its own "
    "optimal policy, as a negative number",
}
POLICY_CLASSES = {
    "markov": None,
    "stationary": mmdp.policies.Stationary(),
    "tree": mmdp.policies.Tree(2),
    "memory": mmdp.policies.Memory(2),
}
CASES = {
    ("mean", "markov", "alone"): {
        "max_nodes": 2,
        "frontier": True,
        "voi": True,
        "small_tree": True,
    },
    ("mean", "markov", "compared"): {"test_model": TEST, "certify_time": 0.2},
    ("mean", "stationary", "alone"): {"voi": True, "frontier": True},
    ("mean", "tree", "compared"): {"voi": True, "max_nodes": 2},
    ("mean", "memory", "compared"): {"frontier": True},
    ("worst", "markov", "compared"): {
        "max_nodes": 2,
        "frontier": True,
        "voi": True,
        "small_tree": True,
    },
    ("worst", "stationary", "alone"): {},
    ("worst", "memory", "alone"): {},
    ("cvar:0.3", "markov", "compared"): {"certify_time": 0.2, "voi": True},
    ("cvar:0.3", "tree", "alone"): {"frontier": True, "voi": True},
    ("cvar:0.3", "tree", "compared"): {},
    ("cvar:0.1", "tree", "alone"): {"voi": True, "max_nodes": 2},
    ("mean", "tree", "given"): {},
    ("cvar:0.3", "tree", "given"): {"voi": True, "frontier": True},
    ("worst", "tree", "compared"): {"voi": True, "frontier": True, "certify_time": 0.2},
    ("cvar:0.3", "stationary", "compared"): {"voi": True},
    ("regret:worst", "markov", "compared"): {"frontier": True, "voi": True, "small_tree": True},
    ("regret:worst", "tree", "alone"): {"test_model": TEST},
}


# ---------------------------------------------------------------------- what is true
@dataclass
class ExpectedFacts:
    """Figures and words of one page by name; ``tables`` by the name of a policy on the page."""

    objective: str
    tables: dict[str, Array]
    facts: dict[str, Any] = field(default_factory=dict)

    def compute_returns(self, name: str) -> Array:
        return REFERENCE.compute_returns(self.tables[name])

    def compute_value(self, returns: Array) -> float:
        outcomes = returns - ORACLE if self.objective.startswith("regret") else returns
        return OBJECTIVES[self.objective](outcomes, W)

    def add_comparison(
        self, prefix: str, returns: Array, other_returns: Array, weights: Array = W
    ) -> None:
        """Facts about a difference between two policies."""
        regret = self.objective.startswith("regret")
        value, other_value = (
            OBJECTIVES[self.objective](x - ORACLE if regret else x, weights)
            for x in (returns, other_returns)
        )
        better = returns > other_returns + 1e-9
        self.facts |= {
            f"{prefix}_gain": abs(value - other_value),
            f"{prefix}_better": better.sum() or None,
            f"{prefix}_all": {0: "none of the", len(W): "all"}.get(better.sum(), "FALSE"),
            f"{prefix}_weight": weights[better].sum(),
            f"{prefix}_up": _comparative(self.objective, value > other_value),
        }


def _comparative(objective: str, is_higher: bool) -> str:
    pairs = {"mean": ("less", "more"), "regret:worst": ("worse", "better")}
    return pairs.get(objective, ("lower", "higher"))[is_higher]


def _read_tree_action(rule: str, time: int, state: int) -> int:
    """The action of a tree in words."""
    lines = rule.split("\n")
    i_line = 0
    while True:
        condition, _, action = lines[i_line].strip().partition(":")
        depth = len(lines[i_line]) - len(lines[i_line].lstrip())
        match = re.fullmatch(r"if (\w+) is (at most|above) (\d+)", condition)
        if match:
            x = {"time": time, "stock": state}[match[1]]
            if (x <= int(match[3])) != (match[2] == "at most"):  # go on at the same depth
                i_line = next(
                    i
                    for i in range(i_line + 1, len(lines))
                    if len(lines[i]) - len(lines[i].lstrip()) == depth
                )
                continue
        if action.strip():
            return ACTIONS.index(action.strip())
        i_line += 1


def compute_facts(case: tuple[str, str, str], text: str, solution: mmdp.Solution) -> ExpectedFacts:
    objective, policy_class, comparison = case
    maps, compare_data = (json.loads(x) for x in Page(text).scripts[:2])
    shape = (T, len(STATES))
    tables = {
        name: np.array(maps["usedActions"])[unpack(x, "<u2", shape) & 0x7FFF]
        for name, x in zip(compare_data["names"], compare_data["actionIds"], strict=True)
    }
    own_table = next(table for name, table in tables.items() if name.startswith("this policy"))
    expected = ExpectedFacts(objective, {**tables, "this policy": own_table})
    returns, facts = REFERENCE.compute_returns(own_table), expected.facts
    low, high = quantile(returns, W, 0.1), quantile(returns, W, 0.9)
    inside = (returns >= low) & (returns <= high)
    oracle_mean, best = mean(ORACLE, W), expected.compute_value(returns)
    b = REFERENCE.compute_joint(own_table)
    posterior = b[-1] / b[-1].sum(axis=0)
    entropy = (-(posterior * np.log(posterior)).sum(axis=0) * b[-1].sum(axis=0)).sum()
    weight_shift = np.abs(b - b.sum(axis=1, keepdims=True) * W[:, None]).sum(axis=(0, 1))
    oracle_outcomes = ORACLE * 0 if objective.startswith("regret") else ORACLE
    restricted = policy_class in ("stationary", "tree")
    in_class = {
        "stationary": (ALL_TABLES[:, :1] == ALL_TABLES).all(axis=(1, 2)),
        "tree": (ALL_TABLES[:, None] == REFERENCE.list_tree_tables()).all(axis=(2, 3)).any(axis=1),
    }.get(policy_class, np.ones(len(ALL_TABLES), bool))
    reference = max(mean(returns, W), (RETURNS[in_class] @ W).max())
    class_evpi = RETURNS[in_class].max(axis=0) @ W - reference
    grouped_value = sum(
        (RETURNS[in_class][:, g == GROUPS] @ W[g == GROUPS]).max() for g in (1, 2, 3)
    )
    best_constant = max(
        (np.full(shape, a) for a in range(2)),
        key=lambda x: expected.compute_value(REFERENCE.compute_returns(x)),
    )
    # what the free search found, at most the best of all policies
    free = best + (solution.restriction_cost or 0.0)
    assert free <= max(expected.compute_value(x) for x in RETURNS) + 1e-9
    stake, other = compute_stake(expected, free, comparison)
    tails = {name: make_cvar(0.1)(REFERENCE.compute_returns(x), W) for name, x in tables.items()}
    tails_own = make_cvar(0.1)(returns, W)
    safest = max(tails, key=lambda x: (round(tails[x], 9), mean(expected.compute_returns(x), W)))
    method = "CADP" + {"markov": "", "memory": ""}.get(policy_class, f" ({policy_class})")
    name = (
        method
        if objective == "mean"
        else f"CADP ({', '.join([policy_class] * restricted + [NAMES[objective]])})"
    )
    facts |= {
        "models": 6,
        "states": 3,
        "actions": 2,
        "horizon": T,
        "discount": 0.9,
        "last": T - 1,
        "mean": mean(returns, W),
        "aim": best,
        "name": name,
        "method": method,
        "kind": policy_class,
        "goal": NAMES.get(objective, ""),
        "says": OBJECTIVE_TEXTS.get(objective, ""),
        "in_goal": f" in the {NAMES[objective]}" if objective in NAMES else "",
        "margins": " on average over the models" * (objective != "mean")
        + "; if it is negative, that action would return more" * has_better_change(own_table),
        "low": low,
        "high": high,
        "middle": inside.sum(),
        "middle_weight": W[inside].sum(),
        "worst_model": str(returns.argmin()),
        "worst": returns.min(),
        "tail": make_cvar(0.1)(returns, W),
        "sd": math.sqrt(W @ (returns - mean(returns, W)) ** 2),
        "knows": oracle_mean,
        "regret": oracle_mean - mean(returns, W),
        "largest": (ORACLE - returns).max(),
        "missing": OBJECTIVES[objective](oracle_outcomes, W) - best,
        "missing_up": "better" if "regret" in objective else "higher",
        "evpi": oracle_mean - reference,
        "reference": reference,
        "free_mean": (RETURNS @ W).max(),
        "learning": oracle_mean - (RETURNS @ W).max(),
        "within": class_evpi,
        "partly": grouped_value - reference,
        "partly_of_all": (grouped_value - reference)
        / (class_evpi if restricted else oracle_mean - reference),
        "equal": 1 / (W @ W),
        "least_weight": W.min(),
        "most_weight": W.max(),
        "in_play": np.exp(entropy),
        "telling": STATES[int(weight_shift.argmax())],
        "stake": stake,
        "other": other,
        "free": free,
        "price": free - best,
        "best_known": "the best policy found" if free > best + 1e-9 else "this policy",
        "own": "this policy" if reference <= mean(returns, W) + 1e-9 else "FALSE",
        "kind_word": f"{policy_class} " if restricted else "",
        "negligible": 0.001 * stake if tails[safest] - tails_own <= 0.001 * stake else None,
        "near_amount": 0.01 * stake,
        "near": W[ORACLE - returns <= 0.01 * stake].sum() or None,
        "near_least": (ORACLE - returns).min(),
        "near_none": "FALSE" if (ORACLE - returns <= 0.01 * stake).any() else "every",
        "always": ACTIONS[int(best_constant[0, 0])],
        "safest": safest,
        "always_loss": best - expected.compute_value(REFERENCE.compute_returns(best_constant)),
        "safer_tail": tails[safest],
        "safer_gain": tails[safest] - make_cvar(0.1)(returns, W),
        "safer_cost": abs(mean(returns, W) - mean(expected.compute_returns(safest), W)),
        "restriction": ", without the restriction" * (restricted and safest.startswith("best ")),
    }
    if "WSU" in tables:
        facts["climbed"] = (RETURNS @ W).max() - mean(expected.compute_returns("WSU"), W)
    facts["grown"] = reference - mean(REFERENCE.compute_returns(np.zeros(shape, int)), W)
    if comparison == "compared":
        expected.tables["today"] = np.zeros(shape, int)
        expected.add_comparison("today", returns, expected.compute_returns("today"))
        expected.add_comparison("tested", returns, expected.compute_returns("today"), W[::-1])
    facts |= {
        "tested_mean": mean(returns, W[::-1]),
        "tested_tail": make_cvar(0.1)(returns, W[::-1]),
    }
    methods = [x for x in tables if x in ("CADP", "WSU", "MVP")]
    for best_method in sorted(methods, key=lambda x: -mean(expected.compute_returns(x), W[::-1]))[
        :1
    ]:
        gains = expected.compute_returns(best_method) - returns
        spread = math.sqrt(W[::-1] ** 2 @ (gains - mean(gains, W[::-1])) ** 2 * 6 / 5)
        error = t.ppf(0.975, 5) * spread
        facts |= {"ahead": best_method, "ahead_by": mean(gains, W[::-1]), "ahead_error": error}
    if words := re.search(r'<pre id="rule">(.*?)</pre>', text, re.DOTALL):
        leaf_lines = [line for line in words[1].split("\n") if line.split()[-1] in ACTIONS]
        rule = np.array(
            [[_read_tree_action(words[1], time, s) for s in range(3)] for time in range(T)]
        )
        gain = abs(best - expected.compute_value(REFERENCE.compute_returns(rule)))
        facts |= {"leaves": len(leaf_lines), "rule_gain": gain}
    if "the short rule" in tables:
        facts["short_loss"] = best - expected.compute_value(
            expected.compute_returns("the short rule")
        )
    if "one rule for all steps" in tables:
        facts["one_loss"] = best - expected.compute_value(
            expected.compute_returns("one rule for all steps")
        )
    if solution.bound is not None:
        assert solution.bound >= max(expected.compute_value(x) for x in RETURNS) - 1e-9
        facts |= {"bound": solution.bound, "room": solution.bound - best}
        if (proven := solution.certificate.markov_bound) is not None:
            assert proven >= max(expected.compute_value(x) for x in RETURNS) - 1e-9
            facts["price_most"] = proven - best
    if policy_class == "memory":
        policy = solution.policy
        nodes = REFERENCE.compute_controller_returns(
            policy.initial_nodes, policy.actions, policy.node_transitions
        )
        expected.add_comparison("nodes", nodes, returns)
        facts["with_nodes"] = mean(nodes, W)
        facts["given"] = nodes
    changes = (
        (own_table != ALL_TABLES).any(axis=1)
        if policy_class == "stationary"
        else (own_table != ALL_TABLES).reshape(-1, 9)
    )
    is_neighbor = in_class & (changes.sum(axis=1) == 1)
    highest = max(expected.compute_value(x) for x in RETURNS)
    facts |= compute_memory_facts()
    if objective == "mean":
        facts["memory_room"] = facts["memory_bound"] - best
    facts |= {  # words that are on the page only if they are true
        "rule_nothing": "nothing" if facts.get("rule_gain", 0) < 1e-9 else "FALSE",
        "price_nothing": "nothing" if facts["price"] < 1e-9 else "FALSE",
        "short_nothing": "nothing" if facts.get("short_loss", 0) < 1e-9 else "FALSE",
        "safer": "safer" if facts["safer_gain"] < 1e-9 else "FALSE",
        "best": "best" if best > highest - 1e-9 else "FALSE",
        "better": "better" if best > highest - 1e-9 else "FALSE",
        "improves": "improves"
        if best
        > max((expected.compute_value(x) for x in RETURNS[is_neighbor]), default=best) - 1e-9
        else "FALSE",
    }
    facts |= {
        f"{key.removesuffix('_loss').removesuffix('_gain').removesuffix('_cost')}_share": x / stake
        for key, x in facts.items()
        if isinstance(x, float)
    }
    return expected


def has_better_change(table: Array) -> bool:
    """Whether another action at one time and state alone returns more on average."""
    single_changes = (table != ALL_TABLES).reshape(len(ALL_TABLES), -1).sum(axis=1) == 1
    return bool(
        (RETURNS[single_changes] @ W).max() > mean(REFERENCE.compute_returns(table), W) + 1e-9
    )


def compute_stake(expected: ExpectedFacts, best: float, comparison: str) -> tuple[float, str]:
    """To what is done today, else to the best single action with another value, and its name."""
    constant_values = {
        f"always {name}": expected.compute_value(
            REFERENCE.compute_returns(np.full((T, len(STATES)), a))
        )
        for a, name in enumerate(ACTIONS)
    }
    others = [("today", constant_values["always wait"])] * (comparison == "compared")
    others += sorted(constant_values.items(), key=lambda x: -x[1])
    return next((abs(best - x), name) for name, x in others if abs(best - x) > 1e-9)


@functools.cache
def compute_memory_facts() -> dict[str, float]:
    """What memory gains; all of it is on the right side of the best over all histories."""
    table = mmdp.measures.value_by_nodes(MODEL, T, n_nodes=(1, 2), time_limit=5)
    policy = mmdp.solve(MODEL, T, policy_class=mmdp.policies.Memory(2)).policy
    markov, best_history_value = (RETURNS @ W).max(), REFERENCE.compute_best_history_value()
    nodes = mean(
        REFERENCE.compute_controller_returns(
            policy.initial_nodes, policy.actions, policy.node_transitions
        ),
        W,
    )
    belief, error = table["value"].iloc[2], table["stderr"].iloc[2]
    gain = max(nodes, belief - 2 * error) - markov
    bound = table["value"].iloc[3] - markov
    assert gain <= best_history_value - markov + 1e-9
    assert best_history_value - markov <= bound + 1e-9
    assert belief <= best_history_value + 3 * error
    return {
        "memory": gain,
        "memory_most": bound,
        "memory_bound": table["value"].iloc[3],
        "recovered": (nodes - markov) / (belief - markov),
    }


# ---------------------------------------------------------------------- what is told
# {x}: a figure or a word of Truth.facts; {x%}: in percent; ^: rounded up; ↓: down; {~}: a time or
# a command
SENTENCES = Path(__file__).with_name("sentences.txt").read_text(encoding="utf-8").splitlines()
NUMBER = r"[−+]?[\d,]*\.?\d+(?:e[-+]\d+)?"
SENTENCE_TAGS = ("p", "figcaption", "caption", "summary")
HEADINGS_TESTED_ELSEWHERE = (
    "Where may people choose?",
    "What to do",
)  # read in tests/measures and test_summary.py


@dataclass
class PageChecker:
    """Reads a page; ``seen`` has the sentences, ``wrong`` what is false or unknown."""

    expected: ExpectedFacts
    sentences: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def read(self, blocks: list[tuple[str, str]]) -> None:
        heading = ""
        for tag, text in blocks:
            if tag in ("h1", "h2", "h3"):
                heading = text
            elif tag == "li" or (tag in SENTENCE_TAGS and heading not in HEADINGS_TESTED_ELSEWHERE):
                self.check_sentences(text)
        self.check_tables(blocks)

    def check_sentences(self, text: str) -> None:
        for sentence in re.split(r"(?<=[.])\s+(?=[A-Z])", text):
            self.sentences.append(sentence)
            errors_by_template = [
                error for x in SENTENCES if (error := self.match_template(x, sentence)) is not None
            ]
            if not errors_by_template:
                self.errors.append(f"unknown: {sentence}")
            elif all(errors_by_template):
                self.errors.append(f"{sentence}  [{'; '.join(errors_by_template)}]")

    def match_template(self, template: str, sentence: str) -> str | None:
        """What is wrong with the sentence, maybe nothing; None if it is not of this template."""
        parts = re.split(r"\{([\w~]+)([%^↓]*)\}", template)
        fields = list(zip(parts[1::3], parts[2::3], strict=True))
        pattern = re.escape(parts[0])
        for (name, flags), literal in zip(fields, parts[3::3], strict=True):
            fact = self.expected.facts.get(name)
            word = re.escape(fact) if isinstance(fact, str) else f"({NUMBER}){'%' * ('%' in flags)}"
            pattern += (r".*?" if name == "~" else word) + re.escape(literal)
        match = re.fullmatch(pattern, sentence)
        if match is None:
            return None
        checked_fields = [x for x in fields if not isinstance(self.expected.facts.get(x[0]), str)]
        checked_fields = [x for x in checked_fields if x[0] != "~"]
        return "; ".join(
            f"{name} is {self.expected.facts.get(name)}"
            for (name, flags), text in zip(checked_fields, match.groups(), strict=True)
            if not is_rounded_value(text, self.expected.facts.get(name), flags)
        )

    def check_tables(self, blocks: list[tuple[str, str]]) -> None:
        rows = self.read_rows(blocks)
        expected = self.expected
        for name, cells in rows[
            "Returns of these policies in kt, and the change against this policy"
        ]:
            x, own_returns = expected.compute_returns(name), expected.compute_returns("this policy")
            tails = make_cvar(0.1)(x, W), make_cvar(0.1)(own_returns, W)
            expected_row = [
                mean(x, W),
                tails[0],
                x.min(),
                mean(x - own_returns, W),
                tails[0] - tails[1],
            ]
            self.check_cells(name, cells[: len(expected_row)], expected_row)
        for name, cells in rows["Returns over the models in kt"]:
            if name.startswith("the given policy,"):
                x = expected.facts["given"]
            elif name.startswith("Oracle"):
                x = ORACLE
            else:
                x = expected.compute_returns(name if name in expected.tables else "this policy")
            sd = math.sqrt(W @ (x - mean(x, W)) ** 2)
            expected_row = [mean(x, W), sd, x.min(), make_cvar(0.1)(x, W), mean(ORACLE - x, W)]
            self.check_cells(name, cells[: len(expected_row)], expected_row)
        visits = REFERENCE.compute_joint(expected.tables["this policy"]).sum(axis=(0, 1))
        for name, cells in rows["Times and what to do."]:
            self.check_cells(name, cells[:1], [visits[STATES.index(name)]])
        for name, cells in rows.get("Value of knowing one parameter before acting (EVPPI)", []):
            self.check_cells(name, cells[:1], [expected.facts["partly"]])
            self.check_cells(name, [cells[1].rstrip("%")], [100 * expected.facts["partly_of_all"]])

    @staticmethod
    def read_rows(blocks: list[tuple[str, str]]) -> dict[str, list[tuple[str, list[str]]]]:
        """The rows of each table by its caption: the name and the other cells."""
        rows_by_caption: dict[str, list[tuple[str, list[str]]]] = {}
        rows: list[tuple[str, list[str]]] = []
        for tag, text in blocks:
            if tag == "caption":
                rows = rows_by_caption.setdefault(re.split(r"[;,] (?=higher|to)", text)[0], [])
            elif tag == "th":
                rows.append((text, []))
            elif tag == "td" and rows:
                rows[-1][1].append(text)
        return {name: [x for x in rows if x[1]] for name, rows in rows_by_caption.items()}

    def check_cells(self, name: str, cells: list[str], expected_row: list[float]) -> None:
        self.errors += [
            f"{name}: {cell} is {fact}"
            for cell, fact in zip(cells, expected_row, strict=True)
            if not is_rounded_value(cell, fact, "")
        ]


def is_rounded_value(text: str, fact: float | None, flags: str) -> bool:
    """Whether a figure is the fact rounded to the digits shown; ``^``: up, ``↓``: down."""
    if fact is None:
        return False
    shown_value = float(text.replace("−", "-").replace(",", ""))
    digits = re.sub(r"e.*", "", text).partition(".")[2]
    unit = 10.0 ** -len(digits) * (10.0 ** int(text.split("e")[1]) if "e" in text else 1)
    exact = 100 * fact if "%" in flags else fact
    if "↓" in flags:
        return -1e-9 <= exact - shown_value <= unit * (1 + 1e-6)
    if "^" in flags:
        return -1e-9 <= shown_value - exact <= unit * (1 + 1e-6)
    return abs(shown_value - exact) <= 0.5 * unit * (1 + 1e-6) + 1e-9


# ---------------------------------------------------------------------- the pages
def check_page(case: tuple[str, str, str], folder: Path) -> PageChecker:
    objective, policy_class, comparison = case
    options = dict(CASES[case])
    sections: dict[str, Any] = {
        "small_tree": False,
        "frontier": False,
        "voi": False,
        "max_nodes": 0,
        "sample_size": False,
        "n_resamples": 0,
    }
    solution = mmdp.solve(
        MODEL,
        T,
        objective=objective,
        policy_class=POLICY_CLASSES[policy_class],
        certify_time=options.pop("certify_time", None),
    )
    compare = {"today": "wait"} if comparison == "compared" else None
    if comparison == "given":  # as from a file: the policy and its objective, without the solution
        options |= {"policy": solution.policy, "objective": objective}
    file = report.write(
        MODEL,
        folder / "page.html",
        **{"policy": solution, "comparators": compare, **sections, **options},
    )
    text = file.read_text(encoding="utf-8")
    reader = PageChecker(compute_facts(case, text, solution))
    reader.read(PageBlocks(text).blocks)
    return reader


# words that no page may have: the same number twice, the same word twice, rounding errors
STUMBLES = (
    r"\b(\d+) of \1 models",
    r"\b[Hh]ere memory",
    r"\de[-−]\d",
    r"\d\.00? of equal",
    r"(?<![\d.])0%",
    r"no claim of optimality|optimality is not proven",
    r"drawing actions earns",
    r"\bat most 0 kt (more|below|higher|better)",
    r"\bworth (about )?0 kt",
)


@pytest.mark.parametrize("case", CASES, ids=lambda x: "-".join(x).replace(":", ""))
def test_every_sentence_is_known_and_true(
    case: tuple[str, str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "render_figure", lambda *_: None)  # pictures say nothing here
    checker = check_page(case, tmp_path)
    assert len(checker.sentences) > 50
    assert not checker.errors, "\n".join(["", *checker.errors])
    # that is counted from the best policy, not from one of a restricted class
    is_restricted = case[1] in ("stationary", "tree")
    assert is_restricted is not any(x.startswith("That is the expec") for x in checker.sentences)
    for pattern in STUMBLES:
        assert [x for x in checker.sentences if re.search(pattern, x)] == []
