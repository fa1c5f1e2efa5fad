"""Cost and effect of named policies in every sample, for cost-effectiveness analysis.

With k the willingness to pay for one unit of effect, the net monetary benefit of policy d in
sample m is NMB = k E - C. Over the samples, with their weights:

    acceptability curve   P[ d has the largest NMB ]; samples in which several have it share it
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

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pandas as pd

from mmdp.core.arguments import Seed, Unchecked, check_arguments
from mmdp.core.errors import InputError
from mmdp.core.shapes import Array
from mmdp.core.text import did_you_mean, format_number, join_first, pluralize, render_frame
from mmdp.core.transitions import as_float_array
from mmdp.core.validate import LabelIndex, check_int, parse_distribution
from mmdp.data.posterior.samples import read_samples
from mmdp.insight.measures.information import (
    Estimate,
    check_columns,
    estimate_voi,
    read_parameter_values,
)

StudySimulator = Callable[[Mapping[str, Array], np.random.Generator], npt.ArrayLike]
TIE_TOL = 1e-9
SEED_STREAM = 2015  # keeps a study's randomness apart from samples made with the same seed


class PrintedTable:
    """A result that is printed, and shown in notebooks, as one titled table."""

    @abstractmethod
    def _make_table(self) -> tuple[str, pd.DataFrame]:
        """Make the title and the table."""

    def __repr__(self) -> str:
        title, table = self._make_table()
        return f"{title}\n{table.to_string(index=False, float_format=format_number, na_rep='')}"

    def _repr_html_(self) -> str:
        """Render the table as HTML, for notebooks."""
        return render_frame(*self._make_table())


@dataclass(frozen=True, eq=False, repr=False)
class CostEffectiveness(PrintedTable):
    """Cost and effect of D named policies in M samples (models).

    ``policies`` (D,) names; ``effects`` and ``costs`` (D, M); ``weights`` (M,) of the samples;
    ``parameters`` by name, each (M,), for the value of studies. It comes from
    :func:`cost_effectiveness`, or from tables of your own by :meth:`from_tables`.

    >>> from mmdp.insight.economics import CostEffectiveness
    >>> outcomes = CostEffectiveness.from_tables(
    ...     effects={"usual care": [10.0, 10.0], "new drug": [11.0, 10.5]},
    ...     costs={"usual care": [0.0, 0.0], "new drug": [9000.0, 9000.0]})
    >>> print(outcomes.frontier([5_000, 20_000])[["threshold", "policy", "probability", "evpi"]])
       threshold      policy  probability   evpi
    0     5000.0  usual care          1.0    0.0
    1    20000.0    new drug          1.0    0.0
    """

    policies: tuple[str, ...]
    effects: Array
    costs: Array
    weights: Array
    parameters: Mapping[str, Array] = field(default_factory=dict)

    def _make_table(self) -> tuple[str, pd.DataFrame]:
        """Make a title with the numbers of policies and samples, and the table of ratios."""
        n_policies = pluralize(len(self.policies), "policy", "policies")
        title = f"Cost and effect of {n_policies}, {pluralize(len(self.weights), 'sample')}"
        return title, self.icers()

    @classmethod
    @check_arguments
    def from_tables(
        cls,
        effects: Unchecked[object],
        costs: Unchecked[object],
        *,
        weights: npt.ArrayLike | None = None,
        parameters: Unchecked[object] = None,
    ) -> CostEffectiveness:
        """Read two tables with one column per policy and one row per sample.

        A table is a DataFrame (pandas, polars), the path of a ``.csv`` or ``.parquet`` file or a
        mapping of name to array, as for :func:`mmdp.from_samples`; ``parameters`` too.
        """
        tables = {"effects": read_samples(effects), "costs": read_samples(costs)}
        for name in sorted(set(tables["effects"]) ^ set(tables["costs"]))[:1]:
            missing = "costs" if name in tables["effects"] else "effects"
            raise InputError(
                f"{missing} have no policy {did_you_mean(name, tables[missing])}; name the same "
                "policies in both tables"
            )
        if parameters is not None:
            tables["parameters"] = read_samples(parameters)
        sizes = {name: len(next(iter(table.values()))) for name, table in tables.items()}
        if len(set(sizes.values())) > 1:
            sizes_text = ", ".join(f"{name} have {n:,}" for name, n in sizes.items())
            raise InputError(
                f"the tables have different numbers of rows: {sizes_text}; give one row per sample"
            )
        for table_name, table in tables.items():
            for name, values in table.items():
                if values.ndim > 1:
                    raise InputError(
                        f"{table_name} of {name!r} have several columns; give one per policy"
                    )
        names, index = tuple(tables["effects"]), LabelIndex("sample", sizes["effects"])
        effect_table, cost_table = (
            np.stack([tables[x][name] for name in names]) for x in ("effects", "costs")
        )
        sample_weights = parse_distribution(weights, "weights", index)
        return cls(names, effect_table, cost_table, sample_weights, tables.get("parameters", {}))

    @check_arguments
    def net_benefit(self, threshold: float) -> Array:
        """Compute the net monetary benefit (D, M) at one willingness to pay."""
        (wtp,) = read_thresholds([threshold])
        return wtp * self.effects - self.costs

    def _tie_tolerance(self, wtp: float) -> Array:
        """Compute the differences (M,) of net benefit below which policies are tied."""
        scale = np.maximum(np.abs(wtp * self.effects), np.abs(self.costs))
        return TIE_TOL * scale.max(axis=0)

    @check_arguments
    def acceptability(self, thresholds: Sequence[float]) -> pd.DataFrame:
        """Tabulate acceptability curves and expected losses: a row per threshold and policy.

        Columns ``threshold, policy, probability, nmb, loss``: the weight of the samples in which
        the policy is the best, its expected net benefit, its expected loss.
        """
        tables = []
        for wtp in read_thresholds(thresholds):
            nmb = self.net_benefit(wtp)
            best_nmb = nmb.max(axis=0)
            is_best = nmb >= best_nmb - self._tie_tolerance(wtp)
            table = pd.DataFrame({"threshold": wtp, "policy": self.policies})
            table["probability"] = (is_best / is_best.sum(axis=0)) @ self.weights
            table["nmb"] = nmb @ self.weights
            table["loss"] = (best_nmb - nmb) @ self.weights
            tables.append(table)
        return pd.concat(tables, ignore_index=True)

    @check_arguments
    def frontier(self, thresholds: Sequence[float]) -> pd.DataFrame:
        """Tabulate the policy with the largest expected net benefit at each threshold.

        Columns ``threshold, policy, effect, cost, nmb, probability`` (the acceptability frontier),
        ``icer`` (added cost per added effect against the policy of the row above; missing if it is
        the same) and ``evpi`` (the expected value of perfect information about the sample).
        """
        effect, cost = self.effects @ self.weights, self.costs @ self.weights
        curves, best_ids = self.acceptability(thresholds), list[int]()
        for wtp in read_thresholds(thresholds):
            nmb = self.net_benefit(wtp) @ self.weights
            is_tied = nmb >= nmb.max() - self._tie_tolerance(wtp).max()
            is_kept = best_ids and is_tied[best_ids[-1]]
            best_ids.append(best_ids[-1] if is_kept else int(is_tied.argmax()))
        ids = np.array(best_ids)
        rows = curves.iloc[ids + len(effect) * np.arange(len(ids))].reset_index(drop=True)
        rows["effect"], rows["cost"], rows["evpi"] = effect[ids], cost[ids], rows["loss"]
        is_new = np.diff(ids, prepend=ids[0]) != 0
        rows["icer"] = (rows["cost"].diff() / rows["effect"].diff()).where(is_new)
        columns = ["threshold", "policy", "effect", "cost", "nmb", "probability", "icer", "evpi"]
        return rows[columns]

    def icers(self) -> pd.DataFrame:
        """Tabulate incremental cost-effectiveness ratios, as dampack's ``calculate_icers``.

        Columns ``policy, cost, effect, added_cost, added_effect, icer, status``. Status ``ND``: on
        the frontier, compared with the cheaper policy before it; ``ED``: a mixture of two others
        is better (extended dominance); ``D``: another has at least the effect and costs no more.

        >>> from mmdp.insight.economics import CostEffectiveness
        >>> outcomes = CostEffectiveness.from_tables(
        ...     effects={"A": [1.0], "B": [1.1], "C": [2.0], "D": [1.5]},
        ...     costs={"A": [100.0], "B": [180.0], "C": [300.0], "D": [400.0]})
        >>> print(outcomes.icers()[["policy", "icer", "status"]].to_string(index=False))
        policy  icer status
             A   NaN     ND
             C 200.0     ND
             B   NaN     ED
             D   NaN      D
        """
        effect, cost = self.effects @ self.weights, self.costs @ self.weights
        efficient, status = _find_efficient_policies(effect, cost)
        ids = [*efficient, *sorted(status, key=lambda i: (status[i] == "D", cost[i]))]
        table = pd.DataFrame({"policy": np.array(self.policies, dtype=object)[ids]})
        table["cost"], table["effect"] = cost[ids], effect[ids]
        on_frontier = table.index < len(efficient)
        table["added_cost"] = table["cost"].diff().where(on_frontier)
        table["added_effect"] = table["effect"].diff().where(on_frontier)
        table["icer"] = table["added_cost"] / table["added_effect"]
        table["status"] = [status.get(i, "ND") for i in ids]
        return table

    @check_arguments
    def evppi(
        self,
        threshold: float,
        parameter: str | Sequence[str] | npt.NDArray[np.generic],
        **options: int,
    ) -> Estimate:
        """Compute the expected value of knowing one or several parameters before choosing.

        As :meth:`evsi` of a study that finds the parameter itself; ``options`` are those of it.
        """
        values = read_parameter_values(parameter, self.parameters, range(len(self.weights)))
        return self.evsi(threshold, values, **options)

    @check_arguments
    def evsi(
        self,
        threshold: float,
        study: StudySimulator | npt.ArrayLike,
        *,
        n_resamples: int = 200,
        seed: Seed = 0,
    ) -> Estimate:
        """Estimate the expected value of sample information of a planned study.

        Parameters
        ----------
        threshold
            Willingness to pay for one unit of effect.
        study
            A function of the parameters (name to (M,) array) and a random generator. It simulates
            the study once for each sample and returns a summary of its data, (M,) or (M, k); or
            such an array.
        n_resamples
            The error is the standard deviation over this many bootstrap resamples.

        The net benefits are regressed on the summary by a smoothing spline (several columns: by
        its radial form), and the fitted values stand for E[NMB | data] (Strong et al. 2015). The
        result is from 0 to the EVPI. The error is one standard error and covers the chance in
        samples and simulated data; it does not cover a summary that loses information.
        If hardly any result of the study changes the choice, both may be 0 though the value is not.

        >>> import numpy as np
        >>> from mmdp.insight.economics import CostEffectiveness
        >>> gain = np.random.default_rng(0).normal(0.1, 1.0, 5000)     # QALYs, not known
        >>> outcomes = CostEffectiveness.from_tables(
        ...     effects={"old": 0 * gain, "new": gain}, costs={"old": 0 * gain, "new": 0 * gain},
        ...     parameters={"gain": gain})
        >>> def trial(x, rng):                                 # 4 patients, each with noise 2
        ...     return rng.normal(x["gain"], 2 / np.sqrt(4))
        >>> value, error = outcomes.evsi(1.0, trial)
        >>> round(value, 2), round(error, 3)                   # the exact value is 0.2349
        (0.23, 0.007)
        """
        check_int(n_resamples, "n_resamples", 2, item_bytes=8 * len(self.weights))
        rng = np.random.default_rng(None if seed is None else [SEED_STREAM, seed])
        summary = self._run_study(study, rng) if callable(study) else study
        n_samples, name = len(self.weights), "the summary of a study"
        values = check_columns(
            as_float_array(summary, name),
            name,
            n_samples,
            f"return finite numbers ({n_samples},) or ({n_samples}, k), one row per sample",
        )
        has_weight = self.weights > 0  # so that every bootstrap sample has a weight
        nmb = self.net_benefit(threshold).T[has_weight]
        values, weights = values[has_weight], self.weights[has_weight]
        evpi = float(weights @ nmb.max(axis=1) - (weights @ nmb).max())

        def estimate_evsi(sample_weights: Array) -> float:
            return estimate_voi(nmb, values, sample_weights / sample_weights.sum())

        resamples = rng.multinomial(len(nmb), np.full(len(nmb), 1 / len(nmb)), size=n_resamples)
        bootstrap = [estimate_evsi(weights * counts) for counts in resamples]
        value = float(np.clip(estimate_evsi(weights), 0.0, max(evpi, 0.0)))
        return Estimate(value, float(np.std(bootstrap, ddof=1)))

    def _run_study(self, study: StudySimulator, rng: np.random.Generator) -> npt.ArrayLike:
        """Simulate a study once for each sample, with errors that name the parameters."""
        try:
            return study(self.parameters, rng)
        except Exception as error:
            message = f"study raised {type(error).__name__}: {error}"
            names = join_first(self.parameters) or "none"
            raise InputError(f"{message}; the parameters are {names}") from error


def _find_efficient_policies(effect: Array, cost: Array) -> tuple[list[int], dict[int, str]]:
    """Find the policies on the efficiency frontier by cost; others have status "ED" or "D"."""

    def compute_icer(a: int, b: int) -> float:
        return float((cost[b] - cost[a]) / (effect[b] - effect[a]))

    efficient: list[int] = []
    status: dict[int, str] = {}
    for i in np.lexsort((-effect, cost)).tolist():
        if efficient and effect[i] <= effect[efficient[-1]]:
            status[i] = "D"
            continue
        while len(efficient) > 1 and compute_icer(efficient[-1], i) < compute_icer(
            efficient[-2], efficient[-1]
        ):
            status[efficient.pop()] = "ED"
        efficient.append(i)
    return efficient, status


def read_thresholds(thresholds: Sequence[float]) -> list[float]:
    """Check thresholds and sort them in ascending order, each once."""
    try:
        values = np.unique(np.asarray(thresholds, dtype=np.float64))
    except (TypeError, ValueError):
        values = np.array([])
    if not values.size or not np.isfinite(values).all() or values[0] < 0:
        raise InputError("thresholds is not valid; give one or more finite numbers of at least 0")
    return [float(x) for x in values]
