//! Experiments with costs that are given, so that the outcome does not depend on the machine.

use super::*;
use crate::scaling::{
    costs::TransactionShape, message_costs::MessageCosts, service_costs::ManagerCosts,
};

fn pika() -> Pika {
    let shape = |server_ns, frames_out| TransactionShape {
        frames_in: 3.0,
        frames_out,
        input_share: 0.4,
        output_share: 0.3,
        server_ns,
        load_ns: 1_500.0,
    };
    let messages = MessageCosts {
        words_ns: 150.0,
        synchronous_ns: 400.0,
        dispatched_ns: 420.0,
        concurrent_ns: 60.0,
        concurrent_dispatched_ns: 80.0,
        send_ns: 10.0,
        take_ns: 20.0,
    };
    let measured = MeasuredService {
        short: shape(2_000.0, 2.0),
        kept: shape(600.0, 1.0),
        messages,
        wake_us: 15.0,
        frame_ns: 30.0,
    };
    let managers = |managers| ManagerCosts {
        pick_ns: 100.0 + 4.0 * f64::from(managers),
        report_ns: 50.0,
        offer_ns: 30.0,
        offer_take_ns: 30.0,
        table_ns: 50.0,
    };
    let costs = CostCache::new(measured, managers);
    Pika { costs, quick: true, seed: 1, cpu_mhz: 2_000, bars: Vec::new() }
}

fn figure(run: fn(&mut Pika, &mut Figure)) -> (Figure, Vec<BarResult>) {
    let (mut pika, mut figure) = (pika(), Figure::default());
    run(&mut pika, &mut figure);
    (figure, pika.bars)
}

#[test]
fn names_are_unique_and_unknown_ones_are_refused() {
    let mut names: Vec<&str> = EXPERIMENTS.iter().map(|it| it.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), EXPERIMENTS.len());
    assert_eq!(chosen(&["fig7".to_owned()]).unwrap().len(), 1);
    assert_eq!(chosen(&[]).unwrap().len(), EXPERIMENTS.len());
    let error = |name: &str| chosen(&[name.to_owned()]).err().unwrap().to_string();
    assert!(error("fig99").starts_with("there is no experiment 'fig99' here; there are: table1"));
    assert!(error("fig12").contains("cachegrind"), "{}", error("fig12"));
}

#[test]
fn table2_has_cycles_beside_the_papers() {
    let (figure, _) = figure(messages::table2);
    let row = &figure.tables[0].rows[1];
    assert_eq!(row.values, [Some(400.0), Some(800.0), Some(597.0), Some(1_898.0)]);
    assert!(figure.finding.contains("1.05 times"), "{}", figure.finding);
}

#[test]
fn tournament_beats_naive_under_imbalanced_load() {
    let mut pika = pika();
    let schemes = throughput::schemes();
    let mut p95_us = |scheme: Scheme| {
        let world = pika.imbalanced(ConnectionDistribution::Balanced(scheme));
        // The first second has one web server that is always slow, and one that becomes slow.
        let world = ServiceWorld { duration: milliseconds(1_000), ..world };
        pika.simulate(&world).percentile_us(95.0)
    };
    let (tournament, naive) = (p95_us(schemes[0]), p95_us(schemes[4]));
    assert!(naive > 100.0 * tournament, "{tournament} and {naive}");
    assert!(tournament < 100.0, "{tournament}");
}

#[test]
fn equal_web_servers_have_a_jain_index_near_one() {
    assert!((managers::jain_index(&[1.0, 1.0, 1.0]) - 1.0).abs() < 1e-9);
    assert!((managers::jain_index(&[1.0, 0.0, 0.0, 0.0]) - 0.25).abs() < 1e-9);
    let (_, bars) = figure(managers::jain);
    assert_eq!((bars[0].name, bars[0].met()), ("pika-jain", Some(true)));
    assert!(bars[0].simulated);
}

#[test]
fn separate_manager_adds_a_round_trip_to_t_cm() {
    let (figure, _) = figure(managers::table4);
    let manager_us = |row: usize| figure.tables[0].rows[row].values[0].unwrap();
    let added = manager_us(2) - manager_us(0);
    assert!((0.3..1.0).contains(&added), "{added}: {:?}", figure.tables[0]);
    assert_eq!(figure.tables[0].rows[3].values[0], Some(9.24), "the paper's");
}

#[test]
fn measured_imbalance_has_the_shape_of_a_simulated_one() {
    small::tests::check(&pika());
}

#[test]
fn results_survive_json() {
    let mut pika = pika();
    let mut figure = Figure { name: "jain".to_owned(), ..Figure::default() };
    managers::jain(&mut pika, &mut figure);
    let results = pika.results(Machine::here(2), vec![figure], 2);
    let text = output::json(&results).unwrap();
    let back: Results = serde_json::from_str(&text).unwrap();
    // Floating point numbers are read to the last but one digit.
    assert_eq!(back.notes, results.notes);
    assert!(back.bars[0].simulated && back.bars[0].met == results.bars[0].met);
    assert_eq!(back.figures[0].tables[0].rows.len(), 2);
    assert!(back.notes.iter().any(|note| note.contains("#3 2000 µs more from 1.5 to 4 s")));
}
