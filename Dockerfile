# The demo in a container, by the same scripts as on a bare Debian 12 machine.
FROM debian:12-slim

# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends make python3 \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /cerebro

# The environment first: it changes less often than the code.
COPY scripts/ scripts/
COPY cerebro_udf/__init__.py cerebro_udf/
COPY requirements.txt ./
RUN scripts/cluster.py env && rm -rf /var/lib/apt/lists/* /root/.cache

COPY . .

# Root starts it; the servers run as the unprivileged user that the script makes.
CMD ["scripts/container.sh"]
