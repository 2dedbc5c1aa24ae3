//! Tests of the contracts file: its errors, its limits, and the printed table of effective contracts.

use runtime::reload::{NamedFile, Reloader};

use super::*;

mod sync;

#[track_caller]
fn check_errors(text: &str, expected: &[&str]) {
    let errors = file::parse(text).unwrap_err().0;
    assert_eq!(errors.len(), expected.len(), "{errors:#?}");
    for (error, expected) in errors.iter().zip(expected) {
        assert!(error.contains(expected), "no {expected:?} in {error:?}");
    }
}

#[test]
fn empty_file_is_refused() {
    for text in ["", "\n# being rewritten\n"] {
        check_errors(text, &["the file is empty"]);
    }
}

#[test]
fn all_errors_of_a_file_are_reported_with_their_lines() {
    let text = "unknwon_dsps = 'accept'
redirect_hosts = ['sync.example', '10.0.0.1']
[defaults]
name = 'all'
uid_bytes_max = 257
[dsp.17]
name = 'same'
uid_pattern = '('
redirect = 'https://evil.example/'
origins = ['https://a.example/path']
[dsp.18]
name = 'same'
answer = 'redirect'
uid_patern = 'x'
[dsp.19]
name = 'same'
state = 'alowed'
[dsp.20]
name = 'same'
answer = 'redirect'
refuse = ['sentinel']
uid_macro = ['']
[dsp.017]
";
    let expected = [
        "line 1: the file: unknown key `unknwon_dsps`, expected one of",
        "line 2: redirect_hosts: `10.0.0.1` is an IP address",
        "line 4: defaults.name: is for one DSP",
        "line 5: defaults.uid_bytes_max: out of range: use 1 to 256",
        "line 23: dsp.017: invalid DSP id",
        "line 8: dsp.17.uid_pattern: invalid pattern: unclosed group",
        "line 9: dsp.17.redirect: host `evil.example` is not in redirect_hosts",
        "line 10: dsp.17.origins: invalid origin `https://a.example/path`",
        "line 9: dsp.17.redirect: has no effect without answer = \"redirect\"",
        "line 10: dsp.17.origins: has no effect without answer = \"json\"",
        "line 14: dsp.18: unknown key `uid_patern`, expected one of",
        "line 12: dsp.18.name: another DSP has the name `same`",
        "line 17: dsp.19.state: unknown value `alowed`, expected one of",
        "line 16: dsp.19.name: another DSP has the name `same`",
        "line 22: dsp.20.uid_macro: contains an empty string",
        "line 20: dsp.20.answer: \"redirect\" needs a URL",
        "line 22: dsp.20.uid_macro: has no effect without \"macro\" in refuse",
        "line 19: dsp.20.name: another DSP has the name `same`",
    ];
    check_errors(text, &expected);
}

