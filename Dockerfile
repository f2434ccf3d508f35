# What requirements.txt pins, and the project, for `docker run`, `--sdm apptainer` and Kubernetes; docs/container.md.
# Nothing in it depends on the processor: `docker build --platform linux/amd64,linux/arm64` makes both.
# BASE: any image with Python 3.11 or newer and its venv. For a build to be repeated, name it by its digest.
ARG BASE=docker.io/library/python:3.12-slim-bookworm

FROM ${BASE} AS build
# Other places where pip looks: https://download.pytorch.org/whl/cpu has a torch without CUDA.
ARG PIP_EXTRA_INDEX_URL=""
COPY requirements.txt /tmp/all.txt
# The base has no compiler, so nothing is compiled. pip has no more to do afterwards.
RUN sed '/^# checks/,$d' /tmp/all.txt > /tmp/requirements.txt \
 && python3 -m venv /opt/reversal \
 && /opt/reversal/bin/pip install --no-cache-dir --no-compile -r /tmp/requirements.txt \
 && /opt/reversal/bin/pip uninstall --yes pip

FROM ${BASE}
COPY --from=build /opt/reversal /opt/reversal
# USER: Python asks for a name, which a number alone does not have.
ENV PATH=/opt/reversal/bin:$PATH PYTHONDONTWRITEBYTECODE=1 HOME=/tmp USER=reversal
WORKDIR /project
COPY --chown=1000:1000 . .
RUN chown 1000:1000 .
USER 1000:1000
CMD ["snakemake", "--cores", "all"]
