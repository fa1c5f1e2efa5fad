"""Sums over the entries of a row for many models at once, as vector code.

A block of models is summed in registers over all entries of the row: p and v are read, and only
the result is written. (numba by itself vectorises a loop over models for a few entries at a time,
which reads and writes the sums each time and is limited by that.) The terms of a model are added
in the order of the entries, whatever block it is in, so results do not depend on how the models
are split among threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import llvmlite.binding
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from mmdp.core.kernels.cpu.jit import BASE_OPTIONS, jit

if TYPE_CHECKING:
    from numba.core.base import BaseContext
    from numba.core.typing.context import Context
    from numba.core.typing.templates import Signature

# Numbers in a vector register.
WIDTH = 8 if llvmlite.binding.get_host_cpu_features().get("avx512f") else 4
MAX_VECTORS, MEDIUM_VECTORS = 8, 4  # vectors of a block
_INT, _FLOAT = ir.IntType(64), ir.DoubleType()


def _make_block_sum(n_vectors: int, width: int) -> Any:
    """Make the vector code that sums a row of entries for n_vectors * width models.

    It is base + sum_i weight p[row] (reward + scale x[column]) from model m on, over the entries i
    from start to stop: column is ``columns[i]``; row is first_row + i - start; weight is
    ``entry_weights[i]``, or 1; reward is ``entry_rewards[i]``, or 0.
    p and x are (any, M), base and out (M,). ``terms`` are these in the order of
    :func:`sum_row_entries`.
    """
    vector = ir.VectorType(_FLOAT, width)

    def load(builder: ir.IRBuilder, pointer: ir.Value, offset: int) -> ir.Value:
        address = builder.gep(pointer, [ir.Constant(_INT, offset)])
        loaded = builder.load(builder.bitcast(address, vector.as_pointer()))
        loaded.align = 8
        return loaded

    def broadcast(builder: ir.IRBuilder, scalar: ir.Value) -> ir.Value:
        empty = ir.Constant(vector, ir.Undefined)
        one_lane = builder.insert_element(empty, scalar, ir.Constant(ir.IntType(32), 0))
        lanes = ir.Constant(ir.VectorType(ir.IntType(32), width), [0] * width)
        return builder.shuffle_vector(one_lane, empty, lanes)

    def fused_multiply_add(
        builder: ir.IRBuilder, total: ir.Value, x: ir.Value, y: ir.Value
    ) -> ir.Value:
        # by itself the compiler fuses in blocks of one size and not in those of another
        function_type = ir.FunctionType(vector, [vector] * 3)
        name = f"llvm.fmuladd.v{width}f64"
        function = cgutils.get_or_insert_function(builder.module, function_type, name)  # type: ignore[no-untyped-call]
        return builder.call(function, [x, y, total])

    @intrinsic  # type: ignore[untyped-decorator]
    def block_sum(
        typing: Context, m: types.Type, terms: types.Tuple
    ) -> tuple[Signature, Callable[..., ir.Value]]:
        def codegen(
            context: BaseContext,
            builder: ir.IRBuilder,
            signature: Signature,
            args: Sequence[ir.Value],
        ) -> ir.Value:
            m, term_types = args[0], signature.args[1].types
            values = cgutils.unpack_tuple(builder, args[1])  # type: ignore[no-untyped-call]

            def get_data(i: int) -> ir.Value:
                return context.make_array(term_types[i])(context, builder, values[i]).data

            def element_pointer(array: ir.Value, row: ir.Value) -> ir.Value:
                return builder.gep(array, [builder.add(builder.mul(row, n_models), m)])

            def load_scalar(i: int, index: ir.Value) -> ir.Value:
                return broadcast(builder, builder.load(builder.gep(get_data(i), [index])))

            first_row, start, stop, scale = values[5:9]
            has_weights, has_rewards = (
                not isinstance(term_types[i], types.NoneType) for i in (3, 4)
            )
            scale = broadcast(builder, scale)
            shape = context.make_array(term_types[0])(context, builder, values[0]).shape
            n_models = builder.extract_value(shape, 1)
            zero = ir.Constant(vector, [0.0] * width)
            accumulators = [cgutils.alloca_once_value(builder, zero) for _ in range(n_vectors)]  # type: ignore[no-untyped-call]
            shift = builder.sub(first_row, start)
            entries = cgutils.for_range_slice(builder, start, stop, ir.Constant(_INT, 1))
            with entries as (i, _):
                column = builder.sext(builder.load(builder.gep(get_data(2), [i])), _INT)
                p_pointer = element_pointer(get_data(0), builder.add(i, shift))
                x_pointer = element_pointer(get_data(1), column)
                weight = load_scalar(3, i) if has_weights else None
                reward = load_scalar(4, i) if has_rewards else None
                for nth, accumulator in enumerate(accumulators):
                    p, x = (
                        load(builder, address, nth * width) for address in (p_pointer, x_pointer)
                    )
                    p = p if weight is None else builder.fmul(weight, p)
                    x = x if reward is None else fused_multiply_add(builder, reward, scale, x)
                    builder.store(
                        fused_multiply_add(builder, builder.load(accumulator), p, x), accumulator
                    )
            base, out_pointer = builder.gep(get_data(9), [m]), builder.gep(get_data(10), [m])
            for nth, accumulator in enumerate(accumulators):
                total, base_value = builder.load(accumulator), load(builder, base, nth * width)
                result = (
                    builder.fadd(base_value, total)
                    if has_rewards
                    else fused_multiply_add(builder, base_value, scale, total)
                )
                store_address = builder.gep(out_pointer, [ir.Constant(_INT, nth * width)])
                builder.store(result, builder.bitcast(store_address, vector.as_pointer())).align = 8
            return context.get_dummy_value()

        return types.void(types.int64, terms), codegen

    return block_sum


_sum_large_block, _sum_medium_block, _sum_vector = (
    _make_block_sum(count, WIDTH) for count in (MAX_VECTORS, MEDIUM_VECTORS, 1)
)
_sum_scalar = _make_block_sum(1, 1)


@jit(**BASE_OPTIONS, helper=True)
def sum_row_entries(  # type: ignore[no-untyped-def]
    p,
    x,
    columns,
    entry_weights,
    entry_rewards,
    first_row,
    start,
    stop,
    n_models,
    base,
    scale,
    out,
):
    """Compute out = base + sum_i weight p[row] (reward + scale x[column]) for all models.

    See ``_make_block_sum``. The last block of vectors may overlap the one before.
    """
    m, large, medium = 0, MAX_VECTORS * WIDTH, MEDIUM_VECTORS * WIDTH
    terms = p, x, columns, entry_weights, entry_rewards, first_row, start, stop, scale, base, out
    while m + large <= n_models:
        _sum_large_block(m, terms)
        m += large
    while m + medium <= n_models or (m + WIDTH < n_models and n_models >= medium):
        _sum_medium_block(min(m, n_models - medium), terms)
        m += medium
    while m < n_models and n_models >= WIDTH:
        _sum_vector(min(m, n_models - WIDTH), terms)
        m += WIDTH
    while m < n_models:
        _sum_scalar(m, terms)
        m += 1
