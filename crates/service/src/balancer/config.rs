//! Settings of a listener's balancer, and what is wrong with them.
//!
//! Pure: values and text in, checked settings out.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::limits;

/// Factor by which another manager's acceptor must be faster than the local ones, in hundredths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tariff(u32);

impl Tariff {
    /// Returns a tariff of `hundredths`/100.
    ///
    /// # Errors
    /// [`BalancerError::Tariff`] unless it is in 1 to 1000.
    pub fn from_hundredths(hundredths: u32) -> Result<Self, BalancerError> {
        let (least, most) = limits::TARIFFS;
        let is_allowed = (least..=most).contains(&hundredths);
        let refused = || BalancerError::Tariff { value: Self(hundredths).to_string() };
        is_allowed.then_some(Self(hundredths)).ok_or_else(refused)
    }

    /// Returns the tariff in hundredths.
    #[must_use]
    pub const fn hundredths(self) -> u32 {
        self.0
    }
}

impl Default for Tariff {
    fn default() -> Self {
        Self(limits::TARIFF_DEFAULT)
    }
}

impl fmt::Display for Tariff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0 / 100, self.0 % 100) {
            (whole, 0) => write!(f, "{whole}"),
            (whole, part) if part % 10 == 0 => write!(f, "{whole}.{}", part / 10),
            (whole, part) => write!(f, "{whole}.{part:02}"),
        }
    }
}

impl FromStr for Tariff {
    type Err = BalancerError;

    fn from_str(text: &str) -> Result<Self, BalancerError> {
        let refused = || BalancerError::Tariff { value: text.to_owned() };
        let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
        let is_number = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_digit());
        if !is_number(whole) || !is_number(part) || !(1..=2).contains(&part.len()) {
            return Err(refused());
        }
        let whole: u32 = whole.parse().map_err(|_| refused())?;
        let hundredths: u32 = format!("{part:0<2}").parse().map_err(|_| refused())?;
        let sum = whole.checked_mul(100).and_then(|whole| whole.checked_add(hundredths));
        Self::from_hundredths(sum.ok_or_else(refused)?).map_err(|_| refused())
    }
}

/// How the acceptor of a new connection is selected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// A local acceptor, whatever others offer.
    Naive,
    /// One round among local acceptors and all offers; the tariff divides the offers' weights.
    Unfiltered(Tariff),
    /// One round among local acceptors and the offers that beat them by the tariff.
    Filtered(Tariff),
    /// Three rounds: the offers that beat local acceptors by the tariff, with a high and a low
    /// water mark; local acceptors; the two winners.
    Tournament(Tariff),
    /// The acceptor that the flow's hash selects of all, as Linux does with SO_REUSEPORT.
    Hash,
}

impl Scheme {
    /// Returns the tariff, where the scheme has one.
    #[must_use]
    pub const fn tariff(self) -> Option<Tariff> {
        match self {
            Self::Unfiltered(tariff) | Self::Filtered(tariff) | Self::Tournament(tariff) => {
                Some(tariff)
            }
            Self::Naive | Self::Hash => None,
        }
    }
}

impl Default for Scheme {
    fn default() -> Self {
        Self::Tournament(Tariff::default())
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Naive => f.write_str("naive"),
            Self::Unfiltered(tariff) => write!(f, "unfiltered:{tariff}"),
            Self::Filtered(tariff) => write!(f, "filtered:{tariff}"),
            Self::Tournament(tariff) => write!(f, "tournament:{tariff}"),
            Self::Hash => f.write_str("hash"),
        }
    }
}

impl FromStr for Scheme {
    type Err = BalancerError;

    fn from_str(text: &str) -> Result<Self, BalancerError> {
        let (name, tariff) = match text.split_once(':') {
            Some((name, tariff)) => (name, Some(tariff.parse()?)),
            None => (text, None),
        };
        match (name, tariff) {
            ("naive", None) => Ok(Self::Naive),
            ("hash", None) => Ok(Self::Hash),
            ("unfiltered", tariff) => Ok(Self::Unfiltered(tariff.unwrap_or_default())),
            ("filtered", tariff) => Ok(Self::Filtered(tariff.unwrap_or_default())),
            ("tournament", tariff) => Ok(Self::Tournament(tariff.unwrap_or_default())),
            _ => Err(BalancerError::Scheme { value: text.to_owned() }),
        }
    }
}

