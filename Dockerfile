# MirrorFlow's images: docker build --target operator|replicator|seed|cli|console --tag mirrorflow/<target>:<version> .
#
# Each is Python's own slim image and one folder, /opt/mirrorflow: no compiler, no package manager's cache, nothing that is
# written at run time but /tmp. Any user id may run it, on a read-only root file system. `seed` has Spark and Java besides.

# A release names it with its digest, which `make pin` writes here.
ARG PYTHON=python:3.13-slim

FROM $PYTHON AS packages
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /source
RUN python3 -m venv --without-pip /opt/mirrorflow
# Empty folders in place of our own code: who changes that keeps the layers with what others have made.
COPY pyproject.toml constraints.txt README.md LICENSE ./
RUN mkdir -p operator/mirrorflow_operator replicator/mirrorflow_core replicator/mirrorflow_kafka \
    replicator/mirrorflow_replicator replicator/mirrorflow_cli replicator/mirrorflow_console replicator/mirrorflow_kubernetes \
    replicator/mirrorflow_seed

FROM packages AS wheel
COPY operator operator
COPY replicator replicator
# Pages of the documentation that the console shows: its package links to them.
COPY docs/runbooks.md docs/conditions.md docs/
RUN pip wheel --no-deps --wheel-dir /wheels .

FROM packages AS replicator-packages
RUN pip --python /opt/mirrorflow install --constraint constraints.txt '.[replicator,rehearsal]'
COPY --from=wheel /wheels /wheels
RUN pip --python /opt/mirrorflow install --no-deps --force-reinstall /wheels/*.whl

FROM packages AS cli-packages
# The official Kubernetes client is 116 MB and has everything twice, for threads and for asyncio. Each image keeps what its programs import.
RUN pip --python /opt/mirrorflow install --constraint constraints.txt '.[cli]' \
    && rm -r /opt/mirrorflow/lib/python3.*/site-packages/kubernetes/aio
COPY --from=wheel /wheels /wheels
RUN pip --python /opt/mirrorflow install --no-deps --force-reinstall /wheels/*.whl

FROM packages AS console-packages
RUN pip --python /opt/mirrorflow install --constraint constraints.txt '.[console]' \
    && rm -r /opt/mirrorflow/lib/python3.*/site-packages/kubernetes/aio
COPY --from=wheel /wheels /wheels
RUN pip --python /opt/mirrorflow install --no-deps --force-reinstall /wheels/*.whl

FROM packages AS operator-packages
# Requests of asyncio have dicts in and out, so they need none of the classes in `api`.
RUN pip --python /opt/mirrorflow install --constraint constraints.txt '.[operator]' \
    && rm -r /opt/mirrorflow/lib/python3.*/site-packages/kubernetes/client \
        /opt/mirrorflow/lib/python3.*/site-packages/kubernetes/aio/client/api
COPY --from=wheel /wheels /wheels
RUN pip --python /opt/mirrorflow install --no-deps --force-reinstall /wheels/*.whl

# Java's modules that Spark, Hadoop's idea of a user and the Kubernetes client load; and a library that gives a user id a name,
# because Hadoop refuses to run as a number.
FROM $PYTHON AS java
WORKDIR /packages
# Unpacked, not installed: what a desktop's Java depends on is not wanted.
RUN apt-get update -qq \
    && apt-get download -qq openjdk-21-jdk-headless openjdk-21-jre-headless libnss-wrapper \
    && for package in *.deb; do dpkg-deb --extract "$package" /; done \
    && /usr/lib/jvm/java-21-openjdk-*/bin/jlink --strip-java-debug-attributes --no-man-pages --no-header-files \
        --compress=zip-6 --output /opt/java --add-modules java.compiler,java.desktop,java.instrument,java.logging,java.management,java.naming,java.net.http,java.scripting,java.security.jgss,java.security.sasl,java.sql,java.xml,jdk.crypto.ec,jdk.incubator.vector,jdk.management,jdk.security.auth,jdk.unsupported \
    && cp /usr/lib/*/libnss_wrapper.so /opt/java/lib/ \
    && rm -r *.deb /usr/lib/jvm /var/lib/apt/lists/*

# Spark's Java half leaves Python's packages, and shrinks. Of our code only the list is here, so that these layers last.
FROM packages AS seed-packages
COPY replicator/mirrorflow_seed/jars.py /source/
RUN pip --python /opt/mirrorflow install --constraint constraints.txt '.[seed]' \
    && python3 jars.py /opt/mirrorflow/lib/python3.*/site-packages/pyspark /opt/spark
COPY --from=wheel /wheels /wheels
RUN pip --python /opt/mirrorflow install --no-deps --force-reinstall /wheels/*.whl

FROM $PYTHON AS base
ENV PATH=/opt/mirrorflow/bin:$PATH HOME=/tmp PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
LABEL org.opencontainers.image.licenses=Apache-2.0
USER 65532:65532

FROM base AS replicator
LABEL org.opencontainers.image.title="MirrorFlow replicator"
COPY --from=replicator-packages /opt/mirrorflow /opt/mirrorflow
ENTRYPOINT ["mirrorflow-replicator"]

FROM base AS cli
LABEL org.opencontainers.image.title="MirrorFlow command"
COPY --from=cli-packages /opt/mirrorflow /opt/mirrorflow
ENTRYPOINT ["mirrorflow"]

FROM base AS console
LABEL org.opencontainers.image.title="MirrorFlow console"
COPY --from=console-packages /opt/mirrorflow /opt/mirrorflow
ENTRYPOINT ["mirrorflow-console"]

FROM base AS operator
LABEL org.opencontainers.image.title="MirrorFlow operator"
COPY --from=operator-packages /opt/mirrorflow /opt/mirrorflow
ENTRYPOINT ["mirrorflow-operator"]

FROM base AS seed
LABEL org.opencontainers.image.title="MirrorFlow seed"
ENV JAVA_HOME=/opt/java SPARK_HOME=/opt/spark \
    PYSPARK_PYTHON=/opt/mirrorflow/bin/python3 PYSPARK_DRIVER_PYTHON=/opt/mirrorflow/bin/python3
COPY --from=java /opt/java /opt/java
COPY --from=seed-packages /opt/spark /opt/spark
COPY --from=seed-packages /opt/mirrorflow /opt/mirrorflow
# The program of a SparkApplication: spark-submit takes one for Python by its suffix.
COPY --from=wheel /source/replicator/mirrorflow_seed/__main__.py /opt/mirrorflow/seed.py
ENTRYPOINT ["mirrorflow-seed"]
