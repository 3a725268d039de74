# The demo in a container that may write nowhere but to /tmp and to what is mounted at /runs:
#
#   docker build -t fkgsec .
#   docker run --rm --read-only --tmpfs /tmp --network none fkgsec
#   docker run --rm --read-only --tmpfs /tmp --network none -v "$PWD/runs:/runs" -v "$PWD/my-federation:/data:ro" fkgsec \
#     attack --data /data --target fede --out /runs/mine  # runs/ is writable for uid 1000
#
# requirements.run.lock has what a run needs, without packages for tests and documentation, which ask for Python 3.11.5 or newer; any 3.11
# is enough for it. Where PyTorch's index cannot be reached, --build-arg TORCH_INDEX=... names another one that has torch as pinned there.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
FROM python:3.11-slim AS build
ARG TORCH_INDEX
WORKDIR /source
COPY requirements.run.lock ./
RUN python -m venv /opt/fkgsec \
 && /opt/fkgsec/bin/pip install --no-cache-dir --require-hashes --extra-index-url "$TORCH_INDEX" -r requirements.run.lock
COPY pyproject.toml README.md LICENSE ./
COPY fkgsec fkgsec
COPY attacks attacks
COPY defenses defenses
COPY protocols protocols
COPY experiments experiments
RUN /opt/fkgsec/bin/pip install --no-cache-dir --no-deps --no-build-isolation .

FROM python:3.11-slim
RUN useradd --uid 1000 --create-home fkgsec && mkdir /runs && chown fkgsec /runs
COPY --from=build /opt/fkgsec /opt/fkgsec
ENV PATH=/opt/fkgsec/bin:$PATH MPLCONFIGDIR=/tmp/matplotlib NUMBA_CACHE_DIR=/tmp/numba
USER fkgsec
WORKDIR /tmp
ENTRYPOINT ["fkgsec"]
CMD ["attack", "--target", "fede", "--leak", "0.5", "--rounds", "60", "--out", "/tmp/demo"]
