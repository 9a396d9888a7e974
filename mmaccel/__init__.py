"""mmaccel: faster vision-language models, and an honest account of what that costs."""

__version__ = "0.1.0"
