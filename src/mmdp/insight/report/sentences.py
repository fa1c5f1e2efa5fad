"""Sentences of a page: small functions of facts. Templates only say where they stand.

``Markup.format`` escapes what it puts into a sentence, so a label stays text whatever it holds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from markupsafe import Markup

from mmdp.core.solution import Evaluation, describe_restriction_cost
from mmdp.core.text import (
    ROUNDING_RTOL,
    digits_for,
    format_duration,
    format_lead,
    format_number,
    format_percent,
    pluralize,
    shorten,
)
from mmdp.insight.measures import Stability
from mmdp.insight.pages import render_label, render_list
from mmdp.insight.report import findings
from mmdp.insight.report.context import ReportContext
from mmdp.insight.report.findings import (
    ControllerReport,
    InformationValue,
    MemoryValue,
    MethodComparison,
    OffGridCheck,
    PairComparison,
    SampleSizeCurve,
    SectionResults,
    SmallTree,
    Summary,
)
from mmdp.insight.report.interactive import TAIL_SHARE, PolicyComparison
from mmdp.insight.report.sections import SkippedSection

MIN_MODELS = 30
MIN_TAIL_MODELS = 5  # in the worst tenth
MIN_CHANGED_SHARE = 0.01  # of the decisions: if more change, that is worth a warning
MIN_SHARE = 0.9999  # of something that is as good as all of it
SCOPE_TEXTS = {  # of bounds
    "history": "policy",
    "markov": "policy of time and state",
    "stationary": "policy of the state alone",
    "deterministic markov": "deterministic policy of time and state",
    "deterministic stationary": "deterministic policy of the state alone",
    "fixed": "deterministic policy with these decisions given",
}
UNSEEN_TEXTS = {  # what a prior says about pairs that were never seen
    "forbid": "no policy may take them",
    "absorb": "the models stay in that state and earn 0",
}


# ---------------------------------------------------------------------- parts of sentences
def capitalize(text: str) -> str:
    """Begin a sentence with a capital letter; the other letters stay as they are."""
    return text[:1].upper() + text[1:]


def decapitalize(text: str) -> str:
    """Begin a text inside a sentence with a small letter."""
    return text[:1].lower() + text[1:]


def format_request(skipped: SkippedSection) -> Markup:
    """Say about how long a section that was left out takes, and how to request it."""
    hints = Markup(", ").join(map(Markup("<code>{}</code>").format, skipped.section.request_hint))
    separator = ": " if hints else ""
    return Markup("(about {}{}{})").format(format_duration(skipped.seconds), separator, hints)


def describe_reference(context: ReportContext, methods: MethodComparison) -> str:
    """Name the policy that gains on average are counted from."""
    name, mean = methods.reference
    if name == "this policy":
        return name
    class_text = f"{context.policy_class.name} " * context.policy_class.is_restricted
    amount = context.format_amount(mean)
    return f"the best {class_text}policy found on average, {shorten(name, 48)} with {amount}"


def _on_average(context: ReportContext, text: str) -> str:
    """Begin a sentence about averages, which are not what counts if the objective is another."""
    return f"On average, {text}" if context.has_risk_objective else capitalize(text)


def _compare(context: ReportContext, *, is_higher: bool) -> str:
    """Choose the word for a value that is higher or lower than another."""
    if context.objective.uses_regret:
        return "better" if is_higher else "worse"
    if context.has_risk_objective:
        return "higher" if is_higher else "lower"
    return "more" if is_higher else "less"


def _format_most(context: ReportContext, amount: float) -> str:
    """Format a proven bound on a gain, rounded up, with its share of what is at stake."""
    return context.format_bound(amount) + context.stake.format_share(amount, round_up=True)


def _describe_loss(context: ReportContext, evaluation: Evaluation) -> str:
    """Say what following another policy costs."""
    loss = context.compute_loss(evaluation)
    if loss <= 0:
        return "costs nothing"
    verb = f"worsens the {context.objective.name} by" if context.has_risk_objective else "costs"
    # of the policy that the value at stake is counted from, it is 100% by definition
    is_stake = math.isclose(loss, context.stake.amount, rel_tol=ROUNDING_RTOL)
    share = "" if is_stake else context.stake.format_share(loss)
    return f"{verb} {context.format_difference(loss)}{share}"


def _count_models(n_models: int, size: int, weight: float) -> str:
    """Count some models among all, with their weight if that is another share."""
    count = {0: "none of the", size: "all"}.get(n_models, f"{format_number(n_models)} of")
    has_other_share = round(weight, 6) != round(n_models / size, 6)
    weight_text = f" ({format_percent(weight)} of the weight)" * has_other_share
    return f"{count} {format_number(size)} models{weight_text}"


def _describe_better_models(context: ReportContext, comparison: PairComparison) -> str:
    """Say in how many models a policy returns more than another."""
    gain, n_models, n_better, weight = comparison
    if n_models == 1 or not (gain or n_better):
        return ""
    models = _count_models(n_better, n_models, weight)
    return f", and {'it returns ' * context.has_risk_objective}more in {models}"


# ---------------------------------------------------------------------- the answer
def describe_controller(context: ReportContext, controller: ControllerReport) -> Markup:
    """Say what the given finite-state controller returns, and how much more than this policy."""
    policy, gain = context.controller, controller.comparison.gain
    assert policy is not None
    finder, nodes = render_label(context.name), f"with {policy.n_nodes} nodes of memory"
    if policy.n_nodes == 1:
        nodes = "whose only node remembers nothing"
    comparison = Markup("Without memory, {} finds as much").format(finder)
    if gain:
        has_risk = context.has_risk_objective
        comparison = Markup("{} <strong>{}</strong>{} {} than {}{} finds without memory{}").format(
            f"Its {context.objective.name} is" if has_risk else "That is",
            context.format_difference(abs(gain)),
            context.stake.format_share(abs(gain)),
            _compare(context, is_higher=gain > 0),
            "what " * has_risk,
            finder,
            _describe_better_models(context, controller.comparison),
        )
    return Markup(
        "The given policy, {}, returns <strong>{}</strong> on average "
        '(<a href="#controller">its flow chart</a>). {}. The rest of this page is about the policy '
        "without memory."
    ).format(nodes, context.format_amount(controller.evaluation.mean), comparison)


def describe_return(context: ReportContext) -> Markup:
    """Say what the policy returns on average, and by what counts."""
    n_models, objective = context.model.n_models, context.objective
    text = Markup("{} returns <strong>{}</strong> on average over the {}.").format(
        "The given policy" if context.solution is None else f"The policy found by {context.name}",
        context.format_amount(context.evaluation.mean),
        "one model" if n_models == 1 else pluralize(n_models, "model"),
    )
    text += _describe_infinite_horizon(context)
    if not context.has_risk_objective:
        return text
    return text + Markup(" What counts is {} ({}): <strong>{}</strong>.").format(
        decapitalize(objective.sentence[:-1]), objective.name, context.format_amount(context.value)
    )


def _describe_infinite_horizon(context: ReportContext) -> str:
    """Say how much of an infinite horizon the page counts; empty if the policy's is finite."""
    if context.infinite_policy is None:
        return ""
    returns, share, infinite_mean = "", "", context.infinite_mean
    if infinite_mean is not None:
        returns = f", over which it returns {context.format_amount(infinite_mean)} on average"
        weight = 1 - context.model.discount**context.horizon
        share = f", {format_percent(weight)} of the discounted weight"
    decisions = (
        "decision" if context.horizon == 1 else f"{format_number(context.horizon)} decisions"
    )
    return (
        f" It is a policy for an infinite horizon{returns}; this page counts the first "
        f"{decisions}{share}."
    )


