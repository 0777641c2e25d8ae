//! A stack that cannot start: its sockets fail with ENETDOWN, and the program's other descriptors
//! go on.

use super::{library, preloaded, run};

/// Waits for a listener of the stack and a pipe, by each call that waits. Argument: a port.
const PROGRAM: &str = "\
import errno, os, select, socket, sys
server = socket.create_server(('10.9.8.1', int(sys.argv[1])))
server.setblocking(False)
reader, writer = os.pipe()
epoll, poll = select.epoll(), select.poll()
for one, events in (epoll, select.EPOLLIN), (poll, select.POLLIN):
    one.register(server, events)
    one.register(reader, events)
def fails(call, *arguments):
    try:
        raise SystemExit('%s' % call(*arguments))
    except OSError as error:
        assert error.errno == errno.ENETDOWN, error
fails(epoll.poll, 0)
for is_ready in (False, True, False, True):
    if is_ready: os.write(writer, b'x')
    expected = [reader] if is_ready else []
    seconds = 20 if is_ready else 0.02
    assert [fd for fd, _ in epoll.poll(seconds)] == expected
    assert [fd for fd, _ in poll.poll(seconds * 1000)] == expected
    assert select.select([server, reader], [], [], seconds)[0] == expected
    if is_ready: os.read(reader, 1)
    epoll.modify(server, select.EPOLLIN | select.EPOLLOUT if is_ready else select.EPOLLIN)
fails(server.accept)
fails(socket.create_connection, ('10.9.8.2', 80), 20)
print('all is well')
";

#[test]
fn sockets_of_a_stack_that_is_down_leave_others_alone() {
    let test = "sockets_of_a_stack_that_is_down_leave_others_alone";
    let Some(library) = library(test, &["python3"]) else { return };
    let mut program = preloaded("python3", &library, "local");
    let link = "memif:/nonexistent/memif.sock,role=server";
    program.env("MEGAPIPE_LINK", link).env("MEGAPIPE_ADDRESS", "10.9.8.1/24");
    let (status, text) = run(program.args(["-c", PROGRAM, "8080"]));
    assert!(status.success() && text.contains("all is well"), "{status}: {text}");
    assert_eq!(text.matches("its sockets fail with ENETDOWN").count(), 1, "{text}");
}
