"""What a user types by mistake: refused before any work, and nothing of theirs is lost."""

from __future__ import annotations

import signal
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mmdp
from tests.cli.calls import LOG, run, run_refused
from tests.processes import TIMEOUT, run_process


def read_all_bytes(folder: Path) -> dict[str, bytes]:
    return {x.name: x.read_bytes() for x in folder.iterdir()}


# ---------------------------------------------------------------------- what is read
@pytest.mark.parametrize(
    "name", ["training.csv", "test.csv", "initial.csv", "test_weights.csv", "labels.csv"]
)
@pytest.mark.parametrize("command", ["solve", "study", "evaluate"])
def test_models_are_not_written_over(
    folder: Path, policy_file: Path, name: str, command: str
) -> None:
    before = read_all_bytes(folder)
    data = (policy_file, folder) if command == "evaluate" else (folder, "-T", 2)
    message = run_refused(command, *data, "--out", folder / name)
    assert f"--out {folder / name}: this is read, not written" in message
    assert read_all_bytes(folder) == before


def test_other_inputs_are_not_written_over(folder: Path, policy_file: Path, tmp_path: Path) -> None:
    before = policy_file.read_bytes()
    for arguments in (
        ("evaluate", policy_file, folder, "-o", policy_file),
        ("solve", folder, "-T", 6, "--init", policy_file, "-o", policy_file),
        ("solve", folder, "-T", 6, "--groups", policy_file, "-o", policy_file),
        ("study", folder, "-T", 6, "--comparator", f"now={policy_file}", "-o", policy_file),
    ):
        assert "is read, not written" in run_refused(*arguments)
    assert policy_file.read_bytes() == before
    one = tmp_path / "one.csv"
    one.write_bytes((folder / "training.csv").read_bytes())
    assert "is read, not written" in run_refused("solve", one, "-T", 2, "-o", one)
    assert "is read, not written" in run_refused(
        "solve", one, "-T", 2, "-o", tmp_path / "initial.csv"
    )
    assert run("solve", one, "-T", 2, "-m", "wsu", "-o", tmp_path / "policy.csv").code == 0
    log = tmp_path / "training.csv"
    log.write_text(LOG)
    message = run_refused("fit", log, "--out", tmp_path, "--overwrite")
    assert "would overwrite this log" in message
    assert log.read_text() == LOG


