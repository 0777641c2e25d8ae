//! The program in the kernel against `Ownership::owner_of`, frame by frame (BPF_PROG_TEST_RUN).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::program::{DROP, PASS};
use super::*;
use crate::{FlowTuple, LinkMedium, Owner};

const OURS: [u8; 4] = [10, 1, 0, 1];
const PEER: [u8; 4] = [10, 1, 0, 2];

/// `None`: skipped, with a word about why.
fn filter() -> Option<Filter> {
    filter_with(false)
}

fn filter_with(has_pieces: bool) -> Option<Filter> {
    match Filter::new(has_pieces) {
        Ok(filter) => Some(filter),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            println!("skipped: loading a BPF program needs CAP_BPF and CAP_NET_ADMIN: {error}");
            None
        }
        Err(error) => panic!("the program was not taken: {error}"),
    }
}

fn ours(octets: [u8; 4], six: bool) -> IpAddr {
    let four = Ipv4Addr::from(octets);
    if six { IpAddr::V6(four.to_ipv6_compatible()) } else { IpAddr::V4(four) }
}

fn flow(local: IpAddr, local_port: u16, remote: IpAddr, remote_port: u16) -> FlowTuple {
    FlowTuple { transport: Transport::Tcp, local, local_port, remote, remote_port }
}

fn ownerships() -> Vec<Ownership> {
    let mut shared = Ownership::new();
    for six in [false, true] {
        shared.add_address(ours(OURS, six)).expect("room");
        shared.take(flow(ours(OURS, six), 40_000, ours(PEER, six), 80)).expect("room");
        shared.take(flow(ours([10, 9, 9, 9], six), 40_001, ours(PEER, six), 80)).expect("room");
    }
    shared.tcp_ports.insert(8000..=8100).expect("room");
    shared.tcp_ports.insert(65_535..=65_535).expect("room");
    shared.udp_ports.insert(53..=53).expect("room");
    for six in [false, true] {
        shared.release(flow(ours(OURS, six), 8001, ours(PEER, six), 80)).expect("room");
    }
    let mut whole = shared.clone();
    whole.whole_address = true;
    let mut whole_released = whole.clone();
    for six in [false, true] {
        let flow = flow(ours(OURS, six), 22, ours(PEER, six), 80);
        whole_released.release(flow).expect("room");
    }
    vec![Ownership::new(), shared.clone(), whole, whole_released, shared]
}

/// Packets around every rule, whole and cut.
struct Generator(u64);

impl Generator {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    fn ports(&mut self) -> Vec<u8> {
        let local = self.pick(&[8000, 8001, 8100, 8101, 7999, 53, 22, 40_000, 40_001, 65_535, 0]);
        let remote = self.pick(&[80u16, 81]);
        [remote.to_be_bytes(), u16::to_be_bytes(local)].concat()
    }

    fn packet(&mut self, six: bool, received: bool, depth: u32) -> Vec<u8> {
        let local = self.pick(&[OURS, OURS, OURS, [10, 9, 9, 9], [10, 1, 0, 3]]);
        let (from, to) = if received { (PEER, local) } else { (local, PEER) };
        let icmp = if six { 58 } else { 1 };
        let protocol = self.pick(&[6, 6, 6, 17, 17, icmp, icmp, 47, 44, 0]);
        let mut payload = if protocol == icmp {
            let kind = self.pick(&[0, 1, 2, 3, 4, 5, 8, 11, 12, 128, 132, 133, 135, 137, 138]);
            let mut error = vec![kind, 0, 0, 0, 0, 0, 0, 0];
            if depth == 0 {
                let quoted_six = if self.below(8) == 0 { !six } else { six };
                error.extend(self.packet(quoted_six, false, 1));
            }
            error
        } else {
            let mut ports = self.ports();
            if !received {
                ports.rotate_left(2);
            }
            ports.extend([0; 16]);
            ports
        };
        let mut packet = if six {
            let mut header = vec![0x60, 0, 0, 0, 0, 0, protocol, 64];
            header.extend([[0; 12].as_slice(), &from, &[0; 12], &to].concat());
            header
        } else {
            let options = self.pick(&[0, 0, 0, 4, 40]);
            let fragment = self.pick(&[0, 0, 0, 0x4000, 0x2000, 0x0001, 0x20b9]);
            let mut header = vec![0x45 + options / 4, 0, 0, 60, 0, 1];
            header.extend(u16::to_be_bytes(fragment));
            header.extend([64, protocol, 0, 0]);
            header.extend([from, to].concat());
            header.resize(20 + usize::from(options), 1);
            header
        };
        packet.append(&mut payload);
        packet
    }

