//! The stack of one shard: frames, commands and time in; frames and events out.

mod check;
mod commands;
mod listing;
mod network;

use crate::config::Config;
use crate::context::{Context, StackBase};
use crate::counters::{Counters, Drop};
use crate::error::ConfigError;
use crate::event::Event;
use crate::frame::{Checksums, Received, Transmit};
use crate::id::ConnId;
use crate::ip::Ip;
use crate::ip::icmp::Complaint;
use crate::ip::inbound::Inbound;
use crate::ip::reassembly::Reassembly;
use crate::memory::Memory;
use crate::tcp::{Lookup, Segment, Tcp, Unknown, announced_scale};
use crate::time::Instant;
use crate::udp::Udp;
use crate::wire::Protocol;
use crate::wire::checksum;
use crate::wire::ethernet;
use crate::wire::fast_path::template::{IPV4, IPV4_WITH_TIMES, IPV6_WITH_TIMES, NO_LAYOUT};
use crate::wire::fast_path::{
    BARE_HEADER, FastSegment, HEADER_OF_SYN, HEADER_WITH_TIMES, Other, Packet, SegmentLayout, Sum,
};

pub use listing::{ListedSocket, ListingCursor};

/// TCP, UDP and IP of one shard, as a function of its inputs.
///
/// There are four kinds of calls, and one order:
///
/// 1. **Inputs**: [`Stack::on_frame`] for every frame that arrived, [`Stack::on_timeout`] when
///    the time of [`Stack::poll_timeout`] has come.
/// 2. **Commands**, in any number: those of TCP ([`Stack::listen`], [`Stack::accept`],
///    [`Stack::connect`], [`Stack::receive`], [`Stack::send`], [`Stack::shutdown`],
///    [`Stack::close`], [`Stack::abort`] and their kin), of UDP ([`Stack::bind_datagram`] and its
///    kin) and of the network ([`Stack::set_routes`] and its kin).
/// 3. **Outputs**, after any of these: [`Stack::poll_event`] until `None`, then
///    [`Stack::poll_transmit`] until `None` (or until the link takes no more), then
///    [`Stack::poll_timeout`] for when to come back at the latest. With
///    [`Config::external_neighbours`] also [`Stack::poll_wanted`].
/// 4. **Questions**: [`Stack::counters`], [`Stack::info`] and their kin change nothing.
///
/// No call blocks, none panics on what a peer sent, and after [`Stack::new`] none of the inputs
/// and outputs allocates. `now` is the caller's clock; where it runs backwards, the latest time
/// counts on.
pub struct Stack {
    base: StackBase,
    reassembly: Reassembly,
    tcp: Tcp,
    udp: Udp,
    now: Instant,
    /// A test wants to see what every segment does without the way of the expected ones.
    #[cfg(test)]
    takes_slow_path: bool,
}

impl Stack {
    /// Makes a stack; everything that it will ever need is allocated here.
    ///
    /// # Errors
    ///
    /// Which setting is wrong, and why.
    pub fn new(mut config: Config, now: Instant) -> Result<Self, ConfigError> {
        check::check(&config)?;
        // What follows from other settings is decided once, and not in every handshake.
        config.tcp.window_scale = Some(announced_scale(&config.tcp));
        Ok(Self {
            reassembly: Reassembly::new(),
            tcp: Tcp::new(&config, now),
            udp: Udp::new(&config),
            base: StackBase { ip: Ip::new(&config, now)?, config, counters: Counters::default() },
            now,
            #[cfg(test)]
            takes_slow_path: false,
        })
    }

