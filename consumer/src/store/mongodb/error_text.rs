//! What the driver's and the server's errors mean, in words that say what to do. Pure.
//!
//! The driver offers some causes only inside longer texts (which tell the whole topology); what an operator needs
//! is taken out of them. Where a text has another form than expected, it is shown as it is, shortened.

use mongodb::error::{Error, ErrorKind};

/// Most bytes of a text that is not ours.
const FOREIGN_BYTES_MAX: usize = 300;

const AUTHENTICATION_FAILED: &str =
    "authentication failed: user, password, authSource or authMechanism is wrong";
const NO_ANSWER: &str = "no answer in time";

/// One line without line breaks.
pub(super) fn explain(error: &Error) -> String {
    match &*error.kind {
        ErrorKind::Authentication { message, .. } => authentication(message),
        ErrorKind::Command(error) => command(error.code, &error.code_name, &error.message),
        ErrorKind::Io(error) => io(&error.to_string()),
        ErrorKind::ServerSelection { message, .. } => selection(message),
        ErrorKind::ConnectionPoolCleared { message, .. } => {
            cause(causes(message).next().unwrap_or(message))
        }
        ErrorKind::DnsResolve { message, .. } => format!("name not resolved: {}", short(message)),
        ErrorKind::InvalidTlsConfig { message, .. } => format!("TLS: {}", short(message)),
        kind => short(&kind.to_string()),
    }
}

/// What a refusal by the server means.
pub(super) fn command(code: i32, name: &str, message: &str) -> String {
    match code {
        13 | 8000 => unauthorized(message),
        11 | 18 => AUTHENTICATION_FAILED.to_owned(),
        10_058 | 10_107 | 13_435 => "the server is not a primary that can be written".to_owned(),
        91 | 189 | 11_600 | 11_602 | 13_436 => {
            "the server is starting, stepping down or shutting down".to_owned()
        }
        14_031 => "the server's disk is full".to_owned(),
        24 | 50 | 89 | 202 | 262 => format!("the server ran out of time: {}", short(message)),
        64 | 79 | 100 => format!("not acknowledged as `w` demands: {}", short(message)),
        _ if name.is_empty() => format!("refused with code {code}: {}", short(message)),
        _ => format!("refused with code {code} ({name}): {}", short(message)),
    }
}

/// `not authorized on <database> to execute command { <command>: …` holds the whole command, cookies included.
fn unauthorized(message: &str) -> String {
    let parts = message
        .strip_prefix("not authorized on ")
        .and_then(|rest| rest.split_once(" to execute command { "))
        .and_then(|(database, rest)| Some((database, rest.split_once(':')?.0)));
    match parts {
        Some((database, command)) => {
            format!("not authorized to {command} in database {database}: the user lacks a role")
        }
        None if message.ends_with("requires authentication") => {
            "not authorized: the server wants a user and a password".to_owned()
        }
        None => format!("not authorized: {}", short(message)),
    }
}

fn authentication(message: &str) -> String {
    let reason = message
        .split_once(" failure: ")
        .map_or(message, |(_, reason)| reason);
    match reason.trim_end_matches('.') {
        "Authentication failed" => AUTHENTICATION_FAILED.to_owned(),
        _ => format!("authentication failed: {}", short(message)),
    }
}

fn io(message: &str) -> String {
    if message.contains("timed out") || message.contains("timeout") {
        NO_ANSWER.to_owned()
    } else {
        short(message)
    }
}

/// Why no server can be used: the first cause in the driver's description of the topology, or else the driver's own reason.
fn selection(message: &str) -> String {
    let reason = message
        .split_once(" Topology: ")
        .map_or(message, |(reason, _)| reason);
    let why = causes(message).next().map_or_else(|| short(reason), cause);
    format!("no server can be used: {why}")
}

/// The causes that the driver puts into its texts as `Kind: <cause>, labels: …`.
fn causes(message: &str) -> impl Iterator<Item = &str> {
    let parts = message.split("Kind: ").skip(1);
    parts.map(|part| {
        part.split_once(", labels: ")
            .map_or(part, |(cause, _)| cause)
    })
}

