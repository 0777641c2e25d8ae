//! Connection managers: the cost of offers (table 3), of split layouts (tables 4 and 5), and the
//! shares of equal acceptors.

use super::{Pika, combined, milliseconds};
use crate::{
    figure::{Figure, FigureSource, FigureTable},
    limits,
    promise::Promise,
    scaling::service::{Clients, ServiceOutcome, ServiceWorld},
};
use megapipe_service::{
    balancer::{OfferRule, Scheme},
    layout::ServerLayout,
};

/// Connections a second for each server while offers are counted: those of the imbalanced load.
const RATE_PER_SERVER: u32 = 3_750;

/// Connections of which shares are compared.
const CONNECTIONS: u32 = 100_000;

/// The paper's rows: managers, thousands of offers a second, share of the time in percent.
const TABLE3: [(u16, f64, f64); 4] =
    [(2, 21.0, 0.03), (4, 63.0, 0.07), (8, 147.0, 0.13), (16, 315.0, 0.34)];

pub(super) fn table3(pika: &mut Pika, figure: &mut Figure) {
    let mut table = FigureTable::new(
        "managers",
        &[
            "offers/s",
            "time %",
            "unconditional/s",
            "unconditional time %",
            "paper offers/s",
            "paper time %",
        ],
    );
    let mut share = 0.0;
    for (managers, paper, paper_share) in TABLE3 {
        let conditional = pika.offers(managers, OfferRule::default());
        let always = pika.offers(managers, OfferRule::Always);
        share = conditional.offer_share * 100.0;
        let values = [
            conditional.offers_received_per_s,
            share,
            always.offers_received_per_s,
            always.offer_share * 100.0,
            paper * 1e3,
            paper_share,
        ];
        table.row(&managers.to_string(), FigureSource::Simulated, values.map(Some));
    }
    figure.tables.push(table);
    let promise =
        Promise::at_most("pika-table3", "share of a manager's time for offers, 16 managers", 0.5)
            .in_unit(" %");
    pika.promise(promise, share);
    figure.parameters = format!(
        "2 to 16 servers TSnLSnCMn with a web server each, {RATE_PER_SERVER} connections a second \
         for each server, 10 s (unconditional offers 1 s); offers that one manager receives a \
         second, and the share of its time for offers both ways"
    );
    figure.paper = "Table 3: 21, 63, 147 and 315 updates a second and 0.03 to 0.34 % of the time. \
                    With a period of 50 µs a manager receives 20,000 offers a second of each other \
                    one, so the counts are read as thousands here."
        .to_owned();
    figure.finding = "unconditional offers have the paper's counts; conditional ones leave only \
                      after a change of 5 % or 10 ms"
        .to_owned();
}

/// The paper's table 4: layout, T_CM, T_busy, T_msg, T_total in microseconds.
const TABLE4: [(&str, [f64; 4]); 2] =
    [("TS1LS1CM1", [0.31, 3.13, 7.12, 307.0]), ("TS1LS1+CM1", [9.24, 3.67, 7.34, 311.0])];

/// The paper's table 5: layout, T_CM, T_busy, T_msg in microseconds.
const TABLE5: [(&str, [f64; 3]); 7] = [
    ("TS8LS8CM8", [0.39, 3.26, 10.05]),
    ("TS8LS8+CM1", [17.78, 5.17, 8.61]),
    ("TS8LS8+CM2", [14.73, 4.96, 8.59]),
    ("TS8LS8+CM4", [13.67, 4.99, 10.05]),
    ("TS8LS8CM1", [6_766.68, 5.91, 10.91]),
    ("TS8LS8CM2", [39.73, 5.92, 11.57]),
    ("TS8LS8CM4", [10.46, 5.18, 12.38]),
];

const TIMES: &str = "T_CM: here from establishment until the transport server has the manager's \
                     assignment, in the paper from the SYN at the link server until the transport \
                     server has the connection. T_busy: work of the stack for a connection; T_msg: \
                     sending and taking messages at the transport server.";

pub(super) fn table4(pika: &mut Pika, figure: &mut Figure) {
    let columns = ["T_CM µs", "T_busy µs", "T_msg µs", "T_total µs"];
    let mut table = FigureTable::new("layout", &columns);
    let mut managers = Vec::new();
    for (text, paper) in TABLE4 {
        let world = ServiceWorld { clients: Clients::Closed(1), ..pika.uniform_in(text) };
        let outcome = pika.simulate(&world);
        managers.push(outcome.manager_us);
        let values = times(&outcome).into_iter().chain([outcome.latency_us]);
        table.row(text, FigureSource::Simulated, values.map(Some));
        table.row(text, FigureSource::Paper, paper.map(Some));
    }
    figure.tables.push(table);
    figure.parameters = "one client, one web server, a closed loop".to_owned();
    figure.paper = format!("Table 4. {TIMES}");
    figure.finding = format!(
        "a separate connection manager adds {:.2} µs to T_CM, the paper's 8.93: a message there \
         and one back",
        managers[1] - managers[0]
    );
}