def describe_small_tree(context: ReportContext, tree: SmallTree) -> Markup:
    """Say what the smallest tree costs, or gains."""
    evaluation = tree.row.evaluation
    gain, consequence = -context.compute_loss(evaluation), _describe_loss(context, evaluation)
    if gain > 0:
        amount = context.format_difference(gain)
        improved_text = f"improves the {context.objective.name} by {amount}"
        consequence = improved_text if context.has_risk_objective else f"returns {amount} more"
    leaves = pluralize(tree.policy.n_leaves, "leaf", "leaves")
    return Markup("A rule of <strong>{}</strong> {}.").format(leaves, consequence)


def describe_comparison(
    context: ReportContext, name: str, comparison: PairComparison, tested: PairComparison | None
) -> Markup:
    """Compare the policy with one that was named, also on the test models."""
    has_risk, gain = context.has_risk_objective, comparison.gain
    subject = f"Its {context.objective.name} is" if has_risk else "It returns"
    difference = Markup("<strong>{}</strong> {} than{}").format(
        context.format_difference(abs(gain)),
        _compare(context, is_higher=gain > 0),
        " that of" * has_risk,
    )
    equal = "the same as that of" if has_risk else "as much as"
    models = _describe_better_models(context, comparison)
    text = Markup("{} {} {}{}").format(
        subject, difference if gain else equal, render_label(name), models
    )
    if tested is not None:
        amount = context.format_difference(abs(tested.gain))
        tested_text = f"{amount} {_compare(context, is_higher=tested.gain > 0)}"
        equal_text = "the same" if has_risk else "as much"
        text += f"; on the held-out models {tested_text if tested.gain else equal_text}"
        text += _describe_better_models(context, tested)
    return text + "."


