//! Formats errors of the driver and the server as one line, without the commands that some errors contain. Does no I/O.

use mongodb::error::{Error, ErrorKind};

/// Maximum number of characters of a text.
const TEXT_CHARS_MAX: usize = 300;

/// Codes of missing permissions. The server's message contains the whole command, including cookies.
const UNAUTHORIZED: [i32; 2] = [13, 8000];

/// Describes an error in one line.
pub(super) fn explain(error: &Error) -> String {
    match &*error.kind {
        ErrorKind::Command(error) => command(error.code, &error.code_name, &error.message),
        ErrorKind::ServerSelection { message, .. } => {
            format!("server selection failed: {}", first_cause(message))
        }
        ErrorKind::ConnectionPoolCleared { message, .. } => first_cause(message),
        kind => short(&kind.to_string()),
    }
}

/// Describes an error that the server returned.
pub(super) fn command(code: i32, name: &str, message: &str) -> String {
    let message = match message.split_once(':') {
        Some((before, _)) if UNAUTHORIZED.contains(&code) => before,
        _ => message,
    };
    let name = match name {
        "" => String::new(),
        name => format!(" ({name})"),
    };
    short(&format!("error {code}{name}: {message}"))
}

/// The first error in the topology description of the driver's message, or the text before that description.
fn first_cause(message: &str) -> String {
    let cause = message.split("Kind: ").nth(1).unwrap_or(message);
    let ends = [cause.find(", labels: "), cause.find(" Topology: ")];
    let end = ends.into_iter().flatten().min().unwrap_or(cause.len());
    short(&cause[..end])
}

fn short(text: &str) -> String {
    let mut text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some((end, _)) = text.char_indices().nth(TEXT_CHARS_MAX) {
        text.truncate(end);
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_error_is_one_short_line_without_the_command() {
        let unauthorized = "not authorized on 17 to execute command { insert: \"cookies\", documents: [ { _id: \"alice\" } ] }";
        for (code, message, expected) in [
            (
                13,
                unauthorized,
                "error 13 (Name): not authorized on 17 to execute command { insert",
            ),
            (
                20,
                "no\nsuch  thing: it",
                "error 20 (Name): no such thing: it",
            ),
        ] {
            assert_eq!(command(code, "Name", message), expected);
        }
        let text = command(20, "", &"é".repeat(1_000));
        assert!(text.chars().count() == 301 && text.ends_with('…'), "{text}");
    }

    #[test]
    fn server_selection_error_is_described_by_its_first_cause() {
        for (message, expected) in [
            (
                "Server selection timeout: No available servers. Topology: { Type: Unknown, Servers: [ { Address: a:1, Type: \
                 RsSecondary }, { Address: b:2, Type: Unknown, Error: Kind: I/O error: Connection refused (os error 111), \
                 labels: {}, source: None, server response: None } ] }",
                "I/O error: Connection refused (os error 111)",
            ),
            (
                "Server selection timeout: None of the available servers suitable for criteria ReadPreference(Primary). \
                 Topology: { Type: ReplicaSetNoPrimary }",
                "Server selection timeout: None of the available servers suitable for criteria ReadPreference(Primary).",
            ),
        ] {
            assert_eq!(first_cause(message), expected);
        }
    }
}
