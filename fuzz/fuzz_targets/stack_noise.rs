//! A stack on Ethernet that receives random frames: every frame is counted and nothing leaks.
#![no_main]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use megapipe_stack::{
    Checksums, Config, Event, HeapMemory, Instant, Medium, Memory, PoolId, Received, Stack,
};

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

#[derive(Debug, Arbitrary)]
struct Noise {
    bytes: Vec<u8>,
    verified: bool,
    segment_bytes: u16,
    /// Give it our addresses, so that it gets past the first checks.
    is_for_us: bool,
    then_ms: u16,
}

/// Makes `frame` one for us, as far as it is long enough.
fn address(frame: &mut [u8]) {
    if frame.len() < 54 {
        return;
    }
    frame[..6].copy_from_slice(&MAC);
    frame[6] &= 0xfe;
    match frame[12] & 3 {
        0 => {
            frame[12..14].copy_from_slice(&[8, 0]);
            frame[14] = 0x45;
            frame[26..34].copy_from_slice(&[10, 0, 0, 2, 10, 0, 0, 1]);
            frame[24..26].fill(0);
            let len = frame.len() as u16 - 14;
            frame[16..18].copy_from_slice(&len.to_be_bytes());
            let sum = megapipe_stack::wire::checksum::sum(&frame[14..34]);
            frame[24..26].copy_from_slice(&(!sum).to_be_bytes());
        }
        1 => {
            frame[12..14].copy_from_slice(&[0x86, 0xdd]);
            frame[14] = 0x60;
            let len = frame.len() as u16 - 54;
            frame[18..20].copy_from_slice(&len.to_be_bytes());
            frame[22..24].copy_from_slice(&[0x20, 0x01]);
            frame[38..54].copy_from_slice(&v6(1).octets());
        }
        _ => frame[12..14].copy_from_slice(&[8, 6]),
    }
}

fn v6(last: u16) -> Ipv6Addr {
    Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last)
}

fuzz_target!(|frames: Vec<Noise>| {
    let mut config = Config::single(Ipv4Addr::new(10, 0, 0, 1), 24, [9; 32]);
    config.medium = Medium::Ethernet(MAC);
    config.addresses.push((IpAddr::V6(v6(1)), 64));
    config.connections = 8;
    let mut now = Instant::from_millis(1);
    let mut stack = Stack::new(config, now).expect("the settings are right");
    let mut memory = HeapMemory::new(64, 2048);
    let any = |port| SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port);
    let endpoint = stack.bind_datagram(any(53), PoolId(0)).expect("it is free");
    let listener = stack.listen(any(80), 4, PoolId(0)).expect("it is free");
    stack.accept(listener, 4).expect("it was just made");
    let mut out = vec![0; 1518];
    let count = frames.len() as u64;
    for mut noise in frames {
        if noise.is_for_us {
            address(&mut noise.bytes);
        }
        let checksums = if noise.verified { Checksums::Verified } else { Checksums::Unverified };
        let received = Received { checksums, segment_bytes: noise.segment_bytes };
        stack.on_frame(now, &noise.bytes, received, &mut memory);
        now += Duration::from_millis(noise.then_ms.into());
        stack.on_timeout(now, &mut memory);
        while let Some(event) = stack.poll_event() {
            match event {
                Event::Datagram { chunk, .. } | Event::Received { chunk, .. } => {
                    memory.free(chunk.buf);
                }
                _ => {}
            }
        }
        let mut sent = 0;
        while stack.poll_transmit(now, &mut out, &mut memory).is_some() {
            sent += 1;
            assert!(sent < 1000, "it never stops sending");
        }
        stack.check_invariants();
    }
    assert_eq!(stack.counters().totals.frames_in, count);
    stack.close_datagram(endpoint, &mut memory).expect("it is open");
    stack.unlisten(now, listener, &mut memory).expect("it is open");
    while stack.poll_event().is_some() {}
});
