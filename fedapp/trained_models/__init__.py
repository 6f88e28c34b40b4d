"""Use of finished runs: classify, test, export, calibrate and personalise their models."""
