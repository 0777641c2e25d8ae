//! Assigns channels to processors, and connections to channels by CPU masks.
//!
//! Pure: the processors that this process may use come in as an argument. MegaPipe partitions a
//! listener by core [MegaPipe 3.4.1]: a channel takes the connections whose packets its own core
//! handles. Every processor must belong to some channel, or its connections would have no
//! listener; processors without a channel are assigned to the channels in turn.
//!
//! Invariants
//! - Masks are disjoint, and together they hold every processor that is online.
//! - A channel's own processor is in its mask.

use std::fmt;
use std::str::FromStr;

/// A list of processors as `0,2-5` writes it: in that order, without repetition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuList(Vec<usize>);

/// The highest processor number that a list may name, as in the channel's masks.
const CPU_MAX: usize = 1023;

/// What is wrong with a list of processors.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CpuListError {
    /// A part is neither a number nor a range of numbers.
    #[error("`{0}` is neither a processor number nor a range like 2-5")]
    NotANumber(String),
    /// A processor number that no mask can hold.
    #[error("processor {0} is beyond {CPU_MAX}, the highest that a mask can hold")]
    TooHigh(usize),
    /// A range that ends before it begins.
    #[error("the range {0}-{1} ends before it begins")]
    Backwards(usize, usize),
    /// A processor that stands in the list twice.
    #[error("processor {0} stands in the list twice")]
    Repeated(usize),
}

impl CpuList {
    /// The processors, in the order in which channels get them.
    #[must_use]
    pub fn as_slice(&self) -> &[usize] {
        &self.0
    }
}

impl From<Vec<usize>> for CpuList {
    fn from(cpus: Vec<usize>) -> Self {
        Self(cpus)
    }
}

impl FromStr for CpuList {
    type Err = CpuListError;

    fn from_str(text: &str) -> Result<Self, CpuListError> {
        let mut list = Vec::new();
        for part in text.split(',') {
            let number = |digits: &str| {
                let number = digits.trim().parse::<usize>();
                number.map_err(|_| CpuListError::NotANumber(part.trim().to_owned()))
            };
            let (first, last) = match part.split_once('-') {
                Some((first, last)) => (number(first)?, number(last)?),
                None => (number(part)?, number(part)?),
            };
            if last > CPU_MAX {
                return Err(CpuListError::TooHigh(last));
            }
            if first > last {
                return Err(CpuListError::Backwards(first, last));
            }
            for cpu in first..=last {
                if list.contains(&cpu) {
                    return Err(CpuListError::Repeated(cpu));
                }
                list.push(cpu);
            }
        }
        Ok(Self(list))
    }
}

impl fmt::Display for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0.as_slice();
        while let Some((&first, _)) = rest.split_first() {
            let run = rest.iter().zip(first..).take_while(|&(&cpu, expected)| cpu == expected);
            let run_len = run.count();
            let comma = if rest.len() == self.0.len() { "" } else { "," };
            match run_len {
                1 => write!(f, "{comma}{first}")?,
                _ => write!(f, "{comma}{first}-{}", first + run_len - 1)?,
            }
            rest = &rest[run_len..];
        }
        Ok(())
    }
}

/// The processor of each channel: `wanted` in order, from the start again if there are more
/// channels than processors.
pub(crate) fn place(channels: usize, wanted: &[usize]) -> Vec<Option<usize>> {
    (0..channels).map(|index| wanted.get(index % wanted.len().max(1)).copied()).collect()
}

/// The processors whose connections each channel takes, for channels placed on `cores` of a
/// machine with the processors `online`. None where two channels share a processor: then nothing
/// tells their connections apart, and the kernel spreads them by their addresses.
pub(crate) fn partition(cores: &[usize], online: &[usize]) -> Option<Vec<Vec<usize>>> {
    let shared = cores.iter().enumerate().any(|(index, core)| cores[..index].contains(core));
    if shared || cores.is_empty() {
        return None;
    }
    let mut masks: Vec<Vec<usize>> = cores.iter().map(|&core| vec![core]).collect();
    let without_channel = online.iter().filter(|cpu| !cores.contains(cpu));
    for (number, &cpu) in without_channel.enumerate() {
        masks[number % cores.len()].push(cpu);
    }
    Some(masks)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> Result<Vec<usize>, CpuListError> {
        text.parse::<CpuList>().map(|list| list.as_slice().to_vec())
    }

    #[test]
    fn lists_are_read_in_order() {
        assert_eq!(list("3"), Ok(vec![3]));
        assert_eq!(list("4,0-2, 7"), Ok(vec![4, 0, 1, 2, 7]));
    }

    #[test]
    fn bad_lists_say_what_is_wrong() {
        assert_eq!(list(""), Err(CpuListError::NotANumber(String::new())));
        assert_eq!(list("1,x"), Err(CpuListError::NotANumber("x".into())));
        assert_eq!(list("1-"), Err(CpuListError::NotANumber("1-".into())));
        assert_eq!(list("3-1"), Err(CpuListError::Backwards(3, 1)));
        assert_eq!(list("0-1,1"), Err(CpuListError::Repeated(1)));
        assert_eq!(list("0-4096"), Err(CpuListError::TooHigh(4096)));
    }

    #[test]
    fn a_list_prints_as_it_is_read() {
        for text in ["0", "0-3", "5,0-1,7", "2,1,0"] {
            assert_eq!(text.parse::<CpuList>().map(|list| list.to_string()), Ok(text.into()));
        }
    }

    #[test]
    fn channels_take_processors_in_turn() {
        assert_eq!(place(3, &[4, 5]), [Some(4), Some(5), Some(4)]);
        assert_eq!(place(2, &[]), [None, None]);
    }

    #[test]
    fn masks_are_disjoint_and_cover_the_machine() {
        assert_eq!(partition(&[0, 1], &[0, 1]), Some(vec![vec![0], vec![1]]));
        assert_eq!(partition(&[1, 3], &[0, 1, 2, 3, 4]), Some(vec![vec![1, 0, 4], vec![3, 2]]));
        for channels in 1..=8 {
            let cores: Vec<usize> = (0..channels).collect();
            let online: Vec<usize> = (0..8).collect();
            let mut all = partition(&cores, &online).map(|masks| masks.concat());
            if let Some(all) = &mut all {
                all.sort_unstable();
            }
            assert_eq!(all, Some(online));
        }
    }

    #[test]
    fn channels_that_share_a_processor_are_not_partitioned() {
        assert_eq!(partition(&[0, 1, 0], &[0, 1]), None);
        assert_eq!(partition(&[], &[0, 1]), None);
    }
}
