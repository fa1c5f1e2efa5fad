"""What the log of fitted models lacks, and how often ranges over such models cover the truth."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from mmdp.arguments import PositiveInt, Read, Seed, checked
from mmdp.domains._common import generators
from mmdp.errors import InputError
from mmdp.io.labels import Ints, Names
from mmdp.io.reading import Source
from mmdp.model import MMDP, Evidence
from mmdp.policy.planner import Planner
from mmdp.posterior.counts import Counts
from mmdp.posterior.dirichlet import Share, draw
from mmdp.posterior.log import Log
from mmdp.posterior.prior import Prior, Rows
from mmdp.posterior.rewards import RewardLaw
from mmdp.solution import Solution
from mmdp.solve import evaluate

TAILS = (0.05, 0.95)


class Coverage(NamedTuple):
    """In how many of the simulated logs the range has the true return."""

    covered: int
    logs: int


@checked
def never_seen(model: MMDP) -> tuple[tuple[str, str], ...]:
    """The (state, action) pairs that the log of fitted models lacks; none of other models.

    >>> import mmdp
    >>> log = {"state": ["up", "down"], "action": ["run", "fix"], "next_state": ["up", "up"],
    ...        "reward": [1.0, 0.0]}
    >>> mmdp.posterior.never_seen(mmdp.fit(log, models=2).train)
    (('up', 'fix'), ('down', 'run'))
    """
    if model.evidence is None:
        return ()
    never = _counts(model, model.evidence).visits.reshape(model.n_states, -1) == 0
    never[list(model.evidence.prior["absorbing"])] = False
    return tuple((model.state_labels[s], model.action_labels[a]) for s, a in np.argwhere(never))


def can_simulate(model: MMDP) -> bool:
    """Whether logs like that of the models can be simulated and fitted again."""
    evidence, x = model.evidence, model.problem
    if evidence is None or model.horizon is not None or x.part is not None:
        return False
    return x.drift is None and all(value is not None for value in evidence.prior.values())


@checked
def coverage(
    model: MMDP, policy: Read[Planner | Solution], *, logs: PositiveInt = 20,
    models: PositiveInt = 100, seed: Seed = 0,
) -> Coverage:  # fmt: skip
    """Count the simulated logs from which the 90% range of returns has the true return.

    A posterior predictive check. Every log comes from a model of the posterior, and has as many
    transitions from each state and action as the log of ``model``. ``models`` are fitted to it
    with the same prior, and the range is that of the returns of the policy in nine tenths of them.
    Rewards are taken as known. What the log never shows is in no simulated log either.

    >>> import mmdp
    >>> log = {"state": [0] * 5, "action": [0, 0, 0, 1, 1], "next_state": [1, 1, 2, 1, 2],
    ...        "reward": [1.0, 1.0, 0.0, 1.0, 0.0], "terminated": [True] * 5}
    >>> for support in ("all", "seen"):
    ...     model = mmdp.fit(log, models=50, support=support, initial={0: 1.0}).train
    ...     print(mmdp.posterior.coverage(model, mmdp.solve(model, 1)))
    Coverage(covered=17, logs=20)
    Coverage(covered=13, logs=20)
    """
    if not can_simulate(model):
        raise InputError("coverage is for models of fit that stay as they are, in one process")
    refit, rng = _Refit(model), generators(seed, 1)[0]
    truth = refit.draw(refit.rows, logs, rng)
    covered = 0
    for m, value in enumerate(evaluate(policy, truth).returns.tolist()):
        rows = refit.prior.rows(refit.simulate(truth, m, rng), refit.log)
        returns = evaluate(policy, refit.draw(rows, models, rng)).returns
        low, high = np.quantile(returns, TAILS)
        rounding = 1e-9 * np.abs(returns).max()
        covered += bool(low - rounding <= value <= high + rounding)
    return Coverage(covered, logs)


class _Refit:
    """How models are drawn again: the counts of their log, the prior and the rewards."""

    def __init__(self, model: MMDP) -> None:
        assert model.evidence is not None
        self.model, self.counts = model, _counts(model, model.evidence)
        self.prior, self.log = Prior(**model.evidence.prior), _names_only(model)
        self.rows = self.prior.rows(self.counts, self.log)

    def draw(self, rows: Rows, count: int, rng: np.random.Generator) -> MMDP:
        x = self.model
        fields: dict[str, Any] = {
            "states": x.state_labels if x.labelled["state"] else None,
            "actions": x.action_labels if x.labelled["action"] else None,
            "initial": np.atleast_2d(x.initial).mean(axis=0), "discount": x.discount,
            "terminal": x.terminal.mean(axis=0),
        }  # fmt: skip
        return draw(rows, self._law(rows), self.counts, Share.of(None, count), rng, fields)

    def _law(self, rows: Rows) -> RewardLaw:
        """The mean rewards of the models."""
        x, shape = self.model.problem, (self.model.n_states, self.model.n_actions)
        per_next = self.model.pattern_rewards
        if per_next is None:
            return RewardLaw(shape, rows.still, values=np.asarray(x.r)[0].mean(axis=-1).reshape(-1))
        keys, earned = _keys(self.model), per_next[0].mean(axis=-1)
        place = np.minimum(np.searchsorted(keys, rows.keys), len(keys) - 1)
        values = np.where(keys[place] == rows.keys, earned[place], 0.0)
        return RewardLaw(shape, rows.still[rows.keys // shape[0]], by_next=True, values=values)

    def simulate(self, truth: MMDP, m: int, rng: np.random.Generator) -> Counts:
        """As many transitions from each pair as in the log, in model ``m`` of ``truth``."""
        table, visits = truth.problem.storage.table(), self.counts.visits
        p, rows = table.p[0][:, m], np.flatnonzero(visits)
        length = np.diff(table.indptr)[rows]
        # the entries of a row stand at the end of a line: multinomial gives the rest to the last
        entry = table.indptr[rows + 1][:, None] - np.arange(length.max(), 0, -1)
        inside = entry >= table.indptr[rows][:, None]
        chances = np.where(inside, p[entry], 0.0)
        counts = rng.multinomial(visits[rows], chances / chances.sum(axis=1, keepdims=True))
        keys, counts = _keys(truth)[entry[inside]], counts[inside]
        return self.counts._replace(keys=keys[counts > 0], counts=counts[counts > 0])


def _counts(model: MMDP, evidence: Evidence) -> Counts:
    rows = evidence.keys // model.n_states
    visits = np.bincount(rows, evidence.counts, model.n_states * model.n_actions)
    return Counts(
        model.n_states, model.n_actions, evidence.keys, evidence.counts, visits.astype(np.int64)
    )


def _keys(model: MMDP) -> Ints:
    table = model.problem.storage.table()
    return np.asarray(table.rows() * model.n_states + table.indices, np.int64)


def _names_only(model: MMDP) -> Log:
    """A log without rows."""
    none: Ints = np.empty(0, np.int64)
    states, actions = Names("state", model.n_states, None), Names("action", model.n_actions, None)
    return Log(none, none, none, None, None, None, None, states, actions, Source("log"))
