//! How much locked memory connections of a configuration need on a NIC, against the limit of this
//! process. The library computes the need; this prints it.

use std::io::{self, Write};

use clap::Args;
use examples::units::{bytes, count};
use rpc_transport::device::{QueueLimits, memlock};
use rpc_transport::engine::locked_need::{
    arena_bytes, channel_bytes, growth_bytes, most_connections, registered_bytes, server_bytes,
};
use rpc_transport::protocol::arena::ArenaConfig;
use rpc_transport::protocol::config::{ConfigError, LinkConfig};

/// The configuration to compute with. Settings have the names of the builders' methods.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Locked memory of a configuration")]
pub(crate) struct Wanted {
    /// Connections of the server
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    connections: u32,
    /// Server::shards; 0: one for each core
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    shards: u16,
    /// LinkConfig::data_credits [default: the library's]
    #[arg(long, value_name = "COUNT")]
    data_credits: Option<u16>,
    /// LinkConfig::shared_receive_queue, where a device has such
    #[arg(long)]
    shared_receive_queue: bool,
    /// LinkConfig::send_queue_slots [default: the library's]
    #[arg(long, value_name = "COUNT")]
    send_queue_slots: Option<u16>,
    /// LinkConfig::receive_buffer_bytes [default: the library's]
    #[arg(long, value_name = "BYTES")]
    receive_buffer_bytes: Option<u32>,
    /// ArenaConfig::max_chunks [default: the library's]
    #[arg(long, value_name = "COUNT")]
    max_chunks: Option<u32>,
    /// ArenaConfig::log2_chunk [default: the library's]
    #[arg(long, value_name = "BITS")]
    log2_chunk: Option<u8>,
}

impl Wanted {
    /// The configuration of each connection.
    ///
    /// # Errors
    /// That of the first setting out of range.
    pub(crate) fn config(&self) -> Result<LinkConfig, ConfigError> {
        let (mut config, mut arena) = (LinkConfig::default(), ArenaConfig::default());
        if let Some(credits) = self.data_credits {
            config = config.data_credits(credits);
        }
        config = config.shared_receive_queue(self.shared_receive_queue);
        if let Some(slots) = self.send_queue_slots {
            config = config.send_queue_slots(slots);
        }
        if let Some(bytes) = self.receive_buffer_bytes {
            config = config.receive_buffer_bytes(bytes);
        }
        if let Some(chunks) = self.max_chunks {
            arena = arena.max_chunks(chunks);
        }
        if let Some(log2) = self.log2_chunk {
            arena = arena.log2_chunk(log2);
        }
        let config = config.arena(arena);
        config.validate().map(|()| config)
    }
}

/// A device to compute for.
pub(crate) struct Nic {
    pub(crate) name: String,
    pub(crate) limits: QueueLimits,
}

/// A device without limits.
pub(crate) fn any_nic() -> Nic {
    Nic { name: "a NIC".to_owned(), limits: QueueLimits::UNLIMITED }
}

