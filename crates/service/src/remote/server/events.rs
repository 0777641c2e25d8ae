//! Events: what the stack reports, published as far as there is room.

use megapipe_shm::record::{Completion, Event as Says, Record};
use megapipe_stack::{Event, Instant};

use super::RemoteServer;
use crate::limits::COMPLETIONS_MAX;
use crate::remote::encoding::{encode_event, encode_notice, id_of, record_chunk};

impl RemoteServer {
    /// Puts events into the ring, as far as there is room: the rest stays in the stack. Returns how
    /// many.
    pub(super) fn publish_events(&mut self, now: Instant) -> u32 {
        let before = self.unsignalled;
        while self.has_room()
            && let Some((event, offer)) = self.server.event()
        {
            if let Event::Received { conn, chunk } = event {
                // Nearly all of them.
                self.put(&Completion::received(id_of(conn), record_chunk(chunk)));
                continue;
            }
            let (stack, memory) = self.server.parts();
            match event {
                Event::Acked { conn, .. } => self.deferred.retry(now, conn, (stack, memory)),
                Event::Closed { conn, .. } => self.deferred.drop_of(conn, memory),
                _ => {}
            }
            if let Event::DatagramRefused { .. } = event
                && let Some(notice) = self.server.parts().0.take_notice()
            {
                self.publish(0, encode_notice(&notice));
            }
            let acceptor = offer.map_or(u64::MAX, |offer| offer.acceptor.0);
            if let Some(event) = encode_event(event, self.server.stack()) {
                self.publish(acceptor, event);
            }
        }
        // After the events: buffers that an end has freed are no sign of room.
        while self.has_room() {
            let (_, memory) = self.server.parts();
            let Some(bufs) = memory.take_returned() else { break };
            self.publish(0, Says::Returned { bufs });
        }
        self.ends.events.commit();
        self.unsignalled - before
    }

    #[inline]
    fn has_room(&mut self) -> bool {
        // Half of it is for answers, which are not held back.
        let half = COMPLETIONS_MAX / 2;
        self.ends.events.reserve(half).is_ok_and(|room| room >= half)
    }

    /// There is room: it was seen before (`has_room`, `take_ops`).
    #[inline]
    pub(super) fn put(&mut self, record: &Record) {
        // A ring that the application has broken takes nothing: the next poll ends the session.
        let is_put = self.ends.events.put(record).is_ok();
        self.unsignalled += u32::from(is_put);
    }
}
