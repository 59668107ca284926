"""What an attacker learns from the uploads and the models of a run.

The folder `attacks` has one attack a file; its function, of the file's name, takes a
`target.Target` and its settings, and returns an `attack.Findings`. `audit` runs one of them on a
run, and `records` keeps what it found in the folder of the run.
"""
