"""Settings of the whole suite. This file also makes the helpers beside it importable from every room."""

from hypothesis import settings

settings.register_profile("fedsparq", deadline=None, derandomize=True)
settings.load_profile("fedsparq")
