//! Capabilities of io_uring on this kernel: what the probe finds and the driver relies on.

use crate::report::Feature;

/// Which set-up flags work together on this kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TaskWork {
    /// As `Deferred`, and without the array between queue and entries (NO_SQARRAY, Linux 6.6).
    DeferredDirect,
    /// SINGLE_ISSUER, DEFER_TASKRUN, TASKRUN_FLAG (Linux 6.1).
    Deferred,
    /// COOP_TASKRUN, TASKRUN_FLAG (Linux 5.19).
    Cooperative,
    /// None of these.
    Interrupting,
}

/// What works.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Capabilities {
    pub(super) task_work: TaskWork,
    pub(super) direct_accept: bool,
    pub(super) fd_install: bool,
    /// A send can be over when it is submitted, and answered only if not all of it went out.
    pub(super) silent_send: bool,
}

impl Capabilities {
    pub(super) fn features(&self) -> Vec<Feature> {
        let feature = |name, available, consequence| Feature { name, available, consequence };
        let direct = self.task_work == TaskWork::DeferredDirect;
        let deferred = direct || self.task_work == TaskWork::Deferred;
        let quiet = self.task_work != TaskWork::Interrupting;
        vec![
            feature("ring with EXT_ARG", true, "waiting takes a time-out"),
            feature(
                "SINGLE_ISSUER + DEFER_TASKRUN",
                deferred,
                if deferred {
                    "answers are made in batches"
                } else {
                    "answers interrupt the thread"
                },
            ),
            feature(
                "NO_SQARRAY",
                direct,
                if direct { "one indirection less" } else { "one indirection more" },
            ),
            feature(
                "COOP_TASKRUN + TASKRUN_FLAG",
                quiet,
                if quiet { "no interrupts between cores" } else { "interrupts between cores" },
            ),
            feature("multishot receive, buffer ring", true, "one request for a connection's life"),
            feature("cancel by descriptor", true, "unregister ends every request at once"),
            feature(
                "multishot accept, direct",
                self.direct_accept,
                if self.direct_accept {
                    "lwsockets have no file descriptor"
                } else {
                    "lwsockets have a file descriptor"
                },
            ),
            feature(
                "FIXED_FD_INSTALL",
                self.fd_install,
                if self.fd_install {
                    "to_fd works on direct lwsockets"
                } else {
                    "so that to_fd works, lwsockets have a file descriptor"
                },
            ),
            feature(
                "MSG_DONTWAIT with CQE_SKIP_SUCCESS",
                self.silent_send,
                if self.silent_send {
                    "quiet writes cost no answer"
                } else {
                    "quiet writes are answered like others"
                },
            ),
        ]
    }
}
