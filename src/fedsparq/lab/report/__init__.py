"""A page, figures and tables about any set of runs."""
