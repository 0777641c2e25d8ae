//! Promised numbers: a bound, what was measured, and whether the median keeps it.
//!
//! Pure: numbers in, verdict and texts out.

use crate::{
    measure::{median, quartiles, range},
    point::{Bar, BarServer, Sense},
};

/// What is promised.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum PromisedBound {
    AtMost(f64),
    AtLeast(f64),
    /// None: the value is only reported.
    Floor,
}

/// What is promised of one number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Promise {
    /// As `--only` takes it.
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    pub(crate) bound: PromisedBound,
    pub(crate) unit: &'static str,
    pub(crate) digits: usize,
}

impl Promise {
    /// A number without a unit, written with three digits.
    const fn new(name: &'static str, what: &'static str, bound: PromisedBound) -> Self {
        Self { name, what, bound, unit: "", digits: 3 }
    }

    pub(crate) const fn at_most(name: &'static str, what: &'static str, bound: f64) -> Self {
        Self::new(name, what, PromisedBound::AtMost(bound))
    }

    pub(crate) const fn at_least(name: &'static str, what: &'static str, bound: f64) -> Self {
        Self::new(name, what, PromisedBound::AtLeast(bound))
    }

    pub(crate) const fn in_unit(self, unit: &'static str) -> Self {
        Self { unit, ..self }
    }

    pub(crate) const fn with_digits(self, digits: usize) -> Self {
        Self { digits, ..self }
    }

    /// What came of the runs; `why` nothing did, if nothing did.
    ///
    /// A run without a finite value (a ratio to a time of 0) makes all of them void: its ratio says
    /// nothing, and the median would count it as met or missed.
    pub(crate) fn result(self, mut runs: Vec<f64>, mut why: Option<String>) -> BarResult {
        let Self { name, what, bound, unit, digits } = self;
        if let Some(index) = runs.iter().position(|run| !run.is_finite()) {
            let value = runs[index];
            why = Some(format!("run {} has no finite value ({value})", index + 1));
            runs.clear();
        }
        let left_out = || "a server failed, see the notes".to_owned();
        let why = runs.is_empty().then(|| why.unwrap_or_else(left_out));
        BarResult {
            name,
            what,
            bound,
            unit,
            digits,
            runs,
            of_medians: None,
            simulated: false,
            why,
            is_skipped: false,
            servers: Vec::new(),
        }
    }

    /// Nothing was measured, because the machine lacks something.
    pub(crate) fn skipped(self, why: String) -> BarResult {
        BarResult { is_skipped: true, ..self.result(Vec::new(), Some(why)) }
    }

    /// What came of one measurement of all runs.
    pub(crate) fn outcome<E: std::fmt::Display>(self, runs: Result<Vec<f64>, E>) -> BarResult {
        match runs {
            Ok(runs) => self.result(runs, None),
            Err(error) => self.result(Vec::new(), Some(error.to_string())),
        }
    }
}

/// A promise and what was measured.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct BarResult {
    /// As `--only` takes it.
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    pub(crate) bound: PromisedBound,
    pub(crate) unit: &'static str,
    pub(crate) digits: usize,
    /// One number for each run.
    pub(crate) runs: Vec<f64>,
    /// Of a ratio: that of the two servers' medians.
    pub(crate) of_medians: Option<f64>,
    /// Whether a simulation took the place of cores that the machine does not have.
    pub(crate) simulated: bool,
    /// Why nothing was measured.
    pub(crate) why: Option<String>,
    /// Whether the machine lacks what would be measured, which is no failure.
    pub(crate) is_skipped: bool,
    /// The servers that were compared, where the bar lists them.
    pub(crate) servers: Vec<BarServer>,
}

impl BarResult {
    /// As it stands in the results.
    pub(crate) fn record(&self) -> Bar {
        let (sense, bound) = match self.bound {
            PromisedBound::AtMost(bound) => (Sense::AtMost, Some(bound)),
            PromisedBound::AtLeast(bound) => (Sense::AtLeast, Some(bound)),
            PromisedBound::Floor => (Sense::Floor, None),
        };
        Bar {
            name: self.name.to_owned(),
            what: self.what.to_owned(),
            sense,
            bound,
            unit: self.unit.trim().to_owned(),
            runs: self.runs.clone(),
            median: (!self.runs.is_empty()).then(|| median(self.runs.iter().copied())),
            met: self.met(),
            simulated: self.simulated,
            why: self.why.clone(),
            skipped: self.is_skipped,
            servers: self.servers.clone(),
        }
    }

    /// Whether it counts against the exit status.
    pub(crate) fn is_missed(&self) -> bool {
        self.met() != Some(true) && !self.is_floor() && !self.is_skipped
    }

