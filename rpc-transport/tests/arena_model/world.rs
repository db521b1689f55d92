//! The world: an owner, a writer, the wires between them, and the contents of every chunk.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::ops::Range;
use std::time::{Duration, Instant};

use rpc_transport::protocol::arena::{
    Advertisement, Allocation, ArenaConfig, ArenaError, ArenaOwner, ArenaWrite, ArenaWriter,
    Extent, Extents, Landed,
};

use super::random::Random;

const CHUNK_BYTES: u64 = 4096;

/// A message, or a part of one: its tag and its range of bytes.
type Content = (u64, Range<u64>);

enum ToOwner {
    Message {
        writes: Vec<(ArenaWrite, Content)>,
        extents: Extents,
        content: Content,
    },
    /// A part that was sent without the arena.
    Eager(Content),
    Starved,
    GivenUp(u16),
}

enum ToWriter {
    Advertise(Advertisement),
    AskBack(u16),
    Releases(Extents),
}

/// How often the interesting cases occurred.
#[derive(Default, Clone)]
pub(crate) struct Seen {
    parts: u64,
    scattered: u64,
    starved: u64,
    eager: u64,
    grown: u64,
    given_up: u64,
    copied: u64,
    lent: u64,
    wrong_extents: u64,
    wrong_releases: u64,
}

impl Seen {
    fn all(&mut self) -> [(&'static str, &mut u64); 10] {
        [
            ("parts", &mut self.parts),
            ("scattered", &mut self.scattered),
            ("starved", &mut self.starved),
            ("eager", &mut self.eager),
            ("grown", &mut self.grown),
            ("given up", &mut self.given_up),
            ("copied", &mut self.copied),
            ("lent", &mut self.lent),
            ("wrong extents", &mut self.wrong_extents),
            ("wrong releases", &mut self.wrong_releases),
        ]
    }

    pub(crate) fn add(&mut self, other: &Self) {
        let mut more = other.clone();
        let more = more.all().map(|(_, count)| *count);
        for ((_, count), more) in self.all().into_iter().zip(more) {
            *count += more;
        }
    }

    /// A run proves nothing if they did not occur.
    pub(crate) fn check(&mut self) {
        for (name, count) in self.all() {
            assert!(*count > 100, "{name} occurred {count} times");
        }
    }
}

pub(crate) struct World {
    now: Instant,
    config: ArenaConfig,
    owner: ArenaOwner,
    writer: ArenaWriter,
    to_owner: VecDeque<ToOwner>,
    to_writer: VecDeque<ToWriter>,
    /// Arenas that the owner has not deregistered, by rkey, with the contents of their chunks.
    memory: HashMap<u32, (Advertisement, HashMap<u64, Content>)>,
    /// Messages to send: tag, length, bytes sent.
    queue: VecDeque<(u64, u64, u64)>,
    /// Bytes delivered by tag, and the message's length.
    delivered: HashMap<u64, (u64, u64)>,
    next_tag: u64,
    next_rkey: u32,
    allocated: Vec<Allocation>,
    /// Messages that the application holds.
    lent: Vec<(Landed, Content)>,
    /// Chunks that hold a message, or whose release has not left yet, as the owner must see it.
    busy: BTreeSet<u32>,
    /// Chunks that the writer must see as announced.
    announced: BTreeSet<u32>,
    /// Arenas as the writer must see them, by first chunk.
    known: Vec<Advertisement>,
    /// Arenas that were recalled from the writer and not given up yet.
    retiring: BTreeSet<u16>,
    pub(crate) seen: Seen,
}

fn chunks_of(extent: Extent) -> Range<u32> {
    u32::from(extent.first)..u32::from(extent.first) + u32::from(extent.count)
}

fn chunks(extents: &[Extent]) -> impl Iterator<Item = u32> + '_ {
    extents.iter().flat_map(|extent| chunks_of(*extent))
}

fn extent_of(arena: &Advertisement) -> Extent {
    Extent { first: arena.first_chunk, count: arena.chunks }
}