/// Prints the need on each of these devices, and how to raise a limit that is too low.
pub(crate) fn print(
    wanted: &Wanted,
    config: &LinkConfig,
    nics: &[Nic],
    limit: Option<u64>,
    out: &mut impl Write,
) -> io::Result<()> {
    let shards = match wanted.shards {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        count => count.into(),
    };
    let connections = wanted.connections;
    let number = u64::from(connections);
    let noun = if connections == 1 { "connection" } else { "connections" };
    let (mut most_needed, mut busy) = (0, 0);
    for Nic { name, limits } in nics {
        let need = server_bytes(config, connections, shards, *limits);
        busy = busy.max(growth_bytes(config, *limits) * number);
        most_needed = most_needed.max(need);
        write!(
            out,
            "  a server with {} {noun} on {name}: {} ({} registered; the rest is for queues, which \
             some devices do not count)",
            count(number),
            bytes(need),
            bytes(registered_bytes(config) * number),
        )?;
        match limit {
            None => writeln!(out)?,
            Some(limit) => {
                let most = most_connections(config, shards, *limits, limit);
                let most = if most == 0 { "none".to_owned() } else { count(most.into()) };
                writeln!(out, "; the limit allows {most}")?;
            }
        }
    }
    writeln!(out, "  if all are busy, for their receive windows: up to {} more", bytes(busy))?;
    writeln!(
        out,
        "  while large payloads arrive, for arenas: up to {} more; with less they are slower",
        bytes(arena_bytes(config) * number)
    )?;
    writeln!(out, "  a channel: {} per connection", bytes(channel_bytes(config)))?;
    match limit {
        None => {
            writeln!(out, "  the limit: none for this process; for a process with a limit, set")?
        }
        Some(limit) if limit >= most_needed + busy => {
            return writeln!(out, "  the limit: {}, enough without arenas", bytes(limit));
        }
        Some(limit) => {
            let when = if limit < most_needed { "" } else { " if all are busy" };
            writeln!(out, "  the limit: {}, too low{when}; set", bytes(limit))?;
        }
    }
    for (place, line) in memlock::lines(most_needed + busy) {
        writeln!(out, "    {place:<12}{line}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use rpc_transport::device::fault::{BNXT_RE, IRDMA, MANA, MLX5};

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        wanted: Wanted,
    }

    fn wanted(line: &str) -> Wanted {
        Line::try_parse_from(line.split(' ')).unwrap().wanted
    }

    fn printed(line: &str, nics: &[Nic], limit: Option<u64>) -> String {
        let wanted = wanted(line);
        let mut text = Vec::new();
        print(&wanted, &wanted.config().unwrap(), nics, limit, &mut text).unwrap();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn a_limit_that_allows_no_connection_says_so() {
        let text = printed("doctor", &[any_nic()], Some(65536));
        assert!(text.contains("; the limit allows none\n"), "{text}");
    }

    #[test]
    fn the_largest_configuration_can_be_reckoned() {
        let line = "doctor --connections 1000000 --shards 65535 --data-credits 4000 --receive-buffer-bytes 16777216 \
                    --max-chunks 65536 --log2-chunk 26";
        let limits = QueueLimits { max_cqe: 1, max_srq_wr: 0 };
        let small = Nic { name: "small".to_owned(), limits };
        let text = printed(line, &[any_nic(), small], Some(8 << 20));
        assert!(text.contains("1,000,000 connections on small"), "{text}");
        assert!(Line::try_parse_from(["doctor", "--connections", "1000001"]).is_err());
    }

    #[test]
    fn too_low_limit_shows_lines_that_raise_it() {
        let text = printed("doctor --connections 100", &[any_nic()], Some(8 << 20));
        let config = LinkConfig::default();
        let need = server_bytes(&config, 100, 1, QueueLimits::UNLIMITED);
        let most = most_connections(&config, 1, QueueLimits::UNLIMITED, 8 << 20);
        for part in [
            format!("100 connections on a NIC: {} (", bytes(need)),
            format!("; the limit allows {most}\n"),
            "the limit: 8.0 MiB, too low; set\n".to_owned(),
        ] {
            assert!(text.contains(&part), "{part} is missing in:\n{text}");
        }
        // The library's lines, for idle and busy connections together.
        for (place, line) in
            memlock::lines(need + 100 * growth_bytes(&config, QueueLimits::UNLIMITED))
        {
            assert!(text.contains(&format!("    {place:<12}{line}\n")), "{line}:\n{text}");
        }
        assert!((1..100).contains(&most), "{most}");
    }

    #[test]
    fn limit_between_idle_and_busy_is_reported() {
        let config = LinkConfig::default();
        let idle = server_bytes(&config, 1, 1, QueueLimits::UNLIMITED);
        let between = printed("doctor", &[any_nic()], Some(idle));
        assert!(between.contains("too low if all are busy"), "{between}");
        let enough = printed(
            "doctor",
            &[any_nic()],
            Some(idle + growth_bytes(&config, QueueLimits::UNLIMITED)),
        );
        assert!(!enough.contains("too low") && !enough.contains("memlock"), "{enough}");
        // A user who runs it as root writes the line for another user.
        let root = printed("doctor", &[any_nic()], None);
        assert!(root.contains("none for this process") && root.contains("LimitMEMLOCK="), "{root}");
    }

    #[test]
    fn settings_apply_and_invalid_ones_fail() {
        let line = "doctor --connections 50 --shards 2 --data-credits 8 --shared-receive-queue --send-queue-slots 20 \
                    --receive-buffer-bytes 4096 --max-chunks 10 --log2-chunk 20";
        let config = LinkConfig::default()
            .data_credits(8)
            .shared_receive_queue(true)
            .send_queue_slots(20)
            .receive_buffer_bytes(4096)
            .arena(ArenaConfig::default().max_chunks(10).log2_chunk(20));
        assert_eq!(wanted(line).config().unwrap(), config);
        // One of them cannot share receives, whatever is asked for.
        let nics = [&MLX5, &BNXT_RE, &IRDMA, &MANA].map(|profile| Nic {
            name: profile.driver.to_owned(),
            limits: QueueLimits { max_cqe: profile.max_cqe, max_srq_wr: profile.max_srq_wr },
        });
        let text = printed(line, &nics, None);
        for nic in &nics {
            let need = bytes(server_bytes(&config, 50, 2, nic.limits));
            let part = format!("50 connections on {}: {need} (", nic.name);
            assert!(text.contains(&part), "{part}:\n{text}");
        }
        // 50 times 10 chunks of 1 MiB.
        assert!(text.contains("arenas: up to 500.0 MiB more"), "{text}");
        let error = wanted("doctor --data-credits 0").config().unwrap_err().to_string();
        assert!(error.contains("data_credits is 0"), "{error}");
    }
}
