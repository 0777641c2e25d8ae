//! One network interface by name: the `ioctl`s of netdevice(7) that drivers need.
//!
//! All of them act in the network namespace of the calling thread.

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::{LinkError, MacAddress};

/// An interface name as the kernel takes it: 1 to 15 bytes, none of `/`, `:`, space.
pub(crate) fn check_name(name: &str) -> Result<(), LinkError> {
    let is_odd = |byte: u8| byte == b'/' || byte == b':' || byte <= b' ' || byte == 0x7f;
    let is_good = !matches!(name, "" | "." | "..")
        && name.len() < libc::IFNAMSIZ
        && !name.bytes().any(is_odd);
    if is_good {
        return Ok(());
    }
    let why = format!("{name:?} is no interface name: 1-15 bytes without space, `/` and `:`");
    Err(LinkError::Setting { setting: "interface", why })
}

/// An `ifreq` with `name` in it and the rest zero.
pub(crate) fn request(name: &str) -> Result<libc::ifreq, LinkError> {
    check_name(name)?;
    // SAFETY: `ifreq` is plain memory (bytes, integers, a pointer that may be null): all zero is
    // a value of it.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    for (into, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *into = byte as libc::c_char;
    }
    Ok(request)
}

/// A request of `ioctl` whose argument points at a `T` that the kernel may write.
///
/// # Safety
/// `code` has to be a request whose argument is a pointer to a `T`, and which keeps no pointer.
pub(crate) unsafe fn ioctl<T>(
    fd: impl AsFd,
    code: libc::Ioctl,
    argument: &mut T,
) -> io::Result<()> {
    let fd = fd.as_fd().as_raw_fd();
    // SAFETY: the caller says that `code` takes a pointer to a `T`; the reference is one, unique
    // and alive for the call.
    let done = unsafe { libc::ioctl(fd, code, std::ptr::from_mut(argument)) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A socket to ask about interfaces through.
#[derive(Debug)]
pub(crate) struct InterfaceQuery {
    socket: OwnedFd,
    name: String,
}

impl InterfaceQuery {
    /// Names an interface; asks nothing yet.
    pub(crate) fn new(name: &str) -> Result<Self, LinkError> {
        check_name(name)?;
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)
            .or_else(|_| socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None))
            .map_err(|source| LinkError::Io { what: "open a socket", source: source.into() })?;
        Ok(Self { socket, name: name.to_owned() })
    }

    fn ask(
        &self,
        code: libc::Ioctl,
        what: &'static str,
        prepare: impl FnOnce(&mut libc::ifreq),
    ) -> Result<libc::ifreq, LinkError> {
        let mut request = request(&self.name)?;
        prepare(&mut request);
        // SAFETY: the codes of this module (`SIOCGIF…`, `SIOCSIF…`) take a pointer to an `ifreq`
        // and read and write that struct only.
        let done = unsafe { ioctl(&self.socket, code, &mut request) };
        match done {
            Ok(()) => Ok(request),
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {
                let why = format!("there is no interface {:?}", self.name);
                Err(LinkError::Setting { setting: "interface", why })
            }
            Err(source) => Err(LinkError::Io { what, source }),
        }
    }

    /// Its number.
    pub(crate) fn index(&self) -> Result<i32, LinkError> {
        let answer = self.ask(libc::SIOCGIFINDEX as _, "ask for an interface's index", |_| ())?;
        // SAFETY: reading a union's field needs that it holds a value of that type: SIOCGIFINDEX
        // wrote the integer, and any bytes are one.
        Ok(unsafe { answer.ifr_ifru.ifru_ifindex })
    }

    /// The largest IP packet in bytes.
    pub(crate) fn mtu(&self) -> Result<usize, LinkError> {
        let answer = self.ask(libc::SIOCGIFMTU as _, "ask for an interface's MTU", |_| ())?;
        // SAFETY: SIOCGIFMTU wrote the integer, and any bytes are one.
        let mtu = unsafe { answer.ifr_ifru.ifru_mtu };
        Ok(usize::try_from(mtu).unwrap_or(0))
    }

    /// Sets the MTU.
    pub(crate) fn set_mtu(&self, mtu: usize) -> Result<(), LinkError> {
        let set = |request: &mut libc::ifreq| {
            request.ifr_ifru.ifru_mtu = i32::try_from(mtu).unwrap_or(i32::MAX);
        };
        self.ask(libc::SIOCSIFMTU as _, "set an interface's MTU", set).map(drop)
    }

    /// Its hardware type (`ARPHRD_…`) and address.
    pub(crate) fn hardware(&self) -> Result<(u16, MacAddress), LinkError> {
        let answer =
            self.ask(libc::SIOCGIFHWADDR as _, "ask for an interface's address", |_| ())?;
        // SAFETY: SIOCGIFHWADDR wrote the socket address; any bytes are one.
        let address = unsafe { answer.ifr_ifru.ifru_hwaddr };
        let mac = std::array::from_fn(|at| address.sa_data[at] as u8);
        Ok((address.sa_family, mac))
    }

    /// Switches it on.
    pub(crate) fn set_up(&self) -> Result<(), LinkError> {
        let answer = self.ask(libc::SIOCGIFFLAGS as _, "ask for an interface's flags", |_| ())?;
        // SAFETY: SIOCGIFFLAGS wrote the flags; any bytes are flags.
        let flags = unsafe { answer.ifr_ifru.ifru_flags };
        let up = libc::IFF_UP as libc::c_short;
        if flags & up != 0 {
            return Ok(());
        }
        let set = |request: &mut libc::ifreq| request.ifr_ifru.ifru_flags = flags | up;
        self.ask(libc::SIOCSIFFLAGS as _, "switch an interface on", set).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_before_the_kernel_sees_them() {
        for name in ["", ".", "..", "a/b", "a b", "a:1", "sixteen-letters-", "tab\t"] {
            assert!(check_name(name).is_err(), "{name:?}");
        }
        for name in ["lo", "fifteen-letters", "eth0.5", "a-b_c"] {
            assert!(check_name(name).is_ok(), "{name:?}");
        }
    }

    #[test]
    fn loopback_is_known_everywhere() {
        let lo = InterfaceQuery::new("lo").expect("a socket");
        assert!(lo.index().expect("an index") > 0);
        assert!(lo.mtu().expect("an MTU") >= 1_500);
        assert_eq!(lo.hardware().expect("a type"), (libc::ARPHRD_LOOPBACK, [0; 6]));
        let absent = InterfaceQuery::new("mp-absent").expect("a socket").mtu();
        assert!(matches!(absent, Err(LinkError::Setting { setting: "interface", .. })));
    }
}