impl World {
    pub(crate) fn new(random: &mut Random) -> Self {
        let now = Instant::now();
        let arena_chunks = random.pick(&[1, 2, 3, 7, 8, 40, 64]);
        let config = ArenaConfig::default()
            .log2_chunk(12)
            .arena_chunks(arena_chunks)
            .max_chunks(u32::from(arena_chunks) * random.pick(&[1, 2, 3, 5]))
            .keep_chunks(random.pick(&[0, 0, u32::from(arena_chunks)]))
            .idle(Duration::from_secs(10));
        config.validate().expect("valid");
        Self {
            now,
            owner: ArenaOwner::new(config.clone(), now),
            config,
            writer: ArenaWriter::new(),
            to_owner: VecDeque::new(),
            to_writer: VecDeque::new(),
            memory: HashMap::new(),
            queue: VecDeque::new(),
            delivered: HashMap::new(),
            next_tag: 0,
            next_rkey: 1,
            allocated: Vec::new(),
            lent: Vec::new(),
            busy: BTreeSet::new(),
            announced: BTreeSet::new(),
            known: Vec::new(),
            retiring: BTreeSet::new(),
            seen: Seen::default(),
        }
    }

    pub(crate) fn step(&mut self, random: &mut Random) {
        match random.below(100) {
            0..15 => self.submit(random),
            15..35 => self.send(random),
            35..55 => self.owner_receives(),
            55..70 => self.writer_receives(),
            70..76 => self.send_releases(),
            76..86 => self.application_releases(random),
            86..89 => self.grow(random.below(3) > 0),
            89..92 => self.pass_time(random),
            92..96 => self.wrong_extents(random),
            _ => self.wrong_releases(random),
        }
        if self.owner.is_release_due() && random.below(2) == 0 {
            self.send_releases();
        }
        self.check();
    }

    fn submit(&mut self, random: &mut Random) {
        let most = CHUNK_BYTES * u64::from(self.config.arena_chunks) * random.pick(&[1, 1, 4]);
        let len = 1 + random.below(most);
        self.queue.push_back((self.next_tag, len, 0));
        self.delivered.insert(self.next_tag, (0, len));
        self.next_tag += 1;
    }

    /// Sends the oldest message, or as much of it as allowed.
    fn send(&mut self, random: &mut Random) {
        if random.below(8) == 0
            && let Some(allocation) = self.allocated.pop()
        {
            self.writer.abandon(allocation);
            self.tell_given_up();
        }
        let Some((tag, len, sent)) = self.queue.front_mut() else { return };
        let left = *len - *sent;
        let Some(allocation) = self.writer.allocate(left) else {
            if self.writer.take_starved() {
                self.seen.starved += 1;
                self.to_owner.push_back(ToOwner::Starved);
            }
            if self.writer.usable_count() == 0 && random.below(2) == 0 {
                self.seen.eager += 1;
                self.to_owner.push_back(ToOwner::Eager((*tag, *sent..*len)));
                self.queue.pop_front();
            }
            return;
        };
        assert!(allocation.bytes() > 0 && allocation.bytes() <= left);
        if random.below(20) == 0 && self.allocated.len() < 2 {
            // Revoked before anything was posted.
            self.allocated.push(allocation);
            return;
        }
        let content = (*tag, *sent..*sent + allocation.bytes());
        self.seen.parts += u64::from(allocation.bytes() < left);
        self.seen.scattered += u64::from(allocation.extents().len() > 1);
        *sent = content.1.end;
        if *sent == *len {
            self.queue.pop_front();
        }
        self.announce(allocation, content, random);
    }

    fn announce(&mut self, allocation: Allocation, content: Content, random: &mut Random) {
        let mut at = 0;
        let mut writes = Vec::new();
        for write in self.writer.writes(&allocation) {
            assert_eq!(write.bytes.start, at, "the bytes of a message are written in order");
            at = write.bytes.end;
            let bytes = content.1.start + write.bytes.start..content.1.start + write.bytes.end;
            writes.push((write, (content.0, bytes)));
        }
        assert_eq!(at, allocation.bytes(), "all bytes are written");
        let extents = self.writer.announce(allocation);
        for chunk in chunks(&extents) {
            let holds = |arena: &Advertisement| chunks_of(extent_of(arena)).contains(&chunk);
            let arena = self.known.iter().find(|arena| holds(arena)).expect("known");
            assert!(!self.retiring.contains(&arena.arena), "chunk {chunk} is asked back");
            assert!(self.announced.insert(chunk), "chunk {chunk} is in two messages");
        }
        // A WRITE may land at once, or as late as the frame after it.
        if random.below(2) == 0 {
            for (write, content) in writes.drain(..) {
                self.land(&write, &content);
            }
        }
        self.to_owner.push_back(ToOwner::Message { writes, extents, content });
    }

