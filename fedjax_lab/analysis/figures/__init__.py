"""Learning curves and the analyses of five papers, drawn from the folders of runs."""
