"""Sums over the entries of a row for many models at once, as vector code.

A block of models is summed in registers over all entries of the row: p and v are read, and only
the result is written. (numba by itself vectorises a loop over models for a few entries at a time,
which reads and writes the sums each time and is limited by that.) The terms of a model are added
in the order of the entries, whatever block it is in, so results do not depend on how the models
are split among threads.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from mmdp.kernels.cpu.jit import FAST, jit

# Numbers in a vector register.
WIDTH = 8 if llvmlite.binding.get_host_cpu_features().get("avx512f") else 4
MANY, SOME = 8, 4  # vectors of a block
_INT, _REAL = ir.IntType(64), ir.DoubleType()


def _block(vectors: int, width: int) -> Any:
    """``vectors * width`` models from m on: base + sum_i share p[row] (paid + scale x[column]).

    Entries i from start to stop; column is ``columns[i]``, row is ``rows[i]``, or first + i - start
    if rows is None, share is ``shares[i]``, or 1 if that is None, paid is ``paid[i]``, or 0 if that
    is None. p (any, M), x (any, M), base and out (M,).
    """
    vector = ir.VectorType(_REAL, width) if width > 1 else _REAL

    def load(builder: Any, place: Any, offset: int) -> Any:
        at = builder.gep(place, [ir.Constant(_INT, offset)])
        found = builder.load(builder.bitcast(at, vector.as_pointer()))
        found.align = 8
        return found

    def spread(builder: Any, number: Any) -> Any:
        if width == 1:
            return number
        empty = ir.Constant(vector, ir.Undefined)
        first = builder.insert_element(empty, number, ir.Constant(ir.IntType(32), 0))
        lanes = ir.Constant(ir.VectorType(ir.IntType(32), width), [0] * width)
        return builder.shuffle_vector(first, empty, lanes)

    def add_product(builder: Any, total: Any, x: Any, y: Any) -> Any:
        # by itself the compiler fuses in blocks of one size and not in those of another
        kind = ir.FunctionType(vector, [vector] * 3)
        name = f"llvm.fmuladd.v{width}f64" if width > 1 else "llvm.fmuladd.f64"
        function = cgutils.get_or_insert_function(builder.module, kind, name)  # type: ignore[no-untyped-call]
        return builder.call(function, [x, y, total])

    @intrinsic  # type: ignore[untyped-decorator]
    def sums(
        typing: Any, p: Any, x: Any, rows: Any, columns: Any, shares: Any, paid: Any, first: Any,
        start: Any, stop: Any, m: Any, base: Any, scale: Any, out: Any,
    ) -> Any:  # fmt: skip
        def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            def data(i: int) -> Any:
                return context.make_array(signature.args[i])(context, builder, args[i]).data

            def place(array: Any, row: Any) -> Any:
                return builder.gep(array, [builder.add(builder.mul(row, models), m)])

            def number(i: int, at: Any) -> Any:
                return spread(builder, builder.load(builder.gep(data(i), [at])))

            first, start, stop, m = args[6:10]
            listed, shared, pays = (
                not isinstance(signature.args[i], types.NoneType) for i in (2, 4, 5)
            )
            scale = spread(builder, args[11])
            shape = context.make_array(signature.args[0])(context, builder, args[0]).shape
            models = builder.extract_value(shape, 1)
            zero = ir.Constant(vector, [0.0] * width if width > 1 else 0.0)
            cells = [cgutils.alloca_once_value(builder, zero) for _ in range(vectors)]  # type: ignore[no-untyped-call]
            shift = builder.sub(first, start)
            entries = cgutils.for_range_slice(builder, start, stop, ir.Constant(_INT, 1))
            with entries as (i, _):
                column = builder.sext(builder.load(builder.gep(data(3), [i])), _INT)
                row = builder.load(builder.gep(data(2), [i])) if listed else builder.add(i, shift)
                p_at, x_at = place(data(0), row), place(data(1), column)
                share, reward = number(4, i) if shared else None, number(5, i) if pays else None
                for nth, cell in enumerate(cells):
                    p, x = (load(builder, a, nth * width) for a in (p_at, x_at))
                    p = p if share is None else builder.fmul(share, p)
                    x = x if reward is None else add_product(builder, reward, scale, x)
                    builder.store(add_product(builder, builder.load(cell), p, x), cell)
            base, to = builder.gep(data(10), [m]), builder.gep(data(12), [m])
            for nth, cell in enumerate(cells):
                total, rest = builder.load(cell), load(builder, base, nth * width)
                found = (
                    builder.fadd(rest, total) if pays else add_product(builder, rest, scale, total)
                )
                at = builder.gep(to, [ir.Constant(_INT, nth * width)])
                builder.store(found, builder.bitcast(at, vector.as_pointer())).align = 8
            return context.get_dummy_value()

        whole = types.int64
        taken = p, x, rows, columns, shares, paid, *[whole] * 4, base, types.float64, out
        return types.void(*taken), code

    return sums


_many, _some, _one = (_block(count, WIDTH) for count in (MANY, SOME, 1))
_single = _block(1, 1)


@jit(**FAST, helper=True)
def row_sum(p, x, rows, columns, shares, paid, first, start, stop, lo, hi, base, scale, out):  # type: ignore[no-untyped-def]
    """out = base + sum_i share p[row] (paid + scale x[column]) for the models lo..hi.

    See ``_block``.

    The last block of vectors may overlap the one before.
    """
    m, width, many, some = lo, hi - lo, MANY * WIDTH, SOME * WIDTH
    while m + many <= hi:
        _many(p, x, rows, columns, shares, paid, first, start, stop, m, base, scale, out)
        m += many
    while m + some <= hi or (m + WIDTH < hi and width >= some):
        n = min(m, hi - some)
        _some(p, x, rows, columns, shares, paid, first, start, stop, n, base, scale, out)
        m += some
    while m < hi and width >= WIDTH:
        n = min(m, hi - WIDTH)
        _one(p, x, rows, columns, shares, paid, first, start, stop, n, base, scale, out)
        m += WIDTH
    while m < hi:
        _single(p, x, rows, columns, shares, paid, first, start, stop, m, base, scale, out)
        m += 1
