"""The table of methods: true of what they do, and the only list of them."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest

import mmdp
from mmdp.core.methods import METHODS, list_capabilities, methods_supporting
from mmdp.core.methods.registry import check_supported, require_markov_method
from mmdp.core.objectives import as_objective
from mmdp.core.policies import require_markov
from mmdp.core.testing import make_random_model
from tests.cli.calls import run
from tests.conftest import ROOT

MODEL = make_random_model(3, n_models=4, n_states=3, n_actions=2, horizon=0)
CAPABILITIES = {row.name: row for row in list_capabilities()}


@pytest.mark.parametrize("name", METHODS)
def test_a_method_does_what_the_registry_says(name: str) -> None:
    quick_options = {"n_episodes": 20} if "n_episodes" in CAPABILITIES[name].options else {}
    model = MODEL.subset([0, 1]) if name == "grid" else MODEL  # where its grid is fine enough
    solution, row = mmdp.solve(model, 3, METHODS[name](**quick_options)), CAPABILITIES[name]
    assert solution.status is (row.best_status or mmdp.Status.COMPLETED)
    class_names = {mmdp.policies.MarkovPolicy: ("markov",), type(None): ("",)}
    assert row.policy_classes[:1] == class_names.get(type(solution.policy), ("belief",))
    assert (row.memory == "belief") == bool(
        solution.policy is not None and solution.policy.memory_note
    )
    assert row.objectives[0] == "mean"
    assert solution.value == pytest.approx(solution.evaluation.mean)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_title_and_a_sentence_for_each_option(name: str) -> None:
    row = CAPABILITIES[name]
    assert row.title
    assert len(row.title) <= 44  # the table fits a terminal
    assert list(row.options) == [x.name for x in dataclasses.fields(METHODS[name])]  # type: ignore[arg-type]
    for option, sentence in row.options.items():
        assert re.fullmatch(r"\S.*\.", sentence), (option, sentence)
        assert "``" not in sentence


def test_methods_are_selected_by_class_objective_and_proof() -> None:
    assert methods_supporting() == list(METHODS)
    assert set(methods_supporting(policy_class="markov")) | set(
        methods_supporting(policy_class="belief")
    ) | {"oracle"} == set(METHODS)
    assert methods_supporting(objective="mean") == list(METHODS)
    assert "cadp" in methods_supporting(objective="cvar")
    assert "wsu" not in methods_supporting(objective="cvar")
    assert methods_supporting(policy_class="") == ["oracle"]


def test_a_refusal_names_the_supporting_methods() -> None:
    supporting = join_quoted(methods_supporting(policy_class="markov"))
    with pytest.raises(mmdp.InputError) as error:
        require_markov_method(mmdp.methods.QMDP, "a report shows")
    assert str(error.value) == (
        "a report shows a policy of time and state, and qmdp remembers what it has seen; choose "
        f"method={supporting}"
    )
    with pytest.raises(mmdp.InputError, match="oracle has one policy per model; choose methods="):
        require_markov(mmdp.solve(MODEL, 2, "oracle"), "a report shows", method_argument="methods")
    with pytest.raises(mmdp.InputError, match="not ndarray"):
        require_markov(MODEL.weights, "a report shows")


def join_quoted(names: list[str]) -> str:
    *quoted, last = map(repr, names)
    return f"{', '.join(quoted)} or {last}"


# ---------------------------------------------------------------------- where it is shown
def test_the_command_line_shows_the_registry() -> None:
    table, capabilities, _ = run("info").out.split("\n\n")
    lines = table.splitlines()[2:]
    switching_line, infinite_line, restricted_line, objective_line = re.split(
        r"(?<=\.) (?=For )", " ".join(capabilities.split())
    )
    assert len(lines) == len(METHODS)
    listed = switching_line.removeprefix("For models that change over time: ").removesuffix(".")
    assert re.split(", | and ", listed) == [
        row.name for row in list_capabilities() if row.supports_switching
    ]
    assert (
        infinite_line
        == "For an infinite horizon: cadp, mvp, oracle, qmdp, mixts, rollout, grid and exact."
    )
    assert restricted_line == "For a tied or monotone policy: cadp."
    assert objective_line == "For objectives other than the mean: cadp and milp."
    for line, row in zip(lines, list_capabilities(), strict=True):
        proves = (
            "nothing" if row.best_status is None else row.best_status.name.lower().replace("_", " ")
        )
        assert re.split(r"\s{2,}", line) == [row.name, row.title, row.memory, proves]
    document = run("info", "--json").json["methods"]
    assert list(document) == list(METHODS)
    assert document["cadp"]["best_status"] == "LOCAL_OPTIMUM"
    assert document["wsu"]["best_status"] is None
    assert document["qmdp"]["supports_switching"]
    assert not document["pomcp"]["supports_switching"]
    assert document["pomcp"]["options"]["n_queries"] == "Simulations per decision."


def test_help_names_the_methods() -> None:
    text = " ".join(run("solve", "--help").out.split())
    for name in METHODS:
        assert re.search(rf"\b{name}\b", text), name


@pytest.mark.parametrize("page", ["README.md", "docs/choose-a-method.md", "docs/api.md"])
def test_pages_name_every_method(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for name, method in METHODS.items():
        assert f"`{name}`" in text or f"::: mmdp.methods.{method.__name__}\n" in text, name


def test_tables_on_pages_agree_with_the_registry() -> None:
    """Rows under a heading ``memory`` say what the class says."""
    known_names = set()
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for names, memory in _read_memory_rows(page):
            assert names <= set(METHODS), page
            known_names |= names
            for name in names:
                assert memory in (
                    ("no", "–") if CAPABILITIES[name].memory == "none" else ("yes",)
                ), page
    assert known_names in (set(), set(METHODS))


def test_the_switching_page_names_the_methods() -> None:
    page = (ROOT / "docs" / "bring-your-models.md").read_text(encoding="utf-8")
    (row,) = re.findall(r"^\| methods \|(.*)\|$", page, re.M)
    assert set(re.findall(r"`(\w+)`", row)) == set(methods_supporting(switching=True))


def test_the_page_says_what_methods_support() -> None:
    page = (ROOT / "docs" / "choose-a-method.md").read_text(encoding="utf-8")
    for x in list_capabilities():
        objectives = (
            "all" if x.objectives == CAPABILITIES["cadp"].objectives else ", ".join(x.objectives)
        )
        cells = [
            ", ".join(name or "one per model" for name in x.policy_classes),
            ", ".join(name or "one per model" for name in x.infinite_horizon_classes) or "–",
            objectives,
        ]
        row = [f"`{x.name}`", *cells, "yes" if x.supports_switching else "no"]
        assert f"| {' | '.join(row)} |" in page


@pytest.mark.parametrize("name", METHODS)
def test_methods_solve_switching_models_if_they_claim(name: str) -> None:
    model_transitions = np.full((4, 4), 0.25)
    quick_options = {"n_episodes": 4} if "n_episodes" in CAPABILITIES[name].options else {}
    switching = MODEL.replace(model_transitions=model_transitions)
    if CAPABILITIES[name].supports_switching:
        assert np.isfinite(mmdp.solve(switching, 2, METHODS[name](**quick_options)).value)
    else:
        with pytest.raises(mmdp.InputError, match="and these models change"):
            mmdp.solve(switching, 2, METHODS[name](**quick_options))


def _read_memory_rows(page: Path) -> list[tuple[set[str], str]]:
    rows, column = [], None
    for line in page.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line[:1] == "|" else []
        if "memory" in cells:
            column = cells.index("memory")
        elif not cells:
            column = None
        elif column is not None and not set(cells[0]) <= set("-: "):
            rows.append((set(re.findall(r"`(\w+)`", cells[0])), cells[column]))
    return rows


def test_no_other_list_of_methods() -> None:
    """Four names of methods in a row are a second list."""
    name = rf"""["'`]*\b(?:{"|".join(METHODS)})\b["'`]*"""
    listed = re.compile(rf"{name}(?:(?:,\s*|\s+or\s+){name}){{3,}}", re.I)
    assert listed.search('PLANNERS = ("qmdp", "mixts",\n    "pomcp", "rollout")')
    assert listed.search("choose cadp, wsu, mvp, gradient or mirror")
    rooms = (
        "core/bounds",
        "core/methods",
        "core/search",
    )  # the table, bounds, inits
    for file in sorted((ROOT / "src" / "mmdp").rglob("*.py")):
        relative_path = file.relative_to(ROOT / "src" / "mmdp")
        if not relative_path.as_posix().startswith((*rooms, "__init__.py")):
            assert not listed.search(file.read_text(encoding="utf-8")), relative_path


@pytest.mark.parametrize("name", ["gradient", "mirror", "exact", "milp"])
def test_memory_is_checked_for_the_values_of_all_models(name: str) -> None:
    method, markov = METHODS[name](), mmdp.policies.Markov()
    spec = check_supported(method, MODEL, 7, as_objective("mean"), markov)
    n_models, n_states, _ = MODEL.rewards.shape
    assert method.estimate_bytes(spec) == np.zeros((7, n_states, n_models)).nbytes
