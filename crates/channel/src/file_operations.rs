//! Operations at offsets of disk files, and fsync.
//!
//! Read first: `operations.rs`, whose invariants hold here as well.

use crate::buffer::Payload;
use crate::channel::Channel;
use crate::driver::Driver;
use crate::error::{Misuse, SubmitError};
use crate::handle::Handle;
use crate::limits;
use crate::operations::{UNOPENED, check_len};
use crate::slot::{FileJob, Kind};

/// Operations at offsets of disk files. `read` and `write` continue where the last one ended.
impl<T> Channel<T> {
    /// Reads up to `len` bytes at an offset of a disk file: [`crate::Event::Read`]. Does not block.
    ///
    /// Operations at offsets complete in any order, and a completion does not name its offset.
    /// Queue one at a time if that matters, or open the file more than once.
    ///
    /// # Errors
    /// [`Misuse`]: a handle that is no open file, a length of 0 or too many bytes.
    /// [`crate::Limit`]: too many operations are queued.
    ///
    /// # Examples
    /// ```
    /// use megapipe::{Channel, Config, Event};
    ///
    /// let mut channel = Channel::create(Config::default())?;
    /// let file = std::fs::File::open("Cargo.toml")?;
    /// let file = channel.register(file.into(), 0, None)?;
    /// channel.read_at(file, 1, 7)?;
    /// let done = channel.dispatch(None)?.expect("there is no time-out");
    /// assert!(matches!(done.event, Event::Read(Ok(data)) if *data == *b"package"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn read_at(&mut self, handle: Handle, offset: u64, len: usize) -> Result<(), SubmitError> {
        check_len(len, limits::READ_LEN_MAX)?;
        self.file_job(handle, "read_at", FileJob::ReadAt { offset, len })
    }

    /// Writes at an offset of a disk file: [`crate::Event::Write`]. Does not block. Completions
    /// come in any order, as for [`Channel::read_at`].
    ///
    /// # Errors
    /// [`Misuse`]: a handle that is no open file, 0 or too many bytes. [`crate::Limit`]: too many
    /// operations are queued.
    ///
    /// # Examples
    /// ```
    /// use megapipe::{Channel, Config, Event};
    ///
    /// # let path = std::env::temp_dir().join(format!("megapipe-write-at-{}", std::process::id()));
    /// let mut channel = Channel::create(Config::default())?;
    /// let file = channel.register(std::fs::File::create(&path)?.into(), 0, None)?;
    /// channel.write_at(file, 4096, "hello")?;
    /// let done = channel.dispatch(None)?.expect("there is no time-out");
    /// assert!(matches!(done.event, Event::Write(Ok(5))));
    /// assert_eq!(std::fs::metadata(&path)?.len(), 4096 + 5);
    /// # std::fs::remove_file(&path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn write_at(
        &mut self,
        handle: Handle,
        offset: u64,
        data: impl Into<Payload>,
    ) -> Result<(), SubmitError> {
        let data = data.into();
        check_len(data.len(), limits::WRITE_LEN_MAX)?;
        self.file_job(handle, "write_at", FileJob::WriteAt { offset, data })
    }

    /// Flushes a file's data to the device: [`crate::Event::Fsync`]. Covers the writes that have
    /// completed, not those in progress. Does not block.
    ///
    /// # Errors
    /// [`Misuse`]: a handle that is no open file. [`crate::Limit`]: too many operations are queued.
    ///
    /// # Examples
    /// ```
    /// use megapipe::{Channel, Config, Event};
    ///
    /// # let path = std::env::temp_dir().join(format!("megapipe-fsync-{}", std::process::id()));
    /// let mut channel = Channel::create(Config::default())?;
    /// let file = channel.register(std::fs::File::create(&path)?.into(), 0, None)?;
    /// channel.write_at(file, 0, "hello")?;
    /// channel.dispatch(None)?;
    /// channel.fsync(file)?;
    /// let done = channel.dispatch(None)?.expect("there is no time-out");
    /// assert!(matches!(done.event, Event::Fsync(Ok(()))));
    /// # std::fs::remove_file(&path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn fsync(&mut self, handle: Handle) -> Result<(), SubmitError> {
        self.file_job(handle, "fsync", FileJob::Fsync)
    }

    fn file_job(
        &mut self,
        handle: Handle,
        call: &'static str,
        job: FileJob,
    ) -> Result<(), SubmitError> {
        self.check_fork()?;
        let index = self.state.find(handle)?;
        self.require(index, call, |kind| kind == Kind::File)?;
        if self.state.slot(index).is_unopened_file() {
            return Err(Misuse::WrongKind { call, kind: UNOPENED }.into());
        }
        self.state.admit()?;
        self.driver.start_job(&mut self.state, index, job);
        Ok(())
    }
}
