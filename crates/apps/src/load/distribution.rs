//! Lengths of messages, files and connections, drawn from the papers' distributions.
//!
//! The workloads of MegaPipe's figure 5.5 were traces that are not public; what is public are
//! their parameters [MegaPipe 5.3]. A distribution of the stated kind with exactly these
//! parameters stands for each:
//!
//! - `specweb`. Stated: 30 B to 5,670 B, 704 B on average. Here: bounded Pareto, its exponent
//!   solved for the mean.
//! - `yahoo`. Stated: 1 B to 253 MiB, 12.5 KiB on average, half of the bytes in responses above
//!   60 KiB. Here: log-normal, whose two parameters follow from the last two.
//! - `yahoo/2`. Stated: the same files at half the size. Here: the same, halved.
//! - `yahoo-requests`. Stated: 1 to 1,597 requests per connection, 2.3 on average, 98 % have ten or
//!   fewer, Zipf-like. Here: Zipf, its exponent solved for the mean; the 98 % then come out.
//!
//! Pure: randomness is an argument.
//!
//! Invariants
//! - What is drawn lies within [`Distribution::min`] and [`Distribution::max`].

use std::collections::TryReserveError;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::rng::Rng;
use crate::memory::reserved;

/// The most values that a Zipf distribution may range over: it keeps a table of them.
const ZIPF_MAX: u64 = 1 << 20;

/// A distribution of whole numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Distribution {
    text: String,
    min: u64,
    max: u64,
    shape: DistributionShape,
}

#[derive(Clone, Debug, PartialEq)]
enum DistributionShape {
    Fixed,
    Uniform,
    /// The chance of a value up to `min + index`.
    Zipf(Arc<[f64]>),
    /// The exponent.
    Pareto(f64),
    /// Mean and standard deviation of the logarithm.
    Lognormal {
        mu: f64,
        sigma: f64,
    },
}

/// Why a text is no distribution.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DistributionError {
    /// It is none of the known forms.
    #[error(
        "expected a number, uniform:MIN-MAX, zipf:MAX:MEAN, pareto:MIN-MAX:MEAN, \
         lognormal:MIN-MAX:MEAN:SIGMA, specweb, yahoo, yahoo/2 or yahoo-requests"
    )]
    Form,
    /// A number in it cannot be read.
    #[error("`{0}` is not a number, with or without K or M")]
    Number(String),
    /// Nothing but 0 would be drawn.
    #[error("expected at least 1")]
    Zero,
    /// Its range is empty or too large.
    #[error("the range {0}-{1} is empty or too large")]
    Range(u64, u64),
    /// No distribution of that kind has this mean.
    #[error("no such distribution between {min} and {max} has the mean {mean}")]
    Mean {
        /// The smallest value.
        min: u64,
        /// The largest value.
        max: u64,
        /// The requested value.
        mean: String,
    },
}

impl Distribution {
    /// Always `value`.
    #[must_use]
    pub fn fixed(value: u64) -> Self {
        Self { text: value.to_string(), min: value, max: value, shape: DistributionShape::Fixed }
    }

    /// The smallest number that can be drawn.
    #[must_use]
    pub const fn min(&self) -> u64 {
        self.min
    }

    /// The largest number that can be drawn.
    #[must_use]
    pub const fn max(&self) -> u64 {
        self.max
    }

    /// Draws a number.
    pub fn sample(&self, rng: &mut Rng) -> u64 {
        let (min, max) = (self.min as f64, self.max as f64);
        match &self.shape {
            DistributionShape::Fixed => self.min,
            DistributionShape::Uniform => self.min + rng.below(self.max - self.min + 1),
            DistributionShape::Zipf(chances) => {
                let point = rng.unit();
                let index = chances.partition_point(|&chance| chance <= point);
                (self.min + index as u64).min(self.max)
            }
            DistributionShape::Pareto(exponent) => {
                let value = pareto_quantile(min, max, *exponent, rng.unit());
                (value.round() as u64).clamp(self.min, self.max)
            }
            DistributionShape::Lognormal { mu, sigma } => {
                let value = (mu + sigma * rng.normal()).exp();
                (value.round() as u64).clamp(self.min, self.max)
            }
        }
    }

