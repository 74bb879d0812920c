//! What plots are drawn on: SVG without a colour of its own, so that the page's style gives it one.

use std::cell::RefCell;
use std::convert::Infallible;
use std::rc::Rc;

use maud::{Markup, PreEscaped, html};
use plotters_backend::text_anchor::{HPos, VPos};
use plotters_backend::{
    BackendColor, BackendCoord, BackendStyle, BackendTextStyle, DrawingBackend, DrawingErrorKind,
};

/// Plotters counts in whole units: so many are one of the picture's.
pub(super) const FINE: i32 = 10;

/// A picture under construction.
#[derive(Clone, Debug)]
pub(super) struct Canvas {
    width: u32,
    height: u32,
    /// What was drawn, outermost group first.
    open: Rc<RefCell<Vec<String>>>,
}

/// Whose marks and lines are drawn.
#[derive(Clone, Debug)]
pub(super) struct Series {
    pub(super) workload: String,
    pub(super) backend: String,
    pub(super) placed: &'static str,
    pub(super) subject: String,
    pub(super) look: Look,
}

/// One measurement of a series.
#[derive(Clone, Debug)]
pub(super) struct Mark {
    pub(super) look: Look,
    pub(super) case: String,
    /// To whoever points at it.
    pub(super) says: String,
}

/// How a subject looks in all pictures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// The so many-eth kind of lockkit.
    Lockkit(usize),
    Floor,
    /// The so many-eth of the peers.
    Peer(usize),
}

impl Look {
    pub(super) fn class(self) -> String {
        match self {
            Self::Lockkit(kind) => format!("series lockkit k{}", kind % 3),
            Self::Floor => "series floor".into(),
            Self::Peer(kind) => format!("series peer k{}", kind % 5),
        }
    }

    /// A closed path around the origin: told apart without colour.
    pub(super) fn outline(self) -> &'static str {
        const CIRCLE: &str = "M-4,0a4,4 0 1 0 8,0a4,4 0 1 0 -8,0Z";
        const DOUBLE: &str = "M-4.5,0a4.5,4.5 0 1 0 9,0a4.5,4.5 0 1 0 -9,0ZM-1.5,0a1.5,1.5 0 1 0 3,0a1.5,1.5 0 1 0 -3,0Z";
        const BAR: &str = "M-1.5,-6h3v12h-3Z";
        const PEERS: [&str; 6] = [
            "M0,-4.5L4.5,0L0,4.5L-4.5,0Z",
            "M-3.5,-3.5h7v7h-7Z",
            "M0,-4.2L4.4,3.4H-4.4Z",
            "M0,4.2L4.4,-3.4H-4.4Z",
            "M0,-4.4L4.2,-1.4L2.6,3.6H-2.6L-4.2,-1.4Z",
            "M-4.5,-1.6h2.9v-2.9h3.2v2.9h2.9v3.2h-2.9v2.9h-3.2v-2.9h-2.9Z",
        ];
        match self {
            Self::Lockkit(0) => CIRCLE,
            Self::Lockkit(_) => DOUBLE,
            Self::Floor => BAR,
            Self::Peer(kind) => PEERS[kind % PEERS.len()],
        }
    }
}

/// Where a text stands at its point.
#[derive(Clone, Copy, Debug)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

impl Anchor {
    fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Middle => "middle",
            Self::End => "end",
        }
    }
}

impl Canvas {
    /// An empty one, in units of the picture.
    pub(super) fn new(width: u32, height: u32) -> Self {
        Self { width, height, open: Rc::new(RefCell::new(vec![String::new()])) }
    }

    /// What is drawn meanwhile is of that class.
    pub(super) fn group<T>(&self, class: &str, draw: impl FnOnce() -> T) -> T {
        let (drawn, inner) = self.inside(draw);
        self.put(&html! { g class=(class) { (inner) } });
        drawn
    }

    /// What is drawn meanwhile is that series.
    pub(super) fn series<T>(&self, series: &Series, draw: impl FnOnce() -> T) -> T {
        let (drawn, inner) = self.inside(draw);
        self.put(&html! {
            g class=(series.look.class()) data-workload=(series.workload)
                data-backend=(series.backend) data-placed=(series.placed) data-series=(series.subject) { (inner) }
        });
        drawn
    }

