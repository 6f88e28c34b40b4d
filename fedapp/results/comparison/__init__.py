"""Several runs side by side: means over seeds, paired differences, rounds until a target."""
