"""The papers' measures of models, during a run and for finished runs."""
