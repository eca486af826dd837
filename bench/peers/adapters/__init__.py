"""One file a peer, each run by the Python or Node of the peer's own environment."""