def test_an_empty_name_is_not_this_folder(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("log.csv").write_text(LOG)
    for arguments in (
        ("fit", "log.csv", "--out", ""),
        ("domain", "riverswim", "--out", ""),
        ("solve", folder, "-T", 2, "--out", ""),
        ("report", folder, "-T", 2, "--out", ""),
    ):
        assert "--out is empty" in run_refused(*arguments)
    assert "DATA is empty" in run_refused("info", "")
    assert [x.name for x in tmp_path.iterdir()] == ["log.csv"]


# ---------------------------------------------------------------------- before the work
@pytest.mark.parametrize(
    "arguments",
    [
        ("solve", "{folder}", "-T", 2, "--out", "/proc/policy.csv"),
        ("study", "{folder}", "-T", 2, "--out", "/proc/table.csv"),
        ("report", "{folder}", "-T", 2, "--out", "/proc/report.html"),
        ("plot", "policy", "{folder}", "-T", 2, "--out", "/proc/policy.png"),
        ("fit", "{folder}/training.csv", "--out", "/proc/models"),
        ("domain", "riverswim", "--out", "/proc/models"),
        ("paper", "--out", "/proc/out"),
    ],
)
def test_an_unwritable_path_is_refused_before_the_work(
    folder: Path, arguments: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_if_called(*_: Any, **__: Any) -> None:
        raise AssertionError("it began to work")

    for module in (mmdp, sys.modules["mmdp.insight.study"]):
        monkeypatch.setattr(module, "solve", fail_if_called)
    monkeypatch.setattr("mmdp.insight.report.ReportContext", fail_if_called)
    monkeypatch.setattr("mmdp.data.posterior.dirichlet.fit", fail_if_called)
    monkeypatch.setitem(mmdp.domains.DOMAINS, "riverswim", fail_if_called)
    message = run_refused(*(str(x).format(folder=folder) for x in arguments))
    assert "cannot be written" in message


@pytest.mark.parametrize("command", ["solve", "study", "report", "bound"])
def test_a_billion_decisions_are_refused_with_their_size(
    folder: Path, tmp_path: Path, command: str
) -> None:
    out = ("--out", tmp_path / "report.html") if command == "report" else ()
    message = run_refused(command, folder, "-T", 10**12, *out)
    assert "a policy over 1,000,000,000,000 decisions would take" in message
    assert " TB on top of the 1.28 kB of the models; this machine has" in message
    assert "shorten --horizon" in message


def test_the_size_is_that_of_the_method(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmdp.core.errors.memory_here", lambda: 3500)
    message = run_refused("solve", folder, "-T", 100)  # 5 models, 3 states: weights of 22 times
    assert "100 decisions would take 2.64 kB on top of the 1.28 kB of the models" in message
    assert "this machine has 3.5 kB" in message
    assert run("solve", folder, "-T", 100, "-m", "wsu").code == 0  # 1,200 bytes


def test_zeros_that_fill_the_memory_are_refused_with_their_size(
    train: mmdp.MMDP, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mmdp.data.io.npz.MAX_UNPACKED_BYTES", 1_000_000)  # it is 128 MiB
    mmdp.save(train, tmp_path / "good.npz")
    with np.load(tmp_path / "good.npz") as file:
        arrays = dict(file)
    path = tmp_path / "zeros.npz"
    np.savez_compressed(path, **{k: v for k, v in arrays.items() if k != "p"})
    with (
        zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive,
        archive.open("p.npy", "w", force_zip64=True) as file,
    ):
        shape = {"descr": "<f8", "fortran_order": False, "shape": (1, 4000, 1000)}
        np.lib.format.write_array_header_1_0(file, shape)
        file.write(bytes(8 * 4000 * 1000))
    message = run_refused("info", path)
    assert "its arrays would take 32 MB, but the file has" in message
    with zipfile.ZipFile(path, "w") as archive, archive.open("p.npy", "w") as file:
        np.lib.format.write_array_header_1_0(file, {**shape, "shape": (10**9, 10**9)})
    assert "p.npy is shorter than its header says" in run_refused("info", path)


# ---------------------------------------------------------------------- overflow
def write_huge_model(folder: Path, reward: float) -> Path:
    model = mmdp.MMDP([[[[0.5, 0.5]], [[0.0, 1.0]]]] * 2, [[reward], [1.0]], initial=[1, 0])
    mmdp.save(model, folder)
    return folder


def test_values_that_doubles_cannot_carry_are_refused(tmp_path: Path) -> None:
    data = write_huge_model(tmp_path / "m", -1e308)
    for command in ("solve", "study", "bound"):
        message = run_refused(command, data, "-T", 50)
        assert "the largest reward is -1e+308 and the horizon 50" in message
        assert "give rewards in a larger unit" in message
    policy = tmp_path / "p.json"
    mmdp.save_policy(mmdp.policies.MarkovPolicy([[0, 0]] * 3), policy)
    assert "largest reward is -1e+308 and the horizon 3" in run_refused("evaluate", policy, data)
    assert run("info", data).code == 0


def test_values_that_doubles_do_carry_are_finite(tmp_path: Path) -> None:
    output = run("solve", write_huge_model(tmp_path / "m", 1e145), "-T", 50, "--json").json
    assert output["value"] == pytest.approx(2e145)
    assert output["sd"] == 0.0
    model = mmdp.MMDP([[[[1.0]]]], [[1e149]], discount=0.5)  # adds up to 2e149 for ever
    assert mmdp.solve(model, 5000).value == pytest.approx(2e149)


# ---------------------------------------------------------------------- Ctrl-C
def test_compare_keeps_the_rows_that_are_finished(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = mmdp.solve

    def solve_interrupted(model: Any, horizon: Any, method: Any, **options: Any) -> Any:
        if method.name == "mvp":
            signal.raise_signal(signal.SIGINT)
        return original(model, horizon, method, **options)

    monkeypatch.setattr(sys.modules["mmdp.insight.study"], "solve", solve_interrupted)
    out = tmp_path / "table.csv"
    arguments = ("study", folder, "-T", 3, "--methods", "wsu,cadp,mvp,gradient", "--out", out)
    result = run(*arguments)
    assert result.code == 130
    assert "interrupted; 2 of 5 methods kept" in result.err
    assert [line.split(",")[0] for line in out.read_text().splitlines()] == [
        "method",
        "wsu",
        "cadp",
    ]
    second_result = run(*arguments, "--json")
    assert [row["method"] for row in second_result.json["methods"]] == ["wsu", "cadp"]
    result = run("study", folder, "-T", 3, "--methods", "mvp,wsu")
    assert (result.code, result.out) == (130, "")


def test_a_process_that_compares_keeps_its_rows(folder: Path, tmp_path: Path) -> None:
    """Ctrl-C while the fifth method works: four rows are on the disk."""
    out = tmp_path / "table.csv"
    code = (
        "import mmdp, sys, threading; plain = mmdp.solve\n"
        "def solve(model, horizon, method, **rest):\n"
        "    if method.name == 'mirror':\n"
        "        print('begun', flush=True); threading.Event().wait()\n"
        "    return plain(model, horizon, method, **rest)\n"
        "sys.modules['mmdp.insight.study'].solve = solve\n"
        "from mmdp.cli import main; main()"
    )
    command = (sys.executable, "-c", code, "study", folder, "-T", "3", "--out", out)
    with run_process(*command) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 130
    assert "Traceback" not in stderr
    assert len(out.read_text().splitlines()) == 5
