//! The output of a run: tables on stdout, and files.

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use crate::options::OutputOptions;
use crate::report::{Report, Run, Settings};
use crate::{compare, plot, table};

/// Writes results as soon as they are measured.
#[derive(Debug)]
pub(crate) struct Output {
    options: OutputOptions,
    /// Read before anything is measured, so that a mistake shows at once.
    old: Option<Report>,
    tables: bool,
}

impl Output {
    /// Checks the files named by the options.
    ///
    /// # Errors
    /// A file cannot be read, or cannot be written.
    pub(crate) fn new(options: &OutputOptions) -> Result<Self> {
        let old = options.compare.as_deref().map(Report::read).transpose()?;
        let json = options.json.as_ref().filter(|_| !options.json_on_stdout());
        for path in json.into_iter().chain(&options.plot) {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            if folder.is_some_and(|folder| !folder.is_dir()) || path.is_dir() {
                bail!("cannot write {}: choose a file in an existing directory", path.display());
            }
        }
        Ok(Self { options: options.clone(), old, tables: !options.json_on_stdout() })
    }

    pub(crate) fn heading(&self, report: &Report) -> Result<()> {
        self.print(&table::heading(report))
    }

    pub(crate) fn remark(&self, text: &str) -> Result<()> {
        self.print(&format!("{text}\n"))
    }

    pub(crate) fn run(&self, run: &Run, settings: &Settings) -> Result<()> {
        self.print(&table::run(run, settings))
    }

    /// Writes the output that needs the complete run: ratios and files.
    pub(crate) fn finish(&self, report: &Report) -> Result<()> {
        if let Some(old) = &self.old {
            self.print(&compare::table(old, report))?;
        }
        if let Some(path) = &self.options.plot {
            write(path, &plot::svg(report)?)?;
            self.print(&format!("\nplot  {}\n", path.display()))?;
        }
        match &self.options.json {
            Some(_) if self.options.json_on_stdout() => {
                io::stdout().write_all(report.to_json()?.as_bytes())?;
            }
            Some(path) => {
                write(path, &report.to_json()?)?;
                self.print(&format!("json  {}\n", path.display()))?;
            }
            None => {}
        }
        Ok(())
    }

    /// Colours are only sent to a terminal.
    fn print(&self, text: &str) -> Result<()> {
        if self.tables {
            let mut stdout = anstream::stdout().lock();
            stdout.write_all(text.as_bytes())?;
            stdout.flush()?;
        }
        Ok(())
    }
}

fn write(path: &PathBuf, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
