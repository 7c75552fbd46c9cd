# The page and the service of `ananet web`, on a CPU:
#
#     docker build -t ananet .
#     docker run --rm --read-only --tmpfs /tmp -p 127.0.0.1:8000:8000 -e ANANET_WEB_TOKEN=... ananet
# By digest, and all packages by version (tools/pin_container.py): the same today and tomorrow.
ARG BASE=python:3.11-slim@sha256:9c900dea9e8fb7e16277c179b555cc72d29a352dbc33cff48ad5a0412fd5bfc7
FROM $BASE AS build
RUN python -m venv /opt/ananet
WORKDIR /source
COPY container.txt ./
# PyTorch's builds for CPUs are a tenth of the size of those with CUDA.
RUN /opt/ananet/bin/pip install --no-cache-dir --constraint container.txt torch \
    --index-url https://download.pytorch.org/whl/cpu --extra-index-url https://pypi.org/simple
COPY pyproject.toml README.md LICENSE ./
COPY src src
# Built outside of the environment, by pinned tools.
RUN pip install --no-cache-dir --constraint container.txt hatchling \
    && pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels . \
    && /opt/ananet/bin/pip install --no-cache-dir --constraint container.txt "$(echo /wheels/*.whl)[web]"

FROM $BASE
RUN useradd --system --no-create-home --uid 10001 ananet
COPY --from=build /opt/ananet /opt/ananet
USER ananet
ENV PATH=/opt/ananet/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
EXPOSE 8000
HEALTHCHECK --start-period=30s CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/healthz', timeout=3)"]
# Inside the container; which address of the host it is published at is for `docker run -p` to say.
CMD ["ananet", "web", "--host", "0.0.0.0", "--device", "cpu"]
