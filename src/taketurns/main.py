"""The ASGI application, for `uvicorn taketurns.main:app`: set up by the environment alone."""

from taketurns import settings, telemetry
from taketurns.assembly import load_api

telemetry.configure(form=settings.current().log_format, level=settings.current().log_level)
app = load_api(settings.current())
