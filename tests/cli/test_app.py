"""What all commands share: errors, exit statuses, help, interruption, processes."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mmdp
from mmdp.cli import main
from mmdp.cli.app import app, as_option
from mmdp.errors import InputError, Remedy
from tests.cli.calls import HORIZON, fits, refused, run, run_alone
from tests.processes import PATIENCE, running


def test_bad_calls_are_one_line_and_exit_2(folder: Path, policy_file: Path, tmp_path: Path) -> None:
    assert "did you mean 'cadp'?" in refused("solve", folder, "-T", 2, "--method", "capd")
    assert "did you mean 'mirror'?" in refused("compare", folder, "-T", 2, "--methods", "mirorr")
    assert "no backend is called 'gpu'" in refused("solve", folder, "-T", 2, "--backend", "gpu")
    assert "--horizon 50" in refused("solve", folder)
    assert "horizon must be at least 1, not 0" in refused("solve", folder, "-T", 0)
    assert "at least 1, not -1" in refused("solve", folder, "--horizon", -1)
    assert "neither a whole number nor inf" in refused("solve", folder, "--horizon", "soon")
    assert "starts must be" in refused("solve", folder, "-T", 2, "--starts", 0)
    assert "only of cadp" in refused("solve", folder, "-T", 2, "--method", "wsu", "--starts", 2)
    assert "policy file" in refused("solve", folder, "-T", 2, "--init", "nowhere")
    assert "--time-limit must be" in refused("solve", folder, "-T", 2, "--time-limit", 0)
    assert "Missing argument" in refused("solve")
    assert "No such option" in refused("solve", folder, "--horizons", 3)
    assert "Did you mean 'solve'?" in refused("slove", folder)
    assert "missing" in refused("info", tmp_path / "missing")
    assert "missing.csv" in refused("evaluate", tmp_path / "missing.csv", folder)
    assert "nosplit" in refused("info", folder, "--split", "nosplit")
    file = folder / "training.csv"
    message = refused("evaluate", policy_file, file, "--split", "test")
    assert "training.csv: is a file" in message
    assert message.endswith("give its folder, or leave out --split\n")
    assert "seed must be a whole" in refused("solve", tmp_path / "missing", "-T", 2, "--seed", -3)
    assert "compat" in refused("info", folder, "--compat", "older")


def test_bad_data_names_the_options_that_help(folder: Path, tmp_path: Path) -> None:
    lines = (folder / "training.csv").read_text().splitlines()
    (tmp_path / "twice.csv").write_text("\n".join([*lines, lines[1]]) + "\n")
    assert "; remove it, or pass --duplicates last or sum" in refused(
        "info", tmp_path / "twice.csv"
    )
    lacking = [line for line in lines if not line.startswith("2,1,") or line.split(",")[3] != "4"]
    (tmp_path / "lacking.csv").write_text("\n".join(lacking) + "\n")
    message = refused("info", tmp_path / "lacking.csv")
    assert message.endswith("; add them, or load with --missing-actions zero\n")
    assert run("info", tmp_path / "lacking.csv", "--missing-actions", "zero").code == 0
    (tmp_path / "worded.csv").write_text("time,state,action\n0,well,0\n0,ill,0\n0,dead,0\n")
    message = refused("evaluate", tmp_path / "worded.csv", folder)
    assert "the model has no labels of states; give ids" in message
    ragged = {"format": "mmdp-policy-1", "policy": [[0, 1, 0], [1]]}
    (tmp_path / "ragged.json").write_text(json.dumps(ragged))
    message = refused("evaluate", tmp_path / "ragged.json", folder)
    assert message.endswith(
        "ragged.json: rows of different lengths; every time has the same states\n"
    )
    (tmp_path / "short.csv").write_text("\n".join(lines[:-1]) + "\n")
    assert "--normalize" in refused("info", tmp_path / "short.csv")
    assert run("info", tmp_path / "short.csv", "--normalize").code == 0
    assert run("info", tmp_path / "twice.csv", "--compat", "cadp").code == 0


def test_tables_fit_80_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    transitions = rng.dirichlet(np.ones(12), size=(9, 12, 3))
    big = mmdp.MMDP(
        transitions, -1e8 * rng.random((9, 12, 3)),
        states=[f"a state with a long name {i}" for i in range(12)],
        actions=["an action with a name", "b", "c"],
    )  # fmt: skip
    mmdp.save(big, tmp_path / "big.npz")
    monkeypatch.chdir(tmp_path)  # so that the path in the output is short
    for arguments in (
        ("solve", "big.npz", "-T", 9),
        ("compare", "big.npz", "-T", 9, "--test-data", "big.npz"),
        ("info", "big.npz"),
        ("solve", "big.npz", "-T", 2, "--certify", 0.5),
        ("bound", "big.npz", "-T", 2, "--time-limit", 0.5),
        ("solve", "--help"),
        ("compare", "--help"),
        ("bound", "--help"),
        ("--help",),
    ):
        done = run(*arguments)
        assert done.code == 0
        assert fits(done.out), done.out


@pytest.mark.parametrize("name", app.commands)
def test_help_teaches_with_examples(name: str) -> None:
    text = run(name, "--help").out
    examples = [line.strip() for line in text.split("Examples:")[1].splitlines() if line.strip()]
    assert examples
    assert all(line.startswith(f"mmdp {name}") for line in examples)


def test_examples_in_the_help_parse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every option in an example exists: the call fails on its files, not on its usage."""
    monkeypatch.chdir(tmp_path)
    for command in app.commands.values():
        assert command.epilog is not None
        for line in command.epilog.splitlines()[2:]:
            words = line.split()[1:]
            if words[0] not in (
                "completion",
                "doctor",
                "domain",
                "methods",
                "paper",
            ):  # these need no files
                assert "--help" not in refused(*words)


