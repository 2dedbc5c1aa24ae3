//! Tests of the settings of sync plans.

use super::*;

const HEAD: &str = "[privacy]\n[plan]\nbase = 'https://match.ssp.example'\n";

/// Checks the errors of keys in `[dsp.17.sync]`, besides a valid URL.
#[track_caller]
fn check_sync(keys: &str, expected: &str) {
    let url = "image = 'https://d.example/?r={RETURN}'";
    let text = format!("{HEAD}[dsp.17]\nname = 'a'\n[dsp.17.sync]\n{url}\n{keys}\n");
    check_errors(&text, &[expected]);
}

/// Checks the errors of the keys of `[plan]`.
#[track_caller]
fn check_plan(keys: &str, expected: &[&str]) {
    check_errors(&format!("[privacy]\n[plan]\n{keys}\n"), expected);
}

#[test]
fn invalid_settings_of_syncs_are_errors() {
    for (keys, expected) in [
        (
            "group = 0",
            "line 8: dsp.17.sync.group: out of range: use 1 to 9",
        ),
        ("group = 10", "out of range: use 1 to 9"),
        ("weight = 0", "out of range: use 1 to 1000"),
        ("weight = 1001", "out of range: use 1 to 1000"),
        ("sample = 0.0", "above 0, up to 1.0"),
        ("sample = 1.1", "above 0, up to 1.0"),
        ("sample = nan", "above 0, up to 1.0"),
        ("per_day = 0", "out of range: use 1 to 255"),
        ("per_day = 256", "dsp.17.sync.per_day"),
        ("refresh = '23h'", "dsp.17.sync.refresh"),
        ("refresh = '31d'", "dsp.17.sync.refresh"),
        ("uid_macro = ''", "1 to 64 printable ASCII characters"),
        ("uid_macro = 'a b'", "1 to 64 printable ASCII characters"),
        ("countries = ['DE']", "needs country_header in [privacy]"),
        ("countries = ['de']", "use two capital letters"),
        ("skip_gpp_sid = [64]", "dsp.17.sync.skip_gpp_sid"),
        (
            "iframe = 'http://d.example/?r={RETURN}'",
            "must begin with https://",
        ),
        ("iframe = 'https://d.example/'", "must contain {RETURN}"),
        (
            "iframe = 'https://d.example/?r={RETURN}&u={UID}'",
            "unknown macro {UID}: use {RETURN}",
        ),
        ("iframe = 'https://{RETURN}/'", "macro in its host"),
        (
            "iframe = 'https://match.ssp.example/?r={RETURN}'",
            "leads to the host of plan.base",
        ),
        (
            "iframe = 'https://MATCH.ssp.example:444/?r={RETURN}'",
            "leads to the host of plan.base",
        ),
        ("hosts = []", "unknown key `hosts`"),
    ] {
        check_sync(keys, expected);
    }
}

#[test]
fn sync_needs_a_url_a_name_and_a_plan() {
    let sync = "[dsp.17.sync]\nimage = 'https://d.example/?r={RETURN}'\n";
    let without_name = format!("{HEAD}[dsp.17]\n{sync}");
    check_errors(&without_name, &["needs a name of the DSP"]);
    let without_url = format!("{HEAD}[dsp.17]\nname = 'a'\n[dsp.17.sync]\nweight = 2\n");
    check_errors(&without_url, &["dsp.17.sync.image: is missing"]);
    let without_plan = format!("[privacy]\n[dsp.17]\nname = 'a'\n{sync}");
    check_errors(
        &without_plan,
        &["dsp.17.sync: has no effect without [plan]"],
    );
    check_errors(
        "[defaults]\nsync = {}\n",
        &["defaults.sync: is for one DSP"],
    );
}

#[test]
fn refresh_is_below_the_ttl() {
    let text = |ttl: &str, refresh: &str| {
        format!(
            "{HEAD}[defaults]\nttl = '{ttl}'\n[dsp.17]\nname = 'a'\n[dsp.17.sync]\nimage = 'https://d.example/?r={{RETURN}}'\n{refresh}\n"
        )
    };
    assert!(file::parse(&text("8d", "refresh = '7d'")).is_ok());
    for (ttl, refresh) in [
        ("7d", "refresh = '7d'"),
        ("6d", ""),
        ("36h", "refresh = '2d'"),
    ] {
        check_errors(&text(ttl, refresh), &["must be below the ttl of the DSP"]);
    }
}

#[test]
fn plan_needs_privacy_and_a_public_url() {
    check_errors(
        "[plan]\nbase = 'https://m.example'\n",
        &["plan: needs a table [privacy]"],
    );
    let off = "[privacy]\nmode = 'off'\n[plan]\nbase = 'https://m.example'\n";
    check_errors(off, &["plan: needs a table [privacy]"]);
    check_plan("", &["missing field `base`"]);
    for base in [
        "http://m.example",
        "https://10.0.0.1",
        "https://m.example/?x=1",
        "https://u@m.example",
        "m.example",
    ] {
        check_plan(&format!("base = '{base}'"), &["plan.base"]);
    }
    let limits = "base = 'https://m.example'\nlimit = 21\nlimit_max = 0";
    check_plan(
        limits,
        &[
            "plan.limit: out of range",
            "plan.limit_max: out of range",
            "plan.limit: must not be above",
        ],
    );
    let origins = "base = 'https://m.example'\norigins = ['https://a.example/', '*', 'https://*', 'https://a.*.example', 'https://*.*.example', 'null', 'https://a.example']";
    check_plan(origins, &["invalid origin"; 6]);
    let many: Vec<_> = (0..=10_000)
        .map(|it| format!("'https://a{it}.example'"))
        .collect();
    let many = format!("base = 'https://m.example'\norigins = [{}]", many.join(","));
    check_plan(&many, &["plan.origins: too many: the maximum is 10000"]);
}

#[test]
fn all_errors_of_a_plan_are_reported_at_once() {
    let text = "[plan]\nbase = 'http://m.example'\norigins = ['null']\n[dsp.17.sync]\nimage = 'http://d.example/'\nrefresh = '1h'\n";
    check_errors(
        text,
        &[
            "plan: needs",
            "plan.base",
            "plan.origins",
            "dsp.17.sync.image",
            "dsp.17.sync.image: needs a name",
            "dsp.17.sync.refresh",
        ],
    );
}

#[test]
fn settings_of_plans_are_in_the_table() {
    let text = format!(
        "{HEAD}origins = ['https://a.example']\n[dsp.17]\nname = 'a'\n[dsp.17.sync]\niframe = 'https://d.example/?r={{RETURN}}'\ngroup = 2\n"
    );
    let plan = file::parse(&text).unwrap().to_string();
    let sync = "iframe at d.example, group 2, weight 1, 2 a day, again after 7d";
    assert!(plan.contains(sync), "{plan}");
    let settings = "plans of 5 DSPs (up to 10 on request), named ones and others, for 2 origins, at https://match.ssp.example";
    assert!(plan.contains(settings), "{plan}");
}
