"""Policies with memory: beliefs, planners, and the compiled simulator against plain code."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats

import mmdp
from mmdp.core.kernels.planner import ACTIONS, PlannerTables
from mmdp.core.kernels.sampling import hash_bits, make_episode_keys
from mmdp.core.testing import make_random_model
from tests.instances import list_seeds, make_infinite_model

PLANNERS = {
    "qmdp": mmdp.methods.QMDP(),
    "rollout": mmdp.methods.Rollout(),
    "mixts": mmdp.methods.MixTS(),
    "mixts-step": mmdp.methods.MixTS(resample="step", likelihood="both"),
    "pomcp": mmdp.methods.POMCP(n_queries=60),
    "pomcp-rollout": mmdp.methods.POMCP(n_queries=30, leaf_value="rollout"),
    "pomcp-random": mmdp.methods.POMCP(n_queries=30, leaf_value="random"),
}
MODEL = make_random_model(4, n_models=6, n_states=4, n_actions=3, horizon=0, discount=0.9)


def compute_history_value(model: mmdp.MMDP, horizon: int, choose) -> float:
    """Value of a belief policy choose(t, s, beta) by expanding every history."""
    P, r = model.transitions, model.rewards
    P = P if P.ndim == 5 else np.repeat(P[None], horizon, 0)
    r = r if r.ndim == 4 else np.repeat(r[None], horizon, 0)

    def compute_value(t: int, s: int, weights: np.ndarray) -> float:
        """Sum over models of weight times return from (t, s)."""
        if t == horizon:
            return float(weights @ model.terminal[:, s])
        a = choose(t, s, weights / weights.sum())
        total = float(weights @ r[t, :, s, a])
        for next_state in range(model.n_states):
            next_weights = weights * P[t, :, s, a, next_state]
            if next_weights.sum() > 0:
                total += model.discount * compute_value(t + 1, next_state, next_weights)
        return total

    return sum(
        compute_value(0, s, model.weights * mu) for s, mu in enumerate(model.initial) if mu > 0
    )


def make_tiny_model(seed: int) -> mmdp.MMDP:
    return make_random_model(
        seed, n_models=4, n_states=3, n_actions=3, horizon=3 if seed % 2 else 0
    )


@pytest.mark.parametrize("seed", range(12))
def test_the_baseline_is_the_policy_that_cadp_returns(seed):
    model = make_random_model(seed, n_models=6, n_states=6, n_actions=4, horizon=0)
    cadp = mmdp.solve(model, 8, backend="numpy").policy
    planner = mmdp.solve(model, 8, mmdp.methods.Rollout(n_episodes=2), backend="numpy").policy
    assert planner.control_variate == cadp


@pytest.mark.parametrize("seed", list_seeds(3, 8))
@pytest.mark.parametrize("name", ["qmdp", "rollout"])
def test_simulation_agrees_with_the_expanded_history_tree(name, seed):
    model = make_tiny_model(seed)
    solution = mmdp.solve(model, 3, name, seed=seed)
    planner = solution.policy

    def choose(t: int, s: int, beta: np.ndarray) -> int:
        q = planner.tables.q[t, s] @ beta
        return int(np.where(model.allowed[s], q, -np.inf).argmax())

    exact = compute_history_value(model, 3, choose)
    report = mmdp.evaluate(model, planner, n_episodes=4000, seed=seed)
    assert abs(report.mean - exact) <= 4 * report.stderr + 1e-9 * abs(exact)


@pytest.mark.parametrize("seed", list_seeds(4, 12))
def test_rollout_is_never_worse_than_cadp_on_its_own_models(seed):
    model = make_tiny_model(seed)
    planner = mmdp.solve(model, 3, "rollout", seed=0).policy

    def choose(t: int, s: int, beta: np.ndarray) -> int:
        q = planner.tables.q[t, s] @ beta
        return int(np.where(model.allowed[s], q, -np.inf).argmax())

    exact = compute_history_value(model, 3, choose)
    cadp = mmdp.solve(model, 3).value
    assert exact >= cadp - 1e-9 * max(1.0, abs(cadp))


def compute_infinite_q(model: mmdp.MMDP, row: np.ndarray | None) -> np.ndarray:
    """(M, S, A) q of a rule, or of each model's own optimum, by iteration."""
    P, r = model.transitions, model.rewards
    q = np.zeros_like(r)
    for _ in range(60):
        v = q.max(axis=2) if row is None else q[:, np.arange(len(row)), row]
        q = r + model.discount * np.einsum("msaz,mz->msa", P, v)
    return q


