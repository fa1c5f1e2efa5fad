"""Two real processes with half of the models each, against one process with all of them."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mmdp
from mmdp.core.errors import InputError
from mmdp.core.kernels.problem import Shard
from tests.conftest import ROOT
from tests.core.kernels.instances import T, make_random_model
from tests.processes import TIMEOUT, run_process

pytest.importorskip("jax", reason="jax is not installed; pip install 'mmdp[jax]'")

SCRIPT_HEAD = """
import json, os, sys, time
import numpy as np
import mmdp
from tests.core.kernels.instances import T, make_random_model

def tell(**found):
    print(json.dumps(found, default=lambda x: x.tolist()), flush=True)

def main(shard):
    one = mmdp.methods.CADP(n_init=1)
{body}

with mmdp.distributed.join_processes(
    sys.argv[1], int(sys.argv[2]), 2, heartbeat_timeout={heartbeat_timeout}
):
    main(mmdp.distributed.process_shard())
"""


@contextmanager
def start_processes(body: str, timeout: int = 60) -> Iterator[list[subprocess.Popen[str]]]:
    """Two processes that run ``body`` with shard, one, tell, T and make_random_model at hand."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    script = SCRIPT_HEAD.format(
        body=textwrap.indent(textwrap.dedent(body), "    "), heartbeat_timeout=timeout
    )
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    two = partial(run_process, sys.executable, "-c", script, address, env=env, cwd=ROOT)
    with two(0) as first, two(1) as second:
        yield [first, second]


def run_processes(body: str, seconds: float = TIMEOUT) -> list[dict[str, Any]]:
    """What both processes tell, which must be the same."""
    with start_processes(body) as processes:
        outputs = [process.communicate(timeout=seconds) for process in processes]
    for process, (_, err) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, err
    lines = [[x for x in out.splitlines() if x.startswith("{")] for out, _ in outputs]
    assert lines[0] == lines[1]
    return [json.loads(line) for line in lines[0]]


def wait_for_json(process: subprocess.Popen[str]) -> None:
    """Wait until the process tells something."""
    assert process.stdout is not None
    assert any(line.startswith("{") for line in process.stdout)


def check_close(result: Any, expected: Any) -> None:
    np.testing.assert_allclose(result, expected, rtol=1e-12, atol=1e-12)


def check_same(result: dict[str, Any], expected: mmdp.Solution) -> None:
    assert result["policy"] == expected.policy.actions.tolist()
    check_close(result["value"], expected.value)
    check_close(result["returns"], expected.returns)


# ------------------------------------------------------------------ the same answers
SCRIPT_RESULTS = """
model = make_random_model(3, "padded").take_shard(*shard)
found = mmdp.solve(model, T, one)
tell(policy=found.policy.actions, value=found.value, returns=found.returns)
late = mmdp.solve(model, T, mmdp.methods.CADP(n_init=40), time_limit=0.5,
                  callback=lambda progress: time.sleep(0.1 + 0.1 * shard[0]))
tell(status=late.status.name, policy=late.policy.actions, value=late.value)
"""
SCRIPT_OTHER_RESULTS = """
model = make_random_model(3, "padded").take_shard(*shard)
tested = mmdp.evaluate(model, mmdp.policies.MarkovPolicy.uniform(model, T))
tell(returns=tested.returns, mean=tested.mean, regret=tested.regret)
tell(bound=mmdp.bound(model, T, "oracle").value)
every = mmdp.solve(make_random_model(3, "padded"), T, "oracle", backend="numpy").model_policies
mine = mmdp.solve(model, T, "oracle").model_policies  # of the models in this process
assert np.array_equal(mine, every[:, model.problem.local_models])
climb = mmdp.methods.NaturalGradient(max_iter=4)
tell(mean=mmdp.solve(model, T, "mvp").value, climb=mmdp.solve(model, T, climb).value,
     some=model.subset([4, 1]).transitions)
"""


def test_two_processes_find_what_one_finds():
    results = iter(run_processes(SCRIPT_RESULTS))
    model = make_random_model(3, "padded")
    check_same(next(results), mmdp.solve(model, T, mmdp.methods.CADP(n_init=1), backend="numpy"))
    late = next(results)  # both stop together though one is slower
    assert late["status"] == "TIME_LIMIT"
    policy = mmdp.policies.MarkovPolicy(late["policy"], n_actions=model.n_actions)
    check_close(late["value"], mmdp.evaluate(model, policy).mean)


SCRIPT_INITIAL = """
full = make_random_model(3, "padded")
initial = np.random.default_rng(0).dirichlet(np.ones(full.n_states), full.n_models)
model = full.replace(initial=initial).take_shard(*shard)
found = mmdp.solve(model, T, one)
tell(policy=found.policy.actions, value=found.value, returns=found.returns)
"""