/// What stands for the load of an acceptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum LoadMeasure {
    /// Time from a connection's offer to its close [PIKA 3.3].
    #[default]
    Closed,
    /// Time from a connection's offer to the first byte sent on it: for long connections.
    FirstAnswer,
    /// Number of open connections.
    Connections,
}

/// How service times become an estimate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Statistic {
    /// Moving median.
    #[default]
    Median,
    /// Moving mean.
    Mean,
}

/// When a manager sends its offer to the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OfferRule {
    /// If the offer has changed, or at a certain age.
    Changed {
        /// Change of the service time, in percent: 1 to 100.
        percent: u8,
        /// Age at which an unchanged offer is repeated; below the expiry.
        refresh: Duration,
    },
    /// In each interval, as PIKA does.
    Always,
}

impl Default for OfferRule {
    fn default() -> Self {
        Self::Changed {
            percent: limits::OFFER_CHANGE_PERCENT_DEFAULT,
            refresh: limits::OFFER_REFRESH_DEFAULT,
        }
    }
}

/// Settings of one listener's balancer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct BalancerConfig {
    /// How an acceptor is selected.
    pub scheme: Scheme,
    /// What stands for an acceptor's load.
    pub measure: LoadMeasure,
    /// How samples become an estimate.
    pub statistic: Statistic,
    /// Samples in the moving window: 1 to [`limits::ESTIMATE_WINDOW_MAX`].
    pub window: u16,
    /// Interval of the samples. A sample is the mean of the service times of one interval, or else
    /// the previous sample. Zero makes each service time a sample, and nothing else; at most
    /// [`limits::ESTIMATE_PERIOD_MAX`].
    pub period: Duration,
    /// Shortest interval of offers: within [`limits::OFFER_INTERVALS`].
    pub offer_interval: Duration,
    /// When offers are sent.
    pub offer_rule: OfferRule,
    /// Age from which an offer does not count: above `offer_interval`, at most
    /// [`limits::OFFER_EXPIRY_MAX`].
    pub expiry: Duration,
    /// Share of the tariff below which an offer fails the filter again, in percent: 1 to 100.
    pub low_water_percent: u8,
}

impl Default for BalancerConfig {
    fn default() -> Self {
        Self {
            scheme: Scheme::default(),
            measure: LoadMeasure::default(),
            statistic: Statistic::default(),
            window: limits::ESTIMATE_WINDOW_DEFAULT,
            period: limits::ESTIMATE_PERIOD_DEFAULT,
            offer_interval: limits::OFFER_INTERVAL_DEFAULT,
            offer_rule: OfferRule::default(),
            expiry: limits::OFFER_EXPIRY_DEFAULT,
            low_water_percent: limits::LOW_WATER_PERCENT_DEFAULT,
        }
    }
}

/// A setting of a balancer that is out of range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BalancerError {
    /// Not one of the schemes.
    #[error(
        "scheme '{value}' is none of naive, unfiltered:T, filtered:T, tournament:T and hash, with \
         a tariff T from 1 to 1000"
    )]
    Scheme {
        /// The text.
        value: String,
    },
    /// A tariff out of range.
    #[error("tariff '{value}' is not in 1 to 1000, with at most two decimals")]
    Tariff {
        /// The value.
        value: String,
    },
    /// A window out of range.
    #[error("window {value} is not in 1 to {max}", max = limits::ESTIMATE_WINDOW_MAX)]
    Window {
        /// The value.
        value: u16,
    },
    /// A percentage out of range.
    #[error("{setting} {value} % is not in 1 % to 100 %")]
    Percent {
        /// The setting's name.
        setting: &'static str,
        /// The value.
        value: u8,
    },
    /// A duration out of range.
    #[error("{setting} {value:?} is not in {least:?} to {most:?}")]
    Duration {
        /// The setting's name.
        setting: &'static str,
        /// The value.
        value: Duration,
        /// The shortest that is allowed.
        least: Duration,
        /// The longest that is allowed.
        most: Duration,
    },
}

