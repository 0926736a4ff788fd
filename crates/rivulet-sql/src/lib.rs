//! SQL text to applications and dataflows, through DataFusion's parser and planner.
