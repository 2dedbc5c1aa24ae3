//! Checks of batches with a simulated origin.