/// Checks that a duration is in a range, ends included.
pub(crate) fn check_duration(
    setting: &'static str,
    value: Duration,
    (least, most): (Duration, Duration),
) -> Result<(), BalancerError> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(BalancerError::Duration { setting, value, least, most })
}

fn check_percent(setting: &'static str, value: u8) -> Result<(), BalancerError> {
    if (1..=100).contains(&value) {
        return Ok(());
    }
    Err(BalancerError::Percent { setting, value })
}

impl BalancerConfig {
    /// Checks each setting.
    ///
    /// # Errors
    /// [`BalancerError`] names the setting, its value and the allowed values.
    pub fn check(&self) -> Result<(), BalancerError> {
        if !(1..=limits::ESTIMATE_WINDOW_MAX).contains(&self.window) {
            return Err(BalancerError::Window { value: self.window });
        }
        let periods = (Duration::ZERO, limits::ESTIMATE_PERIOD_MAX);
        check_duration("period", self.period, periods)?;
        check_duration("offer interval", self.offer_interval, limits::OFFER_INTERVALS)?;
        check_duration("expiry", self.expiry, (self.offer_interval, limits::OFFER_EXPIRY_MAX))?;
        check_percent("low water mark", self.low_water_percent)?;
        if let OfferRule::Changed { percent, refresh } = self.offer_rule {
            check_percent("offer change", percent)?;
            check_duration("offer refresh", refresh, (self.offer_interval, self.expiry))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scheme_survives_text_form() {
        for text in
            ["naive", "hash", "unfiltered:100", "filtered:2", "tournament:1.5", "tournament:2.25"]
        {
            assert_eq!(text.parse::<Scheme>().unwrap().to_string(), text);
        }
        assert_eq!("tournament".parse::<Scheme>().unwrap(), Scheme::default());
        assert_eq!("filtered:2.50".parse::<Scheme>().unwrap().to_string(), "filtered:2.5");
    }

    #[test]
    fn invalid_scheme_error_names_value_and_choices() {
        let error = |text: &str| text.parse::<Scheme>().unwrap_err().to_string();
        for text in ["", "Naive", "naive:2", "hash:", "best", "tournament2"] {
            let message = error(text);
            let is_named = message.contains("hash") || message.contains("tariff");
            assert!(is_named && message.contains('\''), "{text}: {message}");
        }
        let range = "is not in 1 to 1000, with at most two decimals";
        for tariff in ["0", "0.99", "1000.01", "-2", "2.", "2.001", "x", "99999999999", "+2", ""] {
            let message = error(&format!("tournament:{tariff}"));
            assert_eq!(message, format!("tariff '{tariff}' {range}"));
        }
    }

    #[test]
    fn invalid_setting_error_names_value_and_range() {
        let of = |change: fn(&mut BalancerConfig)| {
            let mut config = BalancerConfig::default();
            assert_eq!(config.check(), Ok(()));
            change(&mut config);
            config.check().unwrap_err().to_string()
        };
        let long = |config: &mut BalancerConfig| config.period = Duration::from_secs(1);
        assert_eq!(of(long), "period 1s is not in 0ns to 100ms");
        assert_eq!(of(|config| config.window = 0), "window 0 is not in 1 to 1024");
        let short = |config: &mut BalancerConfig| config.offer_interval = Duration::ZERO;
        assert_eq!(of(short), "offer interval 0ns is not in 1µs to 100ms");
        let expired = |config: &mut BalancerConfig| config.expiry = Duration::from_micros(10);
        assert_eq!(of(expired), "expiry 10µs is not in 50µs to 60s");
        let late = |config: &mut BalancerConfig| {
            let refresh = Duration::from_secs(2);
            config.offer_rule = OfferRule::Changed { percent: 5, refresh };
        };
        assert_eq!(of(late), "offer refresh 2s is not in 50µs to 1s");
        let never = |config: &mut BalancerConfig| {
            let refresh = Duration::from_millis(10);
            config.offer_rule = OfferRule::Changed { percent: 0, refresh };
        };
        assert_eq!(of(never), "offer change 0 % is not in 1 % to 100 %");
        let none = |config: &mut BalancerConfig| config.low_water_percent = 101;
        assert_eq!(of(none), "low water mark 101 % is not in 1 % to 100 %");
    }
}
