# The packages pinned by requirements.txt, and the project, for `docker run`, `--sdm apptainer` and Kubernetes; docs/container.md.
# It builds for both processors: `docker build --platform linux/amd64,linux/arm64`.
# BASE: any image with Python 3.11 or newer and venv. For a reproducible build, give its digest.
ARG BASE=docker.io/library/python:3.12-slim-bookworm

FROM ${BASE} AS build
# Further package indexes for pip: https://download.pytorch.org/whl/cpu has torch without CUDA.
ARG PIP_EXTRA_INDEX_URL=""
COPY requirements.txt /tmp/all.txt
# The base has no compiler: all packages are wheels. The image needs no pip.
RUN sed '/^# checks/,$d' /tmp/all.txt > /tmp/requirements.txt \
 && python3 -m venv /opt/reversal \
 && /opt/reversal/bin/pip install --no-cache-dir --no-compile -r /tmp/requirements.txt \
 && /opt/reversal/bin/pip uninstall --yes pip

FROM ${BASE}
COPY --from=build /opt/reversal /opt/reversal
# USER: Python looks up the name of the user, and a numeric user has none.
ENV PATH=/opt/reversal/bin:$PATH PYTHONDONTWRITEBYTECODE=1 HOME=/tmp USER=reversal
WORKDIR /project
COPY --chown=1000:1000 . .
RUN chown 1000:1000 .
USER 1000:1000
CMD ["snakemake", "--cores", "all"]
