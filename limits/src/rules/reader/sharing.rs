//! Reads `[sharing]`: how several who have the same file keep to its limits together.

use std::time::Duration;

use toml::Table;

use super::{
    super::{Sharing, SharingMode},
    Reader, join,
};

const PATH: &str = "sharing";

/// Most who share limits, and the longest name of a group.
const MEMBERS_MAX: u64 = 1000;
const GROUP_CHARS_MAX: usize = 64;

impl Reader {
    /// None when each keeps to the limits for itself.
    pub(super) fn sharing(&mut self, table: &mut Table) -> Option<Sharing> {
        let value = table.remove(PATH)?;
        if self.parts > 1 {
            self.wrong(PATH, "share and [sharing] exclude each other");
        }
        let mut table = self.table(PATH, value);
        let modes = ["local", "lease", "exact"];
        let is_mode_given = table.contains_key("mode");
        let mode = modes[self.choice(&mut table, PATH, "mode", &modes)];
        let group = self.text(&mut table, PATH, "group");
        let redis = match table.contains_key("redis") {
            true => self.text(&mut table, PATH, "redis"),
            false => None,
        };
        let mut file = |key| self.text(&mut table, PATH, key);
        let (tls_ca, tls_cert, tls_key) = (file("tls_ca"), file("tls_cert"), file("tls_key"));
        let members_max = self.count(&mut table, PATH, "members_max");
        if members_max.is_some_and(|it| !(1..=MEMBERS_MAX).contains(&it)) {
            self.wrong(&join(PATH, "members_max"), format!("1 to {MEMBERS_MAX}"));
        }
        let mut time = |key, unless_set| self.time(&mut table, PATH, key).unwrap_or(unless_set);
        let refresh = time("refresh", Duration::from_secs(1));
        let sharing = Sharing {
            mode: match mode {
                "exact" => SharingMode::Exact,
                _ => SharingMode::Lease,
            },
            redis: redis.clone().unwrap_or_default(),
            tls_ca,
            tls_cert,
            tls_key,
            group: group.clone().unwrap_or_default(),
            members_max,
            refresh,
            ttl: time("ttl", refresh * 3),
            timeout: time("timeout", Duration::from_millis(50).min(refresh / 2)),
            forget_after: time("forget_after", Duration::from_secs(86_400)),
        };
        self.nothing_else(PATH, &table);
        if mode == "local" {
            if redis.is_some() && !is_mode_given {
                let what = "mode is missing: \"lease\", or \"local\" where each keeps the limits for itself";
                self.wrong(PATH, what);
            }
            return None;
        }
        if redis.is_none() {
            self.wrong(
                PATH,
                "redis is missing: the server's address, as in \"redis://10.0.0.5:6379\"",
            );
        }
        // It is a part of a key's name, and of the slot in which it is.
        let is_name = |it: char| it.is_ascii_alphanumeric() || "-_.".contains(it);
        let Some(group) = group else {
            let what = "group is missing: all that name the same group on this server share the limits of the same names";
            self.wrong(PATH, what);
            return None;
        };
        if group.is_empty() || group.len() > GROUP_CHARS_MAX || !group.chars().all(is_name) {
            let what =
                format!("1 to {GROUP_CHARS_MAX} letters, digits, dots, hyphens or underscores");
            self.wrong(&join(PATH, "group"), what);
        }
        Some(sharing)
    }
}
