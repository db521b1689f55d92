//! Where a run goes: tables on stdout, and files.

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use crate::options::OutputOptions;
use crate::report::{Report, Run, Settings};
use crate::{compare, plot, table};

/// Writes what has been measured, as soon as it is there.
#[derive(Debug)]
pub(crate) struct Output {
    options: OutputOptions,
    /// Read before anything is measured: a mistake shows at once.
    old: Option<Report>,
    tables: bool,
}

impl Output {
    /// Looks at what the options name.
    ///
    /// # Errors
    /// When a file cannot be read, or will not be written.
    pub(crate) fn new(options: &OutputOptions) -> Result<Self> {
        let old = options.compare.as_deref().map(Report::read).transpose()?;
        let json = options.json.as_ref().filter(|_| !options.json_on_stdout());
        for path in json.into_iter().chain(&options.plot) {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            if folder.is_some_and(|folder| !folder.is_dir()) || path.is_dir() {
                bail!("{} cannot be written: name a file in a folder that exists", path.display());
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

    /// What is there only when all is: ratios and files.
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

    /// Colours reach a terminal only.
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
