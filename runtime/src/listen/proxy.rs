//! PROXY protocol headers, version 2. A load balancer sends one at the start of a connection to report the client's
//! address.
//!
//! Any client can send a header, so only headers from configured networks are read. Version 1 is rejected. The format is
//! at <https://www.haproxy.org/download/3.2/doc/proxy-protocol.txt>.

use std::{io, net::IpAddr, sync::Arc, time::Duration};

use ipnet::IpNet;
use tokio::io::{AsyncRead, AsyncReadExt as _};

/// Maximum size of a header. The specification guarantees that this many bytes fit into one segment.
pub const HEADER_BYTES_MAX: usize = 536;

/// Maximum time from accepting a connection to the end of its header, which usually arrives in the first packet.
pub(super) const HEADER_TIMEOUT: Duration = Duration::from_secs(5);

/// Signature, version and command, address family, and length of the rest.
const PREFIX_BYTES: usize = 16;

const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

/// The networks of load balancers whose connections begin with a header; clones share them.
#[derive(Debug, Clone, Default)]
pub struct Proxies(Arc<[IpNet]>);

impl Proxies {
    /// Load balancers in these networks.
    pub fn new(networks: impl IntoIterator<Item = IpNet>) -> Self {
        Self(networks.into_iter().collect())
    }

    /// Whether no connection begins with a header.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn contains(&self, peer: IpAddr) -> bool {
        let peer = peer.to_canonical();
        self.0.iter().any(|network| network.contains(&peer))
    }
}

/// Reads a header and no byte after it. Returns the address of the client; `None` if the header is about the connection of the
/// load balancer itself (such as a health check), or names neither an IPv4 nor an IPv6 address.
///
/// # Errors
/// If the stream ends, or does not begin with a header of at most [`HEADER_BYTES_MAX`] bytes.
pub async fn receive(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<IpAddr>> {
    let mut header = [0; HEADER_BYTES_MAX];
    stream.read_exact(&mut header[..PREFIX_BYTES]).await?;
    let length = PREFIX_BYTES + usize::from(u16::from_be_bytes([header[14], header[15]]));
    if !header.starts_with(SIGNATURE) || length > HEADER_BYTES_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    stream.read_exact(&mut header[PREFIX_BYTES..length]).await?;
    let addresses = &header[PREFIX_BYTES..length];
    // After both addresses and ports, type-length-value fields may follow.
    let client = match (header[12], header[13]) {
        // A connection of the load balancer; the family is ignored.
        (0x20, _) => return Ok(None),
        // Unknown, UDP and Unix sockets. For these, the specification prescribes the address of the connection.
        (0x21, 0x00 | 0x12 | 0x22 | 0x31 | 0x32) => return Ok(None),
        (0x21, 0x11) if addresses.len() >= 12 => {
            addresses.first_chunk::<4>().copied().map(Into::into)
        }
        (0x21, 0x21) if addresses.len() >= 36 => {
            addresses.first_chunk::<16>().copied().map(Into::into)
        }
        _ => None,
    };
    client
        .map(Some)
        .ok_or_else(|| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests;
