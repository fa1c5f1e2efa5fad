"""solve() and evaluate(): limits, interruption, measures, provenance."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import numpy as np
import pytest

import mmdp
from mmdp.core.testing import make_random_model

MODEL = make_random_model(4, n_models=6, n_states=4, n_actions=3, horizon=0, discount=0.9)


def test_time_limit_returns_the_best_so_far():
    solution = mmdp.solve(
        MODEL, 5, mmdp.methods.CADP(init="random", n_init=50), time_limit=1e-9, seed=0
    )
    assert solution.status is mmdp.Status.TIME_LIMIT
    assert solution.value == pytest.approx(float(solution.returns @ MODEL.weights))
    with pytest.raises(mmdp.InputError, match="time_limit must be a positive"):
        mmdp.solve(MODEL, 5, time_limit=0)


def test_interruption_returns_the_best_so_far():
    progress_events = []

    def stop_at_third(progress: mmdp.solution.Progress) -> None:
        progress_events.append(progress.value)
        if len(progress_events) == 3:
            raise KeyboardInterrupt

    solution = mmdp.solve(
        MODEL, 5, mmdp.methods.CADP(init="random", n_init=50), seed=0, callback=stop_at_third
    )
    assert solution.status is mmdp.Status.INTERRUPTED
    assert solution.value == pytest.approx(max(progress_events))


def test_iteration_limit_is_reported():
    for seed in range(50):
        start = mmdp.methods.CADP(init="random", max_iter=1)
        solution = mmdp.solve(MODEL, 6, start, seed=seed)
        if solution.status is mmdp.Status.ITERATION_LIMIT:
            return
    pytest.fail("no random start needed more than one iteration")


def test_tolerance_stops_early_and_makes_no_claim():
    model = make_random_model(8, n_models=9, n_states=6, n_actions=4, horizon=0, discount=1.0)
    loose = mmdp.solve(model, 12, mmdp.methods.CADP(init="random", tol=1e9), seed=1)
    assert loose.iterations == 1
    assert loose.status is mmdp.Status.COMPLETED


def test_evaluation_measures_against_plain_sums():
    rng = np.random.default_rng(1)
    returns, weights = rng.normal(size=50), rng.dirichlet(np.ones(50))
    e = mmdp.Evaluation(returns, weights)
    assert e.mean == pytest.approx(np.average(returns, weights=weights))
    assert e.sd == pytest.approx(np.sqrt(np.cov(returns, aweights=weights, ddof=0)))
    assert e.cvar(1.0) == pytest.approx(e.mean)
    # CVaR as the maximum over x of x - E[(x - return)+] / level (Rockafellar and Uryasev)
    for level in (0.05, 0.3, 0.77):
        tails = [x - np.maximum(x - returns, 0) @ weights / level for x in returns]
        assert e.cvar(level) == pytest.approx(max(tails))
        lower_weight = weights[returns <= e.quantile(level)].sum()
        assert lower_weight >= level - 1e-9
        assert weights[returns < e.quantile(level)].sum() < level
    assert e.worst == returns.min()
    assert e.stderr == 0
    for bad in (0, 1.5):
        with pytest.raises(mmdp.InputError):
            e.cvar(bad)


def test_regret_and_evpi_against_each_models_own_solution():
    solution = mmdp.solve(MODEL, 5)
    model_optima = [mmdp.solve(MODEL.subset([m]), 5).value for m in range(MODEL.n_models)]
    np.testing.assert_allclose(
        solution.evaluation.regret, np.array(model_optima) - solution.returns
    )
    expected = float(np.array(model_optima) @ MODEL.weights - solution.value)
    assert solution.evpi == pytest.approx(expected)
    assert solution.evaluation.bayes_regret == pytest.approx(expected)
    oracle = mmdp.solve(MODEL, 5, "oracle")
    assert oracle.model_policies.shape == (5, MODEL.n_models, MODEL.n_states)
    for m in range(MODEL.n_models):
        single_evaluation = mmdp.evaluate(
            MODEL.subset([m]), mmdp.policies.MarkovPolicy(oracle.model_policies[:, m])
        )
        assert single_evaluation.mean == pytest.approx(model_optima[m])
    frame = solution.evaluation.to_frame()
    assert list(frame) == ["model", "weight", "return", "oracle", "regret"]


def test_evaluating_oracle_says_why_not():
    with pytest.raises(mmdp.InputError, match="Oracle has one policy per model"):
        mmdp.evaluate(MODEL, mmdp.solve(MODEL, 5, "oracle"))


def test_evaluate_on_other_models_and_wider_action_sets():
    solution = mmdp.solve(MODEL, 5)
    other = make_random_model(9, n_models=3, n_states=4, n_actions=4, horizon=0, has_masks=False)
    policy = mmdp.policies.MarkovPolicy(solution.policy.actions, n_actions=3)
    randomized = mmdp.policies.MarkovPolicy(probabilities=policy.probabilities)
    for tested_policy in (policy, randomized):
        assert mmdp.evaluate(other, tested_policy).mean == pytest.approx(
            mmdp.evaluate(other, mmdp.policies.MarkovPolicy(policy.actions, n_actions=4)).mean
        )


def test_provenance_is_enough_to_compute_it_again():
    method = mmdp.methods.CADP(init="random", n_init=3)
    first = mmdp.solve(MODEL, 5, method, seed=5, backend="numpy")
    provenance = first.provenance
    repeated = mmdp.solve(
        MODEL,
        provenance.horizon,
        mmdp.methods.CADP(**provenance.options),
        seed=provenance.seed,
        backend=provenance.backend,
    )
    assert repeated.value == first.value
    assert repeated.policy == first.policy
    assert provenance.version == mmdp.__version__


@pytest.mark.parametrize(
    ("horizon", "message"),
    [
        (0, "horizon must be a whole number of at least 1, not 0"),
        (-1, "horizon must be a whole number of at least 1, not -1"),
        (2.5, "horizon must be a whole number of at least 1, not 2.5"),
        ("inf", "horizon must be a number or None, not 'inf'; write float"),
        (None, "give the horizon"),
    ],
)
def test_bad_horizons(horizon, message):
    with pytest.raises(mmdp.InputError, match=message):
        mmdp.solve(MODEL, horizon)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"polcy_class": "markov"},
            r"solve\(\) has no argument 'polcy_class' \(did you mean 'policy_class'\?\)",
        ),
        (
            {"n_init": 4},
            r"'n_init'; give it as in method=mmdp.methods.CADP",
        ),
    ],
)
def test_arguments_that_do_not_exist(arguments, message):
    with pytest.raises(mmdp.InputError, match=message):
        mmdp.solve(MODEL, 3, **arguments)


def test_a_class_is_called_by_its_own_name_in_messages():
    with pytest.raises(mmdp.InputError, match=r"^MMDP\(\) has no argument 'gamma'"):
        mmdp.MMDP([[[[1.0]]]], [[0.0]], gamma=0.9)
    with pytest.raises(TypeError, match=r"^MMDP\(\): "):
        mmdp.MMDP()


@pytest.mark.parametrize("function", [mmdp.evaluate, mmdp.simulate, mmdp.measures.value_at_stake])
def test_swapped_model_and_policy(function):
    solution = mmdp.solve(MODEL, 3, backend="numpy")
    for policy in (solution, solution.policy):
        with pytest.raises(mmdp.InputError, match="model must be an MMDP, not "):
            function(policy, MODEL)


def test_a_solution_prints_one_minus_sign():
    solution = mmdp.solve(MODEL.replace(rewards=-10 - np.abs(MODEL.rewards)), 3)
    assert "value       -" in repr(solution)
    assert "worst -" in repr(solution)


def test_horizon_of_a_time_varying_model():
    model = make_random_model(1, horizon=3)
    assert mmdp.solve(model).provenance.horizon == 3
    with pytest.raises(mmdp.InputError, match="the model varies over 3 time steps"):
        mmdp.solve(model, 4)


def test_unknown_methods_and_inits():
    with pytest.raises(mmdp.InputError, match="'capd' .did you mean 'cadp'..; choose cadp"):
        mmdp.solve(MODEL, 5, "capd")
    with pytest.raises(mmdp.InputError, match="no init is called 'wus'"):
        mmdp.solve(MODEL, 5, mmdp.methods.CADP(init="wus"))
    with pytest.raises(
        mmdp.InputError, match="n_init must be a whole number of at least 1 or 'auto', not 0"
    ):
        mmdp.methods.CADP(n_init=0)


def test_import_is_light():
    """`import mmdp` loads neither numba, jax, matplotlib, scipy nor pandas."""
    code = (
        "import sys, json, mmdp; "
        "print(json.dumps([m for m in ('numba', 'jax', 'matplotlib', 'pandas', 'scipy') "
        "if m in sys.modules]))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(run.stdout) == []


def test_read_only_install_without_a_cache_folder(tmp_path):
    """Kernels compile in memory where no cache can be written."""
    code = (
        "import mmdp; from mmdp.testing import make_random_model; "
        "from mmdp.core.kernels.cpu import passes; "
        "m = make_random_model(4, horizon=0); "
        "print(abs(mmdp.solve(m, 3, 'oracle', backend='numba').value - "
        "mmdp.solve(m, 3, 'oracle', backend='numpy').value) < 1e-9)"
    )
    blocker = tmp_path / "file"
    blocker.write_text("not a folder")
    env = {"NUMBA_CACHE_DIR": str(blocker / "cache"), "PATH": "", "HOME": str(blocker)}
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False
    )
    assert run.stdout.strip() == "True", run.stderr


def test_seeds_and_models_are_checked():
    for bad in (-1, "x", 1.5, True):
        with pytest.raises(mmdp.InputError, match="seed must be a whole number of at least 0"):
            mmdp.solve(MODEL, 5, mmdp.methods.CADP(n_init=3), seed=bad)
    with pytest.raises(mmdp.InputError, match="model must be an MMDP, not 'riverswim'"):
        mmdp.solve("riverswim", 5)
    with pytest.raises(mmdp.InputError, match="time_limit must be a positive number"):
        mmdp.solve(MODEL, 5, time_limit="x")


def test_swapped_arguments_are_recognized():
    model, solution = MODEL, mmdp.solve(MODEL, 2)
    for call in (
        lambda: mmdp.evaluate(solution, model),
        lambda: mmdp.solve(3, model),
        lambda: mmdp.bound(model, "oracle", 3),
        lambda: mmdp.load_policy(model, "best.csv"),
        lambda: mmdp.save("model.npz", model),
        lambda: mmdp.report.write("report.html", model),
    ):
        with pytest.raises(mmdp.InputError, match=r"not .* .are the arguments swapped\?"):
            call()
    for call in (
        lambda: mmdp.evaluate(solution, solution),
        lambda: mmdp.solve(model, "inf", policy_class=None),
        lambda: mmdp.solve("riverswim", 3),
    ):
        with pytest.raises(mmdp.InputError) as error_info:
            call()
        assert "swapped" not in str(error_info.value)


def test_an_option_of_a_policy_class_or_method_names_its_place():
    for options, place in (
        ({"max_leaves": 5}, "give it as in policy_class=mmdp.policies.Tree(max_leaves=5)"),
        ({"n_init": 16}, "give it as in method=mmdp.methods.CADP(n_init=16)"),
    ):
        with pytest.raises(mmdp.InputError, match=re.escape(place)):
            mmdp.solve(MODEL, 5, **options)


def test_types_of_modules_that_are_loaded_later_are_checked_then():
    code = (
        "import mmdp\nfrom mmdp.core.arguments import get_type_hints\n"
        "get_type_hints(mmdp.plots.weights_by_step)\n"
        "import matplotlib.axes\n"
        "print('UnloadedType' in str(get_type_hints(mmdp.plots.weights_by_step)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.stdout.strip() == "False", run.stderr


def test_labels_in_another_order_are_refused():
    names = ["a", "b", "c", "d"]
    policy = mmdp.solve(MODEL.replace(states=names), 3).policy
    mmdp.evaluate(MODEL, policy)  # a model without labels is taken as it is
    with pytest.raises(mmdp.InputError, match="named differently from the model's"):
        mmdp.evaluate(MODEL.replace(states=["b", "a", "c", "d"]), policy)


def test_interrupted_gradient_is_rounded_too():
    def stop(progress: mmdp.solution.Progress) -> None:
        raise KeyboardInterrupt

    for options in ({"time_limit": 1e-9}, {"callback": stop}):
        solution = mmdp.solve(MODEL, 5, "gradient", **options)
        assert solution.policy.is_deterministic
    assert mmdp.solve(
        MODEL, 5, mmdp.methods.CADP(init="uniform"), time_limit=1e-9
    ).policy.is_deterministic


def test_a_method_of_one_step_completes_within_any_limit():
    for name in ("wsu", "mvp"):
        assert mmdp.solve(MODEL, 5, name, time_limit=1e-9).status is mmdp.Status.COMPLETED


def test_the_trace_of_many_starts_is_the_best_ones():
    solution = mmdp.solve(MODEL, 6, mmdp.methods.CADP(init="random", n_init=20), seed=0)
    assert (np.diff(solution.trace) >= -1e-12).all()
    assert solution.trace[-1] == pytest.approx(solution.value)


def test_certify_gives_a_bound_and_a_status():
    exact = mmdp.solve(MODEL, 3, "exact")
    assert exact.status is mmdp.Status.OPTIMAL
    solution = mmdp.solve(MODEL, 3, certify_time=2)
    assert solution.bound >= exact.value - 1e-9
    assert solution.gap >= 0
    assert solution.certificate.value >= exact.value - 1e-9
    one = mmdp.solve(MODEL.subset([0]), 3, certify_time=30)
    assert one.status is mmdp.Status.OPTIMAL
    assert mmdp.solve(MODEL, 3, certify_time=None).certificate is None
    with pytest.raises(
        mmdp.InputError, match="certify_time must be a positive number of seconds or None"
    ):
        mmdp.solve(MODEL, 3, certify_time=-1)
    with pytest.raises(
        mmdp.InputError, match=r"certify_time bounds .* qmdp remembers .* mmdp\.bound"
    ):
        mmdp.solve(MODEL, 3, "qmdp", certify_time=1)
