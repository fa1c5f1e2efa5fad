"""Heat map of the policy: the data of ``heatmap.js``, and the same as a table."""

from __future__ import annotations

import base64

import numpy as np
import numpy.typing as npt

from mmdp.core.text import parse_named_axes
from mmdp.insight.draw.maps import PolicyMap
from mmdp.insight.draw.palette import ActionStyles
from mmdp.insight.measures import Stability
from mmdp.insight.report.context import ReportContext

MAX_CELLS = 400_000  # of the heat map; beyond that the least visited states are left out
MAX_TABLE_ROWS = 60  # of the table in words
MAX_INITIAL_STATES = 40  # the heat map begins with the most visited ones
MAX_GROUPS = 60  # values of a named axis by which states can be chosen


class HeatMap:
    """Heat map of a policy: its states, layers of values, and table rows.

    ``states``: states of the map in their order, with a choice; ``n_left_out``: number of states
    left out for size; ``labels_without_choice``: labels of states in which no action changes
    anything; ``table_states``: states of the table in words, and ``listed_states`` the same in the
    table's order; ``default_states``: states that the map shows first, with ``default_share`` of
    the decisions; ``axis_values``: values by which states can be filtered, by axis;
    ``expected_visits`` (S,): expected number of visits.
    """

    def __init__(
        self,
        context: ReportContext,
        used_actions: npt.NDArray[np.int64],
        stability: Stability | None,
    ) -> None:
        self.context, self.used_actions, self.stability = context, used_actions, stability
        self.layers = {
            "action": "action",
            "margin": "margin over the runner-up",
            "probability": "probability of the state",
            "agreement": "models that agree",
        }
        if stability is not None:
            self.layers["change_frequency"] = "changes when models are resampled"
        self.policy_map = PolicyMap(
            context.policy.actions, context.model.state_labels, context.action_names
        )
        self.has_negative_margin = bool((context.compute_cells().margin < 0).any())
        has_choice = context.model.has_choice
        self.expected_visits = context.compute_visit_probs().sum(axis=0)
        order = np.argsort(-self.expected_visits, kind="stable")
        self.states_by_visits = order[has_choice[order]]  # with a decision, the most visited first
        self.states = np.sort(
            self.states_by_visits[: max(1, MAX_CELLS // context.horizon)]
        ).tolist()
        self.n_left_out = len(self.states_by_visits) - len(self.states)
        self.labels_without_choice = [
            context.model.state_labels[s] for s in np.flatnonzero(~has_choice)
        ]
        top_states = self.states_by_visits[:MAX_TABLE_ROWS]
        reached_states = top_states[: max(1, int((self.expected_visits[top_states] > 0).sum()))]
        self.table_states = np.sort(top_states).tolist()
        self.has_state_filter = len(reached_states) < len(self.states) > MAX_INITIAL_STATES
        self.default_states = (
            np.sort(reached_states).tolist() if self.has_state_filter else self.states
        )
        self.listed_states = top_states.tolist() if self.has_state_filter else self.table_states
        self.default_share = float(self.expected_visits[self.default_states].sum()) / max(
            float(self.expected_visits.sum()), 1e-300
        )
        axes = parse_named_axes([context.model.state_labels[s] for s in self.states])[0]
        self.axis_values = {x: y for x, y in axes.items() if len(axes) > 1 and len(y) <= MAX_GROUPS}

    def find_runs(self, state: int) -> list[tuple[str, str]]:
        """Find the spans of times with one action in a state: times and action."""
        names, times = self.context.action_names, self.context.model.time_labels
        return [
            (times.format_range(t, u), names[a]) for t, u, a in self.policy_map.find_runs(state)
        ]

    def to_script_data(self) -> dict[str, object]:
        """Make the JSON data of ``heatmap.js``; arrays are base64, times first."""
        context, states = self.context, self.states
        cells, actions = context.compute_cells(), context.policy.actions
        used_actions, action_positions = (
            self.used_actions,
            np.searchsorted(self.used_actions, actions),
        )
        styles = ActionStyles(context.action_names)
        position_of_state = {s: i for i, s in enumerate(states)}
        layer_values = {
            "margin": cells.margin,
            "probability": cells.visit_probs,
            "agreement": cells.agreement,
        }
        if self.stability is not None:
            layer_values["change_frequency"] = self.stability.change_frequency
        return {
            "times": [
                " ".join(x.split()) for x in context.model.time_labels.get_labels(context.horizon)
            ],
            "timeName": context.model.time_labels.name,
            "isStationary": context.is_stationary,
            "states": [" ".join(context.model.state_labels[s].split()) for s in states],
            "actions": [" ".join(text.split()) for text in context.action_names],
            "usedActions": used_actions.tolist(),
            "marks": [styles.marks[a] for a in used_actions],
            "colors": [styles.colors[a] for a in used_actions],
            "textColors": [styles.text_colors[a] for a in used_actions],
            "actionIds": encode_array(action_positions[:, states], "<u2"),
            "runnerUp": encode_array(cells.runner_up[:, states], "<i4"),
            "layers": {name: encode_array(x[:, states], "<f4") for name, x in layer_values.items()},
            "defaultRows": [position_of_state[s] for s in self.default_states],
        }


def encode_array(array: npt.NDArray[np.generic], dtype: str) -> str:
    """Encode an array as base64 text for ``unpack`` of ``maps.js``."""
    return base64.b64encode(np.ascontiguousarray(array, dtype=dtype).tobytes()).decode()
