//! Messages as the kernel writes them, and others.

use proptest::prelude::*;

use super::*;

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let len = u16::try_from(value.len() + 4).unwrap();
    let mut bytes = [len.to_ne_bytes(), kind.to_ne_bytes()].concat();
    bytes.extend_from_slice(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn message(kind: u16, flags: u16, payload: &[u8]) -> Vec<u8> {
    let len = u32::try_from(payload.len() + HEADER_BYTES).unwrap();
    let mut bytes = len.to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend(7_u32.to_ne_bytes());
    bytes.extend([0; 4]);
    bytes.extend_from_slice(payload);
    bytes
}

fn only(bytes: &[u8]) -> MessageBody {
    let mut all: Vec<_> = NetlinkMessages::new(bytes).collect();
    assert_eq!(all.len(), 1);
    all.remove(0).body
}

#[test]
fn an_interface() {
    let mut payload = vec![0, 0, 1, 0, 3, 0, 0, 0];
    payload[2..4].copy_from_slice(&1_u16.to_ne_bytes());
    payload[4..8].copy_from_slice(&3_u32.to_ne_bytes());
    payload.extend((1_u32 | 1 << 16).to_ne_bytes());
    payload.extend([0; 4]);
    payload.extend(attribute(3, b"eth0\0"));
    payload.extend(attribute(4, &1_400_u32.to_ne_bytes()));
    payload.extend(attribute(1, &[2, 0, 0, 0, 0, 9]));
    let expected = Interface {
        index: 3,
        name: "eth0".to_owned(),
        mac: Some([2, 0, 0, 0, 0, 9]),
        mtu: 1_400,
        is_up: true,
        has_carrier: true,
        is_loopback: false,
    };
    let fact = Fact::Interface(expected);
    assert_eq!(only(&message(NEW_LINK, 0, &payload)), MessageBody::Is(fact.clone()));
    assert_eq!(only(&message(DEL_LINK, 0, &payload)), MessageBody::Gone(fact));
    payload[0] = 7;
    assert_eq!(only(&message(DEL_LINK, 0, &payload)), MessageBody::Other, "a bridge's word");
}

#[test]
fn a_route_with_several_next_hops_is_several_routes() {
    let hop = |index: u32, gateway: u8| {
        let attribute = attribute(5, &[10, 0, 0, gateway]);
        let len = u16::try_from(attribute.len() + 8).unwrap();
        let mut hop = [&len.to_ne_bytes()[..], &[0, 0], &index.to_ne_bytes()].concat();
        hop.extend(attribute);
        hop
    };
    let mut payload = vec![2, 8, 0, 0, 254, 0, 0, 1, 0, 0, 0, 0];
    payload.extend(attribute(1, &[10, 0, 0, 0]));
    payload.extend(attribute(6, &20_u32.to_ne_bytes()));
    payload.extend(attribute(9, &[hop(3, 1), hop(4, 2)].concat()));
    let bytes = [message(NEW_ROUTE, 0x10, &payload), message(DONE, 0, &[0; 4])].concat();
    let all: Vec<_> = NetlinkMessages::new(&bytes).collect();
    assert_eq!((all.len(), all[0].is_interrupted, all[2].is_interrupted), (3, true, false));
    let hops: Vec<_> = all[..2]
        .iter()
        .map(|message| match &message.body {
            MessageBody::Is(Fact::Route(route)) => {
                assert_eq!((route.prefix_len, route.metric, route.table), (8, 20, 254));
                (route.interface.unwrap(), route.gateway.unwrap().to_string())
            }
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(hops, [(3, "10.0.0.1".to_owned()), (4, "10.0.0.2".to_owned())]);
    assert_eq!(all[2].body, MessageBody::Done);
}

#[test]
fn a_gateway_of_the_other_family() {
    let mut payload = vec![2, 0, 0, 0, 254, 0, 0, 1, 0, 0, 0, 0];
    let via = [&10_u16.to_ne_bytes()[..], &[0xfe, 0x80], &[0; 13], &[1]].concat();
    payload.extend(attribute(18, &via));
    let MessageBody::Is(Fact::Route(route)) = only(&message(NEW_ROUTE, 0, &payload)) else {
        panic!("a route");
    };
    assert_eq!(route.gateway, Some("fe80::1".parse().unwrap()));
    assert_eq!(route.destination, "0.0.0.0".parse::<IpAddr>().unwrap());
}

#[test]
fn an_error_carries_its_number() {
    let body = only(&message(ERROR, 0, &(-libc::EPERM).to_ne_bytes()));
    assert_eq!(body, MessageBody::Error(libc::EPERM));
    assert_eq!(only(&message(ERROR, 0, &i32::MIN.to_ne_bytes())), MessageBody::Other);
}

#[test]
fn lengths_that_lie_end_the_reading() {
    let short = [12_u32.to_ne_bytes(), [0; 4]].concat();
    assert_eq!(NetlinkMessages::new(&short).count(), 0);
    let beyond = [99_u32.to_ne_bytes(), [0; 4]].concat();
    assert_eq!(NetlinkMessages::new(&beyond).count(), 0);
    let mut payload = vec![2, 24, 0, 0, 3, 0, 0, 0];
    payload.extend([200, 0, 1, 0, 10, 0, 0, 1]);
    assert_eq!(only(&message(NEW_ADDRESS, 0, &payload)), MessageBody::Other);
    payload.truncate(8);
    payload.extend([0, 0, 1, 0, 10, 0, 0, 1]);
    assert_eq!(only(&message(NEW_ADDRESS, 0, &payload)), MessageBody::Other);
}

proptest! {
    #[test]
    fn any_bytes_are_read_to_an_end(
        kind in 14..34_u16,
        payload in proptest::collection::vec(
            prop_oneof![Just(0_u8), Just(4), Just(10), any::<u8>()], 0..160,
        ),
        cut in 0..200_usize,
    ) {
        let mut bytes = message(kind, 0, &payload);
        bytes.extend(message(DONE, 0, &[]));
        bytes.truncate(cut);
        // Every message takes sixteen bytes, every next hop eight.
        prop_assert!(NetlinkMessages::new(&bytes).count() <= bytes.len() / 8);
    }
}
