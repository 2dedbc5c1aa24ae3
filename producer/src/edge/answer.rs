//! The responses to valid matches. The contract of a DSP selects one of them.

use serde::{Deserialize, Serialize};

/// What a browser gets for a valid match. Without contracts, it is `Empty`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// Status 200 without a body.
    #[default]
    Empty,
    /// Status 204.
    None,
    /// A transparent pixel.
    Gif,
    /// A transparent pixel.
    Png,
    /// A constant object, for scripts.
    Json,
    /// A redirect to the DSP.
    Redirect,
    /// An empty page, for frames.
    Html,
}

impl Answer {
    /// Appends the first lines of the response. The caller may append further headers;
    /// [`Responses::write`](super::response::Responses::write) completes the response. Does nothing for `Empty`.
    pub(super) fn begin(self, output: &mut Vec<u8>) {
        const END: &str = "cache-control: no-store\r\n";
        // A page with `Cross-Origin-Embedder-Policy: require-corp` loads only these.
        const EMBEDDED: &str = "cross-origin-resource-policy: cross-origin\r\n";
        let lines = match self {
            Self::Empty => return,
            Self::None => "HTTP/1.1 204 No Content\r\n",
            Self::Gif => "HTTP/1.1 200 OK\r\ncontent-type: image/gif\r\ncontent-length: 43\r\n",
            Self::Png => "HTTP/1.1 200 OK\r\ncontent-type: image/png\r\ncontent-length: 68\r\n",
            Self::Json => {
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 11\r\nvary: origin\r\n"
            }
            Self::Redirect => "HTTP/1.1 302 Found\r\ncontent-length: 0\r\n",
            Self::Html => "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 0\r\n",
        };
        output.extend_from_slice(lines.as_bytes());
        output.extend_from_slice(END.as_bytes());
        if matches!(self, Self::Gif | Self::Png | Self::Redirect) {
            output.extend_from_slice(EMBEDDED.as_bytes());
        }
    }

    /// The body.
    pub(super) fn body(self) -> &'static [u8] {
        match self {
            Self::Empty | Self::None | Self::Redirect | Self::Html => b"",
            Self::Gif => include_bytes!("answer/pixel.gif"),
            Self::Png => include_bytes!("answer/pixel.png"),
            Self::Json => b"{\"ok\":true}",
        }
    }
}
