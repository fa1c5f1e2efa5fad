"""What solve() and evaluate() return, and what was proven about it."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from mmdp import notebook
from mmdp.arguments import FiniteFloat, Probability, checked
from mmdp.clock import gap
from mmdp.errors import InputError
from mmdp.objective import CVaR, Function, Mean, Objective, WorstCase, as_objective, quantile
from mmdp.policy import Markov, MarkovPolicy, PolicyKind, StationaryPolicy
from mmdp.words import NOISE, at_most, at_most_percent, counted, figures, number, some

if TYPE_CHECKING:
    import pandas as pd

Array = npt.NDArray[np.float64]

PROVEN = 1e-9  # relative gap at which a policy counts as proven optimal
CLOSED = 1e-6  # relative gap of a proven optimum that counts as rounding


class Status(enum.Enum):
    """How a solve ended, and what that proves."""

    OPTIMAL = "proven optimal"
    LOCAL_OPTIMUM = "no change of the action in a single state and time improves it"
    COMPLETED = "the method ran to its end"
    ITERATION_LIMIT = "stopped at the iteration limit; the best policy so far"
    TIME_LIMIT = "stopped at the time limit; the best policy so far"
    INTERRUPTED = "interrupted; the best policy so far"


Optimum = Literal[
    "history", "markov", "stationary", "deterministic markov", "deterministic stationary", "fixed"
]
POLICIES: dict[Optimum, str] = {
    "history": "policy", "markov": "Markov policy", "stationary": "stationary policy",
    "deterministic markov": "deterministic Markov policy",
    "deterministic stationary": "deterministic stationary policy",
    "fixed": "deterministic policy with these decisions given",
}  # fmt: skip


Part = Callable[[float], str]  # what a sentence adds to an amount, such as a share


def no_part(amount: float) -> str:
    """Nothing to add."""
    return ""


def widened(freedom: float) -> float:
    """The factor by which two standard errors become a 95% interval (Student's t).

    >>> round(widened(3.0), 2), round(widened(30.0), 2), widened(1000.0)
    (1.59, 1.02, 1.0)
    """
    from scipy.special import stdtrit

    return max(float(stdtrit(freedom, 0.975)) / 2, 1.0)


def tossing_text(policy: Any, kind: PolicyKind, gain: float, part: Part = no_part) -> str:
    """Say what drawing actions earns, ``gain``, and where they are drawn."""
    if not (gain > 0 and len(policy.drawn_at)):
        return "drawing actions at random earns nothing"
    if kind.name == "stationary" and policy.horizon < math.inf:
        policy = StationaryPolicy.of_table(policy.table[0], **policy.labels)  # rows are equal
    each = " and ".join(f"{axis}s" for axis in policy.axes)
    shown = some([policy.drawn_text(place) for place in policy.drawn_at.tolist()], 3, "; ")
    count = f"{len(policy.drawn_at):,} of {policy.actions.size:,} {each}"
    return f"drawing actions at random earns {number(gain, 3)}{part(gain)}, in {count}: {shown}"


@dataclass(frozen=True)
class Bound:
    """A proven upper bound on the value of the best policy.

    ``bounds`` says which optimum: ``"history"`` bounds every policy, including those that
    learn from what they see; ``"markov"`` bounds policies of time and state; ``"stationary"``
    bounds policies of the state alone, over an infinite horizon. These hold for policies that draw
    their actions too; ``"deterministic markov"`` and ``"deterministic stationary"`` do not, nor
    does ``"fixed"``, which bounds policies with the decisions of :class:`mmdp.Fixed`.
    ``value`` is rounded up: it includes an allowance for floating-point error. ``objective`` is
    what it bounds. ``seconds`` is the time that the proof took, ``model`` the
    :meth:`mmdp.MMDP.fingerprint` of the models if it is known.

    >>> from mmdp import Bound
    >>> Bound(103.0, "oracle", "history").gap(100.0)
    0.03
    """

    value: float
    method: str
    bounds: Optimum
    details: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    model: str = ""
    objective: Objective = Mean()  # noqa: RUF009 (frozen)

    @checked
    def gap(self, value: FiniteFloat) -> float:
        """How far a policy of that value can be from the best: see :func:`gap`."""
        return gap(self.value, value)

    @property
    def of_every(self) -> float | None:
        """The least value that no Markov policy exceeds, also if it draws its actions; or None.

        If the bound itself is about fewer policies, one that was found on the way.
        """
        if self.bounds in ("markov", "history"):
            return self.value
        return min(self.details.get("bounds", {}).values(), default=None)

    @checked
    def closed(self, value: FiniteFloat, oracle: FiniteFloat) -> float:
        """(oracle - bound) / (oracle - value): the share of the wait-and-see gap it closes."""
        if oracle <= value:
            return 1.0
        return (oracle - self.value) / (oracle - value)

    def __repr__(self) -> str:
        which = f"any {POLICIES[self.bounds]}"
        return f"Bound({self.value:,.10g} for {which}; {self.method}, {self.seconds:.3g} s)"


@dataclass(frozen=True)
class Provenance:
    """Where a result came from: enough to compute it again."""

    method: str
    options: Mapping[str, Any]
    horizon: float  # the number of decisions, infinite if there is no last one
    backend: str
    seed: int | None
    version: str
    seconds: float
    objective: Objective = field(default_factory=Mean)
    policy: PolicyKind = field(default_factory=Markov)  # what a decision may depend on


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Returns of one policy on every model of a problem.

    ``returns`` (M,) and ``weights`` (M,); ``errors`` (M,) standard errors of simulated
    returns, None if they are exact; after few episodes they are larger, so that ``mean`` ± two
    ``stderr`` is a 95% interval (Student's t). Risk measures treat the models as a lottery with the
    given weights: the standard deviation is that of a population.

    >>> import numpy as np
    >>> from mmdp import Evaluation
    >>> e = Evaluation(np.array([0.0, 10.0, 20.0, 30.0]), np.full(4, 0.25))
    >>> e.mean, e.cvar(0.5), e.quantile(0.5), e.worst
    (15.0, 5.0, 10.0, 0.0)
    """

    returns: Array
    weights: Array
    errors: Array | None = None
    model_labels: tuple[str, ...] | None = None
    provenance: Provenance | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    _oracle: Callable[[], Array] | None = field(default=None, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        """For pickle: the oracle's returns in place of the models they are computed from."""
        if self._oracle is None:
            return self.__dict__
        stored = partial(np.asarray, self.oracle)
        return {**self.__dict__, "_oracle": stored}

    @property
    def mean(self) -> float:
        """Weighted mean return rho(pi)."""
        return float(self.returns @ self.weights)

    @property
    def sd(self) -> float:
        """Population standard deviation of the models' returns."""
        return float(np.sqrt(((self.returns - self.mean) ** 2) @ self.weights))

    @property
    def stderr(self) -> float:
        """Standard error of ``mean`` from simulation; 0 if returns are exact."""
        if self.errors is None:
            return 0.0
        return float(np.sqrt((self.weights**2) @ (self.errors**2)))

    @property
    def worst(self) -> float:
        """Lowest return over the models of positive weight."""
        return self.value(WorstCase())

    @property
    def best(self) -> float:
        return float(self.returns[self.weights > 0].max())

    @checked
    def lead(self, other: Evaluation) -> tuple[float, float]:
        """(d, e): the mean return is d above that of another policy on the same models, ± e.

        The differences are taken model by model; e is their standard error if the models are draws
        from what is plausible, and includes that of simulated returns. It is larger for few models,
        so that d ± 2e is a 95% interval.

        >>> import numpy as np
        >>> from mmdp import Evaluation
        >>> one, two = (Evaluation(np.array(x), np.full(2, 0.5)) for x in ([3.0, 7.0], [1.0, 3.0]))
        >>> one.lead(two)[0], round(one.lead(two)[1], 3)  # Student's t for two models
        (3.0, 6.353)
        """
        if self.weights.shape != other.weights.shape or (self.weights != other.weights).any():
            raise InputError("the two policies were evaluated on different models")
        w, d = self.weights, self.returns - other.returns
        mean, count = float(w @ d), int((w > 0).sum())
        variance = float(w**2 @ (d - mean) ** 2) * count / max(count - 1, 1)
        between = widened(max(count - 1, 1)) * math.sqrt(variance)
        return mean, math.hypot(between, self.stderr, other.stderr)

    @checked
    def quantile(self, level: Probability) -> float:
        """The smallest return x such that P(return <= x) >= level."""
        if not 0 <= level <= 1:
            raise InputError(f"a quantile level is from 0 to 1, not {level}")
        return float(quantile(self.returns, self.weights, level))

    @checked
    def cvar(self, level: float) -> float:
        """Mean return over the worst share ``level`` of the models (1: the mean)."""
        return self.value(CVaR(level))

    @checked
    def value(self, objective: str | Objective | Function) -> float:
        """The value of any objective on these models, for example ``value(CVaR(0.1))``.

        A text names one too: ``value("regret:worst")`` (see :mod:`mmdp.objective`).

        >>> import numpy as np
        >>> from mmdp import Evaluation
        >>> Evaluation(np.array([0.0, 10.0]), np.full(2, 0.5)).value("mean-cvar:0.5:0.5")
        2.5
        """
        chosen = as_objective(objective)
        rho = chosen.counted(self.returns, lambda: self.oracle)
        return float(chosen.value(rho, self.weights))

    @cached_property
    def oracle(self) -> Array:
        """(M,) return of each model's own optimal policy."""
        if self._oracle is None:
            raise InputError("regret needs the model; use mmdp.evaluate() or solve()")
        return self._oracle()

    @property
    def regret(self) -> Array:
        """(M,) what each model loses against its own optimal policy."""
        return self.oracle - self.returns

    @property
    def bayes_regret(self) -> float:
        """Weighted mean of ``regret`` (eq. regret)."""
        return float(self.regret @ self.weights)

    @property
    def max_regret(self) -> float:
        return float(self.regret[self.weights > 0].max())

    @checked
    def to_frame(self, *, regret: bool = True) -> pd.DataFrame:
        """One row per model: label, weight, return, oracle, regret."""
        import pandas as pd

        labels = self.model_labels or tuple(map(str, range(len(self.returns))))
        columns: dict[str, Any] = {
            "model": labels, "weight": self.weights, "return": self.returns,
        }  # fmt: skip
        if self.errors is not None:
            columns["stderr"] = self.errors
        if regret and self._oracle is not None:
            columns["oracle"], columns["regret"] = self.oracle, self.regret
        return pd.DataFrame(columns)

    def summary(self) -> dict[str, float]:
        """The figures that tables show."""
        figures = {
            "mean": self.mean, "sd": self.sd, "stderr": self.stderr, "worst": self.worst,
            "q10": self.quantile(0.1), "median": self.quantile(0.5), "q90": self.quantile(0.9),
            "cvar10": self.cvar(0.1),
        }  # fmt: skip
        if self._oracle is not None:
            figures["bayes_regret"], figures["max_regret"] = self.bayes_regret, self.max_regret
        return figures

    def _repr_html_(self) -> str:
        """For notebooks: the figures that take no solving."""
        shown = {
            "mean": self.mean, "sd": self.sd, "worst": self.worst, "CVaR 10%": self.cvar(0.1),
            "median": self.quantile(0.5), "best": self.best,
        }  # fmt: skip
        return notebook.facts(
            f"Evaluation on {counted(len(self.returns), 'model')}",
            zip(shown, figures(list(shown.values())), strict=True),
        )

    def __repr__(self) -> str:
        error = f" ± {2 * self.stderr:.3g}" if self.errors is not None else ""
        return (
            f"Evaluation(mean {number(self.mean, 6)}{error}, sd {number(self.sd)}, worst "
            f"{number(self.worst, 6)}, CVaR 10% {number(self.cvar(0.1), 6)}, "
            f"{len(self.returns)} models)"
        )


@dataclass(frozen=True, eq=False)
class Solution:
    """A policy with its value on the models it was computed for.

    ``value`` is that of the ``objective``; ``evaluation`` has the mean and all the rest.
    ``policy`` is None for Oracle, which has ``policies`` (T, M, S), one per model.
    ``certificate`` is what was proven about the best policy, if a proof was asked for
    (``certify=``, or a method that proves). ``iterations`` counts the method's own steps: sweeps
    of the best start, accepted gradient steps, nodes of a tree; 1 for a single pass. ``trace``
    (n,) holds the value after each improvement of the best start, the start first. If a limit
    ends the solve, both are about all starts so far.
    """

    policy: Any
    value: float
    returns: Array
    status: Status
    iterations: int
    trace: Array
    provenance: Provenance
    evaluation: Evaluation
    certificate: Bound | None = None
    policies: npt.NDArray[np.int32] | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def bound(self) -> float | None:
        """The proven upper bound; None if no proof was asked for."""
        return None if self.certificate is None else self.certificate.value

    @property
    def gap(self) -> float | None:
        """(bound - value) / |value|; None if no proof was asked for."""
        return None if self.certificate is None else self.certificate.gap(self.value)

    @property
    def outcome(self) -> str:
        """How the solve ended and what that proves, in words.

        Policies that draw their actions may be better than the best deterministic one if the
        horizon is infinite or the objective is not the mean.
        """
        if self.status is Status.OPTIMAL and self.policy is not None:
            # without a certificate it is that of the only model
            over = "history" if self.certificate is None else self.certificate.bounds
            rest = "; one that draws its actions may be" if over.startswith("determ") else ""
            return f"{self.status.value}: no {POLICIES[over]} is better{rest}"
        if self.status is Status.LOCAL_OPTIMUM:
            kind = self.provenance.policy
            single = "" if self.objective.linear else kind.single_change
            return f"no {single or kind.change} improves it"
        unproven = self.status is Status.COMPLETED and self.certificate is None
        return self.status.value + "; it makes no claim of optimality" * unproven

    @property
    def price(self) -> float | None:
        """unrestricted - value: what a restricted kind of policy costs, in units of the value.

        ``details["unrestricted"]`` is the value of the best policy found without the
        restriction. None if the policy is not restricted, or if that is not known.
        """
        free = self.details.get("unrestricted")
        return None if free is None else max(free - self.value, 0.0)

    @property
    def price_text(self) -> str:
        """The price in a sentence; empty if the policy is not restricted."""
        return self.describe_price()

    @checked
    def describe_price(self, part: Part = no_part) -> str:
        """The price in a sentence, with what ``part`` says of it, such as a share."""
        kind, price = self.provenance.policy, self.price
        if not kind.restricted or self.policy is None:
            return ""
        most = ""
        # a bound on every Markov policy holds without the restriction too
        proven = None if self.certificate is None else self.certificate.of_every
        if proven is not None:
            most = f"at most {at_most(max(proven - self.value, price or 0.0), 3)}"
        if price is None:
            return f"being {kind.being} costs {most or 'an unknown amount'}"
        some = price > NOISE * max(abs(self.details["unrestricted"]), abs(self.value))
        amount = f"{number(price, 3)}{part(price)}" if some else "nothing"
        return ", ".join(filter(None, [f"being {kind.being} costs {amount}", most]))

    @property
    def tossing_text(self) -> str:
        """What drawing actions at random earns, and where, in words; empty if none may be drawn."""
        return self.describe_tossing()

    @checked
    def describe_tossing(self, part: Part = no_part) -> str:
        """The same with what ``part`` says of the amount.

        ``details["tossing"]`` is the value less that of the best policy found that draws none.
        """
        gain, policy = self.details.get("tossing"), self.policy
        if gain is None or policy is None:
            return ""
        return tossing_text(policy, self.provenance.policy, gain, part)

    @property
    def memory_text(self) -> str:
        """Whether memory would pay, in a sentence; empty if that is not known.

        :func:`mmdp.measures.memory_gain` finds it: ``details["memory_gain"]`` is the gain if it is
        clear.
        """
        gain = self.details.get("memory_gain")
        if gain is None:
            return ""
        error = 2 * self.details["memory_gain_stderr"]
        return f"a policy that learns gains about {number(gain, 2)} ± {number(error, 2)}"

    @property
    def evpi(self) -> float:
        """Oracle's value minus this policy's: at most this much is gained by knowing the model.

        It equals the expected value of perfect information if the policy is optimal, and
        overestimates it otherwise. It does so too if the kind of policy is restricted, since
        Oracle is not: :func:`mmdp.measures.evpi` keeps to the kind.
        """
        return self.evaluation.bayes_regret

    @property
    def seconds(self) -> float:
        """All seconds of the solve; those of the proof (``certificate.seconds``) are part of it."""
        return self.provenance.seconds

    @property
    def method(self) -> str:
        return self.provenance.method

    @property
    def objective(self) -> Objective:
        """What was maximised over the models."""
        return self.provenance.objective

    @property
    def title(self) -> str:
        """The method, the horizon, and the objective and kind of policy if not the usual ones."""
        source = self.provenance
        parts = [f"{source.method}, horizon {source.horizon}"]
        if not source.objective.linear:
            parts.append(source.objective.name)
        if source.policy.name not in ("markov", "belief"):
            parts.append(source.policy.name)
        return ", ".join(parts)

    def to_frame(self) -> pd.DataFrame:
        """The policy as a tidy table (see :meth:`MarkovPolicy.to_frame`)."""
        if self.policy is None:
            raise InputError(f"{self.method} has no single policy to tabulate")
        frame: pd.DataFrame = self.policy.to_frame()
        return frame

    @property
    def markov(self) -> MarkovPolicy | None:
        """The policy as a table of time and state, also of a tree; None if it is none."""
        return None if self.policy is None else self.policy.markov

    def _repr_html_(self) -> str:
        """For notebooks: what __repr__ says, and a map of the policy."""
        _, *lines = repr(self).splitlines()
        rows = [(name.strip(), rest) for name, rest in ((x[:14], x[14:]) for x in lines)]
        drawn = "" if self.policy is None else self.policy._repr_html_()
        return notebook.facts(f"Solution: {self.title}", rows) + drawn

    def __repr__(self) -> str:
        value, most = figures([self.value, self.bound], up=[1])
        lines = [
            f"Solution({self.title})",
            f"  value       {value}",
        ]
        proof, found = "", self.evaluation
        over = {"sd": found.sd, "worst": found.worst, "CVaR 10%": found.cvar(0.1)}
        if not self.objective.linear:
            over = {"mean": found.mean, **over}
        spread = (f"{name} {number(x, 6)}" for name, x in over.items())
        if self.certificate is not None and self.gap is not None:
            closed = self.status is Status.OPTIMAL and self.gap <= CLOSED
            gap = "0%" if closed else at_most_percent(self.gap)
            lines.append(f"  at most     {most} (gap {gap})")
            proof = f" (proof {self.certificate.seconds:.3g} s)"
        if self.price_text:
            lines.append(f"  price       {self.price_text}")
        if self.tossing_text:
            lines.append(f"  drawing     {self.tossing_text}")
        if self.memory_text:
            lines.append(f"  memory      {self.memory_text}: try policy=mmdp.Memory(nodes=3)")
        lines += [
            f"  over models {', '.join(spread)}",
            f"  status      {self.status.name}: {self.outcome}",
            f"  iterations  {self.iterations}, {self.seconds:.3g} s{proof}, "
            f"{self.provenance.backend}",
        ]
        return "\n".join(lines).replace("−", "-")
