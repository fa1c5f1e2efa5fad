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
from mmdp import kernels
from mmdp.kernels.controller import Controller
from mmdp.policy import MemoryPolicy
from tests.instances import EXACT, by_paths, drawn, every_policy

Array = npt.NDArray[np.float64]


# ---------------------------------------------------------------------- brute force
def continued(
    x: mmdp.MMDP, paths: dict[tuple[int, ...], float], s: int, a: int, after: int
) -> dict[tuple[int, ...], float]:
    """The weight of every path of models after one more transition."""
    return {
        (*path, m): weight * x.transitions[path[-1], s, a, after] * x.model_transitions[path[-1], m]
        for path, weight in paths.items()
        for m in range(x.n_models)
    }


def by_tree(x: mmdp.MMDP, T: int, t: int = 0, s: int | None = None, paths: Any = None) -> float:
    """The best value over all histories; ``paths`` has the weight of every path of models."""
    if s is None:
        paths = {(m,): weight for m, weight in enumerate(x.weights)}
        return sum(x.initial[s] * by_tree(x, T, 0, s, paths) for s in range(x.n_states))
    if t == T:
        return sum(weight * x.terminal[path[-1], s] for path, weight in paths.items())
    values = []
    for a in range(x.n_actions):
        value = sum(weight * x.rewards[path[-1], s, a] for path, weight in paths.items())
        for after in range(x.n_states):
            longer = continued(x, paths, s, a, after)
            value += x.discount * by_tree(x, T, t + 1, after, longer)
        values.append(value)
    return max(values)


