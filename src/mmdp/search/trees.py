"""One small tree for all models: growth, exact ascent and regrowth.

A leaf collects many times and states, so the return is not linear in its action. The gradient
G(t, s, a) = gamma^t sum_m b_{t,m}(s) q_{t,m}(s, a) ranks the changes of a tree, all cuts of a
feature at once by sums along it. Exact returns of the first few decide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mmdp.kernels.endless import Endless
from mmdp.kernels.problem import TIE, Array, Ascent, IntArray, Sweeps, Table
from mmdp.policy import Tree
from mmdp.policy.tree import Leaf, Node, Planted, Split, count_leaves
from mmdp.search.ascent import Search
from mmdp.search.charts import tilts
from mmdp.search.context import Context, Outcome
from mmdp.search.landscape import Changes, Landscape, Slope
from mmdp.search.starts import ENDS

Mask = npt.NDArray[np.bool_]
Path = tuple[bool, ...]  # the answers that lead to a node

TRIED = 24  # changes that are evaluated at a time
EACH = 2  # of these changes for one node, feature and side
STEPS = (-3, -1, 1, 3)  # by which a cut is moved
REGROWN = 6  # places that are tried for a leaf that was taken out
PASSES = 1000  # if they take a second at most, an objective climbs from every start


class Place(NamedTuple):
    """A node, the answers that lead to it, and the times and states (rows, S) for which they do."""

    path: Path
    node: Node
    region: Mask


class Change(NamedTuple):
    """Another node at the end of a path, and what it gains by the gradient."""

    gain: float
    path: Path
    node: Node


class Trees(Landscape):
    """Trees with at most ``leaves`` leaves. Their tables have a row for each time, or only one."""

    sweeps = "questions and leaves"
    complete = False

    def __init__(self, context: Context, sweeps: Sweeps = "two-way") -> None:
        super().__init__(context, sweeps)
        kind, x = context.kind, context.problem
        assert isinstance(kind, Tree)
        self.leaves, self.regrows = kind.leaves, True
        self.features = kind.features_of(context.model, context.horizon)
        self.rows = context.horizon if kind.asks_time else 1
        self.allowed: Mask = x.allowed[0]
        self.first = self.allowed.argmax(axis=1).astype(np.int32)
        self.endless = Endless.of(x, context.check_time) if kind.endless else None
        self.known: dict[bytes, Array] = {}

    # ------------------------------------------------------------ trees
    def planted(self, tree: Node) -> Planted:
        """The tree, without leaves that nothing leads to, and its table."""
        tree = self._tidy(tree, self._everywhere())
        rows = self._table(tree)
        if self.endless is not None:
            return Planted(rows[0], tree)
        return Planted(np.repeat(rows, self.context.horizon // self.rows, axis=0), tree)

    def _everywhere(self) -> Mask:
        return np.ones((self.rows, len(self.first)), dtype=bool)

    def _tidy(self, tree: Node, region: Mask) -> Node:
        if isinstance(tree, Leaf):
            return tree
        yes = self.features[tree.feature].yes(tree.cut)
        if not (region & yes).any():
            return self._tidy(tree.no, region)
        if not (region & ~yes).any():
            return self._tidy(tree.yes, region)
        parts = self._tidy(tree.yes, region & yes), self._tidy(tree.no, region & ~yes)
        return parts[0] if parts[0] == parts[1] else tree._replace(yes=parts[0], no=parts[1])

    def _table(self, tree: Node) -> IntArray:
        """(rows, S) the actions of a tree, or of a part of one, everywhere."""
        if isinstance(tree, Leaf):
            row = np.where(self.allowed[:, tree.action], np.int32(tree.action), self.first)
            return np.broadcast_to(row, (self.rows, len(row)))
        yes = self.features[tree.feature].yes(tree.cut)
        return np.where(yes, self._table(tree.yes), self._table(tree.no))

    def places(self, tree: Node, region: Mask | None = None, path: Path = ()) -> Iterator[Place]:
        """All nodes, the root first."""
        here = self._everywhere() if region is None else region
        yield Place(path, tree, here)
        if isinstance(tree, Split):
            yes = self.features[tree.feature].yes(tree.cut)
            yield from self.places(tree.yes, here & yes, (*path, True))
            yield from self.places(tree.no, here & ~yes, (*path, False))

    # ------------------------------------------------------------ values
    def returns(self, point: Planted) -> Array:
        key = point.table.tobytes()
        if key not in self.known:
            if self.known:  # otherwise there is no tree yet to fall back on
                self.context.check_time()
            exact = self.context.returns if self.endless is None else self.endless.returns
            self.known[key] = exact(point.table)
        return self.known[key]

    def gradient(self, table: Table, weights: Array) -> Array:
        """(rows, S, A) G for the mean with these weights of the models.

        An action that is not allowed counts as the one that is taken in its place.
        """
        if self.endless is not None:
            x = self.endless
            G = np.einsum("m,ms,msa->sa", weights, x.visits(table), x.q(x.values(table)))[None]
        else:
            plan = self.context.plan.but(weights=weights)
            b = plan.forward(table)
            found = plan.backward("given", policy=table, weights=b, keep=("gradient",)).gradient
            assert found is not None
            gamma = plan.problem.discount ** np.arange(len(table))
            G = gamma[:, None, None] * np.where(self.allowed, found, 0.0)
            G = G if self.rows > 1 else G.sum(axis=0, keepdims=True)
        return np.where(self.allowed, G, G[:, np.arange(len(self.first)), self.first][:, :, None])

    # ------------------------------------------------------------ steps
    def changes(self, point: Planted, slope: Slope) -> Changes:
        """The first kind of change that pays: by the gradient, nearby, or a leaf elsewhere."""
        rho, weights = self.returns(point), slope.weights()
        for kind in (self._ranked, self._near, self._regrown):
            points = (self.planted(tree) for tree in kind(point, weights))
            found = [*{x.table.tobytes(): x for x in points}.values()]
            if found:
                returns = np.array([self.returns(x) for x in found])
                chosen = (yield (returns - rho)[None])[0]
                if chosen >= 0:
                    return found[chosen], returns[chosen]
        return point, rho

    def _ranked(self, point: Planted, weights: Array) -> list[Node]:
        """What gains most by the gradient: other actions and questions; leaves if there is room."""
        room = count_leaves(point.tree) < self.leaves
        G = self._gains(point, weights)
        ranked: list[Change] = []
        for place in self.places(point.tree):
            ranked += self._actions(place, G) if isinstance(place.node, Leaf) else []
            ranked += self._questions(place, G) if isinstance(place.node, Split) else []
            ranked += self._leaves(place, G) if room else []
        return _made(point.tree, ranked, TRIED)

    def _near(self, point: Planted, weights: Array) -> Iterator[Node]:
        """Every other action of a leaf, and cuts nearby."""
        for path, node, _ in self.places(point.tree):
            if isinstance(node, Leaf):
                yield from (put(point.tree, path, Leaf(a)) for a in range(self.allowed.shape[1]))
                continue
            for cut in (node.cut + step for step in STEPS):
                if 0 <= cut < self.features[node.feature].n_cuts:
                    yield put(point.tree, path, node._replace(cut=cut))

    def _regrown(self, point: Planted, weights: Array) -> Iterator[Node]:
        """Each leaf taken out, and the best places for another."""
        for *path, last in (x.path for x in self.places(point.tree) if self.regrows and x.path):
            if isinstance(part(point.tree, (*path, last)), Leaf):
                rest = part(point.tree, (*path, not last))
                less = self.planted(put(point.tree, tuple(path), rest))
                G = self._gains(less, weights)
                ranked = [x for place in self.places(less.tree) for x in self._leaves(place, G)]
                yield from _made(less.tree, ranked, REGROWN)

    # ------------------------------------------------------------ gains by the gradient
    def _gains(self, point: Planted, weights: Array) -> Array:
        """(rows, S, A) how much more G an action has than the one that is taken."""
        G = self.gradient(point.table, weights)
        gains: Array = G - _at(G, self._table(point.tree))[:, :, None]
        return gains

    def _actions(self, place: Place, G: Array) -> Iterator[Change]:
        """Other actions of a leaf."""
        gains = G[place.region].sum(axis=0)
        yield from (Change(gain, place.path, Leaf(a)) for a, gain in enumerate(gains))

    def _questions(self, place: Place, G: Array) -> Iterator[Change]:
        """Other questions for the same parts, either way round."""
        assert isinstance(place.node, Split)
        parts = place.node.yes, place.node.no
        both = np.stack([_at(G, self._table(x)) for x in parts], axis=2)
        for f, yes, no in self._sums(both, place.region):
            for i in (0, 1):
                gains = yes[:, i] + no[:, 1 - i]
                for cut in _first(gains):
                    split = Split(f, int(cut), parts[i], parts[1 - i])
                    yield Change(gains[cut], place.path, split)

    def _leaves(self, place: Place, G: Array) -> Iterator[Change]:
        """A new leaf above the node: its action on one side, the node on the other."""
        for f, yes, no in self._sums(G, place.region):
            for gains, side in ((yes, True), (no, False)):
                for i in _first(gains):
                    cut, a = divmod(int(i), gains.shape[1])
                    parts = (Leaf(a), place.node) if side else (place.node, Leaf(a))
                    yield Change(gains[cut, a], place.path, Split(f, cut, *parts))

    def _sums(self, values: Array, region: Mask) -> Iterator[tuple[int, Array, Array]]:
        """For each feature the sums (cuts, n) of values (rows, S, n) in a region over those who say
        yes, or no, to each of its questions.
        """
        inside = np.where(region[:, :, None], values, 0.0)
        by_state, by_time = inside.sum(axis=0), inside.sum(axis=1)
        for f, feature in enumerate(self.features):
            each = by_time if feature.timed else by_state
            level = np.zeros((len(feature.levels), each.shape[1]))
            np.add.at(level, feature.codes, each)
            if feature.ordered:  # both are sums: in a difference nothing would be a rounding error
                yes, no = level.cumsum(axis=0), level[::-1].cumsum(axis=0)[::-1]
                yield f, yes[:-1], no[1:]
            else:
                others = 1 - np.eye(feature.n_cuts, len(level))
                yield f, level[: feature.n_cuts], others @ level

    # ------------------------------------------------------------ starts
    def fitted(self, table: Table, weights: Array, most: int) -> Iterator[list[Node]]:
        """Trees of a table, of 1 to ``most`` leaves, in two ways.

        The first maximise the sum of G over their leaves. The second are classification trees
        (by Gini's impurity), in which a time and state counts by what is at stake there: G of the
        best action less the second best.
        """
        G = self.gradient(table, weights)
        ordered = np.sort(G, axis=2)
        stakes = ordered[:, :, -1:] - ordered[:, :, -2:][:, :, :1]  # 0 if there is one action
        taken = np.atleast_2d(table)[: self.rows, :, None] == np.arange(G.shape[2])
        yield self._grown(G, lambda sums: sums.max(axis=-1), most)
        yield self._grown(stakes * taken, _purity, most)

    def _grown(self, W: Array, worth: Callable[[Array], Array], most: int) -> list[Node]:
        """Each tree splits a leaf of the last where that adds most to the worth of the sums (A,) of
        W (rows, S, A) over its leaves.
        """
        trees: list[Node] = [Leaf(int(W.sum(axis=(0, 1)).argmax()))]
        while len(trees) < most:
            best = Change(0.0, (), trees[-1])
            for path, node, region in self.places(trees[-1]):
                now = worth(W[region].sum(axis=0))
                for f, yes, no in self._sums(W, region) if isinstance(node, Leaf) else ():
                    gains = worth(yes) + worth(no) - now
                    cut = int(gains.argmax())
                    if gains[cut] > best.gain + TIE * abs(now):
                        ends = (Leaf(int(side[cut].argmax())) for side in (yes, no))
                        best = Change(gains[cut], path, Split(f, cut, *ends))
            trees.append(put(trees[-1], best.path, best.node))
        return trees


def _purity(sums: Array) -> Array:
    """sum_a W_a^2 / sum_a W_a over the last axis; 0 where there is no weight."""
    total = sums.sum(axis=-1)
    return np.divide((sums**2).sum(axis=-1), total, out=np.zeros_like(total), where=total > 0)


def _at(G: Array, table: IntArray) -> Array:
    """(rows, S) G at the actions of a table."""
    return np.take_along_axis(G, table[:, :, None].astype(np.int64), axis=2)[:, :, 0]


def _first(gains: Array) -> IntArray:
    """The places of the highest gains. What gains exactly nothing changes nothing."""
    order = np.argsort(np.where(gains == 0, np.inf, -gains), axis=None, kind="stable")[:EACH]
    return order[gains.reshape(-1)[order] != 0]


def _made(tree: Node, changes: list[Change], most: int) -> list[Node]:
    """The tree after each of the changes that gain most."""
    changes = [x for x in changes if x.gain != 0]
    order = np.argsort([-x.gain for x in changes], kind="stable")[:most]
    return [put(tree, changes[i].path, changes[i].node) for i in order]


def part(tree: Node, path: Path) -> Node:
    """The part of a tree to which the answers lead."""
    for yes in path:
        assert isinstance(tree, Split)
        tree = tree.yes if yes else tree.no
    return tree


def put(tree: Node, path: Path, node: Node) -> Node:
    """The tree with another part where the answers lead."""
    if not path:
        return node
    assert isinstance(tree, Split)
    if path[0]:
        return tree._replace(yes=put(tree.yes, path[1:], node))
    return tree._replace(no=put(tree.no, path[1:], node))


# ---------------------------------------------------------------------- growing
def grow(search: Search, free: Callable[[], Outcome]) -> Outcome:
    """One leaf more each time: from the last tree, and from trees of what is found ``free`` of the
    restriction. So the value never falls with the number of leaves.
    """
    landscape, context, values = search.landscape, search.context, list[float]()
    assert isinstance(landscape, Trees)

    def up(point: Planted) -> Ascent:
        return landscape.rise(
            point, context.objective, tol=search.tol, max_sweeps=search.max_sweeps,
            watch=context.record,
        )  # fmt: skip

    def worth(end: Ascent) -> float:
        return end.value

    most, landscape.leaves = landscape.leaves, 1
    best = up(landscape.planted(Leaf(0)))
    context.details["value_by_leaves"] = values
    found = free()
    weights = next(tilts(context, context.objective, found.returns_known))
    quick = context.problem.seconds(context.horizon, PASSES) < 1.0
    fits = [*landscape.fitted(found.policy, weights, most)]
    for leaves in range(1, most + 1):
        landscape.leaves, landscape.regrows = leaves, False
        starts = [best.policy, *(landscape.planted(trees[leaves - 1]) for trees in fits)]
        end = max(map(up, starts), key=worth)
        if not context.objective.linear:
            points = starts if quick else [end.policy]
            end = max((end for point in points for end in search.ends(point)), key=worth)
        landscape.regrows = True
        end = up(end.policy)
        if end.value > best.value + context.rounding(end.returns):
            best = end
        values.append(best.value)
    trace = np.unique(np.maximum.accumulate(context.trace)).tolist()
    details = {
        "leaves": count_leaves(best.policy.tree), "features": [x.name for x in landscape.features],
        "value_by_leaves": values,
    }  # fmt: skip
    return Outcome(
        best.policy, ENDS[best.end], len(trace) - 1, returns=best.returns, trace=trace,
        details=details,
    )  # fmt: skip
