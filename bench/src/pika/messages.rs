//! Messages between cores: table 2, and why table 1 is not reproduced.

use super::Pika;
use crate::{
    figure::{Figure, FigureSource, FigureTable},
    scaling::message_costs::MessageCosts,
};

/// Table 1 needs what this machine may not have.
pub(super) fn table1(_: &mut Pika, figure: &mut Figure) {
    figure.paper =
        "Table 1: 1.25 last-level cache misses per request in the kernel on one socket, \
                    1.14 across sockets."
            .to_owned();
    let why = "not reproduced: it needs hardware counters of the last-level cache and two sockets";
    figure.why = Some(why.to_owned());
}

/// Round trips between two cores, beside the paper's cycles.
pub(super) fn table2(pika: &mut Pika, figure: &mut Figure) {
    let MessageCosts {
        words_ns,
        synchronous_ns,
        dispatched_ns,
        concurrent_ns,
        concurrent_dispatched_ns,
        ..
    } = pika.costs.measured().messages;
    let gigahertz = pika.cpu_mhz as f64 / 1e3;
    let mut table = FigureTable::new(
        "round trip",
        &["ns", "cycles", "paper cycles, one socket", "paper cycles, two sockets"],
    );
    let rows = [
        ("synchronous, words", words_ns, Some(186.0), Some(964.0)),
        ("synchronous, records", synchronous_ns, Some(597.0), Some(1_898.0)),
        ("synchronous, dispatched", dispatched_ns, Some(706.0), Some(2_058.0)),
        ("concurrent, records", concurrent_ns, Some(150.0), Some(370.0)),
        ("concurrent, dispatched", concurrent_dispatched_ns, Some(378.0), Some(857.0)),
    ];
    for (label, ns, on, off) in rows {
        let cycles = (gigahertz > 0.0).then_some(ns * gigahertz);
        table.row(label, FigureSource::Measured, [Some(ns), cycles, on, off]);
    }
    figure.tables.push(table);
    figure.parameters = "two threads on two cores, records of 64 bytes over the rings of the \
                         service; concurrent: 64 in flight"
        .to_owned();
    figure.paper = "Table 2: cycles of an Intel Xeon E7-4850. A micro-thread that does not yield \
                    took 26 cycles; the service has none, since its handlers never wait."
        .to_owned();
    figure.finding = format!(
        "a dispatched round trip costs {:.2} times one without dispatch, the paper's 1.18",
        dispatched_ns / synchronous_ns
    );
}
