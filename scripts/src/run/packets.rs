//! Packets: those that the interpreter sends, and those that it looks for.

use super::{EventError, FIRST_REMOTE_PORT, ScriptRun};
use crate::conversation::{Conversation, Stage};
use crate::difference::difference;
use crate::limits::{ANY_TIME_US, LATE_US};
use crate::report::seconds;
use crate::script::{ACK, CWR, FIN, PSH, PacketBody, SYN, ScriptPacket, ScriptSegment};
use crate::system::{Injected, System};
use crate::wire::tcp::TcpHeader;
use crate::wire::{self, ChecksumTrust, IpPacket, PacketTransport};

/// Where a train of segments may differ from its first one: only the last carries FIN and PSH, only
/// the first CWR (RFC 3168, section 6.1.2).
const TRAIN_FLAGS: u16 = FIN | PSH | CWR;

impl<S: System> ScriptRun<'_, S> {
    /// Sends a packet to the system.
    pub(super) fn inbound(&mut self, packet: &ScriptPacket) -> Result<(), EventError> {
        let index = self.conversation_of(packet);
        let conversation = &mut self.conversations[index];
        if let PacketBody::Tcp(segment) = &packet.body {
            conversation.on_inbound(segment);
        }
        let live = conversation.to_live(packet, &self.settings)?;
        let bytes = wire::emit(&live);
        let payload_len = match &live.payload {
            PacketTransport::Tcp(header) => header.payload.len(),
            _ => 0,
        };
        let each = self.settings.segment_bytes;
        let is_train = each > 0 && payload_len > usize::from(each);
        let header_bytes = u16::try_from(bytes.len() - payload_len).unwrap_or(0);
        let segment_bytes = if is_train { each } else { 0 };
        self.system.inject(&Injected { bytes: &bytes, segment_bytes, header_bytes })?;
        Ok(())
    }

    /// The conversation that a packet belongs to. One that reaches a listener, or no socket,
    /// begins a new one.
    fn conversation_of(&mut self, packet: &ScriptPacket) -> usize {
        let under_test = self.under_test.filter(|&index| {
            let is_inbound = !packet.is_outbound();
            let is_listening = self.conversations[index].stage == Stage::Listening;
            !(is_inbound && is_listening && matches!(packet.body, PacketBody::Tcp(_)))
        });
        if let Some(index) = under_test {
            return index;
        }
        let protocol = match packet.body {
            PacketBody::Udp(_) => wire::PROTOCOL_UDP,
            PacketBody::Tcp(_) | PacketBody::Icmp(_) => wire::PROTOCOL_TCP,
        };
        let mut conversation = Conversation::new(protocol, &self.settings, self.next_remote_port);
        self.next_remote_port = self.next_remote_port.checked_add(1).unwrap_or(FIRST_REMOTE_PORT);
        if let Some(listener) = self.under_test {
            conversation.local.set_port(self.conversations[listener].local.port());
        }
        if let Some((remote, local)) = packet.ports.filter(|_| !packet.is_outbound()) {
            conversation.remote.set_port(remote);
            conversation.local.set_port(local);
        }
        self.conversations.push(conversation);
        let index = self.conversations.len() - 1;
        self.under_test = Some(index);
        index
    }

    /// Looks for a packet of the system.
    pub(super) fn outbound(&mut self, expected: &ScriptPacket) -> Result<(), EventError> {
        let index = self.conversation_of(expected);
        if let PacketBody::Tcp(segment) = &expected.body {
            self.conversations[index].on_expected(segment);
        }
        let (live, at_us) = self.train(index, expected)?;
        let actual = self.conversations[index].in_script(&live, expected);
        let checked = match difference(expected, &actual, &self.settings) {
            Some(what) => Err(EventError::differs(format!("another packet was sent: {what}"))),
            None if self.is_payload_wrong(&live) => {
                Err(EventError::differs("the payload is not what the program wrote"))
            }
            None => self.check_time("the packet was sent", at_us),
        };
        let checked = checked.map_err(|error| match error {
            EventError::Differs { what, .. } => {
                let packets = vec![self.expectation(expected), sent_line(&actual, at_us)];
                EventError::Differs { what, packets }
            }
            other => other,
        });
        match checked {
            Err(error) if !self.settings.is_packet_fatal => {
                self.note(format!("went on after: {error}"));
                Ok(())
            }
            checked => checked,
        }
    }

    /// One packet, or several that follow each other and make up the expected one together.
    fn train(
        &mut self,
        index: usize,
        expected: &ScriptPacket,
    ) -> Result<(IpPacket, i64), EventError> {
        let (mut train, at_us) = self.next_of(index, expected)?;
        let PacketBody::Tcp(expected_segment) = &expected.body else { return Ok((train, at_us)) };
        let wanted = usize::from(expected_segment.payload_len);
        if let Some(rest) = self.rest_of_train(&mut train, wanted) {
            self.rest = Some((rest, at_us));
            return Ok((train, at_us));
        }
        let mut each_len = 0;
        while !self.settings.is_strict_segments {
            let PacketTransport::Tcp(header) = &train.payload else { break };
            let len = header.payload.len();
            if len == 0 || len >= wanted || !is_beginning(header.flags, expected_segment) {
                break;
            }
            each_len = if each_len == 0 { len } else { each_len };
            let Ok((next, _)) = self.next_of(index, expected) else { break };
            if !couple(&mut train, &next, each_len, wanted) {
                break;
            }
        }
        if each_len > 0 {
            excuse_push(&mut train, expected_segment);
        }
        Ok((train, at_us))
    }

    /// Cuts a train that the system leaves to its device to cut, where the script has one segment
    /// of it: what follows that one.
    fn rest_of_train(&self, train: &mut IpPacket, wanted: usize) -> Option<IpPacket> {
        let may_cut = self.system.checksums() == ChecksumTrust::Offloaded;
        if !may_cut || self.settings.is_strict_segments || wanted == 0 {
            return None;
        }
        let PacketTransport::Tcp(header) = &mut train.payload else { return None };
        if header.payload.len() <= wanted || header.flags & SYN != 0 {
            return None;
        }
        let following = header.payload.split_off(wanted);
        let mut rest = TcpHeader { payload: following, ..header.clone() };
        rest.seq = header.seq.wrapping_add(u32::try_from(wanted).unwrap_or(u32::MAX));
        // The first one has CWR, the last one FIN and PSH.
        rest.flags &= !CWR;
        header.flags &= !(FIN | PSH);
        Some(IpPacket { payload: PacketTransport::Tcp(rest), ..train.clone() })
    }

    /// The next packet of a conversation.
    fn next_of(
        &mut self,
        index: usize,
        expected: &ScriptPacket,
    ) -> Result<(IpPacket, i64), EventError> {
        let deadline_us = match self.time.at_us {
            Some(at_us) => self.time.until_us.unwrap_or(at_us) + self.time.tolerance_us + LATE_US,
            None => self.system.now_us() + ANY_TIME_US,
        };
        if let Some(rest) = self.rest.take() {
            return Ok(rest);
        }
        let checksums = self.system.checksums();
        while let Some(sent) = self.system.next_sent(deadline_us)? {
            let packet = wire::parse(&sent.bytes, checksums)?;
            if self.conversations[index].owns(&packet, expected) {
                return Ok((packet, sent.at_us));
            }
        }
        let packets = vec![self.expectation(expected)];
        Err(EventError::Differs { what: "no packet was sent".to_owned(), packets })
    }

    /// The program under test writes zeros unless the script spells its data out.
    fn is_payload_wrong(&self, live: &IpPacket) -> bool {
        let payload = match &live.payload {
            PacketTransport::Tcp(header) => &header.payload,
            PacketTransport::Udp { payload, .. } => payload,
            PacketTransport::Icmp { .. } | PacketTransport::Other { .. } => return false,
        };
        !self.has_sent_text && payload.iter().any(|&byte| byte != 0)
    }

    fn expectation(&self, expected: &ScriptPacket) -> String {
        let at = self.time.at_us.map_or_else(|| "*".to_owned(), seconds);
        format!("script packet: {at} {expected}")
    }
}