def check_against_paths(seed: int, T: int) -> bool:
    """Everything exact on one tiny instance; whether CADP found the best policy."""
    x = drawn(seed)
    tables = every_policy(x, T)
    returns = np.array([by_paths(x, table) for table in tables])
    for k in (0, len(tables) // 3, len(tables) - 1):
        found = mmdp.evaluate(mmdp.MarkovPolicy(tables[k]), x).returns
        np.testing.assert_allclose(found, returns[k], rtol=0, atol=EXACT)
    best, tree = float((returns @ x.weights).max()), by_tree(x, T)
    for options in ({}, {"sweeps": "paper", "starts": 1}):
        solution = mmdp.solve(x, T, mmdp.CADP(**options))
        own = by_paths(x, solution.policy.actions)
        np.testing.assert_allclose(solution.returns, own, rtol=0, atol=EXACT)
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
    found = [check_against_paths(seed, 3 if seed % 8 == 0 else 2) for seed in range(200)]
    assert sum(found) >= 195


# ---------------------------------------------------------------------- closed forms
def switching(chance: float, discount: float = 0.9, **more: Any) -> mmdp.MMDP:
    """Action a pays 1 while model a holds; the models change places with this chance."""
    K = [[1 - chance, chance], [chance, 1 - chance]]
    rewards = [[[1.0, 0.0]], [[0.0, 1.0]]]
    return mmdp.MMDP(
        [[[[1.0], [1.0]]]] * 2, rewards, weights=[1, 0], discount=discount,
        model_transitions=K, **more,
    )  # fmt: skip


@pytest.mark.parametrize("chance", [0.0, 0.1, 0.5, 0.8, 1.0])
def test_a_model_that_is_never_seen_again(chance: float) -> None:
    """P[the first model holds at t] = (1 + c^t) / 2 with c = 1 - 2 chance; one bets on it."""
    x, T, g, c = switching(chance), 12, 0.9, abs(1 - 2 * chance)

    def total(q: float) -> float:
        return T if q == 1 else (1 - q**T) / (1 - q)

    solution = mmdp.solve(x, T)
    assert solution.value == pytest.approx((total(g) + total(g * c)) / 2, abs=EXACT)
    assert mmdp.solve(x, T, "wsu").value == pytest.approx(solution.value, abs=EXACT)
    assert mmdp.solve(x, T, "oracle").value == pytest.approx(total(g), abs=EXACT)
    assert x.drifts == (chance > 0)


def test_a_model_that_is_seen_one_step_late() -> None:
    """The state tells which model held before: a bet on it pays 1 - e at every later step."""
    e, T, g = 0.2, 8, 0.95
    P = np.zeros((2, 2, 2, 2))
    P[0, ..., 0] = P[1, ..., 1] = 1.0
    rewards = [[[1.0, 0.0]] * 2, [[0.0, 1.0]] * 2]
    x = mmdp.MMDP(P, rewards, discount=g, initial=[1, 0], weights=[0.7, 0.3],
                  model_transitions=[[1 - e, e], [e, 1 - e]])  # fmt: skip
    later = (1 - e) * (g - g**T) / (1 - g)
    solution = mmdp.solve(x, T)
    assert solution.value == pytest.approx(0.7 + later, abs=EXACT)
    assert solution.policy.actions[1:].tolist() == [[0, 1]] * (T - 1)
    assert mmdp.solve(x, T, "qmdp").value == pytest.approx(0.7 + later, abs=0.05)


# ---------------------------------------------------------------------- no change, no cost
def test_the_identity_is_no_change() -> None:
    x = drawn(3)
    still, same = (x.replace(model_transitions=K) for K in (None, np.eye(2)))
    assert same.problem.drift is None
    assert not same.drifts
    assert kernels.get("numba", same.problem).name == "numba"
    assert same.fingerprint() == still.fingerprint() != x.fingerprint()
    one, other = (mmdp.solve(y, 4, backend="numpy") for y in (same, still))
    assert one.value == other.value
    assert repr(same) == repr(still)
    assert same.model_transitions.tolist() == [[1, 0], [0, 1]]


def test_passes_with_the_identity_are_the_same_to_the_bit() -> None:
    x = drawn(4, M=3, S=4).replace(model_transitions=None).problem
    identity, kernel, T = x._replace(drift=np.eye(3)), kernels.get("numpy"), 5
    for one, other in zip(
        kernel.plan(x, T).ascend([None]), kernel.plan(identity, T).ascend([None]), strict=True
    ):
        assert one.policy.tolist() == other.policy.tolist()
        assert one.trace == other.trace
    table = np.zeros((T, 4), dtype=np.int32)
    assert np.array_equal(kernel.plan(x, T).forward(table), kernel.plan(identity, T).forward(table))


@pytest.mark.parametrize("storage", ["dense", "sparse"])
def test_weights_are_the_chances_of_models_and_states(storage: Any) -> None:
    x = drawn(5, M=3, storage=storage)
    policy = mmdp.MarkovPolicy.random(x, 4, seed=1)
    b = mmdp.model_weights(policy, x)
    expected = x.weights[:, None] * x.initial
    for t in range(4):
        np.testing.assert_allclose(b[t], expected, rtol=0, atol=EXACT)
        moved = np.zeros_like(expected)
        for m, n, s, z in product(range(3), range(3), range(2), range(2)):
            step = x.transitions[m, s, policy.actions[t, s], z] * x.model_transitions[m, n]
            moved[n, z] += expected[m, s] * step
        expected = moved


def test_the_gradient_is_the_slope() -> None:
    x = drawn(6)
    policy = mmdp.MarkovPolicy.uniform(x, 3)
    slopes, step = mmdp.gradient(policy, x), 1e-6
    for t, s, a in product(range(3), range(2), range(2)):
        table = policy.probabilities.copy()
        table[t, s, a] += step
        kernel = kernels.get("numpy")
        first = [kernel.plan(x.problem, 3).backward("given", policy=p).first
                 for p in (table, policy.probabilities)]  # fmt: skip
        rise = (x.problem.returns(first[0]) - x.problem.returns(first[1])) @ x.weights
        assert slopes[t, s, a] == pytest.approx(rise / step, abs=1e-8)


# ---------------------------------------------------------------------- every machine
@pytest.mark.parametrize("backend", ["numba", "jax"])
@pytest.mark.parametrize("storage", ["dense", "sparse"])
def test_every_machine_finds_the_same(backend: str, storage: Any) -> None:
    if backend == "jax":
        pytest.importorskip("jax")
    x, T = drawn(16, M=4, S=4, A=3, storage=storage), 5
    plans = [kernels.get(name).plan(x.problem, T) for name in (backend, "numpy")]
    sharp, soft = mmdp.MarkovPolicy.random(x, T, 1).table, mmdp.MarkovPolicy.uniform(x, T).table
    for ascents in zip(*(plan.ascend([None, sharp, soft]) for plan in plans), strict=True):
        assert (ascents[0].policy == ascents[1].policy).all()
        assert ascents[0].trace == pytest.approx(ascents[1].trace, rel=1e-12)
    for policy in (sharp, soft):
        one, other = (plan.forward(policy) for plan in plans)
        np.testing.assert_allclose(one, other, rtol=0, atol=EXACT)
        one, other = (plan.backward("given", policy=policy).first for plan in plans)
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-11)
    for method in ("wsu", "oracle"):
        one, other = (mmdp.solve(x, T, method, backend=name) for name in (backend, "numpy"))
        assert one.provenance.backend == backend
        np.testing.assert_allclose(one.returns, other.returns, rtol=0, atol=1e-11)


