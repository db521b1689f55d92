//! What is known of a type: a tree of what it asks a deserializer for.
//!
//! Owns names, paths and lines. Knows nothing of serde: `read` and `write` fill it in.

use std::fmt::{self, Write};

/// A place in the tree.
pub(super) type Id = usize;

/// Where nothing is written down: inside a type that is inside itself, or beyond the bound.
pub(super) const QUIET: Id = usize::MAX;

/// Most lines of one argument or result.
const MAX_LINES: usize = 4096;

/// What is at a place.
#[derive(Debug, Clone)]
pub(super) enum What {
    /// Nothing was asked for yet.
    Unseen,
    /// A value without parts, by its name in a line.
    Leaf(&'static str),
    Option,
    Sequence,
    Map,
    Tuple(usize),
    Struct(Names),
    Enum(Names),
    /// The type itself: how many named types further out, and where.
    Itself(usize, Id),
    /// The type asks the format what comes next.
    Anything(Cause),
    /// The bound on depth was met.
    More,
}

/// Which kind of type asks the format what comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    Untagged,
    Tag,
    TagAndContent,
    Flatten,
    Json,
    RawValue,
    Decimal,
    Other,
}

impl Cause {
    /// What is wrong, and what to do.
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Untagged => {
                "serde's `untagged` needs a self-describing format; remove the attribute"
            }
            Self::Tag => "serde's `tag` needs a self-describing format; remove the attribute",
            Self::TagAndContent => {
                "serde's `tag` with `content` needs a self-describing format; remove the attributes"
            }
            Self::Flatten => {
                "serde's `flatten` needs a self-describing format; remove the attribute, so that \
                 the inner value is an ordinary field"
            }
            Self::Json => {
                "a `serde_json` value needs a self-describing format; send its text as a `String`, \
                 or use a type of your own"
            }
            Self::RawValue => {
                "`RawValue` of `serde_json` needs that crate's own format; send its text as a `String`"
            }
            Self::Decimal => {
                "`rust_decimal` needs a self-describing format, which bincode and postcard are \
                 not; enable its feature `serde-str`"
            }
            Self::Other => {
                "it calls `deserialize_any`, which needs a self-describing format; bincode and \
                 postcard are not: use a type of your own instead"
            }
        }
    }
}

/// The names of fields or variants. serde's derive hands over the aliases as well, sorted, so what
/// is one field is found out while they are tried.
#[derive(Debug, Clone)]
pub(super) struct Names {
    all: &'static [&'static str],
    /// For each name that was tried, the field that it belongs to.
    field: Vec<usize>,
    fields: Vec<Field>,
    /// A name that belongs to two of them: only the first is read under it.
    pub(super) twice: Option<&'static str>,
}

#[derive(Debug, Clone, Copy)]
struct Field {
    /// Identifies the field.
    key: u64,
    /// Which of its names is written, if it has several.
    main: Option<&'static str>,
    /// Where its first name is.
    first: usize,
}

impl Names {
    /// All that may be aliases of each other.
    pub(super) const fn untried(all: &'static [&'static str]) -> Self {
        Self { all, field: Vec::new(), fields: Vec::new(), twice: None }
    }

    /// Each is a field of its own.
    pub(super) fn distinct(all: &'static [&'static str]) -> Self {
        let mut names = Self::untried(all);
        for at in 0..all.len() {
            names.learn(at as u64);
        }
        names
    }

    /// How many fields are known.
    pub(super) fn len(&self) -> usize {
        self.fields.len()
    }

    /// The next name to try.
    pub(super) fn next_untried(&self) -> Option<&'static str> {
        self.all.get(self.field.len()).copied()
    }

    /// The next name has this key. Gives the field.
    pub(super) fn learn(&mut self, key: u64) -> usize {
        let first = self.field.len();
        let known = self.fields.iter().position(|field| field.key == key);
        let at = known.unwrap_or(self.fields.len());
        if known.is_none() {
            self.fields.push(Field { key, main: None, first });
        }
        self.field.push(at);
        // A name that is there again was tried already.
        while let Some(name) = self.next_untried()
            && let Some(known) = self.find(name)
        {
            self.twice = Some(name);
            self.field.push(known);
        }
        at
    }

    /// A name of that field.
    pub(super) fn any_of(&self, field: usize) -> &'static str {
        self.fields.get(field).and_then(|field| self.all.get(field.first)).copied().unwrap_or("")
    }

    /// The field of that name.
    pub(super) fn find(&self, name: &str) -> Option<usize> {
        let at = self.all.iter().take(self.field.len()).position(|other| *other == name)?;
        Some(self.field[at])
    }

    /// This name is the one that is written.
    pub(super) fn set_main(&mut self, name: &'static str) {
        if let Some(at) = self.find(name) {
            self.fields[at].main = Some(name);
        }
    }

    /// All names of a field: the main one first, if it is known.
    pub(super) fn all_of(&self, at: usize) -> Vec<&'static str> {
        let names = self.all.iter().zip(&self.field).filter(|(_, field)| **field == at);
        let mut names: Vec<_> = names.map(|(name, _)| *name).collect();
        let main = self.fields.get(at).and_then(|field| field.main);
        names.sort_by_key(|name| Some(*name) != main);
        names
    }

    /// The field or variant with that key.
    pub(super) fn with_key(&self, key: u64) -> Option<usize> {
        self.fields.iter().position(|field| field.key == key)
    }

    /// The name of a field: where it is not known which is the main one, all of them.
    pub(super) fn name(&self, at: usize) -> String {
        if let Some(main) = self.fields.get(at).and_then(|field| field.main) {
            return main.to_owned();
        }
        let names = self.all.iter().zip(&self.field).filter(|(_, field)| **field == at);
        names.map(|(name, _)| *name).collect::<Vec<_>>().join("|")
    }
}

impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = (0..self.len()).map(|at| self.name(at)).collect();
        f.write_str(&names.join(", "))
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unseen => f.write_str("something"),
            Self::Leaf(name) => f.write_str(name),
            Self::Option => f.write_str("option"),
            Self::Sequence => f.write_str("sequence"),
            Self::Map => f.write_str("map"),
            Self::Tuple(len) => write!(f, "tuple of {len}"),
            Self::Struct(names) => write!(f, "struct {{ {names} }}"),
            Self::Enum(names) => write!(f, "enum {{ {names} }}"),
            Self::Itself(levels, _) => write!(f, "itself, {levels} up"),
            Self::Anything(_) => f.write_str("anything"),
            Self::More => f.write_str("more"),
        }
    }
}

/// What is at one place, and how far it has been looked into.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) what: What,
    /// The type of the value there, where it is known.
    pub(super) type_name: &'static str,
    parent: Option<(Id, usize)>,
    parts: Vec<Id>,
    /// The sequence becomes a set, which has equal items once.
    pub(super) is_set: bool,
    /// The last round in which everything inside was shown. 0: none.
    pub(super) settled: u8,
    /// The last value that was tried was refused.
    pub(super) refuses: bool,
    /// All values were refused.
    pub(super) is_dead: bool,
    /// Which of the values to try.
    pub(super) candidate: usize,
    /// It takes no zero.
    pub(super) refuses_zero: bool,
    /// Its container cannot be made without it.
    pub(super) is_needed: bool,
    /// It was shown without what can be left out of it.
    pub(super) was_bare: bool,
    /// In which run it was shown last, and whether it was a value of one zero byte then.
    pub(super) shown: (usize, bool),
    /// Which of its values are left out when it is written.
    pub(super) left_out: LeftOut,
    /// A value with it was written.
    pub(super) is_written: bool,
    /// What it does with a name that it does not know, if it was asked.
    pub(super) stranger: Option<Stranger>,
}

/// Which values of a field `skip_serializing_if` leaves out.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LeftOut {
    /// One that is one zero byte: `None`, an empty list, map or text, 0, false, a first variant.
    pub(super) zero: bool,
    /// Another one.
    pub(super) other: bool,
    /// The default.
    pub(super) default: bool,
}

/// What derived code does with a name that it does not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stranger {
    /// It refuses it: `deny_unknown_fields`, or an enum without `other`.
    Refused,
    /// It skips the field.
    Skipped,
    /// It takes the variant of that number.
    Other(usize),
}

/// The tree of one type.
#[derive(Debug)]
pub(super) struct Tree {
    root: String,
    nodes: Vec<Node>,
    /// The bound on lines or depth was met.
    pub(super) is_cut: bool,
}

impl Tree {
    pub(super) const ROOT: Id = 0;

    pub(super) fn new(root: String) -> Self {
        let mut tree = Self { root, nodes: Vec::new(), is_cut: false };
        tree.add(None);
        tree
    }

    pub(super) fn get(&self, id: Id) -> Option<&Node> {
        self.nodes.get(id)
    }

    pub(super) fn get_mut(&mut self, id: Id) -> Option<&mut Node> {
        self.nodes.get_mut(id)
    }

    fn add(&mut self, parent: Option<(Id, usize)>) -> Id {
        self.nodes.push(Node {
            what: What::Unseen,
            type_name: "",
            parent,
            parts: Vec::new(),
            is_set: false,
            settled: 0,
            refuses: false,
            is_dead: false,
            candidate: 0,
            refuses_zero: false,
            is_needed: false,
            was_bare: false,
            shown: (0, false),
            left_out: LeftOut::default(),
            is_written: false,
            stranger: None,
        });
        self.nodes.len() - 1
    }

    /// Writes down what is at a place, if that is new.
    pub(super) fn note(&mut self, id: Id, what: What) {
        if let Some(node) = self.nodes.get_mut(id)
            && matches!(node.what, What::Unseen)
        {
            node.what = what;
        }
    }

    /// The part at that position, if something was asked for there.
    pub(super) fn part(&self, id: Id, at: usize) -> Option<Id> {
        self.nodes.get(id)?.parts.get(at).copied().filter(|part| *part != QUIET)
    }

