//! Tests of valid and invalid settings.

use std::time::Duration;

use proto::limits;

use super::*;

fn load(arguments: &[&str]) -> Result<Config, clap::Error> {
    let arguments = ["producer"].into_iter().chain(arguments.iter().copied());
    Config::load(arguments.map(OsString::from))
}

#[test]
fn defaults_are_the_documented_ones() {
    let config = load(&[]).unwrap();
    assert_eq!(config.network.http, "0.0.0.0:8080".parse().unwrap());
    assert_eq!(config.network.grpc, "127.0.0.1:7676".parse().unwrap());
    assert_eq!(config.network.admin, "127.0.0.1:9090".parse().unwrap());
    assert_eq!(config.retention.log_bytes, 1 << 30);
    assert_eq!(config.retention.chunk_bytes, limits::CHUNK_BYTES_DEFAULT);
    assert_eq!(config.retention.rewind_bytes, limits::REWIND_BYTES_DEFAULT);
    assert_eq!(config.limits.in_flight_bytes, 256 << 20);
    assert_eq!(
        config.retention.subscriber_retention,
        Duration::from_secs(60)
    );
    assert_eq!(config.shutdown.drain_timeout, Duration::from_secs(10));
    assert_eq!(config.limits.http_connections_per_address, None);
    assert_eq!(config.limits.grpc_connections_per_address, None);
    assert_eq!(config.shutdown.drain_delay, Duration::ZERO);
}

#[test]
fn grpc_address_beyond_loopback_requires_authentication_or_an_explicit_setting() {
    for (flags, is_valid) in [
        (&["--grpc=127.0.0.1:1"][..], true),
        (&["--grpc=127.9.9.9:1"], true),
        (&["--grpc=[::1]:1"], true),
        (&["--grpc=0.0.0.0:1"], false),
        (&["--grpc=[::]:1"], false),
        (&["--grpc=192.0.2.1:1"], false),
        (&["--grpc=0.0.0.0:1", "--grpc-insecure=false"], false),
        (
            &["--grpc=0.0.0.0:1", "--tls-cert=/none", "--tls-key=/none"],
            false,
        ),
        (&["--grpc=0.0.0.0:1", "--grpc-insecure"], true),
        (&["--grpc=0.0.0.0:1", "--token-file=/none"], true),
        (&["--grpc=0.0.0.0:1", "--tls-client-ca=/none"], true),
    ] {
        let error = load(flags).map_or_else(|error| error.to_string(), |_| String::new());
        let expected = "is not a loopback address: set --token-file or --tls-client-ca, or";
        assert_eq!(error.contains(expected), !is_valid, "{flags:?}: {error}");
    }
}

#[test]
fn load_balancers_are_addresses_or_networks() {
    let config = load(&["--proxy-protocol-from=10.0.0.0/8,192.0.2.1, 2001:db8::/32"]).unwrap();
    let proxies = format!("{:?}", config.network.proxies());
    for network in ["10.0.0.0/8", "192.0.2.1/32", "2001:db8::/32"] {
        assert!(proxies.contains(network), "{proxies}");
    }
    for none in [&[][..], &["--proxy-protocol-from="]] {
        assert!(load(none).unwrap().network.proxies().is_empty());
    }
}