def describe_actions(context: ReportContext, summary: Summary) -> Markup:
    """Say what to do in each phase, or which actions are the most frequent."""
    if not summary.sentences:
        inputs = "the state" if context.is_stationary else "the state and the time"
        return Markup(
            "It depends on {}, as the map shows. The most frequent actions are {}."
        ).format(inputs, describe_frequent_actions(summary.frequent_actions))
    phases = []
    for times, clauses in summary.sentences:
        texts = [
            Markup("<strong>{}</strong>{}{}").format(
                render_label(action),
                f" {states}" if states else "",
                f" ({format_percent(share)} of the time)" if share < MIN_SHARE else "",
            )
            for action, states, share in clauses
        ]
        phases.append(Markup("{}: {}").format(times, Markup(", ").join(texts)))
    text, agreement = Markup("; ").join(phases) + ".", context.phased_policy.agreement
    if agreement >= MIN_SHARE:
        return text
    share_text = format_percent(agreement) if agreement < 0.99 else "more than 99%"
    return text + Markup(
        ' <span class="quiet">These words are right for {} of the decisions that come up; the map '
        "has them all.</span>"
    ).format(share_text)


def describe_frequent_actions(actions: list[tuple[str, float]]) -> Markup:
    """List actions with their shares of the decisions."""
    template = Markup("<strong>{}</strong> ({} of the decisions)")
    return render_list(template.format(render_label(x), format_percent(p)) for x, p in actions)


def describe_randomness(context: ReportContext, summary: Summary) -> Markup:
    """Say in how many decisions the policy draws its action at random."""
    link = ' (<a href="#good">what drawing gains, and how it draws</a>)'
    return Markup(
        "In {} of the decisions that come up it draws the action at random; words and map name the "
        "most probable one{}."
    ).format(
        format_percent(summary.share_randomized),
        Markup(link) if _describe_randomization(context) else "",
    )


def describe_return_range(context: ReportContext, summary: Summary) -> Markup:
    """Say what the policy returns in each of a few models, or in most of them and in the worst."""
    model, evaluation, x = context.model, context.evaluation, summary.return_range
    n_models = model.n_models
    if n_models < 5:
        texts = [
            Markup("{} in model {}").format(context.format_amount(value), render_label(name))
            for name, value in zip(model.model_labels, evaluation.returns, strict=True)
        ]
        return Markup("It returns {}.").format(render_list(texts))
    return Markup(
        "In {} it returns between {} and {}. The worst is model {} with {}; the worst tenth "
        "average {}."
    ).format(
        _count_models(x.n_models, n_models, x.weight),
        context.format_amount(x.low),
        context.format_amount(x.high),
        render_label(summary.worst_model),
        context.format_amount(evaluation.worst),
        context.format_amount(evaluation.cvar(TAIL_SHARE)),
    )


