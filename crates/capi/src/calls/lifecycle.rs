//! Making and ending a channel.

use std::ffi::c_int;
use std::ptr;

use channel::{Channel, Config, DriverChoice};

use crate::abi::{
    MP_NO_LWSOCKETS, MP_NO_PARTITION, mp_backend, mp_channel_t, mp_config, mp_driver, mp_placement,
};
use crate::border::{caught, finish, status};
use crate::calls::{read_sized, write_sized};
use crate::error::{CallError, Failure};
use crate::limits::CHANNEL_TAGS;
use crate::network;
use crate::object::mp_channel;

/// Fills a configuration with the defaults. `size` is sizeof(struct mp_config).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_config_init(config: *mut mp_config, size: usize) -> c_int {
    // SAFETY: the program promises `size` writable bytes, or null.
    let result = unsafe { write_sized(config, size, &defaults(size), "config") };
    status("mp_config_init", result)
}

/// Makes a channel for the calling thread. A null `config` means the defaults. Null on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_create(config: *const mp_config) -> *mut mp_channel_t {
    let create = || {
        let record = if config.is_null() {
            defaults(size_of::<mp_config>())
        } else {
            // SAFETY: the program promises a record that begins with its size; it holds nothing
            // but integers and pointers.
            unsafe { read_sized(config, "config") }?
        };
        let config = translate(&record)?;
        // SAFETY: the program promises that the texts are null or end with a NUL.
        let wanted = unsafe { network::wanted(&record) }?;
        let config = match &wanted {
            Some(_) => config.placement(network::placement(&record)?),
            None => config,
        };
        // A tag may still belong to a channel made long ago; the next channel has the next tag.
        for _ in 1..CHANNEL_TAGS {
            let channel = match &wanted {
                None => Channel::create(config.clone())?,
                Some(wanted) => network::on(wanted, |backend| {
                    Ok(Channel::create(config.clone().backend(backend))?)
                })?,
            };
            match mp_channel::create(channel) {
                Err(failure) if matches!(failure.why(), CallError::TooManyChannels) => {}
                result => return result,
            }
        }
        Err(CallError::TooManyChannels.into())
    };
    finish("mp_create", caught(create))
}

/// Ends a channel. Its handles are gone, operations under way are cancelled, lent buffers are
/// invalid; descriptors that were registered stay open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_destroy(channel: *mut mp_channel_t) -> c_int {
    // SAFETY: the program promises a channel that it has not destroyed.
    status("mp_destroy", unsafe { mp_channel::destroy(channel) })
}

pub(crate) fn defaults(size: usize) -> mp_config {
    let config = Config::default();
    mp_config {
        size,
        driver: mp_driver::MP_DRIVER_AUTO as u32,
        batch: config.batch,
        submission_entries: config.submission_entries,
        completion_entries: config.completion_entries,
        max_lwsockets: config.max_lwsockets,
        buffer_len: config.buffer_len as u32,
        buffer_count: config.buffer_count.into(),
        core: -1,
        flags: 0,
        reserved: 0,
        backend: mp_backend::MP_BACKEND_DEFAULT as u32,
        mtu: 0,
        link: ptr::null(),
        addresses: ptr::null(),
        gateways: ptr::null(),
        spin_us: 0,
        channels: 0,
        placement: mp_placement::MP_PLACEMENT_DEFAULT as u32,
        server_core: -1,
    }
}

const DRIVERS: &str = "must be MP_DRIVER_AUTO, MP_DRIVER_URING or MP_DRIVER_EPOLL";

pub(crate) fn translate(config: &mp_config) -> Result<Config, Failure> {
    let driver = match config.driver {
        driver if driver == mp_driver::MP_DRIVER_AUTO as u32 => DriverChoice::Auto,
        driver if driver == mp_driver::MP_DRIVER_URING as u32 => DriverChoice::Uring,
        driver if driver == mp_driver::MP_DRIVER_EPOLL as u32 => DriverChoice::Epoll,
        other => return Err(CallError::setting("config->driver", other, DRIVERS).into()),
    };
    if config.flags & !(MP_NO_LWSOCKETS | MP_NO_PARTITION) != 0 {
        let allowed = "must be made of MP_NO_LWSOCKETS and MP_NO_PARTITION";
        return Err(CallError::setting("config->flags", config.flags, allowed).into());
    }
    if config.reserved != 0 {
        let (name, value) = ("config->reserved", config.reserved);
        return Err(CallError::setting(name, value, "must be 0").into());
    }
    let buffer_count = u16::try_from(config.buffer_count).map_err(|_| {
        CallError::setting("config->buffer_count", config.buffer_count, "must be 4 to 32768")
    })?;
    let translated = Config::default()
        .driver(driver)
        .batch(config.batch)
        .submission_entries(config.submission_entries)
        .completion_entries(config.completion_entries)
        .max_lwsockets(config.max_lwsockets)
        .buffer_len(config.buffer_len as usize)
        .buffer_count(buffer_count)
        .lwsockets(config.flags & MP_NO_LWSOCKETS == 0)
        .partition(config.flags & MP_NO_PARTITION == 0);
    match config.core {
        -1 => Ok(translated),
        core => match usize::try_from(core) {
            Ok(core) => Ok(translated.core(core)),
            Err(_) => {
                let allowed = "must be a core's number, or -1";
                Err(CallError::setting("config->core", core, allowed).into())
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_those_of_the_channel() {
        let config = defaults(size_of::<mp_config>());
        assert_eq!(translate(&config).unwrap(), Config::default());
    }

    #[test]
    fn each_field_reaches_the_channel() {
        let config = mp_config {
            driver: mp_driver::MP_DRIVER_EPOLL as u32,
            batch: 1,
            submission_entries: 2,
            completion_entries: 3,
            max_lwsockets: 4,
            buffer_len: 5,
            buffer_count: 6,
            core: 7,
            flags: MP_NO_LWSOCKETS | MP_NO_PARTITION,
            ..defaults(size_of::<mp_config>())
        };
        let expected = Config::default()
            .driver(DriverChoice::Epoll)
            .batch(1)
            .submission_entries(2)
            .completion_entries(3)
            .max_lwsockets(4)
            .buffer_len(5)
            .buffer_count(6)
            .core(7)
            .lwsockets(false)
            .partition(false);
        assert_eq!(translate(&config).unwrap(), expected);
    }

    #[test]
    fn values_that_the_channel_cannot_hold_are_refused() {
        let good = defaults(size_of::<mp_config>());
        for wrong in [
            mp_config { driver: 3, ..good },
            mp_config { flags: 4, ..good },
            mp_config { reserved: 1, ..good },
            mp_config { buffer_count: 65536, ..good },
            mp_config { core: -2, ..good },
        ] {
            assert_eq!(translate(&wrong).unwrap_err().why().errno(), libc::EINVAL, "{wrong:?}");
        }
    }
}
