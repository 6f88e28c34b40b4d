"""The words for a run's models, for commands, which must start fast."""

from typing import Literal

Which = Literal["final", "best", "calibrated"]
FINAL: Which = "final"  # after the last round
BEST: Which = "best"  # with the highest accuracy in the tests of the run
CALIBRATED: Which = "calibrated"  # the final one with the head of `fedapp calibrate`
