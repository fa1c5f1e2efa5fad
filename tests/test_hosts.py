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
from mmdp.errors import InputError
from mmdp.kernels.problem import Part
from tests.conftest import ROOT
from tests.kernels.instances import T, random_model
from tests.processes import PATIENCE, running

pytest.importorskip("jax", reason="jax is not installed; pip install 'mmdp[jax]'")

HEAD = """
import json, os, sys, time
import numpy as np
import mmdp
from tests.kernels.instances import T, random_model

def tell(**found):
    print(json.dumps(found, default=lambda x: x.tolist()), flush=True)

def main(part):
    one = mmdp.CADP(starts=1)
{body}

with mmdp.hosts.connected(sys.argv[1], int(sys.argv[2]), 2, patience={patience}):
    main(mmdp.hosts.part())
"""


@contextmanager
def start(body: str, patience: int = 60) -> Iterator[list[subprocess.Popen[str]]]:
    """Two processes that run ``body`` with part, one, tell, T and random_model at hand."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    script = HEAD.format(body=textwrap.indent(textwrap.dedent(body), "    "), patience=patience)
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    two = partial(running, sys.executable, "-c", script, address, env=env, cwd=ROOT)
    with two(0) as first, two(1) as second:
        yield [first, second]


def told(body: str, seconds: float = PATIENCE) -> list[dict[str, Any]]:
    """What both processes tell, which must be the same."""
    with start(body) as processes:
        found = [process.communicate(timeout=seconds) for process in processes]
    for process, (_, err) in zip(processes, found, strict=True):
        assert process.returncode == 0, err
    lines = [[x for x in out.splitlines() if x.startswith("{")] for out, _ in found]
    assert lines[0] == lines[1]
    return [json.loads(line) for line in lines[0]]


def wait_for_json(process: subprocess.Popen[str]) -> None:
    """Wait until the process tells something."""
    assert process.stdout is not None
    assert any(line.startswith("{") for line in process.stdout)


def close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def same(found: dict[str, Any], expected: mmdp.Solution) -> None:
    assert found["policy"] == expected.policy.actions.tolist()
    close(found["value"], expected.value)
    close(found["returns"], expected.returns)


# ------------------------------------------------------------------ the same answers
ANSWERS = """
model = random_model(3, "padded").take_part(*part)
found = mmdp.solve(model, T, one)
tell(policy=found.policy.actions, value=found.value, returns=found.returns)
tested = mmdp.evaluate(mmdp.MarkovPolicy.uniform(model, T), model)
tell(returns=tested.returns, mean=tested.mean, regret=tested.regret)
tell(bound=mmdp.bound(model, T, "oracle").value)
every = mmdp.solve(random_model(3, "padded"), T, "oracle", backend="numpy").policies
mine = mmdp.solve(model, T, "oracle").policies  # of the models in this process
assert np.array_equal(mine, every[:, model.problem.models_here])
climb = mmdp.Gradient(max_iterations=4)
tell(mean=mmdp.solve(model, T, "mvp").value, climb=mmdp.solve(model, T, climb).value,
     some=model.subset([4, 1]).transitions)
late = mmdp.solve(model, T, mmdp.CADP(starts=40), time_limit=0.5,
                  callback=lambda progress: time.sleep(0.1 + 0.1 * part[0]))
