//! The two streaming calls.

/// The call that opened a stream. Subscribers are separate per call, so that a `GetCookies` client and a consumer that both
/// use their host name do not supersede each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Call {
    /// One cookie per message.
    GetCookies,
    /// Chunks and gaps.
    Subscribe,
}

impl Call {
    /// Value of the metric label.
    pub fn label(self) -> &'static str {
        match self {
            Self::GetCookies => "get_cookies",
            Self::Subscribe => "subscribe",
        }
    }
}
