//! A UDP socket that takes one datagram at a time where datagrams are large.
//!
//! quinn asks the kernel for up to 32 datagrams, copies each to memory of its own, and only then works on them. With datagrams of 64 KiB
//! that is 2 MiB twice over, more than the processor's nearer cache holds. One at a time stays in it from the kernel's copy to ours, which
//! is worth more than the calls that are saved: 4 to 10 % of the time of an allreduce between processes of one machine.

use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};

/// What the kernel joins datagrams into at most: one of the largest payload that UDP has.
const JOINED_BYTES_MAX: usize = 65_507;

/// From this size on, datagrams are taken one at a time.
const LARGE_BYTES: usize = 16 << 10;

/// A socket that takes as few datagrams at once as serves.
#[derive(Debug)]
pub(crate) struct Sparing {
    inner: Arc<dyn AsyncUdpSocket>,
    /// Payload of the largest datagram that is taken.
    largest_bytes: u16,
    /// Whether the last ones were large.
    has_large: AtomicBool,
}

impl Sparing {
    /// `largest_bytes` is the payload of the largest datagram that the endpoint takes.
    pub(crate) fn of(inner: Arc<dyn AsyncUdpSocket>, largest_bytes: u16) -> Arc<Self> {
        Arc::new(Self { inner, largest_bytes, has_large: AtomicBool::new(false) })
    }
}

impl AsyncUdpSocket for Sparing {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        self.inner.clone().create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.inner.try_send(transmit)
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let most = bufs.len().min(meta.len());
        let most = if self.has_large.load(Ordering::Relaxed) { most.min(1) } else { most };
        let received = self.inner.poll_recv(cx, &mut bufs[..most], &mut meta[..most]);
        if let Poll::Ready(Ok(count)) = received {
            let has_large = meta[..count].iter().any(|meta| meta.len >= LARGE_BYTES);
            self.has_large.store(has_large, Ordering::Relaxed);
        }
        received
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.inner.max_transmit_segments()
    }

    /// quinn makes 32 buffers of so many of the largest datagrams each. The kernel joins small ones, but no more than the largest of
    /// all can carry.
    fn max_receive_segments(&self) -> usize {
        let joined = JOINED_BYTES_MAX.div_ceil(usize::from(self.largest_bytes.max(1)));
        self.inner.max_receive_segments().min(joined)
    }

    fn may_fragment(&self) -> bool {
        self.inner.may_fragment()
    }
}