# ---------------------------------------------------------------------- episodes and memory
def exact_value_of(planner: Any, x: mmdp.MMDP) -> float:
    """The value of a planner by its own acts and updates over every history."""

    def later(memory: Any, t: int, s: int, paths: dict[tuple[int, ...], float]) -> float:
        if t == planner.horizon:
            return sum(weight * x.terminal[path[-1], s] for path, weight in paths.items())
        a = planner.act(memory, t, s)
        value = sum(weight * x.rewards[path[-1], s, a] for path, weight in paths.items())
        for after in range(x.n_states):
            longer = continued(x, paths, s, a, after)
            then = planner.update(memory, t, s, a, after)
            value += x.discount * later(then, t + 1, after, longer)
            if getattr(planner, "model", None) is x:
                held = np.zeros(x.n_models)
                for path, weight in longer.items():
                    held[path[-1]] += weight
                np.testing.assert_allclose(then.belief, held / held.sum(), rtol=0, atol=1e-9)
        return value

    first = {(m,): weight for m, weight in enumerate(x.weights)}
    return sum(x.initial[s] * later(planner.start(), 0, s, first) for s in range(x.n_states))


@pytest.mark.parametrize("method", ["qmdp", "rollout"])
def test_planners_are_simulated_with_the_belief_that_moves(method: str) -> None:
    x, T = drawn(44, A=3).replace(model_transitions=[[0.9, 0.1], [0.2, 0.8]]), 4
    planner = mmdp.solve(x, T, method).policy
    exact, report = exact_value_of(planner, x), mmdp.simulate(planner, x, control=False)
    assert abs(report.mean - exact) < 3 * report.stderr
    assert mmdp.solve(x, T).value + 0.01 < exact <= by_tree(x, T) + EXACT


def test_episodes_agree_with_exact_returns() -> None:
    x = drawn(8, M=3)
    solution = mmdp.solve(x, 5)
    report = mmdp.simulate(solution.policy, x, episodes=4000, seed=2)
    assert (np.abs(report.returns - solution.returns) < 3.5 * report.errors).all()

    class Plain:
        """The same policy, simulated step by step in Python."""

        name, horizon = "plain", 5

        def start(self, seed: int | None = 0) -> None:
            return None

        def act(self, memory: None, time: int, state: int) -> int:
            return int(solution.policy.actions[time, state])

        def update(self, memory: None, *seen: Any) -> None:
            return None

    plain = mmdp.simulate(Plain(), x, episodes=1500)
    assert (np.abs(plain.returns - solution.returns) < 3.5 * plain.errors).all()


def test_a_planner_for_still_models_meets_a_world_that_changes() -> None:
    x = drawn(9)
    still = mmdp.solve(x.replace(model_transitions=None), 3, "qmdp", backend="numpy").policy
    report = mmdp.evaluate(still, x, backend="numba")
    assert abs(report.mean - exact_value_of(still, x)) < 3 * report.stderr + EXACT


def test_a_policy_with_memory_is_valued_exactly() -> None:
    x, T = drawn(12, A=3), 4
    solution = mmdp.solve(x, T, policy=mmdp.Memory(2))
    assert isinstance(solution.policy, MemoryPolicy)
    held: Controller = solution.policy.controller

    class Nodes:
        horizon = T

        def start(self) -> int:
            return -1

        def act(self, memory: int, t: int, s: int) -> int:
            return int(held.actions[t, s, held.first[s] if memory < 0 else memory])

        def update(self, memory: int, t: int, s: int, a: int, after: int) -> int:
            return int(held.moves[t, s, held.first[s] if memory < 0 else memory, after])

    assert solution.value == pytest.approx(exact_value_of(Nodes(), x), abs=EXACT)
    assert solution.value >= mmdp.solve(x, T).value - EXACT
    assert mmdp.solve(x, T, policy=mmdp.Memory(2), certify=True).bound >= by_tree(x, T) - EXACT


