"""What only one paper needs: a folder for each paper, and the published tables of all of them.

The method of a paper is in `methods/`, as every other method.
"""