    /// Whether the bar is met, in a word.
    pub(crate) fn met_text(&self) -> &'static str {
        match self.met() {
            Some(true) => "yes",
            Some(false) => "NO",
            None if self.is_floor() => "floor",
            None if self.is_skipped => "skipped",
            None => "not measured",
        }
    }

    /// What was measured, how if not on cores alone, and which servers had time left.
    pub(crate) fn what_text(&self) -> String {
        let how = if self.simulated { ", simulated from measured costs" } else { "" };
        let idle = self.servers.iter().filter(|server| !server.saturated);
        let idle: Vec<&str> = idle.map(|server| server.backend.as_str()).collect();
        let idle = match idle.is_empty() {
            true => String::new(),
            false => format!(" (not saturated: {})", idle.join(", ")),
        };
        format!("{}{how}{idle}", self.what)
    }

    /// Whether the median keeps the promise; none if nothing was measured.
    pub(crate) fn met(&self) -> Option<bool> {
        if self.runs.is_empty() {
            return None;
        }
        let median = median(self.runs.iter().copied());
        match self.bound {
            PromisedBound::AtMost(bound) => Some(median <= bound),
            PromisedBound::AtLeast(bound) => Some(median >= bound),
            PromisedBound::Floor => None,
        }
    }

    /// Whether nothing is promised and the number is there to compare with.
    pub(crate) fn is_floor(&self) -> bool {
        self.bound == PromisedBound::Floor && !self.runs.is_empty()
    }

    pub(crate) fn bound_text(&self) -> String {
        let (sign, bound) = match self.bound {
            PromisedBound::AtMost(bound) => ("≤", bound),
            PromisedBound::AtLeast(bound) => ("≥", bound),
            PromisedBound::Floor => return "-".to_owned(),
        };
        format!("{sign} {bound}{}", self.unit)
    }

    pub(crate) fn measured_text(&self) -> String {
        if self.runs.is_empty() {
            return "-".to_owned();
        }
        let (median, digits) = (median(self.runs.iter().copied()), self.digits);
        format!("{median:.digits$}{}", self.unit)
    }

    /// The ratio of the medians, where there is one.
    pub(crate) fn of_medians_text(&self) -> String {
        let digits = self.digits;
        self.of_medians.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.digits$}"))
    }

    /// Interquartile range of the runs.
    pub(crate) fn middle_half_text(&self) -> String {
        self.bounds_text(quartiles)
    }

    pub(crate) fn range_text(&self) -> String {
        self.bounds_text(range)
    }

    fn bounds_text(&self, bounds: fn(Vec<f64>) -> [f64; 2]) -> String {
        if self.runs.is_empty() {
            return "-".to_owned();
        }
        let ([low, high], digits) = (bounds(self.runs.clone()), self.digits);
        format!("{low:.digits$} – {high:.digits$}")
    }
}

#[cfg(test)]
mod tests {
    use super::{BarResult, Promise, PromisedBound};

    fn bar(bound: PromisedBound, runs: &[f64]) -> BarResult {
        let promise = Promise { name: "x", what: "x", bound, unit: " ns", digits: 1 };
        promise.result(runs.to_vec(), None)
    }

    #[test]
    fn the_median_decides() {
        assert_eq!(bar(PromisedBound::AtMost(1.05), &[1.0, 1.04, 9.0]).met(), Some(true));
        assert_eq!(bar(PromisedBound::AtMost(1.05), &[1.0, 1.06, 9.0]).met(), Some(false));
        assert_eq!(bar(PromisedBound::AtLeast(1.5), &[1.4, 1.5, 1.6]).met(), Some(true));
        assert_eq!(bar(PromisedBound::AtLeast(1.5), &[]).met(), None);
    }

    #[test]
    fn failed_promise_is_not_met_with_reason() {
        let promise = Promise::at_most("x", "x", 1.0).with_digits(1);
        let bar = promise.result(Vec::new(), Some("no server".to_owned()));
        assert_eq!((bar.met(), bar.why.as_deref()), (None, Some("no server")));
        assert!(promise.result(Vec::new(), None).why.is_some());
        let bar = promise.result(vec![0.5, 9.0, 0.7], Some("not this".to_owned()));
        assert_eq!((bar.met(), bar.why), (Some(true), None));
        for value in [f64::INFINITY, f64::NAN] {
            let bar = promise.result(vec![0.5, value], None);
            assert!(bar.is_missed() && bar.met_text() == "not measured" && bar.runs.is_empty());
            assert!(bar.why.is_some_and(|why| why.starts_with("run 2 has no finite value")));
        }
        let bar = promise.skipped("no program".to_owned());
        assert_eq!((bar.met(), bar.is_missed(), bar.met_text()), (None, false, "skipped"));
        let bar = promise.outcome(Err("broken"));
        assert!(bar.is_missed() && bar.met_text() == "not measured");
        assert_eq!((bar.met(), bar.why.as_deref()), (None, Some("broken")));
    }

    #[test]
    fn a_floor_promises_nothing_and_is_not_missed() {
        let floor = bar(PromisedBound::Floor, &[0.9]);
        assert_eq!((floor.met(), floor.is_floor()), (None, true));
        assert_eq!((floor.bound_text(), floor.measured_text()), ("-".into(), "0.9 ns".into()));
        assert!(!bar(PromisedBound::Floor, &[]).is_floor(), "it was to be measured");
    }

    #[test]
    fn texts_name_bound_median_and_range() {
        let bar = bar(PromisedBound::AtMost(20.0), &[3.0, 1.0, 2.0]);
        assert_eq!(bar.bound_text(), "≤ 20 ns");
        assert_eq!(bar.measured_text(), "2.0 ns");
        assert_eq!(bar.range_text(), "1.0 – 3.0");
        assert_eq!(bar.middle_half_text(), "1.5 – 2.5");
        assert_eq!(bar.of_medians_text(), "-");
        assert_eq!(BarResult { of_medians: Some(1.04), ..bar }.of_medians_text(), "1.0");
    }
}