def test_every_process_has_the_initial_distributions_of_its_own_models():
    (result,) = run_processes(SCRIPT_INITIAL)
    full = make_random_model(3, "padded")
    initial = np.random.default_rng(0).dirichlet(np.ones(full.n_states), full.n_models)
    model = full.replace(initial=initial)
    check_same(result, mmdp.solve(model, T, mmdp.methods.CADP(n_init=1), backend="numpy"))


@pytest.mark.slow
def test_two_processes_evaluate_bound_and_climb_as_one_does():
    results = iter(run_processes(SCRIPT_OTHER_RESULTS))
    model = make_random_model(3, "padded")
    tested, expected = (
        next(results),
        mmdp.evaluate(model, mmdp.policies.MarkovPolicy.uniform(model, T)),
    )
    for name in ("returns", "mean", "regret"):
        check_close(tested[name], getattr(expected, name))
    check_close(next(results)["bound"], mmdp.bound(model, T, "oracle", backend="numpy").value)
    other_results = next(results)
    check_close(other_results["mean"], mmdp.solve(model, T, "mvp", backend="numpy").value)
    ascent = mmdp.solve(model, T, mmdp.methods.NaturalGradient(max_iter=4), backend="numpy")
    check_close(other_results["climb"], ascent.value)
    check_close(other_results["some"], model.subset([4, 1]).transitions)


@pytest.mark.slow
def test_two_processes_on_fifty_random_instances():
    results = run_processes(
        """
    for kind in ("dense", "padded"):
        for seed in range(25):
            found = mmdp.solve(make_random_model(seed, kind).take_shard(*shard), T, one)
            tell(policy=found.policy.actions, value=found.value, returns=found.returns)
    """,
        seconds=1500,
    )
    expected = [
        make_random_model(seed, storage) for storage in ("dense", "padded") for seed in range(25)
    ]
    for one, model in zip(results, expected, strict=True):
        check_same(one, mmdp.solve(model, T, mmdp.methods.CADP(n_init=1), backend="numpy"))


DOMAINS = {"riverswim": 10, "population_small": 10, "inventory": 10, "hiv": 5, "two_models": 4}


@pytest.mark.slow
@pytest.mark.parametrize("name", DOMAINS)
def test_two_processes_on_the_domains(name):
    """With every start of the default method."""
    horizon = DOMAINS[name]
    results = run_processes(
        f"""
    found = mmdp.solve(mmdp.domains.{name}().train.take_shard(*shard), {horizon})
    tell(policy=found.policy.actions, value=found.value, returns=found.returns)
    """,
        seconds=1500,
    )
    check_same(results[0], mmdp.solve(getattr(mmdp.domains, name)().train, horizon, backend="jax"))


# ------------------------------------------------------------------ one ends, all end
@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_process_that_is_killed_ends_the_other(victim):
    body = """
    model = make_random_model(3, "padded").take_shard(*shard)
    while True:
        tell(value=mmdp.solve(model, T, one).value)
    """
    with start_processes(body, timeout=10) as processes:
        wait_for_json(processes[victim])
        processes[victim].kill()
        _, err = processes[1 - victim].communicate(timeout=TIMEOUT)
    assert processes[1 - victim].returncode not in (0, None)
    assert re.search("another process of this solve has ended|another task died", err), err


@pytest.mark.slow
def test_an_error_in_one_process_ends_the_other():
    body = """
    model = make_random_model(3, "padded").take_shard(*shard)
    mmdp.solve(model, T, one)
    if shard[0] == 1:
        raise mmdp.InputError("this one is wrong")
    mmdp.solve(model, T, one)
    """
    with start_processes(body, timeout=10) as processes:
        errors = [process.communicate(timeout=TIMEOUT)[1] for process in processes]
    assert processes[1].returncode == 2
    assert "process 1 of 2: this one is wrong" in errors[1]
    assert processes[0].returncode not in (0, None)


@pytest.mark.slow
def test_ctrl_c_in_one_process_ends_both_with_the_best_so_far():
    body = """
    model = make_random_model(3, "padded").take_shard(*shard)
    def wait(progress):
        tell(value=progress.value)
        time.sleep(0.3)
    found = mmdp.solve(model, T, mmdp.methods.CADP(n_init=1000), callback=wait)
    tell(status=found.status.name, policy=found.policy.actions)
    """
    with start_processes(body) as processes:
        wait_for_json(processes[1])
        processes[1].send_signal(signal.SIGINT)
        outputs = [process.communicate(timeout=TIMEOUT) for process in processes]
    ends = [json.loads(out.splitlines()[-1]) for out, _ in outputs]
    assert ends[0] == ends[1]
    assert ends[0]["status"] == "INTERRUPTED"


