"""Search for decision-tree policies: growth, exact ascent and regrowth.

A leaf collects many times and states, so the return is not linear in its action. The gradient
G(t, s, a) = gamma^t sum_m b_{t,m}(s) q_{t,m}(s, a) ranks the changes of a tree, all cuts of a
feature at once by sums along it. Exact returns of the first few decide. Some trees gain only by two
splits at once ("on and full, or off and empty"), so a leaf is also split into three or four.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from itertools import chain, islice
from operator import attrgetter, itemgetter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mmdp.core.evaluate import take_actions
from mmdp.core.kernels.problem import TIE_RTOL, AscentResult, PolicyTable, SweepType
from mmdp.core.policies import Tree
from mmdp.core.policies.tree import DecisionNode, Leaf, Split, TreeWithTable, count_leaves
from mmdp.core.search.context import Candidate, Details, MethodResult, SolveContext
from mmdp.core.search.controllers import iter_risk_weights
from mmdp.core.search.multistart import END_STATUS, AscentCache, MultiStart
from mmdp.core.search.rows import make_membership
from mmdp.core.search.space import AscentDirection, ChangeGenerator, SearchSpace
from mmdp.core.shapes import Array, IntArray, Mask

BranchPath = tuple[bool, ...]  # the answers that lead to a node
LeafScore = Callable[[Array], Array]  # of sums (..., A) over the parts of a tree
RankedTree = tuple[float, DecisionNode]  # a changed tree, with its estimated gain by the gradient

MAX_EVALUATED = 24  # changes that are evaluated at a time
MAX_PER_FEATURE = 2  # of these changes for one node, feature and side
MAX_REGROWN = 6  # places that are tried for a leaf that was taken out
MAX_PAIRED_SPLITS = 256  # splits of all features together that are tried before a second one
QUICK_PASSES = 1000  # if they take a second at most, an objective ascends from every initial tree


class Region(NamedTuple):
    """Times and states that the conditions of a path select: all pairs of one and the other."""

    times: Mask  # (rows,)
    states: Mask  # (S,)


class CellSums(NamedTuple):
    """Sums of values of times and states over one or the other; 0 outside of a region."""

    by_time: Array  # (rows, n)
    by_state: Array  # (S, n)

    @property
    def total(self) -> Array:
        """The sum over both, (n,)."""
        return self.by_time.sum(axis=0)


class TreeNode(NamedTuple):
    """Tree node with the branches that lead to it and its region."""

    path: BranchPath
    node: DecisionNode
    region: Region


class TreeSpace(SearchSpace):
    """Search space of trees with at most ``max_leaves`` leaves; tables have T rows, or one."""

    sweep_type = "questions and leaves"
    is_exhaustive = False

    def __init__(self, context: SolveContext, sweep_type: SweepType = "two-way") -> None:
        super().__init__(context, sweep_type)
        policy_class, x = context.policy_class, context.problem
        assert isinstance(policy_class, Tree)
        self.features = policy_class.make_features(context.model, context.horizon)
        self.memberships = [make_membership(feature.codes) for feature in self.features]
        self.n_rows = context.horizon if policy_class.has_time_feature else 1
        n_levels = math.prod(len(feature.levels) for feature in self.features)
        self.max_leaves = min(policy_class.max_leaves, n_levels, self.n_rows * x.n_states)
        self.full_region = Region(np.ones(self.n_rows, bool), np.ones(x.n_states, bool))
        allowed = x.allowed[0]  # (S, A) what a leaf does: its action, or the first that is allowed
        actions = np.where(allowed, np.arange(x.n_actions), allowed.argmax(axis=1)[:, None])
        self.leaf_actions = actions.astype(np.int32)
        self.returns_cache: dict[bytes, Array] = {}
        self.changes_cache: dict[tuple[DecisionNode, bytes], list[DecisionNode]] = {}

    # ------------------------------------------------------------ trees
    def add_table(self, tree: DecisionNode) -> TreeWithTable:
        """Return the tree with the table of its actions."""
        rows = self._compute_rows(tree)
        if self.context.is_infinite_horizon:
            return TreeWithTable(rows[0], tree)
        return TreeWithTable(np.repeat(rows, self.context.horizon // self.n_rows, axis=0), tree)

    def _compute_rows(self, tree: DecisionNode) -> IntArray:
        """Compute the actions of a (sub)tree everywhere, (rows, S)."""

        def find_leaf(node: DecisionNode) -> npt.ArrayLike:
            """Return the action of the leaf, in a shape that broadcasts to (rows, S)."""
            if isinstance(node, Leaf):
                return node.action
            is_true = self.features[node.feature].evaluate_split(node.threshold_id)
            return np.where(is_true, find_leaf(node.if_true), find_leaf(node.if_false))

        n_states = len(self.leaf_actions)
        leaves = np.broadcast_to(np.asarray(find_leaf(tree)), (self.n_rows, n_states))
        return self.leaf_actions[np.arange(n_states), leaves]

    def _split_region(self, split: Split, region: Region) -> tuple[Region, Region]:
        """Return the parts of a region where the answer is yes and no."""
        feature = self.features[split.feature]
        is_true = feature.evaluate_split(split.threshold_id).reshape(-1)
        true_part, false_part = (
            region._replace(times=region.times & mask)
            if feature.is_time
            else region._replace(states=region.states & mask)
            for mask in (is_true, ~is_true)
        )
        return true_part, false_part

    def prune(self, tree: DecisionNode, region: Region | None = None) -> DecisionNode:
        """Remove leaves that no time and state reaches, and splits with equal subtrees."""
        if isinstance(tree, Leaf):
            return tree
        regions = self._split_region(tree, region or self.full_region)
        branches = [
            self.prune(branch, part)
            for branch, part in zip((tree.if_true, tree.if_false), regions, strict=True)
            if part.times.any() and part.states.any()
        ]
        if len({*branches}) == 1:
            return branches[0]
        return tree._replace(if_true=branches[0], if_false=branches[1])

    def iter_nodes(
        self, tree: DecisionNode, region: Region | None = None, path: BranchPath = ()
    ) -> Iterator[TreeNode]:
        """Iterate over all nodes, the root first."""
        region = region or self.full_region
        yield TreeNode(path, tree, region)
        if isinstance(tree, Split):
            true_part, false_part = self._split_region(tree, region)
            yield from self.iter_nodes(tree.if_true, true_part, (*path, True))
            yield from self.iter_nodes(tree.if_false, false_part, (*path, False))

    # ------------------------------------------------------------ values
    def compute_returns(self, candidate: TreeWithTable) -> Array:
        """Compute the exact return of a tree on every model, (M,), with a cache by table."""
        key = hashlib.blake2b(candidate.table.data).digest()
        if key not in self.returns_cache:
            self.context.check_time()
            self.returns_cache[key] = self.evaluator.compute_returns(candidate.table)
        return self.returns_cache[key]

    def compute_gradient(self, table: PolicyTable, weights: Array) -> Array:
        """Compute the gradient G of the mean with these model weights, (rows, S, A).

        An action that is not allowed counts as the one that is taken in its place.
        """
        gradient = self.evaluator.compute_gradient(table, weights)
        G = gradient.discounted.reshape(self.n_rows, *self.leaf_actions.shape)
        return np.take_along_axis(G, self.leaf_actions[None], axis=2)

    # ------------------------------------------------------------ steps
    def iter_changes(self, candidate: TreeWithTable, direction: AscentDirection) -> ChangeGenerator:
        """Yield the gains of trees changed by the gradient, then with a regrown leaf."""
        rho, weights = self.compute_returns(candidate), direction.risk_weights()
        for make_trees in (self._rank_changes, self._iter_regrown):
            candidates = map(self.add_table, dict.fromkeys(make_trees(candidate.tree, weights)))
            trials = [*{trial.table.tobytes(): trial for trial in candidates}.values()]
            if trials:
                returns = np.array([self.compute_returns(trial) for trial in trials])
                choice = (yield (returns - rho)[None])[0]
                if choice >= 0:
                    return self.add_table(self.prune(trials[choice].tree)), returns[choice]
        return candidate, rho

    def _rank_changes(self, tree: DecisionNode, weights: Array) -> list[DecisionNode]:
        """Return the trees with largest estimated gain: other actions, splits and added leaves."""
        changes = self._find_changes(tree, weights)
        return [x for x in changes if count_leaves(x) <= self.max_leaves][:MAX_EVALUATED]

    def _iter_regrown(self, tree: DecisionNode, weights: Array) -> Iterator[DecisionNode]:
        """Iterate over trees with one leaf removed and another one added."""
        nodes = {x.path: x.node for x in self.iter_nodes(tree)}
        for path, node in nodes.items():
            if path and isinstance(node, Leaf):
                sibling = nodes[*path[:-1], not path[-1]]
                pruned = self.prune(replace_subtree(tree, path[:-1], sibling))
                changes = self._find_changes(pruned, weights)
                regrown = (x for x in changes if count_leaves(x) > count_leaves(pruned))
                yield from islice(regrown, MAX_REGROWN)

    # ------------------------------------------------------------ gains by the gradient
    def _find_changes(self, tree: DecisionNode, weights: Array) -> list[DecisionNode]:
        """Return changed trees, those with largest estimated gains first, with a cache."""
        key = tree, weights.tobytes()
        if key not in self.changes_cache:
            G = self.compute_gradient(self.add_table(tree).table, weights)
            G = G - take_actions(G[..., None], self._compute_rows(tree))
            changes = list[RankedTree]()
            for path, node, region in self.iter_nodes(tree):
                sums = _sum_cells(G, region)
                new_nodes = chain(
                    self._iter_added_leaves(node, sums),
                    self._iter_replacements(node, G, region, sums),
                )
                changes += [(gain, replace_subtree(tree, path, x)) for gain, x in new_nodes]
            changes.sort(key=itemgetter(0), reverse=True)
            self.changes_cache[key] = [x for _, x in changes]
        return self.changes_cache[key]

    def _iter_added_leaves(self, node: DecisionNode, sums: CellSums) -> Iterator[RankedTree]:
        """Iterate over splits that put a new leaf beside the node."""
        for f, *side_sums in self._iter_side_sums(sums):
            for gains, is_true_side in zip(side_sums, (True, False), strict=True):
                for i in _find_top_gains(gains):
                    threshold_id, a = divmod(int(i), gains.shape[1])
                    branches = (Leaf(a), node) if is_true_side else (node, Leaf(a))
                    yield gains[threshold_id, a], Split(f, threshold_id, *branches)

    def _iter_replacements(
        self, node: DecisionNode, G: Array, region: Region, sums: CellSums
    ) -> Iterator[RankedTree]:
        """Iterate over other actions of a leaf; of a split, over others for its subtrees."""
        if isinstance(node, Leaf):
            for a, gain in enumerate(sums.total):
                if gain != 0:
                    yield gain, Leaf(a)
            return
        branches = node.if_true, node.if_false
        branch_gains = [take_actions(G[..., None], self._compute_rows(x)) for x in branches]
        branch_sums = _sum_cells(np.concatenate(branch_gains, axis=2), region)
        for f, true_sums, false_sums in self._iter_side_sums(branch_sums):
            for i in (0, 1):  # either order of the subtrees
                gains = true_sums[:, i] + false_sums[:, 1 - i]
                for threshold_id in _find_top_gains(gains):
                    split = Split(f, int(threshold_id), branches[i], branches[1 - i])
                    yield gains[threshold_id], split

    def _iter_side_sums(self, sums: CellSums) -> Iterator[tuple[int, Array, Array]]:
        """Iterate over features with the sums (thresholds, n) of values on each side of a split."""
        for f, feature in enumerate(self.features):
            self.context.check_time()
            yield f, *self._sum_sides(f, sums.by_time if feature.is_time else sums.by_state)

    def _sum_sides(self, f: int, values: Array) -> tuple[Array, Array]:
        """Sum values (rows or S, ...) where each split of a feature is true, and where false."""
        feature, membership = self.features[f], self.memberships[f]
        level_sums = (membership @ values.reshape(len(values), -1)).reshape(-1, *values.shape[1:])
        if feature.is_ordered:  # both are sums: in a difference nothing would be a rounding error
            false_sums = level_sums[::-1].cumsum(axis=0)[::-1]
            return level_sums.cumsum(axis=0)[:-1], false_sums[1:]
        is_other_level = 1 - np.eye(feature.n_thresholds, len(level_sums))
        return level_sums[: feature.n_thresholds], np.tensordot(is_other_level, level_sums, 1)

    # ------------------------------------------------------------ initial trees
    def iter_fitted_trees(
        self, table: PolicyTable, weights: Array, max_leaves: int
    ) -> Iterator[list[DecisionNode]]:
        """Fit trees of 1 to ``max_leaves`` leaves to a table, by G and by Gini impurity.

        The first maximise the sum of G over their leaves. The second are classification trees
        (by Gini's impurity), in which a time and state counts by what is at stake there: G of the
        best action less the second best.
        """
        G = self.compute_gradient(table, weights)
        sorted_G = np.sort(G, axis=2)
        importance = sorted_G[:, :, -1:] - sorted_G[:, :, -2:][:, :, :1]  # 0 if there is one action
        is_taken = np.atleast_2d(table)[: self.n_rows, :, None] == np.arange(G.shape[2])
        yield self._grow_trees(G, _compute_max_score, max_leaves)
        yield self._grow_trees(importance * is_taken, _compute_purity, max_leaves)

    def _grow_trees(self, W: Array, score: LeafScore, max_leaves: int) -> list[DecisionNode]:
        """Grow trees greedily by splitting leaves of earlier ones, to maximize the score of W."""
        total, cache = W.sum(axis=(0, 1)), dict[tuple[bytes, bytes], list[RankedTree]]()
        trees: list[DecisionNode] = [Leaf(int(total.argmax()))]
        scores = [float(score(total))]
        while len(trees) < max_leaves:
            best_score, best_tree = scores[-1], trees[-1]
            for n_added in range(1, min(3, len(trees)) + 1):
                for path, node, region in self.iter_nodes(trees[-n_added]):
                    if isinstance(node, Split):
                        continue
                    key = region.times.tobytes(), region.states.tobytes()
                    cache[key] = cache.get(key) or [*self._iter_splits(W, region, score)]
                    for gain, split in cache[key]:
                        value = scores[-n_added] + gain
                        min_value = best_score + TIE_RTOL * abs(best_score)
                        if value > min_value and count_leaves(split) == n_added + 1:
                            best_score = value
                            best_tree = replace_subtree(trees[-n_added], path, split)
            trees.append(best_tree)
            scores.append(best_score)
        return trees

    def _iter_splits(self, W: Array, region: Region, score: LeafScore) -> Iterator[RankedTree]:
        """Iterate over splits of a leaf into two, three and four, with their gains of the score."""
        sums = _sum_cells(W, region)
        yield from self._iter_single_splits(sums, score)
        region_W = np.where(region.times[:, None, None] & region.states[:, None], W, 0.0)
        total = score(sums.total)
        for f, feature in enumerate(self.features):
            n_tried = min(MAX_PAIRED_SPLITS // len(self.features), feature.n_thresholds)
            # what the parts sum to along the other axis: by state for the time, by time for others
            part_sums = self._sum_sides(f, region_W if feature.is_time else region_W.swapaxes(0, 1))
            for i in np.unique(np.linspace(0, feature.n_thresholds - 1, n_tried).astype(int)):
                is_true = feature.evaluate_split(int(i)).reshape(-1, 1)
                parts = [
                    CellSums(sums.by_time * mask, part[i])
                    if feature.is_time
                    else CellSums(part[i], sums.by_state * mask)
                    for part, mask in zip(part_sums, (is_true, ~is_true), strict=True)
                ]
                totals = [part.total for part in parts]
                gain = float(score(totals[0]) + score(totals[1]) - total)
                leaves = [Leaf(int(x.argmax())) for x in totals]
                (true_gain, if_true), (false_gain, if_false) = (
                    max(self._iter_single_splits(part, score), key=itemgetter(0)) for part in parts
                )
                yield gain + true_gain, Split(f, int(i), if_true, leaves[1])
                yield gain + false_gain, Split(f, int(i), leaves[0], if_false)
                yield gain + true_gain + false_gain, Split(f, int(i), if_true, if_false)

    def _iter_single_splits(self, sums: CellSums, score: LeafScore) -> Iterator[RankedTree]:
        """Iterate over the best split of a region on each feature, with its gain of the score."""
        total = score(sums.total)
        for f, *side_sums in self._iter_side_sums(sums):
            gains = score(side_sums[0]) + score(side_sums[1]) - total
            i = int(gains.argmax())
            yield float(gains[i]), Split(f, i, *(Leaf(int(x[i].argmax())) for x in side_sums))


def _sum_cells(values: Array, region: Region) -> CellSums:
    """Sum values (rows, S, n) over the states and over the times of a region."""
    by_time = region.states.astype(float) @ values
    by_state = np.einsum("t,tsn->sn", region.times.astype(float), values)
    return CellSums(by_time * region.times[:, None], by_state * region.states[:, None])


def _compute_max_score(sums: Array) -> Array:
    """Score leaves by their best action: the largest of the sums along the last axis."""
    return sums.max(axis=-1)


def _compute_purity(sums: Array) -> Array:
    """Compute sum_a W_a^2 / sum_a W_a over the last axis; 0 where there is no weight."""
    total = sums.sum(axis=-1)
    return np.divide((sums**2).sum(axis=-1), total, out=np.zeros_like(total), where=total > 0)


def _find_top_gains(gains: Array) -> IntArray:
    """Return the indices of the largest gains that are not 0."""
    order = np.argsort(np.where(gains == 0, np.inf, -gains), axis=None, kind="stable")[
        :MAX_PER_FEATURE
    ]
    return order[gains.reshape(-1)[order] != 0]


def replace_subtree(tree: DecisionNode, path: BranchPath, subtree: DecisionNode) -> DecisionNode:
    """Return the tree with another subtree at a path of branches."""
    if not path:
        return subtree
    assert isinstance(tree, Split)
    if path[0]:
        return tree._replace(if_true=replace_subtree(tree.if_true, path[1:], subtree))
    return tree._replace(if_false=replace_subtree(tree.if_false, path[1:], subtree))


# ---------------------------------------------------------------------- growing
def grow_tree(
    multistart: MultiStart, solve_unrestricted: Callable[[], MethodResult]
) -> MethodResult:
    """Grow a tree leaf by leaf, each time from several trees; return the best result.

    The trees are the last two, those fitted to the unrestricted policy, and an earlier solution. So
    the value never decreases with the number of leaves.
    """
    space, context = multistart.space, multistart.context
    assert isinstance(space, TreeSpace)
    max_leaves, space.max_leaves, incumbent = space.max_leaves, 1, context.best_policy
    init: Candidate = multistart.init
    if incumbent is None and get_feature_levels(init) == get_feature_levels(space):
        incumbent = context.policy_class.policy_to_table(init, context.model)
    best = multistart.ascend_objective(space.add_table(Leaf(0)), AscentCache())
    best_by_leaves = list[AscentResult]()
    details: Details = {
        "value_by_leaves": [],
        "seconds_by_leaves": [],
        "trees_by_leaves": [],
    }
    context.details |= details
    unrestricted = solve_unrestricted()
    weights = next(iter_risk_weights(context, context.objective, unrestricted.required_returns))
    fitted_trees = [*space.iter_fitted_trees(unrestricted.policy, weights, max_leaves)]
    for n_leaves in range(1, max_leaves + 1):
        space.max_leaves, start_seconds = n_leaves, context.stopwatch.elapsed
        trees = [x.policy.tree for x in (best, *best_by_leaves[-2:-1])] + [
            x[n_leaves - 1] for x in fitted_trees
        ]
        if (
            incumbent is not None and count_leaves(incumbent.tree) <= n_leaves
        ):  # of an earlier solve
            trees.append(incumbent.tree)
        inits = [space.add_table(x) for x in dict.fromkeys(map(space.prune, trees))]
        optimum = _find_best_optimum(multistart, inits)
        if optimum.value > best.value + context.estimate_rounding(optimum.returns):
            best = optimum
        best_by_leaves.append(best)
        details["value_by_leaves"].append(best.value)
        details["seconds_by_leaves"].append(context.stopwatch.elapsed - start_seconds)
        details["trees_by_leaves"].append(
            context.policy_class.make_policy(context.model, best.policy)
        )
    trace = np.unique(np.maximum.accumulate(context.trace)).tolist()
    names = [x.name for x in space.features]
    return MethodResult(
        best.policy,
        END_STATUS[best.stop_reason],
        len(trace) - 1,
        returns=best.returns,
        trace=trace,
        details={"n_leaves": count_leaves(best.policy.tree), "features": names, **details},
    )


def get_feature_levels(owner: Candidate) -> list[tuple[str, object]] | None:
    """Return names and levels of the features; trees with equal ones can be compared."""
    return (
        [(feature.name, feature.levels) for feature in owner.features]
        if hasattr(owner, "features")
        else None
    )


def _find_best_optimum(multistart: MultiStart, inits: list[TreeWithTable]) -> AscentResult:
    """Return the best local optimum of ascents from initial trees.

    An objective other than the mean continues by risk weights from the best one only, unless
    passes are quick.
    """
    context, by_value = multistart.context, attrgetter("value")
    local_optima = [multistart.ascend_objective(x, AscentCache()) for x in inits]
    if not context.objective.is_mean:
        is_quick = context.problem.estimate_seconds(context.horizon, QUICK_PASSES) < 1.0
        candidates = inits if is_quick else [max(local_optima, key=by_value).policy]
        cache = AscentCache()
        local_optima = [
            optimum for x in candidates for optimum in multistart.iter_local_optima(x, cache)
        ]
    return max(local_optima, key=by_value)
