//! poll(2) and select(2): many descriptors at once, without a set.
//!
//! Read first: poll(2), select(2).

use std::time::Duration;

use crate::descriptors::Fd;
use crate::error::Error;
use crate::flags::Events;
use crate::process::{AnyFd, KernelPoll, Named};
use crate::sockets::{Attempt, Sockets, Wait};

/// What `poll` asks of one descriptor, and hears.
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

impl Sockets {
    /// `timeout`: `None` waits for ever, zero not at all. `kernels` is the same for all attempts of
    /// a call, and empty for the first.
    pub(crate) fn poll(
        &mut self,
        fds: &mut [PollFd<'_>],
        kernels: &mut KernelPoll,
        time: (Option<Duration>, bool),
    ) -> Attempt<usize> {
        match self.try_poll(fds, kernels, time) {
            Ok(Some(0)) => Attempt::Done(Ok(0)),
            // As in `epoll_wait`: a program whose poll never waits must send and receive, too.
            Ok(Some(count)) => Attempt::Done(self.turn(Some(Duration::ZERO)).map(|()| count)),
            Ok(None) => Attempt::Wait(Wait::on_anything(time.0)),
            Err(error) => Attempt::Done(Err(error)),
        }
    }

    /// How many have something to tell; `None`: none has, and the call waits.
    fn try_poll(
        &mut self,
        fds: &mut [PollFd<'_>],
        kernels: &mut KernelPoll,
        (timeout, is_over): (Option<Duration>, bool),
    ) -> Result<Option<usize>, Error> {
        if kernels.is_empty() {
            self.find_kernels(fds, kernels);
        }
        let mut looked_again = false;
        loop {
            let count = self.ask_all(fds) + kernels.ask(fds)?;
            if count > 0 || is_over {
                return Ok(Some(count));
            }
            if timeout != Some(Duration::ZERO) {
                self.await_kernels(kernels)?;
                return Ok(None);
            }
            if looked_again {
                return Ok(Some(0));
            }
            looked_again = true;
            self.turn_and_look_out()?;
        }
    }

    fn find_kernels(&self, fds: &[PollFd<'_>], kernels: &mut KernelPoll) {
        for (place, entry) in fds.iter().enumerate() {
            if let Ok(Named::Process(fd)) = self.named(entry.fd) {
                kernels.push(place, fd, entry.events);
            }
        }
    }

    /// What the context's own descriptors have to tell; how many of them have something.
    fn ask_all(&self, fds: &mut [PollFd<'_>]) -> usize {
        let mut count = 0;
        for entry in fds {
            let ready = match (entry.fd, self.named(entry.fd)) {
                (AnyFd::Own(..0), _) | (_, Ok(Named::Process(_))) => Events::empty(),
                (_, Ok(Named::Object(object))) => self.readiness(object),
                (_, Err(_)) => Events::NVAL,
            };
            entry.revents = ready & (entry.events | Events::ALWAYS | Events::NVAL);
            count += usize::from(!entry.revents.is_empty());
        }
        count
    }

    /// The sets, for reading, writing and exceptions, hold afterwards what is ready.
    pub(crate) fn select(
        &mut self,
        asked: &mut Selected,
        sets: &mut [FdSet; 3],
        time: (Option<Duration>, bool),
    ) -> Attempt<usize> {
        match self.poll(&mut asked.fds, &mut asked.kernels, time) {
            Attempt::Done(Ok(count)) if asked.has_none() => {
                debug_assert!(count > 0, "there is an entry that is no descriptor");
                return Attempt::Done(Err(Error::BadDescriptor));
            }
            // Something of another kind happened: to an exceptional descriptor an end of file, say.
            Attempt::Done(Ok(1..)) if asked.count() == 0 && !time.1 => {
                return match self.await_kernels(&mut asked.kernels) {
                    Ok(()) => Attempt::Wait(Wait::on_anything(time.0)),
                    Err(error) => Attempt::Done(Err(error)),
                };
            }
            Attempt::Done(Ok(_)) => {}
            other => return other,
        }
        asked.tell(sets);
        Attempt::Done(Ok(asked.count()))
    }
}

/// What one call of select(2) asks, in poll(2)'s words.
pub(crate) struct Selected {
    fds: Vec<PollFd<'static>>,
    /// Which of the three sets each is of.
    whose: Vec<usize>,
    kernels: KernelPoll,
}

impl Selected {
    /// `sets`: for reading, writing and exceptions.
    pub(crate) fn of(sets: &[FdSet; 3]) -> Self {
        let all = sets.iter().enumerate();
        let all = all.flat_map(|(which, set)| members(set).map(move |fd| (which, fd)));
        let (whose, fds) = all.map(|(set, fd)| (set, PollFd::new(fd, SELECT_BITS[set]))).unzip();
        Self { fds, whose, kernels: KernelPoll::default() }
    }

    /// One of them is no descriptor.
    fn has_none(&self) -> bool {
        self.fds.iter().any(|entry| entry.revents.contains(Events::NVAL))
    }

    /// Those that are ready for what their set asks: which set, and which descriptor.
    fn ready(&self) -> impl Iterator<Item = (usize, Fd)> {
        self.whose.iter().zip(&self.fds).filter_map(|(set, entry)| match entry.fd {
            AnyFd::Own(fd) if entry.revents.intersects(SELECT_BITS[*set]) => Some((*set, fd)),
            _ => None,
        })
    }

    fn count(&self) -> usize {
        self.ready().count()
    }

    fn tell(&self, sets: &mut [FdSet; 3]) {
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