def describe_safer_policy(context: ReportContext, comparison: PolicyComparison) -> str:
    """Say what the safest policy of the page gains in the worst models, and what it gives up."""
    models = "the worst tenth" if context.model.n_models < 5 else "them"
    safest = comparison.safest_row
    mean_gain, gain = comparison.compute_gains(safest)
    if gain <= context.negligible:
        limit = context.format_difference(context.negligible)
        limit += context.stake.format_share(context.negligible)
        lifts = f"lifts {models} by more than {limit}" if gain else f"is safer for {models}"
        return f"No policy was found that {lifts}."
    change = context.format_difference(abs(mean_gain))
    price = "gives up nothing"
    if mean_gain:
        given_up = f"gives up {change}{context.mean_stake.format_share(-mean_gain)}"
        price = given_up if mean_gain < 0 else f"returns {change} more"
    is_restricted = context.policy_class.is_restricted
    is_free = is_restricted and safest in comparison.rows[: comparison.n_frontier]
    return Markup(
        'A <a href="#frontier">safer policy</a> ({}{}) lifts {} by {} to {} and {} on average.'
    ).format(
        render_label(safest.name),
        ", without the restriction" * is_free,
        models,
        context.format_difference(gain),
        context.format_amount(safest.evaluation.cvar(TAIL_SHARE)),
        price,
    )


def iter_simpler(context: ReportContext, results: SectionResults) -> Iterator[str]:
    """Say what the short rule and other simple policies cost."""
    summary = results.summary
    is_rule_shown = bool(context.policy_text) or results.small_tree is not None
    phased_evaluation = summary.phased_row.evaluation
    if not is_rule_shown and (summary.sentences or context.compute_loss(phased_evaluation) > 0):
        rule = "the short rule of the table below"
        if summary.sentences:
            rule = "these words to the letter"
        yield f"Following {rule} {_describe_loss(context, phased_evaluation)}."
    for row in results.simpler or ():
        has_loss = context.compute_loss(row.evaluation) > 0
        or_less = " or less" * (has_loss and row.name == findings.STATIONARY_NAME)
        yield f"{capitalize(row.name)} {_describe_loss(context, row.evaluation)}{or_less}."


def describe_memory_gain(context: ReportContext, memory: MemoryValue) -> str:
    """Say what memory gains, and which policies that is about."""
    text, scopes = memory.table.attrs["text"], ["on average"] * context.has_risk_objective
    scopes += ["without the restriction"] * context.policy_class.is_restricted
    return capitalize(", ".join(filter(None, [" and ".join(scopes), text])))


def describe_learning_gain(
    context: ReportContext, summary: Summary, methods: MethodComparison
) -> str:
    """Say how much a policy could gain at most that learns which models are plausible."""
    reference, mean = describe_reference(context, methods), methods.reference[1]
    if context.policy_class.is_restricted:
        mean, amount = methods.free_mean, context.format_amount(methods.free_mean)
        reference = f"the best policy of time and state that was found ({amount})"
    gain = max(summary.history_bound - mean, 0.0)
    if gain <= summary.rounding:
        text = f"no policy that learns which models are plausible returns more than {reference}."
        return _on_average(context, text)
    amount = context.format_bound(gain) + context.mean_stake.format_share(gain, round_up=True)
    text = "a policy that learns which models are plausible could return at most"
    return _on_average(context, f"{text} {amount} more than {reference}.")


def describe_known_objective(context: ReportContext, summary: Summary) -> str:
    """Say how much better the objective could be with the model known; empty for the mean."""
    gap = summary.oracle_gap
    if not context.has_risk_objective or gap is None:
        return ""
    any_policy = " and any policy" * context.policy_class.is_restricted
    gain = f"at most {_format_most(context, gap)}" if gap else "no"
    return (
        f"With the model known before the first decision{any_policy}, the {context.objective.name} "
        f"could be {gain} {_compare(context, is_higher=True)} than with this policy. "
    )


