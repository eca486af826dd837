# One image for the API, the worker and the migrations: the command says which.
FROM python:3.12-slim AS build

ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /build
RUN python -m venv /opt/build && python -m venv /opt/taketurns

COPY requirements/build.txt requirements/runtime.txt requirements/
RUN /opt/build/bin/pip install --require-hashes -r requirements/build.txt \
    && /opt/taketurns/bin/pip install --require-hashes -r requirements/runtime.txt

COPY pyproject.toml README.md LICENSE NOTICE ./
COPY src src
RUN /opt/build/bin/python -m hatchling build --target wheel --directory dist \
    && /opt/taketurns/bin/pip install --no-deps dist/*.whl \
    && /opt/taketurns/bin/python -m compileall -q /opt/taketurns/lib


FROM python:3.12-slim

RUN useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin taketurns
COPY --from=build /opt/taketurns /opt/taketurns
WORKDIR /app
COPY alembic.ini ./
COPY examples examples

ENV PATH=/opt/taketurns/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
ENV TAKETURNS_HOST=0.0.0.0 TAKETURNS_METRICS_HOST=0.0.0.0 TAKETURNS_LOG_FORMAT=json
USER 10001
EXPOSE 8000 9100

HEALTHCHECK --interval=10s --timeout=3s --start-period=20s --start-interval=1s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=2)"]

CMD ["taketurns", "api"]
