//! poll(2) and select(2): many descriptors at once, without a set.
//!
//! Read first: poll(2), select(2).

use std::time::Duration;

use crate::attempt::{Attempt, Wait};
use crate::descriptors::Fd;
use crate::error::Error;
use crate::flags::Events;
use crate::foreign_fds::{AnyFd, KernelPoll};
use crate::kernel;
use crate::signal::SignalMask;
use crate::table::{NamedFd, Sockets};

/// One descriptor of a call of `poll`: what is asked for, and what has happened.
#[derive(Debug, Clone, Copy)]
pub struct PollFd<'fd> {
    /// A negative number: to be passed over.
    pub fd: AnyFd<'fd>,
    /// What is asked for.
    pub events: Events,
    /// What has happened.
    pub revents: Events,
}

impl<'fd> PollFd<'fd> {
    /// Asks for some events of a descriptor.
    #[must_use]
    pub fn new(fd: impl Into<AnyFd<'fd>>, events: Events) -> Self {
        Self { fd: fd.into(), events, revents: Events::empty() }
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

/// How long a call of poll(2) or select(2) waits.
#[derive(Debug, Clone, Copy)]
pub(super) struct PollTime {
    /// `None` waits for ever, zero not at all.
    pub(super) timeout: Option<Duration>,
    /// The first attempt of the call.
    pub(super) is_first: bool,
    /// The time is over: the attempt must not ask to wait.
    pub(super) is_over: bool,
}

/// poll(2). `kernels` is the same for all attempts of a call, and empty for the first.
pub(super) fn poll(
    sockets: &mut Sockets,
    fds: &mut [PollFd<'_>],
    kernels: &mut KernelPoll,
    time: PollTime,
) -> Attempt<usize> {
    match try_poll(sockets, fds, kernels, time) {
        Ok(Some(count)) => Attempt::Done(Ok(count)),
        Ok(None) => Attempt::Wait(Wait::on_anything(time.timeout)),
        Err(error) => Attempt::Done(Err(error)),
    }
}

/// How many have events; `None`: none has, and the call waits.
fn try_poll(
    sockets: &mut Sockets,
    fds: &mut [PollFd<'_>],
    kernels: &mut KernelPoll,
    time: PollTime,
) -> Result<Option<usize>, Error> {
    if kernels.is_empty() {
        find_kernels(sockets, fds, kernels)?;
    }
    resume_withheld(sockets, fds);
    if time.is_first {
        // What has arrived is reported, also beside what is ready already; and a program whose poll
        // never waits sends and receives, too.
        sockets.take_in()?;
    }
    let mut looked_again = false;
    loop {
        let count = poll_own(sockets, fds) + kernels.poll()?;
        for (place, events) in kernels.results() {
            fds[place].revents = events;
        }
        if count > 0 || time.is_over {
            return Ok(Some(count));
        }
        if time.timeout != Some(Duration::ZERO) {
            sockets.await_kernels(kernels)?;
            return Ok(None);
        }
        if looked_again {
            return Ok(Some(0));
        }
        looked_again = true;
        sockets.look_out()?;
    }
}

/// The program looks at connections of which nothing was read ahead since a fork.
fn resume_withheld(sockets: &mut Sockets, fds: &[PollFd<'_>]) {
    for entry in fds {
        if let Ok(NamedFd::Object(object)) = sockets.named(entry.fd) {
            sockets.resume_if_withheld(object);
        }
    }
}

fn find_kernels(
    sockets: &Sockets,
    fds: &[PollFd<'_>],
    kernels: &mut KernelPoll,
) -> Result<(), Error> {
    for (place, entry) in fds.iter().enumerate() {
        if let Ok(NamedFd::Process(fd)) = sockets.named(entry.fd) {
            kernels.push(place, fd, entry.events)?;
        }
    }
    Ok(())
}

/// Polls the context's own descriptors. Returns how many of them have events.
fn poll_own(sockets: &Sockets, fds: &mut [PollFd<'_>]) -> usize {
    let mut count = 0;
    for entry in fds {
        let ready = match (entry.fd, sockets.named(entry.fd)) {
            (AnyFd::Own(..0), _) | (_, Ok(NamedFd::Process(_))) => Events::empty(),
            (_, Ok(NamedFd::Object(object))) => sockets.readiness(object),
            (_, Err(_)) => Events::NVAL,
        };
        entry.revents = ready & (entry.events | Events::ALWAYS | Events::NVAL);
        count += usize::from(!entry.revents.is_empty());
    }
    count
}

/// select(2). The sets, for reading, writing and exceptions, hold afterwards what is ready.
pub(super) fn select(
    sockets: &mut Sockets,
    asked: &mut SelectCall,
    sets: &mut [FdSet; 3],
    time: PollTime,
) -> Attempt<usize> {
    match poll(sockets, &mut asked.fds, &mut asked.kernels, time) {
        Attempt::Done(Ok(count)) if asked.has_none() => {
            debug_assert!(count > 0, "there is an entry that is no descriptor");
            return Attempt::Done(Err(Error::BadDescriptor));
        }
        // Something of another kind happened: to an exceptional descriptor an end of file, say.
        Attempt::Done(Ok(1..)) if asked.count() == 0 && !time.is_over => {
            return match sockets.await_kernels(&mut asked.kernels) {
                Ok(()) => Attempt::Wait(Wait::on_anything(time.timeout)),
                Err(error) => Attempt::Done(Err(error)),
            };
        }
        Attempt::Done(Ok(_)) => {}
        other => return other,
    }
    asked.write(sets);
    Attempt::Done(Ok(asked.count()))
}

/// The entries of one call of select(2), as poll(2) has them.
pub(super) struct SelectCall {
    fds: Vec<PollFd<'static>>,
    /// Index of the set that each is in.
    set_of: Vec<usize>,
    kernels: KernelPoll,
}

impl SelectCall {
    /// `sets`: for reading, writing and exceptions.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub(super) fn of(sets: &[FdSet; 3]) -> Result<Self, Error> {
        let count = sets.iter().flatten().map(|bits| bits.count_ones() as usize).sum();
        let (mut fds, mut set_of) = (Vec::new(), Vec::new());
        fds.try_reserve_exact(count).map_err(|_| Error::NoMemory)?;
        set_of.try_reserve_exact(count).map_err(|_| Error::NoMemory)?;
        for (which, set) in sets.iter().enumerate() {
            for fd in members(set) {
                fds.push(PollFd::new(fd, SELECT_BITS[which]));
                set_of.push(which);
            }
        }
        Ok(Self { fds, set_of, kernels: KernelPoll::default() })
    }

    /// One of them is no descriptor.
    fn has_none(&self) -> bool {
        self.fds.iter().any(|entry| entry.revents.contains(Events::NVAL))
    }

    /// Those that are ready for what their set asks: which set, and which descriptor.
    fn ready(&self) -> impl Iterator<Item = (usize, Fd)> {
        self.set_of.iter().zip(&self.fds).filter_map(|(set, entry)| match entry.fd {
            AnyFd::Own(fd) if entry.revents.intersects(SELECT_BITS[*set]) => Some((*set, fd)),
            _ => None,
        })
    }

    fn count(&self) -> usize {
        self.ready().count()
    }

    fn write(&self, sets: &mut [FdSet; 3]) {
        sets.iter_mut().for_each(|set| set.fill(0));
        for (which, fd) in self.ready() {
            sets[which][fd as usize / 64] |= 1 << (fd % 64);
        }
    }
}

/// The descriptors in a set.
fn members(set: &FdSet) -> impl Iterator<Item = Fd> + '_ {
    let bits = |(word, bits): (usize, &u64)| {
        let bits = *bits;
        (0..64).filter(move |bit| bits & (1 << bit) != 0).map(move |bit| (word * 64 + bit) as Fd)
    };
    // Numbers may be high, and sets long and nearly empty.
    set.iter().enumerate().filter(|(_, bits)| **bits != 0).flat_map(bits)
}

/// What poll(2) and select(2) answer when there is nothing: a signal that waits comes first, also
/// where they have not waited. epoll_wait(2) does not look for one then.
pub(super) fn or_interrupted(
    answer: Result<usize, Error>,
    mask: Option<SignalMask>,
) -> Result<usize, Error> {
    match (answer, mask) {
        (Ok(0), Some(mask)) if kernel::has_signal_for(mask) => Err(Error::Interrupted),
        (answer, _) => answer,
    }
}
