"""An environment over the nodes of a Ray cluster: `environment.py` is the way in."""