    /// A mark, in fine units, as all that plotters places.
    pub(super) fn mark(&self, mark: &Mark, at: BackendCoord) {
        let (x, y) = at;
        self.put(&html! {
            path class="mark" data-case=(mark.case) d=(mark.look.outline()) transform={ "translate(" (unit(x)) " " (unit(y)) ")" } {
                title { (mark.says) }
            }
        });
    }

    /// A text, in fine units.
    pub(super) fn text(&self, at: BackendCoord, anchor: Anchor, text: &str) {
        self.put(&html! {
            text x=(unit(at.0)) y=(unit(at.1)) dy="0.35em" text-anchor=(anchor.name()) { (text) }
        });
    }

    /// A line, in fine units.
    pub(super) fn line(&self, class: &str, from: BackendCoord, to: BackendCoord) {
        self.put(&html! {
            line class=(class) x1=(unit(from.0)) y1=(unit(from.1)) x2=(unit(to.0)) y2=(unit(to.1)) {}
        });
    }

    /// What was drawn.
    pub(super) fn drawn(&self) -> Markup {
        PreEscaped(self.open.borrow().concat())
    }

    fn inside<T>(&self, draw: impl FnOnce() -> T) -> (T, Markup) {
        self.open.borrow_mut().push(String::new());
        let drawn = draw();
        let inner = self.open.borrow_mut().pop().unwrap_or_default();
        (drawn, PreEscaped(inner))
    }

    fn put(&self, shape: &Markup) {
        if let Some(group) = self.open.borrow_mut().last_mut() {
            group.push_str(&shape.0);
        }
    }
}

/// In units of the picture.
fn unit(fine: i32) -> String {
    let text = format!("{:.1}", f64::from(fine) / f64::from(FINE));
    text.strip_suffix(".0").map(Into::into).unwrap_or(text)
}

fn points(path: impl IntoIterator<Item = BackendCoord>) -> String {
    let points: Vec<_> =
        path.into_iter().map(|(x, y)| format!("{},{}", unit(x), unit(y))).collect();
    points.join(" ")
}

type Drawn = Result<(), DrawingErrorKind<Infallible>>;

impl DrawingBackend for Canvas {
    type ErrorType = Infallible;

    fn get_size(&self) -> (u32, u32) {
        let fine = FINE.unsigned_abs();
        (self.width * fine, self.height * fine)
    }

    fn ensure_prepared(&mut self) -> Drawn {
        Ok(())
    }

    fn present(&mut self) -> Drawn {
        Ok(())
    }

    /// Plots are of lines.
    fn draw_pixel(&mut self, _: BackendCoord, _: BackendColor) -> Drawn {
        Ok(())
    }

    fn draw_line<S: BackendStyle>(
        &mut self,
        from: BackendCoord,
        to: BackendCoord,
        style: &S,
    ) -> Drawn {
        self.draw_path([from, to], style)
    }

    fn draw_path<S: BackendStyle, I: IntoIterator<Item = BackendCoord>>(
        &mut self,
        path: I,
        style: &S,
    ) -> Drawn {
        if style.color().alpha > 0.0 {
            self.put(&html! { polyline points=(points(path)) {} });
        }
        Ok(())
    }

    fn draw_text<S: BackendTextStyle>(&mut self, text: &str, style: &S, at: BackendCoord) -> Drawn {
        let anchor = match style.anchor().h_pos {
            HPos::Left => Anchor::Start,
            HPos::Center => Anchor::Middle,
            HPos::Right => Anchor::End,
        };
        let down = match style.anchor().v_pos {
            VPos::Top => "0.8em",
            VPos::Center => "0.35em",
            VPos::Bottom => "-0.2em",
        };
        self.put(&html! {
            text x=(unit(at.0)) y=(unit(at.1)) dy=(down) text-anchor=(anchor.name()) { (text) }
        });
        Ok(())
    }
}
