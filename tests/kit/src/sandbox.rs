//! System calls that are refused to a thread, as sandboxes do (`seccomp(2)`).
#![allow(unsafe_code, reason = "prctl with a filter")]

/// The calls that tests refuse, by their names in manual pages.
const CALLS: [(&str, libc::c_long); 18] = [
    ("accept4", libc::SYS_accept4),
    ("fcntl", libc::SYS_fcntl),
    ("flock", libc::SYS_flock),
    ("fstat", libc::SYS_fstat),
    ("ftruncate", libc::SYS_ftruncate),
    ("getsockopt", libc::SYS_getsockopt),
    ("ioctl", libc::SYS_ioctl),
    ("madvise", libc::SYS_madvise),
    ("memfd_create", libc::SYS_memfd_create),
    ("munmap", libc::SYS_munmap),
    ("prlimit64", libc::SYS_prlimit64),
    ("readv", libc::SYS_readv),
    ("recvmmsg", libc::SYS_recvmmsg),
    ("recvmsg", libc::SYS_recvmsg),
    ("sched_getaffinity", libc::SYS_sched_getaffinity),
    ("sched_yield", libc::SYS_sched_yield),
    ("sendmsg", libc::SYS_sendmsg),
    ("setsockopt", libc::SYS_setsockopt),
];

/// Refuses a system call to this thread and the threads that it starts, permanently: it fails with
/// `errno`. Of `fcntl`, which every runtime needs, only seals are refused.
///
/// # Panics
/// For a call that is not in this module's list, and if the kernel accepts no filter.
pub fn refuse(call: &str, errno: i32) {
    let number = CALLS.iter().find(|(name, _)| *name == call).expect("a known call").1;
    let statement = |code: u32, k: u32, jump_if_not: u8| libc::sock_filter {
        code: u16::try_from(code).expect("a code"),
        jt: 0,
        jf: jump_if_not,
        k,
    };
    let number = u32::try_from(number).expect("a number");
    let errno = libc::SECCOMP_RET_ERRNO | errno.cast_unsigned();
    let seals = libc::F_ADD_SEALS.cast_unsigned();
    let equals = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let word = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    // The filter's input: the call's number is the first word, its second argument starts at 24.
    let mut filter = vec![statement(word, 0, 0)];
    if call == "fcntl" {
        filter.extend([
            statement(equals, number, 3),
            statement(word, 24, 0),
            statement(equals, seals, 1),
        ]);
    } else {
        filter.push(statement(equals, number, 1));
    }
    filter.extend([
        statement(libc::BPF_RET | libc::BPF_K, errno, 0),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0),
    ]);
    let len = u16::try_from(filter.len()).expect("a few");
    let program = libc::sock_fprog { len, filter: filter.as_mut_ptr() };
    // SAFETY: only this thread's privileges are reduced.
    let reduced = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    assert_eq!(reduced, 0, "{}", std::io::Error::last_os_error());
    // SAFETY: `program` names the statements, which the kernel copies.
    let filtered =
        unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
    assert_eq!(filtered, 0, "{}", std::io::Error::last_os_error());
}