#[test]
fn unknown_key_and_invalid_value_hide_no_other_error() {
    let text = "unkown = 1
redirect_hosts = ['10.0.0.1']
[privacy]
mod = 'observe'
gpc = 'never'
[privacy.us]
sal = 'deny'
sharing = 'no'
[defaults]
unkown = 1
ttl = '0s'
[dsp.17]
unkown = 1
also_unkown = 2
anwser = 'json'
origins = ['https://a.example/']
state = 'alowed'
vendor = 0
uid_bytes_max = 257
limit = { rules = [ { id = 'one', rate = '1/s', brust = 1, count_refused = 3 } ], mod = 'shape' }
[limits.b]
rules = [ { id = '', rate = '1/s', brust = 1 } ]
";
    let expected = [
        "line 1: the file: unknown key `unkown`",
        "line 2: redirect_hosts: `10.0.0.1`",
        "line 10: defaults: unknown key `unkown`",
        "line 11: defaults.ttl: ",
        "line 4: privacy: unknown key `mod`, expected one of",
        "line 5: privacy.gpc: unknown value `never`",
        "line 7: privacy.us: unknown key `sal`, expected one of",
        "line 8: privacy.us.sharing: unknown value `no`",
        "line 13: dsp.17: unknown key `unkown`",
        "line 14: dsp.17: unknown key `also_unkown`",
        "line 15: dsp.17: unknown key `anwser`, expected one of",
        "line 17: dsp.17.state: unknown value `alowed`",
        "line 18: dsp.17.vendor: invalid value: integer `0`",
        "line 19: dsp.17.uid_bytes_max: out of range",
        "line 16: dsp.17.origins: invalid origin",
        "line 20: dsp.17.limit.rules[0]: unknown key `brust`",
        "line 20: dsp.17.limit.rules[0].count_refused: ",
        "line 20: dsp.17.limit: unknown key `mod`",
        "line 22: limits.b.rules[0]: unknown key `brust`",
        "line 22: limits.b.rules[0].id: invalid name",
    ];
    let mut errors = file::parse(text).unwrap_err().0;
    let mut expected = expected.to_vec();
    for expected in std::mem::take(&mut expected) {
        let found = errors.iter().position(|it| it.starts_with(expected));
        errors.remove(found.unwrap_or_else(|| panic!("no {expected:?} in {errors:#?}")));
    }
    assert_eq!(errors, [""; 0]);
    let limits = "[dsp.17]\nunkown = 1\n[limits.a]\nrules = [ { id = 'one', rate = '1/s' } ]";
    check_errors(
        limits,
        &[
            "unknown key `unkown`",
            "limits.a: invalid DSP",
            "unknown: set the limit",
        ],
    );
}

#[test]
fn names_are_unique_among_dsps_and_bounded() {
    let text = "[dsp.17]\nnames = ['AppNexus', 'adnxs', 'adnxs']\n[dsp.18]\nname = 'b'\nnames = ['b', 'c']\n";
    let contracts = file::parse(text).unwrap();
    for (name, dsp) in [("appnexus", 17), ("adnxs", 17), ("b", 18), ("c", 18)] {
        assert_eq!(contracts.by_name[name], DspId(dsp));
    }
    assert_eq!(
        (
            &*contracts.of(DspId(17)).name,
            &*contracts.of(DspId(18)).name
        ),
        ("AppNexus", "b")
    );
    assert!(
        contracts.to_string().contains("\n18        b, c  "),
        "{contracts}"
    );
    check_errors(
        &format!(
            "{text}[dsp.19]\nname = 'x'\nnames = ['ADNXS', '']\n[defaults]\nnames = ['all']\n[dsp.20]\nnames = {:?}",
            vec!["n"; 65]
        ),
        &[
            "line 10: defaults.names: is for one DSP",
            "line 8: dsp.19.names: invalid name",
            "line 7: dsp.19.name: another DSP has the name `ADNXS`",
            "line 12: dsp.20.names: too many names: the maximum is 64",
        ],
    );
}

#[test]
fn redirect_to_an_unlisted_host_is_an_error() {
    let text = "redirect_hosts = ['sync.example', '10.0.0.1']
[dsp.17]
answer = 'redirect'
redirect = 'https://evil.example/'
[dsp.18]
answer = 'redirect'
redirect = 'https://SYNC.example/'
";
    let expected = [
        "line 1: redirect_hosts: `10.0.0.1` is an IP address",
        "line 4: dsp.17.redirect: host `evil.example` is not in redirect_hosts",
    ];
    check_errors(text, &expected);
}

#[test]
fn errors_of_one_table_are_reported_with_their_lines() {
    check_errors(
        "unknown_dsps = 'refuse'",
        &["line 1: unknown_dsps: \"refuse\" rejects every request"],
    );
    check_errors(
        "[dsp]\n17 = 1",
        &["line 2: dsp.17: expected a table, not integer"],
    );
    check_errors("[defaults\n", &["line 1: "]);
    check_errors(
        "[dsp.17]\nuid_pattern = '(a{1000}){1000}'",
        &["line 2: dsp.17.uid_pattern: is too complex"],
    );
    for ttl in ["0s", "367d", "14"] {
        let text = format!("[dsp.17]\nttl = '{ttl}'");
        check_errors(&text, &["line 2: dsp.17.ttl: "]);
    }
}

