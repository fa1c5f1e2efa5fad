"""Models that change by a chain: closed forms, all paths of (model, state), episodes, refusals."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import mmdp
from mmdp.core import kernels
from mmdp.core.kernels.controller import Controller
from mmdp.core.policies import MemoryPolicy
from tests.instances import EXACT, list_policies, make_switching_model, returns_by_paths

Array = npt.NDArray[np.float64]


# ---------------------------------------------------------------------- brute force
def extend_paths(
    x: mmdp.MMDP, paths: dict[tuple[int, ...], float], s: int, a: int, next_state: int
) -> dict[tuple[int, ...], float]:
    """The weight of every path of models after one more transition."""
    return {
        (*path, m): weight
        * x.transitions[path[-1], s, a, next_state]
        * x.model_transitions[path[-1], m]
        for path, weight in paths.items()
        for m in range(x.n_models)
    }


def best_history_value(
    x: mmdp.MMDP, T: int, t: int = 0, s: int | None = None, paths: Any = None
) -> float:
    """The best value over all histories; ``paths`` has the weight of every path of models."""
    if s is None:
        paths = {(m,): weight for m, weight in enumerate(x.weights)}
        return sum(x.initial[s] * best_history_value(x, T, 0, s, paths) for s in range(x.n_states))
    if t == T:
        return sum(weight * x.terminal[path[-1], s] for path, weight in paths.items())
    values = []
    for a in range(x.n_actions):
        value = sum(weight * x.rewards[path[-1], s, a] for path, weight in paths.items())
        for next_state in range(x.n_states):
            longer = extend_paths(x, paths, s, a, next_state)
            value += x.discount * best_history_value(x, T, t + 1, next_state, longer)
        values.append(value)
    return max(values)


def check_against_paths(seed: int, T: int) -> bool:
    """Everything exact on one tiny instance; whether CADP found the best policy."""
    x = make_switching_model(seed)
    tables = list_policies(x, T)
    returns = np.array([returns_by_paths(x, table) for table in tables])
    for k in (0, len(tables) // 3, len(tables) - 1):
        returns_of_table = mmdp.evaluate(x, mmdp.policies.MarkovPolicy(tables[k])).returns
        np.testing.assert_allclose(returns_of_table, returns[k], rtol=0, atol=EXACT)
    best, tree = float((returns @ x.weights).max()), best_history_value(x, T)
    for options in ({}, {"sweep_type": "paper", "n_init": 1}):
        solution = mmdp.solve(x, T, mmdp.methods.CADP(**options))
        path_returns = returns_by_paths(x, solution.policy.actions)
        np.testing.assert_allclose(solution.returns, path_returns, rtol=0, atol=EXACT)
        one_change = (tables != solution.policy.actions).sum(axis=(1, 2)) == 1
        assert solution.value >= (returns[one_change] @ x.weights).max() - EXACT
    solution = mmdp.solve(x, T)
    qmdp, oracle = (mmdp.bound(x, T, name).value for name in ("qmdp", "oracle"))
    assert best <= tree + EXACT
    assert tree <= qmdp + EXACT
    assert qmdp <= oracle + EXACT
    assert mmdp.solve(x, T, "oracle").value == pytest.approx(oracle, abs=1e-9)
    return solution.value >= best - 1e-9


def test_tiny_instances_equal_all_paths() -> None:
    assert sum(check_against_paths(seed, 2) for seed in range(12)) >= 11
    assert check_against_paths(200, 3)


@pytest.mark.slow
def test_many_tiny_instances_equal_all_paths() -> None:
    is_optimal = [check_against_paths(seed, 3 if seed % 8 == 0 else 2) for seed in range(200)]
    assert sum(is_optimal) >= 195


# ---------------------------------------------------------------------- closed forms
def make_betting_model(switch_prob: float, discount: float = 0.9, **options: Any) -> mmdp.MMDP:
    """Action a pays 1 while model a holds; the models change places with this chance."""
    K = [[1 - switch_prob, switch_prob], [switch_prob, 1 - switch_prob]]
    rewards = [[[1.0, 0.0]], [[0.0, 1.0]]]
    return mmdp.MMDP(
        [[[[1.0], [1.0]]]] * 2,
        rewards,
        weights=[1, 0],
        discount=discount,
        model_transitions=K,
        **options,
    )


@pytest.mark.parametrize("switch_prob", [0.0, 0.1, 0.5, 0.8, 1.0])
def test_a_model_that_is_never_observed(switch_prob: float) -> None:
    """P[the first model holds at t] = (1 + c^t) / 2 with c = 1 - 2 chance; one bets on it."""
    x, T, g, c = make_betting_model(switch_prob), 12, 0.9, abs(1 - 2 * switch_prob)

    def total(q: float) -> float:
        return T if q == 1 else (1 - q**T) / (1 - q)

    solution = mmdp.solve(x, T)
    assert solution.value == pytest.approx((total(g) + total(g * c)) / 2, abs=EXACT)
    assert mmdp.solve(x, T, "wsu").value == pytest.approx(solution.value, abs=EXACT)
    assert mmdp.solve(x, T, "oracle").value == pytest.approx(total(g), abs=EXACT)
    assert x.is_switching == (switch_prob > 0)


def test_a_model_that_is_seen_one_step_late() -> None:
    """The state tells which model held before: a bet on it pays 1 - e at every later step."""
    e, T, g = 0.2, 8, 0.95
    P = np.zeros((2, 2, 2, 2))
    P[0, ..., 0] = P[1, ..., 1] = 1.0
    rewards = [[[1.0, 0.0]] * 2, [[0.0, 1.0]] * 2]
    x = mmdp.MMDP(
        P,
        rewards,
        discount=g,
        initial=[1, 0],
        weights=[0.7, 0.3],
        model_transitions=[[1 - e, e], [e, 1 - e]],
    )
    later_return = (1 - e) * (g - g**T) / (1 - g)
    solution = mmdp.solve(x, T)
    assert solution.value == pytest.approx(0.7 + later_return, abs=EXACT)
    assert solution.policy.actions[1:].tolist() == [[0, 1]] * (T - 1)
    assert mmdp.solve(x, T, "qmdp").value == pytest.approx(0.7 + later_return, abs=0.05)


# ---------------------------------------------------------------------- no change, no cost
def test_the_identity_is_no_change() -> None:
    x = make_switching_model(3)
    fixed_model, identity_model = (x.replace(model_transitions=K) for K in (None, np.eye(2)))
    assert identity_model.problem.model_transitions is None
    assert not identity_model.is_switching
    assert kernels.get_backend("numba", identity_model.problem).name == "numba"
    assert identity_model.fingerprint() == fixed_model.fingerprint() != x.fingerprint()
    one, other = (mmdp.solve(y, 4, backend="numpy") for y in (identity_model, fixed_model))
    assert one.value == other.value
    assert repr(identity_model) == repr(fixed_model)
    assert identity_model.model_transitions.tolist() == [[1, 0], [0, 1]]


def test_passes_with_the_identity_are_the_same_to_the_bit() -> None:
    x = make_switching_model(4, M=3, S=4).replace(model_transitions=None).problem
    identity, backend, T = x._replace(model_transitions=np.eye(3)), kernels.get_backend("numpy"), 5
    for one, other in zip(
        backend.prepare(x, T).ascend([None]),
        backend.prepare(identity, T).ascend([None]),
        strict=True,
    ):
        assert one.policy.tolist() == other.policy.tolist()
        assert one.trace == other.trace
    table = np.zeros((T, 4), dtype=np.int32)
    assert np.array_equal(
        backend.prepare(x, T).forward(table), backend.prepare(identity, T).forward(table)
    )


@pytest.mark.parametrize("storage", ["dense", "sparse"])
def test_weights_are_probabilities_of_models_and_states(storage: Any) -> None:
    x = make_switching_model(5, M=3, storage=storage)
    policy = mmdp.policies.MarkovPolicy.random(x, 4, seed=1)
    b = mmdp.measures.model_weights(x, policy)
    expected = x.weights[:, None] * x.initial
    for t in range(4):
        np.testing.assert_allclose(b[t], expected, rtol=0, atol=EXACT)
        next_weights = np.zeros_like(expected)
        for m, n, s, z in product(range(3), range(3), range(2), range(2)):
            step = x.transitions[m, s, policy.actions[t, s], z] * x.model_transitions[m, n]
            next_weights[n, z] += expected[m, s] * step
        expected = next_weights


def test_the_gradient_is_the_derivative() -> None:
    x = make_switching_model(6)
    policy = mmdp.policies.MarkovPolicy.uniform(x, 3)
    gradient, step = mmdp.measures.policy_gradient(x, policy), 1e-6
    for t, s, a in product(range(3), range(2), range(2)):
        table = policy.probabilities.copy()
        table[t, s, a] += step
        backend = kernels.get_backend("numpy")
        first = [
            backend.prepare(x.problem, 3).backward("policy", policy=p).first_values
            for p in (table, policy.probabilities)
        ]
        difference = (
            x.problem.compute_returns(first[0]) - x.problem.compute_returns(first[1])
        ) @ x.weights
        assert gradient[t, s, a] == pytest.approx(difference / step, abs=1e-8)


# ---------------------------------------------------------------------- every machine
@pytest.mark.parametrize("backend", ["numba", "jax"])
@pytest.mark.parametrize("storage", ["dense", "sparse"])
def test_every_backend_gives_the_same(backend: str, storage: Any) -> None:
    if backend == "jax":
        pytest.importorskip("jax")
    x, T = make_switching_model(16, M=4, S=4, A=3, storage=storage), 5
    prepared_problems = [
        kernels.get_backend(name).prepare(x.problem, T) for name in (backend, "numpy")
    ]
    deterministic, randomized = (
        mmdp.policies.MarkovPolicy.random(x, T, 1).table,
        mmdp.policies.MarkovPolicy.uniform(x, T).table,
    )
    for ascents in zip(
        *(prepared.ascend([None, deterministic, randomized]) for prepared in prepared_problems),
        strict=True,
    ):
        assert (ascents[0].policy == ascents[1].policy).all()
        assert ascents[0].trace == pytest.approx(ascents[1].trace, rel=1e-12)
    for policy in (deterministic, randomized):
        one, other = (prepared.forward(policy) for prepared in prepared_problems)
        np.testing.assert_allclose(one, other, rtol=0, atol=EXACT)
        one, other = (
            prepared.backward("policy", policy=policy).first_values
            for prepared in prepared_problems
        )
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-11)
    for method in ("wsu", "oracle"):
        one, other = (mmdp.solve(x, T, method, backend=name) for name in (backend, "numpy"))
        assert one.provenance.backend == backend
        np.testing.assert_allclose(one.returns, other.returns, rtol=0, atol=1e-11)


# ---------------------------------------------------------------------- episodes and memory
def compute_planner_value(planner: Any, x: mmdp.MMDP) -> float:
    """The value of a planner by its own acts and updates over every history."""

    def later(memory: Any, t: int, s: int, paths: dict[tuple[int, ...], float]) -> float:
        if t == planner.horizon:
            return sum(weight * x.terminal[path[-1], s] for path, weight in paths.items())
        a = planner.act(memory, t, s)
        value = sum(weight * x.rewards[path[-1], s, a] for path, weight in paths.items())
        for next_state in range(x.n_states):
            longer = extend_paths(x, paths, s, a, next_state)
            next_memory = planner.update(memory, t, s, a, next_state)
            value += x.discount * later(next_memory, t + 1, next_state, longer)
            if getattr(planner, "model", None) is x:
                model_probs = np.zeros(x.n_models)
                for path, weight in longer.items():
                    model_probs[path[-1]] += weight
                np.testing.assert_allclose(
                    next_memory.belief, model_probs / model_probs.sum(), rtol=0, atol=1e-9
                )
        return value

    first = {(m,): weight for m, weight in enumerate(x.weights)}
    return sum(
        x.initial[s] * later(planner.initial_memory(), 0, s, first) for s in range(x.n_states)
    )


@pytest.mark.parametrize("method", ["qmdp", "rollout"])
def test_planners_are_simulated_with_the_belief_that_moves(method: str) -> None:
    x, T = make_switching_model(44, A=3).replace(model_transitions=[[0.9, 0.1], [0.2, 0.8]]), 4
    planner = mmdp.solve(x, T, method).policy
    exact, report = (
        compute_planner_value(planner, x),
        mmdp.simulate(x, planner, control_variate=False),
    )
    assert abs(report.mean - exact) < 3 * report.stderr
    assert mmdp.solve(x, T).value + 0.01 < exact <= best_history_value(x, T) + EXACT


def test_episodes_agree_with_exact_returns() -> None:
    x = make_switching_model(8, M=3)
    solution = mmdp.solve(x, 5)
    report = mmdp.simulate(x, solution.policy, n_episodes=4000, seed=2)
    assert (np.abs(report.returns - solution.returns) < 3.5 * report.standard_errors).all()

    class PythonPolicy:
        """The same policy, simulated step by step in Python."""

        name, horizon = "plain", 5

        def initial_memory(self, seed: int | None = 0) -> None:
            return None

        def act(self, memory: None, time: int, state: int) -> int:
            return int(solution.policy.actions[time, state])

        def update(self, memory: None, *seen: Any) -> None:
            return None

    python_report = mmdp.simulate(x, PythonPolicy(), n_episodes=1500)
    assert (
        np.abs(python_report.returns - solution.returns) < 3.5 * python_report.standard_errors
    ).all()


def test_a_planner_for_fixed_models_in_a_switching_model() -> None:
    x = make_switching_model(9)
    planner = mmdp.solve(x.replace(model_transitions=None), 3, "qmdp", backend="numpy").policy
    report = mmdp.evaluate(x, planner, backend="numba")
    assert abs(report.mean - compute_planner_value(planner, x)) < 3 * report.stderr + EXACT


def test_a_policy_with_memory_is_valued_exactly() -> None:
    x, T = make_switching_model(12, A=3), 4
    solution = mmdp.solve(x, T, policy_class=mmdp.policies.Memory(2))
    assert isinstance(solution.policy, MemoryPolicy)
    controller: Controller = solution.policy.controller

    class ControllerPolicy:
        horizon = T

        def initial_memory(self) -> int:
            return -1

        def act(self, memory: int, t: int, s: int) -> int:
            return int(
                controller.actions[t, s, controller.initial_nodes[s] if memory < 0 else memory]
            )

        def update(self, memory: int, t: int, s: int, a: int, next_state: int) -> int:
            return int(
                controller.node_transitions[
                    t, s, controller.initial_nodes[s] if memory < 0 else memory, next_state
                ]
            )

    assert solution.value == pytest.approx(compute_planner_value(ControllerPolicy(), x), abs=EXACT)
    assert solution.value >= mmdp.solve(x, T).value - EXACT
    assert (
        mmdp.solve(x, T, policy_class=mmdp.policies.Memory(2), certify_time=10).bound
        >= best_history_value(x, T) - EXACT
    )


def test_restricted_policies_come_along() -> None:
    x = make_switching_model(10, S=3)
    tied = mmdp.solve(x, 3, policy_class=mmdp.policies.Tied([0, 0, 1]))
    assert tied.value == pytest.approx(
        returns_by_paths(x, tied.policy.actions) @ x.weights, abs=EXACT
    )
    tables = [t for t in list_policies(x, 3) if (t[:, 0] == t[:, 1]).all()]
    values = [mmdp.evaluate(x, mmdp.policies.MarkovPolicy(t)).mean for t in tables]
    assert tied.value == pytest.approx(max(values), abs=EXACT)


# ---------------------------------------------------------------------- the model
def test_the_model_keeps_its_transitions(tmp_path: Path) -> None:
    x = make_switching_model(11, M=3)
    assert "models change" in repr(x)
    assert np.array_equal(x.replace(discount=0.5).model_transitions, x.model_transitions)
    for name in ("x.npz", "x.parquet"):
        mmdp.save(x, tmp_path / name)
        loaded = mmdp.load(tmp_path / name)
        assert loaded.fingerprint() == x.fingerprint()
        assert np.array_equal(loaded.model_transitions, x.model_transitions)
    assert mmdp.load(tmp_path / "x.npz", storage="sparse").is_switching
    assert not x.mean_model().is_switching
    with pytest.raises(mmdp.InputError, match=r"cannot hold models that switch; save as \.npz"):
        mmdp.save(x, tmp_path / "x.csv")


def test_a_subset_must_be_closed() -> None:
    K = [[0.5, 0.5, 0.0], [0.2, 0.8, 0.0], [0.0, 0.1, 0.9]]
    x = make_switching_model(13, M=3).replace(model_transitions=K)
    assert x.subset([0, 1]).model_transitions.tolist() == [[0.5, 0.5], [0.2, 0.8]]
    with pytest.raises(mmdp.InputError, match="the chosen models switch to others"):
        x.subset([1, 2])


@pytest.mark.parametrize(
    ("K", "message"),
    [
        ([[0.5, 0.4], [0, 1]], "must sum to 1, not 0.9, model 'wet'; divide"),
        ([[1.5, -0.5], [0, 1]], "is -0.5, model 'wet', model 'dry'; it must be a prob"),
        ([[1, 0], [np.nan, 1]], "is nan, model 'dry', model 'wet'; it must be a prob"),
        ([[1, 0]], r"has shape \(1, 2\); expected one number per model and model: \(2, 2\)"),
        ("no", "model_transitions"),
    ],
)
def test_bad_chains_are_one_clear_line(K: Any, message: str) -> None:
    with pytest.raises(mmdp.InputError, match=message) as error:
        make_betting_model(0.1, models=["wet", "dry"]).replace(model_transitions=K)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(
            ({"method": name}, "by itself, and these models change; choose method='cadp', 'wsu'")
            for name in ("exact", "milp")
        ),
        *(
            ({"method": name}, "must stay true, and these models change; choose method='cadp'")
            for name in ("pomcp", "mixts")
        ),
        ({"policy_class": "stationary", "horizon": math.inf}, "they are, and these models change"),
    ],
)
def test_switching_models_are_refused_where_unsupported(options: Any, message: str) -> None:
    with pytest.raises(mmdp.InputError, match=message):
        mmdp.solve(make_switching_model(1), **{"horizon": 3, **options})


def test_bounds_that_do_not_hold_are_refused() -> None:
    with pytest.raises(mmdp.InputError, match="choose method='best', 'oracle' or 'qmdp'"):
        mmdp.bound(make_switching_model(1), 3, "pairs")


def test_what_is_proven_holds() -> None:
    x = make_switching_model(2)
    solution = mmdp.solve(x, 3, certify_time=10)
    assert best_history_value(x, 3) - EXACT <= solution.bound <= mmdp.bound(x, 3, "oracle").value


@pytest.mark.parametrize(
    "objective", ["cvar:0.4", "worst", "entropic:2", "regret:worst", "var:0.4"]
)
def test_what_is_proven_about_other_objectives_holds(objective: str) -> None:
    """Of all policies, the returns by the model at the start along all paths."""
    F = mmdp.objectives.as_objective(objective)
    for seed in (2, 4):
        x = make_switching_model(seed, M=3)
        rho = np.array([returns_by_paths(x, table) for table in list_policies(x, 2)])
        oracle_returns = mmdp.solve(x, 2, "oracle").returns
        best = float(
            F.value(
                F.relative_returns(rho, lambda oracle_returns=oracle_returns: oracle_returns),
                x.weights,
            ).max()
        )
        solution = mmdp.solve(x, 2, objective=objective, certify_time=0.5)
        oracle = mmdp.bound(x, 2, "oracle", objective=objective).value
        assert solution.value - EXACT <= best <= solution.bound + EXACT
        assert solution.bound <= oracle
        if F.is_concave:  # the tilted mean proves more than the models' own optima
            assert solution.bound < oracle


def test_a_model_without_risk_weight_counts_if_others_turn_into_it() -> None:
    """Only the first model counts for the worst case; it pays by turning into the second."""
    x = mmdp.MMDP(
        [[[[1.0]]]] * 2, [[[0.0]], [[1.0]]], discount=1, model_transitions=[[0, 1], [0, 1]]
    )
    assert mmdp.bound(x, 3, objective="worst").value == pytest.approx(2)  # returns are 2 and 3


@pytest.mark.parametrize("seed", range(4))
def test_reachable_models(seed: int) -> None:
    rng = np.random.default_rng(seed)
    K = np.where(rng.random((5, 5)) < 0.25, rng.random((5, 5)), 0.0) + np.eye(5)
    x = make_switching_model(seed, M=5).replace(model_transitions=K / K.sum(axis=1, keepdims=True))
    reachable = np.linalg.matrix_power(x.model_transitions, 5) > 0
    for m in range(5):
        assert (
            x.problem.reachable_models(np.array([m])).tolist()
            == np.flatnonzero(reachable[m]).tolist()
        )
    fixed_model = x.replace(model_transitions=None)
    assert fixed_model.problem.reachable_models(np.array([3, 1])).tolist() == [1, 3]


def test_switching_models_are_not_sharded(tmp_path: Path) -> None:
    x = make_switching_model(14, M=4)
    with pytest.raises(mmdp.InputError, match="cannot be divided into shards; save them as one"):
        mmdp.io.save_shards(x, tmp_path / "parts", 2)
    mmdp.save(x, tmp_path / "x.npz")
    with pytest.raises(mmdp.InputError, match="cannot be divided into shards"):
        mmdp.load(tmp_path / "x.npz", shard=(0, 2))


# ---------------------------------------------------------------------- around it
def test_value_of_a_parameter_of_the_first_model() -> None:
    x = make_switching_model(3, M=3).replace(parameters={"kind": [0, 0, 1]})
    tables = list_policies(x, 2)
    returns = np.array([mmdp.evaluate(x, mmdp.policies.MarkovPolicy(t)).returns for t in tables])
    weighed = returns * x.weights
    known_value = weighed[:, :2].sum(axis=1).max() + weighed[:, 2].max()
    evppi = mmdp.measures.evppi(x, 2, "kind")
    assert evppi == pytest.approx(known_value - weighed.sum(axis=1).max(), abs=1e-9)


def test_the_table_agrees_with_the_oracle() -> None:
    x = make_switching_model(5, M=3)
    solution = mmdp.solve(x, 3)
    agree = mmdp.measures.policy_table(x, solution)["agreement"].to_numpy().reshape(3, 2)
    oracle_actions = mmdp.solve(x, 3, "oracle").model_policies  # (T, M, S)
    expected = np.einsum("m,tms->ts", x.weights, oracle_actions == solution.policy.actions[:, None])
    np.testing.assert_allclose(agree, expected, atol=EXACT)


@pytest.mark.slow
def test_a_report_skips_sections_for_fixed_models(tmp_path: Path) -> None:
    from mmdp.insight import report

    x = make_switching_model(3, M=3).replace(
        parameters={"kind": [0.0, 1.0, 2.0], "size": [1.0, 1.0, 2.0]}
    )
    page = report.write(x, tmp_path / "page.html", horizon=3).read_text(encoding="utf-8")
    assert f"{mmdp.solve(x, 3).value:.4f}"[:5] in page
    assert "The models change. Figures by model are by the model at the start" in page


def test_environments_move_the_model() -> None:
    pytest.importorskip("gymnasium")
    x, T = make_switching_model(15, M=3), 4
    policy = mmdp.policies.MarkovPolicy.random(x, T, seed=0)
    exact = mmdp.evaluate(x, policy).returns
    envs = mmdp.interop.to_gymnasium_vector(x, horizon=T, seed=1)
    states, info = envs.reset()
    earned: list[list[float]] = [[] for _ in range(3)]
    totals = np.zeros(3)
    for _ in range(1000 * (T + 1)):
        times = np.minimum(info["time"], T - 1)
        if (info["time"] == 0).all():
            assert info["model"].tolist() == [0, 1, 2]
        factor = x.discount ** info["time"].astype(float)
        states, rewards, _, ended, info = envs.step(policy.actions[times, states])
        totals += np.where(info["time"] > 0, factor * rewards, 0.0)
        for m in np.flatnonzero(ended):
            earned[m].append(totals[m])
            totals[m] = 0.0
    for m in range(3):
        error = np.std(earned[m]) / np.sqrt(len(earned[m]))
        assert abs(np.mean(earned[m]) - exact[m]) < 3.5 * error
    one = mmdp.interop.to_gymnasium(x, 1, horizon=T, seed=3)
    returns = []
    for _ in range(600):
        (state, _), total = one.reset(), 0.0
        for t in range(T):
            state, reward, *_ = one.step(policy.actions[t, state])
            total += x.discount**t * reward
        returns.append(total)
    assert abs(np.mean(returns) - exact[1]) < 3.5 * np.std(returns) / np.sqrt(len(returns))