@pytest.mark.parametrize(("seed", "discount"), [(0, 0.5), (1, 0.5), (2, 1.0)])
@pytest.mark.parametrize("name", ["qmdp", "rollout"])
def test_infinite_simulation_agrees_with_long_histories(name, seed, discount):
    model, T = make_infinite_model(seed, discount), 10
    cadp = mmdp.solve(model, math.inf)
    solution = mmdp.solve(model, math.inf, PLANNERS[name], seed=seed)
    q = compute_infinite_q(model, None if name == "qmdp" else cadp.policy.actions)
    terminal_state = 2 if discount == 1 else -1  # nothing follows there
    exact = compute_history_value(
        model, T, lambda t, s, beta: 0 if s == terminal_state else int((beta @ q[:, s]).argmax())
    )
    tail = 2.0**-T * 2 * np.abs(model.rewards).max()
    assert abs(solution.value - exact) <= 4 * solution.evaluation.stderr + tail
    assert solution.details["truncation_error"] <= 1e-5
    assert solution.policy.horizon == math.inf
    if name == "rollout":
        assert solution.policy.control_variate == cadp.policy
        assert exact >= cadp.value - tail


def test_infinite_horizon_ignores_terminal_values():
    model = make_infinite_model(5, 0.5)
    with_terminal = mmdp.MMDP(
        model.transitions,
        model.rewards,
        initial=model.initial,
        discount=0.5,
        weights=model.weights,
        terminal=[9.0, -9.0],
    )
    for method in (
        mmdp.methods.QMDP(n_episodes=50),
        mmdp.methods.MixTS(n_episodes=50, resample="step"),
    ):
        one, other = (mmdp.solve(x, math.inf, method, seed=3) for x in (model, with_terminal))
        assert one.value == other.value
        assert np.isfinite(one.evaluation.regret).all()


def test_infinite_mixts_acts_by_model_optima():
    """With one model of two the belief is certain: Thompson sampling is the optimum."""
    model = make_infinite_model(6, 0.5).replace(weights=[1.0, 0.0])
    solution = mmdp.solve(model, math.inf, "mixts", seed=0)
    best = mmdp.solve(model, math.inf, "oracle").value
    assert (
        abs(solution.value - best)
        <= 4 * solution.evaluation.stderr + solution.details["truncation_error"]
    )


def test_infinite_baseline_must_be_stationary():
    model = make_infinite_model(7, 0.5)
    baseline = mmdp.policies.StationaryPolicy([0, 1])
    solution = mmdp.solve(model, math.inf, mmdp.methods.Rollout(n_episodes=4, baseline=baseline))
    assert solution.policy.control_variate == baseline
    np.testing.assert_allclose(
        solution.policy.tables.q[0], np.moveaxis(compute_infinite_q(model, np.array([0, 1])), 0, 2)
    )
    with pytest.raises(mmdp.InputError, match="covers 3 time steps, the horizon is inf"):
        mmdp.solve(model, math.inf, mmdp.methods.QMDP(baseline=baseline.to_markov(3)))
    with pytest.raises(
        mmdp.InputError, match="pomcp cannot do this: it plans backwards from a last"
    ):
        mmdp.solve(model, math.inf, "pomcp")


@pytest.mark.parametrize("name", PLANNERS)
def test_step_by_step_use_agrees_with_the_compiled_simulator(name):
    """The protocol run in plain Python has the mean that the simulator reports."""
    planner = mmdp.solve(MODEL, 6, PLANNERS[name], seed=0).policy
    assert isinstance(planner, mmdp.policies.Planner)
    rng = np.random.default_rng(5)
    totals = []
    for episode in range(400):
        m = rng.choice(MODEL.n_models, p=MODEL.weights)
        memory = planner.initial_memory(seed=episode)
        s, total = rng.choice(MODEL.n_states, p=MODEL.initial), 0.0
        for t in range(6):
            a = planner.act(memory, t, s)
            assert MODEL.allowed[s, a]
            reward = MODEL.rewards[m, s, a]
            total += 0.9**t * reward
            next_state = rng.choice(MODEL.n_states, p=MODEL.transitions[m, s, a])
            memory = planner.update(memory, t, s, a, next_state, reward)
            s = next_state
        totals.append(total + 0.9**6 * MODEL.terminal[m, s])
    report = mmdp.evaluate(MODEL, planner, n_episodes=400, seed=1)
    error = np.hypot(np.std(totals) / np.sqrt(len(totals)), report.stderr)
    assert abs(np.mean(totals) - report.mean) <= 4 * error


