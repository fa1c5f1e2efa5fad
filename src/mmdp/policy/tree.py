"""Policies as one small tree: a few questions about the state and the time, an action at each end.

A tree splits on features of the state (named axes, columns that users give, or the state's number)
and on the time. pi_t(s) is the action of the leaf where (t, s) ends.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from mmdp.arguments import checked
from mmdp.errors import InputError, Remedy
from mmdp.kernels import Kernel
from mmdp.kernels.planner import PlannerTables
from mmdp.policy.markov import MarkovPolicy, TablePolicy
from mmdp.policy.restricted import Restricted
from mmdp.policy.stationary import StationaryPolicy
from mmdp.support import refuse_masked
from mmdp.validate import check_whole, ids_of, is_named
from mmdp.words import Times, counted, either, named_values, some

if TYPE_CHECKING:
    from mmdp.model import MMDP

Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int32]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

TIME = "time"
ENDED = "ended"  # the state in which it is all over
MISSING = ("", "NA", "NaN", "nan", "NaT", "<NA>")  # how a missing value is written
_NUMBERED = re.compile(r"(.*?)\s*(-?\d+(?:\.\d+)?)")  # "stock 12": a name and a number


_UNIT = re.compile(r"(.*\S)\s*[(\[]([^()\[\]]+)[)\]]")  # "weight (kg)": a name and a unit


# ---------------------------------------------------------------------- trees
class Leaf(NamedTuple):
    """An end of the tree: what to do there."""

    action: int


class Split(NamedTuple):
    """A question, by the place of its feature, and the trees for those who say yes or no."""

    feature: int
    cut: int  # yes up to this level; of categories, at this level
    yes: Leaf | Split
    no: Leaf | Split


Node = Leaf | Split


class Planted(NamedTuple):
    """A tree with the table (T, S) of actions that it makes; (S,) if there is no last decision."""

    table: IntArray
    tree: Node


class Visit(NamedTuple):
    """A node with the answers in words that lead to it, the last of them (None at the root), and
    where they do: (T, S), or (1, S) if there is no last decision.
    """

    path: tuple[str, ...]
    yes: bool | None
    node: Node
    region: Mask


def count_leaves(tree: Node) -> int:
    """The number of ends."""
    return 1 if isinstance(tree, Leaf) else count_leaves(tree.yes) + count_leaves(tree.no)


# ---------------------------------------------------------------------- features
@dataclass(frozen=True, eq=False)
class Feature:
    """What a tree can ask about: numbers, or categories, of the states or of the times.

    ``codes`` has the place of each value among the ``levels``. Numbers are asked whether they are
    at most a level, or halfway to the next one if what lies between goes to the nearest
    (``continuous``); categories are asked whether they are one.

    >>> stock = Feature.of("stock", [0, 5, 10])
    >>> stock.asked(1), stock.yes(1).tolist()
    ('stock is at most 5', [[True, True, False]])
    >>> Feature.of("region", ["north", "south", "north"]).asked(0)
    'region is north'
    """

    name: str
    codes: Ints
    levels: tuple[float, ...] | tuple[str, ...]
    continuous: bool = False
    times: Times | None = None  # what the levels, numbers of decisions, are called

    @classmethod
    def of_times(cls, times: Times, horizon: int) -> Feature:
        """The number of the decision, under the labels that it has.

        >>> Feature.of_times(Times("age", ("40", "41")), 9).asked(5)
        'age is at most 45'
        >>> Feature.of_times(Times("month", ("Jan", "Feb")), 2).asked(0, yes=False)
        'month is after Jan'
        """
        numbers = tuple(map(float, range(horizon)))
        labels = tuple(times.first(horizon)) if times.labels else ()
        return cls(times.name, np.arange(horizon), numbers, times=Times(times.name, labels))

    @classmethod
    def of(cls, name: str, values: Iterable[Any], *, continuous: bool = False) -> Feature:
        """The feature with this value in each state."""
        given = list(values)
        try:
            numbers = [math.nan if isinstance(x, (bool, np.bool_)) else float(x) for x in given]
        except (TypeError, ValueError):
            numbers = [math.nan]
        if not any(map(math.isnan, numbers)):
            levels, codes = np.unique(numbers, return_inverse=True)
            return cls(name, codes.reshape(-1), tuple(levels.tolist()), continuous)
        words = [str(x) for x in given]
        place = {word: i for i, word in enumerate(dict.fromkeys(words))}
        return cls(name, np.array([place[word] for word in words]), tuple(place))

    @property
    def timed(self) -> bool:
        return self.times is not None

    @property
    def key(self) -> str:
        """Its name in files, where the time has its own."""
        return TIME if self.timed else self.name

    @property
    def ordered(self) -> bool:
        return not isinstance(self.levels[0], str)

    @property
    def n_cuts(self) -> int:
        """How many questions there are about it."""
        return len(self.levels) - 1 if self.ordered or len(self.levels) == 2 else len(self.levels)

    @property
    def values(self) -> list[Any]:
        return [self.levels[code] for code in self.codes]

    def yes(self, cut: int) -> Mask:
        """(1, S) or (T, 1): where the answer is yes."""
        said: Mask = self.codes <= cut if self.ordered else self.codes == cut
        return said[:, None] if self.timed else said[None]

    def level(self, cut: int) -> float | str:
        """What the question compares with.

        >>> Feature.of("mass", [0.0, 2.5, 5.0], continuous=True).level(1)
        3.75
        """
        found = self.levels[cut]
        if isinstance(found, str) or not self.continuous:
            return found
        return (found + float(self.levels[cut + 1])) / 2

    def asked(self, cut: int, yes: bool = True) -> str:
        """The question in words, without a question mark, or the answer no as a clause.

        A unit at the end of the name goes with the number.

        >>> Feature.of("body weight (kg)", [50, 75]).asked(0, yes=False)
        'body weight is above 50 kg'
        """
        level = self.level(cut)
        if isinstance(level, str):
            return f"{self.name} is {'' if yes else 'not '}{level}"
        short, above = (f"{x:.12g}" for x in (level, self.levels[cut + 1]))
        shown, said = short if short != above else repr(level), ("above", "at most")
        if self.times is not None:
            shown = self.times.of(cut)
            said = ("after", "at or before") if self.times.in_words else said
        found = _UNIT.fullmatch(self.name)
        name, unit = (found[1], f" {found[2]}") if found else (self.name, "")
        return f"{name} is {said[yes]} {shown}{unit}"


# ---------------------------------------------------------------------- the kind
@checked
@dataclass(frozen=True, eq=False)
class Tree(Restricted):
    """One small tree of questions about the state and the time, with an action at each leaf.

    Parameters
    ----------
    leaves
        The most leaves that the tree may have. More leaves are never worse.
    features
        What it may ask about the state: a DataFrame or a CSV file with a row for each state
        (its label as the index, or in a column ``state``) and columns of numbers or categories;
        or a mapping from names to such columns. By default the named axes of the model, or else
        the number of the state if its labels are numbers or end in one, as in "stock 3".
    time
        Whether it may ask about the time too. Without it the tree is a rule for every day. Over
        an infinite horizon it always is.

    Where a state does not allow the action of its leaf, the first action that it allows is taken,
    in the order of the model's actions.

    >>> import mmdp
    >>> train, _ = mmdp.domains.published("riverswim")
    >>> solution = mmdp.solve(train, 50, policy=mmdp.Tree(leaves=2))
    >>> print(solution.policy.text())
    if state is at most 3: swim left
    otherwise: swim right
    """

    leaves: int = 6
    features: Any = None
    time: bool = True

    name: ClassVar[str] = "tree"
    grows: ClassVar[bool] = True
    masks = False
    title = "a few questions about the time and the state"
    change = "change that was tried of a question or an action"

    def __post_init__(self) -> None:
        check_whole(self.leaves, "leaves")
        if isinstance(self.features, (str, Path)):
            from mmdp.io.features import load_features

            object.__setattr__(self, "features", load_features(self.features))

    @property
    def being(self) -> str:
        return "a tree"

    def passes(self, of_tables: float) -> float:
        return super().passes(of_tables) + 500.0 * self.leaves

    def features_of(self, model: MMDP, horizon: int) -> tuple[Feature, ...]:
        """What a tree can ask about in ``model``: features with more than one value."""
        columns = self._columns(model)
        on_grid = () if model.function is None else model.function.continuous
        found = [Feature.of(x, column, continuous=x in on_grid) for x, column in columns.items()]
        if self.asks_time:
            taken = next((x for x in (TIME, model.times.name) if x in columns), None)
            if taken is not None:
                raise InputError(
                    f"a feature is called {taken!r}, as the time is; give it another name"
                )
            found.append(Feature.of_times(model.times, horizon))
        return tuple(x for x in found if len(x.levels) > 1)

    @property
    def asks_time(self) -> bool:
        return self.time and not self.endless

    def _columns(self, model: MMDP) -> dict[str, list[Any]]:
        """The features of the states: a value for each."""
        if self.features is None:
            return _own_columns(model)
        if not is_named(self.features):
            raise InputError(
                "features must be a table by state: a DataFrame, a CSV file or a mapping from "
                f"names to columns, not {type(self.features).__name__}"
            )
        frame = self.features
        if "state" in getattr(frame, "columns", ()):
            frame = frame.set_index("state")
        names = [*map(str, frame.keys())]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise InputError(f"two features are called {twice!r}; give each a name of its own")
        columns = {str(name): _column(str(name), x, model) for name, x in frame.items()}
        if all(len(set(map(str, x))) < 2 for x in columns.values()) and model.n_states > 1:
            raise InputError("the features are the same in all states; give one that differs")
        return columns

    def settings(self, model: MMDP, horizon: int) -> Any:
        columns = {x.name: x.values for x in self.features_of(model, horizon) if not x.timed}
        return [self.leaves, self.asks_time, columns]

    def text(self, model: MMDP, horizon: int) -> str:
        names = [x.name for x in self.features_of(model, horizon)]
        return f"at most {counted(self.leaves, 'leaf', 'leaves')}, by {either(names, ' and ')}"

    def check(self, model: MMDP, horizon: int) -> None:
        self.features_of(model, horizon)

    def policy_of(self, model: MMDP, table: Planted) -> TreePolicy:  # type: ignore[override]
        rows: Any = super().policy_of(model, table.table)
        features = self.features_of(model, 1 if self.endless else len(table.table))
        return TreePolicy(rows, table.tree, features)

    def table_of(self, policy: TreePolicy, model: MMDP) -> Planted:  # type: ignore[override]
        return Planted(policy.table_for(model), policy.tree)


def _own_columns(model: MMDP) -> dict[str, list[Any]]:
    """What the labels say: values by name, or a number.

    A state that says nothing and in which actions change nothing, such as ``ended``, goes with
    another.
    """
    rows = [named_values(label) or _numbered(label) for label in model.state_labels]
    usual = next(filter(None, rows), {})
    if not all(rows):
        rows = [x or ({} if d else usual) for x, d in zip(rows, model.deciding, strict=True)]
    odd = next((s for s, x in enumerate(rows) if not x or x.keys() != usual.keys()), None)
    if odd is not None:
        raise InputError(
            f"there is nothing to split on: the states have names, such as "
            f"{model.state_labels[odd]!r}, whose order need not mean anything",
            [Remedy("features", "features.csv", do="pass a table by state:")],
        )
    return {name: [x[name] for x in rows] for name in usual}


def _numbered(label: str) -> dict[str, str]:
    found = _NUMBERED.fullmatch(label)
    return {found[1] or "state": found[2]} if found else {}


def _column(name: str, given: Any, model: MMDP) -> list[Any]:
    """(S,) the values of a feature in the order of the states."""
    what = f"feature {name!r}"
    refuse_masked(given, what)
    if isinstance(given, str) or not hasattr(given, "__len__"):
        raise InputError(f"{what} is one value, {given!r}; give a column with one per state")
    values = list(given)
    if is_named(given):
        pairs = list(given.items())
        place = ids_of((key for key, _ in pairs), model.state_labels, what)
        values = [pairs[i][1] for i in np.argsort(place)]
        absent = sorted({*range(model.n_states)} - {*place})
        if absent:
            raise InputError(
                f"{what} has no value for state {model.state_labels[absent[0]]!r}; give every "
                "state one"
            )
    if len(values) != model.n_states:
        raise InputError(
            f"{what} has {counted(len(values), 'value')} for {counted(model.n_states, 'state')}; "
            "give one per state"
        )
    for s, x in enumerate(values):
        if np.ndim(x):
            raise InputError(f"{what} has several values per state; make each a feature")
        if x is None or str(x).strip() in MISSING:
            raise InputError(f"{what} is empty in state {model.state_labels[s]!r}; fill it in")
    return values


# ---------------------------------------------------------------------- the policy
class TreePolicy(TablePolicy):
    """A tree with the table of actions that it makes; frozen.

    ``text()`` says the rule in words, and :meth:`over` gives it as a table.

    Parameters
    ----------
    rows
        The table: a :class:`mmdp.MarkovPolicy`, or a :class:`mmdp.StationaryPolicy` if there is
        no last decision.
    tree, features
        What makes the table, apart from states that do not allow the action of their leaf.
    fallback
        Actions by rank: such a state takes the first of them that it allows. By default those of
        the table, in the order of the actions.

    >>> from mmdp import MarkovPolicy
    >>> stock, order = Feature.of("stock", [0, 5, 10]), ["order", "wait"]
    >>> rows = MarkovPolicy([[0, 1, 1]] * 4, action_labels=order)
    >>> policy = TreePolicy(rows, Split(0, 0, Leaf(0), Leaf(1)), [stock])
    >>> policy
    TreePolicy(4 time steps, 3 states, 2 actions, 2 leaves on stock)
    >>> print(policy.text())
    if stock is at most 0: order
    otherwise: wait
    """

    __slots__ = ("fallback", "features", "rows", "tree")

    rows: MarkovPolicy | StationaryPolicy
    tree: Node
    features: tuple[Feature, ...]
    fallback: tuple[int, ...]

    def __init__(
        self, rows: MarkovPolicy | StationaryPolicy, tree: Node, features: Iterable[Feature],
        fallback: Iterable[int] | None = None,
    ) -> None:  # fmt: skip
        self._set(rows=rows, table=rows.table, features=tuple(features))
        self._set_labels(rows.n_states, **rows.labels)
        actions = np.atleast_2d(self.actions)
        self._set(tree=_with_actions_taken(tree, self.features, actions, np.full_like(actions, 1)))
        others = np.unique(actions[actions != self.leaf_actions]).tolist()
        self._set(fallback=tuple(others if fallback is None else map(int, fallback)))
        if not {*others} <= {*self.fallback}:
            raise InputError(f"the fallback {self.fallback} lacks actions of the table: {others}")

    # ------------------------------------------------------------ what it is
    @property
    def kind(self) -> Tree:
        columns = {x.name: x.values for x in self.features if not x.timed}
        kind = Tree(self.n_leaves, columns or None, any(x.timed for x in self.features))
        found: Any = kind.over(self.horizon)
        return found

    @property
    def n_leaves(self) -> int:
        return count_leaves(self.tree)

    @property
    def axes(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.rows.axes

    @property
    def horizon(self) -> float:
        return self.rows.horizon

    @property
    def markov(self) -> MarkovPolicy | None:
        return self.rows.markov

    @property
    def parts(self) -> dict[str, Any]:
        return {**super().parts, "rule": self.text()}

    @checked
    def over(self, horizon: int) -> MarkovPolicy:
        return self.rows.over(horizon)

    def returns(self, model: MMDP, kernel: Kernel) -> Array:
        """(M,) its exact return on every model; :func:`mmdp.evaluate` has more."""
        return self.rows.returns(model, kernel)

    def tables_for(self, model: MMDP, horizon: int) -> PlannerTables:
        return self.rows.tables_for(model, horizon)

    # ------------------------------------------------------------ who reads it
    def nodes(self) -> Iterator[Visit]:
        """All nodes, each after the question that leads to it."""
        everywhere = np.ones(np.atleast_2d(self.actions).shape, dtype=bool)
        return self._nodes(Visit((), None, self.tree, everywhere))

    def _nodes(self, at: Visit) -> Iterator[Visit]:
        yield at
        if isinstance(at.node, Split):
            asked, cut = self.features[at.node.feature], at.node.cut
            there = asked.yes(cut)
            for yes, node in ((True, at.node.yes), (False, at.node.no)):
                path, region = (*at.path, asked.asked(cut, yes)), at.region & (there == yes)
                yield from self._nodes(Visit(path, yes, node, region))

    @property
    def leaf_actions(self) -> Ints:
        """(T, S) the action of the leaf at each time and state; T is 1 if no time is asked."""
        return _leaf_actions(self.tree, self.features)

    def text(self) -> str:
        """The rule in words: a question or an action in each line.

        The last line says what is done where a state does not allow the action of its leaf.
        """
        lines = []
        for path, yes, node, _ in self.nodes():
            head = f"if {path[-1]}" if yes else "always" if yes is None else "otherwise"
            done = f" {self.action_names[node.action]}" if isinstance(node, Leaf) else ""
            if path or done:
                lines.append(f"{'    ' * (len(path) - 1)}{head}:{done}")
        return "\n".join([*lines, self.fallback_text]).rstrip("\n")

    @property
    def fallback_text(self) -> str:
        """What is done where a state does not allow the action of its leaf; empty if all do."""
        names = [self.action_names[a] for a in self.fallback]
        first = f"the first allowed of {', '.join(names)}" if len(names) > 1 else "".join(names)
        return f"where that is not allowed: {first}" if names else ""

    def stored(self) -> dict[str, Any]:
        columns = {x.name: x.values for x in self.features if not x.timed}
        time = any(x.timed for x in self.features)
        return {
            **super().stored(), "features": columns, "time": time,
            "tree": self._stored(self.tree), "fallback": self.fallback,
        }  # fmt: skip

    def _stored(self, node: Node) -> Any:
        """A leaf as its action, a split as its question and what follows."""
        if isinstance(node, Leaf):
            return int(node.action)
        asked = self.features[node.feature]
        word = "at most" if asked.ordered else "is"
        return {
            "if": asked.key, word: asked.level(node.cut),
            "then": self._stored(node.yes), "else": self._stored(node.no),
        }  # fmt: skip

    @classmethod
    def restored(
        cls, rows: MarkovPolicy | StationaryPolicy, features: Mapping[str, Any], time: bool,
        tree: Any, fallback: Iterable[int] | None = None,
    ) -> Self:  # fmt: skip
        """The policy of what :meth:`stored` keeps."""
        known = [Feature.of(name, values) for name, values in features.items()]
        if any(len(x.codes) != rows.n_states for x in known):
            raise InputError(f"a feature does not have {counted(rows.n_states, 'value')}")
        if time:
            known.append(Feature.of_times(rows.times, int(rows.horizon)))
        place = {x.key: i for i, x in enumerate(known)}

        def read(node: Any) -> Node:
            if not isinstance(node, dict):
                if not 0 <= int(node) < rows.n_actions:
                    raise InputError(f"the tree has an action {node}, which does not exist")
                return Leaf(int(node))
            f = place[node["if"]]
            level = node["at most"] if known[f].ordered else node["is"]
            if level not in known[f].levels:
                known[f] = replace(known[f], continuous=True)
            cut = [known[f].level(k) for k in range(known[f].n_cuts)].index(level)
            return Split(f, cut, read(node["then"]), read(node["else"]))

        return cls(rows, read(tree), known, fallback)

    def placed(self, rows: Any) -> TreePolicy:
        """The tree of the same table over states and actions that come in another order."""
        states = _places(rows.state_names, self.state_names)
        actions = _places(self.action_names, rows.action_names)
        features = (
            Feature.of_times(rows.times, len(x.levels)) if x.timed
            else replace(x, codes=x.codes[states])
            for x in self.features
        )  # fmt: skip

        def renamed(node: Node) -> Node:
            if isinstance(node, Leaf):
                return Leaf(actions[node.action])
            return node._replace(yes=renamed(node.yes), no=renamed(node.no))

        fallback = [actions[a] for a in self.fallback]
        return TreePolicy(rows, renamed(self.tree), features, fallback)

    @property
    def _trait(self) -> str:
        used = some(_used(self.tree, self.features), 6)
        return counted(self.n_leaves, "leaf", "leaves") + (f" on {used}" if used else "")


def tree_of(given: Any, purpose: str) -> TreePolicy:
    """The tree that was given, or is in a solution; ``purpose`` begins the refusal of others."""
    found = getattr(given, "policy", given)
    if isinstance(found, TreePolicy):
        return found
    raise InputError(
        f"{purpose} a tree, not a {type(found).__name__}",
        ["solve with policy=mmdp.Tree(leaves=6), or mmdp solve --leaves 6"],
    )


def _places(names: list[str], among: list[str]) -> list[int]:
    """Where the names are; in their own order if they are not all there."""
    place = {name: i for i, name in enumerate(among)}
    return [place[x] for x in names] if place.keys() >= {*names} else [*range(len(names))]


def _leaf_actions(node: Node, features: Sequence[Feature]) -> Ints:
    """The action of the leaf at each (time, state), as far as the tree tells them apart."""
    if isinstance(node, Leaf):
        return np.full((1, 1), node.action)
    yes = features[node.feature].yes(node.cut)
    return np.where(yes, _leaf_actions(node.yes, features), _leaf_actions(node.no, features))


def _with_actions_taken(
    node: Node, features: Sequence[Feature], actions: npt.NDArray[Any], cells: npt.NDArray[Any]
) -> Node:
    """Name in each leaf the action that the table takes there, if it takes a single one.

    The action of a leaf may be allowed in none of its states (the cells that are not 0).
    """
    if isinstance(node, Leaf):
        taken = np.unique(actions[cells > 0])
        return Leaf(int(taken[0])) if len(taken) == 1 else node
    yes = features[node.feature].yes(node.cut)
    return node._replace(
        yes=_with_actions_taken(node.yes, features, actions, cells * yes),
        no=_with_actions_taken(node.no, features, actions, cells * ~yes),
    )


def _used(tree: Node, features: Sequence[Feature]) -> list[str]:
    """The names of the features that the tree asks about, in the order of its questions."""
    if isinstance(tree, Leaf):
        return []
    below = [*_used(tree.yes, features), *_used(tree.no, features)]
    return list(dict.fromkeys([features[tree.feature].name, *below]))