    /// A frame arrived. It is read, not kept.
    pub fn on_frame<M: Memory>(
        &mut self,
        now: Instant,
        frame: &[u8],
        received: Received,
        memory: &mut M,
    ) {
        self.tick(now);
        self.base.counters.totals.frames_in += 1;
        #[cfg(test)]
        if self.takes_slow_path {
            return self.take_slow_path(frame, received, memory);
        }
        let Self { base, tcp, now, .. } = self;
        // Each version of IP has its own comparison, and both share what follows: with two copies
        // of that, one would not be inlined here.
        let template = tcp.next_template();
        let segment = match template.layout() {
            IPV4_WITH_TIMES => {
                let packet = base.ip.fast_packet(frame, ethernet::IPV4);
                packet.and_then(|packet| template.segment_in::<4>(packet))
            }
            IPV6_WITH_TIMES => {
                let packet = base.ip.fast_packet(frame, ethernet::IPV6);
                packet.and_then(|packet| template.segment_in::<6>(packet))
            }
            // Together, so that the two above are compared first.
            layout => {
                core::hint::cold_path();
                return match layout {
                    NO_LAYOUT => self.take_any(frame, received, memory),
                    _ => self.take_without_times(frame, received, memory),
                };
            }
        };
        if let Some(segment) = segment {
            let mut context = Context { now: *now, memory: &mut *memory, base };
            if tcp.on_next::<HEADER_WITH_TIMES>(&mut context, segment, received) {
                return;
            }
        }
        core::hint::cold_path();
        self.take_any(frame, received, memory);
    }

    /// Takes a frame where the next segment of the flow has no timestamps. A function of its own:
    /// inlined beside the other it would take registers from that.
    #[inline(never)]
    fn take_without_times<M: Memory>(&mut self, frame: &[u8], received: Received, memory: &mut M) {
        let Self { base, tcp, now, .. } = self;
        let template = tcp.next_template();
        let segment = if template.layout() == IPV4 {
            let packet = base.ip.fast_packet(frame, ethernet::IPV4);
            packet.and_then(|packet| template.segment_in::<4>(packet))
        } else {
            let packet = base.ip.fast_packet(frame, ethernet::IPV6);
            packet.and_then(|packet| template.segment_in::<6>(packet))
        };
        if let Some(segment) = segment {
            let mut context = Context { now: *now, memory: &mut *memory, base };
            if tcp.on_next::<BARE_HEADER>(&mut context, segment, received) {
                return;
            }
        }
        core::hint::cold_path();
        self.take_any(frame, received, memory);
    }

    /// Takes a frame that is not the next segment of a flow.
    #[inline(always)]
    fn take_any<M: Memory>(&mut self, frame: &[u8], received: Received, memory: &mut M) {
        if !self.take_on_fast_path(frame, received, memory) {
            core::hint::cold_path();
            self.take_slow_path(frame, received, memory);
        }
    }

    /// Apart, so that what it takes does not stand in the way of expected segments.
    #[inline(never)]
    fn take_slow_path<M: Memory>(&mut self, frame: &[u8], received: Received, memory: &mut M) {
        if let Err(reason) = self.take_in(frame, received, memory) {
            self.base.counters.drop(reason);
        }
        self.report_neighbours(memory);
    }

    /// Takes a frame whose headers are the usual ones of TCP. `false`: it is another, or there is
    /// something wrong with it; nothing happened.
    #[inline(never)]
    fn take_on_fast_path<M: Memory>(
        &mut self,
        frame: &[u8],
        received: Received,
        memory: &mut M,
    ) -> bool {
        if !self.base.ip.has_fast_link(frame) {
            return false;
        }
        match self.base.ip.packet_in(frame) {
            Some((ethernet::IPV4, packet)) => self.take_packet::<M, 4>(packet, received, memory),
            Some((_, packet)) => self.take_packet::<M, 6>(packet, received, memory),
            None => false,
        }
    }

    /// The same of its packet. Each kind of segment has its own instructions, from its first byte
    /// on, and so has each version of IP. `false`: it has unusual headers, or there is something
    /// wrong with it; nothing happened.
    #[inline(always)]
    fn take_packet<M: Memory, const VERSION: u8>(
        &mut self,
        packet: &[u8],
        received: Received,
        memory: &mut M,
    ) -> bool {
        match SegmentLayout::of::<VERSION>(packet) {
            SegmentLayout::Fast => self.take_fast::<M, VERSION>(packet, received, memory),
            SegmentLayout::Bare => {
                self.take_other::<M, VERSION, BARE_HEADER>(packet, received, memory)
            }
            SegmentLayout::WithTimes => {
                self.take_other::<M, VERSION, HEADER_WITH_TIMES>(packet, received, memory)
            }
            SegmentLayout::Syn => {
                self.take_other::<M, VERSION, HEADER_OF_SYN>(packet, received, memory)
            }
            SegmentLayout::Unknown => false,
        }
    }

