"""From an update to a payload: what is worth sending, how it is written, and what is remembered of the rest."""
