//! The region and the bells of a session: sizes that both ends agree on, and each end's half.
//!
//! ```text
//!  region | lane 0 | lane 1 | ...           a lane for each shard that the session has
//!
//!  lane   | ring of ops | ring of events | bell of the server | bell of the application |
//!         | receive buffers | small send buffers | large ones | call buffer |
//! ```
//!
//! The bell of the application is in lane 0 alone: all shards ring it, over the sockets of lane 0.
//!
//! The server creates the memfd ([`SessionSizes::create`]) and passes it, with one end of a pair of
//! sockets that carries the bells, to the application ([`SessionSizes::client`]): as values within
//! a process, by SCM_RIGHTS between two (`attach/`). Nothing else is common to the two halves.
//!
//! Read first: `megapipe_shm`'s `region.rs` and `region/parts.rs`; decisions 0010 and 0042.
//!
//! Invariants
//! - Both ends compute every offset from the sizes; none is read from the region.
//! - Sizes that another process sends are checked ([`SessionSizes::check`]) before memory of that
//!   size is allocated or mapped.
//! - Once both ends have mapped the region it is sealed against new writable mappings, so neither
//!   end can punch holes into it ([`RegionSeal`]).

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use megapipe_shm::record::Record;
use megapipe_shm::{
    BufferArea, Consumer, Producer, Region, RegionError, RegionParts, Ringer, Sleeper,
    bell_sockets, seal_region,
};

use super::session_memory::SessionMemory;
use crate::error::RemoteError;
use crate::session_sizes::SessionSizes;
use crate::sleep::SleepingEnd;

/// What the application needs of a session's memory: the memfd, and its ends of the bells.
#[derive(Debug)]
pub struct SessionFds {
    /// The region.
    pub region: OwnedFd,
    /// The application's ends of the sockets that carry the bells, one for each lane.
    pub bells: Vec<OwnedFd>,
}

/// The right to seal a region: at its creator.
#[derive(Debug)]
pub(super) struct RegionSeal(OwnedFd);

impl RegionSeal {
    /// Seals the region against writable mappings other than those that exist, and so against
    /// holes. Call it once both ends have mapped it.
    ///
    /// # Errors
    /// [`RegionError::System`].
    pub(super) fn apply(&self) -> Result<(), RegionError> {
        seal_region(self.0.as_fd())
    }
}

/// The server's ends of what it shares with its application.
pub(crate) struct RingEnds {
    pub(super) ops: Consumer<Record>,
    pub(super) events: Producer<Record>,
    pub(super) sleep: SleepingEnd,
    /// The call buffer.
    pub(super) calls: BufferArea,
}

/// A server's half of a session, or of one lane of it.
pub struct ServerHalf {
    pub(crate) ends: RingEnds,
    pub(crate) memory: SessionMemory,
    /// Of the first lane: the region has one seal.
    pub(super) seal: Option<RegionSeal>,
}

impl ServerHalf {
    /// Seals the region: the application has mapped it.
    ///
    /// # Errors
    /// [`RegionError::System`].
    pub(crate) fn seal(&self) -> Result<(), RegionError> {
        self.seal.as_ref().map_or(Ok(()), RegionSeal::apply)
    }
}

/// The application's half of a lane, without a description of its server.
pub(super) struct ClientHalf {
    pub(super) ops: Producer<Record>,
    pub(super) events: Consumer<Record>,
    pub(super) sleep: SleepingEnd,
    pub(super) buffers: SessionBuffers,
}

/// The buffers of a session, as one end has them mapped.
pub(super) struct SessionBuffers {
    pub(super) receives: BufferArea,
    pub(super) small: BufferArea,
    pub(super) large: BufferArea,
    pub(super) calls: BufferArea,
}

impl SessionSizes {
    fn buffers(&self, parts: &mut RegionParts) -> Result<SessionBuffers, RemoteError> {
        Ok(SessionBuffers {
            receives: BufferArea::new(parts, self.receives())?,
            small: BufferArea::new(parts, self.small())?,
            large: BufferArea::new(parts, self.large())?,
            calls: BufferArea::new(parts, Self::calls())?,
        })
    }

