//! Creates and destroys channels.

use std::ffi::c_int;
use std::ptr;

use channel::{Channel, Config, DriverChoice};

use crate::abi::{
    MP_FALL_BACK, MP_LOOPBACK_STACK, MP_NO_LWSOCKETS, MP_NO_PARTITION, mp_backend, mp_config,
    mp_driver, mp_placement,
};
use crate::border::{caught, finish, status};
use crate::calls::{read_sized, write_sized};
use crate::error::{CallError, CallFailure};
use crate::limits::CHANNEL_TAGS;
use crate::network;
use crate::object::{mp_channel, mp_channel_t};

/// Fills a configuration with the defaults. `size` is sizeof(struct mp_config).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_config_init(config: *mut mp_config, size: usize) -> c_int {
    // SAFETY: the program promises `size` writable bytes, or null.
    let result = unsafe { write_sized(config, size, &defaults(size), "config") };
    status("mp_config_init", result)
}

/// Creates a channel for the calling thread. A null `config` means the defaults. Null on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_create(config: *const mp_config) -> *mut mp_channel_t {
    let create = || {
        let record = if config.is_null() {
            defaults(size_of::<mp_config>())
        } else {
            // SAFETY: the program promises a record that begins with its size; it holds only
            // integers and pointers.
            unsafe { read_sized(config, "config") }?
        };
        let config = translate(&record)?;
        // SAFETY: the program promises that the texts are null or end with a NUL.
        let wanted = unsafe { network::wanted(&record) }?;
        let config = match &wanted {
            Some(wanted) if wanted.has_placement() => {
                config.placement(network::placement(&record)?)
            }
            _ => config,
        };
        // A tag may still be in use by an old channel; the next channel has the next tag.
        for _ in 1..CHANNEL_TAGS {
            let channel = match &wanted {
                None => Channel::create(config.clone())?,
                Some(wanted) => network::on_stack(wanted, |backend| {
                    let channel = Channel::create(config.clone().backend(backend))?;
                    network::note_fall_back(channel.report());
                    Ok(channel)
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

/// Destroys a channel. Its handles are invalid, operations in progress are cancelled, lent buffers
/// are invalid; registered descriptors stay open.
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
        unsent_bytes_max: config.unsent_bytes_max as u64,
    }
}

const DRIVERS: &str = "must be MP_DRIVER_AUTO, MP_DRIVER_URING or MP_DRIVER_EPOLL";

pub(crate) fn translate(config: &mp_config) -> Result<Config, CallFailure> {
    let driver = match config.driver {
        driver if driver == mp_driver::MP_DRIVER_AUTO as u32 => DriverChoice::Auto,
        driver if driver == mp_driver::MP_DRIVER_URING as u32 => DriverChoice::Uring,
        driver if driver == mp_driver::MP_DRIVER_EPOLL as u32 => DriverChoice::Epoll,
        other => return Err(CallError::setting("config->driver", other, DRIVERS).into()),
    };
    let known = MP_NO_LWSOCKETS | MP_NO_PARTITION | MP_FALL_BACK | MP_LOOPBACK_STACK;
    if config.flags & !known != 0 {
        let allowed = "must be made of MP_NO_LWSOCKETS, MP_NO_PARTITION, MP_FALL_BACK and \
                       MP_LOOPBACK_STACK";
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
        .unsent_bytes_max(unsent_bytes_max(config))
        .lwsockets(config.flags & MP_NO_LWSOCKETS == 0)
        .partition(config.flags & MP_NO_PARTITION == 0)
        .fall_back(network::falls_back(config)?);
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

/// 0 means the default: a program compiled with an older header has 0.
fn unsent_bytes_max(config: &mp_config) -> usize {
    match config.unsent_bytes_max {
        0 => Config::default().unsent_bytes_max,
        bytes => usize::try_from(bytes).unwrap_or(usize::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_match_those_of_the_channel() {
        let config = defaults(size_of::<mp_config>());
        assert_eq!(translate(&config).unwrap(), Config::default());
    }

    #[test]
    fn each_field_is_translated() {
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
            unsent_bytes_max: 8,
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
            .unsent_bytes_max(8)
            .lwsockets(false)
            .partition(false);
        assert_eq!(translate(&config).unwrap(), expected);
    }

    #[test]
    fn limit_of_zero_means_the_default() {
        let config = mp_config { unsent_bytes_max: 0, ..defaults(size_of::<mp_config>()) };
        assert_eq!(translate(&config).unwrap(), Config::default());
        let config = mp_config { unsent_bytes_max: u64::MAX, ..config };
        assert_eq!(translate(&config).unwrap().unsent_bytes_max, usize::MAX);
    }

    #[test]
    fn out_of_range_values_are_rejected() {
        let good = defaults(size_of::<mp_config>());
        for wrong in [
            mp_config { driver: 3, ..good },
            mp_config { flags: 16, ..good },
            mp_config { reserved: 1, ..good },
            mp_config { buffer_count: 65536, ..good },
            mp_config { core: -2, ..good },
        ] {
            assert_eq!(translate(&wrong).unwrap_err().why().errno(), libc::EINVAL, "{wrong:?}");
        }
    }
}
