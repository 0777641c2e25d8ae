//! What the tests of the load have in common: drivers, servers in this process, checked summaries.

use megapipe::{Address, Channel, Config};
use megapipe_apps::load::{LoadArgs, Summary};
use megapipe_apps::serve::{DriverName, ServeArgs};

/// The drivers that work here; one that does not is named.
pub(crate) fn drivers() -> Vec<DriverName> {
    let works = |driver: &DriverName| {
        let created = Channel::create(Config::default().driver((*driver).into()));
        if let Err(error) = &created {
            eprintln!("skipped: {driver}: {error}");
        }
        created.is_ok()
    };
    let all = [DriverName::Uring, DriverName::Epoll];
    let drivers: Vec<_> = all.into_iter().filter(works).collect();
    assert!(!drivers.is_empty(), "no driver works here");
    drivers
}

/// A server's options: a free port of the loopback interface.
pub(crate) fn serve_args(driver: DriverName) -> ServeArgs {
    let mut args = ServeArgs::on(["127.0.0.1:0".parse().expect("an address")]);
    args.driver = driver;
    args
}

/// A short, silent load of a few connections.
pub(crate) fn load_args(server: &Address, driver: DriverName) -> LoadArgs {
    let mut args = LoadArgs::to(server.clone());
    args.driver = driver;
    args.connections = 8;
    args.warmup = 0.0;
    args.duration = Some(0.3);
    args.verify = 1;
    args.quiet = true;
    args
}

/// The same, but for so many transactions however long they take.
pub(crate) fn counted_load_args(server: &Address, driver: DriverName, total: u64) -> LoadArgs {
    let mut args = load_args(server, driver);
    (args.total, args.duration) = (Some(total), None);
    args
}

/// What has to hold for every summary.
pub(crate) fn check(summary: &Summary) {
    let Summary { started, completed, failed, unfinished, .. } = *summary;
    assert_eq!(started, completed + failed + unfinished, "{summary:#?}");
    assert_eq!(summary.latency_us.count, completed + unfinished, "{summary:#?}");
    assert_eq!(summary.latency_uncorrected_us.count, completed);
    let json = serde_json::to_string(summary).expect("JSON");
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["transactions"], summary.transactions);
    assert_eq!(json["errors"]["refused"], summary.errors.refused);
    assert!(json["latency_us"]["p999"].is_f64() && json["threads_busy"].is_array());
}

/// A summary without a single fault, and with answers.
pub(crate) fn check_good(summary: &Summary) {
    check(summary);
    assert_eq!(summary.errors.total() + summary.errors_before.total(), 0, "{summary:#?}");
    assert_eq!(summary.failed, 0);
    assert!(summary.transactions > 0, "{summary:#?}");
}