tell(status=late.status.name, policy=late.policy.actions, value=late.value)
"""


def test_two_processes_find_what_one_finds():
    found = iter(told(ANSWERS))
    model = random_model(3, "padded")
    same(next(found), mmdp.solve(model, T, mmdp.CADP(starts=1), backend="numpy"))
    tested, expected = next(found), mmdp.evaluate(mmdp.MarkovPolicy.uniform(model, T), model)
    for name in ("returns", "mean", "regret"):
        close(tested[name], getattr(expected, name))
    close(next(found)["bound"], mmdp.bound(model, T, "oracle", backend="numpy").value)
    others = next(found)
    close(others["mean"], mmdp.solve(model, T, "mvp", backend="numpy").value)
    climb = mmdp.solve(model, T, mmdp.Gradient(max_iterations=4), backend="numpy")
    close(others["climb"], climb.value)
    close(others["some"], model.subset([4, 1]).transitions)
    late = next(found)  # both stop together though one is slower
    assert late["status"] == "TIME_LIMIT"
    policy = mmdp.MarkovPolicy(late["policy"], n_actions=model.n_actions)
    close(late["value"], mmdp.evaluate(policy, model).mean)


@pytest.mark.slow
def test_two_processes_on_fifty_random_instances():
    found = told("""
    for kind in ("dense", "padded"):
        for seed in range(25):
            found = mmdp.solve(random_model(seed, kind).take_part(*part), T, one)
            tell(policy=found.policy.actions, value=found.value, returns=found.returns)
    """, seconds=1500)  # fmt: skip
    expected = [random_model(seed, kind) for kind in ("dense", "padded") for seed in range(25)]
    for one, model in zip(found, expected, strict=True):
        same(one, mmdp.solve(model, T, mmdp.CADP(starts=1), backend="numpy"))


DOMAINS = {"riverswim": 10, "population_small": 10, "inventory": 10, "hiv": 5, "two_models": 4}


@pytest.mark.slow
@pytest.mark.parametrize("name", DOMAINS)
def test_two_processes_on_the_domains(name):
    """With every start of the default method."""
    horizon = DOMAINS[name]
    found = told(f"""
    found = mmdp.solve(mmdp.domains.{name}().train.take_part(*part), {horizon})
    tell(policy=found.policy.actions, value=found.value, returns=found.returns)
    """, seconds=1500)  # fmt: skip
    same(found[0], mmdp.solve(getattr(mmdp.domains, name)().train, horizon, backend="jax"))


# ------------------------------------------------------------------ one ends, all end
@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_process_that_is_killed_ends_the_other(victim):
    body = """
    model = random_model(3, "padded").take_part(*part)
    while True:
        tell(value=mmdp.solve(model, T, one).value)
    """
    with start(body, patience=10) as processes:
        wait_for_json(processes[victim])
        processes[victim].kill()
        _, err = processes[1 - victim].communicate(timeout=PATIENCE)
    assert processes[1 - victim].returncode not in (0, None)
    assert re.search("another process of this solve has ended|another task died", err), err


@pytest.mark.slow
def test_an_error_in_one_process_ends_the_other():
    body = """
    model = random_model(3, "padded").take_part(*part)
    mmdp.solve(model, T, one)
    if part[0] == 1:
        raise mmdp.InputError("this one is wrong")
    mmdp.solve(model, T, one)
    """
    with start(body, patience=10) as processes:
        found = [process.communicate(timeout=PATIENCE)[1] for process in processes]
    assert processes[1].returncode == 2
    assert "process 1 of 2: this one is wrong" in found[1]
    assert processes[0].returncode not in (0, None)


@pytest.mark.slow
def test_ctrl_c_in_one_process_ends_both_with_the_best_so_far():
    body = """
    model = random_model(3, "padded").take_part(*part)
    def wait(progress):
        tell(value=progress.value)
        time.sleep(0.3)
    found = mmdp.solve(model, T, mmdp.CADP(starts=1000), callback=wait)
    tell(status=found.status.name, policy=found.policy.actions)
    """
    with start(body) as processes:
        wait_for_json(processes[1])
        processes[1].send_signal(signal.SIGINT)
        found = [process.communicate(timeout=PATIENCE) for process in processes]
    ends = [json.loads(out.splitlines()[-1]) for out, _ in found]
    assert ends[0] == ends[1]
    assert ends[0]["status"] == "INTERRUPTED"


# ------------------------------------------------------------------ what is exchanged
EXCHANGED = """
import re, jax
from mmdp.kernels.jax import ascent
from mmdp.kernels.jax.arrays import double
from mmdp.kernels.jax.kernel import JaxKernel
from tests.kernels.instances import T, instance

x = instance(2, "padded")
plan = JaxKernel(devices=jax.devices()).plan(x, T)
tuning = plan.tuning
for two_way in (False, True):
    with double():
        arrays = plan.held.arrays(x)
        state, _ = ascent._open(arrays, None, horizon=T, two_way=two_way, tuning=tuning)
        text = ascent._block.lower(arrays, state, 0.0, 1, tuning=tuning).compile().as_text()
    print(sorted(re.findall(r"= f64\\[([\\d,]*)\\]\\S* all-reduce", text)))
    assert not re.search("all-gather|all-to-all|collective-permute", text)