    /// Text or an acknowledgment, of any flow.
    #[inline(never)]
    fn take_fast<M: Memory, const VERSION: u8>(
        &mut self,
        packet: &[u8],
        received: Received,
        memory: &mut M,
    ) -> bool {
        let Some(packet) = Packet::of::<VERSION>(packet) else { return false };
        if !self.base.ip.lets_in(packet.src, packet.dst) {
            return false;
        }
        let Some(segment) = FastSegment::of(&packet) else { return false };
        let Self { base, tcp, now, .. } = self;
        let mut context = Context { now: *now, memory: &mut *memory, base };
        match tcp.on_fast_segment(&mut context, &segment, received) {
            Ok(()) => true,
            Err(lookup) => self.take_unexpected(&segment, (received, lookup), memory),
        }
    }

    /// Takes any other segment whose headers are the usual ones: they are read, and its addresses
    /// are let in. `false`: something is wrong with it, and the slow path will say what.
    #[inline(never)]
    fn take_unexpected<M: Memory>(
        &mut self,
        segment: &FastSegment<'_>,
        (received, lookup): (Received, Lookup),
        memory: &mut M,
    ) -> bool {
        // Made before it is checked: so each field is written where it stays.
        let sum = segment.content.sum;
        let segment = Segment::of_fast_segment(segment, received);
        self.take_believed((&segment, sum), (received, Some(lookup)), memory)
    }

    /// A segment with other flags or with a SYN's options.
    #[inline(never)]
    fn take_other<M: Memory, const VERSION: u8, const HEADER_BYTES: usize>(
        &mut self,
        packet: &[u8],
        received: Received,
        memory: &mut M,
    ) -> bool {
        let Some(packet) = Packet::of::<VERSION>(packet) else { return false };
        if !self.base.ip.lets_in(packet.src, packet.dst) {
            return false;
        }
        let Some(other) = Other::of::<HEADER_BYTES>(&packet) else { return false };
        let segment = Segment::of_other(&other, received);
        self.take_believed((&segment, other.sum), (received, None), memory)
    }

