"""Many runs: sweeps, the published tables, and benchmarks."""
