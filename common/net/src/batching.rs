//! A UDP socket that hands the kernel more datagrams in one call than quinn does.
//!
//! quinn gives a socket up to ten equal datagrams at once, for the kernel to segment. A call of 40 costs the kernel a quarter of four calls
//! of ten, and comes to the receiver in one piece: with datagrams of Ethernet's size a connection moves 1.3 to 1.6 times as much. So what
//! quinn sends in full tens waits here for what follows, and goes out
//!
//! - when as much is there as one call takes,
//! - with the first datagrams that are fewer than ten (they are the last for now), go elsewhere or are of another size,
//! - at the latest when the scheduler has been round once more: a task is woken for that, so nothing ever waits for the network.
//!
//! The order is kept, and what is not a full ten is sent at once. It also cuts what the kernel would refuse: ten datagrams of 8952 bytes
//! are more than a call may have, which quinn does not know.

use std::future::Future;
use std::io::{self, ErrorKind, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};

use quinn::udp::{EcnCodepoint, RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};

/// What quinn gives at once, at most (quinn 0.11.12, connection.rs: MAX_TRANSMIT_SEGMENTS).
const QUINN_SEGMENTS: usize = 10;

/// What the kernel takes at once, at most: payload of one UDP datagram over IPv4, whatever the segments, and as many of these.
const CALL_BYTES: usize = 65_507;
const CALL_SEGMENTS: usize = 64;

/// A socket that sends in long calls.
#[derive(Debug)]
pub(crate) struct Batching {
    inner: Arc<dyn AsyncUdpSocket>,
    waiting: Mutex<Waiting>,
}

impl Drop for Batching {
    fn drop(&mut self) {
        // The flusher keeps the socket open until it has seen that nobody else does.
        if let Some(flusher) = self.lock().flusher.take() {
            flusher.wake();
        }
    }
}

/// Where datagrams go, from where, and how they are marked: the same for all of one call.
type Way = (SocketAddr, Option<IpAddr>, Option<EcnCodepoint>);

/// Datagrams that wait for company.
#[derive(Debug, Default)]
struct Waiting {
    way: Option<Way>,
    /// Of each but the last.
    datagram_bytes: usize,
    bytes: Vec<u8>,
    /// The task that sends what nothing follows; none while it has been woken.
    flusher: Option<Waker>,
}

impl Batching {
    /// Must be called within the runtime of the network thread.
    pub(crate) fn of(inner: Arc<dyn AsyncUdpSocket>) -> Arc<Self> {
        let this = Arc::new(Self { inner, waiting: Mutex::default() });
        let poller = this.inner.clone().create_io_poller();
        let flusher = Flusher { socket: Arc::downgrade(&this), poller, has_let_others: false };
        tokio::spawn(flusher);
        this
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Datagrams that one call takes, at most. It can change: a device that cannot segment makes it one.
    fn segments(&self) -> usize {
        self.inner.max_transmit_segments().clamp(1, CALL_SEGMENTS)
    }

    /// Sends what fills whole calls, and with `all` the rest too.
    fn send(&self, waiting: &mut Waiting, all: bool) -> io::Result<()> {
        let Some((destination, src_ip, ecn)) = waiting.way else { return Ok(()) };
        let call_bytes = waiting.call_bytes(self.segments());
        let mut sent = 0;
        let outcome = loop {
            let left = &waiting.bytes[sent..];
            let contents = &left[..left.len().min(call_bytes)];
            if contents.is_empty() || (!all && contents.len() < call_bytes) {
                break Ok(());
            }
            let segment_size = (contents.len() > waiting.datagram_bytes).then_some(waiting.datagram_bytes);
            let transmit = Transmit { destination, ecn, contents, segment_size, src_ip };
            match self.inner.try_send(&transmit) {
                Ok(()) => sent += contents.len(),
                Err(error) => {
                    // What a broken socket does not take is lost, as any datagram may be.
                    sent = if error.kind() == ErrorKind::WouldBlock { sent } else { waiting.bytes.len() };
                    break Err(error);
                }
            }
        };
        waiting.bytes.drain(..sent);
        if waiting.bytes.is_empty() {
            waiting.way = None;
        }
        outcome
    }
}

impl Waiting {
    /// Bytes of the longest call with these datagrams, of which it takes so many.
    fn call_bytes(&self, segments: usize) -> usize {
        let datagram_bytes = self.datagram_bytes.max(1);
        (CALL_BYTES / datagram_bytes).clamp(1, segments) * datagram_bytes
    }

