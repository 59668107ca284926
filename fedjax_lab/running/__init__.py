"""A run and its folder: what it plays, measures, saves and resumes; and the cells of a sweep."""
