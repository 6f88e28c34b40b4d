"""The papers' measurements of models, in a run and of finished runs."""
