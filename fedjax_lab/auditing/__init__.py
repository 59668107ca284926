"""What an attacker learns from the uploads and the models of a run.

The folder `attacks` has one attack a file; its function, of the file's name, takes a
`target.Target` and its settings, and returns a `findings.Findings`. `audits` runs one of them on a
run, and `findings` keeps what it found in the folder of the run.
"""