    /// As [`SessionSizes::create_lanes`], of one lane.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn create(&self) -> Result<(ServerHalf, SessionFds), RemoteError> {
        let (mut halves, fds) = self.create_lanes(1)?;
        let half = halves.pop().ok_or(RegionError::Size { bytes: 0 })?;
        Ok((half, fds))
    }

    /// Creates the region and the bells of so many lanes, and maps the servers' half of each. The
    /// rings and some buffers are touched. Children of a fork inherit no mapping.
    ///
    /// # Errors
    /// [`RemoteError`]: a size is out of range, or there is no memory or descriptor.
    pub(crate) fn create_lanes(
        &self,
        lanes: u16,
    ) -> Result<(Vec<ServerHalf>, SessionFds), RemoteError> {
        self.check_lanes(lanes)?;
        let mut region = Region::memfd("megapipe-session", self.bytes_of(lanes))?;
        region.keep_from_children()?;
        (0..lanes).for_each(|it| region.populate(self.lane_offset(it), self.touched_bytes()));
        let (mut seal, fd) = (Some(RegionSeal(copy_of_fd(&region)?)), copy_of_fd(&region)?);
        let mut parts = region.into_parts();
        let (mut halves, mut bells) = (Vec::new(), Vec::new());
        let mut application: Option<Ringer> = None;
        for _ in 0..lanes {
            let (own_bell, bell) = bell_sockets()?;
            let own_bell = Arc::new(own_bell);
            let ops = Consumer::new(&mut parts, self.ops)?;
            let events = Producer::new(&mut parts, self.events)?;
            let sleeper = Sleeper::over_socket(&mut parts, Arc::clone(&own_bell))?;
            let ringer = match &application {
                Some(ringer) => ringer.clone(),
                None => application.insert(Ringer::over_socket(&mut parts, own_bell)?).clone(),
            };
            let SessionBuffers { receives, small, large, calls } = self.buffers(&mut parts)?;
            let memory = SessionMemory::new(receives, small, large);
            let ends = RingEnds { ops, events, sleep: SleepingEnd::new(sleeper, ringer), calls };
            halves.push(ServerHalf { ends, memory, seal: seal.take() });
            bells.push(bell);
        }
        Ok((halves, SessionFds { region: fd, bells }))
    }

    /// Maps the application's half of what the server has created: of each lane. All sleep at the
    /// first one's bell.
    ///
    /// # Errors
    /// [`RemoteError`]: the region is not what was agreed on, or cannot be mapped.
    pub(super) fn client_lanes(&self, fds: SessionFds) -> Result<Vec<ClientHalf>, RemoteError> {
        let lanes = u16::try_from(fds.bells.len()).unwrap_or(u16::MAX);
        self.check_lanes(lanes)?;
        let mut region = Region::from_fd(fds.region, self.bytes_of(lanes))?;
        region.keep_from_children()?;
        let mut parts = region.into_parts();
        let mut halves: Vec<ClientHalf> = Vec::new();
        for bell in fds.bells.into_iter().map(Arc::new) {
            let ops = Producer::new(&mut parts, self.ops)?;
            let events = Consumer::new(&mut parts, self.events)?;
            let ringer = Ringer::over_socket(&mut parts, Arc::clone(&bell))?;
            let sleep = match halves.first() {
                Some(first) => first.sleep.for_lane(ringer),
                None => SleepingEnd::new(Sleeper::over_socket(&mut parts, bell)?, ringer),
            };
            halves.push(ClientHalf { ops, events, sleep, buffers: self.buffers(&mut parts)? });
        }
        Ok(halves)
    }

    /// As [`SessionSizes::client_lanes`], of one lane.
    ///
    /// # Errors
    /// As there.
    pub(super) fn client(&self, fds: SessionFds) -> Result<ClientHalf, RemoteError> {
        let half = self.client_lanes(fds)?.pop();
        half.ok_or_else(|| RegionError::Size { bytes: 0 }.into())
    }
}

fn copy_of_fd(region: &Region) -> Result<OwnedFd, RegionError> {
    let fd = region.fd().ok_or(RegionError::NotMemfd)?;
    fd.try_clone_to_owned().map_err(|error| RegionError::System {
        call: "fcntl(F_DUPFD_CLOEXEC)",
        errno: rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::MFILE),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn region_of_other_size_is_refused() {
        let (_half, fds) = SessionSizes::LEAST.create().expect("memory");
        let other = SessionSizes { receive_buffers: 100, ..SessionSizes::LEAST };
        let refused = other.client(fds).err();
        assert!(
            matches!(refused, Some(RemoteError::Region(RegionError::OtherSize { .. }))),
            "{refused:?}"
        );
    }

    #[test]
    fn sealed_region_refuses_holes_and_writable_mappings() {
        let (half, fds) = SessionSizes::LEAST.create().expect("memory");
        let copy = fds.region.try_clone().expect("a descriptor");
        let client = SessionSizes::LEAST.client(fds).expect("it fits");
        half.seal().expect("Linux 5.1");
        let punch = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        let refused = rustix::fs::fallocate(&copy, punch, 0, 4096);
        assert_eq!(refused, Err(rustix::io::Errno::PERM));
        assert!(Region::from_fd(copy, SessionSizes::LEAST.bytes()).is_err());
        // The mappings that exist work.
        client.buffers.calls.write(0, 0, b"text").expect("in bounds");
        let mut bytes = [0; 4];
        half.ends.calls.read(0, 0, &mut bytes).expect("in bounds");
        assert_eq!(&bytes, b"text");
    }
}
