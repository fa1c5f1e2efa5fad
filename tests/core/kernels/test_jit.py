"""What leans on numba's private parts, and that it works without them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import numba
import numpy as np
import pytest

from mmdp.core import timing
from mmdp.core.kernels.cpu import jit as module
from mmdp.core.kernels.cpu.jit import jit


def double(x):
    return x * 2


def test_numba_has_the_private_parts_we_use():
    """If one of these fails the kernels still work; compiling is slower or caches are staler."""
    compiled = numba.njit(cache=True)(double)
    assert hasattr(compiled, "_compile_for_args")
    assert hasattr(compiled._cache._cache_file, "_source_stamp")
    assert all(module._has_option(name) for name in ("_nrt", "no_cpython_wrapper", "forceinline"))
    assert not module._has_option("no_such_option")


def test_without_the_private_parts_functions_still_compile(monkeypatch):
    monkeypatch.setattr(module, "_has_option", lambda name: False)
    monkeypatch.setattr(module, "_SOURCE_STAMPS", ())
    original = module.numba.njit

    class BareDispatcher:
        """A dispatcher that only can be called."""

        def __init__(self, inner):
            self.inner = inner

        def __call__(self, *args):
            return self.inner(*args)

        def __setattr__(self, name, value):
            assert name == "inner"
            object.__setattr__(self, name, value)

    class BareNumba:
        @staticmethod
        def njit(**options):
            return lambda function: BareDispatcher(original(**options)(function))

    monkeypatch.setattr(module, "numba", BareNumba)
    assert jit()(double)(21) == 42


def test_compiling_is_counted_and_loading_happens_once(monkeypatch):
    before, texts = timing.get_compile_seconds(), []
    monkeypatch.setattr(timing.progress_line, "update", texts.append)
    compiled = module._compile_uninterrupted(numba.njit(double))
    compiled(np.float64(1.0))
    spent_once = timing.get_compile_seconds()
    assert spent_once > before
    assert texts == ["compiling for this machine, once", ""]
    compiled(np.float64(2.0))
    assert timing.get_compile_seconds() == spent_once
    assert len(texts) == 2


def test_an_interruption_waits_for_the_compiler():
    calls = []

    def interrupt_and_finish():
        signal.raise_signal(signal.SIGINT)
        calls.append(1)

    with pytest.raises(KeyboardInterrupt), timing.BlockedInterrupt():
        interrupt_and_finish()
    assert calls == [1]
    with timing.BlockedInterrupt():
        calls.append(2)
    assert calls == [1, 2]


def test_an_interruption_waits_until_numba_is_loaded():
    code = (
        "import signal, sys\n"
        "from mmdp.core.kernels import get_backend\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'numba.core': signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder())\n"
        "try: get_backend('numba')\n"
        "except KeyboardInterrupt: print('mmdp.core.kernels.cpu.backend' in sys.modules)\n"
        "print(get_backend('numba').name)"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ)
    )
    assert process.stdout.split() == ["True", "numba"], process.stderr


def test_a_folder_without_a_cache_is_no_obstacle(tmp_path):
    code = (
        "import numba\n"
        "plain = numba.njit\n"
        "def njit(*args, cache=False, **options):\n"
        "    if cache: raise RuntimeError('cannot cache function: no locator available')\n"
        "    return plain(*args, **options)\n"
        "numba.njit = njit\n"
        "from mmdp.core.kernels.cpu.jit import jit\n"
        "print(jit()(lambda x: x + 1)(1))"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ)
    )
    assert process.stdout.strip() == "2", process.stderr