def _format_worth(context: ReportContext, summary: Summary, value: float) -> str:
    """Format an estimated value of information."""
    is_none = value <= summary.rounding
    return "nothing" if is_none else context.format_difference(value)


def describe_evpi(
    context: ReportContext,
    summary: Summary,
    methods: MethodComparison,
    voi: InformationValue | None,
    emphasis: str,
) -> Markup:
    """Say what knowing the model before the first decision is worth.

    ``emphasis`` is the HTML around an amount: a link in the summary.
    """
    knowing = _on_average(context, "knowing the model before the first decision is worth")
    reference, gain = describe_reference(context, methods), methods.oracle_gain
    is_restricted = context.policy_class.is_restricted
    if gain <= summary.rounding:
        worth = Markup("nothing")
    else:
        worth = Markup("at most {}{}{}").format(
            Markup(emphasis).format(context.format_bound(gain)),
            context.mean_stake.format_share(gain, round_up=True),
            " with any policy" * is_restricted,
        )
        if voi is not None and is_restricted:
            class_evpi = float(voi.table["value"][0])
            about = "about " * (class_evpi > summary.rounding)
            worth = Markup("{} with {} policies and {}").format(
                Markup(emphasis).format(about + _format_worth(context, summary, class_evpi)),
                context.policy_class.name,
                worth,
            )
    return Markup("{} {}, compared with {}.").format(knowing, worth, reference)


def describe_best_parameter(
    context: ReportContext, summary: Summary, name: str, value: float
) -> Markup:
    """Say what knowing the parameter that is worth most alone is worth."""
    worth, averages = (
        _format_worth(context, summary, value),
        " on average" * context.has_risk_objective,
    )
    return Markup("Knowing {} alone is worth {}{}.").format(render_label(name), worth, averages)


def describe_quality(
    context: ReportContext, summary: Summary, memory: MemoryValue | None
) -> Markup:
    """Say how far the policy is from the best at most, and how it was found."""
    sentences = [_describe_bound(context, summary, memory)]
    if context.solution is None:
        sentences.append("The policy was given; its figures are exact.")
    else:
        sentences.append(f"{context.name}: {findings.describe_status(context.solution)}.")
    if restriction_cost := _describe_restriction_cost(context):
        other = "any policy of time and state"
        if context.free_value is not None:
            objective = f"{context.objective.name} " * context.has_risk_objective
            amount = context.format_amount(context.free_value)
            other = f"the best policy found without the restriction ({objective}{amount})"
        sentences.append(f"Compared with {other}, {restriction_cost}.")
    if gain := _describe_randomization(context):
        is_stationary = context.policy_class.name == "stationary"
        where = "in each state" if is_stationary else "at each time and state"
        other = f"the best policy found that takes one action {where}"
        sentences.append(f"Compared with {other}, {gain}.")
    return Markup(" ").join(sentences)


def _describe_restriction_cost(context: ReportContext) -> str:
    """Describe what the restriction of the policy class costs; empty if that is not known."""
    is_known = context.solution is not None or context.free_value is not None
    if not (context.policy_class.is_restricted and is_known):
        return ""
    return describe_restriction_cost(
        context.policy_class,
        context.value,
        context.free_value,
        None if context.bound is None else context.bound.markov_bound,
        context.model.unit,
        context.stake.format_share,
    )


def _describe_randomization(context: ReportContext) -> str:
    """Describe what drawing actions at random gains; empty if that is not known."""
    solution, format_share = context.solution, context.stake.format_share
    return "" if solution is None else solution.describe_randomization(format_share)