def test_restricted_policies_come_along() -> None:
    x = drawn(10, S=3)
    tied = mmdp.solve(x, 3, policy=mmdp.Tied([0, 0, 1]))
    assert tied.value == pytest.approx(by_paths(x, tied.policy.actions) @ x.weights, abs=EXACT)
    tables = [t for t in every_policy(x, 3) if (t[:, 0] == t[:, 1]).all()]
    values = [mmdp.evaluate(mmdp.MarkovPolicy(t), x).mean for t in tables]
    assert tied.value == pytest.approx(max(values), abs=EXACT)


# ---------------------------------------------------------------------- the model
def test_the_model_keeps_its_chain(tmp_path: Path) -> None:
    x = drawn(11, M=3)
    assert "models change" in repr(x)
    assert np.array_equal(x.replace(discount=0.5).model_transitions, x.model_transitions)
    for name in ("x.npz", "x.parquet"):
        mmdp.save(x, tmp_path / name)
        again = mmdp.load(tmp_path / name)
        assert again.fingerprint() == x.fingerprint()
        assert np.array_equal(again.model_transitions, x.model_transitions)
    assert mmdp.load(tmp_path / "x.npz", storage="sparse").drifts
    assert not x.mean_model().drifts
    with pytest.raises(mmdp.InputError, match=r"no place for models that change; save as \.npz"):
        mmdp.save(x, tmp_path / "x.csv")


def test_a_subset_must_be_closed() -> None:
    K = [[0.5, 0.5, 0.0], [0.2, 0.8, 0.0], [0.0, 0.1, 0.9]]
    x = drawn(13, M=3).replace(model_transitions=K)
    assert x.subset([0, 1]).model_transitions.tolist() == [[0.5, 0.5], [0.2, 0.8]]
    with pytest.raises(mmdp.InputError, match="the chosen models turn into others"):
        x.subset([1, 2])


@pytest.mark.parametrize(
    ("K", "message"),
    [
        ([[0.5, 0.4], [0, 1]], "sum to 0.9, not 1, from model 'wet'; divide each row by its sum"),
        ([[1.5, -0.5], [0, 1]], "is -0.5 from model 'wet' to model 'dry'; it must be a prob"),
        ([[1, 0], [np.nan, 1]], "is nan from model 'dry' to model 'wet'; it must be a prob"),
        ([[1, 0]], r"has shape \(1, 2\); expected \(models, models\) = \(2, 2\)"),
        ("no", "model_transitions"),
    ],
)
def test_bad_chains_are_one_clear_line(K: Any, message: str) -> None:
    with pytest.raises(mmdp.InputError, match=message) as error:
        switching(0.1, models=["wet", "dry"]).replace(model_transitions=K)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(({"method": name}, "by itself, and these models change; choose method='cadp', 'wsu'")
          for name in ("exact", "milp")),
        *(({"method": name}, "must stay true, and these models change; choose method='cadp'")
          for name in ("pomcp", "mixts")),
        ({"policy": "stationary", "horizon": math.inf}, "they are, and these models change"),
    ],
)  # fmt: skip
def test_what_needs_models_that_stay_is_refused(options: Any, message: str) -> None:
    with pytest.raises(mmdp.InputError, match=message):
        mmdp.solve(drawn(1), **{"horizon": 3, **options})


@pytest.mark.parametrize("method", ["pairs", "dual", "pair-dual", "lp"])
def test_bounds_that_do_not_hold_are_refused(method: str) -> None:
    with pytest.raises(mmdp.InputError, match="choose method='best', 'oracle' or 'qmdp'"):
        mmdp.bound(drawn(1), 3, method)


def test_what_is_proven_holds() -> None:
    x = drawn(2)
    solution = mmdp.solve(x, 3, certify=True)
    assert by_tree(x, 3) - EXACT <= solution.bound <= mmdp.bound(x, 3, "oracle").value


