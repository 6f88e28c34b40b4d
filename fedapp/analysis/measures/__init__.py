"""The papers' measures of models in a run."""
