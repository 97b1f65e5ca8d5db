//! The report of a sweep: `report.html`, drawn from `results.json` and the folders of the runs.
//!
//! Read in this order: [`view`] (points in groups), [`runs`] (what runs leave), [`scale`] and [`chart`] (pictures), [`curves`],
//! [`spread`], [`time`] and [`tables`] (the parts), [`page`] (the whole).

mod chart;
mod curves;
mod page;
mod runs;
mod scale;
mod spread;
mod tables;
mod time;
mod view;

use std::path::{Path, PathBuf};

use crate::results::Results;
use crate::state::{LabError, write_whole};

/// Draws `report.html` of a sweep's folder again, and says where it is.
///
/// # Errors
///
/// A folder without results, results that are damaged, or a file that cannot be written. What a run has not left is not drawn.
pub fn report(folder: &Path) -> Result<PathBuf, LabError> {
    let results = Results::read(folder)?;
    let page = page::page(&view::View::new(&results, folder));
    let path = folder.join("report.html");
    write_whole(&path, page.as_bytes())?;
    Ok(path)
}
