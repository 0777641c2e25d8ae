//! Files with and without mistakes.

use std::net::IpAddr;

use megapipe_service::policy::{PortSpan, QuotaKind};

use super::*;

fn users() -> UserDatabase {
    let passwd = "root:x:0:0::/root:/bin/sh\nwww-data:x:33:33::/:/bin/false\nbroken\nx:y:z\n";
    UserDatabase::parse(passwd, "root:x:0:\nweb:x:40:alice\n")
}

const FULL: &str = r#"# ServicePolicy of a test.
[default]
ports = ["1024-65535", 99]
weight = 2

[default.channel]
connections = 1_000

[rules.web]
users = ["www-data", 1001]
groups = ["web"]
ports = [80, "443", "8000-8099"]
addresses = ["10.0.0.2", "fd00::2"]
exclusive = true
weight = 4
user = { connections = 50000, channels = 0 }

[rules.dns]
groups = [53]
ports = [53]
"#;

#[test]
fn file_with_all_keys_is_read() {
    let policy = parse(FULL, &users()).expect("no mistake");
    let span = |first, last| PortSpan { first, last };
    assert_eq!(policy.default_rule.ports, [span(1_024, 65_535), span(99, 99)]);
    assert_eq!(policy.default_rule.weight, Some(2));
    let default = |kind| *policy.default_rule.quotas.get(kind);
    assert_eq!(default(QuotaKind::ChannelConnections), Some(1_000));
    let listeners = QuotaKind::ChannelListeners;
    assert_eq!(default(listeners), Some(listeners.default_limit()), "it is left out");
    let [dns, web] = &policy.rules[..] else { panic!("{policy:?}") };
    assert_eq!((&*dns.name, &dns.groups[..], dns.is_exclusive), ("dns", &[53][..], false));
    assert_eq!((&web.users[..], &web.groups[..]), (&[33, 1_001][..], &[40][..]));
    assert_eq!(web.ports, [span(80, 80), span(443, 443), span(8_000, 8_099)]);
    assert_eq!(web.addresses[0], IpAddr::from([10, 0, 0, 2]));
    assert!(web.is_exclusive);
    assert_eq!(*web.quotas.get(QuotaKind::UserConnections), Some(50_000));
    assert_eq!(*web.quotas.get(QuotaKind::UserChannels), Some(0));
    assert_eq!(*web.quotas.get(listeners), None);
}

#[test]
fn empty_file_is_the_default_policy() {
    for text in ["", "# nothing\n", "[default]\n", "[rules]\n"] {
        assert_eq!(parse(text, &users()), Ok(ServicePolicy::default()), "{text:?}");
    }
}

#[test]
fn mistakes_are_named_with_their_line() {
    let rule = "[rules.a]\nusers = [5]\n";
    for (text, line, part) in [
        ("[default", 1, ""),
        ("[default]\nports = [80\n", 2, ""),
        ("[default]\nweight = 1\nweight = 2\n", 3, "duplicate"),
        ("[defualt]\n", 1, "unknown key \"defualt\"; there are default, rules"),
        ("[default]\n\nusers = []\n", 3, "unknown key \"default.users\""),
        ("[default.channel]\nconections = 3\n", 2, "unknown key \"default.channel.conections\""),
        ("[default.user]\nwaits = 3\n", 2, "unknown key \"default.user.waits\""),
        ("default = 3\n", 1, "default = 3 must be a table"),
        ("[default]\nports = 80\n", 2, "must be a list"),
        ("[default]\nports = [\n80,\n0]\n", 4, "default.ports = 0 must be a list of ports"),
        ("[default]\nports = [\"90-80\"]\n", 2, "\"90-80\""),
        ("[default]\nports = [\"80-65536\"]\n", 2, "\"80-65536\""),
        ("[default]\nports = [\"+80\", \"\"]\n", 2, "\"+80\""),
        ("[default]\nports = [true]\n", 2, "boolean"),
        ("[default]\nweight = 0\n", 2, "default.weight = 0 must be a number from 1 to 1000"),
        ("[default]\nweight = 'x'\n", 2, "default.weight = \"x\""),
        (
            "[default.user]\n\nconnections = -1\n",
            3,
            "user.connections = -1 must be a number from 0",
        ),
        ("[default.user]\nconnections = 4294967296\n", 2, "4294967296"),
        ("[default.user]\nconnections = 1.5\n", 2, "float"),
        ("[default]\naddresses = ['0.0.0.0']\n", 2, "addresses, such as"),
        ("[default]\naddresses = ['10.0.0']\n", 2, "\"10.0.0\""),
        ("[rules.a]\nports = [80]\n", 1, "rule `a` names no user and no group"),
        (
            "\n[rules.a]\nusers = ['no-such-user']\n",
            3,
            "unknown user \"no-such-user\" in rules.a.users",
        ),
        ("[rules.a]\ngroups = ['www-data']\n", 2, "unknown group \"www-data\""),
        ("[rules.a]\nusers = [-1]\n", 2, "a number of 32 bits"),
        ("[rules.a]\nusers = [4294967295]\n", 2, "a number of 32 bits"),
        ("[rules.a]\nusers = [5]\nexclusive = 1\n", 3, "true or false"),
        ("[rules.a]\nusers = [5]\nexclusive = true\n", 1, "no ports to be exclusive"),
        ("[rules.default]\nusers = [5]\n", 1, "`default` cannot be the name"),
        ("[rules.\"a\\u001bb\"]\nusers = [5]\n", 1, "cannot be the name"),
        (&format!("{rule}exclusive = true\nports = [40000]\n"), 1, "get ports from 32768-60999"),
    ] {
        let mistake = parse(text, &users()).expect_err(text);
        assert_eq!(mistake.line, line, "{text:?}: {mistake}");
        assert!(mistake.mistake.contains(part), "{text:?}: {mistake}");
        assert!(!mistake.to_string().contains('\n'), "one line of a log: {mistake:?}");
    }
}

