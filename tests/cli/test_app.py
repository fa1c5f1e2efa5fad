"""What all commands share: errors, exit statuses, help, interruption, processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mmdp
from mmdp.cli import main
from mmdp.cli.app import app, format_remedy
from mmdp.core.errors import InputError, Remedy
from tests.cli.calls import HORIZON, fits_width, run, run_in_process, run_refused
from tests.processes import TIMEOUT, run_process


def test_bad_calls_are_one_line_and_exit_2(folder: Path, policy_file: Path, tmp_path: Path) -> None:
    assert "did you mean 'cadp'?" in run_refused("solve", folder, "-T", 2, "--method", "capd")
    assert "did you mean 'mirror'?" in run_refused("study", folder, "-T", 2, "--methods", "mirorr")
    assert "no backend is called 'gpu'" in run_refused("solve", folder, "-T", 2, "--backend", "gpu")
    assert "--horizon 50" in run_refused("solve", folder)
    assert "horizon must be a whole number of at least 1, not 0" in run_refused(
        "solve", folder, "-T", 0
    )
    assert "at least 1, not -1" in run_refused("solve", folder, "--horizon", -1)
    assert "--horizon 'soon': expected a whole number or inf" in run_refused(
        "solve", folder, "--horizon", "soon"
    )
    assert "--n-init must be" in run_refused("solve", folder, "-T", 2, "--n-init", 0)
    message = run_refused("solve", folder, "-T", 2, "--method", "wsu", "--n-init", 2)
    assert "no option of wsu is called 'n_init'" in message
    assert "no init is called 'nowhere'" in run_refused(
        "solve", folder, "-T", 2, "--init", "nowhere"
    )
    assert "--time-limit must be a positive number of seconds, not 0" in run_refused(
        "solve", folder, "-T", 2, "--time-limit", 0
    )
    assert "Missing argument" in run_refused("solve")
    assert "No such option" in run_refused("solve", folder, "--horizons", 3)
    assert "Did you mean 'solve'?" in run_refused("slove", folder)
    assert "missing" in run_refused("info", tmp_path / "missing")
    assert "missing.csv" in run_refused("evaluate", tmp_path / "missing.csv", folder)
    assert "nosplit" in run_refused("info", folder, "--split", "nosplit")
    file = folder / "training.csv"
    message = run_refused("evaluate", policy_file, file, "--split", "test")
    assert "training.csv: is a file" in message
    assert message.endswith("give its folder, or leave out --split\n")
    assert "seed must be a whole" in run_refused("solve", folder, "-T", 2, "--seed", -3)
    assert "compat" in run_refused("info", folder, "--load-option", "compat=older")


def test_bad_data_names_the_options_that_help(folder: Path, tmp_path: Path) -> None:
    lines = (folder / "training.csv").read_text().splitlines()
    (tmp_path / "twice.csv").write_text("\n".join([*lines, lines[1]]) + "\n")
    assert "; remove it, or pass --load-option duplicates=last or duplicates=sum" in run_refused(
        "info", tmp_path / "twice.csv"
    )
    lacking = [line for line in lines if not line.startswith("2,1,") or line.split(",")[3] != "4"]
    (tmp_path / "lacking.csv").write_text("\n".join(lacking) + "\n")
    message = run_refused("info", tmp_path / "lacking.csv")
    assert message.endswith("; add them, or load with --load-option missing_actions=zero\n")
    assert run("info", tmp_path / "lacking.csv", "--load-option", "missing_actions=zero").code == 0
    (tmp_path / "worded.csv").write_text("time,state,action\n0,well,0\n0,ill,0\n0,dead,0\n")
    message = run_refused("evaluate", tmp_path / "worded.csv", folder)
    assert "give ids, as the model has no labels of states" in message
    ragged = {"format": "mmdp-policy-1", "policy": [[0, 1, 0], [1]]}
    (tmp_path / "ragged.json").write_text(json.dumps(ragged))
    message = run_refused("evaluate", tmp_path / "ragged.json", folder)
    assert message.endswith("ragged.json: policy actions must be a table (time steps, states)\n")
    (tmp_path / "short.csv").write_text("\n".join(lines[:-1]) + "\n")
    assert "--load-option normalize=true" in run_refused("info", tmp_path / "short.csv")
    assert run("info", tmp_path / "short.csv", "--load-option", "normalize=true").code == 0
    assert run("info", tmp_path / "twice.csv", "--load-option", "compat=cadp").code == 0


def test_tables_fit_80_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    transitions = rng.dirichlet(np.ones(12), size=(9, 12, 3))
    big = mmdp.MMDP(
        transitions,
        -1e8 * rng.random((9, 12, 3)),
        states=[f"a state with a long name {i}" for i in range(12)],
        actions=["an action with a name", "b", "c"],
    )
    mmdp.save(big, tmp_path / "big.npz")
    monkeypatch.chdir(tmp_path)  # so that the path in the output is short
    for arguments in (
        ("solve", "big.npz", "-T", 9),
        ("study", "big.npz", "-T", 9, "--test-data", "big.npz"),
        ("info", "big.npz"),
        ("solve", "big.npz", "-T", 2, "--certify-time", 0.1),
        ("bound", "big.npz", "-T", 2, "--time-limit", 0.1),
        ("solve", "--help"),
        ("study", "--help"),
        ("bound", "--help"),
        ("--help",),
    ):
        result = run(*arguments)
        assert result.code == 0
        assert fits_width(result.out), result.out


@pytest.mark.parametrize("name", app.commands)
def test_help_teaches_with_examples(name: str) -> None:
    text = run(name, "--help").out
    examples = [line.strip() for line in text.split("Examples:")[1].splitlines() if line.strip()]
    assert examples
    assert all(line.startswith(f"mmdp {name}") for line in examples)
    full_text = run(name, "--help-all").out or text  # where no option is hidden there is none
    assert full_text.split("Examples:")[1] == text.split("Examples:")[1]


def test_examples_in_the_help_parse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every option in an example exists: the call fails on its files, not on its usage."""
    monkeypatch.chdir(tmp_path)
    for command in app.commands.values():
        assert command.epilog is not None
        for line in command.epilog.splitlines()[2:]:
            words = line.split()[1:]
            if words[0] not in ("completion", "domain", "paper") and words != ["info"]:
                assert "--help" not in run_refused(*words)