    fn frame(&mut self) -> Vec<u8> {
        let six = self.below(2) == 0;
        let mut frame = vec![2; 12];
        let kind = if six { [0x86, 0xdd] } else { [8, 0] };
        let odd = [[8, 6], [0x81, 0], [0x88, 0xa8], [8, 0], [0x86, 0xdd]];
        let kind = if self.below(10) == 0 { self.pick(&odd) } else { kind };
        frame.extend(kind);
        frame.extend(self.packet(six, true, 0));
        if self.below(4) == 0 {
            let len = 14 + self.below(frame.len() as u64 - 13);
            frame.truncate(len as usize);
        }
        frame
    }
}

#[test]
fn the_program_decides_as_the_reference_does() {
    let Some(mut filter) = filter() else { return };
    let mut generator = Generator(0x1234_5678_9abc_def1);
    for ownership in ownerships() {
        filter.set_ownership(&ownership).expect("maps");
        let mut answers = [0; 2];
        for _ in 0..6_000 {
            let frame = generator.frame();
            let owner = ownership.owner_of(LinkMedium::Ethernet, &frame);
            let is_ours = matches!(owner, Owner::Ours | Owner::IcmpError);
            // No socket is in the map, so a frame of ours is dropped.
            let wanted = if is_ours { DROP } else { PASS };
            let got = filter.test_run(&frame).expect("test run");
            assert_eq!(got, wanted, "{owner:?}: {frame:02x?} under {ownership:?}");
            answers[usize::from(is_ours)] += 1;
        }
        let is_nothing_ours = ownership.addresses().is_empty();
        assert!(is_nothing_ours || answers.iter().all(|&count| count > 200), "{answers:?}");
    }
}

#[test]
fn every_port_has_a_bit_of_its_own() {
    let Some(mut filter) = filter() else { return };
    let mut ownership = Ownership::new();
    ownership.add_address(IpAddr::V6(Ipv6Addr::LOCALHOST)).expect("room");
    for (port, transport) in [(1, 6), (63, 17), (64, 6), (1023, 17), (65_535, 6)] {
        let (mut tcp, mut udp) = (ownership.clone(), ownership.clone());
        tcp.tcp_ports.insert(port..=port).expect("room");
        udp.udp_ports.insert(port..=port).expect("room");
        let mut frame = vec![0; 12];
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 4, transport, 64]);
        frame.extend([Ipv6Addr::LOCALHOST.octets(), Ipv6Addr::LOCALHOST.octets()].concat());
        frame.extend([0, 9]);
        frame.extend(port.to_be_bytes());
        for (ownership, owned) in [(&tcp, 6), (&udp, 17)] {
            filter.set_ownership(ownership).expect("maps");
            let wanted = if owned == transport { DROP } else { PASS };
            assert_eq!(filter.test_run(&frame).expect("test run"), wanted);
            for neighbour in [port.wrapping_sub(1), port.wrapping_add(1)] {
                let mut other = frame.clone();
                other[56..58].copy_from_slice(&neighbour.to_be_bytes());
                assert_eq!(filter.test_run(&other).expect("test run"), PASS);
            }
        }
    }
}

/// The headers are in the first buffer, wherever the rest of a frame is.
#[test]
fn frames_of_several_buffers_are_decided_alike() {
    let Some(mut filter) = filter_with(true) else { return };
    let mut generator = Generator(0x9876_5432_1fed_cba1);
    let ownership = ownerships().swap_remove(1);
    filter.set_ownership(&ownership).expect("maps");
    let mut answers = [0; 2];
    for _ in 0..6_000 {
        let mut frame = generator.frame();
        let owner = ownership.owner_of(LinkMedium::Ethernet, &frame);
        // What was cut must stay so: made longer, its headers would be whole.
        let is_ours = matches!(owner, Owner::Ours | Owner::IcmpError);
        if is_ours {
            frame.resize(9_014, 0);
        }
        let got = filter.test_run(&frame).expect("test run");
        assert_eq!(got, if is_ours { DROP } else { PASS }, "{owner:?}: {} bytes", frame.len());
        answers[usize::from(is_ours)] += 1;
    }
    assert!(answers.iter().all(|&count| count > 100), "{answers:?}");
}
