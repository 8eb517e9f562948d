mod random;
mod rules;
mod world;