def test_no_command_prints_the_help() -> None:
    assert run().out.rstrip() == run("--help").out.rstrip()


def test_interruption_without_a_result_exits_130(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(mmdp, "solve", interrupted)
    result = run("solve", folder, "-T", 2)
    assert (result.code, result.out) == (130, "")
    assert result.err == "mmdp: interrupted before the end\n"


def test_process_solves_when_piped(folder: Path, train: mmdp.MMDP) -> None:
    result = run_in_process("solve", folder, "-T", HORIZON, "--json")
    assert (result.code, result.err) == (0, "")
    assert result.json["value"] == pytest.approx(mmdp.solve(train, HORIZON).value, rel=1e-12)


def test_process_prints_labels_that_its_output_cannot_hold(tmp_path: Path) -> None:
    model = mmdp.MMDP([[[[1.0], [1.0]]]], [[2.0, 3.0]], actions=["wait", "zusätzlich"])
    mmdp.save(model, tmp_path / "m.npz")
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    result = run_in_process("solve", tmp_path / "m.npz", "-T", 1, env=ascii_only)
    assert result.code == 0
    assert "zus?tzlich" in result.out
    assert fits_width(result.out)


def test_process_reports_bad_input_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "empty.csv").write_text("")
    result = run_in_process("solve", tmp_path / "empty.csv", "-T", 2)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("mmdp: ")
    assert result.err.count("\n") == 1


def test_process_prints_its_version_and_imports_little() -> None:
    code = (
        "import sys; from mmdp.cli.app import app\n"
        "try: app(['--help'])\n"
        "except SystemExit as stop: print(stop.code)\n"
        "heavy = {'pandas', 'numba', 'scipy', 'matplotlib', 'jax'} & set(sys.modules)\n"
        "print('heavy', sorted(heavy))"
    )
    completed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert completed.stdout.endswith("0\nheavy []\n")
    assert run_in_process("--version").out == f"mmdp {mmdp.__version__}\n"


