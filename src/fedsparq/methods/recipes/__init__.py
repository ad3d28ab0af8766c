"""The methods of the package: each a function that puts one together, with the method's options as its arguments.

`fedsparq methods` lists them in the order of these imports.
"""

# isort: off
from fedsparq.methods.recipes import paper
from fedsparq.methods.recipes import private
from fedsparq.methods.recipes import related
from fedsparq.methods.recipes import corrected
from fedsparq.methods.recipes import peers

__all__ = ["corrected", "paper", "peers", "private", "related"]