def _describe_bound(context: ReportContext, summary: Summary, memory: MemoryValue | None) -> str:
    """Say how far the policy is from the best at most, by its bound or by what memory returns."""
    bound, value, name = context.bound, context.value, context.objective.name
    has_risk, gap = context.has_risk_objective, summary.oracle_gap
    if bound is not None:
        policies, room = SCOPE_TEXTS[bound.scope], bound.value - value
        if summary.is_closed:
            return f"It is proven to be the best {policies}" + f" for {name}" * has_risk + "."
        limit = context.format_bound(bound.value, digits_for(bound.value, room))
        return Markup(
            "No {} {} than {}: this policy is at most <strong>{}</strong>{} below the best."
        ).format(
            policies,
            f"has a {name} of more" if has_risk else "returns more",
            limit,
            context.format_bound(room),
            context.stake.format_share(room, round_up=True),
        )
    history_value = None if memory is None or has_risk else float(memory.table["value"].iloc[-2])
    if gap and history_value is not None and history_value < summary.oracle_mean:
        room = history_value - value
        limit = context.format_bound(history_value, digits_for(history_value, room))
        return (
            f"No policy, with memory or without, returns more than {limit}: this policy is at most "
            f"{_format_most(context, max(room, 0.0))} below the best."
        )
    if gap is None:
        return f"No bound is known for {name}."
    start = "No policy can do better than someone who knows the model"
    if not gap:
        return f"{start}, and this one does as well."
    return Markup(
        "{}, so this policy is at most {} below the best{}. A tighter bound was not asked for "
        "(<code>certify_time=10</code> of solve, <code>--certify-time 10</code>)."
    ).format(start, _format_most(context, gap), f" {name}" * has_risk)


def describe_regret(context: ReportContext, summary: Summary) -> str:
    """Say what someone who knew the model could return."""
    evaluation = context.evaluation
    any_policy = " and could use any policy" * context.policy_class.is_restricted
    knowing = f"Someone who knew the true model{any_policy} could return"
    if evaluation.max_regret <= summary.rounding:
        return f"{knowing} no more, in any model."
    return (
        f"{knowing} {context.format_amount(summary.oracle_mean)} on average, "
        f"{context.format_difference(evaluation.bayes_regret)} more than this policy. In the "
        "model where the difference is largest, it is "
        f"{context.format_difference(evaluation.max_regret)}."
    )


def describe_off_grid(
    context: ReportContext, check: OffGridCheck, test_check: OffGridCheck | None = None
) -> str:
    """Compare the mean return on the grid with that of the step function itself."""

    def format_simulated(x: OffGridCheck) -> str:
        return f"{context.format_amount(x.off_grid_mean)} ± {format_number(x.error, 2)}"

    text = (
        f"On the grid it returns {context.format_amount(check.grid_mean)} on average; simulated "
        f"with your function itself, {format_simulated(check)} "
        f"({pluralize(check.n_episodes, 'episode')} in each model)."
    )
    if test_check is not None:
        grid_mean = context.format_amount(test_check.grid_mean)
        text += f" On the held-out models: {grid_mean}, and {format_simulated(test_check)}."
    return text


def describe_test(context: ReportContext, methods: MethodComparison, tested: Evaluation) -> str:
    """Say what the policy returns on the test models, and which method is ahead of it there."""
    mean, worst, tail = (
        context.format_amount(x) for x in (tested.mean, tested.worst, tested.cvar(TAIL_SHARE))
    )
    text = (
        f"On {pluralize(len(tested.returns), 'model')} not used to compute it, it returns {mean} "
        f"on average (worst {worst}, worst tenth {tail})."
    )
    if methods.test_leader is not None:
        name, lead, stderr = methods.test_leader
        text += f" {name} is ahead of it there, {format_lead(lead, stderr, context.model.unit)}."
    return text


