# geoseg in a container. The image holds the package and its pinned dependencies; data is mounted:
#   docker build -t geoseg .
#   docker run --rm -u "$(id -u):$(id -g)" -v "$PWD:/data" geoseg sample /data/config.yaml

ARG PYTHON_IMAGE=docker.io/library/python:3.11-slim

FROM ${PYTHON_IMAGE} AS build
# Where torch comes from: the CPU build by default (a quarter of the size). For CUDA leave TORCH_INDEX empty.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
# Further arguments for pip, such as --find-links with a folder mounted at build time.
ARG PIP_ARGS=""
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python3 -m venv /opt/geoseg
WORKDIR /src
# Dependencies first: this layer is made again only when they, or the version, change.
COPY pyproject.toml constraints.txt ./
COPY geoseg/__init__.py geoseg/__init__.py
RUN touch README.md LICENSE && /opt/geoseg/bin/pip install ${TORCH_INDEX:+--extra-index-url ${TORCH_INDEX}} ${PIP_ARGS} -c constraints.txt . \
    && /opt/geoseg/bin/pip uninstall -y geoseg
COPY README.md LICENSE ./
COPY geoseg geoseg
RUN /opt/geoseg/bin/pip install --no-deps ${PIP_ARGS} -c constraints.txt . \
    && /opt/geoseg/bin/pip uninstall -y pip \
    # Tests and C++ headers of others: a seventh of the size, of no use without a compiler.
    && cd /opt/geoseg/lib/python3*/site-packages \
    && rm -rf torch/test torch/include pyarrow/include pyarrow/tests pandas/tests \
    && find torch/bin -type f ! -name torch_shm_manager -delete \
    && find scipy sympy networkx -type d -name tests -prune -exec rm -rf {} + \
    && /opt/geoseg/bin/python -c "import torch, scipy.stats, sympy, pandas, pyarrow.parquet, albumentations, geoseg.cli"

FROM ${PYTHON_IMAGE}
LABEL org.opencontainers.image.title="geoseg" org.opencontainers.image.licenses="MIT"
RUN useradd --create-home --uid 1000 geoseg
COPY --from=build /opt/geoseg /opt/geoseg
# Any user id and a read-only root file system work: whatever wants to write a cache is sent to /tmp.
ENV PATH=/opt/geoseg/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    NO_ALBUMENTATIONS_UPDATE=1 \
    HOME=/tmp
USER geoseg
WORKDIR /data
# Python itself is process 1 and geoseg handles SIGTERM: `docker stop` ends a run cleanly with exit code 130.
ENTRYPOINT ["geoseg"]
CMD []