    /// Whether this can go in the call that those which wait will go in.
    fn takes(&self, transmit: &Transmit<'_>, segments: usize) -> bool {
        let datagram_bytes = datagram_bytes(transmit);
        let is_same = datagram_bytes == self.datagram_bytes
            // Only the last datagram of a call may be shorter, and one that is alone will be the last.
            || (transmit.segment_size.is_none() && datagram_bytes < self.datagram_bytes);
        let has_short_one = !self.bytes.len().is_multiple_of(self.datagram_bytes.max(1));
        self.way == Some(way(transmit))
            && is_same
            && !has_short_one
            && self.bytes.len() < self.call_bytes(segments)
    }
}

fn way(transmit: &Transmit<'_>) -> Way {
    (transmit.destination, transmit.src_ip, transmit.ecn)
}

fn datagram_bytes(transmit: &Transmit<'_>) -> usize {
    transmit.segment_size.unwrap_or(transmit.contents.len())
}

/// Whether quinn gave as many as it can, so that more are likely to follow.
fn is_full(transmit: &Transmit<'_>) -> bool {
    transmit.segment_size.is_some_and(|bytes| transmit.contents.len() == QUINN_SEGMENTS * bytes)
}

impl AsyncUdpSocket for Batching {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        self.inner.clone().create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let mut waiting = self.lock();
        if waiting.way.is_some() && !waiting.takes(transmit, self.segments()) {
            self.send(&mut waiting, true)?;
        }
        let is_full = is_full(transmit);
        if waiting.way.is_none() {
            if !is_full && transmit.contents.len() <= CALL_BYTES {
                drop(waiting);
                return self.inner.try_send(transmit);
            }
            waiting.way = Some(way(transmit));
            waiting.datagram_bytes = datagram_bytes(transmit);
        }
        waiting.bytes.extend_from_slice(transmit.contents);
        match self.send(&mut waiting, !is_full) {
            // They are taken, so whoever sent them has nothing to do again.
            Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error),
            _ => {}
        }
        if waiting.way.is_some()
            && let Some(flusher) = waiting.flusher.take()
        {
            flusher.wake();
        }
        Ok(())
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        self.inner.poll_recv(cx, bufs, meta)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.inner.max_transmit_segments()
    }

    fn max_receive_segments(&self) -> usize {
        self.inner.max_receive_segments()
    }

    fn may_fragment(&self) -> bool {
        self.inner.may_fragment()
    }
}

/// Sends what nothing has followed. It ends with the socket.
struct Flusher {
    socket: Weak<Batching>,
    poller: Pin<Box<dyn UdpPoller>>,
    /// Whether all that could have added something had its turn since this was woken.
    has_let_others: bool,
}