# ---------------------------------------------------------------------- further sections
def describe_study(
    context: ReportContext,
    summary: Summary,
    methods: MethodComparison,
    voi: InformationValue | None,
) -> str:
    """Say how sure the value of knowing the model is, and what follows for a study."""
    if methods.oracle_gain <= summary.rounding:
        return "No study can pay for itself."
    texts, is_restricted = [], context.policy_class.is_restricted
    if not is_restricted:
        texts = ["It is exactly that if the policy compared with is optimal."]
    elif voi is not None:
        texts = [
            f"The value with {context.policy_class.name} policies is estimated by a search for the "
            "best such policy in each model."
        ]
    limit = f"a study that costs more cannot pay{' on average' * context.has_risk_objective}."
    name = "the expected value of perfect information (EVPI)"
    if not is_restricted:
        return " ".join([*texts, f"That is {name}: {limit}"])
    evpi = max(summary.oracle_mean - methods.free_mean, 0.0)
    amount = f"at most {context.format_bound(evpi)}" if evpi > summary.rounding else "nothing"
    best = f"the best policy of time and state that was found, {name} is {amount}."
    return " ".join([*texts, capitalize(limit), f"Compared with {best}"])


def describe_identifying(voi: InformationValue) -> Markup:
    """Name the parameters that tell the models apart, so that one of them is as good as all."""
    names = render_list(map(render_label, voi.identifying_parameters), 8)
    is_single = len(voi.identifying_parameters) == 1
    has, it, each = ("has", "it", "it") if is_single else ("have", "one of them", "each")
    return Markup(
        "{} {} a different value in every model, so knowing {} means knowing the model. More "
        "models would show what {} is worth alone."
    ).format(names, has, it, each)


def describe_near_weight(context: ReportContext, weight: float) -> str:
    """Say in how many models the policy is nearly as good as the optimum of the model."""
    models = "all" if weight > 1 - 1e-9 else format_percent(weight)
    start, preposition = f"In {models} of the models the policy is within", "of"
    limit = context.tolerance
    amount = context.format_difference(limit)
    if not weight:
        evaluation = context.evaluation
        limit = float(evaluation.regret[evaluation.weights > 0].min())
        start, preposition = "In every model the policy loses at least", "against"
        amount = context.format_bound(-limit).removeprefix("−")  # rounded down
    amount += context.stake.format_share(limit)
    free = " without the restriction" * context.policy_class.is_restricted
    return f"{start} {amount} {preposition} the model's optimum{free}."


def describe_ascent(context: ReportContext, methods: MethodComparison) -> str:
    """Say what CADP gained over the policy it started from."""
    if methods.ascent_gain is None:
        return "CADP found nothing better than the policy it started from."
    start = "a single leaf" if "one leaf" in methods.traces else "its initial policy"
    has_risk = context.has_risk_objective
    return (
        f"The value never falls from one iteration to the next. From {start}, CADP"
        f"{', which maximizes the mean here,' * has_risk} gained "
        f"{context.format_difference(methods.ascent_gain)}{' on average' * has_risk}."
    )


def describe_sample_size(context: ReportContext, curve: SampleSizeCurve) -> str:
    """Say what solving with all of the models gains over half of them."""
    class_text = " of time and state" * context.policy_class.is_restricted
    change = "as much"
    if curve.gain:
        share = context.mean_stake.format_share(abs(curve.gain))
        word = "more" if curve.gain > 0 else "less"
        change = f"{context.format_difference(abs(curve.gain))}{share} {word}"
    tested = "held-out models" if context.test_model else "the other half of the models"
    text = (
        f"A policy{class_text} computed from {pluralize(curve.n_models, 'model')} instead of "
        f"{format_number(curve.n_fewer)} returns {change} on {tested}."
    )
    return text + " If that is more than you can neglect, draw more models." * (curve.gain > 0)