#[test]
fn time_to_live_is_that_of_the_dsp_or_the_default() {
    let times = |text: &str| {
        let times = file::parse(text).unwrap().times_to_live();
        let dsps = times.dsps.iter().map(|dsp| (dsp.dsp_id, dsp.seconds));
        (dsps.collect::<Vec<_>>(), times.other_seconds)
    };
    let dsps = "[dsp.18]\nttl = '14d'\n[dsp.17]\n";
    assert_eq!(times(dsps), (vec![(18, 14 * 86_400)], 0));
    let defaults = format!("[defaults]\nttl = '1h'\n{dsps}");
    assert_eq!(
        times(&defaults),
        (vec![(17, 3_600), (18, 14 * 86_400)], 3_600)
    );
}

#[test]
fn limits_are_part_of_the_contracts() {
    let limits = |text: &str| Rules::clone(&file::parse(text).unwrap().limits);
    let rules = "rules = [ { id = 'peak', rate = '300/s', burst = 30 } ]\nmode = 'shape'";
    let contract =
        format!("unknown = 'unlimited'\n[dsp.17]\nname = 'example'\n[dsp.17.limit]\n{rules}");
    let limit = format!("unknown = 'unlimited'\n[limits.example]\nkeys = [17]\n{rules}");
    assert_eq!(limits(&contract), limits(&limit));
    assert_eq!(limits(&limit), Rules::parse(&limit).unwrap());
    assert!(limits("[dsp.17]").limits.is_empty());
    let unnamed = contract.replace("name = 'example'\n", "");
    assert_eq!(limits(&unnamed).limits[0].name, "17");
}

#[test]
fn errors_of_limits_are_reported_where_they_are() {
    let rules = "rules = [{ id = 'peak', rate = '1/s' }]";
    let contract = |limit: &str| {
        format!("unknown = 'unlimited'\n[dsp.17]\nname = 'a'\n[dsp.17.limit]\n{limit}\n")
    };
    for (text, expected) in [
        (
            contract("rules = [{ id = 'peak', rate = '1/s', brust = 3 }]"),
            "line 5: dsp.17.limit.rules[0]: unknown key `brust`, expected one of",
        ),
        (
            contract("mod = 'shape'\nrules = []"),
            "line 5: dsp.17.limit: unknown key `mod`, expected one of",
        ),
        (
            contract(&format!("{rules}\nkeys = [18]")),
            "line 6: dsp.17.limit.keys: a limit in a contract applies only to its DSP",
        ),
        (
            contract(&format!("{rules}\n[limits.a]\n{rules}")),
            "line 4: dsp.17.limit: [limits.a] has the same name",
        ),
        (
            contract(&format!("{rules}\n[limits.b]\nkeys = [17]\n{rules}")),
            "key 17 is already in",
        ),
        (
            contract(rules).replace("unknown = 'unlimited'", ""),
            "unknown: set the limit that all unlisted DSPs share",
        ),
        (
            format!("[defaults]\nlimit = {{ {rules} }}"),
            "line 2: defaults.limit: is for one DSP",
        ),
        (
            format!("unknown = 'unlimited'\n[limits.dsp]\nkeys = ['partner']\n{rules}"),
            "limits.dsp: invalid DSP `partner`",
        ),
        (
            format!("unknown = 'unlimited'\n[limits.dsp]\n{rules}"),
            "limits.dsp: invalid DSP `dsp`",
        ),
        (
            "unknown = 'unlimited'\n[limits.dsp]\nfrom_call = true\n".to_owned(),
            "limits.dsp: from_call is for limiter serve",
        ),
        (
            format!(
                "unknown = 'unlimited'\n[sharing]\nmode = 'exact'\nredis = 'redis://127.0.0.1:1'\ngroup = 'g'\n[limits.dsp]\nkeys = [17]\n{rules}"
            ),
            "exact sharing is for limiter serve",
        ),
        (
            "unknwon = 1".to_owned(),
            "line 1: the file: unknown key `unknwon`, expected one of",
        ),
    ] {
        let errors = file::parse(&text).unwrap_err().to_string();
        assert!(errors.contains(expected), "{text}\n{errors}");
    }
}

