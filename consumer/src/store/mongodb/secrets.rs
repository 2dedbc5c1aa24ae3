//! What a connection string holds that nobody else is to read. Pure.

use std::fmt;

use percent_encoding::percent_decode_str;

/// Options whose values are secret, in lower case.
const OPTIONS: [&str; 3] = [
    "authmechanismproperties",
    "proxypassword",
    "tlscertificatekeyfilepassword",
];

/// Shorter ones are part of many words: hiding them would show where they are.
const BYTES_MIN: usize = 4;

/// Words that our own texts contain, so that a user of this name is not a secret.
const PUBLIC: [&str; 6] = [
    "admin",
    "consumer",
    "cookies",
    "cookiesync",
    "mongodb",
    "user",
];

/// Credentials, both as they are written in the connection string and decoded.
pub(super) struct Secrets(Vec<String>);

impl Secrets {
    pub(super) fn of(uri: &str) -> Self {
        let rest = uri.split_once("://").map_or(uri, |(_, rest)| rest);
        let (rest, options) = rest.split_once('?').unwrap_or((rest, ""));
        let login = rest.rsplit_once('@').map(|(login, _)| login);
        let mut found = Vec::new();
        if let Some(login) = login {
            let (user, password) = login.split_once(':').unwrap_or((login, ""));
            found.extend(Some(user).filter(|user| !PUBLIC.contains(user)));
            found.push(password);
        }
        for option in options.split('&') {
            let (key, value) = option.split_once('=').unwrap_or((option, ""));
            if OPTIONS.contains(&key.to_ascii_lowercase().as_str()) {
                found.push(value);
                found.extend(value.split([',', ':']));
            }
        }
        let decoded = |part: &&str| percent_decode_str(part).decode_utf8_lossy().into_owned();
        let mut secrets: Vec<_> = found.iter().map(decoded).collect();
        secrets.extend(found.into_iter().map(str::to_owned));
        secrets.retain(|secret| secret.len() >= BYTES_MIN);
        // The longest first: it may contain another.
        secrets.sort_unstable_by_key(|secret| std::cmp::Reverse(secret.len()));
        secrets.dedup();
        Self(secrets)
    }

    /// `text` without them.
    pub(super) fn hide(&self, mut text: String) -> String {
        for secret in &self.0 {
            if text.contains(secret) {
                text = text.replace(secret, "***");
            }
        }
        text
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_hidden_as_they_are_written_and_decoded() {
        let uri = "mongodb://al%69ce:p%40ss%2Fword@host:27017/db?authSource=admin&authMechanismProperties=TOKEN:t0ken,X:1";
        let secrets = Secrets::of(uri);
        let said = format!("{uri} of alice with p@ss/word and t0ken at host");
        let hidden = secrets.hide(said);
        for secret in ["alice", "al%69ce", "p@ss", "p%40ss", "t0ken"] {
            assert!(!hidden.contains(secret), "{hidden}");
        }
        assert!(
            hidden.contains("@host:27017/db?authSource=admin"),
            "{hidden}"
        );
        assert_eq!(format!("{secrets:?}"), "***");
    }

    #[test]
    fn words_of_ours_stay() {
        let secrets = Secrets::of("mongodb://admin:pw@host/");
        assert_eq!(secrets.hide("admin at host".to_owned()), "admin at host");
        let secrets = Secrets::of("mongodb://host/?w=1");
        assert_eq!(secrets.hide("host w=1".to_owned()), "host w=1");
    }
}
