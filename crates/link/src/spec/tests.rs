//! Descriptions that are right, and what is said about those that are not.

use super::*;

fn parse(text: &str) -> Result<LinkSpec, SpecError> {
    text.parse()
}

#[test]
fn everything_can_be_said() {
    let LinkSpec::Tap(tap) =
        parse("tap:mp0,queues=2,mtu=9000,mac=2:0:0:0:a:FF,offload=off").expect("a TAP device")
    else {
        panic!("not a TAP device");
    };
    assert_eq!((tap.queues, tap.mtu, tap.offloads), (2, Some(9_000), false));
    assert_eq!(tap.mac, Some([2, 0, 0, 0, 10, 255]));

    let xdp = parse("xdp:veth0,queue=0..3,mode=generic,zero-copy=off,xskmap=/sys/fs/bpf/xsks");
    let expected = XdpSpec {
        interface: "veth0".to_owned(),
        queues: Some((0, 3)),
        mode: Some(XdpMode::Generic),
        zero_copy: Some(false),
        xskmap: Some("/sys/fs/bpf/xsks".into()),
    };
    assert_eq!(xdp, Ok(LinkSpec::Xdp(expected)));

    let memif = parse("memif:/run/mp.sock,role=server,id=3,ring=512,buffer=4096,wait=2");
    let Ok(LinkSpec::Memif(memif)) = memif else { panic!("{memif:?}") };
    assert_eq!((memif.is_server, memif.id, memif.ring_slots), (true, 3, 512));
    assert_eq!(memif.wait_s, 2);
    assert_eq!((memif.buffer_bytes, memif.queues, memif.mtu), (4_096, 1, 1_500));
    assert_eq!(parse("pair"), Ok(LinkSpec::Pair));
}

#[test]
fn any_link_may_have_faults() {
    let spec = parse("tap:mp0,loss=1%,queues=2,seed=7,corruption=0.5%,reordering=2%");
    let spec = spec.expect("a description");
    let LinkSpec::Faulty(inside, faults) = spec else { panic!("no faults: {spec:?}") };
    assert_eq!(Ok(*inside), parse("tap:mp0,queues=2"));
    assert_eq!((faults.loss_ppm, faults.duplication_ppm), (10_000, 0));
    assert_eq!((faults.corruption_ppm, faults.reordering_ppm, faults.seed), (5_000, 20_000, 7));
}

#[test]
fn link_spec_round_trips() {
    for text in [
        "pair",
        "tap:mp0",
        "tap:mp0,queues=4,mtu=1280,mac=02:00:00:00:00:07,offload=off",
        "tun:mp1,mtu=576",
        "packet:eth0,qdisc=bypass,offload=off",
        "xdp:eth0",
        "xdp:eth0,queue=5,mode=native,zero-copy=on",
        "xdp:eth0,queue=1..2,xskmap=/sys/fs/bpf/xsks",
        "memif:/run/mp.sock",
        "pair:seed=0",
        "pair:loss=0.5%,seed=3",
        "tap:mp0,mtu=1280,loss=1%,duplication=0.25%,corruption=0.0001%,seed=18446744073709551615",
        "pair:duplication=1%,reordering=3%,seed=1",
        "memif:@name,role=server,id=9,queues=2,ring=64,buffer=128,mtu=900,secret=s",
    ] {
        let spec = parse(text).expect(text);
        assert_eq!(spec.to_string(), text);
        assert_eq!(parse(&spec.to_string()), Ok(spec));
    }
}

#[test]
fn errors_name_the_part() {
    for (text, says) in [
        ("", "\"\" is no link"),
        ("dpdk:0", "\"dpdk\" is no link"),
        ("pair,mtu=3", "\"pair,mtu=3\" is no link"),
        ("pair:x=3", "pair has no setting \"x\": it takes none"),
        ("tap", "tap needs an interface's name after a colon, as in \"tap:mp0\"; \"\" is none"),
        ("tap:a/b", "\"a/b\" is none"),
        ("packet:", "packet needs an interface's name"),
        ("memif:", "memif needs a socket's path"),
        ("tap:mp0,queues=0", "queues=\"0\": a number from 1 to 64"),
        ("tap:mp0,mtu=67", "mtu=\"67\": bytes from 68 to 65535"),
        ("tap:mp0,offload", "offload=\"\": on or off"),
        ("tap:mp0,mac=01:00:5e:00:00:01", "not a group's"),
        ("tap:mp0,mac=02:00:00:00:00", "six bytes"),
        ("tun:mp0,mac=02:00:00:00:00:01", "tun has no setting \"mac\": queues, mtu, offload"),
        ("tap:mp0,mtu=90,mtu=90", "mtu is given twice"),
        ("xdp:eth0,queue=3..1", "queue=\"3..1\""),
        ("xdp:eth0,mode=fast", "mode=\"fast\": native or generic"),
        ("tap:mp0,loss=1", "loss=\"1\": percent from 0 to 100"),
        ("tap:mp0,loss=101%", "loss=\"101%\": percent"),
        ("tap:mp0,loss=NaN%", "loss=\"NaN%\": percent"),
        ("tap:mp0,loss=1%,mtu=90,loss=1%", "loss is given twice"),
        ("tap:mp0,seed=-1", "seed=\"-1\": a number"),
        ("memif:,loss=1%", "memif needs a socket's path"),
        ("memif:/a,ring=1000", "ring=\"1000\": a power of two"),
        ("memif:/a,role=master", "role=\"master\": client or server"),
    ] {
        let error = parse(text).expect_err(text).to_string();
        assert!(error.contains(says), "{text}: {error}");
    }
}
