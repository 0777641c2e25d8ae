//! Names of ICMP messages and the numbers behind them.
//!
//! Read first: RFC 792, RFC 1122 section 3.2.2 and RFC 1812 section 5.2.7 for version 4, RFC 4443
//! section 3 for version 6.

/// Type and code of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IcmpNumbers {
    pub(crate) kind: u8,
    pub(crate) code: u8,
}

type Codes = &'static [(&'static str, u8)];

const UNREACHABLE_4: Codes = &[
    ("net_unreachable", 0),
    ("host_unreachable", 1),
    ("protocol_unreachable", 2),
    ("port_unreachable", 3),
    ("frag_needed", 4),
    ("source_route_failed", 5),
    ("net_unknown", 6),
    ("host_unknown", 7),
    ("source_host_isolated", 8),
    ("net_prohibited", 9),
    ("host_prohibited", 10),
    ("net_unreachable_for_tos", 11),
    ("host_unreachable_for_tos", 12),
    ("packet_filtered", 13),
    ("comm_prohibited", 13),
    ("precedence_violation", 14),
    ("precedence_cutoff", 15),
];
const TIME_EXCEEDED_4: Codes = &[
    ("ttl_exceeded_in_transit", 0),
    ("ttl_exceeded", 0),
    ("frag_reass_exceeded", 1),
    ("frag_reassembly_time_exceeded", 1),
];
const REDIRECT: Codes = &[("net", 0), ("host", 1), ("tos_net", 2), ("tos_host", 3)];
const MESSAGES_4: &[(&str, u8, Codes)] = &[
    ("echo_reply", 0, &[]),
    ("unreachable", 3, UNREACHABLE_4),
    ("source_quench", 4, &[]),
    ("redirect", 5, REDIRECT),
    ("echo_request", 8, &[]),
    ("time_exceeded", 11, TIME_EXCEEDED_4),
    ("parameter_problem", 12, &[]),
    ("timestamp_request", 13, &[]),
    ("timestamp", 13, &[]),
    ("timestamp_reply", 14, &[]),
    ("information_request", 15, &[]),
    ("information_reply", 16, &[]),
    ("address_mask_request", 17, &[]),
    ("address_mask_reply", 18, &[]),
];

const UNREACHABLE_6: Codes = &[
    ("no_route", 0),
    ("net_unreachable", 0),
    ("admin_prohibited", 1),
    ("comm_prohibited", 1),
    ("not_neighbour", 2),
    ("beyond_scope", 2),
    ("addr_unreachable", 3),
    ("address_unreachable", 3),
    ("host_unreachable", 3),
    ("port_unreachable", 4),
    ("policy_fail", 5),
    ("reject_route", 6),
    ("packet_too_big", 0),
];
const TIME_EXCEEDED_6: Codes = &[
    ("exceeded_hop_limit", 0),
    ("exceeded_frag_time", 1),
    ("exc_hoplimit", 0),
    ("exc_fragtime", 1),
];
const PARAMETER_PROBLEM_6: Codes = &[
    ("header_field", 0),
    ("unknown_next_header", 1),
    ("unknown_option", 2),
    ("hdr_field", 0),
    ("unk_nexthdr", 1),
    ("unk_option", 2),
    ("proto_unreachable", 1),
];
const MESSAGES_6: &[(&str, u8, Codes)] = &[
    ("unreachable", 1, UNREACHABLE_6),
    ("packet_too_big", 2, &[]),
    ("time_exceeded", 3, TIME_EXCEEDED_6),
    ("parameter_problem", 4, PARAMETER_PROBLEM_6),
    ("echo_request", 128, &[]),
    ("echo_reply", 129, &[]),
];

/// The numbers of a message; also of `type_3 code_4`. None for names that the version lacks.
pub(crate) fn numbers(is_ipv6: bool, kind: &str, code: Option<&str>) -> Option<IcmpNumbers> {
    let messages = if is_ipv6 { MESSAGES_6 } else { MESSAGES_4 };
    let known = messages.iter().find(|(name, ..)| *name == kind);
    // Written as a code of "unreachable" for version 4, and a message of its own in version 6.
    if is_ipv6 && kind == "unreachable" && code == Some("packet_too_big") {
        return Some(IcmpNumbers { kind: 2, code: 0 });
    }
    let number = |text: &str, prefix: &str| text.strip_prefix(prefix)?.parse().ok();
    let (kind, codes) = match known {
        Some(&(_, number, codes)) => (number, codes),
        None => (number(kind, "type_")?, &[][..]),
    };
    let code = match code {
        None => 0,
        Some(name) => {
            let known = codes.iter().find(|(known, _)| *known == name);
            known.map(|&(_, code)| code).or_else(|| number(name, "code_"))?
        }
    };
    Some(IcmpNumbers { kind, code })
}

/// Names for a report.
pub(crate) fn names(is_ipv6: bool, numbers: IcmpNumbers) -> (String, Option<String>) {
    let messages = if is_ipv6 { MESSAGES_6 } else { MESSAGES_4 };
    let known = messages.iter().find(|&&(_, kind, _)| kind == numbers.kind);
    let kind =
        known.map_or_else(|| format!("type_{}", numbers.kind), |&(name, ..)| name.to_owned());
    let code = known.and_then(|&(_, _, codes)| codes.iter().find(|&&(_, it)| it == numbers.code));
    let code = match code {
        Some(&(name, _)) => Some(name.to_owned()),
        None if numbers.code == 0 => None,
        None => Some(format!("code_{}", numbers.code)),
    };
    (kind, code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_the_numbers_of_their_version() {
        let v4 = |kind, code| numbers(false, kind, code);
        assert_eq!(v4("unreachable", Some("frag_needed")), Some(IcmpNumbers { kind: 3, code: 4 }));
        assert_eq!(v4("unreachable", None), Some(IcmpNumbers { kind: 3, code: 0 }));
        assert_eq!(
            v4("parameter_problem", Some("code_2")),
            Some(IcmpNumbers { kind: 12, code: 2 })
        );
        assert_eq!(v4("packet_too_big", None), None);
        let v6 = |kind, code| numbers(true, kind, code);
        assert_eq!(v6("packet_too_big", None), Some(IcmpNumbers { kind: 2, code: 0 }));
        assert_eq!(
            v6("unreachable", Some("packet_too_big")),
            Some(IcmpNumbers { kind: 2, code: 0 })
        );
        assert_eq!(
            v6("unreachable", Some("port_unreachable")),
            Some(IcmpNumbers { kind: 1, code: 4 })
        );
        assert_eq!(v6("source_quench", None), None);
    }

    #[test]
    fn every_message_keeps_its_name() {
        for (is_ipv6, messages) in [(false, MESSAGES_4), (true, MESSAGES_6)] {
            for &(_, kind, _) in messages {
                let name = names(is_ipv6, IcmpNumbers { kind, code: 0 }).0;
                let found = numbers(is_ipv6, &name, None).map(|numbers| numbers.kind);
                assert_eq!(found, Some(kind), "{name}");
            }
        }
    }
}
