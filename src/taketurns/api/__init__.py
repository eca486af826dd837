"""HTTP for programs."""
