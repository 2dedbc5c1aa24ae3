//! What makes two runs hard to compare: another machine, another build, other arguments.

use crate::report::Environment;

/// In sentences; empty when nothing does.
pub(super) fn of(a: &Environment, b: &Environment) -> Vec<String> {
    let mut warnings = Vec::new();
    let mut differ = |what: &str, a: &str, b: &str| {
        if a != b {
            warnings.push(format!("different {what}: A has {a}, B has {b}"));
        }
    };
    differ("arguments", &arguments(a), &arguments(b));
    differ("processors", &a.cpu, &b.cpu);
    differ(
        "numbers of cores",
        &a.cores.to_string(),
        &b.cores.to_string(),
    );
    let mebibytes = |environment: &Environment| format!("{} MiB", environment.memory_bytes >> 20);
    differ("memory", &mebibytes(a), &mebibytes(b));
    differ("systems", &a.system, &b.system);
    differ("programs", &programs(a), &programs(b));
    // Both are of the same.
    warnings.extend(a.profile_warning());
    warnings
}

/// The command line without the program and what says where its report goes.
fn arguments(environment: &Environment) -> String {
    let mut kept = Vec::new();
    let mut words = environment.command.iter().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--report" => drop(words.next()),
            "--json" | "--no-report" => {}
            word if word.starts_with("--report=") => {}
            word => kept.push(word),
        }
    }
    kept.join(" ")
}

fn programs(environment: &Environment) -> String {
    let named = environment.programs.iter();
    let mut named: Vec<_> = named
        .map(|(name, version)| format!("{name} {version}"))
        .collect();
    named.sort();
    named.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(command: &str) -> Environment {
        Environment {
            command: command.split(' ').map(str::to_owned).collect(),
            profile: "dist".to_owned(),
            cores: 2,
            ..Environment::default()
        }
    }

    #[test]
    fn where_a_report_goes_does_not_matter() {
        let a = environment("bench load -l 7 --report here --json");
        let b = environment("target/bench load --report=there -l 7");
        assert!(of(&a, &b).is_empty(), "{:?}", of(&a, &b));
    }

    #[test]
    fn what_matters_is_named() {
        let mut a = environment("bench load -l 7");
        a.profile = "dev".to_owned();
        let mut b = environment("bench load -l 8");
        b.cores = 4;
        b.programs.push(("mongod".to_owned(), "6.0".to_owned()));
        let warnings = of(&a, &b);
        let named = ["load -l 8", "cores", "mongod 6.0", "bench is a dev build"];
        assert_eq!(warnings.len(), named.len(), "{warnings:?}");
        for (warning, word) in warnings.iter().zip(named) {
            assert!(warning.contains(word), "{warning}");
        }
    }
}