fn sent_line(actual: &ScriptPacket, at_us: i64) -> String {
    format!("actual packet: {} {actual}", seconds(at_us))
}

/// Whether a segment with these flags may begin the expected one.
fn is_beginning(flags: u16, expected: &ScriptSegment) -> bool {
    let compared = !TRAIN_FLAGS;
    flags & (SYN | FIN) == 0
        && flags & ACK != 0
        && flags & compared == expected.flags.bits & compared
}

/// In the midst of a write, where a train ends is the sender's choice, and so is whether PSH is set
/// there (RFC 9293, section 3.9.1.2).
fn excuse_push(train: &mut IpPacket, expected: &ScriptSegment) {
    if let PacketTransport::Tcp(header) = &mut train.payload {
        header.flags |= expected.flags.bits & PSH;
    }
}

/// Appends a segment to a train. All but the last have the same length.
fn couple(train: &mut IpPacket, next: &IpPacket, each_len: usize, wanted: usize) -> bool {
    let (PacketTransport::Tcp(first), PacketTransport::Tcp(next)) =
        (&mut train.payload, &next.payload)
    else {
        return false;
    };
    let len = first.payload.len();
    let follows = first.seq.wrapping_add(u32::try_from(len).unwrap_or(u32::MAX)) == next.seq;
    let is_last = len + next.payload.len() >= wanted;
    let fits = follows
        && next.ack == first.ack
        && (next.flags ^ first.flags) & !TRAIN_FLAGS == 0
        && (is_last || next.payload.len() == each_len);
    if fits {
        first.payload.extend_from_slice(&next.payload);
        first.flags |= next.flags;
    }
    fits
}
