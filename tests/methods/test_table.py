"""The table of methods: true of what they do, and the only list of them."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest

import mmdp
from mmdp.methods import METHODS, able, capabilities
from mmdp.methods.table import need_table
from mmdp.policy import markov_policy
from mmdp.testing import random_model
from tests.cli.calls import run
from tests.conftest import ROOT

MODEL = random_model(3, n_models=4, n_states=3, n_actions=2, horizon=0)
TABLE = {row.name: row for row in capabilities()}


@pytest.mark.parametrize("name", METHODS)
def test_a_method_does_what_the_table_says(name: str) -> None:
    few = {"episodes": 20} if "episodes" in TABLE[name].options else {}
    model = MODEL.subset([0, 1]) if name == "grid" else MODEL  # where its grid is fine enough
    found, row = mmdp.solve(model, 3, METHODS[name](**few)), TABLE[name]
    assert found.status is (row.proves or mmdp.Status.COMPLETED)
    kinds = {mmdp.MarkovPolicy: ("markov",), type(None): ()}
    assert row.policies[:1] == kinds.get(type(found.policy), ("belief",))
    assert (row.memory == "belief") == bool(found.policy is not None and found.policy.memory)
    assert row.objectives[0] == "mean"
    assert found.value == pytest.approx(found.evaluation.mean)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_title_and_a_sentence_for_each_option(name: str) -> None:
    row = TABLE[name]
    assert row.title
    assert len(row.title) <= 44  # the table fits a terminal
    assert list(row.options) == [x.name for x in dataclasses.fields(METHODS[name])]  # type: ignore[arg-type]
    for option, sentence in row.options.items():
        assert re.fullmatch(r"\S.*\.", sentence), (option, sentence)
        assert "``" not in sentence


def test_able_selects_by_policy_objective_and_proof() -> None:
    assert able() == list(METHODS)
    assert set(able(policy="markov")) | set(able(policy="belief")) | {"oracle"} == set(METHODS)
    assert able(objective="mean") == list(METHODS)
    assert "cadp" in able(objective="cvar")
    assert "wsu" not in able(objective="cvar")
    assert able(policy="") == ["oracle"]


def test_a_refusal_names_the_methods_that_can() -> None:
    those = either_quoted(able(policy="markov"))
    with pytest.raises(mmdp.InputError) as told:
        need_table(mmdp.QMDP, "a report shows")
    assert str(told.value) == (
        "a report shows a policy of time and state, and qmdp remembers what it has seen; choose "
        f"method={those}"
    )
    with pytest.raises(mmdp.InputError, match="oracle has one policy per model; choose methods="):
        markov_policy(mmdp.solve(MODEL, 2, "oracle"), "a report shows", argument="methods")
    with pytest.raises(mmdp.InputError, match="not ndarray"):
        markov_policy(MODEL.weights, "a report shows")


def either_quoted(names: list[str]) -> str:
    *most, last = map(repr, names)
    return f"{', '.join(most)} or {last}"


# ---------------------------------------------------------------------- where it is shown
def test_the_command_line_shows_the_table() -> None:
    *lines, empty, changing, endless, tied, aiming = run("methods").out.splitlines()[2:]
    assert len(lines) == len(METHODS)
    assert empty == ""
    told = changing.removeprefix("For models that change over time: ").removesuffix(".")
    assert re.split(", | and ", told) == [row.name for row in capabilities() if row.drifts]
    assert endless == "For an infinite horizon: cadp, mvp, qmdp, mixts, rollout, grid and exact."
    assert tied == "For a tied or monotone policy: cadp."
    assert aiming == "For objectives other than the mean: cadp and milp."
    for line, row in zip(lines, capabilities(), strict=True):
        proves = "nothing" if row.proves is None else row.proves.name.lower().replace("_", " ")
        assert re.split(r"\s{2,}", line) == [row.name, row.title, row.memory, proves]
    document = run("methods", "--json").json
    assert list(document) == list(METHODS)
    assert document["cadp"]["proves"] == "LOCAL_OPTIMUM"
    assert document["wsu"]["proves"] is None
    assert document["qmdp"]["drifts"]
    assert not document["pomcp"]["drifts"]
    assert document["pomcp"]["options"]["queries"] == "Simulations per decision."


@pytest.mark.parametrize("command", ["solve", "compare"])
def test_help_names_the_methods(command: str) -> None:
    text = " ".join(run(command, "--help").out.split())
    known = METHODS if command == "solve" else able(policy="markov", optimal=False)
    for name in known:
        assert re.search(rf"\b{name}\b", text), name


@pytest.mark.parametrize("page", ["README.md", "docs/choose-a-method.md", "docs/api.md"])
def test_pages_leave_no_method_out(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for name, method in METHODS.items():
        assert f"`{name}`" in text or f"::: mmdp.{method.__name__}\n" in text, name


def test_tables_of_methods_on_pages_agree_with_the_table() -> None:
    """Rows under a heading ``memory`` say what the class says."""
    seen = set()
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for names, memory in _rows_with_memory(page):
            assert names <= set(METHODS), page
            seen |= names
            for name in names:
                assert memory in (("no", "–") if TABLE[name].memory == "none" else ("yes",)), page
    assert seen in (set(), set(METHODS))


def test_the_page_about_models_that_change_names_the_methods() -> None:
    page = (ROOT / "docs" / "bring-your-models.md").read_text(encoding="utf-8")
    (row,) = re.findall(r"^\| methods \|(.*)\|$", page, re.M)
    assert set(re.findall(r"`(\w+)`", row)) == set(able(drifts=True))


def test_the_page_says_what_methods_answer() -> None:
    page = (ROOT / "docs" / "choose-a-method.md").read_text(encoding="utf-8")
    for x in capabilities():
        aims = "all" if x.objectives == TABLE["cadp"].objectives else ", ".join(x.objectives)
        cells = [", ".join(x.policies) or "one per model", ", ".join(x.lasting) or "–", aims]
        row = [f"`{x.name}`", *cells, "yes" if x.drifts else "no"]
        assert f"| {' | '.join(row)} |" in page


@pytest.mark.parametrize("name", METHODS)
def test_a_method_plans_for_models_that_change_if_it_says_so(name: str) -> None:
    chain = np.full((4, 4), 0.25)
    few = {"episodes": 4} if "episodes" in TABLE[name].options else {}
    changing = MODEL.replace(model_transitions=chain)
    if TABLE[name].drifts:
        assert np.isfinite(mmdp.solve(changing, 2, METHODS[name](**few)).value)
    else:
        with pytest.raises(mmdp.InputError, match="and these models change"):
            mmdp.solve(changing, 2, METHODS[name](**few))


def _rows_with_memory(page: Path) -> list[tuple[set[str], str]]:
    found, column = [], None
    for line in page.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line[:1] == "|" else []
        if "memory" in cells:
            column = cells.index("memory")
        elif not cells:
            column = None
        elif column is not None and not set(cells[0]) <= set("-: "):
            found.append((set(re.findall(r"`(\w+)`", cells[0])), cells[column]))
    return found


def test_no_other_list_of_methods() -> None:
    """Four names of methods in a row are a second list."""
    name = rf"""["'`]*\b(?:{"|".join(METHODS)})\b["'`]*"""
    listed = re.compile(rf"{name}(?:(?:,\s*|\s+or\s+){name}){{3,}}", re.I)
    assert listed.search('PLANNERS = ("qmdp", "mixts",\n    "pomcp", "rollout")')
    assert listed.search("choose cadp, wsu, mvp, gradient or mirror")
    rooms = ("bounds", "methods", "search")  # the table, bounds of the same names, starts
    for file in sorted((ROOT / "src" / "mmdp").rglob("*.py")):
        inside = file.relative_to(ROOT / "src" / "mmdp")
        if inside.parts[0] not in (*rooms, "__init__.py"):
            assert not listed.search(file.read_text(encoding="utf-8")), inside