/// An error that is known only by its text.
fn cause(text: &str) -> String {
    if let Some(io_error) = text.strip_prefix("I/O error: ") {
        return io(io_error);
    }
    if let Some(error) = text.strip_prefix("Command failed: Error code ")
        && let Some((code, rest)) = error.split_once(" (")
        && let Some((name, message)) = rest.split_once("): ")
        && let Ok(code) = code.parse()
    {
        return command(code, name, message);
    }
    if text.contains("server monitor timeout") {
        return NO_ANSWER.to_owned();
    }
    if text.contains("Authentication failed") {
        return authentication(text);
    }
    short(text)
}

fn short(text: &str) -> String {
    let text: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if text.len() <= FOREIGN_BYTES_MAX {
        return text;
    }
    let mut cut: String = text
        .char_indices()
        .take_while(|(at, _)| *at < FOREIGN_BYTES_MAX)
        .map(|(_, char)| char)
        .collect();
    cut.push('…');
    cut
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_say_what_to_do() {
        let unauthorized = "not authorized on 17 to execute command { insert: \"cookies\", documents: [ { _id: \"alice\" } ] }";
        for (code, message, said) in [
            (
                13,
                unauthorized,
                "not authorized to insert in database 17: the user lacks a role",
            ),
            (
                13,
                "command insert requires authentication",
                "the server wants a user and a password",
            ),
            (
                13,
                "there are no users authenticated",
                "not authorized: there are no users",
            ),
            (
                18,
                "Authentication failed.",
                "authentication failed: user, password",
            ),
            (10_107, "not primary", "not a primary"),
            (91, "shutting down", "shutting down"),
            (14_031, "No space", "disk is full"),
            (
                64,
                "waiting for replication timed out",
                "`w` demands: waiting for replication timed out",
            ),
            (
                20,
                "no\nsuch  thing",
                "refused with code 20 (Name): no such thing",
            ),
        ] {
            let text = command(code, "Name", message);
            assert!(text.contains(said), "{text}");
            assert!(!text.contains("alice"), "{text}");
        }
        let text = command(20, "", &"é".repeat(1_000));
        assert!(text.len() < 400 && text.ends_with('…'), "{text}");
    }

    #[test]
    fn no_usable_server_is_explained_by_the_first_cause_or_by_the_driver() {
        for (message, said) in [
            (
                "Server selection timeout: No available servers. Topology: { Type: Unknown, Servers: [ { Address: a:1, Type: \
                 RsSecondary }, { Address: b:2, Type: Unknown, Error: Kind: I/O error: Connection refused (os error 111), \
                 labels: {}, source: None, server response: None } ] }",
                "no server can be used: Connection refused (os error 111)",
            ),
            (
                "Server selection timeout: None of the available servers suitable for criteria ReadPreference(Primary). \
                 Topology: { Type: ReplicaSetNoPrimary }",
                "no server can be used: Server selection timeout: None of the available servers suitable for criteria \
                 ReadPreference(Primary).",
            ),
            (
                "Server at h:1 reports wire version 6, but this version of the MongoDB Rust driver requires at least 9 \
                 (MongoDB 4.4).",
                "no server can be used: Server at h:1 reports wire version 6, but this version of the MongoDB Rust driver \
                 requires at least 9 (MongoDB 4.4).",
            ),
        ] {
            assert_eq!(selection(message), said);
        }
    }

    #[test]
    fn causes_known_only_by_their_text_are_explained_alike() {
        for (text, said) in [
            ("I/O error: timed out", NO_ANSWER),
            (
                "I/O error: unexpected end of file",
                "unexpected end of file",
            ),
            (
                "Command failed: Error code 13 (Unauthorized): command find requires authentication",
                "not authorized: the",
            ),
            (
                "SCRAM failure: Authentication failed.",
                AUTHENTICATION_FAILED,
            ),
            (
                "Connection to h:1 interrupted due to server monitor timeout",
                NO_ANSWER,
            ),
            ("something else", "something else"),
        ] {
            assert!(cause(text).contains(said), "{}", cause(text));
        }
    }
}
