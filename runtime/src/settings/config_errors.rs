//! Collects all errors of the settings, so that they are reported together.

use std::{fmt, net::SocketAddr};

/// All errors of the settings.
///
/// ```
/// use runtime::settings::{ConfigErrors, count, size};
///
/// let mut errors = ConfigErrors::default();
/// let log_bytes = errors.ok("--log-bytes", size(1 << 20..=1 << 40)("4GiB"));
/// assert_eq!(log_bytes, Some(4 << 30));
///
/// assert_eq!(errors.ok("--subscribers", count(1..=1_000)("0")), None);
/// errors.add("--tls-key: missing");
/// let errors = errors.or(log_bytes).unwrap_err().to_string();
/// assert!(errors.contains("--subscribers: 0 is below the minimum of 1"), "{errors}");
/// assert!(errors.contains("--tls-key: missing"), "{errors}");
/// ```
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct ConfigErrors {
    errors: Vec<String>,
}

impl ConfigErrors {
    /// Records an error.
    pub fn add(&mut self, error: impl Into<String>) {
        self.errors.push(error.into());
    }

    /// Returns a valid value; records an error with its flag.
    pub fn ok<T, E: fmt::Display>(&mut self, flag: &str, parsed: Result<T, E>) -> Option<T> {
        parsed
            .map_err(|error| self.add(format!("{flag}: {error}")))
            .ok()
    }

    /// Records errors of the addresses of a plain-text API port and the admin port.
    pub fn check_ports(&mut self, listen: SocketAddr, token_file: &str, admin: SocketAddr) {
        if token_file.is_empty() && !listen.ip().is_loopback() {
            self.add(format!(
                "--listen: {listen} is not a loopback address: set --token-file, or listen on 127.0.0.1 or ::1"
            ));
        }
        if listen == admin && listen.port() != 0 {
            self.add(format!(
                "--admin: {admin} is also the address of --listen: use a different port"
            ));
        }
    }

    /// Whether there are no errors.
    pub fn is_empty(&self) -> bool {
        self.errors.is_empty()
    }

    /// Returns `value` if there are no errors.
    ///
    /// # Errors
    /// All errors.
    pub fn or<T>(self, value: T) -> Result<T, Self> {
        if self.is_empty() {
            Ok(value)
        } else {
            Err(self)
        }
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.errors.iter().enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(formatter, "{separator}  {}", error.trim_end())?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}