    /// The part at a position; made if it is not there.
    pub(super) fn part_or_new(&mut self, id: Id, at: usize) -> Id {
        if id == QUIET {
            return QUIET;
        }
        if let Some(part) = self.part(id, at) {
            return part;
        }
        if self.nodes.len() == MAX_LINES {
            self.is_cut = true;
            return QUIET;
        }
        let part = self.add(Some((id, at)));
        let parts = &mut self.nodes[id].parts;
        if parts.len() <= at {
            parts.resize(at + 1, QUIET);
        }
        parts[at] = part;
        part
    }

    pub(super) fn names(&self, id: Id) -> Option<&Names> {
        match &self.nodes.get(id)?.what {
            What::Struct(names) | What::Enum(names) => Some(names),
            _ => None,
        }
    }

    pub(super) fn names_mut(&mut self, id: Id) -> Option<&mut Names> {
        match &mut self.nodes.get_mut(id)?.what {
            What::Struct(names) | What::Enum(names) => Some(names),
            _ => None,
        }
    }

    /// Whether everything inside was shown in that round, or cannot be.
    pub(super) fn is_settled(&self, id: Option<Id>, round: u8) -> bool {
        let node = id.and_then(|id| self.nodes.get(id));
        node.map_or(self.is_cut, |it| it.is_dead || it.settled >= round)
    }

    pub(super) fn is_dead(&self, id: Option<Id>) -> bool {
        id.and_then(|id| self.nodes.get(id)).is_some_and(|it| it.is_dead)
    }

    /// How many parts the container at a place has when it is whole; `None`: any number.
    pub(super) fn parts_len(&self, id: Id) -> usize {
        match self.nodes.get(id).map(|node| &node.what) {
            Some(What::Tuple(len)) => *len,
            Some(What::Struct(names) | What::Enum(names)) => names.len(),
            Some(What::Option | What::Sequence) => 1,
            Some(What::Map) => 2,
            _ => 0,
        }
    }

    pub(super) fn parent(&self, id: Id) -> Option<(Id, usize)> {
        self.nodes.get(id)?.parent
    }

    /// The path of a place: `0.items[].name`.
    pub(super) fn path(&self, id: Id) -> String {
        let mut steps = Vec::new();
        let mut here = id;
        while let Some((parent, at)) = self.nodes.get(here).and_then(|node| node.parent) {
            steps.push((parent, at));
            here = parent;
        }
        let mut path = self.root.clone();
        steps.into_iter().rev().for_each(|(parent, at)| self.step(&mut path, parent, at));
        path
    }

    fn step(&self, path: &mut String, parent: Id, at: usize) {
        let _ = match &self.nodes[parent].what {
            What::Struct(names) => write!(path, ".{}", names.name(at)),
            What::Enum(names) => write!(path, "::{}", names.name(at)),
            What::Option => write!(path, "?"),
            What::Sequence => write!(path, "[]"),
            What::Map => write!(path, "{}", if at == 0 { "{key}" } else { "{value}" }),
            _ => write!(path, ".{at}"),
        };
    }

    /// The type of the value at a place, or else the nearest around it that is known.
    pub(super) fn type_name(&self, id: Id) -> &'static str {
        let mut here = self.nodes.get(id);
        while let Some(node) = here {
            if !node.type_name.is_empty() {
                return node.type_name;
            }
            here = node.parent.and_then(|(parent, _)| self.nodes.get(parent));
        }
        ""
    }

    /// Whether nothing was asked for.
    pub(super) fn is_unseen(&self) -> bool {
        matches!(self.nodes[Self::ROOT].what, What::Unseen)
    }

    /// All places, each before what is inside.
    pub(super) fn all(&self) -> impl Iterator<Item = (Id, &Node)> {
        self.nodes.iter().enumerate()
    }

    /// A line for each place, from the outside in, in the order of a message.
    pub(super) fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        self.add_lines(Self::ROOT, &mut self.root.clone(), &mut lines);
        lines
    }

    fn add_lines(&self, id: Id, path: &mut String, lines: &mut Vec<String>) {
        let node = &self.nodes[id];
        if self.is_bytes(id) {
            lines.push(format!("{path}: bytes"));
            return;
        }
        if !matches!(node.what, What::Unseen) {
            lines.push(format!("{path}: {}", node.what));
        }
        for (at, part) in node.parts.iter().enumerate().filter(|(_, part)| **part != QUIET) {
            let length = path.len();
            self.step(path, id, at);
            self.add_lines(*part, path, lines);
            path.truncate(length);
        }
    }

    /// A sequence of bytes is a byte string.
    pub(super) fn is_bytes(&self, id: Id) -> bool {
        let is_byte = |part: Id| matches!(self.nodes[part].what, What::Leaf("u8"));
        matches!(self.nodes[id].what, What::Sequence) && self.part(id, 0).is_some_and(is_byte)
    }
}