    /// A WRITE reaches memory.
    fn land(&mut self, write: &ArenaWrite, (tag, bytes): &Content) {
        let (arena, memory) = self.memory.get_mut(&write.rkey).expect("a registered arena");
        let offset = write.address - arena.address;
        let len = write.bytes.end - write.bytes.start;
        assert!(offset + len <= u64::from(arena.chunks) * CHUNK_BYTES, "a write in bounds");
        assert_eq!(offset % CHUNK_BYTES, 0);
        for chunk in 0..len.div_ceil(CHUNK_BYTES) {
            let start = bytes.start + chunk * CHUNK_BYTES;
            let content = (*tag, start..bytes.end.min(start + CHUNK_BYTES));
            memory.insert(offset / CHUNK_BYTES + chunk, content);
        }
    }

    fn owner_receives(&mut self) {
        match self.to_owner.pop_front() {
            None => {}
            Some(ToOwner::Eager(content)) => self.on_part(&content),
            Some(ToOwner::Starved) => self.owner.on_starved(),
            Some(ToOwner::GivenUp(arena)) => {
                self.owner.on_given_up(arena).expect("legal");
                self.memory.retain(|_, (other, _)| other.arena != arena);
                self.seen.given_up += 1;
            }
            Some(ToOwner::Message { writes, extents, content }) => {
                for (write, content) in &writes {
                    self.land(write, content);
                }
                self.on_message(extents, content);
            }
        }
    }

    fn on_part(&mut self, content: &Content) {
        let (received, len) = self.delivered.get_mut(&content.0).expect("submitted");
        assert_eq!(*received, content.1.start, "parts arrive in order");
        *received = content.1.end;
        assert!(*received <= *len);
    }

    fn on_message(&mut self, extents: Extents, content: Content) {
        let bytes = content.1.end - content.1.start;
        let mut landed = self.owner.on_message(self.now, extents, bytes).expect("legal");
        for chunk in chunks(&extents) {
            assert!(self.busy.insert(chunk));
        }
        self.check_intact(&landed, &content);
        self.on_part(&content);
        let before = self.owner.lent_count();
        if self.owner.lend(&mut landed) {
            let lent = self.owner.lent_count();
            assert_eq!(lent, before + extents.chunk_count());
            assert!(lent <= self.owner.chunk_count() / 2, "rule 3");
            self.seen.lent += 1;
            self.lent.push((landed, content));
        } else {
            // Copied out by now.
            self.seen.copied += 1;
            self.owner.release(landed);
        }
    }

    /// Checks that the message lies where the owner says.
    fn check_intact(&self, landed: &Landed, (tag, bytes): &Content) {
        let mut at = 0;
        for piece in self.owner.pieces(landed) {
            assert_eq!(piece.bytes.start, at);
            at = piece.bytes.end;
            let arenas = &mut self.memory.values();
            let (_, memory) = arenas.find(|(arena, _)| arena.arena == piece.arena).expect("known");
            let len = piece.bytes.end - piece.bytes.start;
            for chunk in 0..len.div_ceil(CHUNK_BYTES) {
                let start = bytes.start + piece.bytes.start + chunk * CHUNK_BYTES;
                let end = (bytes.start + piece.bytes.end).min(start + CHUNK_BYTES);
                let found = memory.get(&(piece.offset / CHUNK_BYTES + chunk));
                assert_eq!(found, Some(&(*tag, start..end)), "message {tag} was overwritten");
            }
        }
        assert_eq!(at, landed.bytes());
    }