    /// `count` numbers that represent the distribution better than as many draws: many draws, in
    /// order of size, averaged in groups. Always the same for the same distribution.
    ///
    /// # Errors
    /// There is no memory for the draws.
    pub fn representatives(&self, count: usize) -> Result<Vec<u64>, TryReserveError> {
        const DRAWS_EACH: usize = 64;
        let mut rng = Rng::new(count as u64);
        let draw_count = count.saturating_mul(DRAWS_EACH);
        let mut draws = reserved(draw_count)?;
        draws.extend((0..draw_count).map(|_| self.sample(&mut rng)));
        draws.sort_unstable();
        let mean = |group: &[u64]| {
            let sum: u128 = group.iter().map(|&draw| u128::from(draw)).sum();
            (sum / group.len() as u128) as u64
        };
        let mut means = reserved(count)?;
        means.extend(draws.chunks(DRAWS_EACH).map(mean));
        Ok(means)
    }

    fn uniform(min: u64, max: u64) -> Result<Self, DistributionError> {
        check_range(min, max, u64::MAX - 1)?;
        Ok(Self {
            text: format!("uniform:{min}-{max}"),
            min,
            max,
            shape: DistributionShape::Uniform,
        })
    }

    /// Zipf over `1..=max`: the chance of k falls with k to the power of an exponent, which is
    /// chosen so that the mean is `mean`.
    fn zipf(max: u64, mean: f64) -> Result<Self, DistributionError> {
        check_range(1, max, ZIPF_MAX)?;
        let exponent = solve(1, max, mean, |exponent| zipf_mean(max, exponent))?;
        let mut sum = 0.0;
        let weights: Vec<f64> = (1..=max)
            .map(|k| {
                sum += (k as f64).powf(-exponent);
                sum
            })
            .collect();
        let chances = weights.iter().map(|weight| weight / sum).collect();
        Ok(Self {
            text: format!("zipf:{max}:{mean}"),
            min: 1,
            max,
            shape: DistributionShape::Zipf(chances),
        })
    }

    /// Pareto, cut to a range, with the exponent that gives the mean.
    fn pareto(min: u64, max: u64, mean: f64) -> Result<Self, DistributionError> {
        check_range(min.max(1), max, 1 << 53)?;
        let exponent =
            solve(min, max, mean, |exponent| pareto_mean(min as f64, max as f64, exponent))?;
        let text = format!("pareto:{min}-{max}:{mean}");
        Ok(Self { text, min, max, shape: DistributionShape::Pareto(exponent) })
    }

    /// Log-normal with a mean and the standard deviation `sigma` of its logarithm; what falls
    /// outside the range counts as its end.
    fn lognormal(min: u64, max: u64, mean: f64, sigma: f64) -> Result<Self, DistributionError> {
        check_range(min, max, 1 << 53)?;
        let possible = mean > min as f64 && mean < max as f64 && (0.0..16.0).contains(&sigma);
        if !possible {
            return Err(DistributionError::Mean { min, max, mean: mean.to_string() });
        }
        let text = format!("lognormal:{min}-{max}:{mean}:{sigma}");
        let mu = mean.ln() - sigma * sigma / 2.0;
        Ok(Self { text, min, max, shape: DistributionShape::Lognormal { mu, sigma } })
    }

    fn named(mut self, name: &str) -> Self {
        name.clone_into(&mut self.text);
        self
    }

    /// The static files of SPECweb 2009's support workload, by their stated parameters.
    ///
    /// # Errors
    /// None in practice; the signature is that of the distribution it is made from.
    fn specweb() -> Result<Self, DistributionError> {
        Ok(Self::pareto(30, 5_670, 704.0)?.named("specweb"))
    }

    /// The content sizes of the Yahoo! trace, by their stated parameters, divided by `divisor`.
    ///
    /// Of a log-normal distribution's bytes, half lie above exp(mu + sigma²), and its mean is
    /// exp(mu + sigma²/2). Both are stated, so sigma² is twice the logarithm of their ratio.
    fn yahoo(divisor: u64) -> Result<Self, DistributionError> {
        const KIB: f64 = 1_024.0;
        let (mean, half_of_bytes_above) = (12.5 * KIB, 60.0 * KIB);
        let sigma = (2.0 * (half_of_bytes_above / mean).ln()).sqrt();
        let max = (253 << 20) / divisor;
        Self::lognormal(1, max, mean / divisor as f64, sigma)
    }
}

impl FromStr for Distribution {
    type Err = DistributionError;

