mod hca;
mod model;
mod pair;
mod rules;
