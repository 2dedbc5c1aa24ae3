//! The conditions of a run: the machine, the end time, and the versions and build profiles of the programs.

use std::{env, fs, thread};

use jiff::Timestamp;
use procfs::{CpuInfo, Current as _};
use runtime::{PROFILE, settings::redacted};
use serde::{Deserialize, Serialize};
use testkit::{memory, programs::found_programs};

/// Profile of the shipped programs.
const SHIPPED_PROFILE: &str = "dist";

/// Conditions of a run, needed to repeat or judge it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Environment {
    /// End of the run in UTC (RFC 3339).
    pub ended_at: String,
    /// The command line.
    pub command: Vec<String>,
    /// This program's version.
    pub version: String,
    /// Build profile of this program. Only results of `dist` are representative of shipped programs.
    pub profile: String,
    /// Processor model.
    pub cpu: String,
    /// Cores available to this process.
    pub cores: usize,
    /// Memory of the machine.
    pub memory_bytes: u64,
    /// Operating system and kernel.
    pub system: String,
    /// Versions of the other programs by name, with the build profile of ours: `mongod`, `producer`.
    pub programs: Vec<(String, String)>,
}

impl Environment {
    /// Environment of this process, whose run ends now, and of the programs that it has found.
    pub fn of_this_run() -> Self {
        let command = env::args_os().map(|word| redacted(&word.to_string_lossy()));
        Self {
            ended_at: Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            command: command.collect(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            profile: PROFILE.to_owned(),
            cpu: cpu(),
            cores: thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: memory::of_machine(),
            system: system(),
            programs: found_programs(),
        }
    }

    /// A warning about programs not built with the shipped profile.
    pub fn profile_warning(&self) -> Option<String> {
        let others = self.programs.iter().filter_map(|(name, version)| {
            let profile = version.strip_suffix(')')?.rsplit_once([' ', '('])?.1;
            Some((name.as_str(), profile))
        });
        let profiles = [("bench", self.profile.as_str())].into_iter().chain(others);
        let others: Vec<_> = profiles
            .filter(|(_, profile)| *profile != SHIPPED_PROFILE)
            .map(|(program, profile)| format!("{program} is a {profile} build"))
            .collect();
        (!others.is_empty()).then(|| {
            format!(
                "{}: results are not representative; build with cargo build --profile {SHIPPED_PROFILE}",
                others.join(", ")
            )
        })
    }
}

fn cpu() -> String {
    let info = CpuInfo::current().ok();
    let model = info.as_ref().and_then(|info| info.model_name(0));
    format!("{} ({})", model.unwrap_or("unknown"), env::consts::ARCH)
}

fn system() -> String {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("{}, kernel {}", env::consts::OS, kernel.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_redacted() {
        for (word, expected) in [
            ("--batch=7", "--batch=7"),
            ("http://127.0.0.1:8080/?a=b", "http://127.0.0.1:8080/?***"),
            ("mongodb://me:secret@h:1/db", "mongodb://***@h:1/db"),
            (
                "--store=mongodb+srv://me:se/c@ret@h",
                "--store=mongodb+srv://***@h",
            ),
            (
                "mongodb://h/?tlsCertificateKeyFilePassword=x",
                "mongodb://h/?***",
            ),
            ("redis://:secret@h", "redis://***@h"),
        ] {
            assert_eq!(redacted(word), expected);
        }
    }

    #[test]
    fn environment_describes_this_machine() {
        let environment = Environment::of_this_run();
        assert!(environment.cores > 0);
        assert!(environment.memory_bytes > 1 << 20);
        assert!(environment.ended_at.ends_with('Z'), "{environment:?}");
        let is_unoptimized = environment.profile == "dev";
        assert_eq!(is_unoptimized, cfg!(debug_assertions));
    }

    #[test]
    fn programs_of_other_profiles_are_named() {
        let mut environment = Environment {
            profile: "dist".to_owned(),
            programs: [("mongod", "6.0.5"), ("producer", "0.1.0 (63cf052, dist)")]
                .map(|(name, version)| (name.to_owned(), version.to_owned()))
                .to_vec(),
            ..Environment::default()
        };
        assert_eq!(environment.profile_warning(), None);
        environment.programs[1].1 = "0.1.0 (release)".to_owned();
        let warning = environment.profile_warning().unwrap();
        assert!(
            warning.starts_with("producer is a release build: "),
            "{warning}"
        );
    }
}