#[test]
fn plan_has_one_line_for_each_dsp() {
    let text = "unknown_dsps = 'refuse'\nunknown = 'unlimited'\n[defaults]\nanswer = 'none'\n[dsp.117]\nname = 'two'\nttl = '30d'\nstate = 'observe'\n\
                answer = 'json'\norigins = ['https://a.example']\n".to_owned()
        + "[dsp.17]\nname = 'example'\nanswer = 'redirect'\nredirect = 'https://sync.example/done?u={UID}'\n"
        + "limit = { rules = [ { id = 'peak', rate = '300/s' } ] }\nuid_bytes_max = 64\nuid_pattern = '^[0-9]+$'\nuid_macro = ['ID']\nrefused = 'answer'\n";
    let plan = file::parse(&text).unwrap().to_string();
    let lines = [
        "dsp name vendor state ids refuse ttl answer refused limit sync",
        "17 example - allowed up to 64 bytes, ^[0-9]+$ macro, sentinel, ID - redirect to sync.example answer example -",
        "117 two - observe up to 256 bytes macro, sentinel 30d json for https://a.example status - -",
        "unlisted - - refused up to 256 bytes macro, sentinel - none status - -",
    ];
    let words = |line: &str| {
        line.split_whitespace()
            .map(ToOwned::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        plan.lines().take(4).map(words).collect::<Vec<_>>(),
        lines.map(words)
    );
    assert!(plan.contains("\n\nexample: key 17\n"), "{plan}");
    let cells = ["answer", "redirect to", "json for", "none"];
    let columns: Vec<_> = cells
        .iter()
        .zip(plan.lines())
        .map(|(cell, line)| line.find(cell))
        .collect();
    assert!(
        columns.iter().all(|it| it.is_some() && *it == columns[0]),
        "{plan}"
    );
}

#[test]
fn sample_files_are_valid() {
    let example = include_str!("../../../examples/contracts.toml");
    assert_eq!(file::parse(example).unwrap().listed().len(), 4);
    let page = include_str!("../../../docs/partners.md");
    let (_, sample) = page.split_once("```toml\n").unwrap();
    let (sample, _) = sample.split_once("```").unwrap();
    assert_eq!(file::parse(sample).unwrap().listed().len(), 1);
    let example = include_str!("../../../examples/plan.toml");
    let (_, sample) = page.split_once("## Start syncs yourself").unwrap();
    let (_, sample) = sample.split_once("```toml\n").unwrap();
    let (sample, _) = sample.split_once("```").unwrap();
    for (text, dsps) in [(example, 3), (sample, 1)] {
        assert_eq!(file::parse(text).unwrap().synced.len(), dsps);
    }
}

#[test]
fn reload_that_changes_sharing_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("contracts.toml").display().to_string();
    let write = |text: &str| std::fs::write(&path, text).unwrap();
    write("[dsp.17]\n");
    let named = NamedFile::from_flag("--contracts", &path).unwrap();
    let file = Reloader::load(file::File::new(named)).unwrap();
    write(
        "unknown = 'unlimited'\n[dsp.18]\nlimit = { rules = [ { id = 'rate', rate = '10/s' } ] }\n[sharing]\n\
         mode = 'lease'\nredis = 'redis://127.0.0.1:1'\ngroup = 'g'\nmembers_max = 4\n",
    );
    // The error stays reported while the file is unchanged.
    file.reload_once();
    file.reload_once();
    let error = file.error().unwrap_or_default();
    assert!(
        error.ends_with("restart the producer to change it"),
        "{error}"
    );
    assert!(file.current().lists(DspId(17)));
    write("[dsp.19]\n");
    file.reload_once();
    assert!(file.error().is_none() && file.current().lists(DspId(19)));
}
