"""What makes a draft cheaper than an exact preview. None of it changes a text: every draft is verified."""

from dataclasses import dataclass

from clover_local.errors import CloverError
from clover_local.model.spec import Spec


@dataclass(frozen=True)
class DraftSettings:
    """Fewer experts for drafts only; each None leaves the model's own number."""

    experts_used: int | None = None
    """Experts of one row, at most the model's."""
    budget: int | None = None
    """Experts of one layer for the whole block: those of most mass over the block's rows, mass being the sum of
    the probabilities of each row's `experts_used` best. It replaces the model's own coreset."""

    def picks(self, spec: Spec) -> int:
        """Experts of one row in a draft of this model."""
        return spec.experts_used if self.experts_used is None else self.experts_used

    def check(self, spec: Spec) -> None:
        """Raise CloverError for numbers that the model cannot have."""
        if not 1 <= self.picks(spec) <= spec.experts_used:
            raise CloverError(
                f"a draft cannot use {self.experts_used} experts a row: the model uses {spec.experts_used}",
                f"choose --draft-experts from 1 to {spec.experts_used}",
            )
        least = self.picks(spec)
        if self.budget is not None and not least <= self.budget <= spec.experts:
            raise CloverError(
                f"a draft's budget of {self.budget} experts a layer is impossible",
                f"choose --draft-budget from {least} to {spec.experts}",
            )