@pytest.mark.parametrize("aim", ["cvar:0.4", "worst", "entropic:2", "regret:worst", "var:0.4"])
def test_what_is_proven_about_other_objectives_holds(aim: str) -> None:
    """Of all policies, the returns by the model at the start along all paths."""
    F = mmdp.objective.as_objective(aim)
    for seed in (2, 4):
        x = drawn(seed, M=3)
        rho = np.array([by_paths(x, table) for table in every_policy(x, 2)])
        own = mmdp.solve(x, 2, "oracle").returns
        best = float(F.value(F.counted(rho, lambda own=own: own), x.weights).max())
        solution = mmdp.solve(x, 2, objective=aim, certify=0.5)
        oracle = mmdp.bound(x, 2, "oracle", objective=aim).value
        assert solution.value - EXACT <= best <= solution.bound + EXACT
        assert solution.bound <= oracle
        if F.concave:  # the tilted mean proves more than the models' own optima
            assert solution.bound < oracle


@pytest.mark.parametrize("seed", range(4))
def test_the_models_that_others_become(seed: int) -> None:
    rng = np.random.default_rng(seed)
    K = np.where(rng.random((5, 5)) < 0.25, rng.random((5, 5)), 0.0) + np.eye(5)
    x = drawn(seed, M=5).replace(model_transitions=K / K.sum(axis=1, keepdims=True))
    ever = np.linalg.matrix_power(x.model_transitions, 5) > 0
    for m in range(5):
        assert x.problem.becoming(np.array([m])).tolist() == np.flatnonzero(ever[m]).tolist()
    still = x.replace(model_transitions=None)
    assert still.problem.becoming(np.array([3, 1])).tolist() == [1, 3]


def test_models_that_change_are_not_divided(tmp_path: Path) -> None:
    x = drawn(14, M=4)
    with pytest.raises(mmdp.InputError, match="cannot be divided into parts; save them as one"):
        mmdp.io.save_parts(x, tmp_path / "parts", 2)
    mmdp.save(x, tmp_path / "x.npz")
    with pytest.raises(mmdp.InputError, match="cannot be divided into parts"):
        mmdp.load(tmp_path / "x.npz", part=(0, 2))


# ---------------------------------------------------------------------- around it
def test_what_a_parameter_of_the_first_model_is_worth() -> None:
    x = drawn(3, M=3).replace(parameters={"kind": [0, 0, 1]})
    tables = every_policy(x, 2)
    returns = np.array([mmdp.evaluate(mmdp.MarkovPolicy(t), x).returns for t in tables])
    weighed = returns * x.weights
    known = weighed[:, :2].sum(axis=1).max() + weighed[:, 2].max()
    found = mmdp.measures.evppi(x, 2, "kind")
    assert found == pytest.approx(known - weighed.sum(axis=1).max(), abs=1e-9)


def test_the_table_agrees_with_models_that_know_themselves() -> None:
    x = drawn(5, M=3)
    solution = mmdp.solve(x, 3)
    agree = mmdp.measures.policy_table(solution, x)["agree"].to_numpy().reshape(3, 2)
    own = mmdp.solve(x, 3, "oracle").policies  # (T, M, S)
    expected = np.einsum("m,tms->ts", x.weights, own == solution.policy.actions[:, None])
    np.testing.assert_allclose(agree, expected, atol=EXACT)


@pytest.mark.slow
def test_a_report_leaves_out_what_needs_models_apart(tmp_path: Path) -> None:
    from mmdp import report

    x = drawn(3, M=3).replace(parameters={"kind": [0.0, 1.0, 2.0], "size": [1.0, 1.0, 2.0]})
    page = report.write(x, tmp_path / "page.html", horizon=3).read_text(encoding="utf-8")
    assert f"{mmdp.solve(x, 3).value:.4f}"[:5] in page
    assert "The models change. Figures by model are by the model at the start" in page


def test_environments_move_the_model() -> None:
    pytest.importorskip("gymnasium")
    x, T = drawn(15, M=3), 4
    policy = mmdp.MarkovPolicy.random(x, T, seed=0)
    exact = mmdp.evaluate(policy, x).returns
    envs = mmdp.ecosystem.to_gymnasium_vector(x, horizon=T, seed=1)
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
    one = mmdp.ecosystem.to_gymnasium(x, 1, horizon=T, seed=3)
    returns = []
    for _ in range(600):
        (state, _), total = one.reset(), 0.0
        for t in range(T):
            state, reward, *_ = one.step(policy.actions[t, state])
            total += x.discount**t * reward
        returns.append(total)
    assert abs(np.mean(returns) - exact[1]) < 3.5 * np.std(returns) / np.sqrt(len(returns))