def test_no_command_prints_the_help() -> None:
    assert run().out.rstrip() == run("--help").out.rstrip()


def test_interruption_without_a_result_exits_130(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(mmdp, "solve", interrupted)
    done = run("solve", folder, "-T", 2)
    assert (done.code, done.out) == (130, "")
    assert done.err == "mmdp: interrupted before the end\n"


def test_process_solves_when_piped(folder: Path, train: mmdp.MMDP) -> None:
    done = run_alone("solve", folder, "-T", HORIZON, "--json")
    assert (done.code, done.err) == (0, "")
    assert done.json["value"] == pytest.approx(mmdp.solve(train, HORIZON).value, rel=1e-12)


def test_process_prints_labels_that_its_output_cannot_hold(tmp_path: Path) -> None:
    model = mmdp.MMDP([[[[1.0], [1.0]]]], [[2.0, 3.0]], actions=["wait", "zusätzlich"])
    mmdp.save(model, tmp_path / "m.npz")
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = run_alone("solve", tmp_path / "m.npz", "-T", 1, env=ascii_only)
    assert done.code == 0
    assert "zus?tzlich" in done.out
    assert fits(done.out)


def test_process_reports_bad_input_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "empty.csv").write_text("")
    done = run_alone("solve", tmp_path / "empty.csv", "-T", 2)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("mmdp: ")
    assert done.err.count("\n") == 1


