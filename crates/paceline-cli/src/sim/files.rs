//! What a simulation leaves behind: pictures and tables of numbers.

use std::path::{Path, PathBuf};

use crate::exit::Failure;

/// What a flag that asks for a picture comes to where none can be drawn.
const NO_CHARTS: &str = "this paceline was built without pictures: `cargo install --path crates/paceline-cli --features charts` \
                         builds one that draws them";

/// The form of a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Svg,
    Png,
}

impl Form {
    /// The flag of `sim responsive` that asks for it.
    const fn flag(self) -> &'static str {
        match self {
            Self::Svg => "--svg",
            Self::Png => "--png",
        }
    }
}

/// A picture's file, whose ending says in which form it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Picture {
    path: PathBuf,
    form: Form,
}

impl Picture {
    /// Reads the flag's value.
    ///
    /// # Errors
    /// A name that ends otherwise; any name without the feature `charts`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if cfg!(not(feature = "charts")) {
            return Err(NO_CHARTS.to_owned());
        }
        let path = PathBuf::from(text);
        let form = match path.extension().and_then(|ending| ending.to_str()) {
            Some("svg") => Form::Svg,
            Some("png") => Form::Png,
            _ => return Err("expected a name that ends in .svg or .png".to_owned()),
        };
        Ok(Self { path, form })
    }

    /// Reads the value of a flag that asks for one form.
    ///
    /// # Errors
    /// A name that ends as one of the other form; any name without the feature `charts`.
    pub(crate) fn of(form: Form, text: &str) -> Result<Self, String> {
        match Self::parse(text) {
            Ok(other) if other.form != form => {
                Err(format!("that is a name of the other form: use {}", other.form.flag()))
            }
            Err(error) if cfg!(not(feature = "charts")) => Err(error),
            _ => Ok(Self { path: PathBuf::from(text), form }),
        }
    }

    /// Where the file will be.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Draws the figure into the file.
    ///
    /// # Errors
    /// When the file cannot be written.
    #[cfg(feature = "charts")]
    pub(crate) fn save(&self, figure: &paceline_chart::Figure) -> Result<(), Failure> {
        let bytes = match self.form {
            Form::Svg => figure.svg().map(String::into_bytes),
            Form::Png => figure.png(),
        };
        write(&self.path, &bytes.map_err(Failure::interrupted)?)
    }
}

/// Looks whether all of these files can stand where they are to stand, before the work that they are to hold.
///
/// # Errors
/// As [`expect_place`]; and when two are the same.
pub(crate) fn expect_places<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Result<(), Failure> {
    let mut seen = Vec::new();
    for path in paths {
        expect_place(path)?;
        if seen.contains(&path) {
            return Err(Failure::refused(format!("cannot write two things to {}: name two files", path.display())));
        }
        seen.push(path);
    }
    Ok(())
}

/// Looks whether a file can stand there, before the work that it is to hold.
///
/// # Errors
/// When its folder does not exist, or it is a folder itself.
pub(crate) fn expect_place(path: &Path) -> Result<(), Failure> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let reason = match folder {
        Some(folder) if !folder.is_dir() => format!("there is no folder {}", folder.display()),
        _ if path.is_dir() => "it is a folder".to_owned(),
        _ => return Ok(()),
    };
    Err(Failure::refused(format!("cannot write {}: {reason}", path.display())))
}

/// Writes a table whose first row names the columns.
pub(crate) fn table<const N: usize>(
    path: &Path,
    columns: [&str; N],
    rows: impl Iterator<Item = [String; N]>,
) -> Result<(), Failure> {
    let mut table = csv::Writer::from_writer(Vec::new());
    let rows = std::iter::once(columns.map(ToOwned::to_owned)).chain(rows);
    for row in rows {
        table.write_record(row).map_err(Failure::interrupted)?;
    }
    let bytes = table.into_inner().map_err(Failure::interrupted)?;
    write(path, &bytes)
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    std::fs::write(path, bytes).map_err(|error| Failure::refused(format!("cannot write {}: {error}", path.display())))
}