def test_process_is_quiet_when_its_reader_leaves(folder: Path) -> None:
    with run_process(sys.executable, "-m", "mmdp", "info", folder, "--json") as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
        assert process.wait(TIMEOUT) == 1


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
    completed = subprocess.run(
        [sys.executable, "-c", IMPORTING.format(becomes=becomes)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (completed.returncode, completed.stdout, completed.stderr) == (130, "", "")


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


def interrupt_at_first_progress(call: Any) -> Any:
    """The call with Ctrl-C sent by this process at the first progress report."""

    def run(*arguments: Any, **options: Any) -> Any:
        def interrupt(_: object) -> None:
            signal.raise_signal(signal.SIGINT)

        return call(*arguments, callback=interrupt, **options)

    return run


def test_an_interrupted_solve_or_bound_prints_and_exits_130(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mmdp, "solve", interrupt_at_first_progress(mmdp.solve))
    result = run("solve", folder, "-T", HORIZON)
    assert result.code == 130
    assert "INTERRUPTED" in result.out
    monkeypatch.setattr(mmdp, "bound", interrupt_at_first_progress(mmdp.bound))
    result = run("bound", folder, "-T", HORIZON, "--method", "pairs")
    assert result.code == 130
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


# ---------------------------------------------------------------- remedies
def list_flags(command: str) -> dict[str, str]:
    """The options of a command by the names of their arguments."""
    return {str(x.name): x.opts[0] for x in app.commands[command].params}


def test_every_remedy_of_the_loader_is_an_option_of_the_commands_that_load() -> None:
    """A remedy that a command has no option for would be left out of its message."""
    for name in ("solve", "evaluate", "bound", "info"):
        known = list_flags(name)
        for key, value in {"duplicates": "last", "dead_ends": "absorb", "compat": "cadp"}.items():
            expected = f"pass --load-option {key}={value}"
            assert format_remedy(known, Remedy(key, value)) == expected
        assert format_remedy(known, Remedy("normalize", True)) == (
            "pass --load-option normalize=true"
        )
        assert format_remedy(known, Remedy("split", "x")) == "pass --split x"


def test_a_remedy_is_worded_in_the_options_of_the_command() -> None:
    known = list_flags("fit")
    assert format_remedy(known, Remedy("overwrite", True)) == "pass --overwrite"
    assert format_remedy(known, Remedy("support", verb="widen")) == "widen --support"
    two = Remedy("columns", {"state": "from", "next_state": "to"})
    assert format_remedy(known, two) == "pass --column state=from --column next_state=to"
    assert format_remedy(known, Remedy("normalize", True)) is None


def test_messages_are_never_searched_for_words_to_replace(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What looks like an argument in a label or a path stays as it is."""

    def refuse(*_: Any, **__: Any) -> None:
        raise InputError("state 'normalize=True' is odd", [Remedy("allowed"), "rename it"])

    monkeypatch.setattr(mmdp, "load", refuse)
    message = run_refused("info", folder)
    assert message == "mmdp: state 'normalize=True' is odd; rename it\n"


@pytest.mark.parametrize(
    "words",
    [
        ("solve", "{folder}", "-T", 2),
        ("study", "{folder}", "-T", 2),
        ("evaluate", "{policy}", "{folder}"),
        ("bound", "{folder}", "-T", 2),
    ],
)
def test_the_backend_is_passed_on(
    folder: Path, policy_file: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[Any, ...]
) -> None:
    def raise_with_backend(*_: Any, backend: str, **__: Any) -> None:
        raise InputError(f"asked for {backend}")

    for name in ("solve", "evaluate", "bound"):
        monkeypatch.setattr(mmdp, name, raise_with_backend)
    monkeypatch.setattr(sys.modules["mmdp.insight.study"], "solve", raise_with_backend)
    arguments = [str(word).format(folder=folder, policy=policy_file) for word in words]
    assert run_refused(*arguments) == "mmdp: asked for auto\n"
    for backend in ("numpy", "numba", "jax"):
        assert run_refused(*arguments, "--backend", backend) == f"mmdp: asked for {backend}\n"
