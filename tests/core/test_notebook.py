"""What notebooks show: well-formed, escaped, small, and the actions that the policy takes."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.colors import to_hex

import mmdp
from mmdp.insight.draw.palette import make_action_colors

EVIL = '<script>alert("x")</script> & co'


def make_labeled_model(**fields: Any) -> mmdp.MMDP:
    rng = np.random.default_rng(0)
    names = {"states": ["low", EVIL, "high"], "actions": ["wait", "<b>act</b>"], "name": EVIL}
    return mmdp.MMDP(
        rng.dirichlet(np.ones(3), size=(4, 3, 2)),
        rng.normal(size=(4, 3, 2)),
        initial=[1, 0, 0],
        **names | fields,
    )


def render_html(item: Any) -> tuple[str, ElementTree.Element]:
    """The HTML, and the same parsed as XML."""
    html = item._repr_html_()
    return html, ElementTree.fromstring(f"<div>{html}</div>")


def make_items() -> list[Any]:
    model = make_labeled_model()
    solution = mmdp.solve(model, 5)
    return [
        model,
        solution,
        solution.policy,
        solution.evaluation,
        mmdp.evaluate(model, solution),
        mmdp.solve(model, 5, "oracle"),
        mmdp.solve(model, 4, policy_class=mmdp.policies.Memory(max_nodes=2)),
        mmdp.solve(model, 4, policy_class=mmdp.policies.Memory(max_nodes=2)).policy,
        mmdp.solve(model.replace(discount=0.9), np.inf).policy,
        mmdp.policies.MarkovPolicy.uniform(model, 3),
        mmdp.solve(model, 3, "qmdp"),
    ]


@pytest.fixture(scope="module")
def items() -> list[Any]:
    return make_items()


def test_it_is_well_formed_escaped_and_small(items: list[Any]) -> None:
    for item in items:
        html, _ = render_html(item)
        assert "<script" not in html
        assert "<b>act" not in html
        assert len(html) < 30_000
        assert "http" not in html.replace("http://www.w3.org/2000/svg", "")


def test_a_policy_is_shown_as_its_plot(tmp_path: Path) -> None:
    model = make_labeled_model()
    policy = mmdp.solve(model, 6).policy
    _, root = render_html(policy)
    (image,) = root.iter("img")
    picture = base64.b64decode(str(image.get("src")).removeprefix("data:image/png;base64,"))
    assert picture == mmdp.plots.to_png(mmdp.plots.policy_heatmap(policy), 80)
    assert image.get("alt") == "Actions by time and state"


def test_a_large_policy_is_drawn_too() -> None:
    rng = np.random.default_rng(1)
    policy = mmdp.policies.MarkovPolicy(rng.integers(0, 30, size=(2000, 300)))
    html, _ = render_html(policy)
    assert len(html) < 1_000_000


def test_the_figures_are_those_of_the_solution(items: list[Any]) -> None:
    solution = items[1]
    html, _ = render_html(solution)
    assert mmdp.core.text.format_column([solution.value])[0] in html
    assert solution.status.name in html
    html, _ = render_html(items[0])
    assert "<td" in html
    assert "3: low" in html


def test_an_action_has_one_color_everywhere(tmp_path: Path) -> None:
    """Actions 1 and 3 of four, so that counting those in use would give other colours."""
    rng = np.random.default_rng(2)
    names = ["stop", "wait", "test", "treat"]
    model = mmdp.MMDP(
        rng.dirichlet(np.ones(2), size=(3, 2, 4)), rng.normal(size=(3, 2, 4)), actions=names
    )
    policy = mmdp.policies.MarkovPolicy.for_model(model, np.array([[1, 3], [3, 1]], dtype=np.int32))
    colors = dict(zip(names, make_action_colors(4), strict=True))
    legend = mmdp.plots.policy_heatmap(policy).get_legend()
    assert legend is not None
    for patch, text in zip(legend.get_patches(), legend.get_texts(), strict=True):
        name = text.get_text().split("  ")[1]
        assert to_hex(patch.get_facecolor()) == colors[name].lower()
    options = {"methods": (), "time_limit": 0}
    page = mmdp.report.write(model, tmp_path / "p.html", policy=policy, **options)
    text = page.read_text(encoding="utf-8")
    data = json.loads(re.search(r'id="policy-data">(.*?)</script>', text)[1])  # type: ignore[index]
    page_colors = {
        data["actions"][a]: c for a, c in zip(data["usedActions"], data["colors"], strict=True)
    }
    assert {"wait", "treat"} <= {*page_colors}
    assert page_colors.items() <= colors.items()
