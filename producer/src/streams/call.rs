//! The two streaming calls.

/// The call that opened a stream. Each call has its own queues, so that a program that reads `GetCookies` and a
/// consumer, both named after the host they share, do not end each other's streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Call {
    /// One cookie a message.
    GetCookies,
    /// Chunks and gaps.
    Subscribe,
}

impl Call {
    /// The value of the metric label.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::GetCookies => "get_cookies",
            Self::Subscribe => "subscribe",
        }
    }
}
