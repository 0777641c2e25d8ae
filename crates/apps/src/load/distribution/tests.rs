//! Drawn often enough, each distribution has the parameters that the papers state.

use super::*;

const DRAWS: usize = 400_000;

fn draws(text: &str) -> Vec<u64> {
    let distribution: Distribution = text.parse().expect(text);
    let mut rng = Rng::new(11);
    let draws: Vec<u64> = (0..DRAWS).map(|_| distribution.sample(&mut rng)).collect();
    let within = distribution.min()..=distribution.max();
    assert!(draws.iter().all(|draw| within.contains(draw)), "{text} leaves its range");
    draws
}

fn mean(draws: &[u64]) -> f64 {
    draws.iter().map(|&draw| draw as f64).sum::<f64>() / draws.len() as f64
}

fn close(value: f64, stated: f64, share: f64) {
    assert!((value - stated).abs() <= stated * share, "{value} instead of {stated}");
}

#[test]
fn specweb_has_the_papers_range_and_mean() {
    let draws = draws("specweb");
    close(mean(&draws), 704.0, 0.01);
    assert!(draws.iter().all(|draw| (30..=5_670).contains(draw)));
    assert!(draws.contains(&30) && *draws.iter().max().unwrap() > 5_500);
}

#[test]
fn yahoo_sizes_have_the_papers_mean_and_share_of_large_responses() {
    let draws = draws("yahoo");
    close(mean(&draws), 12.5 * 1_024.0, 0.03);
    let all: u64 = draws.iter().sum();
    let large: u64 = draws.iter().filter(|&&draw| draw > 60 << 10).sum();
    close(large as f64 / all as f64, 0.5, 0.05);
    assert!(draws.iter().all(|draw| (1..=253 << 20).contains(draw)));
}

#[test]
fn half_of_yahoo_is_half_of_yahoo() {
    close(mean(&draws("yahoo/2")), 6.25 * 1_024.0, 0.03);
}

#[test]
fn yahoo_connections_have_the_papers_mean_and_the_98_percent_come_out() {
    let draws = draws("yahoo-requests");
    close(mean(&draws), 2.3, 0.03);
    let short = draws.iter().filter(|&&draw| draw <= 10).count() as f64 / DRAWS as f64;
    close(short, 0.98, 0.006);
    assert!(draws.iter().all(|draw| (1..=1_597).contains(draw)));
}

#[test]
fn the_other_forms_have_their_means() {
    assert_eq!(draws("64")[..3], [64, 64, 64]);
    assert_eq!(draws("64K")[0], 65_536);
    close(mean(&draws("uniform:64-1024")), 544.0, 0.01);
    close(mean(&draws("zipf:1000:40")), 40.0, 0.02);
    close(mean(&draws("zipf:9:5")), 5.0, 0.01);
    close(mean(&draws("pareto:64-64K:2000")), 2_000.0, 0.02);
    close(mean(&draws("lognormal:1-1M:1000:1.0")), 1_000.0, 0.02);
}

#[test]
fn bad_texts_say_what_is_wrong() {
    let error = |text: &str| text.parse::<Distribution>().expect_err(text);
    assert_eq!(error("sometimes"), DistributionError::Form);
    assert_eq!(error("uniform:5"), DistributionError::Form);
    assert_eq!(error("12x"), DistributionError::Number("12x".into()));
    assert_eq!(error("99999999999999999999"), DistributionError::Number("9".repeat(20)));
    assert_eq!(error("uniform:9-3"), DistributionError::Range(9, 3));
    assert_eq!(error("zipf:9999999:3"), DistributionError::Range(1, 9_999_999));
    assert_eq!(error("zipf:10:inf"), DistributionError::Number("inf".into()));
    let mean = DistributionError::Mean { min: 1, max: 10, mean: "11".into() };
    assert_eq!(error("zipf:10:11"), mean);
    assert!(matches!(error("pareto:0-10:5"), DistributionError::Mean { .. }));
    assert!(matches!(error("lognormal:5-10:3:1"), DistributionError::Mean { .. }));
}

#[test]
fn a_distribution_prints_as_it_is_read() {
    for text in ["64", "uniform:1-9", "zipf:10:3.5", "specweb", "yahoo/2", "pareto:64-4096:500"] {
        let distribution: Distribution = text.parse().expect(text);
        assert_eq!(distribution.to_string(), text);
        assert_eq!(distribution.to_string().parse(), Ok(distribution));
    }
}

#[test]
fn representatives_keep_the_mean_and_are_always_the_same() {
    let specweb: Distribution = "specweb".parse().expect("specweb");
    let representatives = || specweb.representatives(500).expect("memory");
    let files = representatives();
    assert_eq!((files.len(), &files), (500, &representatives()));
    close(mean(&files), 704.0, 0.02);
    assert!(files.is_sorted() && files[0] >= 30 && files[499] <= 5_670);
}