def test_belief_is_bayes_rule():
    planner = mmdp.solve(MODEL, 6, "qmdp", seed=0).policy
    memory = planner.initial_memory(seed=0)
    path = [(0, 0, 1), (1, 2, 3), (3, 0, 2)]
    likelihood = MODEL.weights.copy()
    for t, (s, a, next_state) in enumerate(path):
        a = a if MODEL.allowed[s, a] else int(np.flatnonzero(MODEL.allowed[s])[0])
        step_likelihood = MODEL.transitions[:, s, a, next_state]
        memory = planner.update(memory, t, s, a, next_state)
        if step_likelihood.any():
            likelihood *= step_likelihood
    np.testing.assert_allclose(memory.belief, likelihood / likelihood.sum(), rtol=1e-12)


def test_an_impossible_transition_is_counted_not_a_crash():
    stay = mmdp.MMDP(np.eye(2)[None, :, None, :].repeat(3, 0), [[1.0], [0.0]], initial=[1, 0])
    move = mmdp.MMDP([[[[0.0, 1.0]], [[0.0, 1.0]]]], [[1.0], [0.0]], initial=[1, 0])
    planner = mmdp.solve(stay, 4, "qmdp", seed=0).policy
    report = mmdp.evaluate(move, planner, n_episodes=10, seed=0)
    assert report.details["n_impossible"] == 10  # the first step of every episode
    memory = planner.update(planner.initial_memory(0), 0, 0, 0, 1)
    assert memory.n_unexplained == 1
    np.testing.assert_allclose(memory.belief, stay.weights)


@pytest.mark.parametrize("name", PLANNERS)
def test_reproducible_by_seed_with_one_thread_or_three(name):
    planner = mmdp.solve(MODEL, 5, PLANNERS[name], seed=3).policy
    runs = [
        mmdp.simulate(MODEL, planner, n_episodes=20, seed=9, n_threads=threads).returns
        for threads in (1, 3, 1)
    ]
    assert (runs[0] == runs[1]).all()
    assert (runs[0] == runs[2]).all()
    other = mmdp.simulate(MODEL, planner, n_episodes=20, seed=10).returns
    assert (runs[0] != other).any()


@pytest.mark.parametrize("seed", list_seeds(4, 10))
def test_markov_policies_simulate_to_their_exact_value(seed):
    model = make_random_model(seed)
    horizon = model.horizon or 5
    deterministic = mmdp.policies.MarkovPolicy.random(model, horizon, seed)
    for policy in (deterministic, mmdp.policies.MarkovPolicy.uniform(model, horizon)):
        exact = mmdp.evaluate(model, policy)
        report = mmdp.evaluate(model, policy, n_episodes=3000, seed=seed)
        assert abs(report.mean - exact.mean) <= 4 * report.stderr + 1e-9 * abs(exact.mean)


def compute_coverage(policy, model, truth: float, n_episodes: int, seeds: int) -> float:
    """How often the mean ± two standard errors holds the true value."""
    simulations = [
        mmdp.simulate(model, policy, n_episodes=n_episodes, seed=s, backend="numpy")
        for s in range(seeds)
    ]
    return float(np.mean([abs(x.mean - truth) <= 2 * x.stderr + 1e-9 for x in simulations]))


def test_two_standard_errors_cover_with_two_episodes() -> None:
    """Sums of many fair coins are nearly normal, so Student's t is nearly exact."""
    model = mmdp.MMDP(np.full((2, 2, 1, 2), 0.5), [[1.0], [0.0]], weights=[0.7, 0.3])
    policy = mmdp.policies.MarkovPolicy(np.zeros((60, 2), int))
    assert 0.92 <= compute_coverage(policy, model, 30.0, 2, 400) <= 0.99  # 0.8 without