pub(super) fn table5(pika: &mut Pika, figure: &mut Figure) {
    let mut table =
        FigureTable::new("layout", &["T_CM µs", "T_busy µs", "T_msg µs", "connections/s"]);
    let mut manager_us = Vec::new();
    for (text, paper) in TABLE5 {
        let world = pika.uniform_in(text);
        let outcome = pika.simulate(&world);
        manager_us.push(outcome.manager_us);
        let values = times(&outcome).into_iter().chain([outcome.per_s]);
        table.row(text, FigureSource::Simulated, values.map(Some));
        let paper = paper.into_iter().map(Some).chain([None]);
        table.row(text, FigureSource::Paper, paper);
    }
    figure.tables.push(table);
    figure.parameters = "8 web servers, 192 clients in a closed loop".to_owned();
    figure.paper = format!(
        "Table 5. {TIMES} One manager for eight transport servers queues, and one that competes \
         with its own transport server queues without bound."
    );
    figure.finding = format!(
        "T_CM is {:.2} µs combined, {:.2} µs with one separate manager and {:.2} µs with one in a \
         subset. The manager's work is a small part of a connection's here and sees no SYN, so \
         less queues before it",
        manager_us[0], manager_us[1], manager_us[4]
    );
}

fn times(outcome: &ServiceOutcome) -> [f64; 3] {
    [outcome.manager_us, outcome.stack_us, outcome.message_us]
}

/// Jain's index of shares: 1 if they are equal.
pub(super) fn jain_index(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    sum * sum / (shares.len() as f64 * squares)
}

pub(super) fn jain(pika: &mut Pika, figure: &mut Figure) {
    let closed = pika.uniform(combined(4), Scheme::default());
    let connections = if pika.quick { CONNECTIONS / 5 } else { CONNECTIONS };
    let open = ServiceWorld {
        layout: combined(4),
        applications: 4,
        slowness: Vec::new(),
        duration: milliseconds(u64::from(connections) * 1_000 / u64::from(limits::PIKA_RATE)),
        ..pika.imbalanced(closed.distribution)
    };
    let mut table = FigureTable::new(
        "load",
        &["#1 share %", "#2 share %", "#3 share %", "#4 share %", "Jain's index"],
    );
    let mut indices = Vec::new();
    for (label, world) in [("30,000 connections/s", open), ("closed loop", closed)] {
        let totals = pika.simulate(&world).totals;
        let (sum, index) = (totals.iter().sum::<f64>(), jain_index(&totals));
        let shares = totals.iter().map(|count| count / sum * 100.0);
        table.row(label, FigureSource::Simulated, shares.chain([index]).map(Some));
        indices.push(index);
    }
    figure.tables.push(table);
    figure.parameters = format!(
        "TS4LS4CM4, four web servers with {} µs of work for each request, {connections} \
         connections; and 192 clients in a closed loop",
        limits::PIKA_WORK_US
    );
    figure.paper = "Not in the paper; its picks are random so that equal acceptors get equal \
                    shares (3.3)."
        .to_owned();
    figure.finding = format!("Jain's index {:.5}; in a closed loop {:.5}", indices[0], indices[1]);
    let promise =
        Promise::at_least("pika-jain", "Jain's index of four equal web servers' connections", 0.99)
            .with_digits(4);
    pika.promise(promise, indices[0]);
}

impl Pika {
    /// A steady load on servers with a web server each, to count offers.
    fn offers(&mut self, managers: u16, offer_rule: OfferRule) -> ServiceOutcome {
        let seconds = if offer_rule == OfferRule::Always || self.quick { 1 } else { 10 };
        let world = ServiceWorld {
            offer_rule,
            clients: Clients::Open(RATE_PER_SERVER * u32::from(managers)),
            warm_up: milliseconds(100),
            duration: milliseconds(seconds * 1_000 + 100),
            ..self.uniform(combined(managers), Scheme::default())
        };
        self.simulate(&world)
    }

    fn uniform_in(&self, layout: &str) -> ServiceWorld {
        let layout: ServerLayout = layout.parse().expect("a layout of the paper's");
        self.uniform(layout, Scheme::default())
    }

    /// Records a promised number that was simulated.
    pub(super) fn promise(&mut self, promise: Promise, value: f64) {
        let result = promise.result(vec![value], None);
        self.bars.push(crate::promise::BarResult { simulated: true, ..result });
    }

    /// Records a promised number that was measured.
    pub(super) fn measured_promise(&mut self, promise: Promise, value: f64) {
        self.bars.push(promise.result(vec![value], None));
    }
}
