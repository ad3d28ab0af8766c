"""The laboratory: simulated federations from a spec to a report."""
