"""Sections about more: more knowledge, more models, more money for an effect."""

from __future__ import annotations

import html

from mmdp.report.facts import FEWEST, Facts
from mmdp.report.figures import figure
from mmdp.report.words import label
from mmdp.words import number, percent


def information(facts: Facts) -> str:
    """EVPI always, EVPPI where parameters are known and the work is small or asked for."""
    if facts.model.n_models < 2:
        return ""
    best = facts.evaluation.mean if facts.best is None else facts.best.value
    total = float(facts.oracle @ facts.model.weights) - max(best, facts.evaluation.mean)
    text = (
        f"<p>Knowing the model before the first decision is worth at most "
        f"<strong>{number(max(total, 0.0))}</strong> on average (expected value of perfect "
        "information, EVPI; it is exact where the best policy found is optimal). A study that "
        "costs more than this cannot pay.</p>"
    )
    table = facts.information
    if table is None:
        if facts.model.parameters:
            text += (
                "<p>What single parameters are worth takes many solves and was not asked for "
                "(<code>information=True</code>, <code>--information</code>).</p>"
            )
        return text
    rows = "".join(
        f'<tr><th scope="row">{label(name, 40)}</th><td>{number(worth)}</td>'
        f'<td>{percent(share)}</td><td class="text">{html.escape(estimator)}</td></tr>'
        for name, worth, share, estimator in table.iloc[1:].to_numpy().tolist()
    )
    return (
        f'{text}<div class="scroll"><table><caption>Worth of knowing one parameter before acting '
        '(EVPPI)</caption><thead><tr><th scope="col" class="text">Parameter</th>'
        '<th scope="col">Worth</th><th scope="col">Share of EVPI</th>'
        f'<th scope="col" class="text">Estimated by</th></tr></thead><tbody>{rows}</tbody></table>'
        "</div>" + figure(facts, "information", "")
    )


def enough(facts: Facts) -> str:
    """What other draws of the models, and fewer of them, would change."""
    if facts.model.n_models < 2:
        return ""
    return _resampled(facts) + _by_size(facts)


def _resampled(facts: Facts) -> str:
    found = facts.stability
    if found is None:
        if facts.given is not None:
            return (
                "<p>How far a decision hangs on the draw of the models is only known for a policy "
                "that the report computes itself; leave the policy out to see it.</p>"
            )
        return _not_asked("Solving again on models drawn anew")
    return (
        f"<p>Models drawn anew {len(found.changed)} times from these (with replacement) change "
        f"<strong>{percent(found.share)}</strong> of the decisions that come up, "
        f"{percent(float(found.changed.max()))} at most. A policy found from such models loses "
        f"{number(float(found.losses.mean()), 3)} on average on these; the heat map can show "
        "where decisions change.</p>"
    )


def _by_size(facts: Facts) -> str:
    table = facts.sizes
    if table is None:
        few = facts.model.n_models < 2 * FEWEST
        return "" if few or not facts.methods else _not_asked("Solving with fewer models")
    last = table.iloc[-1]
    half = table.iloc[int((table["models"] - last["models"] / 2).abs().argmin())]
    change = float(last["test"] - half["test"])
    share = f" ({percent(abs(change) / abs(last['test']))})" if last["test"] else ""
    held = "held-out models" if facts.test is not None else "the other half of the models"
    return (
        f"<p>A policy computed from {int(last['models']):,} models instead of "
        f"{int(half['models']):,} returns {number(abs(change), 3)}{share} "
        f"{'more' if change >= 0 else 'less'} on {held}. Where this is more than you care about, "
        "draw more models.</p>" + figure(facts, "enough", "")
    )


def _not_asked(what: str) -> str:
    return (
        f"<p>{what} takes many solves of this size and was left out "
        "(<code>resamples=20, enough=True</code>, <code>--enough</code>).</p>"
    )


def willingness(facts: Facts) -> str:
    found = facts.willingness
    if found is None:
        return ""
    rows = "".join(
        f'<tr><th scope="row">{number(worth)}</th><td class="text">{label(name)}</td>'
        f"<td>{number(effect)}</td><td>{number(cost, 5)}</td><td>{number(benefit, 5)}</td>"
        f"<td>{percent(chance)}</td><td>{number(icer)}</td></tr>"
        for worth, name, effect, cost, benefit, chance, icer in found.frontier.to_numpy().tolist()
    )
    names = ("Effect", "Cost", "Net benefit", "Best in", "One more unit costs")
    heads = "".join(f'<th scope="col">{name}</th>' for name in names)
    return (
        "<p>The best policy at each price of one unit of effect. <em>Best in</em> is the weight of "
        "the models in which it is the best of the policies found (the acceptability frontier). "
        "The last column is the added cost by the added effect against the policy before it.</p>"
        '<div class="scroll"><table><caption>Willingness to pay and the policy to choose</caption>'
        '<thead><tr><th scope="col" class="text">Worth of one unit</th><th scope="col" '
        f'class="text">Policy</th>{heads}</tr>'
        f"</thead><tbody>{rows}</tbody></table></div>" + figure(facts, "willingness", "")
    )
