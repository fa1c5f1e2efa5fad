"""mmdp completion: the scripts, and what they are answered."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from mmdp.cli.app import app
from tests.cli.calls import run, run_in_process, run_refused


def complete_words(*words: str) -> list[str]:
    """What a shell is told for the last of these words."""
    completions = ShellComplete(app, {}, "mmdp", "_MMDP_COMPLETE").get_completions(
        list(words[:-1]), words[-1]
    )
    return [x.value for x in completions]


def test_words_are_completed() -> None:
    assert complete_words("so") == ["solve"]
    assert complete_words("solve", "models", "--time") == ["--time-limit"]
    assert complete_words("solve", "models", "--method", "g") == ["gradient", "grid"]
    assert complete_words("study", "models", "--methods", "cadp,m") == [
        "cadp,mvp",
        "cadp,mirror",
        "cadp,mixts",
        "cadp,milp",
    ]
    assert complete_words("solve", "models", "--backend", "num") == ["numpy", "numba"]
    assert complete_words("domain", "riv") == ["riverswim"]
    assert complete_words("plot", "wil") == ["willingness"]
    assert complete_words("paper", "--domain", "POP") == ["POP", "POPS"]


def test_a_process_answers_the_shell() -> None:
    words = {"COMP_WORDS": "mmdp study models --methods cadp,mv", "COMP_CWORD": "4"}
    result = run_in_process(env={**os.environ, "_MMDP_COMPLETE": "bash_complete", **words})
    assert (result.out, result.err) == ("plain,cadp,mvp\n", "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_names_the_command_and_is_read_by_its_shell(shell: str) -> None:
    result = run("completion", shell)
    assert result.code == 0
    assert f"_MMDP_COMPLETE={shell}_complete" in result.out
    if shutil.which(shell) is not None:
        subprocess.run([shell, "-n"], input=result.out, text=True, check=True)


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_with_the_script(tmp_path: Path) -> None:
    """As bash calls it: the function of the script fills COMPREPLY."""
    command = tmp_path / "mmdp"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m mmdp "$@"\n')
    command.chmod(0o755)
    code = (
        f"{run('completion', 'bash').out}\n"
        "COMP_WORDS=(mmdp eva) COMP_CWORD=1; _mmdp_completion mmdp eva mmdp\n"
        'echo "${COMPREPLY[@]}"'
    )
    completed = subprocess.run(
        ["bash", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )
    assert completed.stdout.split() == ["evaluate"]


def test_an_unknown_shell_is_refused() -> None:
    assert "tcsh" in run_refused("completion", "tcsh")