    fn from_str(text: &str) -> Result<Self, DistributionError> {
        match text {
            "specweb" => return Self::specweb(),
            "yahoo" => return Ok(Self::yahoo(1)?.named("yahoo")),
            "yahoo/2" => return Ok(Self::yahoo(2)?.named("yahoo/2")),
            "yahoo-requests" => return Ok(Self::zipf(1_597, 2.3)?.named("yahoo-requests")),
            _ => {}
        }
        let parts: Vec<&str> = text.split(':').collect();
        match parts[..] {
            [value] if value.starts_with(|first: char| first.is_ascii_digit()) => {
                Ok(Self::fixed(whole(value)?))
            }
            ["uniform", between] => {
                let (min, max) = range(between)?;
                Self::uniform(min, max)
            }
            ["zipf", max, mean] => Self::zipf(whole(max)?, fraction(mean)?),
            ["pareto", between, mean] => {
                let (min, max) = range(between)?;
                Self::pareto(min, max, fraction(mean)?)
            }
            ["lognormal", between, mean, sigma] => {
                let (min, max) = range(between)?;
                Self::lognormal(min, max, fraction(mean)?, fraction(sigma)?)
            }
            _ => Err(DistributionError::Form),
        }
    }
}

impl fmt::Display for Distribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn check_range(min: u64, max: u64, limit: u64) -> Result<(), DistributionError> {
    if min > max || max > limit {
        return Err(DistributionError::Range(min, max));
    }
    Ok(())
}

/// A whole number, where K and M stand for 2^10 and 2^20.
pub(crate) fn whole(text: &str) -> Result<u64, DistributionError> {
    let (digits, shift) = match text.strip_suffix(['K', 'k']) {
        Some(digits) => (digits, 10),
        None => text.strip_suffix(['M', 'm']).map_or((text, 0), |digits| (digits, 20)),
    };
    let number = digits.parse::<u64>().ok();
    number
        .and_then(|number| number.checked_mul(1 << shift))
        .ok_or_else(|| DistributionError::Number(text.to_owned()))
}

fn fraction(text: &str) -> Result<f64, DistributionError> {
    let number = text.parse::<f64>().ok().filter(|number| number.is_finite());
    number.ok_or_else(|| DistributionError::Number(text.to_owned()))
}

fn range(text: &str) -> Result<(u64, u64), DistributionError> {
    let (min, max) = text.split_once('-').ok_or(DistributionError::Form)?;
    Ok((whole(min)?, whole(max)?))
}

/// The exponent at which `mean_of`, which falls as the exponent grows, is `mean`.
fn solve(
    min: u64,
    max: u64,
    mean: f64,
    mean_of: impl Fn(f64) -> f64,
) -> Result<f64, DistributionError> {
    let (mut low, mut high) = (-8.0, 32.0);
    if !(mean_of(high)..=mean_of(low)).contains(&mean) {
        return Err(DistributionError::Mean { min, max, mean: mean.to_string() });
    }
    for _ in 0..100 {
        let middle = f64::midpoint(low, high);
        if mean_of(middle) > mean { low = middle } else { high = middle }
    }
    Ok(f64::midpoint(low, high))
}

fn zipf_mean(max: u64, exponent: f64) -> f64 {
    let (mut weights, mut moments) = (0.0, 0.0);
    for k in 1..=max {
        let weight = (k as f64).powf(-exponent);
        weights += weight;
        moments += k as f64 * weight;
    }
    moments / weights
}

/// The mean of a Pareto distribution with density proportional to x^-(exponent + 1) on a range.
fn pareto_mean(min: f64, max: f64, exponent: f64) -> f64 {
    // Both integrals of a power; where the power is -1 it is a logarithm.
    let integral = |power: f64| {
        if power.abs() < 1e-9 {
            return (max / min).ln();
        }
        (max.powf(power) - min.powf(power)) / power
    };
    integral(1.0 - exponent) / integral(-exponent)
}

fn pareto_quantile(min: f64, max: f64, exponent: f64, chance: f64) -> f64 {
    if exponent.abs() < 1e-9 {
        return min * (max / min).powf(chance);
    }
    let (low, high) = (min.powf(-exponent), max.powf(-exponent));
    (low + chance * (high - low)).powf(-1.0 / exponent)
}

#[cfg(test)]
mod tests;
