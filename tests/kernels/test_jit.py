"""What leans on numba's private parts, and that it works without them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import numba
import numpy as np
import pytest

from mmdp import clock
from mmdp.kernels.cpu import jit as module
from mmdp.kernels.cpu.jit import jit
from tests.processes import PATIENCE


def double(x):
    return x * 2


def test_this_numba_has_what_we_lean_on():
    """If one of these fails the kernels still work; compiling is slower or caches are staler."""
    compiled = numba.njit(cache=True)(double)
    assert hasattr(compiled, "_compile_for_args")
    assert hasattr(compiled._cache._cache_file, "_source_stamp")
    assert all(module._known(name) for name in ("_nrt", "no_cpython_wrapper", "forceinline"))
    assert not module._known("no_such_option")


def test_without_the_private_parts_functions_still_compile(monkeypatch):
    monkeypatch.setattr(module, "_known", lambda name: False)
    monkeypatch.setattr(module, "_SOURCES", ())
    plain = module.numba.njit

    class Bare:
        """A dispatcher that only can be called."""

        def __init__(self, inner):
            self.inner = inner

        def __call__(self, *args):
            return self.inner(*args)

        def __setattr__(self, name, value):
            assert name == "inner"
            object.__setattr__(self, name, value)

    class Bridge:
        @staticmethod
        def njit(**options):
            return lambda function: Bare(plain(**options)(function))

    monkeypatch.setattr(module, "numba", Bridge)
    assert jit()(double)(21) == 42


def test_compiling_is_counted_and_loading_compiled_code_is_not_repeated():
    before, heard = clock.spent(), []
    compiled = module._shielded(numba.njit(double))
    with clock.listening(lambda: heard.append(1)):
        compiled(np.float64(1.0))
        once = clock.spent()
        assert once > before
        assert heard == [1]
        compiled(np.float64(2.0))
    assert clock.spent() == once
    assert heard == [1]


def test_an_interruption_waits_for_the_compiler():
    done = []

    def work():
        done.append(1)
        return 5

    assert clock.to_the_end(work) == 5
    with pytest.raises(ZeroDivisionError):
        clock.to_the_end(lambda: 1 / 0)
    assert done == [1]

    heard = threading.Event()

    def hear(*_):
        heard.set()
        raise KeyboardInterrupt

    def pressed():
        signal.raise_signal(signal.SIGINT)
        assert heard.wait(PATIENCE)
        done.append(2)

    signal.signal(signal.SIGINT, hear)

    with pytest.raises(KeyboardInterrupt):
        clock.to_the_end(pressed)
    assert done == [1, 2]


def test_a_folder_without_a_cache_is_no_obstacle(tmp_path):
    code = (
        "import numba\n"
        "plain = numba.njit\n"
        "def njit(*args, cache=False, **options):\n"
        "    if cache: raise RuntimeError('cannot cache function: no locator available')\n"
        "    return plain(*args, **options)\n"
        "numba.njit = njit\n"
        "from mmdp.kernels.cpu.jit import jit\n"
        "print(jit()(lambda x: x + 1)(1))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ)
    )
    assert found.stdout.strip() == "2", found.stderr
