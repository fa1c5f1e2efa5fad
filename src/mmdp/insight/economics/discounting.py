"""Costs and effects of different times: files of them, discounting, within-cycle weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from mmdp.core.arguments import PositiveInt, Unchecked, check_arguments
from mmdp.core.errors import InputError
from mmdp.core.model import MMDP
from mmdp.core.shapes import Array, Mask
from mmdp.core.text import did_you_mean, format_number, format_with_unit, join_or, pluralize
from mmdp.core.validate import check_horizon
from mmdp.data.io.reading import read_csv, read_header
from mmdp.data.io.writing import PathLike
from mmdp.data.schema import ColumnLabels, Table, TableSource, assign_roles
from mmdp.insight.economics.outcomes import read_thresholds

Amounts = npt.ArrayLike | Mapping[str, npt.ArrayLike]
WithinCycle = Literal["none", "half-cycle", "simpson"]
CORRECTIONS = {  # and how they are described
    "none": "",
    "half-cycle": "; the first and the last time count half",
    "simpson": "; times have Simpson's weights, and half-cycle weights in the search for "
    "policies, which could otherwise act every second time",
}
AMOUNT_PARTS = ("rewards", "next_rewards")
AMOUNT_COLUMNS = ("effect", "cost")
REQUIRED_COLUMNS = ("state", "action", *AMOUNT_COLUMNS)
OPTIONAL_COLUMNS = ("model", "time", "next_state")
MAX_TIMES = 1_000_000  # a year in place of a number of steps would ask for an array of its size


@check_arguments
@dataclass(frozen=True)
class OutcomeDiscounting:
    """Discount rates and within-cycle weights for costs and effects.

    Parameters
    ----------
    effect_rate
        Discount rate of effects per step, such as 0.035; by default the discount of the model.
        Amounts of time t count (1 + rate)^-t.
    cost_rate
        Discount rate of costs per step; by default the discount of the model.
    within_cycle
        Weights of the times, by name or one per time; n cycles need a horizon of n + 1.
        ``"half-cycle"``: the first and the last time count half (the trapezium rule).
        ``"simpson"``: 1/3, 4/3, 2/3, ..., 4/3, 1/3 (Simpson's rule; Elbasha and Chhatwal, Medical
        Decision Making 36(1), 2016). The times are the rows of a cohort trace. Simpson's weights
        are for the costs and effects of policies. Policies are not optimized for them, as they
        would act every second time, but for half-cycle weights. Or weights of your own, one per
        time, which are also used in optimization.

    With weights, amounts of transitions count with the row of the trace that they lead to:
    a transition from time t to t + 1 has the weight and the discount of t + 1, and the one after
    the last time has none. Without weights it counts at time t, as rewards do.

    >>> from mmdp.insight.economics import OutcomeDiscounting
    >>> OutcomeDiscounting(within_cycle="half-cycle").time_weights(5).tolist()
    [0.5, 1.0, 1.0, 1.0, 0.5]
    >>> (3 * OutcomeDiscounting(within_cycle="simpson").time_weights(5)).round(9).tolist()
    [1.0, 4.0, 2.0, 4.0, 1.0]
    """

    effect_rate: float | None = None
    cost_rate: float | None = None
    within_cycle: Unchecked[WithinCycle | Sequence[float]] = "none"

    def __post_init__(self) -> None:
        for name in ("effect_rate", "cost_rate"):
            rate = getattr(self, name)
            if rate is not None and not (isinstance(rate, (int, float)) and 0 <= rate < 0.5):
                raise InputError(
                    f"{name}={rate!r} is not a discount rate per step from 0 to below 0.5; give a "
                    "number such as 0.035 (a discount factor g is the rate 1/g - 1)"
                )
        correction = self.within_cycle
        if isinstance(correction, str):
            if correction not in CORRECTIONS:
                suggestion = did_you_mean(correction, CORRECTIONS)
                raise InputError(f"within_cycle is {suggestion}; choose {join_or(CORRECTIONS)}")
            return
        weights = np.asarray(correction, dtype=object)
        try:
            weights = weights.astype(np.float64)
        except (TypeError, ValueError, OverflowError):
            weights = np.array(np.nan)
        is_valid = np.isfinite(weights) & (weights >= 0)
        if weights.ndim != 1 or not weights.size or not is_valid.all():
            raise InputError(
                f"within_cycle is not valid; choose {join_or(CORRECTIONS)}, or give one weight "
                "of at least 0 for each time"
            )
        object.__setattr__(self, "within_cycle", tuple(weights.tolist()))  # comparable

    @property
    def description(self) -> str:
        """The rates and weights in words.

        >>> from mmdp.insight.economics import OutcomeDiscounting
        >>> OutcomeDiscounting(effect_rate=0.015, cost_rate=0.035).description
        'effects are discounted by 1.5% per step and costs by 3.5% per step'
        """
        effect_text, cost_text = (
            "as in the models" if rate is None else f"by {100 * rate:g}% per step"
            for rate in (self.effect_rate, self.cost_rate)
        )
        weights_text = "; times have given weights"
        if isinstance(self.within_cycle, str):
            weights_text = CORRECTIONS[self.within_cycle]
        return f"effects are discounted {effect_text} and costs {cost_text}{weights_text}"

    def time_weights(self, horizon: int) -> Array:
        """Compute the weight (T,) of each time, without discount."""
        if not isinstance(self.within_cycle, str):
            if len(self.within_cycle) != horizon:
                raise InputError(
                    f"within_cycle has {len(self.within_cycle)} weights for {horizon} times; "
                    "give one for each"
                )
            return np.array(self.within_cycle)
        weights = np.ones(horizon)
        if self.within_cycle == "half-cycle":
            if horizon < 2:
                raise InputError(
                    f"the half-cycle correction needs a horizon of 2 or more, not {horizon}; "
                    "give n + 1 for n cycles"
                )
            weights[[0, -1]] = 0.5
        elif self.within_cycle == "simpson":
            if horizon < 3 or horizon % 2 == 0:
                raise InputError(
                    "Simpson's rule needs an even number of cycles, so an odd horizon of 3 or "
                    f"more (it is {horizon}); choose another, or the half-cycle correction"
                )
            weights[1:-1] = np.where(np.arange(1, horizon - 1) % 2, 4 / 3, 2 / 3)
            weights[[0, -1]] = 1 / 3
        return weights

    def make_outcome_models(
        self, model: MMDP, effects: Amounts, costs: Amounts, horizon: int
    ) -> tuple[MMDP, MMDP]:
        """Make the model with effects as rewards and the model with costs as rewards."""
        effect_model, cost_model = (
            self._make_outcome_model(model, *_read_amounts(model, amounts, label), rate, horizon)
            for label, amounts, rate in (
                ("effects", effects, self.effect_rate),
                ("costs", costs, self.cost_rate),
            )
        )
        return effect_model, cost_model

    def _make_outcome_model(
        self, model: MMDP, by_state: Array, by_transition: Array, rate: float | None, horizon: int
    ) -> MMDP:
        """Make the model whose rewards are amounts of states and of transitions, discounted."""
        if self == OutcomeDiscounting():
            return model.replace(rewards=by_state + by_transition)
        for amounts in (by_state, by_transition):
            if amounts.ndim == 4 and len(amounts) != horizon:
                raise InputError(
                    f"effects or costs have {len(amounts)} times, but the horizon is {horizon}; "
                    "give one entry for each time"
                )
        factor = model.discount if rate is None else 1 / (1 + rate)
        weights = (self.time_weights(horizon) * factor ** np.arange(horizon))[:, None, None, None]
        later = weights if self.within_cycle == "none" else np.append(weights[1:], [[[[0.0]]]], 0)
        return model.replace(rewards=weights * by_state + later * by_transition, discount=1.0)

    @check_arguments
    def make_net_benefit_model(
        self,
        model: MMDP,
        effects: Amounts,
        costs: Amounts,
        threshold: float,
        horizon: PositiveInt | None = None,
    ) -> MMDP:
        """Make the model whose rewards are the net monetary benefit at one willingness to pay.

        Solve it, bound it or report about it like any other model. With rates or within-cycle
        weights its rewards vary with time and its discount is 1; only then does the horizon matter.
        In place of Simpson's weights it has half-cycle weights, which cannot alternate. Pages name
        the quantity: by default the net benefit at this threshold per unit of effect, otherwise
        the ``quantity`` of the model.

        >>> import mmdp
        >>> from mmdp.insight.economics import OutcomeDiscounting
        >>> one = mmdp.MMDP([[[[1.0], [1.0]]]], [[0, 0]])
        >>> yearly = OutcomeDiscounting(effect_rate=0.0, cost_rate=0.25)
        >>> priced = yearly.make_net_benefit_model(
        ...     one, [[0, 2]], [[0, 100]], threshold=45, horizon=3)
        >>> priced.rewards[:, 0, 0, 1].round(9).tolist()
        [-10.0, 10.0, 26.0]
        >>> mmdp.solve(priced).policy.actions[:, 0].tolist()
        [0, 1, 1]
        """
        (wtp,) = read_thresholds([threshold])
        n_steps = 0 if self == OutcomeDiscounting() else check_horizon(model.horizon, horizon)
        check_no_terminal_values(model)
        planning_discounting = self
        if self.within_cycle == "simpson":
            self.time_weights(n_steps)  # refuse a horizon without Simpson's weights
            planning_discounting = replace(self, within_cycle="half-cycle")
        effect_model, cost_model = planning_discounting.make_outcome_models(
            model, effects, costs, n_steps
        )
        rewards = wtp * effect_model.rewards - cost_model.rewards
        wtp_text = format_with_unit(format_number(wtp), model.unit)
        quantity = model.quantity or f"net benefit at {wtp_text} per unit of effect"
        return effect_model.replace(rewards=rewards, quantity=quantity)


def _read_amounts(model: MMDP, amounts: Amounts, label: str) -> tuple[Array, Array]:
    """Read expected amounts ((T,) M, S, A) of states and of transitions."""
    parts: Mapping[str, object] = {"rewards": amounts}
    if isinstance(amounts, Mapping) and not {*AMOUNT_PARTS}.isdisjoint(amounts):
        parts = amounts
    for name in parts:
        if name not in AMOUNT_PARTS:
            raise InputError(
                f"{label}: unknown part {did_you_mean(name, AMOUNT_PARTS)}; use "
                f"{join_or(AMOUNT_PARTS)}"
            )
    try:
        state_amounts, transition_amounts = (
            model.replace(**{name: parts[name]}).rewards if name in parts else np.zeros((1, 1, 1))
            for name in AMOUNT_PARTS
        )
    except InputError as error:
        raise error.with_location(label) from None
    return state_amounts, transition_amounts


def check_no_terminal_values(model: MMDP) -> None:
    """Refuse a model with terminal values, which are neither cost nor effect."""
    if model.terminal.any():
        raise InputError(
            "the model has terminal values, which are neither cost nor effect; put them into "
            "effects and costs and use model.replace(terminal=None)"
        )


# ---------------------------------------------------------------------- files
@check_arguments
def read_effects(path: PathLike, model: MMDP) -> tuple[Amounts, Amounts]:
    """Read effects and costs from a CSV file: each (S, A), or (M, S, A) by model.

    The CSV has the columns ``state, action, effect, cost``, with the labels or ids of the model,
    and one row for every action that is allowed. With a column ``time`` (0, 1, ...) they vary with
    time: (T, M, S, A); labels of times, such as ages, may stand next to it. A row whose column
    ``next_state`` is not blank has what happens once, on the way to that state; then each is a
    mapping with ``rewards`` and ``next_rewards``.

    >>> import tempfile, pathlib, mmdp
    >>> one = mmdp.MMDP([[[[1.0], [1.0]]]], [[0.0, 0.0]], actions=["wait", "treat"])
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "effects.csv"
    >>> _ = file.write_text("state,action,effect,cost\\n0,wait,0,0\\n0,treat,2,100\\n")
    >>> read_effects(file, one)[1].tolist()
    [[0.0, 100.0]]
    """
    table = _read_table(Path(path), model)
    axes = _find_axes(table, model)
    has_transitions, sizes = "next_state" in axes, [x.size for x in axes.values()]
    cells = table.find_cells(axes, "this combination of labels")
    amounts = np.stack([table.parse_floats(name) for name in AMOUNT_COLUMNS])
    arrays = np.full((2, *sizes), np.nan)
    arrays.reshape(2, -1)[:, cells] = amounts
    is_given = ~np.isnan(arrays[0])
    _check_given(is_given[..., -1] if has_transitions else is_given, axes, model, table.source)
    for values, name in zip(amounts, AMOUNT_COLUMNS, strict=True):
        if len(values) > 1 and np.ptp(values) == 0:
            table.source.fail(
                f"{name} is {values[0]:g} in this and every other line, so that no policy has more "
                "of it than another; give what each action has",
                0,
            )
    arrays = np.nan_to_num(arrays)
    if "time" in axes:
        arrays = arrays if "model" in axes else arrays[:, :, None]
        arrays = np.broadcast_to(arrays, (2, sizes[0], model.n_models, *arrays.shape[3:]))
    if not has_transitions:
        return arrays[0], arrays[1]
    effect, cost = ({"rewards": x[..., -1], "next_rewards": x[..., :-1]} for x in arrays)
    has_any = (cells % sizes[-1] < model.n_states).any()
    return (effect, cost) if has_any else (effect["rewards"], cost["rewards"])


def _read_table(path: Path, model: MMDP) -> Table:
    """Read the columns of the file; refuse unknown and missing ones."""
    source, names, times = TableSource(path), read_header(path), model.time_labels
    skipped = times.column_name if times.labels and "time" in names else None
    expected = (
        f"name {','.join(REQUIRED_COLUMNS)} in line 1, maybe {','.join(OPTIONAL_COLUMNS)}, where "
        "time counts from 0"
    )
    known = *REQUIRED_COLUMNS, *OPTIONAL_COLUMNS
    roles = assign_roles(
        [name for name in names if name != skipped], known, REQUIRED_COLUMNS, source, expected
    )
    frame = read_csv(path, names)
    if not len(frame):
        source.fail("a header but no rows; expected one row per state and action")
    return Table({name: frame[name].str.strip() for name in roles}, source)


def _find_axes(table: Table, model: MMDP) -> dict[str, ColumnLabels]:
    """Find the labels of the axes by role, in their order; a blank next state is the last one."""
    axes = {}
    if "time" in table:
        times = table.parse_ids("time")
        table.source.fail_where(
            times >= MAX_TIMES, lambda i: f"time is {times[i]}, not a number of steps from 0 on"
        )
        axes["time"] = ColumnLabels("time", int(times.max()) + 1)
    labels_by_role = {
        "model": model.model_labels,
        "state": model.state_labels,
        "action": model.action_labels,
        "next_state": (*model.state_labels, ""),
    }
    return axes | {
        role: ColumnLabels(role, len(labels), labels)
        for role, labels in labels_by_role.items()
        if role in table
    }


def _check_given(
    is_given: Mask,
    axes: Mapping[str, ColumnLabels],
    model: MMDP,
    source: TableSource,
) -> None:
    """Refuse allowed actions that have no row."""
    is_missing = ~is_given & model.allowed
    if is_missing.any():
        first = np.argwhere(is_missing)[0].tolist()
        pairs = zip(axes.values(), first, strict=False)
        location = ", ".join(f"{labels.axis_name} {labels.format_id(i)}" for labels, i in pairs)
        n_missing = pluralize(int(is_missing.sum()), "case")
        source.fail(f"{location} is not given ({n_missing} in all); give every action once")
