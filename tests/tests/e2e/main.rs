//! End to end: real clients and servers, in processes of their own wherever the scheme allows it.
//!
//! Each test has a server and a runtime of its own and ends within [`tests::limit::LIMIT`]. Where
//! something must have happened before the test continues, it waits for a mark of the handler or
//! for an outcome, never for time.
//!
//! With feature `verbs` there are also tests over `rdma://`, with `rdma` in their names. Without a
//! device they fail; `tests/e2e_in_lab` runs them on Soft-RoCE.

/// The server program.
const SERVER: &str = env!("CARGO_BIN_EXE_probe_server");
/// The client program.
const CLIENT: &str = env!("CARGO_BIN_EXE_probe_client");

/// Makes a test of each named function, on one scheme.
macro_rules! on_scheme {
    ($module:ident, $scheme:ident, $($name:ident),*) => {
        mod $module {
            $(
                #[test]
                fn $name() {
                    tests::limit::run(super::$name(tests::scheme::Scheme::$scheme));
                }
            )*
        }
    };
}

/// Makes a test of each named function on every scheme between processes.
macro_rules! between_processes {
    ($($name:ident),* $(,)?) => {
        mod between_processes {
            use super::*;

            on_scheme!(shm_name, ShmName, $($name),*);
            on_scheme!(shm_path, ShmPath, $($name),*);
            on_scheme!(tcp, Tcp, $($name),*);
            on_scheme!(auto, Auto, $($name),*);
            #[cfg(feature = "verbs")]
            on_scheme!(rdma, Rdma, $($name),*);
        }
    };
}

/// Makes a test of each named function on every device between processes: for what takes long.
macro_rules! between_devices {
    ($($name:ident),* $(,)?) => {
        mod between_devices {
            use super::*;

            on_scheme!(shm, ShmName, $($name),*);
            on_scheme!(tcp, Tcp, $($name),*);
            #[cfg(feature = "verbs")]
            on_scheme!(rdma, Rdma, $($name),*);
        }
    };
}

/// Makes a test of each named function on every scheme.
macro_rules! on_every_scheme {
    ($($name:ident),* $(,)?) => {
        on_scheme!(mem, Mem, $($name),*);
        on_scheme!(shm_name, ShmName, $($name),*);
        on_scheme!(shm_path, ShmPath, $($name),*);
        on_scheme!(tcp, Tcp, $($name),*);
        on_scheme!(auto, Auto, $($name),*);
        #[cfg(feature = "verbs")]
        on_scheme!(rdma, Rdma, $($name),*);
    };
}

/// Makes a test of each named function on every device: `auto://` resolves to another scheme.
macro_rules! on_every_device {
    ($($name:ident),* $(,)?) => {
        on_scheme!(mem, Mem, $($name),*);
        on_scheme!(shm, ShmName, $($name),*);
        on_scheme!(tcp, Tcp, $($name),*);
        #[cfg(feature = "verbs")]
        on_scheme!(rdma, Rdma, $($name),*);
    };
}

mod bad_config;
mod both_ways;
mod both_ways_hostile;
mod budgets;
mod bulk;
mod calls;
mod cancellation;
mod chains;
mod changed_types;
mod context;
mod crowds;
mod cycles;
mod health;
mod hostile_client;
mod hostile_server;
mod hostile_types;
mod idle;
mod initial_metadata;
mod interceptors;
mod interop;
mod late_writes;
mod locked_memory;
mod metadata;
mod mismatch;
mod open_files;
mod outages;
mod paths;
mod peer_death;
mod places;
mod poll_modes;
mod random_frames;
#[cfg(feature = "verbs")]
mod rdma_only;
mod reflection;
mod rolling_types;
mod runtimes;
mod shutdown;
mod stats;
mod stolen_keys;
mod stop_serving;
mod streams;
