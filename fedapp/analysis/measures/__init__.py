"""The papers' measurements of models in a run."""