#[test]
fn cookies_and_origins_of_the_opt_out_page_are_validated() {
    for flags in [
        &[
            "--opt-out",
            "--public-origin=https://a.example,http://localhost:8080",
        ][..],
        &["--opt-out", "--opt-out-frame-origin=https://a.example"],
        &[
            "--opt-out-cookie=optout=1,other=yes",
            "--uid-cookie=__Host-uid",
        ],
        &["--uid-cookie-domain=a.example", "--uid-cookie-max-age=90d"],
    ] {
        load(flags).unwrap();
    }
    for (flags, error) in [
        (
            &["--public-origin=https://a.example"][..],
            "--public-origin: has no effect",
        ),
        (
            &["--opt-out", "--public-origin=a.example"],
            "--public-origin: invalid origin",
        ),
        (
            &["--opt-out-frame-origin=https://a.example"],
            "--opt-out-frame-origin: has no effect",
        ),
        (
            &["--opt-out-cookie=optout"],
            "--opt-out-cookie: invalid cookie",
        ),
        (&["--uid-cookie=a b"], "--uid-cookie: invalid cookie name"),
        (
            &["--uid-cookie=optout", "--opt-out-cookie=optout=1"],
            "is the opt-out cookie",
        ),
        (
            &["--uid-cookie-domain=localhost"],
            "--uid-cookie-domain: invalid host",
        ),
        (
            &["--uid-cookie-domain=192.0.2.1"],
            "--uid-cookie-domain: `192.0.2.1`",
        ),
        (
            &["--uid-cookie=__Host-uid", "--uid-cookie-domain=a.example"],
            "--uid-cookie-domain: ",
        ),
        (&["--uid-cookie-max-age=401d"], "--uid-cookie-max-age: "),
        (&["--uid-cookie-max-age=0s"], "--uid-cookie-max-age: "),
    ] {
        let found = load(flags).unwrap_err().to_string();
        assert!(found.contains(error), "{flags:?}: {found}");
    }
}

#[test]
fn all_errors_are_reported_together() {
    let arguments = [
        "--http=nowhere",
        "--proxy-protocol-from=10.0.0.0/33",
        "--log-bytes=12 parsecs",
        "--chunk-bytes=2MiB",
        "--chunk-age=0s",
        "--queue-cookies=-1",
        "--in-flight-bytes=63KiB",
        "--http-connections-per-address=0",
        "--grpc-connections-per-address=many",
        "--contracts=/no/such/contracts.toml",
        "--tls-cert=/no/such/certificate.pem",
        "--tls-key=/no/such/key.pem",
        "--tls-client-ca=/no/such/authority.pem",
        "--token-file=/no/such/tokens",
        "--http-tls-cert=/no/such/certificate.pem",
        "--http-tls-key=/no/such/key.pem",
        "--drain-delay=soon",
        "--log-filter=inof",
        "--log-format=xml",
    ];
    let error = load(&arguments).unwrap_err().to_string();
    for flag in arguments.map(|argument| argument.split_once('=').unwrap().0) {
        assert!(error.contains(flag), "{flag} is missing in: {error}");
    }
}

#[test]
fn in_flight_bytes_cover_at_least_one_stalled_stream() {
    for (in_flight, chunk, is_enough) in [
        ("447KiB", "64KiB", false),
        ("448KiB", "64KiB", true),
        ("448KiB", "1MiB", false),
    ] {
        let flags = [
            &*format!("--in-flight-bytes={in_flight}"),
            &*format!("--chunk-bytes={chunk}"),
        ];
        let loaded = load(&flags).map_err(|error| error.to_string());
        match loaded {
            Ok(_) => assert!(is_enough, "{flags:?}"),
            Err(error) => assert!(!is_enough && error.contains("--in-flight-bytes"), "{error}"),
        }
    }
}

#[test]
fn certificate_without_key_and_key_without_certificate_are_errors() {
    for (given, missing) in [
        ("--tls-cert", "--tls-key"),
        ("--tls-key", "--tls-cert"),
        ("--tls-client-ca", "--tls-cert"),
        ("--http-tls-cert", "--http-tls-key"),
        ("--http-tls-key", "--http-tls-cert"),
    ] {
        let error = load(&[given, "/some/file"]).unwrap_err().to_string();
        let expected = format!("{given}: requires {missing}");
        assert!(error.contains(&expected), "no {expected:?} in: {error}");
    }
}

#[test]
fn placeholders_are_accepted_only_without_contracts() {
    let config = load(&["--accept-placeholders"]).unwrap();
    assert!(config.dsps.accept_placeholders);
    assert!(!load(&[]).unwrap().dsps.accept_placeholders);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, "[dsp.17]").unwrap();
    let contracts = format!("--contracts={}", file.path().display());
    let error = load(&["--accept-placeholders", &contracts]).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("--accept-placeholders: has no effect")
    );
}