    fn writer_receives(&mut self) {
        match self.to_writer.pop_front() {
            None => {}
            Some(ToWriter::Advertise(arena)) => {
                self.writer.on_advertise(arena).expect("legal");
                self.known.push(arena);
            }
            Some(ToWriter::AskBack(arena)) => {
                self.writer.on_ask_back(arena).expect("legal");
                self.retiring.insert(arena);
                self.tell_given_up();
            }
            Some(ToWriter::Releases(extents)) => {
                self.writer.on_release(&extents).expect("legal");
                for chunk in chunks(&extents) {
                    assert!(self.announced.remove(&chunk));
                }
                self.tell_given_up();
            }
        }
    }

    fn tell_given_up(&mut self) {
        while let Some(arena) = self.writer.poll_given_up() {
            self.known.retain(|known| known.arena != arena);
            self.retiring.remove(&arena);
            self.to_owner.push_back(ToOwner::GivenUp(arena));
        }
    }

    fn send_releases(&mut self) {
        let extents = self.owner.take_releases();
        for chunk in chunks(&extents) {
            assert!(self.busy.remove(&chunk), "chunk {chunk} was released twice");
            assert!(
                !self.lent.iter().any(|(landed, _)| {
                    self.owner.pieces(landed).any(|piece| self.piece_has(&piece, chunk))
                }),
                "chunk {chunk} is released while it is held"
            );
        }
        if !extents.is_empty() {
            self.to_writer.push_back(ToWriter::Releases(extents));
        }
    }

    fn piece_has(&self, piece: &rpc_transport::protocol::arena::Piece, chunk: u32) -> bool {
        let mut arenas = self.memory.values().map(|(arena, _)| arena);
        let arena = arenas.find(|arena| arena.arena == piece.arena).expect("known");
        let first = u64::from(arena.first_chunk) + piece.offset / CHUNK_BYTES;
        let count = (piece.bytes.end - piece.bytes.start).div_ceil(CHUNK_BYTES);
        (first..first + count).contains(&u64::from(chunk))
    }

    fn application_releases(&mut self, random: &mut Random) {
        if self.lent.is_empty() {
            return;
        }
        let at = usize::try_from(random.below(self.lent.len() as u64)).expect("an index");
        self.release(at);
    }

    fn release(&mut self, at: usize) {
        let (landed, content) = self.lent.swap_remove(at);
        self.check_intact(&landed, &content);
        self.owner.release(landed);
    }

    pub(crate) fn release_all(&mut self) {
        while !self.lent.is_empty() {
            self.release(0);
        }
    }

    fn grow(&mut self, has_memory: bool) {
        let Some(bytes) = self.owner.wanted_bytes() else { return };
        assert_eq!(bytes, u64::from(self.config.arena_chunks) * CHUNK_BYTES);
        if !has_memory {
            self.owner.decline();
            return;
        }
        let rkey = self.next_rkey;
        self.next_rkey += 1;
        let arena = self.owner.add(u64::from(rkey) << 32, rkey).expect("within the budget");
        assert!(self.owner.chunk_count() <= self.config.max_chunks);
        self.memory.insert(rkey, (arena, HashMap::new()));
        self.to_writer.push_back(ToWriter::Advertise(arena));
        self.seen.grown += 1;
    }

    fn pass_time(&mut self, random: &mut Random) {
        self.now += Duration::from_secs(random.below(12));
        if let Some(arena) = self.owner.poll_ask_back(self.now) {
            assert!(self.owner.next_deadline().is_none());
            self.to_writer.push_back(ToWriter::AskBack(arena));
        }
    }

    fn random_extents(&self, random: &mut Random) -> Vec<Extent> {
        let number = |random: &mut Random, below: u64| {
            u16::try_from(random.below(below)).expect("a chunk number")
        };
        let span = u64::from(self.config.max_chunks) + 3;
        (0..random.below(4))
            .map(|_| Extent { first: number(random, span), count: number(random, 4) })
            .collect()
    }

    /// Whether a list is wrong regardless of the chunks' contents.
    fn is_malformed(extents: &[Extent], arenas: &[Advertisement]) -> bool {
        let mut named = BTreeSet::new();
        let within = |extent: Extent| {
            arenas.iter().any(|arena| {
                let (own, all) = (chunks_of(extent), chunks_of(extent_of(arena)));
                own.start >= all.start && own.end <= all.end
            })
        };
        extents.iter().any(|extent| extent.count == 0 || !within(*extent))
            || !chunks(extents).all(|chunk| named.insert(chunk))
    }