"""


def test_a_sweep_exchanges_the_sums_over_models_alone():
    """Per step (S, A) in a backward pass; for the states without weight S more."""
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    run = subprocess.run(
        [sys.executable, "-c", EXCHANGED], env={**os.environ, **flags}, cwd=ROOT, text=True,
        capture_output=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    S, A = 6, 3
    backward = ["", f"{S},{A}", f"{T},{S}"]  # the value, G in every step, weights of all steps
    paper, two_way = (json.loads(line.replace("'", '"')) for line in run.stdout.splitlines())
    assert paper == sorted(backward)
    assert two_way == sorted([*backward, f"{S},{A + 1}"])
    exchanged = 8 * (T * S * A + T * S + 1)
    assert exchanged <= (1 + 1 / A) * T * S * A * 8 + 8


# ------------------------------------------------------------------ parts
def test_parts_hold_all_models_between_them():
    for models, n in ((5, 2), (7, 3), (4, 4)):
        here = [Part(i, n, models).models_here for i in range(n)]
        assert [m for x in here for m in range(models)[x]] == list(range(models))


def test_a_part_is_not_solved_alone():
    part = random_model(0, "padded").take_part(0, 2)
    assert part.part == (0, 2)
    with pytest.raises(InputError, match=r"part 0 of 2, and this is process 0 of 1.*connected"):
        mmdp.solve(part, T)
    with pytest.raises(InputError, match=r"'numba' cannot join.*use backend='jax'"):
        mmdp.solve(part, T, backend="numba")


@pytest.mark.parametrize(
    ("run", "told"),
    [
        (lambda x: mmdp.solve(x, T, "qmdp"), "it needs all models in one process.*'cadp'"),
        (lambda x: mmdp.solve(x, T, objective="cvar:0.1"), "cvar:0.1 needs all models"),
        (lambda x: mmdp.solve(x, T, mmdp.CADP(polish=1)), "polish needs all models"),
        (lambda x: mmdp.bound(x, T), "bound best needs all models.*method='oracle'"),
        (lambda x: mmdp.save(x, "nothing.npz"), "a file needs all models"),
        (lambda x: x.take_part(2, 2), r"part \(2, 2\): parts are numbered from 0 to 1"),
        (lambda x: x.take_part(0, 9), "5 models cannot be divided into 9 parts"),
    ],
)
def test_what_needs_all_models_is_refused(run, told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=told):
        run(random_model(0, "padded").take_part(0, 2))


def test_launchers_number_the_processes(monkeypatch):
    from mmdp.hosts import LAUNCHERS, _numbered

    for names in LAUNCHERS.values():
        with monkeypatch.context() as patched:
            for name, value in zip(names, ("3", "8"), strict=True):
                patched.setenv(name, value)
            assert _numbered(None, None) == (3, 8)
            assert _numbered(1, 2) == (1, 2)
    with pytest.raises(InputError, match="numbered from 0"):
        _numbered(2, 2)


@pytest.mark.slow
def test_the_example_in_two_terminals(tmp_path: Path):
    mmdp.io.save_parts(random_model(3, "padded"), tmp_path / "models", 3)
    line = [sys.executable, "examples/many_hosts.py", str(tmp_path), "--horizon", str(T),
            "--models", str(tmp_path / "models"), "--processes", "2",
            "--address", "localhost:41733"]  # fmt: skip
    env = {**os.environ, "JAX_PLATFORMS": "cpu"}
    two = partial(running, *line, "--process", env=env, cwd=ROOT)
    with two(0) as first, two(1) as second:
        out = [run.communicate(timeout=PATIENCE)[0] for run in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0)
    assert "LOCAL_OPTIMUM" in out[0]
    assert "value" not in out[1]
    expected = mmdp.solve(random_model(3, "padded"), T, backend="jax")
    assert mmdp.load_policy(tmp_path / "policy.csv") == expected.policy
