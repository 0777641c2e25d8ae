//! The JSON of `megapipe bench` keeps its fields: scripts of users read it.

use megapipe_bench::{
    Bar, BarServer, CpuShares, CpuSplit, Figure, FigureAxis, FigureCurve, FigurePlot, FigureRow,
    FigureSource, FigureTable, Latency, Machine, MeasuredLink, Point, Results, Saturated, Sense,
    Simulated,
};
use serde_json::Value;

/// The names that are promised, in `docs/BENCHMARKING.md`. Names may be added at the end; one that
/// stands here is never renamed and never goes.
const POINT_FIELDS: [&str; 33] = [
    "experiment",
    "server",
    "backend",
    "driver",
    "link",
    "placement",
    "shards",
    "transactions_per_connection",
    "message_bytes",
    "connections",
    "transactions_per_s",
    "server_cpu_us_per_transaction",
    "latency_us",
    "saturated",
    "runs",
    "variant",
    "workload",
    "transactions_per_s_range",
    "server_cpu_us_range",
    "server_idle_share",
    "errors",
    "server_cpu_us",
    "server_calls_per_transaction",
    "load_cores",
    "load_cpu_us_per_transaction",
    "fairness",
    "cpu_shares",
    "connect_us",
    "processing_us",
    "simulated",
    "events_per_wakeup",
    "server_process_us_per_transaction",
    "load_process_us_per_transaction",
];

const BAR_FIELDS: [&str; 12] = [
    "name",
    "what",
    "sense",
    "bound",
    "unit",
    "runs",
    "median",
    "met",
    "simulated",
    "why",
    "skipped",
    "servers",
];

const BAR_SERVER_FIELDS: [&str; 6] =
    ["program", "backend", "requests_per_s", "cpu_us_per_request", "idle_share", "saturated"];

const FIGURE_FIELDS: [&str; 8] =
    ["name", "title", "parameters", "paper", "finding", "why", "plots", "tables"];

const PLOT_FIELDS: [&str; 5] = ["caption", "x", "y", "stacked", "curves"];

const SIMULATED_FIELDS: [&str; 9] = [
    "queues",
    "measured_server_us",
    "measured_load_us",
    "measured_steering_ns",
    "server_busy",
    "load_busy",
    "imbalance",
    "steered_share",
    "lock_wait_share",
];

fn results() -> Results {
    Results {
        machine: Machine {
            cpu: "a processor".to_owned(),
            cores: 2,
            memory_bytes: 1 << 34,
            kernel: "6.18".to_owned(),
            megapipe: "0.1.0".to_owned(),
            date: "2026-11-23T12:00:00Z".to_owned(),
            commit: "0123456789ab".to_owned(),
            cpu_mhz: 2100,
            mitigations: "on: spectre_v2".to_owned(),
        },
        command: "megapipe bench rpc".to_owned(),
        points: vec![Point {
            experiment: "fig2.1a".to_owned(),
            server: "channel".to_owned(),
            backend: "kernel".to_owned(),
            driver: "uring".to_owned(),
            link: MeasuredLink::Veth,
            placement: "kernel".to_owned(),
            shards: 1,
            transactions_per_connection: Some(8),
            message_bytes: 64,
            connections: 256,
            transactions_per_s: 300_000.0,
            server_cpu_us_per_transaction: 2.5,
            latency_us: Latency { p50: 1.0, p99: 2.0, p999: 3.0, max: 4.0, ..Latency::default() },
            saturated: Saturated::Server,
            runs: 5,
            variant: "+PBL".to_owned(),
            workload: "rpc".to_owned(),
            transactions_per_s_range: [290_000.0, 310_000.0],
            server_cpu_us_range: [2.4, 2.6],
            server_idle_share: 0.01,
            errors: 0,
            server_cpu_us: CpuSplit { user: 0.1, system: 1.4, softirq: 1.0 },
            server_calls_per_transaction: 0.1,
            load_cores: 1,
            load_cpu_us_per_transaction: 2.0,
            fairness: Some(0.99),
            cpu_shares: Some(CpuShares { application: 0.2, ..CpuShares::default() }),
            connect_us: Some(Latency { p50: 1.0, ..Latency::default() }),
            processing_us: None,
            server_process_us_per_transaction: Some(0.5),
            load_process_us_per_transaction: None,
            simulated: Some(Simulated { queues: 1, ..Simulated::default() }),
            events_per_wakeup: Some(12.5),
        }],
        notes: vec!["a note".to_owned()],
        bars: vec![bar()],
        figures: vec![figure()],
    }
}