    /// A message that no honest writer sends is refused, and changes nothing.
    fn wrong_extents(&mut self, random: &mut Random) {
        let list = self.random_extents(random);
        let count: u64 = list.iter().map(|extent| u64::from(extent.count)).sum();
        let bytes = random.below((count + 1) * CHUNK_BYTES + 1);
        let arenas: Vec<Advertisement> = self.memory.values().map(|(arena, _)| *arena).collect();
        let share = u64::from((self.owner.chunk_count() / 2).max(1));
        let is_wrong = list.is_empty()
            || Self::is_malformed(&list, &arenas)
            || chunks(&list).any(|chunk| self.busy.contains(&chunk))
            || count > share
            || bytes.div_ceil(CHUNK_BYTES) != count;
        if !is_wrong {
            return;
        }
        let before = format!("{:?}", self.owner);
        let extents = Extents::from_slice(&list).expect("few");
        let verdict = self.owner.on_message(self.now, extents, bytes);
        let error = verdict.map(|landed| landed.bytes()).expect_err("a wrong message");
        assert!(!error.to_string().is_empty());
        assert_eq!(format!("{:?}", self.owner), before, "{error}");
        self.seen.wrong_extents += 1;
    }

    /// A release that no honest owner sends is refused, and changes nothing.
    fn wrong_releases(&mut self, random: &mut Random) {
        let list = self.random_extents(random);
        let is_wrong = Self::is_malformed(&list, &self.known)
            || chunks(&list).any(|chunk| !self.announced.contains(&chunk));
        if !is_wrong {
            return;
        }
        let before = format!("{:?}", self.writer);
        let extents = Extents::from_slice(&list).expect("few");
        let error: ArenaError = self.writer.on_release(&extents).expect_err("a wrong release");
        assert_eq!(format!("{:?}", self.writer), before, "{error}");
        self.seen.wrong_releases += 1;
    }

    /// Conditions that hold at every moment.
    fn check(&self) {
        let waiting = self.owner.held_count() + self.owner.releasing_count();
        assert_eq!(u64::from(waiting), self.busy.len() as u64);
        let known: u32 = self.known.iter().map(|arena| u32::from(arena.chunks)).sum();
        assert_eq!(self.writer.chunk_count(), known);
        let held: u32 = self.allocated.iter().map(|some| some.extents().chunk_count()).sum();
        let out = u32::try_from(self.announced.len()).expect("few") + held;
        assert!(self.writer.free_count() + out <= known);
    }

    /// Runs without time, new messages or the application, until nothing moves.
    pub(crate) fn drain(&mut self, random: &mut Random) {
        for allocation in self.allocated.drain(..) {
            self.writer.abandon(allocation);
        }
        self.tell_given_up();
        let mut still = 0;
        while still < 50 {
            let before = (self.queue.front().copied(), self.to_owner.len(), self.to_writer.len());
            // Mostly at random, so that the orders differ.
            match random.below(4) {
                0 => self.send(random),
                1 => self.owner_receives(),
                2 => self.writer_receives(),
                _ => {
                    self.grow(true);
                    self.send_releases();
                }
            }
            for allocation in self.allocated.drain(..) {
                self.writer.abandon(allocation);
            }
            self.check();
            let after = (self.queue.front().copied(), self.to_owner.len(), self.to_writer.len());
            still = if before == after { still + 1 } else { 0 };
        }
    }

    pub(crate) fn check_all_delivered(&self) {
        assert!(self.queue.is_empty(), "{:?} waits: {:?}", self.queue.front(), self.writer);
        for (tag, (received, len)) in &self.delivered {
            assert_eq!(received, len, "message {tag}");
        }
    }

    pub(crate) fn check_all_home(&self) {
        assert_eq!(self.owner.held_count() + self.owner.releasing_count(), 0);
        assert_eq!(self.owner.lent_count(), 0);
        assert!(self.busy.is_empty() && self.announced.is_empty());
        assert_eq!(self.writer.chunk_count(), self.owner.chunk_count());
        assert_eq!(self.writer.free_count(), self.owner.chunk_count());
    }
}
