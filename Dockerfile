# metrist serve: runs as an ordinary user, needs no writable file system (docker run --read-only).
# docker build -t metrist . && docker run --rm --read-only -p 8600:8600 -e METRIST_SERVE_TOKENS metrist -m chrf
FROM python:3.11-slim-bookworm AS build

# The kernels are compiled here; the image below has no compiler.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /build
COPY pyproject.toml hatch_build.py constraints-ci.txt README.md LICENSE NOTICE ./
COPY src src
COPY models models
# The models that ship, and what `standard`, `serve` and `llm` need, in the versions that CI tests with.
RUN METRIST_BUILD_KERNELS=require pip install --no-cache-dir --prefix=/install --constraint constraints-ci.txt \
    ./models ./models/english ./models/multilingual '.[standard,serve,llm]'

FROM python:3.11-slim-bookworm

COPY --from=build /install /usr/local
RUN useradd --uid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin metrist
USER 10001:10001
ENV PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    HOME=/nonexistent
EXPOSE 8600
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8600/healthz', timeout=2)"]
ENTRYPOINT ["metrist", "serve", "--host", "0.0.0.0", "--port", "8600"]
CMD ["-m", "rougeL", "-m", "chrf"]
