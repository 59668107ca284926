"""Many runs: the plan of a sweep, its folder, tuning, status and workers."""
