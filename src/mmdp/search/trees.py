"""One small tree for all models: growth, exact ascent and regrowth.

A leaf collects many times and states, so the return is not linear in its action. The gradient
G(t, s, a) = gamma^t sum_m b_{t,m}(s) q_{t,m}(s, a) ranks the changes of a tree, all cuts of a
feature at once by sums along it. Exact returns of the first few decide. Some rules gain only by two
questions at once ("on and full, or off and empty"), so a leaf is also split in three or four.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mmdp.kernels.problem import TIE, Array, Ascent, IntArray, Sweeps, Table
from mmdp.policy import Tree
from mmdp.policy.tree import Feature, Leaf, Node, Planted, Split, count_leaves
from mmdp.search.ascent import Risen, Search
from mmdp.search.charts import tilts
from mmdp.search.context import Context, Outcome
from mmdp.search.landscape import Changes, Landscape, Slope
from mmdp.search.starts import ENDS

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Path = tuple[bool, ...]  # the answers that lead to a node
Worth = Callable[[Array], Array]  # of sums (..., A) over the parts of a tree

TRIED = 24  # changes that are evaluated at a time
EACH = 2  # of these changes for one node, feature and side
STEPS = (-3, -1, 1, 3)  # by which a cut is moved
REGROWN = 6  # places that are tried for a leaf that was taken out
AHEAD = 256  # questions of all features together that are asked two at a time
KEPT = 2**26  # bytes of tables, and of gradients, that are kept
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


class Few(NamedTuple):
    """Some of the questions about a feature: its cuts (k,), the bin of each of its values, and
    (2, k, bins) which bins answer yes or no.
    """

    cuts: Ints
    bins: Ints
    sides: Array

    @classmethod
    def of(cls, feature: Feature, most: int) -> Few:
        cuts = np.unique(np.linspace(0, feature.n_cuts - 1, min(most, feature.n_cuts)).astype(int))
        bins = np.searchsorted(cuts, feature.codes)  # of values above the last cut: one more
        if not feature.ordered:
            bins[np.append(cuts, -1)[bins] != feature.codes] = len(cuts)
        cut, bin_ = np.ogrid[: len(cuts), : len(cuts) + 1]
        yes = bin_ <= cut if feature.ordered else bin_ == cut
        return cls(cuts, bins, np.stack([yes, ~yes]).astype(float))


class Trees(Landscape):
    """Trees with at most ``leaves`` leaves. Their tables have a row for each time, or only one."""

    sweeps = "questions and leaves"
    complete = False

    def __init__(self, context: Context, sweeps: Sweeps = "two-way") -> None:
        super().__init__(context, sweeps)
        kind, x = context.kind, context.problem
        assert isinstance(kind, Tree)
        self.kinds = 3  # of changes: see below
        self.features = kind.features_of(context.model, context.horizon)
        self.few = [Few.of(f, AHEAD // len(self.features)) for f in self.features]
        self.rows = context.horizon if kind.asks_time else 1
        cells = min(math.prod(len(f.levels) for f in self.features), self.rows * x.n_states)
        self.leaves = min(kind.leaves, cells)  # no tree has more
        self.allowed: Mask = x.allowed[0]
        self.first = self.allowed.argmax(axis=1).astype(np.int32)
        self.actions = [  # (1, S) what a leaf does
            np.where(self.allowed[:, a], np.int32(a), self.first)[None]
            for a in range(x.n_actions)
        ]  # fmt: skip
        self.endless = context.endless if kind.endless else None
        self.known: dict[bytes, Array] = {}
        size = 4 * context.horizon * self.allowed.shape[0]
        self.planted = lru_cache(max(8, KEPT // size))(self._planted)
        self.gradient = lru_cache(max(8, KEPT // (2 * size * x.n_actions)))(self._gradient)

    # ------------------------------------------------------------ trees
    def _planted(self, tree: Node) -> Planted:
        """The tree with its table."""
        rows = np.broadcast_to(self._table(tree), (self.rows, len(self.first)))
        if self.endless is not None:
            return Planted(np.ascontiguousarray(rows[0]), tree)
        return Planted(np.repeat(rows, self.context.horizon // self.rows, axis=0), tree)

    def tidy(self, tree: Node, region: Mask | None = None) -> Node:
        """The tree without leaves that nothing leads to."""
        if isinstance(tree, Leaf):
            return tree
        here = self._everywhere() if region is None else region
        yes = self.features[tree.feature].yes(tree.cut)
        if not (here & yes).any():
            return self.tidy(tree.no, here)
        if not (here & ~yes).any():
            return self.tidy(tree.yes, here)
        parts = self.tidy(tree.yes, here & yes), self.tidy(tree.no, here & ~yes)
        return parts[0] if parts[0] == parts[1] else tree._replace(yes=parts[0], no=parts[1])

    def _everywhere(self) -> Mask:
        return np.ones((self.rows, len(self.first)), dtype=bool)

    def _table(self, tree: Node) -> IntArray:
        """The actions of a tree, or of a part of one, everywhere: it broadcasts to (rows, S)."""
        if isinstance(tree, Leaf):
            return self.actions[tree.action]
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
        key = hashlib.blake2b(point.table.data).digest()
        if key not in self.known:
            self.context.check_time()
            exact = self.context.returns if self.endless is None else self.endless.returns
            self.known[key] = exact(point.table)
        return self.known[key]

    def slope(self, table: Table, weights: Array) -> Array:
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
            gamma = plan.problem.discount ** np.arange(len(table))
            G = gamma[:, None, None] * np.where(self.allowed, found, 0.0)
            G = G if self.rows > 1 else G.sum(axis=0, keepdims=True)
        return np.where(self.allowed, G, G[:, np.arange(len(self.first)), self.first][:, :, None])

    def _gradient(self, tree: Node, weights: bytes) -> Array:
        """(rows, S, A) how much more G an action has than the one that the tree takes."""
        G = self.slope(self.planted(tree).table, np.frombuffer(weights))
        gains: Array = G - _at(G, self._whole(tree))[:, :, None]
        return gains

    def _whole(self, tree: Node) -> IntArray:
        return np.broadcast_to(self._table(tree), (self.rows, len(self.first)))

    # ------------------------------------------------------------ steps
    def changes(self, point: Planted, slope: Slope) -> Changes:
        """The first kind of change that pays: by the gradient, nearby, or a leaf elsewhere."""
        rho, weights = self.returns(point), slope.weights().tobytes()
        for kind in (self._ranked, self._near, self._regrown)[: self.kinds]:
            points = map(self.planted, dict.fromkeys(kind(point.tree, weights)))
            found = [*{x.table.tobytes(): x for x in points}.values()]
            if found:
                returns = np.array([self.returns(x) for x in found])
                chosen = (yield (returns - rho)[None])[0]
                if chosen >= 0:
                    return self.planted(self.tidy(found[chosen].tree)), returns[chosen]
        return point, rho

    def _ranked(self, tree: Node, weights: bytes) -> list[Node]:
        """What gains most by the gradient: other actions and questions; leaves if there is room."""
        room = self.leaves - count_leaves(tree)
        G = self.gradient(tree, weights)
        ranked: list[Change] = []
        for place in self.places(tree):
            ranked += self._leaves(place, G) if room else []
            if isinstance(place.node, Split):
                ranked += self._questions(place, G)
            else:
                ranked += self._actions(place, G)
                ranked += self._deeper(place, G, _most, room) if room > 1 else []
        return _made(tree, ranked, TRIED)

    def _near(self, tree: Node, weights: bytes) -> Iterator[Node]:
        """Every other action of a leaf, and cuts nearby."""
        for path, node, _ in self.places(tree):
            if isinstance(node, Leaf):
                yield from (put(tree, path, Leaf(a)) for a in range(len(self.actions)))
                continue
            for cut in (node.cut + step for step in STEPS):
                if 0 <= cut < self.features[node.feature].n_cuts:
                    yield put(tree, path, node._replace(cut=cut))

    def _regrown(self, tree: Node, weights: bytes) -> Iterator[Node]:
        """Each leaf taken out, and the best places for another."""
        for *path, last in (x.path for x in self.places(tree) if x.path):
            if isinstance(part(tree, (*path, last)), Leaf):
                rest = part(tree, (*path, not last))
                less = self.tidy(put(tree, tuple(path), rest))
                G = self.gradient(less, weights)
                ranked = [x for place in self.places(less) for x in self._leaves(place, G)]
                yield from _made(less, ranked, REGROWN)

    # ------------------------------------------------------------ gains by the gradient
    def _actions(self, place: Place, G: Array) -> Iterator[Change]:
        """Other actions of a leaf."""
        gains = G[place.region].sum(axis=0)
        yield from (Change(gain, place.path, Leaf(a)) for a, gain in enumerate(gains))

    def _questions(self, place: Place, G: Array) -> Iterator[Change]:
        """Other questions for the same parts, either way round."""
        assert isinstance(place.node, Split)
        parts = place.node.yes, place.node.no
        both = np.stack([_at(G, self._whole(x)) for x in parts], axis=2)
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

    # ------------------------------------------------------------ two questions at once
    def _deeper(self, place: Place, W: Array, worth: Worth, room: int) -> Iterator[Change]:
        """The leaf split in three, or in four if there is room, where that adds most to the worth
        of the sums (A,) of W (rows, S, A).
        """
        now = worth(W[place.region].sum(axis=0))
        for f, few in enumerate(self.few):
            alone, pair = None, np.full(few.sides.shape[:2], -np.inf)
            how = np.zeros((*pair.shape, 2), int)  # the second question of each side
            for g, sums in self._crossed(f, W, place.region):
                each = worth(sums)  # (2, k, 2, l)
                alone = worth(sums.sum(axis=2)[:, :, 0]) if alone is None else alone
                both = each.sum(axis=2)
                better = both.max(axis=2) > pair + TIE * abs(now)
                pair[better] = both.max(axis=2)[better]
                at = self.few[g].cuts[both.argmax(axis=2)]
                how[better] = np.stack([np.full_like(at, g), at], axis=2)[better]
            assert alone is not None
            for yes, no in ((True, False), (False, True), (True, True))[: 3 if room > 2 else 2]:
                gains = (pair if yes else alone)[0] + (pair if no else alone)[1] - now
                for i in _first(gains):
                    asked = [[*how[0, i]] if yes else None, [*how[1, i]] if no else None]
                    split = self._ended(W, place.region, [f, few.cuts[i]], asked)
                    yield Change(float(gains[i]), place.path, split)

    def _crossed(self, f: int, W: Array, region: Mask) -> Iterator[tuple[int, Array]]:
        """For each feature g the sums (2, k, 2, l, A) of W in a region over those who say yes, or
        no, to some questions about f and to some about g.
        """
        inside = np.where(region[:, :, None], W, 0.0)
        first, timed = self.few[f], self.features[f].timed
        for g, other in enumerate(self.few):
            H = np.zeros((first.sides.shape[2], other.sides.shape[2], W.shape[2]))
            if timed == self.features[g].timed:
                np.add.at(H, (first.bins, other.bins), inside.sum(axis=1 if timed else 0))
            else:
                rows, columns = (first, other) if timed else (other, first)
                cells = H if timed else H.swapaxes(0, 1)
                np.add.at(cells, (rows.bins[:, None], columns.bins[None]), inside)
            across = np.tensordot(first.sides, H, 1)  # (2, k, bins of g, A)
            yield g, np.einsum("ikba,jlb->ikjla", across, other.sides, optimize=True)

    def _ended(
        self, W: Array, region: Mask, question: list[int], after: list[list[int] | None]
    ) -> Split:
        """A question, and one after it for those who say yes or no; each leaf does its best."""
        f, cut = map(int, question)
        yes, ends = self.features[f].yes(cut), list[Node]()
        for here, then in zip((region & yes, region & ~yes), after, strict=True):
            best = Leaf(int(W[here].sum(axis=0).argmax()))
            ends.append(best if then is None else self._ended(W, here, then, [None, None]))
        return Split(f, cut, *ends)

    # ------------------------------------------------------------ starts
    def fitted(self, table: Table, weights: Array, most: int) -> Iterator[list[Node]]:
        """Trees of a table, of 1 to ``most`` leaves, in two ways.

        The first maximise the sum of G over their leaves. The second are classification trees
        (by Gini's impurity), in which a time and state counts by what is at stake there: G of the
        best action less the second best.
        """
        G = self.slope(table, weights)
        ordered = np.sort(G, axis=2)
        stakes = ordered[:, :, -1:] - ordered[:, :, -2:][:, :, :1]  # 0 if there is one action
        taken = np.atleast_2d(table)[: self.rows, :, None] == np.arange(G.shape[2])
        yield self._grown(G, _most, most)
        yield self._grown(stakes * taken, _purity, most)

    def _grown(self, W: Array, worth: Worth, most: int) -> list[Node]:
        """Each tree splits a leaf of one before it in two, three or four, so that the worth of the
        sums (A,) of W (rows, S, A) over its leaves is the most.
        """
        total, seen = W.sum(axis=(0, 1)), dict[bytes, list[Change]]()
        trees: list[Node] = [Leaf(int(total.argmax()))]
        worths, offers = [float(worth(total))], list[list[Change]]()
        while len(trees) < most:
            offers.append([])
            for place in self.places(trees[-1]):
                if isinstance(place.node, Leaf):
                    key = place.region.tobytes()
                    seen[key] = seen.get(key) or [*self._splits(place, W, worth)]
                    offers[-1] += [x._replace(path=place.path) for x in seen[key]]
            best, tree = worths[-1], trees[-1]
            for more, changes in enumerate(reversed(offers[-3:]), 1):
                for x in changes:
                    value = worths[-more] + x.gain
                    if count_leaves(x.node) == more + 1 and value > best + TIE * abs(best):
                        best, tree = value, put(trees[-more], x.path, x.node)
            trees.append(tree)
            worths.append(best)
        return trees

    def _splits(self, place: Place, W: Array, worth: Worth) -> Iterator[Change]:
        """The leaf split in two by the best question about each feature, in three, and in four."""
        now = worth(W[place.region].sum(axis=0))
        for f, yes, no in self._sums(W, place.region):
            gains = worth(yes) + worth(no) - now
            cut = int(gains.argmax())
            split = self._ended(W, place.region, [f, cut], [None, None])
            yield Change(float(gains[cut]), place.path, split)
        yield from self._deeper(place, W, worth, 3)


def _most(sums: Array) -> Array:
    found: Array = sums.max(axis=-1)
    return found


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
    """One leaf more each time: from the last tree and the one before it, from trees of what is
    found ``free`` of the restriction, and from one that was given. So the value never falls with
    the number of leaves.
    """
    landscape, context = search.landscape, search.context
    assert isinstance(landscape, Trees)
    most, landscape.leaves, known = landscape.leaves, 1, context.best_policy
    given: Any = search.init
    if known is None and asked_by(given) == asked_by(landscape):
        known = context.kind.table_of(given, context.model)
    best = _up(search, landscape.planted(Leaf(0)))
    grown = list[Ascent]()
    details: dict[str, list[Any]] = {"value_by_leaves": [], "seconds_by_leaves": [], "grown": []}
    context.details |= details
    found = free()
    weights = next(tilts(context, context.objective, found.returns_known))
    fits = [*landscape.fitted(found.policy, weights, most)]
    for leaves in range(1, most + 1):
        landscape.leaves, started = leaves, context.time.seconds
        trees = [x.policy.tree for x in (best, *grown[-2:-1])] + [x[leaves - 1] for x in fits]
        if known is not None and count_leaves(known.tree) <= leaves:  # of an earlier solve
            trees.append(known.tree)
        starts = [landscape.planted(x) for x in dict.fromkeys(map(landscape.tidy, trees))]
        end = _best_end(search, starts)
        if end.value > best.value + context.rounding(end.returns):
            best = end
        grown.append(best)
        details["value_by_leaves"].append(best.value)
        details["seconds_by_leaves"].append(context.time.seconds - started)
        details["grown"].append(context.kind.policy_of(context.model, best.policy))
    trace = np.unique(np.maximum.accumulate(context.trace)).tolist()
    names = [x.name for x in landscape.features]
    return Outcome(
        best.policy, ENDS[best.end], len(trace) - 1, returns=best.returns, trace=trace,
        details={"leaves": count_leaves(best.policy.tree), "features": names, **details},
    )  # fmt: skip


def asked_by(of: Any) -> list[tuple[str, Any]] | None:
    """What distinguishes features: trees over the same ones can be compared."""
    return [(x.name, x.levels) for x in of.features] if hasattr(of, "features") else None


def _best_end(search: Search, starts: list[Planted]) -> Ascent:
    """The best end of the starts: all climb by the gradient, and the best two thoroughly."""
    landscape, context = search.landscape, search.context
    assert isinstance(landscape, Trees)
    by_value = attrgetter("value")
    linear, quick = context.objective.linear, context.problem.seconds(context.horizon, PASSES) < 1.0
    landscape.kinds = 1 if linear else 2  # the gradient sees no kinks
    ends = [_up(search, x) for x in starts]
    if not linear:
        risen, points = Risen(), starts if quick else [max(ends, key=by_value).policy]
        ends = [end for x in points for end in search.ends(x, risen)]
    landscape.kinds = 3
    best = {x.policy.tree: x for x in sorted(ends, key=by_value)}  # the best are last
    return max((_up(search, x.policy) for x in [*best.values()][-2:]), key=by_value)


def _up(search: Search, point: Planted) -> Ascent:
    context = search.context
    return search.landscape.rise(
        point, context.objective, tol=search.tol, max_sweeps=search.max_sweeps,
        watch=context.record,
    )  # fmt: skip
