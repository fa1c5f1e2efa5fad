"""The page: sections of HTML around the facts, the pictures and the heat map."""

from __future__ import annotations

import base64
import hashlib
import html
from importlib import resources

import numpy as np
import numpy.typing as npt

from mmdp import plots
from mmdp._version import __version__
from mmdp.report.facts import Facts, Row
from mmdp.report.figures import figure, pair
from mmdp.report.knowing import enough, information, willingness
from mmdp.report.pictures import telling_state
from mmdp.report.warnings import warnings
from mmdp.report.words import embedded, label
from mmdp.words import clock, counted, joined, number, percent

MOST_CELLS = 400_000  # of the heat map: more states are left out, the least visited first
MOST_ROWS = 60  # of the table in words
MANY_STATES = 80  # the heat map begins with the most visited ones


def page(facts: Facts, title: str | None = None, notes: tuple[str, ...] = ()) -> str:
    """The whole document."""
    heading = title or _heading(facts)
    sections = {
        "answer": ("The answer", _answer(facts)),
        "asked": ("What was asked", _asked(facts)),
        "policy": ("The policy", _policy(facts)),
        "methods": ("Methods side by side", _methods(facts)),
        "returns": ("Returns and regret over the models", pair(_returns(facts), _regret(facts))),
        "weights": ("Model weights over time", _weights(facts)),
        "information": ("What knowing more is worth", information(facts)),
        "enough": ("Were there enough models?", enough(facts)),
        "willingness": ("Cost and effect: willingness to pay", willingness(facts)),
        "source": ("How this was computed", _source(facts)),
    }
    kept = {key: (name, text) for key, (name, text) in sections.items() if text}
    links = "".join(f'<a href="#{key}">{name}</a>' for key, (name, _) in kept.items())
    body = [f"<h1>{label(heading, 120)}</h1>", f'<p class="quiet">{_sizes(facts)}</p>']
    body.append(f'<nav aria-label="Sections">{links}</nav>')
    for key, (name, text) in kept.items():
        body.append(
            f'<section id="{key}" aria-labelledby="{key}-title">'
            f'<h2 id="{key}-title">{name}</h2>{text}</section>'
        )
        if key == "answer":
            body.append(_warnings(facts, notes))
    return _document(heading, "\n".join(body), _data(facts))


