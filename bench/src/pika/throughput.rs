//! Throughput over cores and by layout: figures 4a, 4b, 8 and 11.

use super::{Pika, combined};
use crate::{
    figure::{Figure, FigureAxis, FigureCurve, FigurePlot, FigureSource, FigureTable},
    promise::{Promise, PromisedBound},
    scaling::service::ServiceWorld,
};
use megapipe_service::balancer::{Scheme, Tariff};

/// Servers, with as many web servers.
const SERVERS: [u16; 6] = [1, 2, 4, 8, 16, 32];

/// The five schemes of figures 7 and 8, in the paper's order.
pub(super) fn schemes() -> [Scheme; 5] {
    let tariff = |whole: u32| Tariff::from_hundredths(whole * 100).expect("1 to 1000");
    [
        Scheme::Tournament(tariff(2)),
        Scheme::Filtered(tariff(2)),
        Scheme::Unfiltered(tariff(2)),
        Scheme::Unfiltered(tariff(100)),
        Scheme::Naive,
    ]
}

const CLOSED_LOOP: &str = "1 to 32 combined servers and as many web servers, a core each, 192 \
                           clients in a closed loop";

pub(super) fn fig4a(pika: &mut Pika, figure: &mut Figure) {
    let share = scaling(pika, figure, Some(1));
    figure.parameters = format!("{CLOSED_LOOP}; one request for each connection, tournament:2");
    figure.paper =
        "Figure 4a: near perfect scaling up to 32 cores, 1.9 million requests a second. \
                    The paper's ideal is Linux on two cores times the cores; ours is one server \
                    and one web server of the same simulation times their number, which asks for \
                    more."
            .to_owned();
    let promise =
        Promise::at_least("pika-fig4a", "requests a second on 32 + 32 cores over the ideal", 0.9);
    pika.promise(promise, share);
}

pub(super) fn fig4b(pika: &mut Pika, figure: &mut Figure) {
    scaling(pika, figure, None);
    figure.parameters = format!("{CLOSED_LOOP}; connections are kept, tournament:2");
    figure.paper = "Figure 4b: kept connections scale as ideally, even better than Linux on two \
                    cores times the cores."
        .to_owned();
}

/// Fills a figure with throughput over cores. Returns the share of the ideal on the most cores.
fn scaling(pika: &mut Pika, figure: &mut Figure, requests: Option<u32>) -> f64 {
    let mut table = FigureTable::new(
        "cores",
        &["requests/s", "ideal/s", "share of ideal", "placed in turn/s", "share of ideal"],
    );
    let (mut ours, mut ideal, mut placed) = (Vec::new(), Vec::new(), Vec::new());
    let (mut one, mut share, mut placed_share) = (0.0, 0.0, 0.0);
    for servers in SERVERS {
        let scheme = Scheme::default();
        let world = ServiceWorld { requests, ..pika.uniform(combined(servers), scheme) };
        let per_s = pika.simulate(&world).per_s;
        let in_turn = pika.simulate(&ServiceWorld { in_turn: true, ..world }).per_s;
        if servers == 1 {
            one = per_s;
        }
        let (cores, expected) = (f64::from(servers) * 2.0, one * f64::from(servers));
        share = per_s / expected;
        placed_share = in_turn / expected;
        ours.push([cores, per_s]);
        placed.push([cores, in_turn]);
        ideal.push([cores, expected]);
        let label = format!("{servers} + {servers}");
        let values = [per_s, expected, share, in_turn, placed_share].map(Some);
        table.row(&label, FigureSource::Simulated, values);
    }
    figure.plots.push(FigurePlot {
        caption: "Requests a second over cores".to_owned(),
        x: FigureAxis::linear("cores (servers and web servers)"),
        y: FigureAxis::linear("requests/s"),
        stacked: false,
        curves: vec![
            FigureCurve::simulated("service, tournament:2", ours),
            FigureCurve::simulated("ideal: one pair times pairs", ideal),
            FigureCurve::simulated("flows placed in turn", placed),
        ],
    });
    figure.tables.push(table);
    figure.finding = format!(
        "{:.0} % of the ideal on 32 + 32 cores; {:.0} % if flows were placed on the servers in \
         turn, which is nearly what the paper's network card does by the low bits of the port. 192 \
         clients are six for each server there: by the hash some servers have more and some none \
         for moments, and where a message's delay is long beside a request's work, six do not \
         fill a server",
        share * 100.0,
        placed_share * 100.0
    );
    share
}