fn bar() -> Bar {
    Bar {
        name: "shards".to_owned(),
        what: "two over one".to_owned(),
        sense: Sense::AtLeast,
        bound: Some(1.9),
        unit: String::new(),
        runs: vec![1.9, 1.95, 1.94],
        median: Some(1.94),
        met: Some(true),
        simulated: true,
        why: None,
        skipped: false,
        servers: vec![BarServer {
            program: "redis".to_owned(),
            backend: "local".to_owned(),
            requests_per_s: 460_000.0,
            cpu_us_per_request: 1.4,
            idle_share: 0.01,
            saturated: true,
        }],
    }
}

fn figure() -> Figure {
    let source = FigureSource::Simulated;
    let (label, points) = ("naive".to_owned(), vec![[1.0, 2.0]]);
    let plot = FigurePlot {
        caption: "Throughput".to_owned(),
        x: FigureAxis { label: "cores".to_owned(), logarithmic: true },
        curves: vec![FigureCurve { label, source, points }],
        ..FigurePlot::default()
    };
    let table = FigureTable {
        rows_are: "layout".to_owned(),
        columns: vec!["T_CM µs".to_owned()],
        rows: vec![FigureRow { label: "TS1LS1CM1".to_owned(), source, values: vec![None] }],
    };
    let (plots, tables) = (vec![plot], vec![table]);
    Figure { name: "fig8".to_owned(), plots, tables, ..Figure::default() }
}

#[test]
fn the_promised_fields_are_there() {
    let json = serde_json::to_value(results()).expect("JSON");
    for name in ["machine", "command", "points", "notes", "bars", "figures"] {
        assert!(json.get(name).is_some(), "{name}");
    }
    for name in [
        "cpu",
        "cpu_mhz",
        "cores",
        "memory_bytes",
        "kernel",
        "mitigations",
        "megapipe",
        "commit",
        "date",
    ] {
        assert!(json["machine"].get(name).is_some(), "{name}");
    }
    let point = &json["points"][0];
    for name in POINT_FIELDS {
        assert!(point.get(name).is_some(), "{name}");
    }
    for (object, names) in [
        (&json["bars"][0], &BAR_FIELDS[..]),
        (&json["bars"][0]["servers"][0], &BAR_SERVER_FIELDS),
        (&point["simulated"], &SIMULATED_FIELDS),
        (&json["figures"][0], &FIGURE_FIELDS),
        (&json["figures"][0]["plots"][0], &PLOT_FIELDS),
    ] {
        for name in names {
            assert!(object.get(*name).is_some(), "{name}");
        }
    }
    assert_eq!(json["bars"][0]["sense"], "at_least");
    assert_eq!(json["figures"][0]["tables"][0]["rows"][0]["source"], "simulated");
    for name in ["p50", "p99", "p999", "max"] {
        assert!(point["latency_us"][name].is_number(), "{name}");
    }
    assert_eq!((&point["link"], &point["saturated"]), (&"veth".into(), &"server".into()));
}

#[test]
fn every_field_is_documented() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/BENCHMARKING.md");
    let document = std::fs::read_to_string(path).expect("the document");
    let json = serde_json::to_value(results()).expect("JSON");
    let object = |value: &Value| value.as_object().expect("an object").clone();
    let names = object(&json).into_iter().chain(object(&json["points"][0]));
    let names = names.chain(object(&json["machine"])).chain(object(&json["bars"][0]));
    let figure = &json["figures"][0];
    let parts = [
        figure,
        &figure["plots"][0],
        &figure["plots"][0]["x"],
        &figure["plots"][0]["curves"][0],
        &figure["tables"][0],
        &figure["tables"][0]["rows"][0],
    ];
    let names = names.chain(parts.into_iter().flat_map(object));
    let names = names.chain(object(&json["bars"][0]["servers"][0]));
    for (name, _) in names.chain(object(&json["points"][0]["simulated"])) {
        assert!(document.contains(&format!("`{name}`")), "{name} is not documented");
    }
}

#[test]
fn results_survive_being_written_and_read() {
    let mut results = results();
    let mut kept = results.points[0].clone();
    kept.transactions_per_connection = None;
    results.points.push(kept);
    let text = serde_json::to_string(&results).expect("JSON");
    assert!(text.contains("\"transactions_per_connection\":0"));
    assert_eq!(serde_json::from_str::<Results>(&text).expect("results"), results);
}

#[test]
fn results_of_the_first_version_are_still_read() {
    let mut json = serde_json::to_value(results()).expect("JSON");
    let point = json["points"][0].as_object_mut().expect("a point");
    for name in &POINT_FIELDS[15..] {
        point.remove(*name);
    }
    point.remove("errors");
    for name in ["notes", "bars", "figures"] {
        json.as_object_mut().expect("an object").remove(name);
    }
    let read: Results = serde_json::from_value(json).expect("results");
    assert_eq!(read.points[0].runs, 5);
}
