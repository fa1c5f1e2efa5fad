"""Cost and effect of named policies in every draw: what a cost-effectiveness analysis reports.

With k the price of one unit of effect, the net monetary benefit of policy d in draw m is
NMB = k E - C. Over the draws, with their weights:

    acceptability curve   P[ d has the largest NMB ]; draws in which several have it share it
    frontier              the curve of the policy with the largest expected NMB
    expected loss         E[ max_d' NMB(d') - NMB(d) ]
    EVPI                  the least expected loss, which the policy on the frontier has
    EVPPI, EVSI           E[ max_d E[ NMB(d) | x ] ] - max_d E[ NMB(d) ],
                          x: the parameter, or the data of a study

The definitions are those of dampack (Alarid-Escudero et al., R package): ``ceac``,
``calc_exp_loss``, ``calc_evpi``, ``calculate_icers``. Curve and frontier are from Fenwick, Claxton
and Sculpher, Health Economics 10(8), 2001; the loss from Alarid-Escudero et al., Value in Health
22(5), 2019; the regression for the EVSI from Strong, Oakley, Brennan and Breeze, Medical Decision
Making 35(5), 2015.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from mmdp import notebook
from mmdp.arguments import Seed, checked
from mmdp.errors import InputError
from mmdp.measures.information import Estimate, parameter_values, regressed
from mmdp.posterior.draws import read_draws
from mmdp.support import float_array
from mmdp.validate import Labels, check_whole, read_distribution
from mmdp.words import counted, number, some, suggested

Array = npt.NDArray[np.float64]
Study = Callable[[Mapping[str, Array], np.random.Generator], npt.ArrayLike]
TIE = 1e-9
STREAM = 2015  # keeps a study's chance apart from draws that were made with the same seed


@dataclass(frozen=True, eq=False, repr=False)
class CostEffectiveness:
    """Cost and effect of D named policies in M draws (models).

    ``policies`` (D,) names; ``effects`` and ``costs`` (D, M); ``weights`` (M,) of the draws;
    ``parameters`` by name, each (M,), for the value of studies. It comes from
    :func:`cost_effectiveness`, or from tables of your own by :meth:`from_tables`.

    >>> from mmdp.economics import CostEffectiveness
    >>> found = CostEffectiveness.from_tables(
    ...     effects={"usual care": [10.0, 10.0], "new drug": [11.0, 10.5]},
    ...     costs={"usual care": [0.0, 0.0], "new drug": [9000.0, 9000.0]})
    >>> print(found.frontier([5_000, 20_000])[["threshold", "policy", "probability", "evpi"]])
       threshold      policy  probability   evpi
    0     5000.0  usual care          1.0    0.0
    1    20000.0    new drug          1.0    0.0
    """

    policies: tuple[str, ...]
    effects: Array
    costs: Array
    weights: Array
    parameters: Mapping[str, Array] = field(default_factory=dict)

    def __repr__(self) -> str:
        shown = self.icers().to_string(index=False, float_format=number, na_rep="")
        return f"{self._title()}\n{shown}"

    def _repr_html_(self) -> str:
        """For notebooks: the table of ratios."""
        return notebook.table(self._title(), self.icers())

    def _title(self) -> str:
        size = counted(len(self.weights), "draw")
        return f"Cost and effect of {counted(len(self.policies), 'policy', 'policies')}, {size}"

    @classmethod
    @checked
    def from_tables(
        cls,
        effects: Any,
        costs: Any,
        *,
        weights: npt.ArrayLike | None = None,
        parameters: Any = None,
    ) -> CostEffectiveness:
        """Read two tables with one column per policy and one row per draw.

        A table is a DataFrame (pandas, polars), the path of a ``.csv`` or ``.parquet`` file or a
        mapping of name to array, as for :func:`mmdp.from_draws`; ``parameters`` too.
        """
        e, c = read_draws(effects), read_draws(costs)
        other = set(e) ^ set(c)
        if other:
            name = sorted(other)[0]
            lacking, there = ("costs", c) if name in e else ("effects", e)
            raise InputError(
                f"{lacking} have no policy {suggested(name, there)}; name the same in both"
            )
        tables = {"effects": e, "costs": c}
        tables |= {} if parameters is None else {"parameters": read_draws(parameters)}
        sizes = {what: len(next(iter(table.values()))) for what, table in tables.items()}
        if len(set(sizes.values())) > 1:
            listed = ", ".join(f"{what} have {n:,}" for what, n in sizes.items())
            raise InputError(f"one row per draw in every table: {listed}")
        for what, table in tables.items():
            wide = [name for name, values in table.items() if values.ndim > 1]
            if wide:
                raise InputError(f"{what} of {wide[0]!r} have several columns; give one per policy")
        share = read_distribution(weights, "weights", Labels("draw", sizes["effects"]))
        return cls(
            tuple(e), np.stack(list(e.values())), np.stack([c[name] for name in e]), share,
            tables.get("parameters", {}),
        )  # fmt: skip

    @checked
    def net_benefit(self, threshold: float) -> Array:
        """(D, M) net monetary benefit at one willingness to pay."""
        (level,) = read_thresholds([threshold])
        return level * self.effects - self.costs

    def _tie(self, level: float) -> Array:
        """(draws,) net benefits closer than this are equal."""
        size = np.maximum(np.abs(level * self.effects), np.abs(self.costs))
        return TIE * size.max(axis=0)

    @checked
    def acceptability(self, thresholds: Sequence[float]) -> pd.DataFrame:
        """Acceptability curves and expected losses: a row per threshold and policy.

        Columns ``threshold, policy, probability, nmb, loss``: the weight of the draws in which
        the policy is the best, its expected net benefit, its expected loss.
        """
        rows: list[tuple[Any, ...]] = []
        for level in read_thresholds(thresholds):
            nmb = self.net_benefit(level)
            top = nmb.max(axis=0)
            winners = nmb >= top - self._tie(level)
            share = (winners / winners.sum(axis=0)) @ self.weights
            loss = (top - nmb) @ self.weights
            known = [level] * len(nmb)
            rows += zip(known, self.policies, share, nmb @ self.weights, loss, strict=True)
        return pd.DataFrame(rows, columns=["threshold", "policy", "probability", "nmb", "loss"])

    @checked
    def frontier(self, thresholds: Sequence[float]) -> pd.DataFrame:
        """The policy to choose at each threshold, and the price of not being sure.

        Columns ``threshold, policy, effect, cost, nmb, probability`` (the acceptability frontier),
        ``icer`` (added cost per added effect against the policy of the row above; missing if it is
        the same) and ``evpi`` (the expected value of perfect information about the draw).
        """
        effect, cost = self.effects @ self.weights, self.costs @ self.weights
        curves = self.acceptability(thresholds)
        rows: list[tuple[Any, ...]] = []
        before: int | None = None
        for level, curve in curves.groupby("threshold", sort=False):
            nmb = curve["nmb"].to_numpy()
            tied = nmb >= nmb.max() - self._tie(float(level)).max()  # type: ignore[arg-type]
            best = before if before is not None and tied[before] else int(tied.argmax())
            icer = np.nan
            if before is not None and best != before:
                icer = (cost[best] - cost[before]) / (effect[best] - effect[before])
            row = curve.iloc[best]
            rows.append((level, row["policy"], effect[best], cost[best], row["nmb"],
                         row["probability"], icer, row["loss"]))  # fmt: skip
            before = best
        columns = ["threshold", "policy", "effect", "cost", "nmb", "probability", "icer", "evpi"]
        return pd.DataFrame(rows, columns=columns)

    def icers(self) -> pd.DataFrame:
        """The table of incremental cost-effectiveness ratios, as dampack's ``calculate_icers``.

        Columns ``policy, cost, effect, added_cost, added_effect, icer, status``. Status ``ND``: on
        the frontier, compared with the cheaper policy before it; ``ED``: a mixture of two others
        is better (extended dominance); ``D``: another has at least the effect and costs no more.

        >>> from mmdp.economics import CostEffectiveness
        >>> found = CostEffectiveness.from_tables(
        ...     effects={"A": [1.0], "B": [1.1], "C": [2.0], "D": [1.5]},
        ...     costs={"A": [100.0], "B": [180.0], "C": [300.0], "D": [400.0]})
        >>> print(found.icers()[["policy", "icer", "status"]].to_string(index=False))
        policy  icer status
             A   NaN     ND
             C 200.0     ND
             B   NaN     ED
             D   NaN      D
        """
        effect, cost = self.effects @ self.weights, self.costs @ self.weights
        kept, status = _efficient(effect, cost)
        rows = []
        for before, i in zip([kept[0], *kept], kept, strict=False):
            more, gain = cost[i] - cost[before], effect[i] - effect[before]
            added = (np.nan,) * 3 if i == before else (more, gain, more / gain)
            rows.append((self.policies[i], cost[i], effect[i], *added, "ND"))
        others = sorted(status, key=lambda i: (status[i] == "D", cost[i]))
        rows += [(self.policies[i], cost[i], effect[i], *(np.nan,) * 3, status[i]) for i in others]
        columns = ["policy", "cost", "effect", "added_cost", "added_effect", "icer", "status"]
        return pd.DataFrame(rows, columns=columns)

    @checked
    def evppi(
        self, threshold: float, parameter: str | Sequence[str] | npt.NDArray[Any], **options: int
    ) -> Estimate:
        """The value of knowing one parameter, or several together, before choosing.

        As :meth:`evsi` of a study that finds the parameter itself; ``options`` are those of it.
        """
        values = parameter_values(parameter, self.parameters, range(len(self.weights)))
        return self.evsi(threshold, values, **options)

    @checked
    def evsi(
        self,
        threshold: float,
        study: Study | npt.ArrayLike,
        *,
        resamples: int = 200,
        seed: Seed = 0,
    ) -> Estimate:
        """The expected value of a planned study: what its data are worth before choosing.

        Parameters
        ----------
        threshold
            Willingness to pay for one unit of effect.
        study
            A function of the parameters (name to (M,) array) and a random generator. It simulates
            the study once for each draw and returns a summary of its data, (M,) or (M, k); or such
            an array.
        resamples
            The error is the standard deviation over this many bootstrap samples of the draws.

        The net benefits are regressed on the summary by a smoothing spline (several columns: by
        its radial form), and the fitted values stand for E[NMB | data] (Strong et al. 2015). The
        result is from 0 to the EVPI. The error is one standard error and covers the chance in
        draws and simulated data; it does not cover a summary that misses what the data say. If
        hardly any result of the study changes the choice, both may be 0 though the value is not.

        >>> import numpy as np
        >>> from mmdp.economics import CostEffectiveness
        >>> gain = np.random.default_rng(0).normal(0.1, 1.0, 5000)     # QALYs, not known
        >>> found = CostEffectiveness.from_tables(
        ...     effects={"old": 0 * gain, "new": gain}, costs={"old": 0 * gain, "new": 0 * gain},
        ...     parameters={"gain": gain})
        >>> def trial(x, rng):                                 # 4 patients, each with noise 2
        ...     return rng.normal(x["gain"], 2 / np.sqrt(4))
        >>> value, error = found.evsi(1.0, trial)
        >>> round(value, 2), round(error, 3)                   # the exact value is 0.2349
        (0.23, 0.007)
        """
        check_whole(resamples, "resamples", 2)
        rng = np.random.default_rng(None if seed is None else [STREAM, seed])
        values = self._summary(self._simulated(study, rng) if callable(study) else study)
        kept = self.weights > 0  # so that every bootstrap sample has a weight
        nmb, values, weights = self.net_benefit(threshold).T[kept], values[kept], self.weights[kept]
        evpi = float(weights @ nmb.max(axis=1) - (weights @ nmb).max())

        def worth(share: Array) -> float:
            return regressed(nmb, values, share / share.sum())

        times = rng.multinomial(len(nmb), np.full(len(nmb), 1 / len(nmb)), size=resamples)
        drawn = [worth(weights * n) for n in times]
        value = float(np.clip(worth(weights), 0.0, max(evpi, 0.0)))
        return Estimate(value, float(np.std(drawn, ddof=1)))

    def _simulated(self, study: Study, rng: np.random.Generator) -> npt.ArrayLike:
        try:
            return study(self.parameters, rng)
        except Exception as error:
            problem = f"study raised {type(error).__name__}: {error}"
            names = some(self.parameters) or "none"
            raise InputError(f"{problem}; the parameters are {names}") from error

    def _summary(self, found: npt.ArrayLike) -> Array:
        """What a study found, as finite numbers (M, k)."""
        array = float_array(found, "what a study returns")
        size = len(self.weights)
        if array.ndim not in (1, 2) or len(array) != size or not np.isfinite(array).all():
            raise InputError(
                f"a study returns finite numbers ({size},) or ({size}, k) for "
                f"{counted(size, 'draw')}; got shape {array.shape}"
            )
        return array.reshape(size, -1)


def _efficient(effect: Array, cost: Array) -> tuple[list[int], dict[int, str]]:
    """Policies on the frontier by cost, and the others with their status (ED or D)."""

    def ratio(a: int, b: int) -> float:
        return float((cost[b] - cost[a]) / (effect[b] - effect[a]))

    kept: list[int] = []
    status: dict[int, str] = {}
    for i in np.lexsort((-effect, cost)).tolist():
        if kept and effect[i] <= effect[kept[-1]]:
            status[i] = "D"
            continue
        while len(kept) > 1 and ratio(kept[-1], i) < ratio(kept[-2], kept[-1]):
            status[kept.pop()] = "ED"
        kept.append(i)
    return kept, status


def read_thresholds(thresholds: Sequence[float]) -> list[float]:
    """Thresholds in ascending order, each once."""
    try:
        levels = np.unique(np.asarray(thresholds, dtype=np.float64))
    except (TypeError, ValueError):
        levels = np.array([])
    if not levels.size or not np.isfinite(levels).all() or levels[0] < 0:
        raise InputError("thresholds must be finite numbers, none negative, at least one")
    return [float(x) for x in levels]
