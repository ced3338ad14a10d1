# The server and the node of a fleet (docs/fleet.md), with PyTorch for the CPU:
#
#   docker build --target server -t atoll-server .
#   docker build --target node -t atoll-node .
#
# Private files are readable by their owner only, so a container runs as whoever owns them:
#
#   docker run --user "$(id -u):$(id -g)" -p 9092:9092 -v ./fleet:/fleet -v .:/work atoll-server digits.toml --out runs/digits --resume
#   docker run --user "$(id -u):$(id -g)" -v ./node-3:/node -v ./my-data:/data:ro -v .:/work:ro atoll-node digits.toml
#
# A container has no terminal's Ctrl-C: `docker stop` ends it, and with --resume the server goes on where it was.

FROM python:3.11-slim AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python -m venv /opt/atoll
ENV PATH=/opt/atoll/bin:$PATH
# The versions of the larger lock, of which a fleet needs a part. They change seldom, so they have a layer of their own.
COPY requirements-dev.lock /src/
RUN grep '^torch==' /src/requirements-dev.lock > /tmp/torch.txt \
    && pip install -c /src/requirements-dev.lock -r /tmp/torch.txt --extra-index-url https://download.pytorch.org/whl/cpu
COPY pyproject.toml README.md LICENSE /src/
COPY src /src/src
RUN pip install -c /src/requirements-dev.lock "/src[fleet,prometheus]"

FROM python:3.11-slim AS base
RUN useradd --create-home --uid 10001 atoll && mkdir /work && chown atoll /work
COPY --from=build /opt/atoll /opt/atoll
# HOME is a folder that any user may write to, since --user may name one that has no home.
ENV PATH=/opt/atoll/bin:$PATH HOME=/tmp PYTHONUNBUFFERED=1
USER atoll
WORKDIR /work
STOPSIGNAL SIGTERM

FROM base AS node
ENTRYPOINT ["atoll", "fleet", "node", "--config", "/node/node.toml", "--data", "/data"]
CMD ["--help"]

FROM base AS server
EXPOSE 9092
ENTRYPOINT ["atoll", "fleet", "server", "--config", "/fleet"]
CMD ["--help"]
