//! poll(2) and select(2): many descriptors at once, without a set.
//!
//! Read first: poll(2), select(2).

use std::time::Duration;

use crate::descriptors::Fd;
use crate::error::Error;
use crate::flags::Events;
use crate::sockets::{Attempt, Sockets, Wait};

/// What `poll` asks of one descriptor, and hears.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PollFd {
    /// Negative: to be passed over.
    pub fd: Fd,
    /// What is asked for.
    pub events: Events,
    /// What has happened.
    pub revents: Events,
}

impl PollFd {
    /// Asks for some events of a descriptor.
    #[must_use]
    pub const fn new(fd: Fd, events: Events) -> Self {
        Self { fd, events, revents: Events::empty() }
    }
}

/// The descriptors of a `select`: bit `n` of the words stands for descriptor `n`, of any number.
pub type FdSet = Vec<u64>;

/// The bits of poll(2) behind the three sets of select(2) (`POLLIN_SET` and its kin in the kernel).
const SELECT_BITS: [Events; 3] = [
    Events::READABLE.union(Events::RDBAND).union(Events::ALWAYS),
    Events::WRITABLE.union(Events::WRBAND).union(Events::ERR),
    Events::PRI,
];

impl Sockets {
    /// `timeout`: `None` waits for ever, zero not at all.
    pub(crate) fn poll(
        &mut self,
        fds: &mut [PollFd],
        (timeout, is_over): (Option<Duration>, bool),
    ) -> Attempt<usize> {
        let mut looked_again = false;
        loop {
            let mut count = 0;
            for entry in fds.iter_mut() {
                entry.revents = match entry.fd {
                    ..0 => Events::empty(),
                    fd => self.readiness_of(fd) & (entry.events | Events::ALWAYS | Events::NVAL),
                };
                count += usize::from(!entry.revents.is_empty());
            }
            if count > 0 || is_over {
                return Attempt::Done(Ok(count));
            }
            if timeout != Some(Duration::ZERO) {
                return Attempt::Wait(Wait::on_anything(timeout));
            }
            if looked_again {
                return Attempt::Done(Ok(0));
            }
            looked_again = true;
            if let Err(error) = self.turn(Some(Duration::ZERO)) {
                return Attempt::Done(Err(error));
            }
        }
    }

    fn readiness_of(&self, fd: Fd) -> Events {
        match self.table.object(fd) {
            Ok(object) => self.readiness(object),
            Err(_) => Events::NVAL,
        }
    }

    /// The sets, for reading, writing and exceptions, hold afterwards what is ready.
    pub(crate) fn select(
        &mut self,
        sets: &mut [FdSet; 3],
        time: (Option<Duration>, bool),
    ) -> Attempt<usize> {
        let mut fds: Vec<PollFd> = Vec::new();
        let mut whose = Vec::new();
        for (which, set) in sets.iter().enumerate() {
            for fd in members(set) {
                fds.push(PollFd::new(fd, SELECT_BITS[which]));
                whose.push(which);
            }
        }
        if fds.iter().any(|entry| self.table.object(entry.fd).is_err()) {
            return Attempt::Done(Err(Error::BadDescriptor));
        }
        let wanted =
            |(which, entry): (&usize, &PollFd)| entry.revents.intersects(SELECT_BITS[*which]);
        match self.poll(&mut fds, time) {
            // Something of another kind happened: to an exceptional descriptor an end of file, say.
            Attempt::Done(Ok(1..)) if !whose.iter().zip(&fds).any(wanted) && !time.1 => {
                return Attempt::Wait(Wait::on_anything(time.0));
            }
            Attempt::Done(Ok(_)) => {}
            other => return other,
        }
        sets.iter_mut().for_each(|set| set.fill(0));
        let mut count = 0;
        for (which, entry) in whose.iter().zip(&fds) {
            if entry.revents.intersects(SELECT_BITS[*which]) {
                sets[*which][entry.fd as usize / 64] |= 1 << (entry.fd % 64);
                count += 1;
            }
        }
        Attempt::Done(Ok(count))
    }
}

/// The descriptors in a set.
fn members(set: &FdSet) -> impl Iterator<Item = Fd> + '_ {
    let bits = |(word, bits): (usize, &u64)| {
        let bits = *bits;
        (0..64).filter(move |bit| bits & (1 << bit) != 0).map(move |bit| (word * 64 + bit) as Fd)
    };
    set.iter().enumerate().flat_map(bits)
}