def test_process_tells_its_version_and_loads_little() -> None:
    code = (
        "import sys; from mmdp.cli.app import app\n"
        "try: app(['--help'])\n"
        "except SystemExit as stop: print(stop.code)\n"
        "heavy = {'pandas', 'numba', 'scipy', 'matplotlib', 'jax'} & set(sys.modules)\n"
        "print('heavy', sorted(heavy))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("0\nheavy []\n")
    assert run_alone("--version").out == f"mmdp {mmdp.__version__}\n"


def test_process_is_quiet_when_its_reader_leaves(folder: Path) -> None:
    with running(sys.executable, "-m", "mmdp", "info", folder, "--json") as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
        assert process.wait(PATIENCE) == 1


IMPORTING = """
import signal, sys
class Slow:
    def find_spec(self, name, *rest):
        if name == "mmdp.cli":
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt:
                raise {becomes} from None
sys.meta_path.insert(0, Slow())
from mmdp.__main__ import main
main()
"""


@pytest.mark.parametrize("becomes", ["KeyboardInterrupt", "ImportError('init failed')"])
def test_process_interrupted_while_it_imports_leaves_no_traceback(becomes: str) -> None:
    """Some compiled modules make an ImportError of it."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORTING.format(becomes=becomes)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_an_import_that_fails_by_itself_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from mmdp.__main__ import main as begin

    monkeypatch.setitem(sys.modules, "mmdp.cli", None)
    with pytest.raises(ImportError):
        begin()


def test_an_interrupt_outside_a_command_exits_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(**_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("mmdp.cli.app.app", interrupted)
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 130


def interrupt_from_the_callback(call: Any) -> Any:
    """The call with Ctrl-C sent by this process at the first progress report."""

    def run(*arguments: Any, callback: Any, **options: Any) -> Any:
        def hear(progress: Any) -> None:
            callback(progress)
            signal.raise_signal(signal.SIGINT)

        return call(*arguments, callback=hear, **options)

    return run


def test_an_interrupted_solve_or_bound_prints_and_exits_130(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mmdp, "solve", interrupt_from_the_callback(mmdp.solve))
    done = run("solve", folder, "-T", HORIZON)
    assert done.code == 130
    assert "INTERRUPTED" in done.out
    monkeypatch.setattr(mmdp, "bound", interrupt_from_the_callback(mmdp.bound))
    done = run("bound", folder, "-T", HORIZON, "--method", "pairs")
    assert done.code == 130
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


# ---------------------------------------------------------------- remedies
def test_every_remedy_of_the_loader_is_an_option_of_the_commands_that_load() -> None:
    """A remedy that a command has no option for would be left out of its message."""
    arguments = ("normalize", "duplicates", "missing_actions", "dead_ends", "id_gaps",
                 "extra_columns", "split")  # fmt: skip
    for name in ("solve", "evaluate", "bound", "info"):
        known = app.commands[name].params
        for argument in arguments:
            flag = f"--{argument.replace('_', '-')}"
            assert as_option(known, Remedy(argument, "x")) == f"pass {flag} x"


def test_a_remedy_is_worded_in_the_options_of_the_command() -> None:
    known = app.commands["fit"].params
    assert as_option(known, Remedy("overwrite", True)) == "pass --overwrite"
    assert as_option(known, Remedy("support", do="widen")) == "widen --support"
    two = Remedy("columns", {"state": "from", "next_state": "to"})
    assert as_option(known, two) == "pass --column state=from --column next_state=to"
    assert as_option(known, Remedy("normalize", True)) is None


def test_messages_are_never_searched_for_words_to_replace(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What looks like an argument in a label or a path stays as it is."""

    def refuse(*_: Any, **__: Any) -> None:
        raise InputError("state 'normalize=True' is odd", [Remedy("allowed"), "rename it"])

    monkeypatch.setattr(mmdp, "load", refuse)
    message = refused("info", folder)
    assert message == "mmdp: state 'normalize=True' is odd; rename it\n"


@pytest.mark.parametrize(
    "words",
    [
        ("solve", "{folder}", "-T", 2),
        ("compare", "{folder}", "-T", 2),
        ("evaluate", "{policy}", "{folder}"),
        ("bound", "{folder}", "-T", 2),
    ],
)
def test_the_backend_is_passed_on(
    folder: Path, policy_file: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[Any, ...]
) -> None:
    def stop(*_: Any, backend: str, **__: Any) -> None:
        raise InputError(f"asked for {backend}")

    for name in ("solve", "evaluate", "bound"):
        monkeypatch.setattr(mmdp, name, stop)
    monkeypatch.setattr(sys.modules["mmdp.study"], "solve", stop)
    given = [str(word).format(folder=folder, policy=policy_file) for word in words]
    assert refused(*given) == "mmdp: asked for auto\n"
    for backend in ("numpy", "numba", "jax"):
        assert refused(*given, "--backend", backend) == f"mmdp: asked for {backend}\n"


@pytest.mark.skipif(os.name != "posix", reason="needs a shell")
def test_closed_streams_are_no_error(tmp_path: Path) -> None:
    """``>&-``: nobody listens, and the work is done; ``<&-``: there is nothing to read."""
    mmdp.save(mmdp.MMDP([[[[1.0], [1.0]]]], [[1.0, 2.0]]), tmp_path / "m.npz")
    solved = f"solve {tmp_path / 'm.npz'} -T 2 -m wsu -o {tmp_path / 'policy.csv'}"
    for call, code in ((f"{solved} >&- 2>&-", 0), ("info - <&-", 2)):
        command = f"{shlex.quote(sys.executable)} -m mmdp {call}"
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
        assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
    assert mmdp.load_policy(tmp_path / "policy.csv").horizon == 2