#[test]
fn ports_of_exclusive_rules_must_not_overlap() {
    let two = |first: &str, second: &str| {
        let text = format!("[rules.z]\nusers=[1]\n{first}\n\n[rules.a]\nusers=[2]\n{second}\n");
        parse(&text, &users()).map_err(|mistake| mistake.to_string())
    };
    let text = two("ports=['80-90']\nexclusive=true", "ports=[85]").expect_err("85");
    let expected = "line 6: rules `z` (line 1) and `a` have ports in common, and `z` is exclusive";
    assert_eq!(text, expected);
    two("ports=[85]", "ports=['80-90']\nexclusive=true").expect_err("85");
    let elsewhere = "\nexclusive=true\naddresses=['10.0.0.2']";
    let at = |ip: &str| format!("ports=[80]\nexclusive=true\naddresses=['{ip}']");
    two(&format!("ports=[80]{elsewhere}"), &at("10.0.0.3")).expect("other addresses");
    two(&format!("ports=[80]{elsewhere}"), &at("10.0.0.2")).expect_err("the same address");
    two(&format!("ports=[80]{elsewhere}"), "ports=[80]").expect_err("all addresses");
    two("ports=['80-90']", "ports=[85]").expect("none is exclusive");
    two("ports=['80-90']\nexclusive=true", "ports=[79, 91]").expect("beside each other");
}

#[test]
fn table_is_aligned_and_names_users() {
    let text = table(&parse(FULL, &users()).expect("no mistake"), &users());
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(
        lines[0],
        "rule     users          groups  ports             addresses         exclusive  weight"
    );
    assert_eq!(
        lines[3],
        "web      www-data,1001  web     80,443,8000-8099  10.0.0.2,fd00::2  yes        4"
    );
    let quota = lines.iter().find(|line| line.starts_with("user.connections ")).expect("a row");
    assert_eq!(
        quota.split_whitespace().collect::<Vec<_>>(),
        ["user.connections", "24576", "-", "50000"]
    );
}

#[test]
fn long_file_is_refused() {
    let mistake = parse(&"#".repeat(FILE_BYTES_MAX + 1), &users()).expect_err("too long");
    assert!(mistake.mistake.contains("limit 1048576"), "{mistake}");
}

#[test]
fn each_quota_is_read_shown_and_documented() {
    let documentation = include_str!("../../../docs/SERVICE.md");
    for kind in QuotaKind::ALL {
        let (scope, name) = kind.key();
        assert!(documentation.contains(&format!("`{kind}`")), "{kind}");
        let text = format!("[default.{scope}]\n{name} = 7\n");
        let policy = parse(&text, &users()).expect("no mistake");
        assert_eq!(*policy.default_rule.quotas.get(*kind), Some(7), "{kind}");
        let shown = table(&policy, &users());
        let row = shown.lines().find(|line| line.starts_with(&format!("{kind} "))).expect("a row");
        assert_eq!(row.split_whitespace().nth(1), Some("7"), "{row}");
        let text = format!("\n[default.{scope}]\n{name} = 'many'\n");
        let mistake = parse(&text, &users()).expect_err("no number");
        assert_eq!(mistake.line, 3, "{mistake}");
        assert!(mistake.mistake.contains(&format!("{kind} = \"many\"")), "{mistake}");
    }
}
