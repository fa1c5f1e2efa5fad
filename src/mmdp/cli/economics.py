"""Options about effects and costs, and the policies that others are compared with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmdp.cli.signatures import OptionGroup, take_from
from mmdp.core.errors import InputError

if TYPE_CHECKING:
    from mmdp import MMDP
    from mmdp.core.policies import Policy


@take_from("mmdp.insight.economics.discounting:OutcomeDiscounting")
class Economics(OptionGroup):
    """Effects and costs from a table, and how those of different times add up.

    Parameters
    ----------
    effects
        Effect and cost of actions: a CSV with state,action,effect,cost (and model, time,
        next_state).
    """

    def __init__(self, *, effects: Path | None = None, **options: Any) -> None:
        import mmdp

        self.file, self.discounting = effects, mmdp.economics.OutcomeDiscounting(**options)

    def read(self, model: MMDP, wtp: object, wtp_flag: str) -> dict[str, Any]:
        """Effects, costs and their discounting, if they are given; refuse one without its worth."""
        import mmdp

        if (self.file is None) != (wtp is None):
            raise InputError(f"--effects and {wtp_flag} belong together; give both or none")
        if self.file is not None:
            effects, costs = mmdp.report.read_effects(self.file, model)
            return {"effects": effects, "costs": costs, "discounting": self.discounting}
        if self.discounting != mmdp.economics.OutcomeDiscounting():
            raise InputError("this option is about costs and effects; give --effects too")
        return {}


def read_comparators(strategies: Mapping[str, str], model: MMDP) -> dict[str, Policy | str]:
    """Read the policies of ``--comparator``: a policy file, or the label of an action."""
    import mmdp

    def read_strategy(strategy: str) -> Policy | str:
        is_file = Path(strategy).suffix in (".csv", ".json") or Path(strategy).is_file()
        is_action = strategy in model.action_labels
        return mmdp.load_policy(strategy, model) if is_file and not is_action else strategy

    return {name: read_strategy(strategy) for name, strategy in strategies.items()}