# ------------------------------------------------------------------ what is exchanged
SCRIPT_EXCHANGES = """
import re, jax
from mmdp.core.kernels.jax.ascent import DeviceSweeper, _sweep
from mmdp.core.kernels.jax.arrays import enable_float64
from mmdp.core.kernels.jax.backend import JaxBackend
from tests.core.kernels.instances import T, make_problem

x = make_problem(2, "padded")
prepared = JaxBackend(devices=jax.devices()).prepare(x, T)
tuning = prepared.tuning
for two_way in (False, True):
    with enable_float64():
        sweeper, arrays = DeviceSweeper(prepared, two_way), prepared.get_device_arrays()
        policy = prepared.placement.put(sweeper.initialize(None)[0])
        text = _sweep.lower(arrays, policy, sweeper.q, False, tuning=tuning).compile().as_text()
    print(sorted(re.findall(r"= f64\\[([\\d,]*)\\]\\S* all-reduce", text)))
    assert not re.search("all-gather|all-to-all|collective-permute", text)
"""


def test_a_sweep_exchanges_the_sums_over_models_alone():
    """Per step (S, A) in a backward pass; for the states without weight S more."""
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT_EXCHANGES],
        env={**os.environ, **flags},
        cwd=ROOT,
        text=True,
        capture_output=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    S, A = 6, 3
    backward = [f"{S},{A}", f"{T},{S}"]  # G in every step, weights of all steps
    paper, two_way = (json.loads(line.replace("'", '"')) for line in run.stdout.splitlines())
    assert paper == sorted(backward)
    assert two_way == sorted([*backward, f"{S},{A + 1}"])
    exchanged = 8 * (T * S * A + T * S + 1)
    assert exchanged <= (1 + 1 / A) * T * S * A * 8 + 8


# ------------------------------------------------------------------ parts
def test_shards_hold_all_models_between_them():
    for models, n in ((5, 2), (7, 3), (4, 4)):
        local_models = [Shard(i, n, models).local_models for i in range(n)]
        assert [m for x in local_models for m in range(models)[x]] == list(range(models))


def test_a_shard_is_not_solved_alone():
    shard = make_random_model(0, "padded").take_shard(0, 2)
    assert shard.shard == (0, 2)
    with pytest.raises(
        InputError, match=r"part 0 of 2, and this is process 0 of 1.*join_processes"
    ):
        mmdp.solve(shard, T)
    with pytest.raises(InputError, match=r"'numba' cannot join.*use backend='jax'"):
        mmdp.solve(shard, T, backend="numba")


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (lambda x: mmdp.solve(x, T, "qmdp"), "it needs all models in one process.*'cadp'"),
        (lambda x: mmdp.solve(x, T, objective="cvar:0.1"), "cvar:0.1 needs all models"),
        (lambda x: mmdp.bound(x, T), "bound best needs all models.*method='oracle'"),
        (lambda x: mmdp.save(x, "nothing.npz"), "a file needs all models"),
        (lambda x: x.take_shard(2, 2), r"part \(2, 2\): parts are numbered from 0 to 1"),
        (lambda x: x.take_shard(0, 9), "5 models cannot be divided into 9 parts"),
    ],
)
def test_what_needs_all_models_is_refused(run, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=message):
        run(make_random_model(0, "padded").take_shard(0, 2))


def test_launchers_number_the_processes(monkeypatch):
    from mmdp.core.distributed import LAUNCHER_VARIABLES, _find_process_index

    for names in LAUNCHER_VARIABLES.values():
        with monkeypatch.context() as patched:
            for name, value in zip(names, ("3", "8"), strict=True):
                patched.setenv(name, value)
            assert _find_process_index(None, None) == (3, 8)
            assert _find_process_index(1, 2) == (1, 2)
    with pytest.raises(InputError, match="numbered from 0"):
        _find_process_index(2, 2)


@pytest.mark.slow
def test_the_example_in_two_terminals(tmp_path: Path):
    mmdp.io.save_shards(make_random_model(3, "padded"), tmp_path / "models", 3)
    line = [
        sys.executable,
        "examples/many_hosts.py",
        str(tmp_path),
        "--horizon",
        str(T),
        "--models",
        str(tmp_path / "models"),
        "--processes",
        "2",
        "--address",
        "localhost:41733",
    ]
    env = {**os.environ, "JAX_PLATFORMS": "cpu"}
    two = partial(run_process, *line, "--process", env=env, cwd=ROOT)
    with two(0) as first, two(1) as second:
        out = [run.communicate(timeout=TIMEOUT)[0] for run in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0)
    assert "LOCAL_OPTIMUM" in out[0]
    assert "value" not in out[1]
    expected = mmdp.solve(make_random_model(3, "padded"), T, backend="jax")
    assert mmdp.load_policy(tmp_path / "policy.csv") == expected.policy
