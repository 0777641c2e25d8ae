//! The epoll driver.

use std::os::fd::OwnedFd;

use crate::error::CreateError;
use crate::kernel::uring::Uring;
use crate::report::DriverReport;
use crate::state::State;

pub(crate) struct Epoll;

impl Epoll {
    pub(crate) fn create(
        _state: &mut State,
        _wake: &OwnedFd,
    ) -> Result<(Uring, DriverReport), CreateError> {
        let reason = "not built yet".to_owned();
        Err(CreateError::DriverUnavailable { driver: "epoll", reason })
    }
}
