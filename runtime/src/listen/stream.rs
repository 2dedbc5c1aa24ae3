//! A network stream that records its activity, for the timeouts in `activity.rs`.

use std::{
    io::{self, IoSlice},
    net::IpAddr,
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::Activity;

/// A stream that records reads and writes in its [`Activity`].
#[derive(Debug)]
pub struct WatchedStream<S> {
    pub(super) stream: S,
    pub(super) peer: IpAddr,
    pub(crate) activity: Arc<Activity>,
}

impl<S> WatchedStream<S> {
    /// The client address: that of the connection, or of its PROXY header.
    pub fn peer(&self) -> IpAddr {
        self.peer
    }

    fn read(&mut self, bytes: &[u8]) {
        let bytes_read = &self.activity.bytes_read;
        let before = bytes_read.load(Ordering::Relaxed);
        bytes_read.store(before + bytes.len() as u64, Ordering::Relaxed);
    }

    fn wrote(&self, result: &Poll<io::Result<usize>>) {
        let blocked = result.is_pending();
        self.activity
            .write_blocked
            .store(blocked, Ordering::Relaxed);
        if let Poll::Ready(Ok(bytes)) = result {
            let written = self.activity.bytes_written.load(Ordering::Relaxed);
            self.activity
                .bytes_written
                .store(written + *bytes as u64, Ordering::Relaxed);
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WatchedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.read(&buffer.filled()[before..]);
        result
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WatchedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.wrote(&result);
        result
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.wrote(&result);
        result
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