pub(super) fn fig8(pika: &mut Pika, figure: &mut Figure) {
    let labels: Vec<String> = schemes().iter().map(Scheme::to_string).collect();
    let mut columns: Vec<&str> = labels.iter().map(String::as_str).collect();
    columns.push("unfiltered:2, to others %");
    let mut table = FigureTable::new("cores", &columns);
    let mut curves: Vec<Vec<[f64; 2]>> = vec![Vec::new(); labels.len()];
    let mut least = [f64::INFINITY; 2];
    for servers in SERVERS {
        let outcomes = schemes().map(|scheme| {
            let world = pika.uniform(combined(servers), scheme);
            pika.simulate(&world)
        });
        let cores = f64::from(servers) * 2.0;
        for (curve, outcome) in curves.iter_mut().zip(&outcomes) {
            curve.push([cores, outcome.per_s]);
        }
        let naive = outcomes[4].per_s;
        for (least, outcome) in least.iter_mut().zip(&outcomes) {
            *least = least.min(outcome.per_s / naive);
        }
        let rates = outcomes.iter().map(|outcome| Some(outcome.per_s));
        let to_others = Some(outcomes[2].remote_share * 100.0);
        let label = format!("{servers} + {servers}");
        table.row(&label, FigureSource::Simulated, rates.chain([to_others]));
    }
    let named = labels.iter().zip(curves);
    figure.plots.push(FigurePlot {
        caption: "Connections a second over cores".to_owned(),
        x: FigureAxis::linear("cores (servers and web servers)"),
        y: FigureAxis::linear("connections/s"),
        stacked: false,
        curves: named.map(|(label, points)| FigureCurve::simulated(label, points)).collect(),
    });
    figure.tables.push(table);
    figure.parameters = format!("{CLOSED_LOOP}; one request for each connection, uniform load");
    figure.paper = "Figure 8: all schemes scale as naive, except unfiltered:2, which loses more \
                    than a factor of two at 32 cores because most connections go to other \
                    managers."
        .to_owned();
    figure.finding = "a connection to another manager's web server costs one message more here, \
                      since web servers have a core of their own in any case and the transport \
                      server stays (decision 0037): unfiltered:2 sends most connections to others, \
                      and evens out the load of the web servers that way instead of collapsing"
        .to_owned();
    for (name, what, least) in [
        ("pika-fig8-tournament", "connections a second of tournament:2 over naive", least[0]),
        ("pika-fig8-filtered", "connections a second of filtered:2 over naive", least[1]),
    ] {
        let bound = PromisedBound::AtLeast(0.95);
        pika.promise(Promise { name, what, bound, unit: "", digits: 3 }, least);
    }
}

/// Groups of figure 11: their name and layouts.
const LAYOUTS: [(&str, &[&str]); 5] = [
    ("separate LS", &["TS8CM8+LS1", "TS8CM8+LS2", "TS8CM8+LS4", "TS8CM8+LS8"]),
    ("separate CM", &["TS8LS8+CM1", "TS8LS8+CM2", "TS8LS8+CM4", "TS8LS8+CM8"]),
    ("separate LS and CM", &["TS8+LS8+CM1", "TS8+LS8+CM4", "TS8+LS8+CM8"]),
    ("CM in a subset", &["TS8LS8CM1", "TS8LS8CM2", "TS8LS8CM4"]),
    ("combined", &["TS8LS8CM8"]),
];

pub(super) fn fig11(pika: &mut Pika, figure: &mut Figure) {
    let mut table = FigureTable::new("layout", &["connections/s", "over combined", "server cores"]);
    let mut rows = Vec::new();
    for (group, layouts) in LAYOUTS {
        for text in layouts {
            let layout = text.parse().expect("a layout of the paper's");
            let world = pika.uniform(layout, Scheme::default());
            let cores = world.layout.servers().len() as f64;
            let per_s = pika.simulate(&world).per_s;
            rows.push((format!("{text} ({group})"), per_s, cores));
        }
    }
    let combined = rows.last().map_or(1.0, |(_, per_s, _)| *per_s);
    let mut best_split: f64 = 0.0;
    for (label, per_s, cores) in &rows {
        if !label.ends_with("(combined)") {
            best_split = best_split.max(per_s / combined);
        }
        let values = [*per_s, per_s / combined, *cores].map(Some);
        table.row(label, FigureSource::Simulated, values);
    }
    figure.tables.push(table);
    figure.parameters =
        "8 transport servers and 8 web servers; the cores of separate link servers \
                         and connection managers are additional; 192 clients in a closed loop"
            .to_owned();
    figure.paper = "Figure 11: the combined layout is best with the fewest cores. Few separate \
                    link servers are the bottleneck, separate managers cost little, managers in \
                    a subset cost much at CM1 and CM2."
        .to_owned();
    figure.finding = format!(
        "the best other layout has {best_split:.2} of the combined one's connections, on more \
         cores or the same"
    );
}
