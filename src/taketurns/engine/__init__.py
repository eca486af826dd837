"""The rules of taking turns: plain Python that decides and moves nothing."""
