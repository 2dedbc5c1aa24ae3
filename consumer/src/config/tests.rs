//! Tests of settings from flags, environment and files.

use std::{io::Write, time::Duration};

use proto::units::DspId;

use super::*;

fn load(arguments: &[&str]) -> Result<Config, String> {
    let arguments = ["consumer"].into_iter().chain(arguments.iter().copied());
    Config::load(arguments.map(OsString::from)).map_err(|error| error.to_string())
}

fn file(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

#[track_caller]
fn check_producers(args: &Args, expected: &[&str]) {
    let producers: Vec<_> = args
        .producers
        .producer
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(producers, expected);
}

#[test]
fn defaults_are_the_documented_ones() {
    let args = load(&[]).unwrap().args;
    check_producers(&args, &["http://127.0.0.1:7676"]);
    assert_eq!(args.storage.store, StoreConfig::Embedded("./data".into()));
    assert_eq!(args.storage.flush_interval, Duration::from_millis(200));
    assert_eq!(args.process.admin, "127.0.0.1:9091".parse().unwrap());
    assert_eq!(args.storage.buffer_bytes, 16 << 20);
    assert_eq!(args.retention.ttl, Duration::from_secs(14 * 86_400));
    assert_eq!(args.retention.dsp_ttl, []);
    assert_eq!(args.retention.ttl_floor, None);
    assert_eq!(args.retention.refresh_interval, Duration::from_secs(3600));
    assert_eq!(args.retention.refresh_bytes, 256 << 20);
    assert_eq!(args.maintenance.expiry_window.to_string(), "01:00-03:00");
    assert_eq!(
        args.maintenance.compaction_window.to_string(),
        "03:00-06:00"
    );
    assert_eq!(args.process.drain_timeout, Duration::from_secs(10));
    assert!(!args.producers.name.is_empty());
}

#[test]
fn flag_beats_file_beats_default() {
    let file = file(
        "ttl = '7d'\ndsp_ttl = ['17=1h']\nflush_interval = '1s'\nbatch_cookies = 5\nbuffer_bytes = '64MiB'\n\
         producer = ['http://a:1', 'http://b']\n",
    );
    let file = file.path().to_str().unwrap();
    let args = load(&["--config", file, "--flush-interval", "50ms"])
        .unwrap()
        .args;
    assert_eq!(args.storage.flush_interval, Duration::from_millis(50));
    assert_eq!(args.retention.ttl, Duration::from_secs(7 * 86_400));
    assert_eq!(
        args.retention.dsp_ttl,
        [(DspId(17), Duration::from_secs(3600))]
    );
    assert_eq!(args.storage.batch_cookies, 5);
    assert_eq!(args.storage.buffer_bytes, 64 << 20);
    check_producers(&args, &["http://a:1", "http://b:7676"]);
}

#[cfg(feature = "archive")]
#[test]
fn follower_needs_an_archive_and_no_producers() {
    let follow = ["--archive-mode", "follow"];
    let archive = ["--archive", "nats://127.0.0.1/COOKIES"];
    assert!(!load(&archive).unwrap().is_follower);
    assert!(load(&[follow, archive].concat()).unwrap().is_follower);
    let error = load(&follow).unwrap_err();
    assert!(error.contains("--archive-mode follow: requires --archive"));
    let producer = ["--producer", "http://a:1"];
    let error = load(&[follow, archive, producer].concat()).unwrap_err();
    assert!(
        error.contains("--archive-mode follow: reads nothing from producers; remove --producer")
    );
}

#[test]
fn producers_are_repeatable_and_comma_separated() {
    let two = "--producer=http://a:1,http://b:2";
    let args = load(&[two, "--producer", "http://[::1]:3"]).unwrap().args;
    check_producers(&args, &["http://a:1", "http://b:2", "http://[::1]:3"]);
}

#[test]
fn all_errors_are_reported_together() {
    let file = file("flush = '1s'\nname = []\nadmin = 'here'\nstore = ['none']\n");
    let config = format!("--config={}", file.path().display());
    let arguments = [
        "--producer=ftp://a,http://b:1",
        "--store=mangodb://user:secret@host",
        "--batch-cookies=0",
        "--buffer-bytes=1KiB",
        "--ttl=2 years",
        "--dsp-ttl=17,0=1d,18=1d,18=2d,19=0s",
        "--ttl-floor=0s",
        "--refresh-interval=often",
        "--refresh-bytes=1",
        "--mongodb-prefix=a.b",
        "--expiry-window=noon",
        "--compaction-window=",
        "--time-zone=Mars/Base",
        "--drain-timeout=soon",
        "--log-filter=inof",
        "--log-format=xml",
    ];
    let errors = load(&[&[config.as_str()], &arguments[..]].concat()).unwrap_err();
    let flags = arguments.map(|argument| argument.split_once('=').unwrap().0);
    let in_file = [
        "unknown key flush",
        "name must be a single value",
        "store must be a single value",
        "--admin",
    ];
    for part in flags.iter().chain(&in_file) {
        assert!(errors.contains(part), "{part} is missing in {errors}");
    }
    assert!(!errors.contains("secret"), "{errors}");
}

#[test]
fn ttl_floor_above_every_ttl_is_an_error() {
    let load = |floor: &str| load(&["--ttl=7d", "--dsp-ttl=17=9d", floor]);
    assert!(load("--ttl-floor=9d").is_ok());
    let error = load("--ttl-floor=10d").unwrap_err();
    assert!(
        error.contains("--ttl-floor: exceeds every time to live"),
        "{error}"
    );
}

#[test]
fn credentials_are_never_printed() {
    for uri in [
        "mongodb://user:secret@host:27017/db?authSource=secret",
        "mongodb://host/?authMechanismProperties=AWS_SESSION_TOKEN:secret",
    ] {
        let file = file(&format!("store = '{uri}'"));
        let file = format!("--config={}", file.path().display());
        let store = format!("--store={uri}");
        for argument in [&file, &store] {
            let config = load(&[argument]).unwrap();
            assert_eq!(
                config.args.storage.store,
                StoreConfig::Mongodb(uri.to_owned())
            );
            let text = format!("{config:?}");
            assert!(!text.contains("secret"), "{text}");
            assert!(text.contains("host"), "{text}");
            for also in ["--help", "--ttl=never"] {
                let text = load(&[argument, also]).unwrap_err();
                assert!(!text.contains("secret"), "{text}");
            }
        }
    }
}

#[test]
fn connection_string_printed_without_credentials_is_rejected() {
    for store in [
        "mongodb://***@host/",
        "mongodb://host/?***",
        "mongodb+srv://***@host/db?***",
    ] {
        let error = load(&[&format!("--store={store}")]).unwrap_err();
        assert!(
            error.contains("--store: the credentials were removed"),
            "{error}"
        );
    }
}

#[test]
fn connection_string_that_needs_the_full_build_is_rejected_with_a_fix() {
    for (store, what) in [
        ("mongodb+srv://host/", Some("SRV")),
        ("mongodb://host/?compressors=snappy,zstd", Some("zstd")),
        ("mongodb://host/?w=1&Compressors=ZSTD", Some("zstd")),
        ("mongodb://host/zstd?compressors=zlib", None),
    ] {
        let loaded = load(&[&format!("--store={store}")]);
        match what.filter(|_| !cfg!(feature = "full")) {
            None => assert!(loaded.is_ok(), "{store}: {loaded:?}"),
            Some(what) => {
                let error = loaded.unwrap_err();
                assert!(error.contains(what), "{store}: {error}");
                assert!(error.contains("consumer/full"), "{store}: {error}");
            }
        }
    }
}

#[test]
fn invalid_connection_string_option_is_rejected_with_a_fix() {
    let long = "a".repeat(129);
    let long = format!("appName={long}");
    for (option, named, instead) in [
        ("w=0", "w=0 ", "use majority"),
        ("W=00", "w=0 ", "use majority"),
        ("w=0&journal=true", "w=0 ", "use majority"),
        ("w=51", "w=51 ", "1 to 50"),
        ("w=", "w= ", "use majority"),
        ("maxPoolSize=0", "maxPoolSize=0 ", "1 or more"),
        ("maxpoolsize=%30", "maxPoolSize=0 ", "1 or more"),
        ("maxConnecting=0", "maxConnecting=0 ", "1 or more"),
        (
            "heartbeatFrequencyMS=499",
            "heartbeatFrequencyMS=499 ",
            "500 or more",
        ),
        ("socketTimeoutMS=1", "socketTimeoutMS=1 ", "omit it"),
        ("loadBalanced=true", "loadBalanced=true ", "omit it"),
        ("readConcernLevel=lokal", "readConcernLevel=lokal ", "local"),
        (&long, &long, "128 bytes"),
        (
            "readPreference=secondary&maxStalenessSeconds=1",
            "staleness",
            "90",
        ),
    ] {
        let loaded = load(&[&format!("--store=mongodb://user:secret@host/?{option}")]);
        let error = loaded.expect_err(option);
        for part in ["--store", named, instead] {
            assert!(error.contains(part), "{part} is missing in {error}");
        }
        assert!(!error.contains("secret"), "{error}");
    }
    let seeds = "--store=mongodb://user:secret@host,other/?directConnection=true";
    let error = load(&[seeds]).unwrap_err();
    assert!(error.contains("directConnection=true"), "{error}");
    assert!(!error.contains("secret"), "{error}");
    for option in [
        "w=1",
        "w=majority",
        "journal=false",
        "wtimeoutMS=1",
        "maxPoolSize=1",
        "heartbeatFrequencyMS=500",
        "retryWrites=false",
        "readPreference=secondaryPreferred",
        "readConcernLevel=majority",
        "readConcernLevel=linearizable",
        "loadBalanced=false",
        &long[..long.len() - 1],
    ] {
        let loaded = load(&[&format!("--store=mongodb://host/?{option}")]);
        assert!(loaded.is_ok(), "{option}: {loaded:?}");
    }
}

#[test]
fn syntax_error_of_a_file_does_not_print_the_line() {
    let file = file("name = 'node'\nstore = \"mongodb://user:secret@host\n");
    let error = load(&[&format!("--config={}", file.path().display())]).unwrap_err();
    assert!(error.contains("line 2: "), "{error}");
    assert!(!error.contains("secret"), "{error}");
}

#[test]
fn https_needs_a_ca_and_tls_files_need_an_https_producer() {
    let error = load(&["--producer=https://a"]).unwrap_err();
    assert!(error.contains("--tls-ca: required"), "{error}");
    let error = load(&["--producer=http://a", "--tls-server-name=b"]).unwrap_err();
    assert!(error.contains("no producer URL is https://"), "{error}");
}

#[test]
fn all_tls_errors_are_reported_together() {
    let file = file("not a certificate");
    let path = file.path().display();
    let error = load(&[
        "--producer=https://a",
        &format!("--tls-ca={path}"),
        "--tls-cert=/no/such/certificate",
        &format!("--tls-key={path}"),
        "--token-file=/no/such/token",
        "--tls-server-name=a b",
    ]);
    let error = error.unwrap_err();
    for part in ["--tls-cert", "--token-file", "--tls-server-name"] {
        assert!(error.contains(part), "{part} is missing in {error}");
    }
    let authority = format!("--tls-ca={path}");
    let error = load(&["--producer=https://a", &authority]).unwrap_err();
    assert!(error.contains("contains no certificate"), "{error}");
}

#[test]
fn https_producers_keep_their_scheme() {
    let url = parse::parse_producer("https://[::1]:1").unwrap();
    assert_eq!(url.to_string(), "https://[::1]:1");
    let url = parse::parse_producer("https://a.example").unwrap();
    assert_eq!(url.to_string(), "https://a.example:7676");
}
