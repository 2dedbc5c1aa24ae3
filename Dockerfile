# syntax=docker/dockerfile:1
#
# One image with all programs, static, on a base without a shell:
#
#   docker build -t cookiesync .
#   docker run cookiesync producer --help
#
# Needs BuildKit, which Docker has had on by default since 23. What it compiled of the dependencies stays in a cache of the builder,
# keyed by the lock file's contents as cargo does it, so a change of our sources compiles only those.
# .ci/image builds and tries the same files without a container.

# Debian 12's glibc is 2.36; deploy/build-static says why that matters.
FROM rust:1.95-slim-bookworm AS build
WORKDIR /src
COPY . .
# The commit, for <process>_build_info: --build-arg REVISION=$(git rev-parse HEAD)
ARG REVISION=unknown
RUN --mount=type=cache,target=/usr/local/cargo/registry,sharing=locked \
    --mount=type=cache,target=/src/target,sharing=locked \
    COOKIESYNC_COMMIT=$REVISION deploy/build-static /out
RUN mkdir /state

# Has /etc/passwd, time zones (for `consumer --time-zone`) and authorities' certificates, and nothing that runs.
FROM gcr.io/distroless/static-debian12:nonroot
COPY --from=build /out/producer /out/consumer /out/limiter /out/bench /usr/local/bin/
# Where `consumer` puts its dead letters and its embedded store and `limiter` its state unless told otherwise, and `producer --state` may point.
COPY --from=build --chown=65532:65532 /state /var/lib/cookiesync
WORKDIR /var/lib/cookiesync
USER 65532:65532
STOPSIGNAL SIGTERM
# There is no shell or curl to ask with, but the program that runs asks itself: ready, or why not, at the address of its settings. So
# give `--admin` as PRODUCER_ADMIN, CONSUMER_ADMIN or LIMITER_ADMIN, which it sees here too. With `bench`, and with --init, which puts another
# program there: --no-healthcheck.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s CMD ["/proc/1/exe", "--probe"]
# producer: sync requests, gRPC, admin; consumer: admin; limiter: calls, admin. The admin ports are on loopback until
# `--admin 0.0.0.0:…`, and so are calls of the limiter until `--listen` and `--token-file`.
EXPOSE 8080 7676 9090 9091 9099 9098

ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="cookiesync" \
      org.opencontainers.image.description="Takes cookie syncs over HTTP and puts each into the store beside every exchange node" \
      org.opencontainers.image.licenses="MIT OR Apache-2.0" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION"
