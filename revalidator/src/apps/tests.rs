//! Tests of the applications file.

use std::time::Duration;

use runtime::reload::Reloader;

use super::*;
use crate::messages::AllowDelete;

#[test]
fn minimal_application_has_the_documented_defaults() {
    let apps = Apps::parse("[apps.shop]\nkind = \"list\"\nhosts = [\"shop.example\"]\n").unwrap();
    let app = apps.get("shop").unwrap();
    let it = &app.settings;
    assert_eq!((it.allow_delete, it.workers), (AllowDelete::None, 1));
    assert_eq!(
        (it.concurrency.min, it.concurrency.max, it.concurrency.step),
        (6, 20, 2)
    );
    assert_eq!(it.concurrency.first, Duration::from_millis(350));
    assert_eq!(it.concurrency.worse_by, Duration::from_millis(100));
    assert!((it.max_removals - 0.2).abs() < 1e-9);
}

/// Checks the errors of a file: their settings, in any order.
#[track_caller]
fn check_errors(text: &str, expected: &[&str]) {
    let errors = Apps::parse(text).unwrap_err();
    let setting = |error: &String| error.split(": ").take(2).collect::<Vec<_>>().join(" ");
    let mut found: Vec<_> = errors.iter().map(setting).collect();
    let mut expected = expected.to_vec();
    found.sort_unstable();
    expected.sort_unstable();
    assert_eq!(found, expected, "{errors:#?}");
}

#[test]
fn errors_of_all_applications_are_reported_together() {
    let text = r#"
        colour = "red"
        [apps.Shop]
        kind = "list"
        hosts = ["a.example"]
        http_hosts = ["x"]
        max_removals = 2.0
        workers = 65
        normalize = ["("]
        contents = "ftp://x"
        limit = "/x"
        schedule = "daily"
        concurrency = { min = 9, max = 8 }
        ca_file = "/none"
        [apps.two]
        kind = "list"
        hosts = []
    "#;
    let settings = "name http_hosts max_removals workers normalize contents limit schedule concurrency ca_file";
    let settings = settings.split(' ').map(|it| format!("apps.Shop {it}"));
    let all: Vec<_> = settings.chain(["apps.two hosts".to_owned()]).collect();
    let mut all: Vec<_> = all.iter().map(String::as_str).collect();
    all.push("colour unknown setting");
    check_errors(text, &all);
}

#[test]
fn error_of_a_type_hides_no_other_error() {
    let text = r#"
        [apps.a]
        kind = 1
        hosts = ["a.example"]
        colour = "red"
        max_body = "1TB"
        workers = "two"
        max_removals = 2.0
        schedule = "daily"
        concurrency = { min = "one", step = -1 }
        [apps.b]
        kind = "cookies"
        hosts = "b.example"
        allow_delete = "all"
        cookies = { dsp = "x", after = "soon", url = "https://b.example/{user}", null_means = "gone", nodes = { urls = [] }, colour = 1 }
        [apps]
        c = 1
    "#;
    check_errors(
        text,
        &[
            "apps.a kind",
            "apps.a colour",
            "apps.a max_body",
            "apps.a workers",
            "apps.a max_removals",
            "apps.a schedule",
            "apps.a concurrency.min",
            "apps.a concurrency.step",
            "apps.b hosts",
            "apps.b allow_delete",
            "apps.b cookies.dsp",
            "apps.b cookies.after",
            "apps.b cookies.nodes",
            "apps.b cookies.producers",
            "apps.b cookies.colour",
            "apps.c must be a table, such as [apps.NAME]",
        ],
    );
    let errors = Apps::parse("apps = [\n").unwrap_err();
    assert!(
        errors.len() == 1 && errors[0].starts_with("line "),
        "{errors:?}"
    );
}

#[test]
fn invalid_version_of_the_file_is_rejected_completely() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let write = |text: &str| std::fs::write(file.path(), text).unwrap();
    let one = "[apps.one]\nkind = \"list\"\nhosts = [\"a.example\"]\n";
    write(one);
    let flag = NamedFile::from_flag("--apps", &file.path().display().to_string());
    let reloader = Reloader::load(File(flag.unwrap())).unwrap();
    let first = reloader.current();
    // The first application is valid, but has a different name.
    let invalid = one.replace("one", "two") + "[apps.three]\nkind = \"list\"\nworkers = \"x\"\n";
    write(&invalid);
    // A file may be read while it is written, so only the second attempt reports errors.
    for _ in 0..2 {
        reloader.reload_once();
        assert!(Arc::ptr_eq(&first, &reloader.current()));
    }
    let error = reloader.error().unwrap();
    for part in ["--apps", "apps.three: hosts", "apps.three: workers"] {
        assert!(error.contains(part), "{part}: {error}");
    }
    write(&one.replace("one", "two"));
    reloader.reload_once();
    let names: Vec<_> = reloader
        .current()
        .iter()
        .map(|it| it.name.clone())
        .collect();
    assert_eq!((names, reloader.error()), (vec!["two".to_owned()], None));
}

#[test]
fn hosts_have_no_port_scheme_or_wildcard() {
    for host in [
        "a.example:8443",
        "https://a.example",
        "*.a.example",
        "",
        "a b",
    ] {
        let text = format!("[apps.a]\nkind = \"list\"\nhosts = [{host:?}]\n");
        let errors = Apps::parse(&text).unwrap_err().join("\n");
        assert!(errors.contains("use a host"), "{host}: {errors}");
    }
}
