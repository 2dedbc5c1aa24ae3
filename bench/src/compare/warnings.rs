//! Warnings that two runs are hard to compare, because their machines, builds or arguments differ.

use crate::report::Environment;

/// Warnings about differences between two environments.
pub(super) fn of(a: &Environment, b: &Environment) -> Vec<String> {
    let facts = |it: &Environment| {
        [
            ("arguments", arguments(it)),
            ("processors", it.cpu.clone()),
            ("numbers of cores", it.cores.to_string()),
            ("memory", format!("{} MiB", it.memory_bytes >> 20)),
            ("systems", it.system.clone()),
            ("programs", programs(it)),
        ]
    };
    let pairs = facts(a).into_iter().zip(facts(b)).filter(|(a, b)| a != b);
    let warnings =
        pairs.map(|((name, a), (_, b))| format!("different {name}: A has {a}, B has {b}"));
    // Both reports have the same profiles.
    warnings.chain(a.profile_warning()).collect()
}

/// The command line without the program name and output options.
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
    fn output_options_are_ignored() {
        let a = environment("bench load -l 7 --report here --json");
        let b = environment("target/bench load --report=there -l 7");
        assert!(of(&a, &b).is_empty(), "{:?}", of(&a, &b));
    }

    #[test]
    fn each_difference_has_a_warning() {
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
