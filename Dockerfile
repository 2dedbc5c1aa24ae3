# syntax=docker/dockerfile:1
#
# Builds one image with all programs, which are statically linked, on a base image without a shell:
#
#   docker build -t cookiesync .
#   docker run cookiesync producer --help
#
# Needs BuildKit (default since Docker 23), which caches the compiled dependencies. .ci/image builds and tests the same files
# without a container.

# Debian 12 has glibc 2.36; deploy/build-static explains the requirement.
FROM rust:1.95-slim-bookworm AS build
WORKDIR /src
COPY . .
# The commit, for <process>_build_info: --build-arg REVISION=$(git rev-parse HEAD)
ARG REVISION=unknown
RUN --mount=type=cache,target=/usr/local/cargo/registry,sharing=locked \
    --mount=type=cache,target=/src/target,sharing=locked \
    COOKIESYNC_COMMIT=$REVISION deploy/build-static /out
RUN mkdir /state

# The base image contains /etc/passwd, time zones (for `consumer --time-zone`) and CA certificates, but no programs.
FROM gcr.io/distroless/static-debian12:nonroot
COPY --from=build /out/producer /out/consumer /out/cookiesync /out/limiter /out/revalidator /out/bench /usr/local/bin/
# Default directory of dead letters, the embedded store and the limiter's state, and a place for `producer --state`.
COPY --from=build --chown=65532:65532 /state /var/lib/cookiesync
WORKDIR /var/lib/cookiesync
USER 65532:65532
STOPSIGNAL SIGTERM
# The program itself is the health check, because the image has no shell or curl. Set `--admin` with PRODUCER_ADMIN,
# CONSUMER_ADMIN, LIMITER_ADMIN or REVALIDATOR_ADMIN, because the check reads only the environment. Use --no-healthcheck with
# `bench`, `cookiesync` and with --init.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s CMD ["/proc/1/exe", "--probe"]
# producer: sync requests, gRPC, admin; consumer: admin; limiter and revalidator: API, admin. Without `--admin 0.0.0.0:…`, the admin
# ports are on loopback. Without `--listen` and `--token-file`, the API is on loopback.
EXPOSE 8080 7676 9090 9091 9099 9098 9096 9097

ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="cookiesync" \
      org.opencontainers.image.description="Receives cookie syncs over HTTP and writes each to the store of every exchange node" \
      org.opencontainers.image.licenses="MIT OR Apache-2.0" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION"
