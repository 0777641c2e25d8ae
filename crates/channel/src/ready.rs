//! Completions on their way to the program, oldest first.
//!
//! Nearly all completions are "these bytes arrived" and "so many bytes went out". They are kept as
//! three words each and become a `Completion` only when they are handed out; a full one is
//! eight words, and moving it about costs more than making it. The rest is kept whole, in a
//! queue of its own that keeps the same order.
//!
//! Invariants
//! - `others` holds one event for each entry of kind `Other`, in the same order.
//! - A `Held` buffer in an entry is adopted when the entry is taken, and never twice.

use std::collections::VecDeque;
use std::rc::Rc;

use crate::buffer::ReadBuf;
use crate::completion::Event;
use crate::handle::Handle;
use crate::kernel::pool::{Held, Pool};

struct Entry {
    handle: Handle,
    slot: u32,
    what: What,
}

enum What {
    Read { buffer: Held, len: u32 },
    Written { len: u32 },
    Other,
}

const _: () = assert!(size_of::<Entry>() == 24);

/// The queue.
#[derive(Default)]
pub(crate) struct Ready {
    entries: VecDeque<Entry>,
    others: VecDeque<Event>,
}

impl Ready {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The first `len` bytes of a receive buffer arrived.
    #[inline(always)]
    pub(crate) fn push_read(&mut self, handle: Handle, slot: u32, buffer: Held, len: u32) {
        self.entries.push_back(Entry { handle, slot, what: What::Read { buffer, len } });
    }

    /// A write of `len` bytes is done.
    #[inline(always)]
    pub(crate) fn push_written(&mut self, handle: Handle, slot: u32, len: u32) {
        self.entries.push_back(Entry { handle, slot, what: What::Written { len } });
    }

    /// Anything.
    pub(crate) fn push(&mut self, handle: Handle, slot: u32, event: Event) {
        self.others.push_back(event);
        self.entries.push_back(Entry { handle, slot, what: What::Other });
    }

    /// The oldest completion: whose it is, by handle and by slot, and what happened. `pool` is
    /// the one that held buffers come from.
    #[inline(always)]
    pub(crate) fn pop(&mut self, pool: &Rc<Pool>) -> Option<(Handle, u32, Event)> {
        let Entry { handle, slot, what } = self.entries.pop_front()?;
        let event = match what {
            What::Read { buffer, len } => {
                Event::Read(Ok(ReadBuf::from_pool(pool.adopt(buffer), len as usize)))
            }
            What::Written { len } => Event::Write(Ok(len as usize)),
            What::Other => self.others.pop_front()?,
        };
        Some((handle, slot, event))
    }

    /// Removes those of a handle's completions that `wanted` takes apart.
    pub(crate) fn take<T>(
        &mut self,
        of: Handle,
        pool: &Rc<Pool>,
        wanted: impl Fn(Event) -> Result<T, Event>,
    ) -> Vec<T> {
        let mut taken = Vec::new();
        for _ in 0..self.entries.len() {
            let Some((handle, slot, event)) = self.pop(pool) else { break };
            match if handle == of { wanted(event) } else { Err(event) } {
                Ok(found) => taken.push(found),
                Err(event) => self.push(handle, slot, event),
            }
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completions_come_out_in_order_whatever_their_kind() {
        let pool = Pool::new(64, 4).unwrap();
        pool.lend_free(|_, _| {});
        let handles = [1, 2, 3, 4].map(Handle::from_bits);
        let mut ready = Ready::default();
        ready.push_written(handles[0], 10, 7);
        ready.push(handles[1], 11, Event::Wake);
        ready.push_read(handles[2], 12, pool.hold(3).unwrap(), 5);
        ready.push(handles[3], 13, Event::Timer { expirations: 2 });
        let taken = ready.take(handles[1], &pool, |event| match event {
            Event::Wake => Ok(()),
            other => Err(other),
        });
        assert_eq!(taken.len(), 1);
        assert!(matches!(ready.pop(&pool), Some((_, 10, Event::Write(Ok(7))))));
        let Some((_, 12, Event::Read(Ok(bytes)))) = ready.pop(&pool) else { panic!() };
        assert_eq!((bytes.len(), pool.free_count()), (5, 0));
        drop(bytes);
        assert_eq!(pool.free_count(), 1);
        assert!(matches!(ready.pop(&pool), Some((_, 13, Event::Timer { expirations: 2 }))));
        assert!(ready.is_empty() && ready.pop(&pool).is_none());
    }
}
