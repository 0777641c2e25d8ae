//! Policy files: whatever is accepted can be printed and gives each client something, and a mistake
//! has a line of the file.
#![no_main]

use libfuzzer_sys::fuzz_target;
use megapipe_policy::{UserDatabase, parse, table};
use megapipe_service::policy::{ClientName, PortGrants, QuotaKind};

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let users = UserDatabase::parse("root:x:0:0\nalice:x:1000:1000\n", "web:x:40:\n");
    let policy = match parse(text, &users) {
        Ok(policy) => policy,
        Err(mistake) => {
            assert!((1..=text.lines().count() + 1).contains(&mistake.line), "{mistake:?}");
            assert!(!mistake.mistake.contains('\n'), "{mistake:?}");
            return;
        }
    };
    let printed = table(&policy, &users);
    assert!(printed.lines().count() > QuotaKind::ALL.len());
    for uid in [0, 7, 1_000] {
        let its = policy.for_client(&ClientName { uid, gid: uid, groups: &[40] }, 7);
        let has_all = uid != 1_000;
        assert_eq!(its.grants == PortGrants::All, has_all);
        for port in [0, 80, 1_024, u16::MAX] {
            let checked = its.grants.check(([10, 0, 0, 1], port).into());
            assert!(checked.is_ok() || (!has_all && port > 0));
        }
    }
});