    /// Takes a segment that was read and let in, unless its checksum is wrong.
    #[inline(always)]
    fn take_believed<M: Memory>(
        &mut self,
        (segment, sum): (&Segment<'_>, Sum),
        (received, lookup): (Received, Option<Lookup>),
        memory: &mut M,
    ) -> bool {
        let payload = segment.payload;
        let payload_sum = || if payload.is_empty() { 0 } else { checksum::sum(payload) };
        if received.checksums == Checksums::Unverified && !sum.is_right_with(payload_sum()) {
            return false;
        }
        self.with(memory, |tcp, context| tcp.on_read(context, segment, lookup));
        self.report_neighbours(memory);
        true
    }

    /// As [`Stack::on_frame`], but no listener takes a connection that the frame would begin: it is
    /// answered as if there were none.
    pub fn refuse_frame<M: Memory>(
        &mut self,
        now: Instant,
        frame: &[u8],
        received: Received,
        memory: &mut M,
    ) {
        self.on_unknown_frame(now, frame, received, (Unknown::Refused, memory));
    }

    /// As [`Stack::on_frame`], but a segment of TCP that is of no connection here is not answered
    /// by a RST: its connection is on its way from one stack to another, and the peer repeats it.
    pub fn on_stray_frame<M: Memory>(
        &mut self,
        now: Instant,
        frame: &[u8],
        received: Received,
        memory: &mut M,
    ) {
        self.on_unknown_frame(now, frame, received, (Unknown::Stray, memory));
    }

    fn on_unknown_frame<M: Memory>(
        &mut self,
        now: Instant,
        frame: &[u8],
        received: Received,
        (unknown, memory): (Unknown, &mut M),
    ) {
        self.tcp.set_unknown(unknown);
        self.on_frame(now, frame, received, memory);
        self.tcp.set_unknown(Unknown::Answered);
    }

    fn take_in<M: Memory>(
        &mut self,
        frame: &[u8],
        received: Received,
        memory: &mut M,
    ) -> Result<(), Drop> {
        let Self { base, reassembly, tcp, udp, now, .. } = self;
        let StackBase { ip, counters, .. } = &mut *base;
        let inbound = ip.on_frame(*now, (frame, received), reassembly, counters)?;
        let mut context = Context { now: *now, memory, base };
        match inbound {
            Inbound::Handled => {}
            // TCP counts its drops itself: it drops parts of segments, too.
            Inbound::Tcp(arrived) => tcp.on_segment(&mut context, &arrived),
            Inbound::Udp(arrived, original) => {
                let taken = udp.on_datagram(&mut context, &arrived);
                if taken == Err(Drop::NoEndpoint) {
                    context.base.ip.complain(
                        *now,
                        &original,
                        Complaint::Port,
                        &mut context.base.counters,
                    );
                }
                taken?;
            }
            Inbound::Shared(Protocol::Tcp, arrived) if tcp.is_asked_for(&arrived) => {
                tcp.on_segment(&mut context, &arrived);
            }
            Inbound::Shared(Protocol::Udp, arrived) => udp.on_datagram(&mut context, &arrived)?,
            Inbound::Shared(..) => return Err(Drop::NoConnection),
            Inbound::Icmp(error, said) if error.protocol == Protocol::Udp => {
                udp.on_icmp_error(&mut context, &error, &said)?;
            }
            Inbound::Icmp(error, _) => tcp.on_icmp_error(&mut context, &error),
        }
        Ok(())
    }

    /// Time passed. To be called when [`Stack::poll_timeout`] is not after `now`; earlier calls
    /// do nothing.
    pub fn on_timeout<M: Memory>(&mut self, now: Instant, memory: &mut M) {
        self.tick(now);
        let Self { base: StackBase { ip, counters, .. }, reassembly, now, .. } = self;
        let now = *now;
        ip.on_timeout(now);
        let given_up = reassembly.on_timeout(now, |first| {
            if let Some(packet) = first {
                ip.complain_of_reassembly(now, packet, counters);
            }
        });
        (0..given_up).for_each(|_| counters.drop(Drop::BadFragment));
        self.with(memory, |tcp, context| tcp.on_timeout(context));
        self.report_neighbours(memory);
    }

    /// The next thing that happened; `None`: nothing more.
    pub fn poll_event(&mut self) -> Option<Event> {
        if self.tcp.is_quiet() {
            return if self.udp.has_event() { self.udp.poll_event() } else { None };
        }
        match self.tcp.poll_bytes() {
            None => self.poll_any_event(),
            Some((conn, chunk)) => Some(Event::Received { conn, chunk }),
        }
    }

    /// The next event, if it is the most usual one: received bytes in one buffer, with no other
    /// event before them. `None`: [`Stack::poll_event`] returns the next one, if there is any.
    #[inline]
    pub fn poll_bytes(&mut self) -> Option<(ConnId, crate::Chunk)> {
        self.tcp.poll_bytes()
    }

    /// Apart, so that it does not stand in the way of the most usual event.
    #[inline(never)]
    fn poll_any_event(&mut self) -> Option<Event> {
        match self.tcp.poll_event(self.now) {
            None => self.udp.poll_event(),
            event => event,
        }
    }

    /// Whether [`Stack::poll_event`] may return an event. For a thread that polls the stack while
    /// another one takes the events. A false positive is possible but rare.
    pub fn has_event(&mut self) -> bool {
        self.tcp.has_event() || self.udp.has_event()
    }

    /// Writes the next frame to `frame`, which is [`Config::tx_frame_bytes`] long; `None`: there is
    /// nothing more to send. Answers to the link and of ICMP go first, then TCP's control segments,
    /// ACKs and data, then datagrams.
    pub fn poll_transmit<M: Memory>(
        &mut self,
        now: Instant,
        frame: &mut [u8],
        memory: &mut M,
    ) -> Option<Transmit> {
        self.tick(now);
        // The layer below goes first. Asked once: most calls find nothing to send.
        let transmit = if !self.base.ip.is_silent(self.now) {
            self.next_of_any_layer(frame, memory)?
        } else if self.tcp.is_silent(self.base.ip.epoch()) && self.udp.is_silent() {
            return None;
        } else {
            self.next_of_transports(frame, memory)?
        };
        self.base.counters.totals.frames_out += 1;
        Some(transmit)
    }

    #[inline(never)]
    fn next_of_any_layer<M: Memory>(
        &mut self,
        frame: &mut [u8],
        memory: &mut M,
    ) -> Option<Transmit> {
        let transmit = self.base.ip.poll_transmit(self.now, frame, &mut self.base.counters);
        transmit.or_else(|| self.next_of_transports(frame, memory))
    }

    #[inline(always)]
    fn next_of_transports<M: Memory>(
        &mut self,
        frame: &mut [u8],
        memory: &mut M,
    ) -> Option<Transmit> {
        let Self { base, tcp, udp, now, .. } = self;
        let mut context = Context { now: *now, memory, base };
        match tcp.poll_transmit(&mut context, frame) {
            None => next_after_tcp(udp, &mut context, frame),
            transmit => transmit,
        }
    }

    /// When [`Stack::on_timeout`] has something to do, at the earliest; `None`: never, unless
    /// something else happens. That is at once, while [`Stack::poll_transmit`] was not asked since
    /// something happened to a connection: what it waits for is decided before frames leave.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let timers =
            [self.base.ip.poll_timeout(), self.reassembly.poll_timeout(), self.tcp.poll_timeout()];
        timers.into_iter().flatten().min()
    }