# ---------------------------------------------------------------------- warnings
def iter_warnings(context: ReportContext, results: SectionResults) -> Iterator[str]:
    """Yield what to know before one relies on the page, most general first."""
    model, sample_size = context.model, results.problem.effective_sample_size
    if not model.has_initial and model.n_states > 1:
        yield (
            "No initial distribution was given: every state is taken to be equally likely at the "
            "start. The true distribution may change the values and the policy."
        )
    yield from _iter_unseen_warnings(context)
    tail_size = format_number(round(sample_size * 0.1, 1), 2)
    size_text = f"; their effective sample size is {format_number(round(sample_size, 1), 2)}"
    if model.n_models == 1:
        yield "There is only one model, so nothing here is about uncertainty between models."
    elif sample_size < MIN_MODELS:
        yield (
            f"There are few models ({format_number(model.n_models)}"
            f"{size_text * (sample_size <= model.n_models - 0.5)}): the policy may fit these "
            "models rather than the uncertainty they represent. If they are samples, draw more, "
            "and look at held-out models."
        )
    elif sample_size * 0.1 < MIN_TAIL_MODELS:
        yield (
            f"The worst tenth of the models amounts to about {tail_size} models, so the CVaR is a "
            "rough estimate."
        )
    if (drop := findings.compute_test_drop(context)) is not None:
        yield (
            f"On the held-out models the policy returns {context.format_difference(drop)} "
            "less than on its own models, which is more than chance explains: there are too few "
            "models, or the held-out ones come from a different distribution."
        )
    stability = results.stability
    if stability is not None and stability.share_changed >= MIN_CHANGED_SHARE:
        yield describe_instability(context, stability)
    if (gain := findings.compute_missed_gain(context)) is not None:
        assert context.best_solution is not None
        is_restricted = context.policy_class.is_restricted
        better = f"a {context.policy_class.name} one" if is_restricted else "one"
        yield (
            f"The policy was given; {context.best_solution.method.upper()} finds {better} that "
            f"returns {context.format_difference(gain)} more."
        )
    if model.is_switching:
        yield (
            "The models change over time. Figures by model refer to the model at the start, and "
            "someone who knows the model knows at every step which one holds."
        )
    if results.off_grid is not None and (check := results.off_grid[0]).is_coarse:
        difference = check.grid_mean - check.off_grid_mean
        has_proof = context.bound is not None and not context.has_risk_objective
        reasons = "chance and the proof explain" if has_proof else "chance explains"
        yield (
            f"Without the grid the policy returns {context.format_difference(abs(difference))} "
            f"{'less' if difference > 0 else 'more'} than the model says, which is more than "
            f"{reasons}: make the grid finer."
        )
    n_counted = len(model.problem.reachable_models(model.weights.nonzero()[0]))
    if n_weightless := model.n_models - n_counted:
        verb = "does" if n_weightless == 1 else "do"
        yield f"{pluralize(n_weightless, 'model')} of weight 0 {verb} not count."
    if findings.has_missing_rows(model):
        yield (
            "Some models lack actions that others have; taking such an action in them ends the "
            "episode."
        )


def _iter_unseen_warnings(context: ReportContext) -> Iterator[str]:
    """Yield how many pairs of state and action the data lacks, and those that the policy takes."""
    model, pairs = context.model, context.unseen_pairs
    if pairs:
        prior = model.evidence.prior["unseen"] if model.evidence else ""
        yield (
            f"{pluralize(len(pairs), 'state-action pair')} of "
            f"{format_number(model.n_states * model.n_actions)} "
            f"{'was' if len(pairs) == 1 else 'were'} never seen in the data; "
            f"{UNSEEN_TEXTS.get(prior, 'what happens there comes from the prior alone')}."
        )
    if used := findings.find_unseen_pairs_used(context):
        template = Markup("{} in state {}")
        texts = (template.format(render_label(a), render_label(s)) for s, a in used)
        yield Markup("The policy itself takes such actions: {}.").format(render_list(texts, 4))


def describe_instability(context: ReportContext, stability: Stability) -> Markup:
    """Say which decisions change when the models are resampled, and what that costs."""
    model = context.model
    texts = [
        Markup("{}, state {} ({} of resamples)").format(
            model.time_labels.describe_range(t),
            render_label(model.state_labels[s]),
            format_percent(frequency),
        )
        for t, s, frequency in findings.find_unstable_decisions(stability)
    ]
    return Markup(
        "{} of the decisions that come up change when the models are resampled{}{}. Using one of "
        "those policies instead costs {} on average."
    ).format(
        format_percent(stability.share_changed),
        ", above all at " * bool(texts),
        render_list(texts),
        context.format_difference(stability.losses.mean()),
    )
