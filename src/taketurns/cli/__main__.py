"""`python -m taketurns.cli`, for where no console script is installed."""

from taketurns.cli import app

app(prog_name="taketurns")