def _document(title: str, body: str, data: str) -> str:
    """The frame: the script is allowed by its hash, everything else of that kind is refused."""
    style, script = _asset("page.css"), _asset("heatmap.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="mmdp {__version__}">
<link rel="icon" href="data:,">
<title>{html.escape(title)}</title>
<style>
{style}</style>
</head>
<body>
<main>
{body}
</main>
<div id="tip" aria-hidden="true" hidden></div>
<script type="application/json" id="policy-data">{data}</script>
<script>{script}</script>
</body>
</html>
"""


def _asset(name: str) -> str:
    return (resources.files("mmdp.report") / name).read_text(encoding="utf-8")


def _heading(facts: Facts) -> str:
    return f"Decision report: {facts.model.name}" if facts.model.name else "Decision report"


def _sizes(facts: Facts) -> str:
    model = facts.model
    return ", ".join(
        [
            counted(model.n_models, "model"), counted(model.n_states, "state"),
            counted(model.n_actions, "action"), counted(facts.horizon, "decision"),
        ]
    )  # fmt: skip


# ------------------------------------------------------------------ the answer
def _answer(facts: Facts) -> str:
    found = facts.evaluation
    cards = [
        ("mean return", number(found.mean)), ("standard deviation over models", number(found.sd)),
        ("worst model", number(found.worst)), ("worst tenth, mean (CVaR 10%)",
        number(found.cvar(0.1))), ("regret, mean", number(max(found.bayes_regret, 0.0))),
        ("largest regret", number(max(found.max_regret, 0.0))),
    ]  # fmt: skip
    if facts.bound is not None:
        cards.append(("gap to the best, at most", percent(facts.bound.gap(found.mean))))
    figures = "".join(f"<li><b>{value}</b> <span>{name}</span></li>" for name, value in cards)
    points = "".join(f"<li>{text}</li>" for text in _points(facts) if text)
    models = (
        "the one model" if facts.model.n_models == 1 else f"the {facts.model.n_models:,} models"
    )
    who = "The given policy" if facts.solution is None else f"The policy found by {facts.name}"
    return (
        f'<p class="lead">{who} returns <strong>{number(found.mean)}</strong> on average over '
        f'{models}.</p><ul class="figures">{figures}</ul><ul>{points}</ul>'
    )


def _points(facts: Facts) -> list[str]:
    found = facts.evaluation
    worst = int(np.where(found.weights > 0, found.returns, np.inf).argmin())
    low, high = found.quantile(0.1), found.quantile(0.9)
    return [
        f"<strong>Spread.</strong> In four of five models it returns between {number(low)} and "
        f"{number(high)}. The worst is model {label(facts.model.model_labels[worst])} with "
        f"{number(found.worst)}; the worst tenth average {number(found.cvar(0.1))}."
        if facts.model.n_models > 1 else "",
        _regret_point(facts),
        _proof(facts),
        _certificate(facts),
        _tested(facts),
    ]  # fmt: skip


def _regret_point(facts: Facts) -> str:
    found = facts.evaluation
    return (
        f"<strong>Regret.</strong> Someone who knew the true model could return "
        f"{number(float(facts.oracle @ found.weights))} on average, {number(found.bayes_regret)} "
        f"more. In the model where not knowing costs most it costs {number(found.max_regret)}."
    )


def _proof(facts: Facts) -> str:
    if facts.solution is None:
        return "<strong>Proof.</strong> The policy was given; its figures are exact."
    return f"<strong>Proof.</strong> {facts.name}: {html.escape(facts.solution.status.value)}."


def _certificate(facts: Facts) -> str:
    value = facts.evaluation.mean
    if facts.bound is None:
        best = float(facts.oracle @ facts.evaluation.weights)
        share = f", {percent((best - value) / abs(value))} of its value" if value else ""
        return (
            "<strong>How good is it?</strong> No policy can do better than the one who knows the "
            f"model, so at most {number(max(best - value, 0.0))} is missing{share}. A tighter "
            "bound was not asked for."
        )
    bound, gap = facts.bound.value, facts.bound.gap(value)
    whom = "any policy" if facts.bound.bounds == "history" else "any policy of time and state"
    if gap <= 1e-9:
        return f"<strong>How good is it?</strong> It is proven to be the best {whom[4:]}."
    within = f" (at most {number(bound - value)} is missing)"
    return (
        f"<strong>How good is it?</strong> It is within <strong>{percent(gap)}</strong> of the "
        f"best {whom} can do: none returns more than {number(bound)}{within}."
    )


def _tested(facts: Facts) -> str:
    tested = facts.held_out
    if tested is None:
        return ""
    return (
        f"<strong>Held-out models.</strong> On {len(tested.returns):,} models that it was not "
        f"computed from it returns {number(tested.mean)} on average (worst {number(tested.worst)}, "
        f"worst tenth {number(tested.cvar(0.1))})."
    )


def _warnings(facts: Facts, notes: tuple[str, ...]) -> str:
    told = [html.escape(note) for note in notes] + warnings(facts)
    if not told:
        return ""
    items = "".join(f"<li>{text}</li>" for text in told)
    return (
        '<aside class="warnings" id="warnings" aria-labelledby="warnings-title">'
        f'<h2 id="warnings-title">Before you rely on it</h2><ul>{items}</ul></aside>'
    )


# ------------------------------------------------------------------ the question
def _asked(facts: Facts) -> str:
    model = facts.model
    likely = np.flatnonzero(model.initial > 0)
    if not model.initial_given and model.n_states > 1:
        start = "not given; every state equally likely"
    elif len(likely) == 1:
        start = f"always state {label(model.state_labels[int(likely[0])])}"
    else:
        start = f"given, over {counted(len(likely), 'state')}"
    equal = np.allclose(model.weights, 1 / model.n_models)
    weights = "all equal" if equal else (
        f"from {number(float(model.weights.min()), 3)} to {number(float(model.weights.max()), 3)}, "
        f"as good as {number(1 / float((model.weights**2).sum()), 3)} equal ones"
    )  # fmt: skip
    rows = [
        ("Models", f"{model.n_models:,}; weights {weights}"),
        ("States", f"{model.n_states:,}: {_some(model.state_labels, model.labelled['state'])}"),
        ("Actions", f"{model.n_actions:,}: {_some(model.action_labels, model.labelled['action'])}"
         + ("" if model.allowed.all() else "; not all are allowed everywhere")),
        ("Horizon", f"{counted(facts.horizon, 'decision')}, at times 0 to {facts.horizon - 1}"
         + ("" if model.horizon is None else "; the models vary with time")),
        ("Discount", f"{model.discount:g} a step"),
        ("Start", start),
    ]  # fmt: skip
    if model.parameters:
        names = joined([label(name, 24) for name in model.parameters], 8)
        rows.append(("Uncertain parameters", f"{len(model.parameters)}: {names}"))
    if model.citation:
        rows.append(("Source of the models", label(model.citation, 500)))
    return (
        "<p>One policy, an action for every time and state, that returns as much as possible on "
        "average over the models.</p>" + _fact_table(rows, "The problem")
    )


def _fact_table(rows: list[tuple[str, str]], caption: str) -> str:
    lines = "".join(f'<tr><th scope="row">{name}</th><td>{text}</td></tr>' for name, text in rows)
    return f'<table class="facts"><caption>{caption}</caption><tbody>{lines}</tbody></table>'


def _some(labels: tuple[str, ...], given: bool) -> str:
    if not given:
        return "without labels, counted from 0"
    return joined([label(x, 24) for x in labels], 6)


# ------------------------------------------------------------------ the policy
def _policy(facts: Facts) -> str:
    looks = [
        ("action", "action"), ("margin", "margin over the runner-up"),
        ("probability", "probability of being there"), ("agree", "models that agree"),
    ]  # fmt: skip
    if facts.stability is not None:
        looks.append(("changes", "changes when models are redrawn"))
    options = "".join(f'<option value="{key}">{name}</option>' for key, name in looks)
    return (
        "<p>Times run to the right, states downwards. Point at a cell to read it. The "
        "<em>margin</em> is what taking the second-best action there once would cost.</p>"
        '<div class="controls scripted" hidden>'
        f'<label>Show <select id="look">{options}</select></label>{_row_choice(facts)}</div>'
        '<figure><ul class="legend" id="legend" aria-label="Legend"></ul>'
        '<div id="map" tabindex="0" role="application" aria-roledescription="heat map" '
        f'aria-label="The policy by time and state: {facts.horizon} times, '
        f'{facts.model.n_states} states" aria-describedby="hint" class="scripted" hidden>'
        "<canvas></canvas></div>"
        '<output id="said" aria-live="polite"></output>'
        '<figcaption><span id="hint" class="hint">By keyboard: focus the map, then '
        "<kbd>←</kbd> <kbd>→</kbd> change the time, <kbd>↑</kbd> <kbd>↓</kbd> the state, "
        "<kbd>Home</kbd> <kbd>End</kbd> go to the first and last time, <kbd>PgUp</kbd> "
        f"<kbd>PgDn</kbd> ten states.</span>{_left_out(facts)}</figcaption></figure>"
        f"{_in_words(facts)}"
    )


def _row_choice(facts: Facts) -> str:
    n_states = len(_mapped_states(facts))
    if n_states <= MANY_STATES:
        return ""
    some = MOST_ROWS
    visits = facts.cells.visited.sum(axis=0)
    share = visits[facts.most_visited[:some]].sum() / max(float(visits.sum()), 1e-300)
    return (
        f'<label>States <select id="rows"><option value="{some}">the {some} most visited '
        f'({percent(float(share))} of the time)</option><option value="all">all {n_states:,}'
        "</option></select></label>"
    )


def _mapped_states(facts: Facts) -> npt.NDArray[np.int64]:
    """The states of the heat map in their order; all of them unless the page grew too large."""
    most = max(1, MOST_CELLS // facts.horizon)
    return np.sort(facts.most_visited[:most])


def _left_out(facts: Facts) -> str:
    missing = facts.model.n_states - len(_mapped_states(facts))
    return f" The {missing:,} least visited states are left out." if missing else ""


def _in_words(facts: Facts) -> str:
    """The policy as a table of runs: for readers without scripts, screens or patience."""
    chosen = np.sort(facts.most_visited[:MOST_ROWS])
    visits = facts.cells.visited.sum(axis=0)
    rows = "".join(
        f'<tr><th scope="row">{label(facts.model.state_labels[s], 32)}</th>'
        f"<td>{number(float(visits[s]), 3)}</td>"
        f'<td class="text">{_runs(facts, s)}</td></tr>'
        for s in chosen.tolist()
    )
    which = (
        "" if len(chosen) == facts.model.n_states else f" of the {MOST_ROWS} most visited states"
    )
    kind = "" if facts.policy.deterministic else " The most probable action is shown."
    return (
        f"<details><summary>The policy in words{which}</summary>"
        f'<div class="scroll"><table><caption>Times and what to do{which}.{kind}</caption><thead>'
        '<tr><th scope="col" class="text">State</th><th scope="col">Expected visits</th>'
        '<th scope="col" class="text">Action by time</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div></details>"
    )


def _runs(facts: Facts, state: int) -> str:
    column = facts.policy.actions[:, state]
    starts = np.flatnonzero(np.concatenate([[True], column[1:] != column[:-1]]))
    ends = [*(starts[1:] - 1).tolist(), len(column) - 1]
    texts = []
    for start, end in list(zip(starts.tolist(), ends, strict=True))[:12]:
        when = str(start) if start == end else f"{start}–{end}"
        texts.append(f"{when}: {label(facts.action_names[int(column[start])], 32)}")
    more = f"; {len(starts) - 12} more changes" if len(starts) > 12 else ""
    return "; ".join(texts) + more


def _data(facts: Facts) -> str:
    """What the script draws, as JSON; arrays as base64 of their bytes, times first."""
    states = _mapped_states(facts)
    used, place = np.unique(facts.policy.actions, return_inverse=True)
    place = place.reshape(facts.policy.actions.shape)
    colours = plots.action_colours(len(used))
    order = {int(s): i for i, s in enumerate(states)}
    cells = facts.cells
    numbers = {"margin": cells.margin, "probability": cells.visited, "agree": cells.agree}
    if facts.stability is not None:
        numbers["changes"] = facts.stability.frequency
    return embedded(
        {
            "horizon": facts.horizon,
            "states": [" ".join(facts.model.state_labels[s].split()) for s in states.tolist()],
            "actions": [" ".join(text.split()) for text in facts.action_names],
            "used": used.tolist(),
            "marks": plots.letters(len(used)),
            "colours": colours,
            "inks": [plots.ink_on(colour) for colour in colours],
            "place": _packed(place[:, states], "<u2"),
            "runner": _packed(cells.runner_up[:, states], "<i4"),
            "numbers": {name: _packed(x[:, states], "<f4") for name, x in numbers.items()},
            "most_visited": [order[int(s)] for s in facts.most_visited[:MOST_ROWS]],
        }
    )


def _packed(array: npt.NDArray[np.generic], kind: str) -> str:
    return base64.b64encode(np.ascontiguousarray(array, dtype=kind).tobytes()).decode()


# ------------------------------------------------------------------ sections with a picture
def _methods(facts: Facts) -> str:
    tested = facts.test is not None
    heads = ["Mean", "sd", "Worst", "CVaR 10%", "Regret", *(["Held-out mean"] if tested else []),
             "Seconds"]  # fmt: skip
    cells = "".join(f'<th scope="col">{name}</th>' for name in heads)
    rows = "".join(_method_row(row, tested) for row in facts.rows)
    simulated = any(row.found.errors is not None for row in facts.rows)
    return (
        '<div class="scroll"><table><caption>Returns over the models; higher is better, regret '
        "aside. Oracle knows the model: no policy does better."
        f"{' ± is the standard error of a simulated mean.' if simulated else ''}</caption>"
        f'<thead><tr><th scope="col" class="text">Policy of</th>{cells}'
        '<th scope="col" class="text">Proven</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div>" + pair(figure(facts, "methods", ""), _trace(facts))
    )


def _method_row(row: Row, tested: bool) -> str:
    found = row.found
    mean = number(found.mean, 5)
    if found.errors is not None:
        mean += f" ± {number(found.stderr, 2)}"
    cells = [mean, number(found.sd), number(found.worst), number(found.cvar(0.1)),
             number(max(found.bayes_regret, 0.0))]  # fmt: skip
    if tested:
        cells.append("–" if row.held_out is None else number(row.held_out.mean, 5))
    cells.append("–" if row.seconds is None else clock(row.seconds))
    return (
        f'<tr><th scope="row">{label(row.name)}</th>{"".join(f"<td>{x}</td>" for x in cells)}'
        f'<td class="text"><small>{html.escape(row.status)}</small></td></tr>'
    )


def _returns(facts: Facts) -> str:
    above = "The further right a line, the better. Where the lines are close, not knowing the "
    return figure(facts, "returns", above + "model costs little.")


def _regret(facts: Facts) -> str:
    found = facts.evaluation
    near = float(found.weights[found.regret <= 0.01 * np.abs(found.oracle)].sum())
    text = f"In {percent(near)} of the models the policy is within 1% of that model's own optimum."
    return figure(facts, "regret", text)


def _weights(facts: Facts) -> str:
    if facts.weights is None or facts.model.n_models < 2:
        return ""
    state = label(facts.model.state_labels[telling_state(facts)], 32)
    still = plots.informed(facts.weights)[-1, 0]
    text = (
        "Under this policy the state reached tells something about the model. Left: how many "
        "equally likely models would be as uncertain as those in play, given the state; at the "
        f"last decision {number(float(still), 3)} of {facts.model.n_models:,}. Right: state "
        f"{state}, where the weights move most, and the models that gain most in it. The policy "
        "weighs the models by these numbers in each state and time."
    )
    return figure(facts, "weights", text)


def _trace(facts: Facts) -> str:
    if not facts.traces:
        return ""
    gains = [float(y[-1] - y[0]) for y in facts.traces.values()]
    if all(len(y) == 1 for y in facts.traces.values()):
        return "<p>CADP kept its start: no change of a single action improves it.</p>"
    text = (
        f"The value never falls from one iteration to the next. From its start CADP gained "
        f"{number(max(gains))}."
    )
    return figure(facts, "trace", text)


# ------------------------------------------------------------------ provenance
def _source(facts: Facts) -> str:
    rows = [("Software", f"mmdp {__version__}")]
    if facts.solution is not None:
        source = facts.solution.provenance
        options = ", ".join(
            f"{key} {value}" for key, value in source.options.items()
            if isinstance(value, (str, int, float)) and not isinstance(value, bool)
        )  # fmt: skip
        rows += [
            ("Method", label(f"{source.method}{f' ({options})' if options else ''}", 200)),
            ("Iterations", f"{facts.solution.iterations:,}"),
            ("Kernel", f"{html.escape(source.backend)}, {clock(source.seconds)} s"),
        ]
    if facts.bound is not None:
        seconds = f", {clock(facts.bound.seconds)} s" if facts.bound.seconds else ""
        rows.append(("Bound", f"{html.escape(facts.bound.method)}{seconds}"))
    if facts.stability is not None:
        rows.append(("Resamples of the models", str(len(facts.stability.changed))))
    rows.append(("Seed", str(facts.seed)))
    return _fact_table(rows, "Enough to compute it again")