impl Future for Flusher {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Some(socket) = self.socket.upgrade() else { return Poll::Ready(()) };
        let mut waiting = socket.lock();
        if waiting.way.is_some() && !self.has_let_others {
            self.has_let_others = true;
            // To the end of the queue: whoever is sending comes before.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        while socket.send(&mut waiting, true).is_err_and(|error| error.kind() == ErrorKind::WouldBlock) {
            match self.poller.as_mut().poll_writable(cx) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(_)) => return Poll::Ready(()),
                Poll::Pending => return Poll::Pending,
            }
        }
        self.has_let_others = false;
        waiting.flusher = Some(cx.waker().clone());
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    /// What a call to the kernel had: its bytes, and the size of its segments.
    type Call = (Vec<u8>, Option<usize>);

    /// A socket that remembers, and is full when it is told to be.
    #[derive(Debug, Default)]
    struct Kernel {
        calls: Mutex<Vec<Call>>,
        /// Calls that are still taken; none for all.
        room: Mutex<Option<usize>>,
        /// Whether it takes single datagrams only.
        is_plain: Mutex<bool>,
    }

    #[derive(Debug)]
    struct Writable(Arc<Kernel>);

    impl UdpPoller for Writable {
        fn poll_writable(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            if *self.0.room.lock().unwrap() == Some(0) {
                // A test that makes room has the scheduler go round.
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            Poll::Ready(Ok(()))
        }
    }

    impl AsyncUdpSocket for Kernel {
        fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
            Box::pin(Writable(self))
        }

        fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
            if let Some(room) = self.room.lock().unwrap().as_mut() {
                *room = room.checked_sub(1).ok_or(ErrorKind::WouldBlock)?;
            }
            assert!(transmit.contents.len() <= CALL_BYTES, "the kernel refuses so much");
            self.calls.lock().unwrap().push((transmit.contents.to_vec(), transmit.segment_size));
            Ok(())
        }

        fn poll_recv(
            &self,
            _: &mut Context<'_>,
            _: &mut [IoSliceMut<'_>],
            _: &mut [RecvMeta],
        ) -> Poll<io::Result<usize>> {
            Poll::Pending
        }

        fn local_addr(&self) -> io::Result<SocketAddr> {
            Ok(to(0))
        }

        fn max_transmit_segments(&self) -> usize {
            if *self.is_plain.lock().unwrap() { 1 } else { 64 }
        }
    }

    fn to(port: u16) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, port))
    }

    fn stage() -> (Arc<Kernel>, Arc<Batching>) {
        let kernel = Arc::new(Kernel::default());
        (kernel.clone(), Batching::of(kernel))
    }

    /// `count` datagrams of `bytes` each, the last of them of `last`, filled with `byte`.
    fn send(
        socket: &Batching,
        port: u16,
        byte: u8,
        count: usize,
        bytes: usize,
        last: usize,
    ) -> io::Result<()> {
        let contents = vec![byte; (count - 1) * bytes + last];
        let segment_size = (count > 1).then_some(bytes);
        socket.try_send(&Transmit {
            destination: to(port),
            ecn: None,
            contents: &contents,
            segment_size,
            src_ip: None,
        })
    }

    /// Datagrams of every call.
    fn counts(kernel: &Kernel) -> Vec<usize> {
        let calls = kernel.calls.lock().unwrap();
        calls
            .iter()
            .map(|(bytes, segment)| segment.map_or(1, |segment| bytes.len().div_ceil(segment)))
            .collect()
    }

    /// As often as tasks have to be polled until nothing happens any more.
    async fn go_round() {
        for _ in 0..8 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn full_tens_go_out_together_and_what_is_less_at_once() {
        let (kernel, socket) = stage();
        go_round().await;
        send(&socket, 1, 1, 1, 60, 60).unwrap();
        assert_eq!(counts(&kernel), [1], "an acknowledgement waits for nothing");
        for byte in 0..4 {
            send(&socket, 1, byte, 10, 1452, 1452).unwrap();
        }
        assert_eq!(counts(&kernel), [1], "40 datagrams are less than a call takes");
        send(&socket, 1, 4, 3, 1452, 100).unwrap();
        assert_eq!(counts(&kernel), [1, 43]);
        let bytes = kernel.calls.lock().unwrap()[1].0.clone();
        assert_eq!(bytes.len(), 42 * 1452 + 100);
        assert!(bytes.is_sorted(), "the order is kept");
    }

    #[tokio::test]
    async fn what_nothing_follows_goes_out_by_itself() {
        let (kernel, socket) = stage();
        for _ in 0..3 {
            go_round().await;
            send(&socket, 1, 7, 10, 1452, 1452).unwrap();
            go_round().await;
        }
        assert_eq!(counts(&kernel), [10, 10, 10]);
    }

    #[tokio::test]
    async fn other_ways_and_other_sizes_do_not_share_a_call() {
        let (kernel, socket) = stage();
        send(&socket, 1, 1, 10, 1452, 1452).unwrap();
        send(&socket, 2, 2, 10, 1452, 1452).unwrap();
        send(&socket, 2, 3, 10, 1200, 1200).unwrap();
        // Larger than those before it.
        send(&socket, 2, 4, 1, 1452, 1452).unwrap();
        assert_eq!(counts(&kernel), [10, 10, 10, 1]);
        let order: Vec<u8> = kernel.calls.lock().unwrap().iter().map(|(bytes, _)| bytes[0]).collect();
        assert_eq!(order, [1, 2, 3, 4]);
    }

    #[tokio::test]
    async fn a_call_never_has_more_than_the_kernel_takes() {
        let (kernel, socket) = stage();
        for byte in 0..3 {
            send(&socket, 1, byte, 10, 8952, 8952).unwrap();
        }
        send(&socket, 1, 3, 10, 8952, 1).unwrap();
        // The kernel of the stage has looked at the bytes.
        assert_eq!(counts(&kernel), [7, 7, 7, 7, 7, 5]);
        for byte in 0..20 {
            send(&socket, 1, byte, 10, 100, 100).unwrap();
        }
        assert!(counts(&kernel)[6..].iter().all(|count| *count == 64), "{:?}", counts(&kernel));
    }

    #[tokio::test]
    async fn a_full_socket_loses_nothing_and_takes_nothing_twice() {
        let (kernel, socket) = stage();
        *kernel.room.lock().unwrap() = Some(0);
        go_round().await;
        let mut taken = 0_u8;
        while send(&socket, 1, taken, 10, 1452, 1452).is_ok() {
            taken += 1;
            assert!(taken < 20, "it takes without end");
        }
        assert!(counts(&kernel).is_empty());
        go_round().await;
        *kernel.room.lock().unwrap() = None;
        go_round().await;
        assert_eq!(counts(&kernel).iter().sum::<usize>(), usize::from(taken) * 10);
        let bytes: Vec<u8> =
            kernel.calls.lock().unwrap().iter().flat_map(|(bytes, _)| bytes.clone()).collect();
        assert!(bytes.is_sorted() && bytes.len() == usize::from(taken) * 14_520, "in order, once each");
    }

    #[tokio::test]
    async fn where_the_kernel_segments_no_more_they_go_one_by_one() {
        let (kernel, socket) = stage();
        send(&socket, 1, 1, 10, 1452, 1452).unwrap();
        *kernel.is_plain.lock().unwrap() = true;
        go_round().await;
        assert_eq!(counts(&kernel), [1; 10]);
    }

    #[tokio::test]
    async fn the_task_ends_with_the_socket() {
        let (kernel, socket) = stage();
        send(&socket, 1, 1, 10, 1452, 1452).unwrap();
        go_round().await;
        let weak = Arc::downgrade(&socket);
        drop(socket);
        go_round().await;
        assert!(weak.upgrade().is_none());
        assert_eq!(counts(&kernel), [10]);
    }
}