    /// A timer is due. Unlike [`Stack::poll_timeout`] this leaves connections alone that something
    /// happened to in this turn: for a loop that comes to [`Stack::poll_transmit`] before it
    /// sleeps, and decides there what they wait for.
    #[must_use]
    pub fn has_timer_due(&self, now: Instant) -> bool {
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        self.tcp.has_timer_due(now)
            || is_due(self.reassembly.poll_timeout())
            || self.base.ip.has_timer_due(now)
    }

    /// What was counted.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.base.counters
    }

    /// The settings that it was made with.
    #[must_use]
    pub const fn config(&self) -> &Config {
        &self.base.config
    }

    /// Chunks queued and transmissions recorded: none when every connection is over.
    #[cfg(any(test, feature = "invariants"))]
    #[must_use]
    pub const fn held(&self) -> (u32, u32) {
        self.tcp.held()
    }

    /// All that is remembered of a connection, to compare.
    #[cfg(test)]
    pub(crate) fn record(&self, conn: ConnId) -> String {
        self.tcp.record(conn)
    }

    /// `rcv.nxt`, and what is in flight.
    #[cfg(test)]
    pub(crate) fn numbers(&self, conn: ConnId) -> (crate::SeqNum, crate::SeqRange) {
        self.tcp.numbers(conn)
    }

    /// Checks what holds between two calls.
    ///
    /// # Panics
    ///
    /// If something is wrong with this stack.
    #[cfg(any(test, feature = "invariants"))]
    pub fn check_invariants(&self) {
        self.tcp.check_invariants();
    }

    /// Calls TCP with everything that it works with.
    fn with<M: Memory, R>(
        &mut self,
        memory: &mut M,
        call: impl FnOnce(&mut Tcp, &mut Context<'_, M>) -> R,
    ) -> R {
        let Self { base, tcp, now, .. } = self;
        call(tcp, &mut Context { now: *now, memory, base })
    }

    /// Time never runs backwards.
    fn tick(&mut self, now: Instant) {
        self.now = self.now.max(now);
    }

    /// Notifies all waiting users of neighbours that were resolved or have failed.
    #[inline(always)]
    fn report_neighbours<M: Memory>(&mut self, memory: &mut M) {
        if self.base.ip.has_decided_neighbour() {
            self.report_decided_neighbours(memory);
        }
    }

    #[inline(never)]
    fn report_decided_neighbours<M: Memory>(&mut self, memory: &mut M) {
        let Self { base, tcp, udp, now, .. } = self;
        while let Some((neighbour, resolved)) = base.ip.poll_neighbour(&mut base.counters) {
            let mut context = Context { now: *now, memory: &mut *memory, base: &mut *base };
            tcp.on_neighbour(&mut context, neighbour, resolved);
            udp.on_neighbour(&mut context, neighbour, resolved);
        }
    }
}

/// TCP has nothing to send.
#[inline(never)]
fn next_after_tcp<M: Memory>(
    udp: &mut Udp,
    context: &mut Context<'_, M>,
    frame: &mut [u8],
) -> Option<Transmit> {
    let transmit = udp.poll_transmit(context, frame);
    // A transport that looked for a neighbour may have made a question.
    transmit
        .or_else(|| context.base.ip.poll_transmit(context.now, frame, &mut context.base.counters))
}

#[cfg(test)]
mod tests;