def test_the_error_is_that_of_welch_and_satterthwaite() -> None:
    model = make_random_model(4, n_models=3, n_states=3, n_actions=2, has_masks=False, horizon=0)
    policy = mmdp.policies.MarkovPolicy.random(model, 4, 0)
    simulated = mmdp.simulate(model, policy, n_episodes=5, seed=3)
    tables = PlannerTables(ACTIONS, model.problem, actions=policy.actions)
    n_episodes = int(np.random.SeedSequence(3).generate_state(1, np.uint64)[0] >> np.uint64(2))
    x, _ = (
        mmdp.core.kernels.get_backend("numpy")
        .prepare(model.problem, 4)
        .simulate(None, tables, 5, n_episodes)
    )
    u = model.weights**2 * x.var(axis=1, ddof=1) / 5
    degrees = u.sum() ** 2 / (u**2 / 4).sum()
    half = scipy.stats.t.ppf(0.975, degrees) * np.sqrt(u.sum())
    assert 2 * simulated.stderr == pytest.approx(half)


@pytest.mark.slow
@pytest.mark.parametrize("n_models", [5, 20])
@pytest.mark.parametrize(
    "method", [mmdp.methods.QMDP(n_episodes=2), mmdp.methods.MixTS(n_episodes=2)]
)
@pytest.mark.parametrize("n_episodes", [2, 4, 30])
def test_two_standard_errors_of_a_planner_cover(n_models: int, method, n_episodes: int) -> None:
    """On riverswim, where few episodes decide: 13% to 81% without t and with a control of few."""
    train, _ = mmdp.domains.riverswim(seed=0)
    model = train.subset(range(n_models))
    planner = mmdp.solve(model, 12, method, backend="numpy").policy
    truth = mmdp.simulate(model, planner, n_episodes=80_000 // n_models, seed=10**6).mean
    assert compute_coverage(planner, model, truth, n_episodes, 200) >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize(("n_models", "seed"), [(4, 1), (20, 1), (20, 3)])
def test_two_standard_errors_cover_dependent_episodes(n_models: int, seed: int) -> None:
    """A belief that is carried on: 80% if episodes count as independent."""
    model = make_random_model(
        seed, n_models=n_models, n_states=3, n_actions=3, has_masks=False, horizon=0
    )
    planner = mmdp.solve(
        model, 4, mmdp.methods.MixTS(carry_belief=True, n_episodes=2), backend="numpy"
    ).policy
    means = [mmdp.simulate(model, planner, n_episodes=30, seed=10**6 + i).mean for i in range(400)]
    assert compute_coverage(planner, model, float(np.mean(means)), 30, 200) >= 0.9


DOMAINS = {
    "riverswim": {"seed": 0},
    "hiv": {"seed": 0},
    "inventory": {"seed": 0},
    "population_small": {"seed": 0},
    "population": {"seed": 0, "n_train": 20, "n_test": 200},
    "two_models": {},
    "garnet": {"seed": 0},
}


@pytest.mark.parametrize("domain", DOMAINS)
def test_simulated_cadp_agrees_with_its_exact_value_on_every_domain(domain):
    train, test = getattr(mmdp.domains, domain)(**DOMAINS[domain])
    policy = mmdp.solve(train, 15).policy
    exact, simulated = (
        mmdp.evaluate(test, policy),
        mmdp.evaluate(test, policy, n_episodes=60, seed=2),
    )
    assert abs(simulated.mean - exact.mean) <= 3 * simulated.stderr + 1e-9 * abs(exact.mean)


def test_the_control_variate_shrinks_the_error_and_keeps_the_mean():
    train, test = mmdp.domains.riverswim(seed=0)
    planner = mmdp.solve(train, 50, mmdp.methods.QMDP(n_episodes=2), seed=0).policy
    plain = mmdp.simulate(test, planner, n_episodes=20, seed=0, control_variate=False)
    controlled = mmdp.simulate(test, planner, n_episodes=20, seed=0)
    assert controlled.stderr < plain.stderr / 8
    assert abs(controlled.mean - plain.mean) < 3 * plain.stderr


def test_memory_beats_markov_policies_on_the_two_model_example():
    model, _ = mmdp.domains.two_models()
    for horizon in (8, 16, 32):
        oracle = mmdp.solve(model, horizon, "oracle").value
        assert oracle - mmdp.solve(model, horizon).value == pytest.approx(horizon / 4)
        assert oracle - mmdp.solve(model, horizon, mmdp.methods.MixTS(resample="step")).value < 1.6


def test_pomcp_finds_the_history_dependent_optimum_of_a_tiny_problem():
    """Against full enumeration of belief policies: optimal value of the belief tree."""
    for seed in (0, 2, 6):
        model = make_random_model(seed, n_models=3, n_states=2, n_actions=2, horizon=0)
        best = find_optimal_history_value(model, 3)
        planner = mmdp.solve(
            model, 3, mmdp.methods.POMCP(n_queries=4000, n_episodes=2), seed=0
        ).policy
        report = mmdp.evaluate(model, planner, n_episodes=300, seed=1)
        size = max(1.0, abs(best))
        assert report.mean <= best + 4 * report.stderr + 1e-9 * size
        assert report.mean >= best - 4 * report.stderr - 0.02 * size


def find_optimal_history_value(model: mmdp.MMDP, horizon: int) -> float:
    P, r = model.transitions, model.rewards

    def compute_value(t: int, s: int, weights: np.ndarray) -> float:
        if t == horizon:
            return float(weights @ model.terminal[:, s])
        options = []
        for a in np.flatnonzero(model.allowed[s]):
            total = float(weights @ r[:, s, a])
            for next_state in range(model.n_states):
                next_weights = weights * P[:, s, a, next_state]
                if next_weights.sum() > 0:
                    total += model.discount * compute_value(t + 1, next_state, next_weights)
            options.append(total)
        return max(options)

    return sum(
        compute_value(0, s, model.weights * mu) for s, mu in enumerate(model.initial) if mu > 0
    )


def test_uniform_numbers_are_uniform():
    models, episodes = np.divmod(np.arange(2000), 40)
    keys = make_episode_keys(1, models, episodes)
    u = np.array([hash_bits(keys, np.full_like(keys, c)) * 2.0**-53 for c in range(5)]).T
    assert abs(u.mean() - 0.5) < 0.01
    assert abs(u.var() - 1 / 12) < 0.005
    assert np.abs(np.corrcoef(u.T) - np.eye(5)).max() < 0.08


def test_planner_messages():
    planner = mmdp.solve(MODEL, 5, "qmdp", seed=0).policy
    with pytest.raises(mmdp.InputError, match="the policy is for 4 states and 3 actions"):
        mmdp.simulate(make_random_model(1, n_states=2, n_actions=3, horizon=0), planner)
    with pytest.raises(mmdp.InputError, match="n_episodes must be a whole number of at least 2"):
        mmdp.simulate(MODEL, planner, n_episodes=1)
    with pytest.raises(
        mmdp.InputError, match="queries must be a whole number of at least 1, not 0"
    ):
        mmdp.methods.POMCP(n_queries=0)
    reward_planner = mmdp.solve(MODEL, 5, mmdp.methods.MixTS(likelihood="reward"), seed=0).policy
    with pytest.raises(mmdp.InputError, match="learns from rewards: pass reward="):
        reward_planner.update(reward_planner.initial_memory(0), 0, 0, 0, 0)


@pytest.mark.parametrize("n_episodes", [20, pytest.param(50, marks=pytest.mark.slow)])
def test_published_planners_on_riverswim(paper_data, n_episodes):
    """QMDP and rollout on the published test models."""
    train, test = (mmdp.load(paper_data / "riverswim", split=x) for x in ("train", "test"))
    qmdp, rollout = (
        mmdp.evaluate(test, mmdp.solve(train, 50, method, seed=0), n_episodes=n_episodes, seed=1)
        for method in (mmdp.methods.QMDP(n_episodes=2), mmdp.methods.Rollout(n_episodes=2))
    )
    assert abs(qmdp.details["difference"] - 0.5) < 0.2
    assert rollout.details["difference"] > 0


def test_published_planners_on_hiv(paper_data):
    """QMDP and MixTS on the published test models."""
    train, test = (mmdp.load(paper_data / "hiv", split=x) for x in ("train", "test"))
    qmdp = mmdp.evaluate(
        test, mmdp.solve(train, 15, "qmdp", seed=0), n_episodes=1000, seed=1
    ).details
    assert abs(qmdp["difference"] + 1900) < 400
    mixts = mmdp.evaluate(test, mmdp.solve(train, 15, "mixts", seed=0), n_episodes=1000, seed=1)
    assert abs(mixts.mean - 36_500) < 1000


class FirstActionPlanner:
    """A planner written by a user: always the first allowed action."""

    name, horizon = "always", 6

    def initial_memory(self, seed=None):
        return None

    def act(self, memory, time, state):
        return int(np.flatnonzero(MODEL.allowed[state])[0])

    def update(self, memory, time, state, action, next_state, reward=None):
        return None


def test_a_users_own_planner_can_be_evaluated():
    first_allowed = MODEL.allowed.argmax(axis=1)
    exact = mmdp.evaluate(MODEL, mmdp.policies.MarkovPolicy(np.tile(first_allowed, (6, 1))))
    simulated = mmdp.evaluate(MODEL, FirstActionPlanner(), n_episodes=150, seed=3)
    assert abs(simulated.mean - exact.mean) <= 4 * simulated.stderr
    bad = FirstActionPlanner()
    bad.act = lambda memory, time, state: 99
    with pytest.raises(mmdp.InputError, match="which the model does not allow"):
        mmdp.evaluate(MODEL, bad)


@pytest.mark.parametrize(
    "call",
    [
        lambda planner: mmdp.measures.policy_table(MODEL, planner),
        lambda planner: mmdp.measures.model_weights(MODEL, planner),
        lambda planner: mmdp.solve(MODEL, 6, mmdp.methods.CADP(init=planner)),
    ],
)
def test_a_users_own_planner_has_no_table(call):
    with pytest.raises(mmdp.InputError, match="may depend on all that was seen"):
        call(FirstActionPlanner())


def test_time_limit_of_planners_returns_what_was_simulated():
    slow = mmdp.methods.POMCP(n_queries=300, n_episodes=40_000)
    solution = mmdp.solve(MODEL, 6, slow, seed=0, time_limit=0.2)
    assert solution.status is mmdp.Status.TIME_LIMIT
    assert 2 <= solution.details["n_episodes"] < 40_000
    assert solution.evaluation.stderr > 0


@pytest.mark.parametrize(
    "method", [mmdp.methods.POMCP(n_queries=10, n_episodes=9), mmdp.methods.QMDP(n_episodes=9)]
)
def test_a_generous_time_limit_changes_nothing(method):
    unlimited = mmdp.solve(MODEL, 6, method, seed=1)
    limited = mmdp.solve(MODEL, 6, method, seed=1, time_limit=1000)
    assert limited.status is unlimited.status is mmdp.Status.COMPLETED
    np.testing.assert_array_equal(limited.returns, unlimited.returns)
    np.testing.assert_array_equal(
        limited.evaluation.standard_errors, unlimited.evaluation.standard_errors
    )
    assert limited.details == unlimited.details


def test_without_time_two_episodes_are_simulated_against_the_first_policy():
    solution = mmdp.solve(MODEL, 6, mmdp.methods.QMDP(n_episodes=50), time_limit=1e-9)
    assert solution.status is mmdp.Status.TIME_LIMIT
    assert solution.details["n_episodes"] == 2
    wsu = mmdp.solve(MODEL, 6, "wsu").policy
    assert (solution.policy.control_variate.actions == wsu.actions).all()
    np.testing.assert_array_equal(
        solution.returns,
        mmdp.solve(MODEL, 6, mmdp.methods.QMDP(n_episodes=2, baseline=wsu)).returns,
    )


def test_first_episodes_cover_the_initial_distribution():
    """So that those of a simulation that ends early are not those of the first states."""
    initial = np.array([0.5, 0.3, 0.2])
    stay = np.tile(np.eye(3)[None, :, None], (4, 1, 1, 1))
    model = mmdp.MMDP(stay, np.eye(3)[:, :1] * 0 + np.arange(3.0)[:, None], initial=initial)
    backend = mmdp.core.kernels.get_backend("numpy")
    table = PlannerTables(ACTIONS, model.problem, actions=np.zeros((1, 3), np.int32))
    few_returns, _ = backend.prepare(model.problem, 1).simulate(None, table, 20, 7)
    for returns in few_returns:
        frequencies = np.bincount(returns.astype(int), minlength=3) / 20
        np.testing.assert_allclose(frequencies, initial, atol=0.1)
    many_returns, _ = backend.prepare(model.problem, 1).simulate(None, table, 4000, 7)
    for returns in many_returns:
        frequencies = np.bincount(returns.astype(int), minlength=3) / 4000
        np.testing.assert_allclose(frequencies, initial, atol=0.002)


def test_rewards_that_rule_models_out_leave_a_proper_belief():
    """A model ruled out by the transition and close in reward must not poison the belief."""
    P = np.zeros((3, 2, 1, 2))
    P[0, :, 0, 1] = P[1, :, 0, 0] = 1.0
    P[2, :, 0] = 0.5
    model = mmdp.MMDP(P, [[[0.0], [0.0]], [[1000.0], [1000.0]], [[0.0], [0.0]]], initial=[1, 0])
    method = mmdp.methods.MixTS(likelihood="both", reward_sd=1.0)
    planner = mmdp.solve(model, 3, method, seed=0).policy
    memory = planner.update(planner.initial_memory(0), 0, 0, 0, 1, 1000.0)
    np.testing.assert_allclose(memory.belief, [2 / 3, 0.0, 1 / 3])
    assert memory.n_unexplained == 0
    report = mmdp.evaluate(model, planner, n_episodes=20, seed=0)
    assert report.details["n_impossible"] == 0


def test_missing_actions_mean_the_same_to_exact_and_simulated_returns():
    P = np.ones((2, 1, 2, 1))
    P[1, 0, 1] = 0.0
    model = mmdp.MMDP(P, [[1.0, 5.0]], allow_missing=True)
    policy = mmdp.policies.MarkovPolicy([[1], [1]])
    assert mmdp.evaluate(model, policy).returns.tolist() == [10.0, 0.0]
    assert mmdp.evaluate(model, policy, n_episodes=5).returns.tolist() == [10.0, 0.0]
    assert mmdp.solve(model, 2, "mvp").policy.actions.shape == (2, 1)
    assert mmdp.solve(model, 2, "qmdp").value <= mmdp.solve(model, 2, "oracle").value + 1e-9
    with pytest.raises(mmdp.InputError, match="pomcp needs every allowed action in every model"):
        mmdp.solve(model, 2, "pomcp")


def test_more_queries_make_pomcp_better():
    train, test = mmdp.domains.riverswim(seed=0)
    reports = {}
    for queries in (5, 500):
        planner = mmdp.solve(train, 50, mmdp.methods.POMCP(n_queries=queries, n_episodes=2), seed=0)
        report = mmdp.evaluate(test.subset(slice(0, 60)), planner, n_episodes=3, seed=0)
        reports[queries] = report.details
    gain = reports[500]["difference"] - reports[5]["difference"]
    error = np.hypot(reports[500]["difference_stderr"], reports[5]["difference_stderr"])
    assert gain > 3 * error


@pytest.mark.parametrize("control", [True, False])
def test_planners_refuse_models_with_other_labels(control: bool) -> None:
    rows = np.full((2, 2, 2, 2), 0.5)
    one = mmdp.MMDP(rows, np.eye(2), states=["up", "down"], actions=["go", "stay"])
    planner = mmdp.solve(one, 3, "qmdp").policy
    for names in ({"states": ["down", "up"]}, {"actions": ["stay", "go"]}):
        with pytest.raises(mmdp.InputError, match="are named differently from the model's"):
            mmdp.simulate(one.replace(**names), planner, n_episodes=4, control_variate=control)
    mmdp.simulate(one, planner, n_episodes=4, control_variate=control)


def test_simulating_a_solution_simulates_its_policy() -> None:
    solution = mmdp.solve(MODEL, 6)
    one, other = (
        mmdp.simulate(MODEL, x, n_episodes=20, seed=1) for x in (solution, solution.policy)
    )
    assert (one.returns == other.returns).all()
    with pytest.raises(mmdp.InputError, match="a policy or a planner from solve"):
        mmdp.simulate(MODEL, mmdp.solve(MODEL, 6, "oracle"))
