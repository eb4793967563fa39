//! What is drawn in a panel.

use plotters::style::RGBColor;

/// A colour. They differ in lightness too, so that people who do not see red or green can distinguish them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ink {
    /// For what went well, and for what is ours.
    Blue,
    /// For what went wrong.
    Vermillion,
    /// For a third thing.
    Green,
    /// For a fourth thing.
    Purple,
    /// For what stands behind.
    Grey,
    /// For bounds.
    Black,
}

impl Ink {
    pub(crate) const fn rgb(self) -> RGBColor {
        match self {
            Self::Blue => RGBColor(0, 105, 170),
            Self::Vermillion => RGBColor(213, 94, 0),
            Self::Green => RGBColor(0, 140, 105),
            Self::Purple => RGBColor(170, 75, 140),
            Self::Grey => RGBColor(104, 104, 104),
            Self::Black => RGBColor(34, 34, 34),
        }
    }
}

/// The form of a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A filled circle.
    Circle,
    /// A filled triangle.
    Triangle,
    /// Two lines that cross.
    Cross,
}

/// Values that belong together.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// What the legend says. Nothing stands there for an empty name.
    pub(crate) name: String,
    pub(crate) ink: Ink,
    pub(crate) form: Form,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Form {
    Line { points: Vec<(f64, f64)>, dash: Dash, width: u32 },
    Area { upper: Vec<(f64, f64)>, lower: Vec<(f64, f64)> },
    Points { points: Vec<(f64, f64)>, shape: Shape },
    Named { points: Vec<(f64, f64, String)>, shape: Shape },
}

/// How a line is interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dash {
    Never,
    Long,
    Short,
}

impl Series {
    /// A line through points.
    pub fn line(name: &str, ink: Ink, points: Vec<(f64, f64)>) -> Self {
        Self::new(name, ink, Form::Line { points, dash: Dash::Never, width: 2 })
    }

    /// A dashed line through points.
    pub fn dashed(name: &str, ink: Ink, points: Vec<(f64, f64)>) -> Self {
        Self::new(name, ink, Form::Line { points, dash: Dash::Long, width: 2 })
    }

    /// A line of dots through points.
    pub fn dotted(name: &str, ink: Ink, points: Vec<(f64, f64)>) -> Self {
        Self::new(name, ink, Form::Line { points, dash: Dash::Short, width: 2 })
    }

    /// The area between two lines that have the same x.
    pub fn area(name: &str, ink: Ink, upper: Vec<(f64, f64)>, lower: Vec<(f64, f64)>) -> Self {
        Self::new(name, ink, Form::Area { upper, lower })
    }

    /// A shape at each point.
    pub fn points(name: &str, ink: Ink, shape: Shape, points: Vec<(f64, f64)>) -> Self {
        Self::new(name, ink, Form::Points { points, shape })
    }

    /// A shape at each point and a text beside it, where it covers no other.
    pub fn named(name: &str, ink: Ink, shape: Shape, points: Vec<(f64, f64, String)>) -> Self {
        Self::new(name, ink, Form::Named { points, shape })
    }

    /// A line of half the usual width; nothing changes for other series.
    #[must_use]
    pub fn thin(mut self) -> Self {
        if let Form::Line { width, .. } = &mut self.form {
            *width = 1;
        }
        self
    }

    pub(crate) const fn is_points(&self) -> bool {
        matches!(self.form, Form::Points { .. } | Form::Named { .. })
    }

    fn new(name: &str, ink: Ink, form: Form) -> Self {
        Self { name: name.to_owned(), ink, form }
    }
}
