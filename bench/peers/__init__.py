"""Ours beside other task queues: the same work, on the same servers, in turn."""
