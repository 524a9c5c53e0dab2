# MirrorFlow's images: docker build --target operator|replicator --tag mirrorflow/<target>:<version> .
#
# Each is Python's own slim image and one folder, /opt/mirrorflow: no compiler, no package manager's cache, nothing that is
# written at run time but /tmp. Any user id may run it, on a read-only root file system.

FROM python:3.13-slim AS packages
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /source
RUN python3 -m venv --without-pip /opt/mirrorflow
# Empty folders in place of our own code: who changes that keeps the layers with what others have made.
COPY pyproject.toml README.md LICENSE ./
RUN mkdir -p operator/mirrorflow_operator replicator/mirrorflow_replicator replicator/mirrorflow_cli

FROM packages AS wheel
COPY operator operator
COPY replicator replicator
RUN pip wheel --no-deps --wheel-dir /wheels .

FROM packages AS replicator-packages
RUN pip --python /opt/mirrorflow install '.[replicator]'
COPY --from=wheel /wheels /wheels
RUN pip --python /opt/mirrorflow install --no-deps --force-reinstall /wheels/*.whl

FROM packages AS operator-packages
RUN pip --python /opt/mirrorflow install '.[operator]'
COPY --from=wheel /wheels /wheels
RUN pip --python /opt/mirrorflow install --no-deps --force-reinstall /wheels/*.whl

FROM python:3.13-slim AS base
ENV PATH=/opt/mirrorflow/bin:$PATH HOME=/tmp PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
LABEL org.opencontainers.image.licenses=Apache-2.0
USER 65532:65532

FROM base AS replicator
LABEL org.opencontainers.image.title="MirrorFlow replicator"
COPY --from=replicator-packages /opt/mirrorflow /opt/mirrorflow
ENTRYPOINT ["mirrorflow-replicator"]

FROM base AS operator
LABEL org.opencontainers.image.title="MirrorFlow operator"
COPY --from=operator-packages /opt/mirrorflow /opt/mirrorflow
ENTRYPOINT ["mirrorflow-operator"]
